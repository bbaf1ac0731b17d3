"""Calibration: reliability bins, ECE, Brier score, and conformal thresholds that bound the false-positive rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput
from demerit.evaluate.metrics.bootstrap import (
    DEFAULT,
    Additive,
    Resampling,
    Tally,
    empty_tally,
    mean_tally,
    resampled_totals,
)
from demerit.evaluate.metrics.columns import Bools, Floats, Ints, Labels, flags, numbers, pick, rank_codes, ratio


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
    p, good, keep, missing = _rows(probability, success)
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
    p, good, keep, missing = _rows(probability, success)
    name = "ece_equal_width"
    edges = bin_edges(bins)
    if not len(p):
        return empty_tally(name, "episodes", missing, "no scored and judged episode")
    codes, labels = rank_codes(pick(clusters, keep), len(p))
    return Tally(name, "episodes", Additive(_bin_parts(p, good, edges), _ece), codes, labels, len(p), missing)


def brier(probability: npt.ArrayLike, success: npt.ArrayLike, *, clusters: Labels | None = None) -> Tally:
    """Measure the Brier score, mean (p - success)^2: 0 is perfect, a constant 1/2 gets 1/4."""
    p, good, keep, missing = _rows(probability, success)
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


def _rows(probability: npt.ArrayLike, success: npt.ArrayLike) -> tuple[Floats, Floats, Bools, int]:
    p = numbers("probability", probability)
    label = flags("success", success, len(p))
    known = p[~np.isnan(p)]
    if known.size and (known.min() < 0 or known.max() > 1):
        raise BadInput("probability", "numbers from 0 to 1 (calibration is about probabilities)", "one outside")
    keep = ~np.isnan(p) & ~np.isnan(label)
    return p[keep], label[keep], keep, int((np.isnan(p) & ~np.isnan(label)).sum())


@dataclass(frozen=True)
class ConformalThreshold:
    """Call an episode a success when its score reaches `threshold`."""

    threshold: float
    """+inf if there are too few calibration failures for a guarantee: then nothing passes"""
    alpha: float
    n: int
    """scored calibration failures"""
    unscored: int

    @property
    def enough(self) -> bool:
        """Whether there were enough failures for a threshold below infinity."""
        return math.isfinite(self.threshold)


def failures_needed(risk: float) -> int:
    """Return how many calibration failures a threshold at this risk needs: with fewer, it is +inf."""
    return math.ceil(1 / risk - 1e-9) - 1


def affordable_risk(failures: int) -> float:
    """Return the smallest risk that this many calibration failures can guarantee, rounded up to two digits."""
    return math.ceil(100 / (failures + 1) - 1e-9) / 100


def conformal_threshold(failures: npt.ArrayLike, alpha: float) -> ConformalThreshold:
    """Calibrate a threshold t so that P(score >= t | failure) <= alpha for a new failure.

    With n calibration scores s_(1) <= ... <= s_(n) and k = n + 1 - floor(alpha (n + 1)): t is the next number above
    s_(k), and +inf when k > n. A new exchangeable failure exceeds s_(k) with a probability of at most
    1 - k / (n + 1) <= alpha, ties or not. The guarantee needs exchangeable failures: it does not carry over to other
    tasks, robots or cameras, and it holds on average over calibration sets.

    Args:
        failures: scores of human-rejected episodes that are not among the test episodes, NaN = unscored.
        alpha: the allowed share of failures that pass, between 0 and 1.
    """
    if not 0 < alpha < 1:
        raise BadInput("risk alpha", "a number between 0 and 1", alpha)
    scores = numbers("scores of calibration failures", failures)
    known = np.sort(scores[~np.isnan(scores)])
    n = len(known)
    rank = n + 1 - math.floor(alpha * (n + 1) + 1e-9)  # the slack undoes rounding: 0.29 * 100 is below 29
    threshold = math.inf if rank > n else float(np.nextafter(known[rank - 1], np.inf))
    return ConformalThreshold(threshold, alpha, n, len(scores) - n)
