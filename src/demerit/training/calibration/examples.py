"""Examples: labelled episodes, beside what a model said of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.evaluate.benchmarks.judging import judge
from demerit.evaluate.reports.report import Judged
from demerit.models.calibrated import Evidence, evidence_of
from demerit.models.calibrated_maps import Floats


@dataclass(frozen=True, eq=False)
class Example:
    """One labelled episode and the model's numbers for it; NaN = unscored, None = not labelled."""

    id: str
    task: str
    """what is left out together; a simulator's own name of the task, which it words in several ways, comes first"""
    score: float
    """what tells success, at the last frame"""
    success: bool | None
    final: float
    """the value at the last frame"""
    progress: float | None
    """how far it got, at the end"""
    values: Floats = field(default_factory=lambda: np.zeros(0))
    """values at the frames whose true progress is known; only the last one where nobody labelled a curve"""
    truth: Floats = field(default_factory=lambda: np.zeros(0))


def labelled(episodes: Iterable[Episode]) -> dict[str, tuple[Episode, Judged]]:
    """Keep the episodes of which somebody, and not a model, says success, progress or both."""
    found = {}
    for episode in episodes:
        label = judge(episode)
        label = replace(label, task=episode.origin.tags.get("task") or label.task)
        if label.success is not None or label.progress is not None or label.curve is not None:
            found[episode.id] = (episode, label)
    return found


def examples(labels: Mapping[str, Judged], rewards: Iterable[Reward]) -> tuple[list[Example], Evidence, Counter[str]]:
    """Put labels and rewards together; also say which number tells success, and why some are left out.

    A model that gives probabilities of success for all episodes is judged by them, another by its value.
    """
    mine = [reward for reward in rewards if reward.episode in labels]
    silent = Counter(one.why_missing for one in mine if np.isnan(one.final))
    said = [one for one in mine if not np.isnan(one.final)]
    gives = bool(said) and all(one.success is not None for one in said)
    evidence: Evidence = "success" if gives else "value"
    return [_example(labels[one.episode], one, evidence) for one in said], evidence, silent


def _example(label: Judged, reward: Reward, evidence: Evidence) -> Example:
    values, truth = _points(label, reward)
    score, progress = evidence_of(reward, evidence), label.progress
    if progress is None and label.curve is not None and len(label.curve) and not np.isnan(label.curve[-1]):
        progress = float(label.curve[-1])
    return Example(label.id, label.task, score, label.success, reward.final, progress, values, truth)


def _points(label: Judged, reward: Reward) -> tuple[Floats, Floats]:
    if label.curve is None:
        known = [] if label.progress is None else [label.progress]
        return np.array([reward.final] * len(known)), np.array(known, dtype=np.float64)
    inside = reward.at < len(label.curve)
    values, truth = reward.value[inside].astype(np.float64), label.curve[reward.at[inside]].astype(np.float64)
    both = ~np.isnan(values) & ~np.isnan(truth)
    return values[both], truth[both]
