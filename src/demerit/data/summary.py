"""Counts over a dataset's episodes, for `demerit inspect`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from demerit.data.dataset import Dataset, Problem
from demerit.data.episode import Episode, read_check
from demerit.data.store import Store, flat_columns
from demerit.errors import StoreError, UnreadableVideo

COUNTED = {"dataset": "datasets", "embodiment": "embodiments", "licence": "licences", "split": "splits"}
"""column to the counter that counts it"""
COLUMNS = (
    *("instruction", *COUNTED, "cameras", "frames", "seconds"),
    *("success", "grade", "progress", "vouched_by", "has_curve", "tags"),
)


@dataclass
class DatasetSummary:
    """Counts over a dataset's episodes."""

    name: str
    episodes: int = 0
    frames: int = 0
    seconds: float = 0.0
    shortest: int = 0
    """frames of the shortest episode"""
    longest: int = 0
    instructions: Counter[str] = field(default_factory=Counter)
    datasets: Counter[str] = field(default_factory=Counter)
    embodiments: Counter[str] = field(default_factory=Counter)
    licences: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)
    cameras: Counter[str] = field(default_factory=Counter)
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    """by label source: successes, failures, graded, with progress ..."""
    unlabelled: int = 0
    checks: Counter[str] = field(default_factory=Counter)
    """labels that a person must check, has accepted, corrected or rejected"""
    preferences: Counter[str] = field(default_factory=Counter)
    problems: list[dict[str, Any]] = field(default_factory=list)
    topics: list[dict[str, Any]] = field(default_factory=list)
    """of bags: what each topic of each bag has"""

    def add(self, row: dict[str, Any]) -> None:
        """Count an episode by its flat columns."""
        self.shortest = row["frames"] if self.episodes == 0 else min(self.shortest, row["frames"])
        self.longest = max(self.longest, row["frames"])
        self.episodes += 1
        self.frames += row["frames"]
        self.seconds += row["seconds"]
        self.instructions[row["instruction"]] += 1
        for column, counter in COUNTED.items():
            getattr(self, counter)[row[column] or "unknown"] += 1
        self.cameras.update(row["cameras"])
        self.checks.update(filter(None, [read_check(dict(row["tags"]))]))
        if row["vouched_by"] is None:
            self.unlabelled += 1
            return
        counts = self.outcomes.setdefault(row["vouched_by"], Counter())
        counts["episodes"] += 1
        counts[{True: "success", False: "failure", None: "success unknown"}[row["success"]]] += 1
        counts["graded"] += row["grade"] is not None
        counts["with progress"] += row["progress"] is not None
        counts["with curve"] += row["has_curve"]

    def as_dict(self, most: int = 20) -> dict[str, Any]:
        """Return plain values; counters are cut to the `most` frequent, with the number of distinct values."""
        plain: dict[str, Any] = {}
        for name, value in vars(self).items():
            if name in ("checks", "topics") and not value:
                continue
            if isinstance(value, Counter):
                plain[name] = {"distinct": len(value), "most": dict(value.most_common(most))}
            elif name == "outcomes":
                plain[name] = {source: dict(counts) for source, counts in value.items()}
            else:
                plain[name] = value
        return plain | {"hours": self.seconds / 3600}


def summarize(dataset: Dataset, on_progress: Callable[[int], None] = lambda seen: None) -> DatasetSummary:
    """Count a dataset's episodes: a demerit folder by its columns, others by reading them once."""
    summary = DatasetSummary(dataset.name)
    rows = (
        _stored_rows
        if isinstance(dataset.reader, Store) and not (dataset.camera or dataset.instruction)
        else _read_rows
    )
    for row in rows(dataset, summary):
        summary.add(row)
        on_progress(summary.episodes)
    summary.problems = dataset.problems.rows()
    summary.topics = getattr(dataset.reader, "topics", list)()
    return summary


def _stored_rows(dataset: Dataset, summary: DatasetSummary) -> Iterator[dict[str, Any]]:
    store = dataset.reader
    assert isinstance(store, Store)
    for problem in store.problems():
        dataset.problems.add(problem)
    summary.preferences.update(preference.source for preference in store.preferences())
    for batch in store.columns(COLUMNS).to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            if None in (row["instruction"], row["frames"], row["seconds"], row["cameras"]):
                raise StoreError(store.root, "it is damaged: an episode lacks its instruction, length or cameras")
            yield row


def _read_rows(dataset: Dataset, summary: DatasetSummary) -> Iterator[dict[str, Any]]:
    for record in dataset.records():
        if not isinstance(record, Episode):
            summary.preferences[record.source] += 1
            continue
        try:
            yield {**flat_columns(record), "tags": record.origin.tags}
        except UnreadableVideo as error:
            dataset.report(Problem("unreadable video", record.id, f"{error.path}: {error.reason}", kept=False))
