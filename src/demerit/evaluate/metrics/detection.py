"""Success detection: AUROC, average precision, F1, over-reward rate and false-positive rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput
from demerit.evaluate.metrics.bootstrap import Additive, Tally, Weighted, empty_tally, mean_tally
from demerit.evaluate.metrics.columns import Bools, Floats, Labels, flags, numbers, pick, rank_codes, ratio

Positive = Literal["success", "failure"]
"""what to detect: episodes with a high score (success) or with a low score (failure)"""


def auroc(scores: npt.ArrayLike, success: npt.ArrayLike, *, clusters: Labels | None = None) -> Tally:
    """Measure the area under the ROC curve: P(score of a success > score of a failure) + 1/2 P(equal).

    Args:
        scores: one number per episode, NaN = unscored.
        success: whether people accepted it, NaN = unknown.
        clusters: the task of each episode; None resamples episodes.
    """
    return _ranked_tally("auroc", scores, success, clusters, _area)


def average_precision(
    scores: npt.ArrayLike, success: npt.ArrayLike, *, positive: Positive = "success", clusters: Labels | None = None
) -> Tally:
    """Measure sum over thresholds of (recall_k - recall_(k-1)) precision_k, where equal scores are one threshold."""
    name = f"average_precision_of_{positive}"
    return _ranked_tally(name, scores, success, clusters, _precision_mean, positive=positive)


def best_f1(
    scores: npt.ArrayLike, success: npt.ArrayLike, *, positive: Positive = "success", clusters: Labels | None = None
) -> Tally:
    """Measure the largest F1 that any threshold reaches *on the same episodes*, which is optimistic."""
    name, note = f"best_f1_of_{positive}", "threshold chosen on the same episodes"
    return _ranked_tally(name, scores, success, clusters, _best_f1, positive=positive, note=note)


def f1(
    scores: npt.ArrayLike,
    success: npt.ArrayLike,
    threshold: float,
    *,
    positive: Positive = "success",
    clusters: Labels | None = None,
) -> Tally:
    """Measure F1 = 2 TP / (2 TP + FP + FN) at a fixed threshold.

    Args:
        scores: one number per episode, NaN = unscored.
        success: whether people accepted it, NaN = unknown.
        threshold: a score at or above it says success, below it failure.
        positive: which of the two is to be detected.
        clusters: the task of each episode; None resamples episodes.
    """
    score, good, kept, missing = _rows(scores, success, clusters)
    said, true = score >= threshold, good
    if _check_positive(positive) == "failure":
        said, true = ~said, ~true
    name = f"f1_of_{positive}"
    cells = [said & true, said & ~true, ~said & true]
    if not any(cell.any() for cell in cells):
        return empty_tally(name, "episodes", missing, f"no {positive} among the episodes or the answers")
    codes, labels = rank_codes(kept, len(score))
    statistic = Additive(np.stack(cells, axis=1).astype(np.float64), _f1_of_sums)
    note = f"threshold {threshold:g}"
    return Tally(name, "episodes", statistic, codes, labels, len(score), missing, counts=_sides(good), note=note)


def over_reward(scores: npt.ArrayLike, success: npt.ArrayLike, *, clusters: Labels | None = None) -> Tally:
    """Measure the over-reward rate: the share of rejected episodes scored at or above the median success.

    #{failures with score >= median(scores of successes)} / #failures. The median is taken again in each resample.
    n counts the rejected episodes.
    """
    name = "over_reward_rate"
    missing_failures = _unscored_failures(scores, success)
    score, good, kept, _ = _rows(scores, success, clusters)
    if good.all() or not good.any():
        return empty_tally(name, "rejected episodes", missing_failures, "needs successes and failures")
    order = np.argsort(score, kind="stable")
    codes, labels = rank_codes(kept, len(score))
    statistic = Weighted(order, _share_at_median(score[order], good[order]))
    sides = _sides(good)
    return Tally(name, "rejected episodes", statistic, codes, labels, sides["failures"], missing_failures, counts=sides)


def false_positive_rate(
    scores: npt.ArrayLike, success: npt.ArrayLike, threshold: float, *, clusters: Labels | None = None
) -> Tally:
    """Measure the share of rejected episodes scored at or above a fixed threshold (see `conformal_threshold`)."""
    missing = _unscored_failures(scores, success)
    score, good, kept, _ = _rows(scores, success, clusters)
    passes = (score[~good] >= threshold).astype(np.float64)
    note = f"threshold {threshold:g}"
    owners = pick(kept, ~good)
    return mean_tally("false_positive_rate", "rejected episodes", passes, owners, unscored=missing, note=note)


Curve = Callable[[Floats, Floats], Floats]
"""hits and false alarms at each threshold, from the highest down, (R, thresholds) each, to values (R,)"""


def _ranked_tally(
    name: str,
    scores: npt.ArrayLike,
    success: npt.ArrayLike,
    clusters: Labels | None,
    curve: Curve,
    *,
    positive: Positive = "success",
    note: str = "",
) -> Tally:
    """Sort once, so that each resample is two running sums over the sorted weights."""
    score, good, kept, missing = _rows(scores, success, clusters)
    if good.all() or not good.any():
        return empty_tally(name, "episodes", missing, "needs successes and failures")
    high, wanted = (-score, ~good) if _check_positive(positive) == "failure" else (score, good)
    order = np.argsort(-high, kind="stable")
    high, wanted = high[order], wanted[order]
    ends = np.flatnonzero(np.append(high[1:] != high[:-1], True))
    ties = _crossing_ties(high, wanted)

    def statistic(weights: Floats) -> Floats:
        hits = np.cumsum(weights * wanted, axis=1)[:, ends]
        alarms = np.cumsum(weights * ~wanted, axis=1)[:, ends]
        return curve(hits, alarms)

    codes, labels = rank_codes(kept, len(score))
    weighted = Weighted(order, statistic)
    facts = (len(score), missing, ties, 0, _sides(good), note)
    return Tally(name, "episodes", weighted, codes, labels, *facts)


def _area(hits: Floats, alarms: Floats) -> Floats:
    before = np.pad(hits, ((0, 0), (1, 0)))[:, :-1]
    new = np.diff(alarms, axis=1, prepend=0.0)
    return ratio((new * (hits + before)).sum(axis=1) / 2, hits[:, -1] * alarms[:, -1])


def _precision_mean(hits: Floats, alarms: Floats) -> Floats:
    precision = np.nan_to_num(ratio(hits, hits + alarms))  # a threshold that no weight reaches adds no recall
    total = (np.diff(hits, axis=1, prepend=0.0) * precision).sum(axis=1)
    return np.where(alarms[:, -1] > 0, ratio(total, hits[:, -1]), np.nan)


def _best_f1(hits: Floats, alarms: Floats) -> Floats:
    scores = ratio(2 * hits, hits + alarms + hits[:, -1:])
    some = (hits[:, -1] > 0) & (alarms[:, -1] > 0)
    return np.where(some, np.nan_to_num(scores).max(axis=1), np.nan)


def _f1_of_sums(sums: Floats) -> Floats:
    return ratio(2 * sums[:, 0], 2 * sums[:, 0] + sums[:, 1] + sums[:, 2])


def _share_at_median(score: Floats, good: Bools) -> Callable[[Floats], Floats]:
    """Return the statistic for rows sorted by rising score."""
    accepted, rejected = score[good], score[~good]

    def statistic(weights: Floats) -> Floats:
        upto = np.cumsum(weights[:, good], axis=1)
        total = upto[:, -1]
        middles = []
        for place in ((total - 1) // 2, total // 2):  # the two middle ones; the same when the total is odd
            index = (upto <= place[:, None]).sum(axis=1)
            middles.append(accepted[np.minimum(index, len(accepted) - 1)])
        median = (middles[0] + middles[1]) / 2
        below = np.pad(np.cumsum(weights[:, ~good], axis=1), ((0, 0), (1, 0)))
        first = np.searchsorted(rejected, median, side="left")
        above = below[:, -1] - below[np.arange(len(below)), first]
        return np.where(total > 0, ratio(above, below[:, -1]), np.nan)

    return statistic


def _rows(
    scores: npt.ArrayLike, success: npt.ArrayLike, clusters: Labels | None
) -> tuple[Floats, Bools, Labels | None, int]:
    score = numbers("scores", scores)
    label = flags("success", success, len(score))
    keep = ~np.isnan(score) & ~np.isnan(label)
    missing = int((np.isnan(score) & ~np.isnan(label)).sum())
    return score[keep], label[keep] == 1, pick(clusters, keep), missing


def _unscored_failures(scores: npt.ArrayLike, success: npt.ArrayLike) -> int:
    score = numbers("scores", scores)
    return int((np.isnan(score) & (flags("success", success, len(score)) == 0)).sum())


def _sides(good: Bools) -> dict[str, int]:
    return {"successes": int(good.sum()), "failures": int((~good).sum())}


def _crossing_ties(high: Floats, wanted: Bools) -> int:
    _, group = np.unique(high, return_inverse=True)
    of = [np.bincount(group.reshape(-1), weights=side, minlength=group.max() + 1) for side in (wanted, ~wanted)]
    return int((of[0] * of[1]).sum())


def _check_positive(positive: Positive) -> Positive:
    if positive not in get_args(Positive):
        raise BadInput("what to detect", "'success' or 'failure'", repr(positive))
    return positive
