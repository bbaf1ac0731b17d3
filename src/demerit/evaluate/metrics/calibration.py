"""Calibration: of the episodes given 70%, do 70% succeed? Reliability bins, ECE and Brier score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

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
from demerit.evaluate.metrics.measure import Measure

Bins = Literal["width", "mass"]
"""bins of equal width, or of (nearly) equal numbers of episodes"""


@dataclass(frozen=True, eq=False)
class Reliability:
    """The points of a reliability diagram, an entry per bin; NaN in an empty bin."""

    edges: Floats
    """one more than bins; a bin holds edges[i] <= p < edges[i + 1], the last one also its upper edge"""
    count: Ints
    predicted: Floats
    """mean predicted probability"""
    observed: Floats
    """share of successes"""
    low: Floats
    """interval of the observed share; NaN when it cannot be known"""
    high: Floats
    n: int
    unscored: int


def reliability(
    probability: npt.ArrayLike,
    success: npt.ArrayLike,
    *,
    bins: int = 10,
    by: Bins = "width",
    clusters: Labels | None = None,
    resampling: Resampling = DEFAULT,
) -> Reliability:
    """Compute the reliability diagram, with an interval for each bin.

    Args:
        probability: predicted probability of success per episode, NaN = unscored.
        success: whether people accepted it, NaN = unknown.
        bins: how many bins; equal-mass bins are fewer where many episodes share a value.
        by: width or mass.
        clusters: the task of each episode; None resamples episodes.
        resampling: how the interval is made.
    """
    p, good, keep, missing = _rows(probability, success)
    edges = bin_edges(p, bins, by)
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
    by: Bins = "width",
    clusters: Labels | None = None,
    resampling: Resampling = DEFAULT,
) -> Measure:
    """Measure ECE = sum over bins of (n_b / n) |mean predicted - share of successes|.

    Bins are fixed before resampling. ECE is an absolute value: noise pushes it up, in resamples once more, so the
    interval may lie above the value of a well calibrated model.
    """
    return calibration_tally(probability, success, bins=bins, by=by, clusters=clusters).measure(resampling)


def calibration_tally(
    probability: npt.ArrayLike,
    success: npt.ArrayLike,
    *,
    bins: int = 10,
    by: Bins = "width",
    clusters: Labels | None = None,
) -> Tally:
    """Count the evidence for `calibration_error`: three sums per bin."""
    p, good, keep, missing = _rows(probability, success)
    name = f"ece_equal_{by}"
    edges = bin_edges(p, bins, by)
    if not len(p):
        return empty_tally(name, "episodes", missing, "no scored and judged episode")
    codes, labels = rank_codes(pick(clusters, keep), len(p))
    return Tally(name, "episodes", Additive(_bin_parts(p, good, edges), _ece), codes, labels, len(p), missing)


def brier(
    probability: npt.ArrayLike,
    success: npt.ArrayLike,
    *,
    clusters: Labels | None = None,
    resampling: Resampling = DEFAULT,
) -> Measure:
    """Measure the Brier score, mean (p - success)^2: 0 is perfect, a constant 1/2 gets 1/4."""
    return brier_tally(probability, success, clusters=clusters).measure(resampling)


def brier_tally(probability: npt.ArrayLike, success: npt.ArrayLike, *, clusters: Labels | None = None) -> Tally:
    """Count the evidence for `brier`."""
    p, good, keep, missing = _rows(probability, success)
    return mean_tally("brier", "episodes", (p - good) ** 2, pick(clusters, keep), unscored=missing)


def bin_edges(p: Floats, bins: int, by: Bins) -> Floats:
    """Return the edges of the bins over 0..1; equal values are never split between two bins of equal mass."""
    if bins < 1:
        raise BadInput("bins", "at least 1", bins)
    if by not in get_args(Bins):
        raise BadInput("bins", "of equal 'width' or equal 'mass'", repr(by))
    if by == "width" or not len(p):
        return np.linspace(0.0, 1.0, bins + 1)
    ranked = np.sort(p)
    starts = ranked[(np.arange(1, bins) * len(p)) // bins]
    return np.concatenate([[0.0], np.unique(starts[(starts > ranked[0]) & (starts < 1.0)]), [1.0]])


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
