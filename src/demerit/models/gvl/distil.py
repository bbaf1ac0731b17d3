"""Preference-guided self-distillation: values per step for rejected rollouts, selected by people's preferences.

People rarely label rollouts step by step, but they say which of two is better. The model is asked about both several
times. A sample whose returns order the two as the person did is kept, and its curve of the rejected rollout shows later
prompts how to rate bad behaviour. A pair that no sample orders correctly is dropped and counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from demerit.data.dataset import Problem, Record
from demerit.data.episode import Episode
from demerit.data.labels import LabelSource, Outcome, Preference
from demerit.data.store import Store
from demerit.errors import BadInput
from demerit.models.gvl.library import is_distilled
from demerit.models.gvl.query import EpisodeAnswers, Prompter, SampledCurve

PAIRS_AT_ONCE = 64
"""pairs whose answers are requested together"""

TIE = "a tie"
OTHER_SOURCE = "its label source does not count"
NOT_HERE = "one of the two rollouts is not in the dataset"
NO_ANSWER = "no sample has a complete answer about both rollouts"
NO_AGREEMENT = "no sample orders the two as the preference does"
WORSE_EXAMPLE = "the rejected rollout has a clearer example from another pair"


@dataclass(frozen=True)
class DistillationConfig:
    """How to distil."""

    samples: int = 10
    temperature: float | None = 0.8
    """None = as the model is configured"""
    sources: tuple[LabelSource, ...] = ("human",)
    """whose preferences count"""

    def __post_init__(self) -> None:
        """Check the number of samples."""
        if self.samples < 1:
            raise BadInput("samples", "a number from 1 on", self.samples)


@dataclass(frozen=True)
class DistilledPair:
    """What became of one preference."""

    preference: Preference
    dropped: str = ""
    """why it gave no example; empty if it did"""
    agreeing: int = 0
    """samples that order the two as the person did"""
    complete: int = 0
    """samples with a value for every frame of both"""
    sample: int | None = None
    """the one that was kept"""
    margin: float = math.nan
    """return of the preferred minus that of the rejected rollout, in the sample that was kept"""

    @property
    def rejected(self) -> str:
        """The id of the rejected rollout."""
        return _rejected_id(self.preference)


@dataclass(frozen=True, eq=False)
class Distillation:
    """The curves that were found, and what became of every pair."""

    curves: Mapping[str, Outcome]
    """one outcome with source `model` per rejected rollout's id"""
    pairs: tuple[DistilledPair, ...]

    @property
    def kept(self) -> int:
        """Pairs that gave an example."""
        return sum(not pair.dropped for pair in self.pairs)

    def drop_reasons(self) -> Counter[str]:
        """Pairs that gave none, by reason."""
        return Counter(pair.dropped for pair in self.pairs if pair.dropped)

    def apply(self, records: Iterable[Record]) -> Iterator[Record]:
        """Add each curve to its episode's outcomes, replacing an older one by the same model."""
        for record in records:
            if isinstance(record, Episode) and record.id in self.curves:
                new = self.curves[record.id]
                others = (label for label in record.outcomes if not (is_distilled(label) and label.by == new.by))
                yield replace(record, outcomes=(*others, new))
            else:
                yield record

    def __str__(self) -> str:
        """One line."""
        dropped = "; ".join(f"{count} dropped: {reason}" for reason, count in self.drop_reasons().most_common())
        return f"{self.kept} of {len(self.pairs)} pairs gave an example" + (f"; {dropped}" if dropped else "")


