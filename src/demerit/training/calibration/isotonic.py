"""Isotonic regression: the best fit that never falls, by pooling adjacent violators."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput
from demerit.evaluate.metrics.columns import numbers
from demerit.models.calibrated_maps import Isotonic


def isotonic(x: npt.ArrayLike, y: npt.ArrayLike, weight: npt.ArrayLike | None = None) -> Isotonic:
    """Find f, never falling, with the smallest sum of w (y - f(x))^2.

    The rows are sorted by x and those of one x averaged; then neighbours that fall, or are level, are pooled to their
    weighted mean until none is left. f is that mean over each pool, and a straight line between two pools.

    Args:
        x: the model's numbers.
        y: what they were worth, 0 to 1.
        weight: of each row, above 0; None counts every row once.
    """
    xs, ys = numbers("x", x), numbers("y", y)
    weights = np.ones(len(xs)) if weight is None else numbers("weights", weight, len(xs))
    if not len(xs) or len(xs) != len(ys) or np.isnan(xs + ys).any() or not (weights > 0).all():
        raise BadInput("isotonic regression", "rows of known x, y and a weight above 0", f"{len(xs)} and {len(ys)}")
    at, place = np.unique(xs, return_inverse=True)
    mass = np.bincount(place.reshape(-1), weights)
    total = np.bincount(place.reshape(-1), weights * ys)
    pools: list[tuple[float, float, int, int]] = []  # weight, weighted sum, first and last x
    for i, (new_mass, new_total) in enumerate(zip(mass.tolist(), total.tolist(), strict=True)):
        pool = (new_mass, new_total, i, i)
        # compare means without dividing: sum_a / mass_a >= sum_b / mass_b
        while pools and pools[-1][1] * pool[0] >= pool[1] * pools[-1][0]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1], before[2], i)
        pools.append(pool)
    return _through(at, pools)


def _through(at: npt.NDArray[np.float64], pools: list[tuple[float, float, int, int]]) -> Isotonic:
    knots: dict[int, float] = {}
    for mass, total, first, last in pools:
        knots[first] = knots[last] = min(max(total / mass, 0.0), 1.0)  # rounding must not leave 0 to 1
    places = sorted(knots)
    return Isotonic(at[places], np.maximum.accumulate([knots[place] for place in places]))
