"""What is known about an episode, by whom, and whether two accounts of the same thing contradict each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.labels import LABEL_SOURCES, Event, Outcome, Preference

DONE, HALF = 1 - 1e-3, 0.5
"""progress at the end from which on it counts as a success, and up to which as a failure, where nobody says"""


@dataclass(frozen=True, eq=False)
class Label:
    """What is known about one episode; each fact from the most trusted account that has it. None = unknown."""

    success: bool | None = None
    progress: float | None = None
    grade: int | None = None
    curve: npt.NDArray[np.float32] | None = None
    events: tuple[Event, ...] = ()
    by: str = ""
    """who vouches for it"""

    @property
    def known(self) -> bool:
        """Whether anything is."""
        return self.end is not None or self.success is not None or self.curve is not None or bool(self.events)

    @property
    def end(self) -> float | None:
        """How far it got at the end, where it is said or follows: progress, grade, the curve's end, success."""
        if self.progress is not None:
            return self.progress
        if self.grade is not None:
            return (self.grade - 1) / 4
        if self.curve is not None and not np.isnan(self.curve[-1]):
            return float(self.curve[-1])
        return 1.0 if self.success else None

    @property
    def verdict(self) -> bool | None:
        """Success or failure, where it is said or follows from how it ended; between half and done decides nothing."""
        if self.success is not None or self.end is None:
            return self.success
        return True if self.end >= DONE else False if self.end <= HALF else None


NOTHING = Label()


def label_of(episode: Episode) -> Label:
    """Gather what people, simulators, rules and edits say. A model's opinion is no label: it would only be copied."""
    accounts = sorted(_trusted(episode), key=lambda one: LABEL_SOURCES.index(one.source))
    if not accounts:
        return NOTHING
    by = ", ".join(dict.fromkeys(one.source for one in accounts if _says_something(one)))
    return Label(
        success=_first(accounts, "success"),
        progress=_first(accounts, "progress"),
        grade=_first(accounts, "grade"),
        curve=next((c for one in accounts if (c := one.curve) is not None and not np.isnan(c).all()), None),
        events=next((one.events for one in accounts if one.events), ()),
        by=by,
    )


def says_a_model(episode: Episode) -> bool:
    """Whether a model has an opinion about it."""
    return any(one.source == "model" and _says_something(one) for one in episode.outcomes)


def kinds_of(label: Label) -> list[str]:
    """Name the kinds of labels, for people."""
    kinds = []
    if label.curve is not None:
        kinds.append("a curve" if not np.isnan(label.curve).any() else "marked moments")
    kinds += ["success"] if label.success is not None else []
    kinds += ["a grade"] if label.grade is not None else []
    kinds += ["final progress"] if label.progress is not None and label.curve is None else []
    kinds += ["failure events"] if label.events else []
    return kinds


def at_odds(episode: Episode) -> str:
    """Say how equally trusted accounts of one episode contradict each other; empty when they do not."""
    by_source: dict[str, set[bool]] = defaultdict(set)
    for one in _trusted(episode):
        if one.success is not None:
            by_source[one.source].add(one.success)
    for source in LABEL_SOURCES:
        if len(by_source[source]) > 1:
            return f"one {source} says it succeeded, another that it failed"
        if by_source[source]:
            return ""
    return ""


def contradictions(labels: Mapping[str, Label], fingerprints: Mapping[str, str]) -> dict[str, str]:
    """Find episodes that show the same pixels under the same words and are judged differently: id to reason."""
    same: dict[str, list[str]] = defaultdict(list)
    for id, fingerprint in fingerprints.items():
        if id in labels and labels[id].verdict is not None:
            same[fingerprint].append(id)
    found = {}
    for ids in same.values():
        if len({labels[id].verdict for id in ids}) > 1:
            for id in ids:
                other = next(one for one in ids if labels[one].verdict != labels[id].verdict)
                mine, theirs = ("success" if labels[one].verdict else "failure" for one in (id, other))
                found[id] = f"the same video is called a {mine} here and a {theirs} in {other}"
    return found


def contradicting_pairs(preferences: Sequence[Preference]) -> set[frozenset[str]]:
    """Find pairs of episodes of which each was preferred to the other by equally trusted voices."""
    said: dict[tuple[frozenset[str], str], set[str | None]] = defaultdict(set)
    for one in preferences:
        said[frozenset((one.a, one.b)), one.source].add(one.better)
    return {pair for (pair, _), winners in said.items() if len(winners - {None}) > 1}


def _trusted(episode: Episode) -> Iterable[Outcome]:
    return (one for one in episode.outcomes if one.source != "model")


def _says_something(one: Outcome) -> bool:
    facts = (one.success, one.progress, one.grade, one.curve)
    return bool(one.events) or any(fact is not None for fact in facts)


def _first(accounts: Sequence[Outcome], name: str) -> Any:
    return next((value for one in accounts if (value := getattr(one, name)) is not None), None)
