"""What a release is made of, counted for its card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from demerit.data.episode import Episode
from demerit.data.labels import Outcome, Preference

VERDICTS = {True: "success", False: "failure", None: "unknown"}
BINS = 10
"""of final progress"""


@dataclass
class Group:
    """Counts over some of the episodes."""

    episodes: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    frames: int = 0
    seconds: float = 0.0
    instructions: set[str] = field(default_factory=set)

    def add(self, episode: Episode) -> None:
        """Count one."""
        times = episode.main.times()
        self.episodes += 1
        self.verdicts[verdict(episode)] += 1
        self.frames += len(times)
        self.seconds += float(times[-1]) if len(times) else 0.0
        self.instructions.add(episode.instruction)

    @property
    def hours(self) -> float:
        """How long they are together."""
        return self.seconds / 3600


@dataclass
class Composition:
    """Counts over a release."""

    name: str
    all: Group = field(default_factory=Group)
    parts: dict[tuple[str, str], Group] = field(default_factory=dict)
    """by dataset and split"""
    vouchers: dict[str, Counter[str]] = field(default_factory=dict)
    """by who vouches for it most: verdicts, graded, with progress, with curve"""
    failures: Counter[str] = field(default_factory=Counter)
    """episodes by kind of failure; one may show several"""
    unexplained: int = 0
    """failures that nobody gave a kind"""
    grades: Counter[int] = field(default_factory=Counter)
    progress: dict[str, list[int]] = field(default_factory=dict)
    """verdict to episodes by final progress, in BINS equal bins from 0 to 1"""
    edits: Counter[str] = field(default_factory=Counter)
    licences: Counter[str] = field(default_factory=Counter)
    embodiments: Counter[str] = field(default_factory=Counter)
    cameras: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)
    preferences: Counter[str] = field(default_factory=Counter)
    tasks: dict[str, Counter[str]] = field(default_factory=dict)
    """instruction to verdicts"""

    def add(self, episode: Episode) -> None:
        """Count one."""
        origin = episode.origin
        self.all.add(episode)
        self.parts.setdefault((origin.dataset or "unknown", origin.split or "none"), Group()).add(episode)
        for counter, value in (
            (self.licences, origin.licence),
            (self.embodiments, origin.embodiment or "unknown"),
            (self.splits, origin.split or "none"),
            (self.edits, "; ".join(edit.name for edit in episode.edits)),
        ):
            counter[value] += 1
        self.cameras.update(list(episode.views))
        self.tasks.setdefault(episode.instruction or "(no instruction)", Counter())[verdict(episode)] += 1
        self._add_outcome(episode)

    def _add_outcome(self, episode: Episode) -> None:
        shown = kinds_of(episode)
        self.failures.update(shown)
        self.unexplained += not shown and verdict(episode) == "failure"
        outcome = episode.outcome
        if outcome is None:
            return
        counts = self.vouchers.setdefault(outcome.source, Counter())
        counts["episodes"] += 1
        counts[VERDICTS[outcome.success]] += 1
        counts["graded"] += outcome.grade is not None
        counts["with progress"] += outcome.progress is not None
        counts["with curve"] += any(account.curve is not None for account in episode.outcomes)
        if outcome.grade is not None:
            self.grades[outcome.grade] += 1
        if outcome.progress is not None:
            bins = self.progress.setdefault(VERDICTS[outcome.success], [0] * BINS)
            bins[min(BINS - 1, int(outcome.progress * BINS))] += 1


def compose(name: str, episodes: Iterable[Episode], preferences: Sequence[Preference]) -> Composition:
    """Count everything once."""
    found = Composition(name)
    for episode in episodes:
        found.add(episode)
    found.preferences.update(one.source for one in preferences)
    return found


def verdict(episode: Episode) -> str:
    """success, failure or unknown, as the most trusted account has it."""
    return VERDICTS[None if episode.outcome is None else episode.outcome.success]


def kinds_of(episode: Episode) -> list[str]:
    """Kinds of failure that an episode shows, each once, as the most trusted account that names any has them."""
    named: list[Outcome] = [outcome for outcome in (episode.outcome, *episode.outcomes) if outcome and outcome.events]
    return list(dict.fromkeys(event.kind for event in named[0].events)) if named else []
