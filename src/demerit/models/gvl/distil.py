"""Self-distillation: values per step of rejected rollouts, chosen by people's preferences, for `gvl:dense`.

People rarely label rollouts step by step, but they say which of two is better. The model is asked about both several
times. A sample whose returns order the two as the person did is kept, and its curve of the rejected rollout shows later
prompts how to rate bad behaviour. A pair that no sample orders correctly gives nothing and is counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from demerit.data.dataset import Problem, Record
from demerit.data.episode import Episode, Outcome, Preference
from demerit.models.gvl.library import is_distilled
from demerit.models.gvl.model import EpisodeAnswers, Prompter

SAMPLES, TEMPERATURE = 10, 0.8
"""the paper's"""
PAIRS_AT_ONCE = 64
"""pairs whose answers are requested together"""
KEPT = "an example"
TIE = "a tie"
OTHER_SOURCE = "not a person's preference"
NOT_HERE = "one of the two rollouts is not in the dataset"
NO_ANSWER = "no sample has a complete answer about both rollouts"
NO_AGREEMENT = "no sample orders the two as the preference does"
WORSE_EXAMPLE = "the rejected rollout has a clearer example from another pair"


def distil_curves(prompter: Prompter, records: Iterable[Record]) -> tuple[dict[str, Outcome], Counter[str]]:
    """Find a curve for every rejected rollout whose pair the model can order as people did.

    Sample i of one rollout is compared with sample i of the other. Of the samples that agree, the one with the largest
    margin gives the curve (the first of equals); of several pairs, the one with the largest margin. Nothing is random.

    Args:
        prompter: asks the model, as often as its config says; its context should be none, so that examples are not
            made from examples.
        records: episodes and preferences.

    Returns:
        An outcome of source `model` by the id of the rejected rollout, and the number of pairs by what became of them.
    """
    kept = [record for record in records if not isinstance(record, Problem)]
    episodes = {record.id: record for record in kept if isinstance(record, Episode)}
    became, usable = Counter[str](), list[Preference]()
    for preference in (record for record in kept if isinstance(record, Preference)):
        obstacle = _find_obstacle(preference, episodes)
        became[obstacle] += bool(obstacle)
        usable += [] if obstacle else [preference]
    answers, best = dict[str, EpisodeAnswers](), dict[str, tuple[float, Outcome]]()
    for start in range(0, len(usable), PAIRS_AT_ONCE):
        group = usable[start : start + PAIRS_AT_ONCE]
        new = dict.fromkeys(name for pair in group for name in (pair.a, pair.b) if name not in answers)
        answers |= {answer.episode.id: answer for answer in prompter.ask([episodes[name] for name in new])}
        for preference in group:
            worse = preference.b if preference.better == preference.a else preference.a
            sample = select_sample(answers[str(preference.better)], answers[worse])
            if isinstance(sample, str):
                became[sample] += 1
                continue
            became[WORSE_EXAMPLE if worse in best else KEPT] += 1
            margin, outcome = sample
            if worse not in best or margin > best[worse][0]:
                best[worse] = margin, replace(outcome, by=f"gvl {prompter.client.endpoint.model}")
    return {name: outcome for name, (_, outcome) in best.items()}, +became


def select_sample(better: EpisodeAnswers, worse: EpisodeAnswers) -> tuple[float, Outcome] | str:
    """Return the clearest sample that orders two rollouts right: its margin and the worse one's curve; or why none."""
    complete, agreeing, best = 0, 0, (0.0, -1)
    for number, (good, bad) in enumerate(zip(better.samples, worse.samples, strict=True)):
        if good is None or bad is None or not (good.complete and bad.complete):
            continue
        complete += 1
        margin = math.fsum(good.value.tolist()) - math.fsum(bad.value.tolist())  # difference of the returns
        agreeing += margin > 0
        best = max(best, (margin, number), key=lambda pair: pair[0])
    margin, number = best
    if number < 0:
        return NO_AGREEMENT if complete else NO_ANSWER
    sample, curve = worse.samples[number], np.full(len(worse.episode), np.nan, dtype=np.float32)
    assert sample is not None
    curve[sample.at] = sample.value
    ordered = f"{agreeing} of {len(worse.samples)} samples order it below {better.episode.id} as the preference does"
    return margin, Outcome("model", curve=curve, note=f"{ordered}; sample {number} kept")


def add_curves(records: Iterable[Record], curves: Mapping[str, Outcome]) -> Iterator[Record]:
    """Add each curve to its episode's outcomes, replacing an older one by the same model."""
    for record in records:
        if isinstance(record, Episode) and record.id in curves:
            new = curves[record.id]
            others = (label for label in record.outcomes if not (is_distilled(label) and label.by == new.by))
            yield replace(record, outcomes=(*others, new))
        else:
            yield record


def _find_obstacle(preference: Preference, episodes: Mapping[str, Episode]) -> str:
    if preference.source != "human":
        return OTHER_SOURCE
    if preference.better is None:
        return TIE
    return "" if preference.a in episodes and preference.b in episodes else NOT_HERE
