"""Value-order correlation (VOC): does the value rise with time? By Pearson and by Spearman, never under one name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput
from demerit.evaluate.metrics.bootstrap import DEFAULT, Resampling, Tally, mean_tally
from demerit.evaluate.metrics.columns import Floats, Labels, average_ranks, numbers, pick
from demerit.evaluate.metrics.measure import Measure

Method = Literal["pearson", "spearman"]
Shown = Literal["in_order", "reversed", "shuffled"]
"""how the frames were presented to the model"""


@dataclass(frozen=True, eq=False)
class Correlations:
    """One correlation per episode; NaN is either unscored or undefined, and which of the two is kept."""

    value: Floats
    unscored: npt.NDArray[np.bool_]
    undefined: npt.NDArray[np.bool_]


def pearson(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Return sum (x - mx)(y - my) / sqrt(sum (x - mx)^2 sum (y - my)^2); NaN when x or y is constant or too short."""
    first = numbers("x", x)
    second = numbers("y", y, len(first))
    if len(first) < 2 or first.min() == first.max() or second.min() == second.max():  # noqa: PLR2004
        return float("nan")
    # scaling by the spread first keeps the squares from under- or overflowing
    a, b = ((v - v.mean()) / np.ptp(v) for v in (first, second))
    return float(np.clip((a @ b) / np.sqrt((a @ a) * (b @ b)), -1.0, 1.0))


def spearman(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Return Pearson's correlation of the ranks; equal values share their average rank."""
    return pearson(average_ranks(numbers("x", x)), average_ranks(numbers("y", y)))


def order_correlations(
    values: Sequence[npt.ArrayLike], times: Sequence[npt.ArrayLike] | None = None, method: Method = "pearson"
) -> Correlations:
    """Correlate each episode's values with the true time of the frames they were given to.

    Args:
        values: per episode, one value per presented frame, in the order of presentation. One missing value makes the
            episode unscored: a correlation over the rest would be about other frames than it says.
        times: per episode, the true index of each presented frame (for a reversed video T-1, ..., 0; for shuffled
            frames the permutation). None: presented in order, 0, 1, ...
        method: pearson or spearman.
    """
    if method not in get_args(Method):
        raise BadInput("correlation", "'pearson' or 'spearman'", repr(method))
    if times is not None and len(times) != len(values):
        raise BadInput("times", f"one array for each of {len(values)} episodes", len(times))
    correlate = pearson if method == "pearson" else spearman
    value, unscored, undefined = [], [], []
    for i, one in enumerate(values):
        column = numbers("values", one)
        when = np.arange(len(column)) if times is None else numbers("times", times[i], len(column))
        missing = not len(column) or bool(np.isnan(column).any())
        found = float("nan") if missing else correlate(column, when)
        value.append(found)
        unscored.append(missing)
        undefined.append(not missing and bool(np.isnan(found)))
    return Correlations(np.array(value, dtype=np.float64), np.array(unscored, bool), np.array(undefined, bool))


def value_order_correlation(
    values: Sequence[npt.ArrayLike],
    times: Sequence[npt.ArrayLike] | None = None,
    *,
    method: Method = "pearson",
    shown: Shown = "in_order",
    clusters: Labels | None = None,
    resampling: Resampling = DEFAULT,
) -> Measure:
    """Measure VOC: the mean over episodes of corr(value, true time of the frame).

    A constant curve has no correlation: it is counted as undefined, not as 0. With frames in order a step counter
    reaches 1; with shuffled frames it falls to 0 in expectation and a model that looks at the pictures does not, so the
    two stand side by side. On reversed videos a step counter gets -1.

    Args:
        values: per episode, one value per presented frame.
        times: per episode, the true index of each presented frame; needed when they were not shown in order.
        method: pearson or spearman, part of the name of the result.
        shown: how the frames were presented, part of the name of the result.
        clusters: the task of each episode; None resamples episodes.
        resampling: how the interval is made.
    """
    if shown not in get_args(Shown):
        raise BadInput("presentation", "'in_order', 'reversed' or 'shuffled'", repr(shown))
    if times is None and shown != "in_order":
        raise BadInput(f"{shown} frames", "the true time of each presented frame", "no times")
    found = order_correlations(values, times, method)
    suffix = "" if shown == "in_order" else f"_{shown}"
    return correlation_tally(found, f"voc_{method}{suffix}", clusters).measure(resampling)


def correlation_tally(found: Correlations, name: str, clusters: Labels | None = None) -> Tally:
    """Count the evidence for a mean correlation."""
    keep = ~np.isnan(found.value)
    unscored, undefined = int(found.unscored.sum()), int(found.undefined.sum())
    kept = pick(clusters, keep)
    return mean_tally(name, "episodes", found.value[keep], kept, unscored=unscored, undefined=undefined)
