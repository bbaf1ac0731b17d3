"""Running statistics in the shapes that LeRobot keeps them in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.frames import Images

MEASURES = ("min", "max", "mean", "std", "count")
Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moments:
    """Extremes, mean and squared deviations of numbers, per dimension; numbers that are not finite are not counted."""

    rows: int
    """how many frames went in"""
    n: Vector
    """how many finite numbers, per dimension"""
    mean: Vector
    squares: Vector
    """sum of (x - mean)^2"""
    low: Vector
    high: Vector

    @classmethod
    def of(cls, values: npt.ArrayLike, rows: int | None = None) -> Moments:
        """Measure (rows,) or (rows, dimensions) numbers."""
        table = np.asarray(values, dtype=np.float64)
        table = table.reshape(len(table), -1)
        finite = np.isfinite(table)
        n = finite.sum(axis=0).astype(np.float64)
        mean = np.where(finite, table, 0).sum(axis=0) / np.maximum(n, 1)
        return cls(
            rows=len(table) if rows is None else rows,
            n=n,
            mean=mean,
            squares=np.where(finite, (np.where(finite, table, 0) - mean) ** 2, 0).sum(axis=0),
            low=np.where(finite, table, np.inf).min(axis=0, initial=np.inf),
            high=np.where(finite, table, -np.inf).max(axis=0, initial=-np.inf),
        )

    @classmethod
    def of_images(cls, images: Images) -> Moments:
        """Measure the colours of (n, height, width, 3) images on the scale 0 to 1; every other pixel is enough."""
        return cls.of(images[:, ::2, ::2].reshape(-1, images.shape[-1]) / 255.0, rows=len(images))

    def __add__(self, other: Moments) -> Moments:
        """Measure both together.

        n = n1 + n2, d = mean2 - mean1, mean = mean1 + d * n2 / n, squares = squares1 + squares2 + d^2 * n1 * n2 / n.
        """
        n = self.n + other.n
        share = other.n / np.maximum(n, 1)
        gap = other.mean - self.mean
        return Moments(
            rows=self.rows + other.rows,
            n=n,
            mean=self.mean + gap * share,
            squares=self.squares + other.squares + gap**2 * self.n * share,
            low=np.minimum(self.low, other.low),
            high=np.maximum(self.high, other.high),
        )

    def measures(self, dtype: str) -> dict[str, Any] | None:
        """The LeRobot record: a list per measure, colours as (3, 1, 1); None when a dimension has no finite number."""
        if not (self.n > 0).all():
            return None
        exact: Callable[[float], float] = int if dtype.startswith("int") else float
        values: dict[str, Any] = {
            "min": [exact(x) for x in self.low],
            "max": [exact(x) for x in self.high],
            "mean": self.mean.tolist(),
            "std": np.sqrt(self.squares / self.n).tolist(),
        }
        if dtype == "video":
            values = {name: [[[x]] for x in numbers] for name, numbers in values.items()}
        return {**values, "count": [self.rows]}
