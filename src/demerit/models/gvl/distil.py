"""Preference-guided self-distillation: values per step for rejected rollouts, chosen by what people preferred.

Nobody labels rollouts step by step, but people say which of two is better. The model is asked about both several times;
an answer whose returns put the two in the people's order is kept, and its curve of the rejected rollout shows, in later
prompts, how bad behaviour is to be valued. A pair that no answer orders rightly is dropped and counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from demerit.data.dataset import Problem, Record
from demerit.data.episode import Episode
from demerit.data.labels import LabelSource, Outcome, Preference
from demerit.errors import BadInput
from demerit.models.gvl.query import Asked, Prompter, Sample
from demerit.models.gvl.retrieval import is_distilled

SAMPLES = 10
TEMPERATURE = 0.8
AT_ONCE = 64
"""episodes whose answers are held in memory at once"""

Return = Literal["sum", "mean"]

TIE = "a tie"
NOT_THEIRS = "nobody whose preferences count vouches for it"
NOT_HERE = "one of the two rollouts is not in the dataset"
NO_ANSWER = "no sample has a complete answer about both rollouts"
NO_AGREEMENT = "no sample orders the two as the preference does"
WORSE_EXAMPLE = "the rejected rollout has a clearer example from another pair"


@dataclass(frozen=True)
class Pair:
    """What became of one preference."""

    preference: Preference
    dropped: str = ""
    """why it gave no example; empty when it did"""
    agreeing: int = 0
    """samples that order the two as the person did"""
    complete: int = 0
    """samples with a value for every frame of both"""
    sample: int | None = None
    """the one that was kept"""
    margin: float = math.nan
    """return of the preferred minus that of the rejected, in the sample that was kept"""


@dataclass(frozen=True, eq=False)
class Distilled:
    """The curves that were found, and what became of every pair."""

    curves: Mapping[str, Outcome]
    """one account, source `model`, per rejected rollout's id"""
    pairs: tuple[Pair, ...]
    by: str = ""

    @property
    def kept(self) -> int:
        """Pairs that gave an example."""
        return sum(not one.dropped for one in self.pairs)

    def dropped(self) -> Counter[str]:
        """Pairs that gave none, by reason."""
        return Counter(one.dropped for one in self.pairs if one.dropped)

    def apply(self, records: Iterable[Record]) -> Iterator[Record]:
        """Add each curve to its episode's outcomes, in the place of an older one by the same model."""
        for record in records:
            if isinstance(record, Episode) and record.id in self.curves:
                new = self.curves[record.id]
                others = tuple(one for one in record.outcomes if not (is_distilled(one) and one.by == new.by))
                yield replace(record, outcomes=(*others, new))
            else:
                yield record

    def __str__(self) -> str:
        """Say it in a line."""
        lost = "; ".join(f"{count} dropped: {reason}" for reason, count in self.dropped().most_common())
        return f"{self.kept} of {len(self.pairs)} pairs gave an example" + (f"; {lost}" if lost else "")


@dataclass(frozen=True)
class DistillationConfig:
    """How to distil."""

    samples: int = SAMPLES
    temperature: float | None = TEMPERATURE
    """None = as the prompter is set"""
    vouchers: tuple[LabelSource, ...] = ("human",)
    """whose preferences count"""
    how: Return = "sum"
    """what a return is: the sum of the values over the frames shown, or their mean"""

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        if self.samples < 1:
            raise BadInput("samples", "a number from 1 on", self.samples)
        if self.how not in ("sum", "mean"):
            raise BadInput("return", "'sum' or 'mean'", repr(self.how))


def distil(prompter: Prompter, records: Iterable[Record], plan: DistillationConfig | None = None) -> Distilled:
    """Find a curve for every rejected rollout whose pair the model can order as people did.

    Sample number i of one rollout is compared with sample number i of the other. Of the samples that agree, the one
    with the largest margin gives the curve, the first of equals: nothing is drawn at random.

    Args:
        prompter: asks the model; its context should be none, so that examples are not made from examples.
        records: episodes and preferences.
        plan: how.
    """
    plan = plan or DistillationConfig()
    episodes: dict[str, Episode] = {}
    preferences: list[Preference] = []
    for record in records:
        if isinstance(record, Episode):
            episodes[record.id] = record
        elif not isinstance(record, Problem):
            preferences.append(record)
    asked = _Answers(prompter, plan, episodes)
    by = f"gvl {prompter.chat.endpoint.model}"
    found: dict[str, tuple[Pair, Outcome]] = {}
    pairs: list[Pair] = []
    for group in _groups([one for one in preferences if not _unusable(one, plan, episodes)]):
        asked.fetch(name for one in group for name in (one.a, one.b))
        for preference in group:
            pair, outcome = _judge(preference, asked, plan, by)
            if outcome is not None:
                pair = _settle(found, pair, outcome)
            pairs.append(pair)
    pairs = _overtaken(pairs, found)
    pairs += [Pair(one, why) for one in preferences if (why := _unusable(one, plan, episodes))]
    return Distilled({id: outcome for id, (_, outcome) in found.items()}, tuple(pairs), by)


