"""Scores: labels and rewards as columns in episode order; and `MetricSpec`, one metric computed from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from demerit.data.labels import Preference
from demerit.data.reward import Reward
from demerit.data.splits import same_split
from demerit.errors import NotApplicable
from demerit.evaluate.metrics import Resampling, Tally
from demerit.evaluate.metrics.bootstrap import Floats
from demerit.evaluate.metrics.ranking import Return, episode_returns
from demerit.evaluate.reports.report import (
    AS_RECORDED,
    EpisodeLabels,
    MeasureLine,
    PairAnswer,
    Report,
    resampling_units,
)
from demerit.models.protocol import ModelCard

NAN = float("nan")
CONTROLS = ("constant", "clock", "random", "change", "motion", "length")
"""names of the control models, in display order"""
ALWAYS_A = "always-a"
"""a comparer that always names the first of two; added where people compared episodes"""
Value = TypeVar("Value")


@dataclass(frozen=True)
class MeasureSettings:
    """The settings that change a report's numbers, apart from its rewards."""

    resampling: Resampling = field(default_factory=Resampling)
    calibrate_on: str = ""
    """the split that maps from value to grade are fitted on; it is not measured"""
    by_recording: bool = True
    """with few tasks, resample recordings instead (see `resampling_units`); earlier versions did not"""

    def as_facts(self) -> dict[str, str]:
        """Return the entries of a report's environment."""
        how = self.resampling
        facts = {"resamples": str(how.resamples), "level": repr(how.level), "seed": str(how.seed)}
        few = {"resampled with few tasks": "recordings" if self.by_recording else "tasks"}
        return {**facts, "resampling of one task": how.alone, **few, "calibrated on split": self.calibrate_on}

    @classmethod
    def from_facts(cls, facts: Mapping[str, str]) -> MeasureSettings:
        """Read what `as_facts` wrote; absent entries get their defaults."""
        default = Resampling()
        how = Resampling(
            resamples=int(facts.get("resamples", default.resamples)),
            level=float(facts.get("level", default.level)),
            seed=int(facts.get("seed", default.seed)),
            alone="rows" if facts.get("resampling of one task") == "rows" else "unknown",
        )
        by_recording = facts.get("resampled with few tasks") == "recordings"
        return cls(how, facts.get("calibrated on split", ""), by_recording)


