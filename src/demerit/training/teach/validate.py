"""How good and how sure: cross-validation, calibrated success, and a control taught on the same folds.

Groups (one session, one original, one video) are never split. Everything that is chosen is chosen again in every fold.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from demerit.data.arrays import Floats, Ints
from demerit.data.files import plain
from demerit.data.reward import Reward
from demerit.data.splits import mark_episode
from demerit.decide.threshold import Threshold, affordable_risk, conformal_threshold, failures_needed
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.success import auroc
from demerit.models.protocol import ModelCard
from demerit.models.taught.head import TaughtHead, probability
from demerit.models.taught.model import JOIN, KIND
from demerit.training.calibration import fit_logistic
from demerit.training.teach.data import TeachConfig
from demerit.training.teach.features import EmbeddedEpisode
from demerit.training.teach.fit import FitExample, fit_head
from demerit.training.teach.training_set import TrainingSet

FEWEST_GROUPS = 2
CURVE_SIZES = (2, 4, 8, 16, 32, 64, 128, 256)
CURVE_REPEATS = 3
MOST_CURVE_FITS = 30
CLIP_WEIGHT = 0.25
"""weight of all clips of one success, as failures, against a real episode"""
CUES = "taught-cues"
CUE_FRAMES = 100.0
"""frames that count as one unit of elapsed time"""
DEFAULT_RISK, HIGHEST_RISK = 0.05, 0.25
"""the share of failures that may be called a success; with few failures up to the higher one"""
ONE_SIDED = (
    "No false-positive risk is promised: one of the two looks (robots, scenes or cameras) has no labelled failure."
)
NO_SUCCESS = "No false-positive risk is promised: no success is labelled, so what one looks like is not known."
NOT_HELD_OUT = "it was not held out: the training set was too small, or teaching was interrupted"


# Cross-validation


@dataclass(eq=False)
class CrossValidation:
    """Predictions for held-out examples, and the heads that made them."""

    fold: Ints
    """the fold of each example, -1 = none"""
    outputs: dict[int, Floats] = field(default_factory=dict)
    """by example: (frames used, 2), from the head that never saw the example's group"""
    heads: list[TaughtHead] = field(default_factory=list)
    by_episode: bool = False
    """there is only one group, so episodes were held out instead: optimistic"""

    def final_scores(self) -> tuple[list[int], Floats]:
        """Return the examples and their success scores at the last frame."""
        indices = sorted(self.outputs)
        return indices, np.array([float(self.scores(index)[-1]) for index in indices])

    def scores(self, index: int) -> Floats:
        """Return the success score of an example at every frame used."""
        head: TaughtHead = self.heads[self.fold[index]]
        return head.score(self.outputs[index])


def assign_folds(groups: Sequence[str], verdicts: Floats, most: int, seed: int) -> Ints:
    """Assign groups to at most `most` folds, balancing successes and failures, large groups first."""
    sizes = Counter(groups)
    count = min(most, len(sizes))
    outcomes: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for group, verdict in zip(groups, verdicts, strict=True):
        outcomes[group][0] += int(verdict == 1)
        outcomes[group][1] += int(verdict == 0)
    lot = {group: place for place, group in enumerate(np.random.default_rng(seed).permutation(sorted(sizes)))}
    order = sorted(sizes, key=lambda group: (-sizes[group], outcomes[group], lot[group]))
    held = np.zeros((count, 3))
    fold = {}
    for group in order:
        mine = np.array([*outcomes[group], sizes[group]], dtype=np.float64)
        # the fold with the fewest episodes of this group's outcomes, then the smallest
        best = min(range(count), key=lambda f: (float(held[f] @ mine) / max(mine.sum(), 1), held[f][2], f))
        held[best] += mine
        fold[group] = best
    return np.array([fold[group] for group in groups], dtype=np.int64)


