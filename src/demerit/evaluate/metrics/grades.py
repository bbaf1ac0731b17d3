"""Error on grades 1..5, and maps from a continuous value to a grade."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Floats, Ints
from demerit.errors import BadInput
from demerit.evaluate.metrics.bootstrap import (
    Additive,
    Labels,
    Tally,
    cluster_sums,
    empty_tally,
    mean_tally,
    numbers,
    pick,
    rank_codes,
    ratio,
)

GRADES = 5


def grade_by_range(values: npt.ArrayLike, low: float | None, high: float | None) -> Floats:
    """Map values of a known range to grades: p = (v - low) / (high - low), grade = floor(1 + 4p + 1/2).

    That is 1 + 4p rounded, halves up: the grades 2, 3 and 4 are each a quarter of the range wide, 1 and 5 an eighth.
    NaN stays NaN: an unscored episode has no grade.

    Args:
        values: one number per episode.
        low: the smallest possible value, from the model's card.
        high: the largest possible value, from the model's card.
    """
    if low is None or high is None or not low < high:
        expected = "two bounds, low < high (or fit_thresholds on a validation split)"
        raise BadInput("range of the values", expected, (low, high))
    share = (numbers("values", values) - low) / (high - low)
    slack = 1e-6
    scored_share = share[~np.isnan(share)]
    if scored_share.size and (scored_share.min() < -slack or scored_share.max() > 1 + slack):
        raise BadInput("values", f"numbers from {low:g} to {high:g}", "one outside")
    return np.clip(np.floor(1 + (GRADES - 1) * share + 0.5), 1, GRADES)


@dataclass(frozen=True)
class Thresholds:
    """A monotone map from value to grade: 1 + the number of cuts that the value reaches."""

    cuts: tuple[float, float, float, float]
    error: float
    """mean absolute error on the episodes that the cuts were fitted to"""
    n: int

    def __post_init__(self) -> None:
        """Check that the cuts do not fall."""
        if list(self.cuts) != sorted(self.cuts):
            raise BadInput("cuts", "four numbers that do not fall", self.cuts)

    def grade(self, values: npt.ArrayLike) -> Floats:
        """Grade each value; NaN stays NaN."""
        column = numbers("values", values)
        grades = 1.0 + np.searchsorted(np.array(self.cuts), column, side="right")
        return np.where(np.isnan(column), np.nan, grades)


def fit_thresholds(values: npt.ArrayLike, grades: npt.ArrayLike, subsets: Labels | None = None) -> Thresholds:
    """Find the cuts with the least mean absolute error on a validation split, exactly.

    Dynamic programme over the sorted distinct values u_1 < u_2 < ... :
    best(i, g) = cost(i, g) + min over h <= g of best(i - 1, h), cost(i, g) = sum of w |g - grade| where v = u_i.
    No grid: every monotone map is among the candidates. Among equals the lowest grades win.

    Args:
        values: one number per episode; NaN rows are skipped.
        grades: human grades, 1..5; NaN rows are skipped.
        subsets: if given, the group-wise error is minimised (each subset has the same weight).
    """
    predicted = numbers("values", values)
    truth = _grades("grades", grades, len(predicted))
    keep = ~np.isnan(predicted) & ~np.isnan(truth)
    if not keep.any():
        raise BadInput("validation split", "at least one scored and graded episode", "none")
    codes, labels = rank_codes(["all"] * int(keep.sum()) if subsets is None else pick(subsets, keep), int(keep.sum()))
    weight = 1.0 / np.bincount(codes)[codes] / len(labels)
    distinct, group = np.unique(predicted[keep], return_inverse=True)
    levels = np.arange(1, GRADES + 1)
    away = np.abs(levels[None, :] - truth[keep][:, None]) * weight[:, None]
    cost = cluster_sums(away, group.reshape(-1), len(distinct))
    assigned, error = _monotone(cost)
    return Thresholds(_cuts(distinct, assigned), error, int(keep.sum()))


def grade_error(predicted: npt.ArrayLike, truth: npt.ArrayLike, *, clusters: Labels | None = None) -> Tally:
    """Measure the plain mean absolute error, sum |predicted - truth| / n; an unscored episode is not an error."""
    guess = numbers("predicted grades", predicted)
    grades = _grades("grades", truth, len(guess))
    judged = ~np.isnan(grades)
    return mean_tally("mae", "episodes", np.abs(guess - grades)[judged], pick(clusters, judged))


def group_wise_error(
    predicted: npt.ArrayLike, truth: npt.ArrayLike, subsets: Labels, *, clusters: Labels | None = None
) -> Tally:
    """Measure the group-wise mean absolute error of RoboReward: the mean over subsets of each subset's MAE.

    A subset that is not in a resample is skipped in that resample's mean.

    Args:
        predicted: the model's grades, NaN = unscored.
        truth: human grades 1..5, NaN = unlabelled.
        subsets: the subset of each episode.
        clusters: the task of each episode; None resamples episodes.
    """
    guess = numbers("predicted grades", predicted)
    grades = _grades("grades", truth, len(guess))
    judged, scored = ~np.isnan(grades), ~np.isnan(guess)
    keep = judged & scored
    missing = int((judged & ~scored).sum())
    if not keep.any():
        return empty_tally("mae_group_wise", "episodes", missing, "no scored and graded episode")
    group, names = rank_codes(pick(subsets, keep), int(keep.sum()), "subsets")
    member = np.eye(len(names))[group]
    off = np.abs(guess - grades)[keep]
    codes, labels = rank_codes(pick(clusters, keep), len(off))
    parts = np.concatenate([member * off[:, None], member], axis=1)
    unscored_subsets = len(set(pick(subsets, judged) or [])) - len(names)
    note = f"{unscored_subsets} subsets wholly unscored" if unscored_subsets else ""
    statistic = Additive(parts, _mean_of_ratios)
    counts = {"subsets": len(names), "unscored subsets": unscored_subsets}
    return Tally("mae_group_wise", "episodes", statistic, codes, labels, len(off), missing, counts=counts, note=note)


def _grades(name: str, values: npt.ArrayLike, length: int) -> Floats:
    column = numbers(name, values, length)
    if not bool(np.isin(column[~np.isnan(column)], np.arange(1, GRADES + 1)).all()):
        raise BadInput(name, "whole numbers from 1 to 5 (NaN = not judged)", "others")
    return column


def _mean_of_ratios(sums: Floats) -> Floats:
    half = sums.shape[1] // 2
    each = ratio(sums[:, :half], sums[:, half:])
    is_defined = ~np.isnan(each)
    return ratio(np.where(is_defined, each, 0.0).sum(axis=1), is_defined.sum(axis=1).astype(np.float64))


def _monotone(cost: Floats) -> tuple[Ints, float]:
    """Choose a non-falling column for each row with the least total cost."""
    best = np.empty_like(cost)
    came = np.zeros(cost.shape, dtype=np.int64)
    best[0] = cost[0]
    for i in range(1, len(cost)):
        for g in range(cost.shape[1]):
            came[i, g] = int(np.argmin(best[i - 1, : g + 1]))
            best[i, g] = cost[i, g] + best[i - 1, came[i, g]]
    path = np.empty(len(cost), dtype=np.int64)
    path[-1] = int(np.argmin(best[-1]))
    for i in range(len(cost) - 1, 0, -1):
        path[i - 1] = came[i, path[i]]
    return path + 1, float(best[-1].min())


def _cuts(distinct: Floats, assigned: Ints) -> tuple[float, float, float, float]:
    """Put each cut half-way between the last value below it and the first one above."""
    cuts = []
    for grade in range(2, GRADES + 1):
        first = int(np.searchsorted(assigned, grade))
        if first == len(distinct):
            cuts.append(np.inf)
        elif first == 0:
            cuts.append(-np.inf)
        else:
            middle = distinct[first - 1] / 2 + distinct[first] / 2
            # neighbouring floats have no number between them: the half-way point may round down to the lower one
            cuts.append(float(middle if middle > distinct[first - 1] else distinct[first]))
    return (cuts[0], cuts[1], cuts[2], cuts[3])
