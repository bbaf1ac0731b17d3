"""The demo command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    folder: Annotated[Path, typer.Argument(help="Where to put it.")] = Path("demo"),
) -> None:
    """Take the sample that ships, import it, look at it, measure a model on it beside the controls.

    [bold]Examples[/bold]

      demerit demo
      demerit demo my_demo
    """
    from demerit.cli.bars import out  # noqa: PLC0415
    from demerit.cli.bench import print_report  # noqa: PLC0415
    from demerit.cli.data import inspect  # noqa: PLC0415
    from demerit.demo import run_demo  # noqa: PLC0415

    result = run_demo(folder)
    inspect(str(result.store))
    print_report(result.report)
    out.print("Twelve simulated episodes show the machinery, not any model's worth on robots.")
    out.print(f"The dataset: {result.store}")
    out.print(f"A failure at a glance: {result.sheet}")
    out.print(f"[bold]The report: {result.page}[/bold]")
