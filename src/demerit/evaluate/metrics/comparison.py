"""Comparing two models on the same episodes, and many such comparisons at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput
from demerit.evaluate.metrics.bootstrap import (
    DEFAULT,
    Resampling,
    Tally,
    by_row_if_alone,
    percentiles,
    replicates,
    values_of,
)
from demerit.evaluate.metrics.columns import Floats
from demerit.evaluate.metrics.measure import NAN


@dataclass(frozen=True)
class Comparison:
    """The difference of one measure between two models, a minus b, on what both scored."""

    name: str
    difference: float
    low: float
    high: float
    p: float
    """two-sided, from the share of resamples on the other side of 0; NaN when it cannot be known"""
    n: int
    unscored: int
    """left out because at least one of the two did not score it; in the unit of n"""
    a: float
    b: float
    clusters: int = 0
    note: str = ""


def compare(
    tally: Callable[[Floats], Tally],
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    resampling: Resampling = DEFAULT,
) -> Comparison:
    """Compare two models by any measure, resampling the same clusters for both.

    p = min(1, 2 min((1 + #{d* <= 0}), (1 + #{d* >= 0})) / (R + 1)) over the R resampled differences d*.

    Args:
        tally: turns one model's numbers (one per row, NaN = unscored) into a tally, for example
            ``lambda returns: ordering_tally(returns, human, contexts)``.
        a: the numbers of the first model.
        b: the numbers of the second; a row that either did not score is left out of both.
        resampling: how the interval is made.
    """
    first, second = (np.array(values, dtype=np.float64) for values in (a, b))
    if first.shape != second.shape:
        raise BadInput("comparison", "two models on the same rows", f"{first.shape} and {second.shape}")
    either = np.isnan(first) | np.isnan(second)
    ours, theirs = (tally(np.where(either, np.nan, values)) for values in (first, second))
    if ours.clusters != theirs.clusters or not np.array_equal(ours.codes, theirs.codes):
        raise BadInput(f"comparison by {ours.name}", "a measure defined on the same rows for both", "different rows")
    if not ours.n:
        return Comparison(ours.name, NAN, NAN, NAN, NAN, 0, ours.unscored, NAN, NAN, 0, ours.note)
    ones = np.ones((1, len(ours.clusters)))
    points = [float(values_of(one.statistic, one.codes, ones)[0]) for one in (ours, theirs)]
    codes, size = by_row_if_alone(ours.codes, len(ours.clusters), resampling)
    facts = (points[0] - points[1], ours.n, ours.unscored, points[0], points[1])
    if size < 2:  # noqa: PLR2004
        return _comparison(ours.name, facts, (NAN, NAN, NAN), size, "one cluster: the interval cannot be known")
    drawn = replicates([ours.statistic, theirs.statistic], codes, size, resampling)
    difference = drawn[0] - drawn[1]
    span = percentiles(difference, resampling.level)
    return _comparison(ours.name, facts, (*span, two_sided(difference)), size, ours.note)


def two_sided(draws: Floats) -> float:
    """Return the two-sided bootstrap p of "no difference"; never 0, since R resamples cannot show that."""
    defined = draws[~np.isnan(draws)]
    if not len(defined):
        return NAN
    least = min(int((defined <= 0).sum()), int((defined >= 0).sum()))
    return min(1.0, 2 * (1 + least) / (len(defined) + 1))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Correct several p-values for being several (Holm's step-down): adjusted values, in the given order.

    With p_(1) <= ... <= p_(m): adjusted_(i) = max over j <= i of min(1, (m - j + 1) p_(j)). NaN stays NaN and does not
    count as a comparison.
    """
    known = sorted((p, name) for name, p in p_values.items() if not isnan(p))
    adjusted: dict[str, float] = {}
    worst = 0.0
    for i, (p, name) in enumerate(known):
        if not 0 <= p <= 1:
            raise BadInput(f"p-value of {name!r}", "a number from 0 to 1", p)
        worst = max(worst, min(1.0, (len(known) - i) * p))
        adjusted[name] = worst
    return {name: adjusted.get(name, NAN) for name in p_values}


def _comparison(
    name: str,
    facts: tuple[float, int, int, float, float],
    span: tuple[float, float, float],
    clusters: int,
    note: str,
) -> Comparison:
    difference, n, unscored, a, b = facts
    return Comparison(name, difference, *span, n, unscored, a, b, clusters, note)