@dataclass(frozen=True, eq=False)
class Scores:
    """What metrics are computed from: labels, preferences and the rewards of all models."""

    cards: Mapping[str, ModelCard]
    """by name, in the order of the report"""
    episodes: tuple[EpisodeLabels, ...]
    preferences: tuple[Preference, ...]
    rewards: Mapping[tuple[str, str], Mapping[str, Reward]]
    """by model and perturbation, then by episode"""
    settings: MeasureSettings = field(default_factory=MeasureSettings)
    calibration: Scores | None = None
    """the episodes that maps and thresholds are fitted on, if any"""
    answers: Mapping[tuple[str, str, str], PairAnswer] = field(default_factory=dict)
    """answers of comparers, by model and the two episodes"""
    cache: dict[tuple[object, ...], Any] = field(default_factory=dict, repr=False)
    """results of `compute_once`; subsets share it, since they share the rewards"""

    @classmethod
    def of(cls, report: Report, settings: MeasureSettings) -> Scores:
        """Take the scores from a report."""
        rewards: dict[tuple[str, str], dict[str, Reward]] = {}
        for scored in report.rewards:
            rewards.setdefault((scored.reward.model, scored.perturbation), {})[scored.reward.episode] = scored.reward
        cards = {card.name: card for card in report.cards}
        answers = {(answer.model, answer.a, answer.b): answer for answer in report.choices}
        whole = cls(cards, report.episodes, report.preferences, rewards, settings, answers=answers)
        if not settings.calibrate_on:
            return whole
        kept = whole.where(lambda row: not same_split(row.split, settings.calibrate_on))
        return replace(kept, calibration=whole.where(lambda row: same_split(row.split, settings.calibrate_on)))

    def where(self, keep: Callable[[EpisodeLabels], bool]) -> Scores:
        """Return the subset of some episodes."""
        episodes = tuple(row for row in self.episodes if keep(row))
        ids = {row.id for row in episodes}
        preferences = tuple(pair for pair in self.preferences if pair.a in ids and pair.b in ids)
        return replace(self, episodes=episodes, preferences=preferences)

    def compute_once(self, key: tuple[object, ...], compute: Callable[[], Value]) -> Value:
        """Compute a value at the first call with this key. The key must contain `ids` if the value depends on them."""
        if key not in self.cache:
            self.cache[key] = compute()
        value: Value = self.cache[key]
        return value

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Ids of the episodes."""
        return tuple(row.id for row in self.episodes)

    def reward(self, model: str, episode: str, perturbation: str = AS_RECORDED) -> Reward | None:
        """Return one reward; None if the model was not asked."""
        return self.rewards.get((model, perturbation), {}).get(episode)

    def rewards_of(self, model: str, perturbation: str = AS_RECORDED) -> list[Reward | None]:
        """Return one model's rewards in episode order."""
        return [self.reward(model, id, perturbation) for id in self.ids]

    def finals(self, model: str) -> Floats:
        """Return the value at the last frame of each episode, NaN = unscored."""
        return self.returns(model, "final")

    def returns(self, model: str, how: Return) -> Floats:
        """Return the sum, mean or last of each episode's values, NaN = unscored."""
        known = self.compute_once(("returns", model, how), lambda: self._all_returns(model, how))
        return np.array([known.get(id, NAN) for id in self.ids], dtype=np.float64)

    def _all_returns(self, model: str, how: Return) -> dict[str, float]:
        rewards = self.rewards.get((model, AS_RECORDED), {})
        returns = episode_returns([reward.value for reward in rewards.values()], how)
        return dict(zip(rewards, returns.tolist(), strict=True))

    def shares(self, model: str) -> Floats:
        """Return final values as a share of the range on the model card."""
        low, high = self.range_of(model)
        return (self.finals(model) - low) / (high - low)

    def range_of(self, model: str) -> tuple[float, float]:
        """Return the range on the model card; NotApplicable if it is not bounded on both sides."""
        card = self.cards[model]
        if card.low is None or card.high is None:
            raise NotApplicable(f"its card gives no range for its {card.quantity}")
        return card.low, card.high

    def gives_success(self, model: str) -> bool:
        """Return whether the model gives its own probabilities of success."""
        return any(reward is not None and reward.success is not None for reward in self.rewards_of(model))

    def success_probabilities(self, model: str) -> tuple[Floats, str]:
        """Return final probabilities of success and what they were read from; NotApplicable if there are none."""
        card = self.cards[model]
        if self.gives_success(model):
            last = [
                NAN if reward is None or reward.success is None or not len(reward.success) else reward.success[-1]
                for reward in self.rewards_of(model)
            ]
            return np.array(last, dtype=np.float64), "the model's own probability of success"
        if (card.low, card.high) == (0.0, 1.0) and any(word in card.quantity for word in ("progress", "probability")):
            return self.finals(model), f"final {card.quantity} read as a probability of success"
        raise NotApplicable(
            "it gives no probability of success, and its value is not a progress or probability from 0 to 1"
        )

    @cached_property
    def tasks(self) -> list[str]:
        """The task of each episode."""
        return [row.task for row in self.episodes]

    @cached_property
    def units(self) -> tuple[list[str], str]:
        """What intervals resample: a label per episode, and its name."""
        return resampling_units(self.episodes) if self.settings.by_recording else (self.tasks, "tasks")

    @property
    def clusters(self) -> list[str]:
        """What intervals resample: a label per episode."""
        return self.units[0]

    @cached_property
    def contexts(self) -> list[str]:
        """Contexts, within which episodes may be ranked."""
        return [row.context for row in self.episodes]

    @cached_property
    def success(self) -> Floats:
        """1, 0 or NaN."""
        return np.array([NAN if row.success is None else float(row.success) for row in self.episodes])

    @cached_property
    def grades(self) -> Floats:
        """1 to 5 or NaN."""
        return np.array([NAN if row.grade is None else float(row.grade) for row in self.episodes])

    @cached_property
    def human_scores(self) -> tuple[Floats, str]:
        """How good each episode is, and by which label: the one that most episodes have, finest first.

        One label for all episodes, since a progress of 0.6 and a plain "success" cannot be ranked.
        """
        progress = np.array([NAN if row.progress is None else float(row.progress) for row in self.episodes])
        columns = {"progress": progress, "grade": self.grades, "success": self.success}
        known = {name: int((~np.isnan(column)).sum()) for name, column in columns.items()}
        name = max(columns, key=lambda column: known[column])  # the first of the largest
        return columns[name], name


