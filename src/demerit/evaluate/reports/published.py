"""Published tables as printed, and the printed figures that belong beside a report's measures.

`assets/published` holds one file per table (`model,column,value`, values as printed) and `tables.json`, which gives
source, content and direction of each, and where its columns stand in a report. Figures that disagree in print are kept
as printed, with a note.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from demerit.data.published_sets import PublishedSet
from demerit.errors import UnknownName
from demerit.evaluate.reports.report import MeasureLine, PublishedFigure
from demerit.models.protocol import ModelCard


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
    models_here: tuple[tuple[str, str], ...] = ()
    """patterns of a card's name and revision, and the printed model that each stands for, in all tables of `beside`'s
    benchmark; the first that fits counts"""
    cells: tuple[Mapping[str, Any], ...] = ()
    """where the columns stand in a report: columns, measure, part, and the set where the table has several; `by` stands
    for a column per part of that kind, `as` for how the figure is written"""

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
        models, cells = tuple(entry.get("models_here", {}).items()), tuple(entry.get("cells", ()))
        facts = {"source": source, "notes": notes, "values": values, "beside": beside, "models_here": models}
        tables.append(PublishedTable(**{**entry, **facts, "cells": cells}))
    return tuple(tables)


def published_table(name: str) -> PublishedTable:
    """Return a table by name. Raises UnknownName."""
    tables = {table.name: table for table in published_tables()}
    if name not in tables:
        raise UnknownName("published table", name, tables)
    return tables[name]


# Figures beside measures


def find_figures(
    published: PublishedSet | None, cards: Sequence[ModelCard], lines: Sequence[MeasureLine]
) -> tuple[PublishedFigure, ...]:
    """Return the printed figures of the measured models, measures and parts; none if the episodes are no published set.

    A model is the printed one if it has its name and, where the print names one, the chat model behind it.
    """
    if published is None:
        return ()
    tables = [table for table in published_tables() if table.beside and table.beside[0] == published.benchmark]
    patterns = [pair for table in tables for pair in table.models_here]
    names = {card.name: f"{card.name} {card.revision}".lower() for card in cards}
    printed = {
        model: next((printed_name for pattern, printed_name in patterns if fnmatchcase(name, pattern)), "")
        for model, name in names.items()
    }
    figures = [
        figure for line in lines for table in tables for figure in _figures(table, printed[line.model], published, line)
    ]
    # one figure may stand in two tables of a paper: the first is named
    return tuple(
        {(figure.model, figure.measure, figure.part, figure.printed): figure for figure in reversed(figures)}.values()
    )[::-1]


def _figures(
    table: PublishedTable, model: str, published: PublishedSet, line: MeasureLine
) -> Iterator[PublishedFigure]:
    for cell in table.cells:
        columns = _columns(cell, published, line.part)
        values = [value for column in columns if (value := table.values.get((model, column))) is not None]
        if line.measure.name == cell["measure"] and values:
            form = cell.get("as", "{}")
            printed = form.format(" to ".join(str(value) for value in values))
            alone = float(values[0]) if len(values) == 1 and form == "{}" else None
            yield PublishedFigure(line.model, line.measure.name, line.part, printed, alone, model, str(table.source))


def _columns(cell: Mapping[str, Any], published: PublishedSet, part: str) -> Sequence[str]:
    """Return the columns that a cell shows for a part of a report; none if it shows none."""
    kind, _, name = part.partition(": ")
    if cell.get("set", published.name) != published.name:
        return ()
    if "by" in cell:
        printed_part = published.find_part(name) if kind == cell["by"] else None
        return () if printed_part is None else (printed_part.name,)
    columns: Sequence[str] = cell["columns"] if part in cell.get("parts", [""]) else ()
    return columns
