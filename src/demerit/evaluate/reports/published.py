"""Tables that others have published, as data with their source; never mixed with what demerit measured.

`assets/published` holds one file per table (`model,column,value`, values as printed) and `tables.json`, which gives
source, content and direction of each. Figures that disagree in print are kept as printed, with a note.
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


@dataclass(frozen=True)
class PublishedSource:
    """Where a table was printed."""

    paper: str
    arxiv: str | None
    """arXiv number; None if unknown"""
    place: str
    """table, figure or section"""

    def __str__(self) -> str:
        """Return the source on one line."""
        number = f" (arXiv:{self.arxiv})" if self.arxiv else ""
        return f"{self.paper}{number}, {self.place}"


@dataclass(frozen=True)
class PublishedTable:
    """One printed table."""

    name: str
    """its name here, such as roboreward_table_10"""
    source: PublishedSource
    about: str
    """what the numbers are"""
    better: Literal["lower", "higher"]
    approximate: bool
    """given as a range, in words, or read off a figure"""
    values: dict[tuple[str, str], Decimal]
    """by model and column, in the order and with the digits of the print"""
    notes: tuple[str, ...] = ()
    beside: tuple[str, str] | None = None
    """benchmark and measure of demerit that are computed in the same way; None where there is none"""

    @property
    def size(self) -> int:
        """Number of printed values."""
        return len(self.values)

    @property
    def models(self) -> tuple[str, ...]:
        """The models in the order of the print."""
        return tuple(dict.fromkeys(model for model, _ in self.values))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in the order of the print."""
        return tuple(dict.fromkeys(column for _, column in self.values))

    def value(self, model: str, column: str) -> Decimal | None:
        """Return the printed number; None where the table has no entry. Raises UnknownName."""
        if model not in self.models:
            raise UnknownName(f"model in {self.name}", model, self.models)
        if column not in self.columns:
            raise UnknownName(f"column in {self.name}", column, self.columns)
        return self.values.get((model, column))

    def is_best(self, model: str, column: str) -> bool:
        """Return whether a model has the best number of a column with several models."""
        numbers = [value for (_, name), value in self.values.items() if name == column]
        best = max(numbers) if self.better == "higher" else min(numbers)
        return len(self.models) > 1 and self.values.get((model, column)) == best


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """Return all tables, in the order of `tables.json`."""
    folder = files("demerit") / "assets" / "published"
    tables = []
    for entry in json.loads((folder / "tables.json").read_text(encoding="utf-8")):
        rows = csv.DictReader((folder / f"{entry['name']}.csv").read_text(encoding="utf-8").splitlines())
        values = {(row["model"], row["column"]): Decimal(row["value"]) for row in rows}
        source, notes = PublishedSource(**entry["source"]), tuple(entry["notes"])
        beside = tuple(entry["beside"]) if "beside" in entry else None
        tables.append(PublishedTable(**{**entry, "source": source, "notes": notes, "values": values, "beside": beside}))
    return tuple(tables)


def published_table(name: str) -> PublishedTable:
    """Return a table by name. Raises UnknownName."""
    tables = {table.name: table for table in published_tables()}
    if name not in tables:
        raise UnknownName("published table", name, tables)
    return tables[name]
