"""Evidence: judged episodes and everybody's rewards, as columns in the order of the episodes.

A measure asks it for numbers; part of it (a category, a subset) is evidence too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from demerit.data.labels import Preference
from demerit.data.reward import Reward
from demerit.errors import NotApplicable
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.ordering import Return, episode_returns
from demerit.evaluate.reports.report import AS_RECORDED, Choice, Judged, Report
from demerit.models.protocol import ModelCard

Floats = npt.NDArray[np.float64]
Rewards = Mapping[tuple[str, str], Mapping[str, Reward]]
"""by model and showing, then by episode"""
NAN = float("nan")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Settings:
    """What changes the numbers of a report beside its rewards."""

    resampling: Resampling = field(default_factory=Resampling)
    calibrate_on: str = ""
    """the split that maps from value to grade are fitted on; it is left out of the measured episodes"""

    def as_facts(self) -> dict[str, str]:
        """Write them into a report's environment."""
        how = self.resampling
        facts = {"resamples": str(how.resamples), "level": repr(how.level), "seed": str(how.seed)}
        return {**facts, "resampling of one task": how.alone, "calibrated on split": self.calibrate_on}

    @classmethod
    def from_facts(cls, facts: Mapping[str, str]) -> Settings:
        """Read what `as_facts` wrote; what is absent is as usual."""
        usual = Resampling()
        how = Resampling(
            resamples=int(facts.get("resamples", usual.resamples)),
            level=float(facts.get("level", usual.level)),
            seed=int(facts.get("seed", usual.seed)),
            alone="rows" if facts.get("resampling of one task") == "rows" else "unknown",
        )
        return cls(how, facts.get("calibrated on split", ""))


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a benchmark's measures are computed from."""

    cards: Mapping[str, ModelCard]
    """by name, in the order of the report"""
    episodes: tuple[Judged, ...]
    preferences: tuple[Preference, ...]
    rewards: Rewards
    settings: Settings = field(default_factory=Settings)
    calibration: Evidence | None = None
    """the episodes that maps are fitted on, when there are any"""
    choices: Mapping[tuple[str, str, str], Choice] = field(default_factory=dict)
    """what comparers answered, by model and the two episodes"""
    memory: dict[tuple[object, ...], Any] = field(default_factory=dict, repr=False)
    """what was worked out before (see `once`); parts share it, since they share the rewards"""

    @classmethod
    def of(cls, report: Report, settings: Settings) -> Evidence:
        """Take the evidence that a report holds."""
        rewards: dict[tuple[str, str], dict[str, Reward]] = {}
        for shown in report.rewards:
            rewards.setdefault((shown.reward.model, shown.showing), {})[shown.reward.episode] = shown.reward
        cards = {card.name: card for card in report.cards}
        choices = {(one.model, one.a, one.b): one for one in report.choices}
        whole = cls(cards, report.episodes, report.preferences, rewards, settings, choices=choices)
        if not settings.calibrate_on:
            return whole
        kept = whole.where(lambda one: one.split != settings.calibrate_on)
        return replace(kept, calibration=whole.where(lambda one: one.split == settings.calibrate_on))

    def where(self, keep: Callable[[Judged], bool]) -> Evidence:
        """Take the part that is about some of the episodes."""
        episodes = tuple(one for one in self.episodes if keep(one))
        ids = {one.id for one in episodes}
        preferences = tuple(one for one in self.preferences if one.a in ids and one.b in ids)
        return replace(self, episodes=episodes, preferences=preferences)

    def once(self, key: tuple[object, ...], work: Callable[[], Found]) -> Found:
        """Work something out at the first call with this key, and remember it.

        The key names everything that the result depends on; where that is the chosen episodes, it contains `ids`.
        """
        if key not in self.memory:
            self.memory[key] = work()
        found: Found = self.memory[key]
        return found

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Which episodes these are."""
        return tuple(one.id for one in self.episodes)

    def reward(self, model: str, episode: str, showing: str = AS_RECORDED) -> Reward | None:
        """One reward; None when the model was not asked."""
        return self.rewards.get((model, showing), {}).get(episode)

    def shown(self, model: str, showing: str = AS_RECORDED) -> list[Reward | None]:
        """One model's rewards in the order of the episodes."""
        return [self.reward(model, one.id, showing) for one in self.episodes]

    def finals(self, model: str) -> Floats:
        """The value at the last frame of each episode, NaN = unscored."""
        return self.returns(model, "final")

    def returns(self, model: str, how: Return) -> Floats:
        """Sum, mean or last of each episode's values, NaN = unscored."""
        known = self.once(("returns", model, how), lambda: self._all_returns(model, how))
        return np.array([known.get(id, NAN) for id in self.ids], dtype=np.float64)

    def _all_returns(self, model: str, how: Return) -> dict[str, float]:
        rewards = self.rewards.get((model, AS_RECORDED), {})
        returns = episode_returns([one.value for one in rewards.values()], how)
        return dict(zip(rewards, returns.tolist(), strict=True))

    def shares(self, model: str) -> Floats:
        """Final values as a share of the range that the card declares."""
        low, high = self.range_of(model)
        return (self.finals(model) - low) / (high - low)

    def range_of(self, model: str) -> tuple[float, float]:
        """The declared range, or NotApplicable when it has no two ends."""
        card = self.cards[model]
        if card.low is None or card.high is None:
            raise NotApplicable(f"its card gives no range for its {card.quantity}")
        return card.low, card.high

    def success_probabilities(self, model: str) -> tuple[Floats, str]:
        """Probabilities of success at the end, and what they were read from; NotApplicable when there are none."""
        card, shown = self.cards[model], self.shown(model)
        if any(one is not None and one.success is not None for one in shown):
            last = [
                NAN if one is None or one.success is None or not len(one.success) else one.success[-1] for one in shown
            ]
            return np.array(last, dtype=np.float64), "the model's own probability of success"
        if (card.low, card.high) == (0.0, 1.0) and any(word in card.quantity for word in ("progress", "probability")):
            return self.finals(model), f"final {card.quantity} read as a probability of success"
        raise NotApplicable(
            "it gives no probability of success, and its value is no progress or probability from 0 to 1"
        )

    @cached_property
    def tasks(self) -> list[str]:
        """What intervals are clustered by."""
        return [one.task for one in self.episodes]

    @cached_property
    def contexts(self) -> list[str]:
        """What may be ranked against each other."""
        return [one.context for one in self.episodes]

    @cached_property
    def success(self) -> Floats:
        """1, 0 or NaN."""
        return np.array([NAN if one.success is None else float(one.success) for one in self.episodes])

    @cached_property
    def grades(self) -> Floats:
        """1 to 5 or NaN."""
        return np.array([NAN if one.grade is None else float(one.grade) for one in self.episodes])

    @cached_property
    def scores(self) -> tuple[Floats, str]:
        """How good each episode was found, and by which label: the one that most episodes have, finest first.

        One label for all: a progress of 0.6 and a plain "success" cannot be ranked.
        """
        progress = np.array([NAN if one.progress is None else float(one.progress) for one in self.episodes])
        columns = {"progress": progress, "grade": self.grades, "success": self.success}
        known = {name: int((~np.isnan(column)).sum()) for name, column in columns.items()}
        name = max(columns, key=lambda one: known[one])  # the first of the largest
        return columns[name], name
