"""How much an episode looks like what a model learned from, as a percentile from 0 to 1.

    d            = mean over an episode's frames of log |z - z_j|, z_j the nearest reference frame
    familiarity  = P(T > (d - centre) / (spread sqrt(1 + 1/n))), T Student's t with n - 1 degrees of freedom

`centre` and `spread` are mean and deviation of d over episodes that the model learned from, of n groups, each measured
against the frames of other groups alone. So new episodes of the same kind are spread evenly from 0 to 1: 0.5 is
typical, and 1% of them are below 0.01. Student's t and not the normal distribution: a model may be taught on six
episodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Bools, Floats, Floats32
from demerit.data.frames import spread as spread_evenly
from demerit.errors import BadInput

FEWEST = 4
"""groups needed to know how far one of them is from the others"""
REFERENCES, PER_EPISODE, MEASURED = 256, (1, 10), 32
"""reference frames in total and per episode; frames of a left-out episode that are measured"""
CLOSEST = 0.01
"""the least distance: a frame may be among the reference frames; typical ones are about 1 apart"""


@dataclass(frozen=True, eq=False)
class FeatureProjection:
    """A shorter form of features: standardised, on some principal directions, with the length of what remains.

    Between `measured(a)` and `referred(b)` the squared distance is that along the directions plus both remainders'
    squares, as if the remainders were at right angles: nearly true, and it needs no more directions.
    """

    centre: Floats
    scale: Floats
    basis: Floats
    """(columns, directions), orthonormal"""

    def measured(self, x: npt.ArrayLike) -> Floats:
        """Project frames (frames, columns)."""
        z = (np.asarray(x, dtype=np.float64) - self.centre) * self.scale
        along = z @ self.basis
        rest = np.sqrt(np.maximum((z**2).sum(1) - (along**2).sum(1), 0.0))
        return np.column_stack([along, rest, np.zeros(len(z))])

    def referred(self, x: npt.ArrayLike) -> Floats:
        """Project reference frames."""
        rows = self.measured(x)
        return np.column_stack([rows[:, :-2], rows[:, -1], rows[:, -2]])


@dataclass(frozen=True, eq=False)
class Familiarity:
    """Reference frames, and how far left-out episodes are from them."""

    near: Floats32
    """(rows, columns): the reference frames"""
    centre: float
    spread: float
    n: int
    """groups behind centre and spread"""
    projection: FeatureProjection | None = None
    """None = frames are measured as they are"""
    columns: npt.NDArray[np.int32] | None = None
    """the columns that are measured; None = all"""

    def __post_init__(self) -> None:
        """Validate."""
        arrays = [self.near, *(() if self.projection is None else vars(self.projection).values())]
        is_finite = math.isfinite(self.centre) and all(
            array.size and bool(np.isfinite(array).all()) for array in arrays
        )
        if not is_finite or not 0 < self.spread < math.inf or self.n < FEWEST:
            raise BadInput("familiarity", "finite reference frames, centre and spread", "other numbers")

    @classmethod
    def fit(
        cls, episodes: Iterable[Floats], groups: Sequence[str], columns: npt.NDArray[np.int32] | None = None
    ) -> Familiarity | None:
        """Measure episodes, each (frames, columns), against other groups; None where that says nothing."""
        if len(set(groups)) < FEWEST:
            return None
        count = int(np.clip(REFERENCES // len(groups), *PER_EPISODE))
        kept = slice(None) if columns is None else columns
        measured = [rows[spread_evenly(len(rows), MEASURED)][:, kept] for rows in episodes]
        # rounded, as they will be stored
        referred = [rows[spread_evenly(len(rows), count)].astype(np.float16).astype(np.float32) for rows in measured]
        centre, spread = measure_left_out(measured, referred, groups)
        near = np.concatenate(referred)
        return cls(near, centre, spread, len(set(groups)), columns=columns) if spread > 0 else None

    def distances(self, x: npt.ArrayLike) -> Floats:
        """Return the log distance of each of (frames, columns) to the nearest reference frame."""
        rows = np.asarray(x) if self.projection is None else self.projection.measured(x)
        return log_distances(rows if self.columns is None else rows[:, self.columns], self.near)

    def percentile(self, distances: Floats | float) -> float:
        """Return an episode's familiarity, 0 to 1, from the log distances of its frames."""
        deviation = (float(np.mean(distances)) - self.centre) / (self.spread * math.sqrt(1 + 1 / self.n))
        return round(student_tail(deviation, self.n - 1), 4)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays to store, by name."""
        numbers = np.array([self.centre, self.spread, self.n])
        projection = {} if self.projection is None else vars(self.projection)
        arrays = {"near": self.near, **{f"projection.{name}": array for name, array in projection.items()}}
        columns = {} if self.columns is None else {"columns": self.columns}
        return {"left_out": numbers, **columns} | {name: array.astype(np.float16) for name, array in arrays.items()}

    @classmethod
    def from_arrays(cls, found: Mapping[str, npt.NDArray[Any]]) -> Familiarity:
        """Read what `arrays` returned."""
        centre, spread, n = (float(number) for number in found["left_out"])
        wide = {name: array.astype(np.float64) for name, array in found.items()}
        projection = None
        if "projection.basis" in wide:
            projection = FeatureProjection(*(wide[f"projection.{name}"] for name in ("centre", "scale", "basis")))
        return cls(found["near"].astype(np.float32), centre, spread, int(n), projection, found.get("columns"))


def measure_left_out(
    measured: Sequence[Floats], referred: Sequence[Floats32], groups: Sequence[str]
) -> tuple[float, float]:
    """Return mean and deviation of the distances of episodes to the reference frames of other groups."""
    near, owner = np.concatenate(referred), np.repeat(np.array(groups), [len(rows) for rows in referred])
    distances = [
        np.mean(log_distances(rows, near, owner == group)) for rows, group in zip(measured, groups, strict=True)
    ]
    return float(np.mean(distances)), float(np.std(distances, ddof=1))


def log_distances(rows: npt.NDArray[Any], near: Floats32, skip: Bools | None = None) -> Floats:
    """Return log |rows_i - the nearest of near| for every i, without the references in `skip`."""
    rows = rows.astype(np.float32)
    squared = (rows**2).sum(1)[:, None] + (near**2).sum(1)[None, :] - 2 * rows @ near.T
    if skip is not None:
        squared[:, skip] = np.inf
    return np.asarray(np.log(np.maximum(squared.min(axis=1), CLOSEST**2)) / 2, dtype=np.float64)


def student_tail(t: float, degrees: int) -> float:
    """Return P(T > t) of Student's t, by Wallace's normal approximation (within 0.001 from 3 degrees on)."""
    scale = (8 * degrees + 1) / (8 * degrees + 3)
    return NormalDist().cdf(-math.copysign(scale * math.sqrt(degrees * math.log1p(t * t / degrees)), t))
