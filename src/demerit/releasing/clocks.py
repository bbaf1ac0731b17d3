"""Absolute times among numbers, told by their values: a clock that says when is made one that says how long since.

Names alone do not tell: `t`, `unix_ns` and `header` may all be seconds since 1970. So may a column of a matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.releasing.names import EARLIEST, LATEST

UNITS = (1, 10**3, 10**6, 10**9)
"""of a second: clocks count seconds, milliseconds, microseconds or nanoseconds"""
SMALLEST = 4
"""bytes of a number that can hold a moment"""
NO_READING = 2**31 - 1
"""what sensors give for want of a value, and, by chance, a second of 2038"""
MOST = 0.5
"""share of a column that has to be moments, where the signal's name says that it is a clock"""


def since_start(values: npt.NDArray[Any], named: bool = False) -> npt.NDArray[Any] | None:
    """Return the numbers with their clocks counted from their first moment, or None if there is no clock among them.

    A column is a clock if everything positive in it lies between 2000 and 2100, in one unit; what is zero or below was
    never set, and stays. Columns of one unit keep their distances: stamps of three cameras begin at the first of them.

    Args:
        values: numbers, the first axis is time.
        named: whether the signal's name says that it is a clock: then most of a column is enough.
    """
    if values.dtype.kind not in "fiu" or values.dtype.itemsize < SMALLEST or not np.any(values > EARLIEST):
        return None
    columns = values.reshape(len(values), -1) if values.ndim else values.reshape(1, 1)
    positive = np.isfinite(columns) & (columns > 0) & (columns != NO_READING)
    made: npt.NDArray[Any] | None = None
    for unit in UNITS:
        moments = positive & (columns > EARLIEST * unit) & (columns < LATEST * unit)
        share = moments.sum(axis=0) / np.maximum(1, positive.sum(axis=0))
        moments &= share > MOST if named else share == 1
        if moments.any():
            made = columns.copy() if made is None else made
            made[moments] -= columns[moments].min()
    return None if made is None else made.reshape(values.shape)


def seconds_since_start(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Turn calendar times into seconds since the first of them; what is no time is NaN."""
    known = values[~np.isnat(values)]
    first = known.min() if known.size else np.datetime64(0, "s")
    seconds: npt.NDArray[np.float64] = (values - first) / np.timedelta64(1, "s")
    return seconds
