"""The demo command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    folder: Annotated[Path, typer.Argument(help="Where to put it.")] = Path("demo"),
) -> None:
    """Draw a small dataset, import it, look at it, score it with the baselines.

    [bold]Examples[/bold]

      demerit demo
      demerit demo /tmp/demerit-demo
    """
    from rich.table import Table  # noqa: PLC0415

    from demerit.cli.bars import out  # noqa: PLC0415
    from demerit.cli.data import inspect  # noqa: PLC0415
    from demerit.demo import run_demo  # noqa: PLC0415

    result = run_demo(folder)
    inspect(str(result.store))
    table = Table(
        "model", "episodes", "final value, successes", "final value, failures", title="What knowing nothing scores"
    )
    for row in result.rows:
        table.add_row(row.model, str(row.scored), f"{row.final_of_successes:.2f}", f"{row.final_of_failures:.2f}")
    out.print(table)
    out.print(f"The videos are cartoons, drawn on the spot: {result.store}")
    out.print(f"A failure, and what the baselines make of it: {result.sheet}")