def distil(prompter: Prompter, records: Iterable[Record], config: DistillationConfig | None = None) -> Distillation:
    """Find a curve for every rejected rollout whose pair the model can order as people did.

    Sample i of one rollout is compared with sample i of the other. Of the samples that agree, the one with the largest
    margin gives the curve (the first of equals); nothing is random.

    Args:
        prompter: asks the model; its context should be none, so that examples are not made from examples.
        records: episodes and preferences.
        config: how.
    """
    config = config or DistillationConfig()
    episodes: dict[str, Episode] = {}
    preferences: list[Preference] = []
    for record in records:
        if isinstance(record, Episode):
            episodes[record.id] = record
        elif not isinstance(record, Problem):
            preferences.append(record)
    usable: list[Preference] = []
    skipped: list[DistilledPair] = []
    for preference in preferences:
        obstacle = _find_obstacle(preference, config, episodes)
        if obstacle:
            skipped.append(DistilledPair(preference, obstacle))
        else:
            usable.append(preference)
    answers = _Answers(prompter, config, episodes)
    found: dict[str, tuple[DistilledPair, Outcome]] = {}
    pairs: list[DistilledPair] = []
    for start in range(0, len(usable), PAIRS_AT_ONCE):
        group = usable[start : start + PAIRS_AT_ONCE]
        answers.fetch(name for preference in group for name in (preference.a, preference.b))
        for preference in group:
            pair, outcome = _select_sample(preference, answers, config)
            best = found.get(pair.rejected)
            if outcome is not None and (best is None or pair.margin > best[0].margin):
                found[pair.rejected] = (pair, outcome)
            pairs.append(pair)
    pairs = [
        pair if pair.dropped or found[pair.rejected][0] is pair else replace(pair, dropped=WORSE_EXAMPLE)
        for pair in pairs
    ]
    return Distillation({name: outcome for name, (_, outcome) in found.items()}, (*pairs, *skipped))


def save_records(folder: str | Path, name: str, records: Iterable[Record], licence: str = "") -> Store:
    """Write episodes with their new curves, and preferences, as a dataset; copies no video.

    Args:
        folder: a new or empty one.
        name: of the dataset.
        records: such as `distillation.apply(dataset.records())`.
        licence: of the data.
    """
    store = Store.create(folder, name, licence, source="curves by preference-guided self-distillation")
    with store.writer() as writer:
        for record in records:
            writer.add(record)
    return Store(store.root)


@dataclass(eq=False)
class _Answers:
    """Answers about episodes; a rollout in several pairs is asked about once."""

    prompter: Prompter
    config: DistillationConfig
    episodes: Mapping[str, Episode]
    known: dict[str, EpisodeAnswers] = field(default_factory=dict)

    def fetch(self, names: Iterable[str]) -> None:
        new = [self.episodes[name] for name in dict.fromkeys(names) if name not in self.known]
        for answer in self.prompter.ask(new, self.config.samples, self.config.temperature):
            self.known[answer.episode.id] = answer

    def complete(self, better: str, worse: str) -> Iterator[tuple[int, SampledCurve, SampledCurve]]:
        """Yield the samples that have every frame of both."""
        both = zip(self.known[better].samples, self.known[worse].samples, strict=True)
        for number, (good, bad) in enumerate(both):
            if good is not None and bad is not None and good.complete and bad.complete:
                yield number, good, bad


def _select_sample(
    preference: Preference, answers: _Answers, config: DistillationConfig
) -> tuple[DistilledPair, Outcome | None]:
    better, worse = str(preference.better), _rejected_id(preference)
    complete = agreeing = 0
    best: tuple[float, int, SampledCurve] | None = None
    for number, good, bad in answers.complete(better, worse):
        complete += 1
        margin = math.fsum(good.value.tolist()) - math.fsum(bad.value.tolist())  # difference of the returns
        if margin > 0:
            agreeing += 1
            if best is None or margin > best[0]:
                best = (margin, number, bad)
    if best is None:
        return DistilledPair(preference, NO_AGREEMENT if complete else NO_ANSWER, agreeing, complete), None
    margin, number, sample = best
    curve = np.full(len(answers.episodes[worse]), np.nan, dtype=np.float32)
    curve[sample.at] = sample.value
    note = (
        f"{agreeing} of {config.samples} samples order it below {better} as the preference does; sample {number} kept"
    )
    by = f"gvl {answers.prompter.client.endpoint.model}"
    pair = DistilledPair(preference, "", agreeing, complete, number, margin)
    return pair, Outcome("model", curve=curve, note=note, by=by)


def _rejected_id(preference: Preference) -> str:
    return preference.b if preference.better == preference.a else preference.a


def _find_obstacle(preference: Preference, config: DistillationConfig, episodes: Mapping[str, Episode]) -> str:
    if preference.source not in config.sources:
        return OTHER_SOURCE
    if preference.better is None:
        return TIE
    return "" if preference.a in episodes and preference.b in episodes else NOT_HERE
