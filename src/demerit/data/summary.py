"""What is in a dataset, at a glance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from demerit.data.dataset import Dataset, Problem
from demerit.data.episode import Episode
from demerit.data.store import Store
from demerit.errors import UnreadableVideo

COLUMNS = (
    "instruction",
    "dataset",
    "embodiment",
    "licence",
    "split",
    "cameras",
    "frames",
    "seconds",
    "success",
    "grade",
    "progress",
    "vouched_by",
    "has_curve",
)


@dataclass
class DatasetSummary:
    """Counts over a dataset's episodes."""

    name: str
    episodes: int = 0
    frames: int = 0
    seconds: float = 0.0
    shortest: int = 0
    longest: int = 0
    instructions: Counter[str] = field(default_factory=Counter)
    datasets: Counter[str] = field(default_factory=Counter)
    embodiments: Counter[str] = field(default_factory=Counter)
    licences: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)
    cameras: Counter[str] = field(default_factory=Counter)
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    """by who vouches for them: successes, failures, graded, with progress ..."""
    unlabelled: int = 0
    preferences: Counter[str] = field(default_factory=Counter)
    problems: list[dict[str, Any]] = field(default_factory=list)

    def add(self, facts: dict[str, Any]) -> None:
        """Count one episode."""
        self.shortest = facts["frames"] if self.episodes == 0 else min(self.shortest, facts["frames"])
        self.longest = max(self.longest, facts["frames"])
        self.episodes += 1
        self.frames += facts["frames"]
        self.seconds += facts["seconds"]
        self.instructions[facts["instruction"]] += 1
        for counter, name in (
            (self.datasets, "dataset"),
            (self.embodiments, "embodiment"),
            (self.licences, "licence"),
            (self.splits, "split"),
        ):
            counter[facts[name] or "unknown"] += 1
        self.cameras.update(facts["cameras"])
        self._add_outcome(facts)

    def _add_outcome(self, facts: dict[str, Any]) -> None:
        if facts["vouched_by"] is None:
            self.unlabelled += 1
            return
        counts = self.outcomes.setdefault(facts["vouched_by"], Counter())
        verdict = {True: "success", False: "failure", None: "success unknown"}[facts["success"]]
        counts["episodes"] += 1
        counts[verdict] += 1
        counts["graded"] += facts["grade"] is not None
        counts["with progress"] += facts["progress"] is not None
        counts["with curve"] += facts["has_curve"]

    def as_dict(self, most: int = 20) -> dict[str, Any]:
        """Return everything as plain values; long lists are cut, their true length is beside them."""
        plain: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Counter):
                plain[name] = {"distinct": len(value), "most": dict(value.most_common(most))}
            elif name == "outcomes":
                plain[name] = {who: dict(counts) for who, counts in value.items()}
            else:
                plain[name] = value
        return plain | {"hours": self.seconds / 3600}


def survey(dataset: Dataset, on_progress: Callable[[int], None] = lambda seen: None) -> DatasetSummary:
    """Count what is in a dataset. Our own folders are counted from their columns; others are read once."""
    overview = DatasetSummary(dataset.name)
    facts = _stored_facts if isinstance(dataset.reader, Store) and dataset.camera is None else _read_facts
    for row in facts(dataset, overview):
        overview.add(row)
        on_progress(overview.episodes)
    overview.problems = dataset.problems.rows()
    return overview


def _stored_facts(dataset: Dataset, overview: DatasetSummary) -> Iterator[dict[str, Any]]:
    store = dataset.reader
    assert isinstance(store, Store)
    for problem in store.problems():
        dataset.problems.add(problem)
    overview.preferences.update(preference.source for preference in store.preferences())
    for batch in store.columns(COLUMNS).to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def _read_facts(dataset: Dataset, overview: DatasetSummary) -> Iterator[dict[str, Any]]:
    for record in dataset.records():
        if not isinstance(record, Episode):
            overview.preferences[record.source] += 1
            continue
        try:
            yield _facts(record)
        except UnreadableVideo as error:
            detail = f"{error.path}: {error.reason}"
            dataset.report(Problem("unreadable video", record.id, detail, kept=False))


def _facts(episode: Episode) -> dict[str, Any]:
    outcome = episode.outcome
    times = episode.main.times()
    return {
        "instruction": episode.instruction,
        **{name: getattr(episode.origin, name) for name in ("dataset", "embodiment", "licence", "split")},
        "cameras": list(episode.views),
        "frames": len(episode),
        "seconds": float(times[-1]) if len(times) else 0.0,
        **{name: outcome and getattr(outcome, name) for name in ("success", "grade", "progress")},
        "vouched_by": outcome and outcome.source,
        "has_curve": any(account.curve is not None for account in episode.outcomes),
    }
