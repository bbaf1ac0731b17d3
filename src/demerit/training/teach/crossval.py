"""Predictions of episodes that were left out: what every figure of a lesson rests on.

Groups (one session, one original, one video) are never cut. Everything that is chosen is chosen anew in every fold.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from demerit.evaluate.metrics import Measure, Resampling
from demerit.evaluate.metrics.detection import auroc
from demerit.models.taught.head import Floats, Head, success_score
from demerit.training.teach.lesson import Lesson

FEWEST_GROUPS = 2
CURVE_SIZES = (2, 4, 8, 16, 32, 64, 128, 256)
CURVE_REPEATS = 3


@dataclass(eq=False)
class CrossValidated:
    """Predictions of left-out examples, and the heads that made them."""

    fold: npt.NDArray[np.int64]
    """the fold of each example, -1 where none"""
    outputs: dict[int, Floats] = field(default_factory=dict)
    """by place: (frames looked at, 2), from the head that never saw the example's group"""
    heads: list[Head] = field(default_factory=list)
    by_episode: bool = False
    """there is one group only, so that episodes were left out instead: optimistic"""

    def ends(self) -> tuple[list[int], Floats]:
        """Places and success scores at the last frame."""
        places = sorted(self.outputs)
        return places, np.array([float(success_score(self.outputs[place][-1])) for place in places])


def folds_of(groups: Sequence[str], verdicts: Floats, most: int, seed: int) -> npt.NDArray[np.int64]:
    """Deal groups into at most `most` folds, successes and failures evenly, large groups first."""
    sizes = Counter(groups)
    count = min(most, len(sizes))
    good: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for group, verdict in zip(groups, verdicts, strict=True):
        good[group][0] += int(verdict == 1)
        good[group][1] += int(verdict == 0)
    lot = {group: place for place, group in enumerate(np.random.default_rng(seed).permutation(sorted(sizes)))}
    order = sorted(sizes, key=lambda one: (-sizes[one], good[one], lot[one]))
    held = np.zeros((count, 3))
    fold = {}
    for group in order:
        mine = np.array([*good[group], sizes[group]], dtype=np.float64)
        # the fold in which what this group brings is rarest, then the smallest one
        best = min(range(count), key=lambda f: (float(held[f] @ mine) / max(mine.sum(), 1), held[f][2], f))
        held[best] += mine
        fold[group] = best
    return np.array([fold[group] for group in groups], dtype=np.int64)


def cross_validate(
    lesson: Lesson,
    on_fold: Callable[[int, int], None] = lambda done, total: None,
    into: CrossValidated | None = None,
) -> CrossValidated:
    """Leave folds out one after the other. Interrupted, `into` holds the folds that were done."""
    groups = list(lesson.groups)
    alone = len(set(groups)) < FEWEST_GROUPS
    names = [one.id for one in lesson.seen] if alone else groups
    settings = lesson.room.settings
    fold = folds_of(names, lesson.success, settings.folds, settings.seed)
    found = into if into is not None else CrossValidated(fold)
    found.fold, found.by_episode = fold, alone
    total = int(fold.max()) + 1
    if len(names) < FEWEST_GROUPS:
        return found
    for number in range(total):
        out = np.flatnonzero(fold == number)
        head = lesson.fit(np.flatnonzero(fold != number).tolist())
        for place in out.tolist():
            found.outputs[place] = lesson.outputs(head, place)
        found.heads.append(head)
        on_fold(number + 1, total)
    return found


@dataclass(frozen=True)
class CurvePoint:
    """How good a lesson of so many groups is, on the groups left out."""

    groups: int
    auroc: float
    error: float
    """mean distance to known progress at the last frame"""


def learning_curve(lesson: Lesson, most_fits: int = 30) -> list[CurvePoint]:
    """Teach with ever more groups and look at the others: does more help?"""
    names = sorted(set(lesson.groups))
    fits = 0
    points = []
    rng = np.random.default_rng(lesson.room.settings.seed)
    for size in CURVE_SIZES:
        if size > len(names) // 2 or fits >= most_fits:
            break
        rounds = []
        for _ in range(CURVE_REPEATS):
            chosen = set(rng.permutation(names)[:size].tolist())
            inside = [i for i, group in enumerate(lesson.groups) if group in chosen]
            if not _teachable(lesson, inside):
                continue
            head = lesson.fit(inside)
            fits += 1
            outside = [i for i, group in enumerate(lesson.groups) if group not in chosen]
            rounds.append(_quality(lesson, head, outside))
        if rounds:
            points.append(CurvePoint(size, *(_mean(column) for column in np.array(rounds).T)))
    return points


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _teachable(lesson: Lesson, places: Sequence[int]) -> bool:
    highest = [lesson.targets[i].highest for i in places]
    return bool(places) and max((one for one in highest if not np.isnan(one)), default=0.0) > 1 / 2


def _quality(lesson: Lesson, head: Head, places: Sequence[int]) -> tuple[float, float]:
    final = np.array([float(head.value(lesson.outputs(head, place)[-1])) for place in places])
    truth = np.array([_end(lesson, place) for place in places])
    area: Measure = auroc(final, lesson.success[list(places)], resampling=Resampling(resamples=1))
    known = ~np.isnan(truth)
    error = float(np.abs(final - truth)[known].mean()) if known.any() else float("nan")
    return area.value, error


def _end(lesson: Lesson, place: int) -> float:
    end = lesson.labels[place].end
    return float("nan") if end is None else end
