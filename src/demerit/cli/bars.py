"""Output of all commands: two consoles, progress bars on a terminal (sparse lines elsewhere), tables and verdicts."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from demerit.cli import escape_controls
from demerit.data.reward import VerdictCounts

if TYPE_CHECKING:
    from demerit.evaluate.metrics import Measure
    from demerit.evaluate.reports import Report


class DataConsole(Console):
    """A console that prints text from data as it is: no control characters, no emoji codes."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a text: every string that is printed, alone or in a table."""
        return super().render_str(escape_controls(text), **options)

    def on_broken_pipe(self) -> None:
        """Go on in silence where the reader has left (`| head`): the files that a command writes are complete."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


# Lines are not wrapped, so that piped and copied output stays intact.
out = DataConsole(highlight=False, soft_wrap=True, emoji=False)
err = DataConsole(stderr=True, highlight=False, emoji=False)
SECONDS_BETWEEN_LINES = 10.0


class Bar:
    """A counter on the terminal or, when `progress` is None, a line every 10 seconds."""

    def __init__(self, title: str, total: int | None, progress: Progress | None) -> None:
        """`total` None = unknown."""
        self.title, self.total, self.progress = title, total, progress
        self.started = self.last_line = time.monotonic()
        if progress is not None:
            self.task = progress.add_task(title, total=total, rate="", note="")

    def update(self, done: float, note: str = "") -> None:
        """Show how many are done; a fraction is the part of the next one."""
        now, note = time.monotonic(), escape_controls(note)
        rate = done / (now - self.started) if now > self.started else 0.0
        if self.progress is not None:
            self.progress.update(self.task, completed=done, rate=f"{rate:.1f}/s", note=note)
        elif now - self.last_line > SECONDS_BETWEEN_LINES:
            self.last_line = now
            rest = f", {(self.total - done) / rate:.0f} s left" if self.total and rate else ""
            total = f" of {self.total}" if self.total else ""
            print(f"{self.title}: {int(done)}{total}, {rate:.1f}/s{rest} {note}".rstrip(), file=sys.stderr, flush=True)


@contextmanager
def bar(title: str, total: int | None) -> Iterator[Bar]:
    """Show a progress bar while the block runs."""
    if not err.is_terminal:
        yield Bar(title, total, None)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=err, refresh_per_second=8) as progress:
        yield Bar(title, total, progress)


@contextmanager
def stage_bars() -> Iterator[Callable[..., None]]:
    """Show a progress bar per stage, one after the other; yields the `on_progress` callback."""
    bars: dict[str, Bar] = {}
    with ExitStack() as stack:

        def update(stage: str, done: int, total: int | None, note: str = "") -> None:
            if stage not in bars:
                stack.close()
                bars.clear()
                bars[stage] = stack.enter_context(bar(stage, total))
            bars[stage].update(done, note)

        yield update


def report_table(report: Report, title: str, label: Callable[[str], str]) -> Table:
    """Return a report's headline figures, a row per model; controls are dimmed. `label` names a measure in words."""
    lower = set(report.about.lower_is_better)
    table = Table(title=escape(title))
    for column in ("model", *(f"{label(name)} {'↓' if name in lower else '↑'}" for name in report.about.headline)):
        table.add_column(escape(column), overflow="fold")
    for card in report.cards:
        is_control = card.name in report.controls
        cells = [
            _format_measure(report.line(card.name, name))
            + "".join(f", published {figure.printed}" for figure in report.figures(card.name, name))
            for name in report.about.headline
        ]
        table.add_row(
            escape(card.name + " (control)" * is_control + " (a guess)" * report.is_guess(card.name)),
            *cells,
            style="dim" if is_control else "",
        )
    return table


def _format_measure(measure: Measure | None) -> str:
    if measure is None:
        return "–"
    if not measure.known:
        return "undefined" if measure.undefined else "unscored"
    if math.isnan(measure.low):
        return f"{measure.value:.3f} (interval unknown)"
    return f"{measure.value:.3f} ({measure.low:.3f} to {measure.high:.3f})"


def print_table(table: Table) -> None:
    """Print a table that fits the terminal, with no word cut: where the columns do not fit, each row is stacked.

    Rich shrinks wide columns first, within words if need be; here every column keeps its longest word.
    """
    if _room(table) < 0 and len(table.columns) > len(("column", "value")):
        table = _stack(table)
    room, wanted = _room(table), [_widest(column, str.splitlines) for column in table.columns]
    words = [_widest(column, str.split) for column in table.columns]
    missing = sum(wanted) - sum(words)
    for column, line, word in zip(table.columns, wanted, words, strict=True):
        column.overflow = "fold"
        if 0 <= room < missing:
            column.width = word + room * (line - word) // missing
    out.print(table, soft_wrap=False)


def print_grades(title: str, rows: Mapping[str, Mapping[Any, int]]) -> None:
    """Print how many episodes have each grade from 1 to 5, or None: a row per entry."""
    ungraded = [None] if any(counts.get(None) for counts in rows.values()) else []
    grades: list[int | None] = [1, 2, 3, 4, 5, *ungraded]
    table = Table(title, *("ungraded" if grade is None else f"grade {grade}" for grade in grades), "all")
    for name, counts in rows.items():
        table.add_row(escape(name), *(str(counts.get(grade) or "") for grade in grades), str(sum(counts.values())))
    print_table(table)


def _room(table: Table) -> int:
    """The characters left in a line when every column is as wide as its longest word."""
    borders = 3 * len(table.columns) + 1
    return out.width - borders - sum(_widest(column, str.split) for column in table.columns)


def _widest(column: Column, split: Callable[[str], list[str]]) -> int:
    texts = [Text.from_markup(str(cell)).plain for cell in (column.header, *column.cells)]
    return max((cell_len(part) for text in texts for part in split(text)), default=0)


def _stack(table: Table) -> Table:
    """Turn each row into a section with a line per column that is not empty."""
    stacked = Table(title=table.title, caption=table.caption, show_header=False)
    cells = [list(column.cells) for column in table.columns]
    for place, row in enumerate(table.rows):
        for column, values in zip(table.columns, cells, strict=True):
            if values[place]:
                stacked.add_row(column.header, values[place], style=row.style)
        stacked.add_section()
    return stacked


def print_verdicts(counts: VerdictCounts, console: Console = out, by: str = "") -> None:
    """Print what a model says of several episodes, and a line per warning; every command prints the same."""
    console.print(escape(f"Verdicts{f' of {by}' if by else ''}: {counts}"), soft_wrap=True)
    print_warnings(counts.warnings, console)


def print_warnings(warnings: Iterable[str], console: Console = out) -> None:
    """Print a line per warning."""
    for warning in warnings:
        console.print(f"  [yellow]warning[/yellow] {escape(warning)}", soft_wrap=True)


def shorten(text: str, most: int = 300) -> str:
    """Cut a long text from data."""
    return text if len(text) <= most else f"{text[:most]}..."


def print_problems(rows: list[dict[str, Any]], console: Console = out) -> None:
    """Print a line per kind of problem."""
    for row in rows:
        fate = "kept" if row["kept"] else "skipped"
        console.print(
            f"  [yellow]{row['problem']}[/yellow]: {row['episodes']} ({fate}), e.g. {escape(shorten(row['first']))}"
        )


def print_notes(notes: Sequence[str]) -> bool:
    """Say what a dataset's reader recognised by itself, beside the results; return whether there was anything."""
    for note in notes:
        err.print(f"[yellow]note[/yellow]  {escape(shorten(note))}", soft_wrap=True)
    return bool(notes)
