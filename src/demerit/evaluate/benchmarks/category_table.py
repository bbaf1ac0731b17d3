"""Kinds of task from a table instead of from the rules: what a person or a language model decided.

A CSV file with the columns `instruction` and `category`. To have a language model fill it, ask
`demerit.evaluate.metrics.categories.category_by` for each instruction.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from demerit.errors import BadInput, UnknownName
from demerit.evaluate.benchmarks.judging import plain
from demerit.evaluate.metrics.categories import Category
from demerit.evaluate.reports.report import Judged

COLUMNS = ("instruction", "category")


def read_categories(path: str | Path) -> dict[str, str]:
    """Read the table: the category of each instruction, whose case, spaces and full stop do not count."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            columns = list(rows.fieldnames or [])
            if not set(COLUMNS) <= set(columns):
                raise BadInput(str(path), "a CSV file with the columns instruction and category", columns)
            return _table(str(path), [(row["instruction"] or "", row["category"] or "") for row in rows])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(str(path), "a CSV file with the columns instruction and category", error) from error


def from_table(judged: Sequence[Judged], table: Mapping[str, str]) -> tuple[tuple[Judged, ...], tuple[str, ...]]:
    """Give episodes the category that the table has for their words; say how many have none there."""
    if not table:
        return tuple(judged), ()
    sorted_anew = tuple(replace(one, category=table.get(plain(one.instruction), one.category)) for one in judged)
    words = {plain(one.instruction) for one in judged if one.instruction}
    left = len(words - set(table))
    said = f"Categories are by a table; {left} of {len(words)} instructions are not in it, and sorted by the rules."
    return sorted_anew, (said,) if left else ()


def _table(path: str, rows: Sequence[tuple[str, str]]) -> dict[str, str]:
    known = [str(kind) for kind in Category]
    table: dict[str, str] = {}
    for words, given in rows:
        kind = given.strip().lower()
        if kind not in known:
            raise UnknownName(f"category (of {words!r} in {path})", given, known)
        if table.setdefault(plain(words), kind) != kind:
            raise BadInput(path, f"one category for {words!r}", f"{table[plain(words)]} and {kind}")
    return table
