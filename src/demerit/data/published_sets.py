"""The sets that published tables were measured on: how many episodes, which parts, robots and perspectives.

`assets/published/sets.json` holds them as printed. Papers do not print the names of folders, so sizes decide whether
data is a published set; names of folders say only which part is which.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

NAMED = 3
"""parts that a sentence names; of more it gives the number"""


@dataclass(frozen=True)
class PublishedPart:
    """One printed line of a set: a subset, a source or a category."""

    name: str
    folder: str = ""
    """what its folder or source is called in the released data, or a piece of it"""
    count: int | None = None
    """None = not printed"""
    embodiment: str = ""
    perspective: str = ""
    """egocentric or exocentric; empty = both, or not printed"""


@dataclass(frozen=True)
class PublishedSet:
    """The episodes of a published table, as its paper counts them."""

    name: str
    benchmark: str
    source: str
    """where it is printed"""
    unit: str
    """what is counted: examples, trajectories or tasks"""
    by: str
    """what the parts are: subset, which the data names, or category, which demerit's rules assign"""
    count: int | None
    """None = not printed"""
    parts: tuple[PublishedPart, ...] = ()

    def __str__(self) -> str:
        """Return name, size and source on one line."""
        size = "" if self.count is None else f", {self.count:,} {self.unit}"
        parts = sum(part.count != 0 for part in self.parts)
        subsets = f" in {parts} subsets" if parts and self.by == "subset" else ""
        return f"{self.name}{size}{subsets}, by {self.source}"

    def find_part(self, name: str) -> PublishedPart | None:
        """Return the part that a folder, source or category belongs to; None if no part is called so."""
        folded = _fold(name)
        by_name = [part for part in self.parts if _fold(part.name) == folded]
        by_folder = [part for part in self.parts if part.folder and _fold(part.folder) in folded]
        return max(by_name or by_folder, key=lambda part: len(part.folder), default=None)

    def compare(self, counts: Mapping[str, int]) -> str:
        """Say what differs from the published set, given the number of each part; empty if this is the set.

        Categories are not compared here: they are assigned by rules and not part of the data.
        """
        total, parts = sum(counts.values()), self.by == "subset" and bool(self.parts)
        if self.count in (None, total) and (not parts or self._has_its_parts(counts)):
            return ""
        subsets = f" in {len(counts)} {self.by}{'s' * (len(counts) != 1)}" if parts else ""
        return "; ".join([f"{total:,} {self.unit}{subsets}", *(self.compare_parts(counts) if parts else ())])

    def compare_parts(self, counts: Mapping[str, int]) -> Iterator[str]:
        """Name the parts that are missing, extra or of another size."""
        totals: Counter[str] = Counter()
        for name, count in counts.items():
            part = self.find_part(name)
            totals[name if part is None else part.name] += count
        printed = {part.name: part.count for part in self.parts if part.count != 0}
        missing = [_with_count(name, count) for name, count in printed.items() if name not in totals]
        extra = [_with_count(name, count) for name, count in totals.items() if name not in printed]
        sizes = [
            f"{name} {totals[name]:,} instead of {count:,}"
            for name, count in printed.items()
            if count is not None and totals[name] not in (0, count)
        ]
        for what, names in (("missing: ", missing), ("extra: ", extra), ("", sizes)):
            if names:
                more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
                yield f"{what}{', '.join(names[:NAMED])}{more}"

    def _has_its_parts(self, counts: Mapping[str, int]) -> bool:
        printed = [part.count for part in self.parts if part.count != 0]
        if None not in printed:
            return Counter(printed) == Counter(counts.values())
        matches = [self.find_part(name) for name in counts]
        return None not in matches and {part.name for part in matches if part} == {part.name for part in self.parts}


@cache
def published_sets(benchmark: str) -> tuple[PublishedSet, ...]:
    """Return the sets of a benchmark, by name@version; none if its data is not a published set."""
    text = (files("demerit") / "assets" / "published" / "sets.json").read_text(encoding="utf-8")
    return tuple(
        PublishedSet(**{**entry, "parts": tuple(PublishedPart(**part) for part in entry["parts"])})
        for entry in json.loads(text)
        if entry["benchmark"] == benchmark
    )


def find_source(folder: str, sets: Sequence[PublishedSet]) -> PublishedPart:
    """Return what is printed about a folder or source; an empty part if nothing is."""
    return next((part for published in sets if (part := published.find_part(folder))), PublishedPart(folder))


def _with_count(name: str, count: int | None) -> str:
    return name if count is None else f"{name} ({count:,})"


def _fold(name: str) -> str:
    """Leave letters and digits: `UCSD Pick-Place` and `ucsd_pick_place` are one name."""
    return "".join(letter for letter in name.lower() if letter.isalnum())
