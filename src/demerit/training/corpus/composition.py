"""What a corpus is made of, counted: by source, origin of the label, split and grade."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from demerit.data.episode import Episode
from demerit.data.labels import LABEL_SOURCES
from demerit.data.splits import task_of
from demerit.training.corpus.gathering import Drawn
from demerit.training.corpus.labelling import grade_given
from demerit.training.corpus.leaks import LeakReport
from demerit.training.corpus.recipe import Source

GRADES: tuple[int | None, ...] = (1, 2, 3, 4, 5, None)
KINDS = ("originals", "human-graded", "simulator-graded", "rule-graded", "model-graded")
MADE = ("clips", "counterfactuals", "other negatives")
HUMAN_CHECK = "human_check"


@dataclass
class Counts:
    """Counts over some of the episodes."""

    all: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)
    grades: Counter[int | None] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    """negatives by name"""
    tasks: set[str] = field(default_factory=set)
    """of episodes that were not made of others"""
    embodiments: set[str] = field(default_factory=set)
    licences: Counter[str] = field(default_factory=Counter)

    def add(self, episode: Episode, kind: str) -> None:
        """Count one."""
        said = grade_given(episode)
        self.all += 1
        self.kinds[kind] += 1
        self.splits[episode.origin.split] += 1
        self.grades[said.grade if said else None] += 1
        self.licences[episode.origin.licence] += 1
        if episode.origin.embodiment:
            self.embodiments.add(episode.origin.embodiment)
        if kind in MADE:
            self.names[episode.edits[-1].name] += 1
        else:
            self.tasks.add(task_of(episode))

    def facts(self) -> dict[str, Any]:
        """Write it as JSON can hold it."""
        return {
            "examples": self.all,
            "tasks": len(self.tasks),
            "kinds": _sorted(self.kinds),
            "splits": _sorted(self.splits),
            "grades": {grade_name(grade): self.grades[grade] for grade in GRADES if self.grades[grade]},
            "negatives": _sorted(self.names),
            "embodiments": sorted(self.embodiments),
            "licences": _sorted(self.licences),
        }


@dataclass
class Composition:
    """Counts over a corpus."""

    name: str
    drawn: tuple[Drawn, ...]
    splits: tuple[str, ...]
    """in the recipe's order"""
    sources: dict[str, Counts] = field(default_factory=dict)
    total: Counts = field(default_factory=Counts)
    by_split: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    """by split and grade"""
    vouchers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """by who vouches for the grade, and split; '' is nobody"""
    split_tasks: dict[str, set[str]] = field(default_factory=dict)
    due: int = 0
    """episodes that a person has to confirm"""
    preferences: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)
    """by source: chosen episodes whose videos cannot be read"""
    not_made: Counter[tuple[str, str]] = field(default_factory=Counter)
    """negatives and counterfactuals that could not be made, by name and reason"""
    leaks: LeakReport = field(default_factory=LeakReport)
    missing: tuple[str, ...] = ()
    """sentences: stages that are not done"""

    def add(self, episode: Episode) -> None:
        """Count one."""
        source = next(one.source for one in self.drawn if one.source.name == episode.origin.dataset)
        kind, split, said = kind_of(episode, source), episode.origin.split, grade_given(episode)
        for counts in (self.sources.setdefault(source.name, Counts()), self.total):
            counts.add(episode, kind)
        self.by_split[split, said.grade if said else None] += 1
        self.vouchers[said.source if said else "", split] += 1
        self.due += HUMAN_CHECK in episode.origin.tags
        if kind not in MADE:
            self.split_tasks.setdefault(split, set()).add(task_of(episode))

    def facts(self) -> dict[str, Any]:
        """Write it as JSON can hold it; the same corpus gives the same."""
        return {
            "name": self.name,
            "sources": {one.source.name: self._source(one) for one in self.drawn},
            "total": self.total.facts(),
            "splits": {
                split: {
                    "examples": self.total.splits[split],
                    "tasks": len(self.split_tasks.get(split, ())),
                    "grades": {grade_name(g): self.by_split[split, g] for g in GRADES if self.by_split[split, g]},
                }
                for split in self.split_names
            },
            "vouched_by": {
                who or "nobody": {split: self.vouchers[who, split] for split in self.split_names}
                for who in (*LABEL_SOURCES, "")
                if any(self.vouchers[who, split] for split in self.split_names)
            },
            "human_check_due": self.due,
            "preferences": self.preferences,
            "not_made": [[*what, count] for what, count in sorted(self.not_made.items())],
            "leak_check": self.leaks.facts(),
            "missing": list(self.missing),
        }

    @property
    def split_names(self) -> list[str]:
        """The recipe's splits, then others that the sources have."""
        return [*self.splits, *sorted(set(self.total.splits) - set(self.splits))]

    def _source(self, one: Drawn) -> dict[str, Any]:
        left_out = dict(sorted(one.left_out.items()))
        if self.unreadable[one.source.name]:
            left_out["its video cannot be read"] = self.unreadable[one.source.name]
        return {
            "role": one.source.role,
            "about": one.source.about,
            "found": one.found,
            "usable": one.usable,
            "drawn": len(one.ids),
            "over_the_cap": one.over,
            "left_out": left_out,
            **self.sources.get(one.source.name, Counts()).facts(),
        }


def compose_counts(composition: Composition, episodes: Iterable[Episode]) -> Composition:
    """Count every episode."""
    for episode in episodes:
        composition.add(episode)
    return composition


def kind_of(episode: Episode, source: Source) -> str:
    """Where an episode's label comes from: it was there, somebody graded it, or it was made."""
    name = episode.edits[-1].name if episode.edits else "reworded"
    if name == "clip":
        return "clips"
    if name == "counterfactual":
        return "counterfactuals"
    if name != "reworded":
        return "other negatives"
    return "originals" if source.role == "successes" else f"{source.vouched_by}-graded"


def grade_name(grade: int | None) -> str:
    """How a grade is called in tables."""
    return "ungraded" if grade is None else str(grade)


def _sorted(counts: Mapping[Any, int]) -> dict[str, int]:
    return {str(name): counts[name] for name in sorted(counts, key=str) if counts[name]}