@dataclass(frozen=True)
class MetricSpec:
    """One metric: the numbers it takes from a model, and how it counts them.

    The two are separate so that two models can be compared on the rows that both have.
    """

    name: str
    numbers: Callable[[Scores, str], Floats]
    """one number per row of a model, NaN = unscored; raises NotApplicable(reason) if it cannot be computed"""
    tally_of: Callable[[Scores, Floats], Tally]
    needs: str
    """the labels that it needs, as a clause: 'accepted and rejected episodes'"""
    across: bool = True
    """compares values of different episodes, so it does not apply to values normalised per episode"""
    lower_is_better: bool = False
    by: tuple[str, ...] = ()
    """also computed for each category, subset, task or embodiment"""
    subset: Callable[[Scores], Scores] | None = None
    """the episodes that it is about; None = all"""
    undefined: Callable[[Scores, str], int] | None = None
    """number of NaN rows that are scored, but have no value by the formula"""
    note: Callable[[Scores, str], str] | None = None
    """a note on this model's number"""
    top_by_construction: tuple[str, ...] = ()
    """controls that reach the best value by construction, so a model need not beat them"""
    asks_comparers: bool = False
    """also computed for the comparer that always names the first"""
    has_controls: bool = True
    """a model is compared with the controls; False where a model that rewards nothing would win"""
    applies_to: Callable[[Scores, str], bool] | None = None
    """the models it is computed for; others are skipped silently"""
    lacking: Callable[[Scores], str] | None = None
    """why these episodes are too few, as the rest of 'NAME is not measured: '; empty if they are enough"""

    def tally(self, scores: Scores, model: str) -> Tally:
        """Count one model's rows."""
        tally = self.tally_of(scores, self.numbers(scores, model))
        notes = [tally.note, self.note(scores, model) if self.note else ""]
        tally = replace(tally, name=self.name, note="; ".join(note for note in notes if note))
        if self.undefined is None:
            return tally
        undefined = self.undefined(scores, model)
        return replace(tally, undefined=undefined, unscored=tally.unscored - undefined)

    def select(self, scores: Scores) -> Scores:
        """Return the part of the scores that it is about."""
        return scores if self.subset is None else self.subset(scores)

    def lines(self, scores: Scores, model: str) -> Iterator[MeasureLine]:
        """Measure one model over all episodes and by part; without labels there is no line at all."""
        selected = self.select(scores)
        whole = self._line(selected, model, "")
        if whole is None:
            return
        yield whole
        for kind in self.by:
            for name in sorted({getattr(row, kind) for row in selected.episodes} - {""}):
                part = selected.where(lambda row, kind=kind, name=name: getattr(row, kind) == name)  # type: ignore[misc]
                line = self._line(part, model, f"{kind}: {name}")
                if line is not None:
                    yield line

    def _line(self, scores: Scores, model: str, part: str) -> MeasureLine | None:
        tally = self.tally(scores, model)
        measure = tally.measure(scores.settings.resampling)
        if set(tally.clusters) <= set(
            scores.clusters
        ):  # some measures are about tasks, whatever is resampled elsewhere
            measure = replace(measure, resampled=scores.units[1])
        is_empty = not (measure.n or measure.unscored or measure.undefined)
        return None if is_empty else MeasureLine(model, measure, part)
