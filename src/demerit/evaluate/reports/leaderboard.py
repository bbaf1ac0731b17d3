"""The leaderboard: a static page of what was measured here and, apart from it, what others have published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from demerit.data.episode import safe_name
from demerit.data.files import write_atomic
from demerit.errors import StoreError
from demerit.evaluate.reports.page import Look, asset, asset_script, environment, looks, script_hash
from demerit.evaluate.reports.page.tables import Column, Row, headline
from demerit.evaluate.reports.page.words import Lead, lead
from demerit.evaluate.reports.published import PublishedSource, PublishedTable, published_tables
from demerit.evaluate.reports.report import Report


@dataclass(frozen=True, eq=False)
class Board:
    """One report, ready to draw."""

    report: Report
    anchor: str
    source: str
    lead: Lead
    columns: list[Column]
    rows: list[Row]
    apart: list[Row]
    looks: dict[str, Look]


@dataclass(frozen=True)
class PrintedCell:
    """One printed number: to sort by, to show; both empty or a dash where the paper has none."""

    text: str
    shown: str
    best: bool


@dataclass(frozen=True)
class PrintedRow:
    """One model of a published table."""

    model: str
    cells: tuple[PrintedCell, ...]


@dataclass(frozen=True)
class PrintedTable:
    """A published table, ready to draw."""

    name: str
    source: PublishedSource
    about: str
    better: str
    approximate: bool
    notes: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[PrintedRow, ...]


def build_leaderboard(reports: Sequence[Report], out: Path) -> Path:
    """Write the leaderboard as a static site; it can be served from anywhere or opened as a file.

    Args:
        reports: What was measured here, in the order in which it is shown.
        out: The folder of the site; it is made when it does not exist.

    Returns:
        The page, `index.html` in that folder.
    """
    out = Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(out, f"the folder cannot be made ({error.strerror or error})") from error
    page = out / "index.html"
    write_atomic(page, render_leaderboard(reports).encode())
    return page


def render_leaderboard(reports: Sequence[Report]) -> str:
    """Return the HTML text."""
    tables = published_tables()
    script = asset_script("tables.js")
    return (
        environment()
        .get_template("leaderboard.html.j2")
        .render(
            boards=[_board(report, i) for i, report in enumerate(reports)],
            tables=[_printed(table) for table in tables],
            printed=sum(len(table.rows) for table in tables),
            style=asset("style.css"),
            script=script,
            script_hash=script_hash(script),
        )
    )


def _board(report: Report, number: int) -> Board:
    columns, rows, apart = headline(report)
    facts = [f"measured by demerit on {len(report.episodes)} episodes"]
    facts += [f"of {report.about.data}"] if report.about.data else []
    made = [f"{name} {value}" for name, value in report.environment.items()]
    source = " ".join(facts) + (f" ({', '.join(made)})" if made else "")
    # Two reports of one benchmark may rest on other data: each keeps a table of its own.
    anchor = f"measured-{number}-{safe_name(report.about.name)}"
    return Board(report, anchor, source, lead(report), columns, rows, apart, looks(report))


def _printed(table: PublishedTable) -> PrintedTable:
    values = {(row.model, row.column): row.value for row in table.rows}
    choose = max if table.better == "higher" else min
    best = {}
    for column in table.columns:
        best[column] = choose(value for (_, name), value in values.items() if name == column)
    rows = [
        PrintedRow(
            model, tuple(_cell(values.get((model, name)), best[name], len(table.models)) for name in table.columns)
        )
        for model in table.models
    ]
    return PrintedTable(
        name=table.name,
        source=table.source,
        about=table.about,
        better=table.better,
        approximate=table.approximate,
        notes=table.notes,
        columns=table.columns,
        rows=tuple(rows),
    )


def _cell(value: Decimal | None, best: Decimal, models: int) -> PrintedCell:
    if value is None:
        return PrintedCell("", "–", False)
    return PrintedCell(str(value), str(value).replace("-", "−"), value == best and models > 1)
