"""Back to the scale of progress: a penalty pulls fitted values to the middle and the blend pulls them down.

What left-out groups were really worth tells how far. First a line, then a growing curve of medians (the value that is
off least on average is a median, not a mean): frames that are done are worth 1 and not "0.8, on average". The curve
never falls and never stands still, so the order of episodes stays as it is.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
KNOTS = 8
TRUST = 0.8
"""how much of the scale is the curve, with much evidence; the rest is the line"""
HALF_TRUST_AT = 2
"""groups of evidence at which it is half as much"""
LEAST_SLOPE = 0.2
ENDS = np.array([0.0, 1.0])


def scale_of(value: Floats, truth: Floats, weight: Floats, groups: int, belief: float) -> tuple[Floats, Floats]:
    """Find the scale: growing places, and what a value at each of them is worth; between them it is straight.

    Args:
        value: fitted values, 0 to 1, of frames whose group was left out.
        truth: what those frames were worth.
        weight: how much each counts; an episode counts about 1.
        groups: how many groups they come from.
        belief: how many episodes' worth of belief there is in values as they are.
    """
    if not len(value):
        return ENDS, ENDS
    slope, level = line(value, truth, weight, belief)
    places = np.unique(np.concatenate([ENDS, np.quantile(value, np.linspace(0, 1, KNOTS))]))
    straight = level + slope * places
    trust = TRUST * groups / (groups + HALF_TRUST_AT)
    at, middle = growing_medians(value, truth, weight)
    return places, (1 - trust) * straight + trust * np.interp(places, at, middle)


def line(value: Floats, truth: Floats, weight: Floats, belief: float) -> tuple[float, float]:
    """Fit truth = level + slope value, starting from slope 1 and level 0 and leaving them as far as evidence goes."""
    columns = np.stack([value, np.ones_like(value)], axis=1)
    squares = columns.T @ (columns * weight[:, None]) + belief * np.eye(2)
    slope, level = np.linalg.solve(squares, columns.T @ (truth * weight) + belief * np.array([1.0, 0.0]))
    return max(float(slope), LEAST_SLOPE), float(level)


def growing_medians(value: Floats, truth: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Fit a curve that never falls with the least absolute error: pooled neighbours, each pool at its median.

    Returns the mean place and the median of each pool.
    """
    order = np.argsort(value, kind="stable")
    v, y, w = value[order], truth[order], weight[order]
    pools: list[tuple[int, int, float]] = []
    for i in range(len(v)):
        pools.append((i, i + 1, float(y[i])))
        while len(pools) > 1 and pools[-2][2] > pools[-1][2]:
            (start, _, _), (_, stop, _) = pools[-2], pools[-1]
            pools[-2:] = [(start, stop, weighted_median(y[start:stop], w[start:stop]))]
    at = np.array([np.average(v[start:stop], weights=w[start:stop]) for start, stop, _ in pools])
    return at, np.array([middle for *_, middle in pools])


def weighted_median(values: Floats, weights: Floats) -> float:
    """Return the smallest value that half of the weight does not exceed."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])
