"""Tables that others have published, as data with their source; what we measured ourselves never stands among them.

One file a table (`model,column,value`, values as printed) beside this module, and `tables.json`, which says of each
where it was printed, what its numbers are and which direction is better. Figures that do not agree with each other in
print are kept as printed and mentioned in the table's notes.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Literal

from demerit.errors import UnknownName

__all__ = ["PublishedRow", "PublishedSource", "PublishedTable", "published_table", "published_tables"]


@dataclass(frozen=True)
class PublishedSource:
    """Where a table was printed.

    Attributes:
        paper: The paper's title.
        arxiv: Its arXiv number; None where we do not know it.
        place: The table, figure or section.
    """

    paper: str
    arxiv: str | None
    place: str

    def __str__(self) -> str:
        """One line to print under a table."""
        number = f" (arXiv:{self.arxiv})" if self.arxiv else ""
        return f"{self.paper}{number}, {self.place}"


@dataclass(frozen=True)
class PublishedRow:
    """One printed number: which model, which column, and the value with the digits that were printed."""

    model: str
    column: str
    value: Decimal


@dataclass(frozen=True)
class PublishedTable:
    """One printed table.

    Attributes:
        name: The name that it goes by here, such as "roboreward_table_10".
        source: Where it was printed.
        about: What the numbers are.
        better: Which direction is better.
        approximate: Whether the numbers are only ranges or estimates given in words or read off a figure.
        rows: Its numbers, model by model in the order of the print.
        notes: What a reader has to know, among it where the print disagrees with itself.
    """

    name: str
    source: PublishedSource
    about: str
    better: Literal["lower", "higher"]
    approximate: bool
    rows: tuple[PublishedRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """The models in the order of the print."""
        return tuple(dict.fromkeys(row.model for row in self.rows))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in the order of the print."""
        return tuple(dict.fromkeys(row.column for row in self.rows))

    def value(self, model: str, column: str) -> Decimal | None:
        """The printed number, or None where the table has no entry there.

        Raises:
            UnknownName: The table has no such model or no such column.
        """
        if model not in self.models:
            raise UnknownName(f"model in {self.name}", model, self.models)
        if column not in self.columns:
            raise UnknownName(f"column in {self.name}", column, self.columns)
        return next((row.value for row in self.rows if (row.model, row.column) == (model, column)), None)


def published_tables() -> list[PublishedTable]:
    """All tables, in the order of `tables.json`."""
    return list(_load())


def published_table(name: str) -> PublishedTable:
    """The table of that name.

    Raises:
        UnknownName: There is no such table.
    """
    tables = {table.name: table for table in _load()}
    if name not in tables:
        raise UnknownName("published table", name, tables)
    return tables[name]


@cache
def _load() -> tuple[PublishedTable, ...]:
    folder = files("demerit") / "assets" / "published"
    listed = json.loads((folder / "tables.json").read_text(encoding="utf-8"))
    return tuple(
        PublishedTable(
            name=entry["name"],
            source=PublishedSource(**entry["source"]),
            about=entry["about"],
            better=entry["better"],
            approximate=entry["approximate"],
            rows=_rows((folder / f"{entry['name']}.csv").read_text(encoding="utf-8")),
            notes=tuple(entry["notes"]),
        )
        for entry in listed
    )


def _rows(text: str) -> tuple[PublishedRow, ...]:
    return tuple(
        PublishedRow(row["model"], row["column"], Decimal(row["value"])) for row in csv.DictReader(text.splitlines())
    )
