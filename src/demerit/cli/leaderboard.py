"""The leaderboard command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from demerit.cli.bars import out as console
from demerit.evaluate.reports import Report, build_leaderboard


def leaderboard(
    reports: Annotated[
        list[Path] | None, typer.Argument(help="report.json files, or the folders that `demerit bench` wrote them to.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the site.")] = Path("leaderboard"),
) -> None:
    """Build a web page that compares reports and published tables.

    [bold]Examples[/bold]

      demerit leaderboard bench/roboarena@1 bench/own@1
      demerit leaderboard reports/*/report.json --out site
      demerit leaderboard --out site        (published tables only)
    """
    found = [
        sorted(path.glob("report*.json")) or [path / "report.json"] if path.is_dir() else [path]
        for path in reports or []
    ]
    files = [file for group in found for file in group]
    page = build_leaderboard([Report.read(path) for path in files], out)
    console.print(escape(f"The leaderboard: {page} ({len(files)} reports)"))
