"""Absolute times among numbers, told by their values: a clock that says when is made one that says how long since.

Names alone do not tell: `t`, `unix_ns` and `header` may all be seconds since 1970. So may a column of a matrix.
Where a name says that it is a clock, numbers that would else be anything are read as days and as other systems' clocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.use.release.names import EARLIEST, LATEST

UNITS = (1, 10**3, 10**6, 10**9)
"""of a second: clocks count seconds, milliseconds, microseconds or nanoseconds"""
SMALLEST = 4
"""bytes of a number that can hold a moment"""
NO_READING = 2**31 - 1
"""what sensors give for want of a value, and, by chance, a second of 2038"""
MOST = 0.5
"""share of a column that has to be moments, where the signal's name says that it is a clock"""

NAMED_RANGES = tuple(
    ((EARLIEST + seconds) * 10**7, (LATEST + seconds) * 10**7) for seconds in (11_644_473_600, 62_135_596_800)
)
"""ten millionths of a second since 1601 and since the year 1, as Windows and .NET count"""
SINCE_2001 = (441_763_200, EARLIEST)
"""2015 to 2031 in seconds since 2001, as Apple counts: a whole column, as counters since a start pass through it"""
DIGITS = {8: ("D", (100,) * 2), 12: ("m", (100,) * 4), 14: ("s", (100,) * 5), 17: ("ms", (*(100,) * 5, 1000))}
"""how many digits a day (20240305), a minute, a second and a millisecond have, and what parts them behind the year"""
LONG = 14
"""digits from which on a number that is a moment of the calendar is nothing else"""
SMALLEST_DAY = 20_000_000
FIRST_YEAR, LAST_YEAR = 2000, 2100
MOST_FIELDS = 6
"""year, month, day, hour, minute, second"""


def since_start(values: npt.NDArray[Any], named: bool = False) -> npt.NDArray[Any] | None:
    """Return the numbers with their clocks counted from their first moment, or None if there is no clock among them.

    A column is a clock if everything positive in it lies between 2000 and 2100, in one unit; what is zero or below was
    never set, and stays. Columns of one unit keep their distances: stamps of three cameras begin at the first of them.

    Args:
        values: numbers, the first axis is time.
        named: whether the signal's name says that it is a clock: then most of a column is enough.
    """
    if values.dtype.kind not in "fiu" or not values.size:
        return None
    columns = values.reshape(len(values), -1) if values.ndim else values.reshape(1, 1)
    if named and _are_fields(columns):
        return _fields_since_start(columns).reshape(values.shape)
    if values.dtype.itemsize < SMALLEST or not np.any(values > SMALLEST_DAY):
        return None
    positive = np.isfinite(columns) & (columns > 0) & (columns != NO_READING)
    made: npt.NDArray[Any] | None = None
    for low, high, most in _ranges(named):
        moments = positive & (columns > low) & (columns < high)
        share = moments.sum(axis=0) / np.maximum(1, positive.sum(axis=0))
        moments &= share > most if most < 1 else share == 1
        if moments.any():
            made = columns.copy() if made is None else made
            made[moments] -= columns[moments].min()
    for column in range(columns.shape[1]):
        counted = _digits_since_start(columns[:, column], positive[:, column], named)
        if counted is not None:
            made = columns.copy() if made is None else made
            made[positive[:, column], column] = counted
    return None if made is None else made.reshape(values.shape)


def _ranges(named: bool) -> list[tuple[int, int, float]]:
    """From where to where numbers are moments, and the share of a column that has to be."""
    most = MOST if named else 1.0
    ranges = [(EARLIEST * unit, LATEST * unit, most) for unit in UNITS]
    return [*ranges, *((low, high, most) for low, high in NAMED_RANGES), (*SINCE_2001, 1.0)] if named else ranges


def _digits_since_start(
    column: npt.NDArray[Any], positive: npt.NDArray[np.bool_], named: bool
) -> npt.NDArray[np.int64] | None:
    """Count a column of days or moments whose digits are read from left to right, in their smallest unit."""
    if not positive.any() or np.any(column[positive] >= 10 ** max(DIGITS)):
        return None
    rest = column[positive].astype(np.int64)
    digits = len(str(int(rest.max())))
    if digits not in DIGITS or (digits < LONG and not named):
        return None
    parts: list[npt.NDArray[np.int64]] = []
    unit, divisors = DIGITS[digits]
    for divisor in reversed(divisors):
        rest, part = rest // divisor, rest % divisor
        parts.append(part)
    fields = np.stack([rest, *reversed(parts)], axis=1)
    if not _are_fields(fields):
        return None
    moments = _moments(fields)
    if fields.shape[1] > MOST_FIELDS:
        moments = moments.astype("datetime64[ms]") + fields[:, MOST_FIELDS].astype("timedelta64[ms]")
    counted: npt.NDArray[np.int64] = (moments - moments.min()) // np.timedelta64(1, unit)  # type: ignore[call-overload]
    return counted


def _are_fields(columns: npt.NDArray[Any]) -> bool:
    """Whether columns are year, month, day and what may follow: hour, minute, second."""
    if columns.shape[1] < 3 or not len(columns) or not np.all(np.isfinite(columns)):  # noqa: PLR2004
        return False
    lows, highs = (FIRST_YEAR, 1, 1, 0, 0, 0), (LAST_YEAR, 12, 31, 23, 59, 60.999999)
    first = columns[:, :MOST_FIELDS]
    count = first.shape[1]
    return bool(np.all((first >= lows[:count]) & (first <= highs[:count])) and np.all(first[:, :3] % 1 == 0))


def _fields_since_start(columns: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Count moments in columns from their first: no years, no months, then days, hours, minutes and seconds."""
    seconds = (_moments(columns) - _moments(columns).min()).astype(np.int64)
    made = columns.copy()
    made[:, :2] = 0
    made[:, 2] = seconds // 86_400
    for place, (whole, part) in enumerate(((86_400, 3600), (3600, 60), (60, 1)), start=3):
        if place < columns.shape[1]:
            fraction = columns[:, place] % 1 if columns.dtype.kind == "f" and part == 1 else 0
            made[:, place] = seconds % whole // part + fraction
    return made


def _moments(fields: npt.NDArray[Any]) -> npt.NDArray[np.datetime64]:
    """Columns of year, month, day, hour, minute and second as moments; a 31st of June is a 1st of July."""
    whole = [fields[:, place].astype(np.int64) for place in range(min(fields.shape[1], MOST_FIELDS))]
    years, months, days, *clock = whole
    moments = ((years - 1970) * 12 + months - 1).astype("datetime64[M]").astype("datetime64[s]")
    for count, size in zip((days - 1, *clock), (86_400, 3600, 60, 1), strict=False):
        moments = moments + (count * size).astype("timedelta64[s]")
    return moments


def seconds_since_start(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Turn calendar times into seconds since the first of them; what is no time is NaN."""
    known = values[~np.isnat(values)]
    first = known.min() if known.size else np.datetime64(0, "s")
    seconds: npt.NDArray[np.float64] = (values - first) / np.timedelta64(1, "s")
    return seconds