def value_return(sample: Sample, how: Return) -> float:
    """The return of one answer: r_1 + ... + r_n over the frames shown, or that over n."""
    total = math.fsum(sample.value.tolist())
    return total if how == "sum" else total / len(sample.value)


@dataclass(eq=False)
class _Answers:
    """Answers about episodes, asked for once each; a rollout may be in several pairs."""

    prompter: Prompter
    plan: DistillationConfig
    episodes: Mapping[str, Episode]
    known: dict[str, Asked] = field(default_factory=dict)

    def fetch(self, names: Iterable[str]) -> None:
        """Ask about those that are not known yet."""
        new = [self.episodes[name] for name in dict.fromkeys(names) if name not in self.known]
        for one in self.prompter.ask(new, self.plan.samples, self.plan.temperature):
            self.known[one.episode.id] = one

    def complete(self, one: str, other: str) -> Iterator[tuple[int, Sample, Sample]]:
        """Yield the samples that have every frame of both."""
        both = zip(self.known[one].samples, self.known[other].samples, strict=True)
        for number, (a, b) in enumerate(both):
            if a is not None and b is not None and a.complete and b.complete:
                yield number, a, b


def _judge(preference: Preference, answers: _Answers, plan: DistillationConfig, by: str) -> tuple[Pair, Outcome | None]:
    better = str(preference.better)
    worse = preference.b if better == preference.a else preference.a
    complete = agreeing = 0
    best: tuple[float, int, Sample] | None = None
    for number, good, bad in answers.complete(better, worse):
        complete += 1
        margin = value_return(good, plan.how) - value_return(bad, plan.how)
        if margin > 0:
            agreeing += 1
            if best is None or margin > best[0]:
                best = (margin, number, bad)
    if best is None:
        return Pair(preference, NO_AGREEMENT if complete else NO_ANSWER, agreeing, complete), None
    margin, number, sample = best
    curve = np.full(len(answers.episodes[worse]), np.nan, dtype=np.float32)
    curve[sample.at] = sample.value
    note = f"{agreeing} of {plan.samples} samples order it below {better} as the preference does; sample {number} kept"
    return Pair(preference, "", agreeing, complete, number, margin), Outcome("model", curve=curve, note=note, by=by)


def _settle(found: dict[str, tuple[Pair, Outcome]], pair: Pair, outcome: Outcome) -> Pair:
    """Keep the clearer of two examples of one rollout."""
    worse = _rejected(pair.preference)
    before = found.get(worse)
    if before is not None and before[0].margin >= pair.margin:
        return replace(pair, dropped=WORSE_EXAMPLE)
    found[worse] = (pair, outcome)
    return pair


def _overtaken(pairs: list[Pair], found: Mapping[str, tuple[Pair, Outcome]]) -> list[Pair]:
    """Mark pairs whose example was replaced by a clearer one later."""
    return [
        one if one.dropped or found[_rejected(one.preference)][0] is one else replace(one, dropped=WORSE_EXAMPLE)
        for one in pairs
    ]


def _rejected(preference: Preference) -> str:
    return preference.b if preference.better == preference.a else preference.a


def _unusable(preference: Preference, plan: DistillationConfig, episodes: Mapping[str, Episode]) -> str:
    if preference.source not in plan.vouchers:
        return NOT_THEIRS
    if preference.better is None:
        return TIE
    return "" if preference.a in episodes and preference.b in episodes else NOT_HERE


def _groups(preferences: Sequence[Preference]) -> Iterator[Sequence[Preference]]:
    for start in range(0, len(preferences), AT_ONCE):
        yield preferences[start : start + AT_ONCE]
