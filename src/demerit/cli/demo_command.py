"""The demo command."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from demerit.cli.demo import DemoResult
    from demerit.evaluate.metrics import Measure
    from demerit.evaluate.reports.report import Report

MEASURES = {
    "auroc": "pairs right ↑",
    "over_reward_rate": "over-rewarded ↓",
    "progress_error": "progress off ↓",
}
PATIENCE = 6.0
"""seconds that a browser may take to come up"""
NAMES = {"taught": "taught", "default": "untaught"}


def demo(
    folder: Annotated[Path, typer.Argument(help="Where to put it.")] = Path("demo"),
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the report in a browser, where there is one.")
    ] = False,
) -> None:
    """Teach a model on part of the sample that ships, score the rest, and see it: under a minute, no download.

    [bold]Examples[/bold]

      demerit demo
      demerit demo my_demo --open
    """
    # Before numpy is loaded: on a busy machine its threads wait for each other more than they work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from demerit.cli.bars import StageBars  # noqa: PLC0415
    from demerit.cli.demo import run_demo  # noqa: PLC0415

    with StageBars() as bars:
        result = run_demo(folder, bars.update)
    _print(result)
    if open_page and can_open():
        open_in_browser(result.page)


def _print(result: DemoResult) -> None:
    from rich.markup import escape  # noqa: PLC0415

    from demerit.cli.bars import out  # noqa: PLC0415
    from demerit.cli.demo.words import headline  # noqa: PLC0415

    found = headline(result.report, result.lesson)
    taught, scored = len(result.lesson.episodes), len(result.report.episodes)
    out.print(f"A simulated arm moves a block from bin to bin: {taught} episodes to teach with, {scored} to judge.")
    if result.seconds:
        steps = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in result.seconds.items())
        out.print(f"[dim]{steps}[/dim]")
    else:
        out.print("[dim]All of it was done before, and is left as it is.[/dim]")
    out.print(f"\n[bold]{escape(found.title)}[/bold]")
    out.print(escape(found.text))
    out.print(_table(result.report))
    out.print(f"[yellow]note[/yellow]  {escape(result.report.warnings[0])}\n")
    out.print("[bold]See the reward climb and fall under the video[/bold]")
    out.print(f"  {escape(str(result.page.resolve()))}", style="cyan")
    out.print("How it was taught, and what to label next")
    out.print(f"  {escape(str(result.lesson_page.resolve()))}", style="cyan")
    out.print("\n[bold]Now your robot[/bold]")
    out.print("  demerit teach MY_VIDEOS -o my-model              [dim]a dozen labelled episodes are a start[/dim]")
    out.print("  demerit score NEW_VIDEOS --model ./my-model")
    out.print("  demerit bench own --data NEW_VIDEOS --model ./my-model --model default")


def _table(report: Report) -> Table:
    from rich.table import Table  # noqa: PLC0415

    from demerit.evaluate.reports.headline import lead  # noqa: PLC0415

    trusted = lead(report).trusted
    measured = {name: head for name, head in MEASURES.items() if name in report.about.headline}
    table = Table(caption="with 95% intervals; below the line: controls, which know nothing")
    for head in ("", *measured.values()):
        table.add_column(head)
    for card in report.cards:
        is_control = card.name in report.controls
        if is_control and card.name == report.controls[0]:
            table.add_section()
        name = NAMES.get(card.name, card.name)
        cells = [_cell(report.line(card.name, measure), measure != "progress_error") for measure in measured]
        style = "bold green" if card.name == trusted else "dim" if is_control else ""
        table.add_row(f"{name}{' ✓ trust' if card.name == trusted else ''}", *cells, style=style)
    return table


def _cell(measure: Measure | None, share: bool) -> str:
    if measure is None or not measure.known:
        return "unknown"
    if share:
        return f"{measure.value:.0%} ({100 * measure.low:.0f} to {100 * measure.high:.0f})"
    return f"{measure.value:.2f} ({measure.low:.2f} to {measure.high:.2f})"


def can_open() -> bool:
    """Whether somebody sits in front of a screen here; over ssh a browser would open elsewhere, or nowhere."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_in_browser(page: Path) -> None:
    """Ask for a browser and do not wait long: one that runs in a terminal must not hold up anybody."""
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-m", "webbrowser", page.resolve().as_uri()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            timeout=PATIENCE,
            check=False,
        )
