"""Success: AUROC, average precision, F1, over-reward, false positives, ECE and Brier score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Bools, Floats, Ints
from demerit.errors import BadInput
from demerit.evaluate.metrics.bootstrap import (
    DEFAULT,
    Additive,
    Labels,
    Resampling,
    Tally,
    Weighted,
    empty_tally,
    flags,
    mean_tally,
    numbers,
    pick,
    rank_codes,
    ratio,
    resampled_totals,
)

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
        threshold: a score at or above it means success, below it failure.
        positive: which of the two is to be detected.
        clusters: the task of each episode; None resamples episodes.
    """
    score, good, kept, missing = _rows(scores, success, clusters)
    answer, true = score >= threshold, good
    if _check_positive(positive) == "failure":
        answer, true = ~answer, ~true
    name = f"f1_of_{positive}"
    cells = [answer & true, answer & ~true, ~answer & true]
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


def over_reward_above(
    scores: npt.ArrayLike, success: npt.ArrayLike, threshold: float, *, clusters: Labels | None = None
) -> Tally:
    """Measure the absolute over-reward rate: the share of rejected episodes scored above a fixed threshold.

    #{failures with score > threshold} / #failures. A model that rewards nothing gets 0, so the counts also tell how
    many successes lie above.
    """
    missing = _unscored_failures(scores, success)
    score, good, kept, _ = _rows(scores, success, clusters)
    above = score > threshold
    counts = {**_sides(good), "successes above": int(above[good].sum())}
    over, owners = above[~good].astype(np.float64), pick(kept, ~good)
    return mean_tally("over_reward_above", "rejected episodes", over, owners, unscored=missing, counts=counts)


def false_positive_rate(
    scores: npt.ArrayLike, success: npt.ArrayLike, threshold: float, *, clusters: Labels | None = None
) -> Tally:
    """Measure the share of rejected episodes scored at or above a fixed threshold (see `decide.threshold`)."""
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
    has_both = (hits[:, -1] > 0) & (alarms[:, -1] > 0)
    return np.where(has_both, np.nan_to_num(scores).max(axis=1), np.nan)


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


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram, one entry per bin; NaN in an empty bin."""

    edges: Floats
    """bins + 1; a bin holds edges[i] <= p < edges[i + 1], the last one also its upper edge"""
    count: Ints
    predicted: Floats
    """mean predicted probability"""
    observed: Floats
    """share of successes"""
    low: Floats
    """interval of the observed share; NaN if unknown"""
    high: Floats
    n: int
    unscored: int


def reliability(
    probability: npt.ArrayLike,
    success: npt.ArrayLike,
    *,
    bins: int = 10,
    clusters: Labels | None = None,
    resampling: Resampling = DEFAULT,
) -> Reliability:
    """Compute the reliability diagram, with an interval for each bin.

    Args:
        probability: predicted probability of success per episode, NaN = unscored.
        success: whether people accepted it, NaN = unknown.
        bins: number of bins of equal width.
        clusters: the task of each episode; None resamples episodes.
        resampling: bootstrap settings.
    """
    p, good, keep, missing = _probability_rows(probability, success)
    edges = bin_edges(bins)
    parts = _bin_parts(p, good, edges)
    size = len(edges) - 1
    sums = parts.sum(axis=0)
    low = high = np.full(size, np.nan)
    codes, labels = rank_codes(pick(clusters, keep), len(p))
    if len(labels) > 1:
        totals = resampled_totals(parts, codes, len(labels), resampling)
        low, high = _column_percentiles(ratio(totals[:, 2 * size :], totals[:, :size]), resampling.level)
    predicted, observed = ratio(sums[size : 2 * size], sums[:size]), ratio(sums[2 * size :], sums[:size])
    return Reliability(edges, sums[:size].astype(np.int64), predicted, observed, low, high, len(p), missing)


def calibration_error(
    probability: npt.ArrayLike,
    success: npt.ArrayLike,
    *,
    bins: int = 10,
    clusters: Labels | None = None,
) -> Tally:
    """Measure ECE = sum over bins of (n_b / n) |mean predicted - share of successes|.

    Bins are fixed before resampling. ECE is an absolute value, so noise pushes it up, and again in the resamples: the
    interval may lie above the value of a well calibrated model.
    """
    p, good, keep, missing = _probability_rows(probability, success)
    name = "ece_equal_width"
    edges = bin_edges(bins)
    if not len(p):
        return empty_tally(name, "episodes", missing, "no scored and judged episode")
    codes, labels = rank_codes(pick(clusters, keep), len(p))
    return Tally(name, "episodes", Additive(_bin_parts(p, good, edges), _ece), codes, labels, len(p), missing)


def brier(probability: npt.ArrayLike, success: npt.ArrayLike, *, clusters: Labels | None = None) -> Tally:
    """Measure the Brier score, mean (p - success)^2: 0 is perfect, a constant 1/2 gets 1/4."""
    p, good, keep, missing = _probability_rows(probability, success)
    return mean_tally("brier", "episodes", (p - good) ** 2, pick(clusters, keep), unscored=missing)


def bin_edges(bins: int) -> Floats:
    """Return the edges of equal-width bins over 0..1."""
    if bins < 1:
        raise BadInput("bins", "at least 1", bins)
    return np.linspace(0.0, 1.0, bins + 1)


def _bin_parts(p: Floats, good: Floats, edges: Floats) -> Floats:
    which = np.searchsorted(edges[1:-1], p, side="right")
    member = np.eye(len(edges) - 1)[which]
    return np.concatenate([member, member * p[:, None], member * good[:, None]], axis=1)


def _ece(sums: Floats) -> Floats:
    size = sums.shape[1] // 3
    off = np.abs(sums[:, size : 2 * size] - sums[:, 2 * size :]).sum(axis=1)
    return ratio(off, sums[:, :size].sum(axis=1))


def _column_percentiles(draws: Floats, level: float) -> tuple[Floats, Floats]:
    ends = np.full((2, draws.shape[1]), np.nan)
    for i, column in enumerate(draws.T):
        defined = column[~np.isnan(column)]
        if len(defined):
            ends[:, i] = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return ends[0], ends[1]


def _probability_rows(probability: npt.ArrayLike, success: npt.ArrayLike) -> tuple[Floats, Floats, Bools, int]:
    p = numbers("probability", probability)
    label = flags("success", success, len(p))
    chances = p[~np.isnan(p)]
    if chances.size and (chances.min() < 0 or chances.max() > 1):
        raise BadInput("probability", "numbers from 0 to 1 (calibration is about probabilities)", "one outside")
    keep = ~np.isnan(p) & ~np.isnan(label)
    return p[keep], label[keep], keep, int((np.isnan(p) & ~np.isnan(label)).sum())