def cross_validate(
    training_set: TrainingSet, found: CrossValidation, on_fold: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """Hold out one fold after the other and fill `found`; after an interruption it holds the finished folds."""
    groups = list(training_set.groups)
    alone = len(set(groups)) < FEWEST_GROUPS
    names = training_set.recordings if alone else groups
    config = training_set.spec.config
    fold = assign_folds(names, training_set.success, config.folds, config.seed)
    found.fold, found.by_episode = fold, alone
    if len(set(names)) < FEWEST_GROUPS:
        return
    total = int(fold.max()) + 1
    for number in range(total):
        head = training_set.fit(np.flatnonzero(fold != number).tolist())
        for index in np.flatnonzero(fold == number).tolist():
            found.outputs[index] = training_set.outputs(head, index)
        found.heads.append(head)
        on_fold(number + 1, total)


def list_held_out(
    training_set: TrainingSet, held_out: CrossValidation, calibration: SuccessCalibration
) -> list[Reward]:
    """Return the rewards of successes by the heads that were fitted without them, named by the episodes' marks.

    Not of edits, which have their original's marks.
    """
    rewards = []
    for index, outputs in sorted(held_out.outputs.items()):
        embedded = training_set.episodes[index]
        head = replace(held_out.heads[held_out.fold[index]], steep=calibration.steep, middle=calibration.middle)
        columns = [rows.astype(np.float32) for rows in (head.value(outputs), head.success(outputs))]
        if training_set.labels[index].verdict and not embedded.episode.edits and np.isfinite(columns).all():
            rewards.append(Reward(KIND, JOIN.join(mark_episode(embedded.episode)), embedded.at, *columns))
    return rewards


@dataclass(frozen=True)
class CurvePoint:
    """Quality on held-out groups after teaching on `groups` groups."""

    groups: int
    auroc: float
    error: float
    """mean distance to known progress at the last frame"""


def learning_curve(training_set: TrainingSet) -> list[CurvePoint]:
    """Teach on 2, 4, 8 ... groups and test on the others: by the closed form, since one reader has seen them all."""
    training_set = replace(training_set, read={})
    names = sorted(set(training_set.groups))
    fits = 0
    points = []
    rng = np.random.default_rng(training_set.spec.config.seed)
    for size in CURVE_SIZES:
        if size > len(names) // 2 or fits >= MOST_CURVE_FITS:
            break
        rounds = []
        for _ in range(CURVE_REPEATS):
            chosen = set(rng.permutation(names)[:size].tolist())
            inside = [i for i, group in enumerate(training_set.groups) if group in chosen]
            highest = [training_set.targets[i].highest for i in inside]
            if not max((value for value in highest if not np.isnan(value)), default=0.0) > 1 / 2:
                continue  # nothing gets far enough to learn from
            head = training_set.fit(inside)
            fits += 1
            outside = [i for i, group in enumerate(training_set.groups) if group not in chosen]
            rounds.append(_measure(training_set, head, outside))
        if rounds:
            points.append(CurvePoint(size, *(_mean(column) for column in np.array(rounds).T)))
    return points


def _mean(values: Floats) -> float:
    numbers = values[~np.isnan(values)]
    return float(numbers.mean()) if len(numbers) else float("nan")


def _measure(training_set: TrainingSet, head: TaughtHead, indices: Sequence[int]) -> tuple[float, float]:
    final = np.array([float(head.value(training_set.outputs(head, index)[-1])) for index in indices])
    ends = [training_set.labels[index].end for index in indices]
    truth = np.array([math.nan if end is None else end for end in ends])
    area = auroc(final, training_set.success[list(indices)]).measure(Resampling(resamples=1))
    is_known = ~np.isnan(truth)
    return area.value, float(np.abs(final - truth)[is_known].mean()) if is_known.any() else math.nan


@dataclass(frozen=True)
class CameraFigure:
    """How well held-out episodes are told apart by the same heads, shown only some of the cameras."""

    cameras: tuple[str, ...]
    auroc: float
    """NaN without a success and a failure"""
    episodes: int
    """those with all of these cameras and a verdict"""


def measure_cameras(training_set: TrainingSet, held_out: CrossValidation, head: TaughtHead) -> list[CameraFigure]:
    """Measure each camera alone, then all together; nothing when there is only one. `head` gives the scale."""
    names = training_set.spec.cameras
    figures = []
    for chosen in [*((name,) for name in names), names] if len(names) > 1 else []:
        indices = [
            index
            for index in sorted(held_out.outputs)
            if set(chosen) <= set(training_set.episodes[index].tower) and not np.isnan(training_set.success[index])
        ]
        final = []
        for index in indices:
            x = training_set.x(index)[-1:].reshape(len(names), -1)
            x[[name not in chosen for name in names]] = np.nan
            fold = held_out.heads[held_out.fold[index]]
            read = training_set.mean_read(index, chosen)
            last = None if read is None else read[-1:]
            final.append(head.value(fold.outputs(x.reshape(1, -1), training_set.task(index), last))[0])
        area = auroc(np.array(final), training_set.success[indices]).measure(Resampling(resamples=1)).value
        figures.append(CameraFigure(chosen, area, len(indices)))
    return figures


# Calibrated success


@dataclass(frozen=True)
class SuccessCalibration:
    """How scores become probabilities, the threshold for success, and its false-positive guarantee."""

    steep: float
    middle: float
    risk: float
    threshold: float | None
    """p(success) from which success is reported; None = too few failures for a guarantee"""
    failures: int
    """held-out failures the guarantee is based on"""
    successes: int
    needed: int
    """failures needed for this risk"""
    caught: float
    """share of held-out successes above the threshold; NaN when there is no threshold"""
    made_up: int
    """clips of successes used as failures to fit the probabilities"""
    note: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return dict(plain(self))


def calibrate_success(
    training_set: TrainingSet, held_out: CrossValidation, risk: float | None = None
) -> SuccessCalibration:
    """Fit probabilities to held-out episodes; find the threshold that at most a share `risk` of failures passes."""
    indices, scores = held_out.final_scores()
    verdict = training_set.success[indices] if indices else np.zeros(0)
    is_known = ~np.isnan(verdict)
    clips = np.concatenate(
        [
            *(
                held_out.scores(index)[training_set.unfinished_frames(index)]
                for index in held_out.outputs
                if training_set.labels[index].verdict
            ),
            np.zeros(0),
        ]
    )
    labels = np.concatenate([verdict[is_known], np.zeros(len(clips))])
    clip_weight = CLIP_WEIGHT * max(1, int((verdict == 1).sum())) / max(1, len(clips))
    weights = np.concatenate([np.ones(int(is_known.sum())), np.full(len(clips), clip_weight)])
    steep, middle = fit_logistic(np.concatenate([scores[is_known], clips]), labels, weights)
    failed = _scores_of_failures(training_set, indices, scores)
    looks = zip(training_set.looks, training_set.success, strict=True)
    one_sided = len(set(training_set.looks)) > len({look for look, outcome in looks if outcome == 0})
    no_success = not (training_set.success == 1).any()
    if one_sided or no_success:  # failures of another robot say nothing about this one's
        failed = np.zeros(0)
    risk = default_risk(len(failed)) if risk is None else risk
    labelled = len({r for r, s in zip(training_set.recordings, training_set.success, strict=True) if s == 0})
    bounds = conformal_threshold(failed, risk)
    needed = failures_needed(risk)
    threshold = _as_probability(bounds.at, steep, middle) if bounds.enough else None
    good = scores[verdict == 1]
    caught = float((good >= bounds.at).mean()) if len(good) and bounds.enough else math.nan
    note = describe_guarantee(bounds, needed, held_out.by_episode, labelled)
    if labelled and (one_sided or no_success):
        note = NO_SUCCESS if no_success else ONE_SIDED
    return SuccessCalibration(
        steep, middle, risk, threshold, bounds.episodes, len(good), needed, caught, len(clips), note
    )


def _scores_of_failures(training_set: TrainingSet, indices: Sequence[int], scores: Floats) -> Floats:
    """Return the highest score of each failure; copies count once."""
    highest: dict[str, float] = {}
    for index, score in zip(indices, scores.tolist(), strict=True):
        if training_set.success[index] == 0:
            name = training_set.recordings[index]
            highest[name] = max(score, highest.get(name, -math.inf))
    return np.array(list(highest.values()))


def default_risk(failures: int) -> float:
    """Return 5%, or the smallest risk that so few failures can guarantee when that is at most 25%."""
    smallest = affordable_risk(failures)
    return max(DEFAULT_RISK, smallest) if smallest <= HIGHEST_RISK else DEFAULT_RISK


def describe_guarantee(bounds: Threshold, needed: int, by_episode: bool, labelled: int) -> str:
    """Describe the false-positive guarantee, or why there is none and what it would take.

    Of the `labelled` failures, an interrupted run has held out only some.
    """
    if not bounds.episodes:
        return (
            f"No false-positive risk is promised: no labelled failure was held out, and {bounds.risk:g} needs "
            f"{needed} of them."
        )
    if not bounds.enough and bounds.episodes < labelled:
        return (
            f"No false-positive risk is promised: the run was interrupted when {bounds.episodes} of {labelled} "
            "labelled failures had been held out. Run the same command to resume."
        )
    if not bounds.enough:
        affordable = f"{affordable_risk(bounds.episodes):g}"
        return (
            f"No false-positive risk is promised: a risk of {bounds.risk:g} needs {needed} labelled failures and "
            f"there are {bounds.episodes}. Label {needed - bounds.episodes} more, or ask for --risk {affordable}."
        )
    text = str(bounds.guarantee)
    if bounds.risk > DEFAULT_RISK and bounds.episodes < failures_needed(DEFAULT_RISK):
        text += f" With {failures_needed(DEFAULT_RISK)} labelled failures, {DEFAULT_RISK:.0%} can be guaranteed."
    if by_episode:
        text += " All were recorded together: on another day, with another camera or robot, nothing is promised."
    return text


def _as_probability(score: float, steep: float, middle: float) -> float:
    """Return the threshold as the next larger float32 probability, so that no stored one rounds up to it."""
    above = np.nextafter(np.float32(probability(np.array(score), steep, middle)), np.float32(2))
    return float(min(above, np.float32(1)))


# The cue control


def score_cues(training_set: TrainingSet, held_out: CrossValidation) -> tuple[ModelCard, list[Reward]]:
    """Teach change, motion and elapsed time on the same folds: a control that never sees the task."""
    card = ModelCard(
        name=CUES,
        revision="1",
        licence="Apache-2.0",
        quantity="progress",
        low=0.0,
        high=1.0,
        causal=False,
        comparable=True,
        reads_instruction=False,
        about="Change, motion and elapsed time, taught on the same episodes: what teaching gets without seeing a task.",
    )
    columns = [_cue_columns(embedded) for embedded in training_set.episodes]
    rows = zip(columns, training_set.targets, training_set.groups, strict=True)
    examples = [FitExample(x, targets, group) for x, targets, group in rows]
    config = TeachConfig(kind="linear", seed=training_set.spec.config.seed)
    rewards = [Reward.unscored(CUES, embedded.id, NOT_HELD_OUT) for embedded in training_set.episodes]
    for fold in sorted({int(held_out.fold[index]) for index in held_out.outputs}):
        head = fit_head([examples[i] for i in np.flatnonzero(held_out.fold != fold)], config)
        for index in np.flatnonzero(held_out.fold == fold).tolist():
            embedded = training_set.episodes[index]
            value = head.progress(columns[index]).astype(np.float32)
            rewards[index] = Reward(CUES, embedded.id, embedded.at, value)
    return card, rewards


def _cue_columns(embedded: EmbeddedEpisode) -> Floats:
    controls = sorted(embedded.controls, key=lambda reward: reward.model)
    columns = [np.interp(embedded.at, reward.at, reward.value) for reward in controls]
    return np.stack([*columns, embedded.at / CUE_FRAMES], axis=1)
