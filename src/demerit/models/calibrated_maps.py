"""Maps from a model's number to a calibrated one: none of them ever turns an order around.

isotonic     a rising line through knots: what the calibration episodes were worth on average at such a number
shift        the number less an amount, kept within 0 to 1: progress that is reached but for a promised risk
confidence   the share of calibration failures below the number: 1 - a conformal p-value
same         as it was: there were no labels to calibrate it on
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput

Floats = npt.NDArray[np.float64]


class Map(Protocol):
    """A function of one number that never falls; NaN stays NaN."""

    def __call__(self, values: npt.ArrayLike) -> Floats:
        """Map each number."""
        ...

    def as_facts(self) -> dict[str, Any]:
        """Write it as plain values."""
        ...


@dataclass(frozen=True)
class Same:
    """Change nothing."""

    def __call__(self, values: npt.ArrayLike) -> Floats:
        """Return the numbers."""
        return np.array(values, dtype=np.float64)

    def as_facts(self) -> dict[str, Any]:
        """Write it as plain values."""
        return {"map": "same"}


@dataclass(frozen=True, eq=False)
class Isotonic:
    """Straight lines between knots, level outside them."""

    x: Floats
    """growing"""
    y: Floats
    """0 to 1, never falling"""

    def __post_init__(self) -> None:
        """Refuse knots that do not rise, or leave 0 to 1."""
        for name in ("x", "y"):
            object.__setattr__(self, name, _listed(f"knots {name} of an isotonic map", getattr(self, name)))
        if not len(self.x) or len(self.x) != len(self.y):
            raise BadInput("an isotonic map", "as many x as y, and some", (len(self.x), len(self.y)))
        if (np.diff(self.x) <= 0).any() or (np.diff(self.y) < 0).any() or self.y[0] < 0 or self.y[-1] > 1:
            raise BadInput("an isotonic map", "growing x and, from 0 to 1, y that never falls", "other knots")

    def __call__(self, values: npt.ArrayLike) -> Floats:
        """Look the numbers up on the line."""
        given = np.array(values, dtype=np.float64)
        return np.where(np.isnan(given), np.nan, np.interp(given, self.x, self.y))

    def as_facts(self) -> dict[str, Any]:
        """Write it as plain values."""
        return {"map": "isotonic", "x": self.x.tolist(), "y": self.y.tolist()}


@dataclass(frozen=True)
class Shift:
    """v becomes v - by, kept within 0 to 1."""

    by: float

    def __post_init__(self) -> None:
        """Refuse an amount that is no number."""
        if isinstance(self.by, bool) or not isinstance(self.by, int | float) or not np.isfinite(self.by):
            raise BadInput("a shift", "a finite number", repr(self.by))

    def __call__(self, values: npt.ArrayLike) -> Floats:
        """Shift the numbers."""
        return np.clip(np.array(values, dtype=np.float64) - self.by, 0.0, 1.0)

    def as_facts(self) -> dict[str, Any]:
        """Write it as plain values."""
        return {"map": "shift", "by": self.by}


@dataclass(frozen=True, eq=False)
class Confidence:
    """s becomes #{failures below s} / (n + 1) = 1 - p, p = (1 + #{failures at or above s}) / (n + 1).

    A new failure that is exchangeable with the n reaches 1 - a or more with a probability of at most a, for any a.
    """

    failures: Floats
    """scores of the calibration failures"""

    def __post_init__(self) -> None:
        """Keep the scores sorted."""
        object.__setattr__(self, "failures", np.sort(_listed("scores of failures", self.failures)))

    def __call__(self, values: npt.ArrayLike) -> Floats:
        """Count the failures below each number."""
        given = np.array(values, dtype=np.float64)
        below = np.searchsorted(self.failures, given, side="left") / (len(self.failures) + 1)
        return np.where(np.isnan(given), np.nan, below)

    def as_facts(self) -> dict[str, Any]:
        """Write it as plain values."""
        return {"map": "confidence", "failures": self.failures.tolist()}


def read_map(where: str, facts: object) -> Map:
    """Read what `as_facts` wrote, strictly."""
    kinds: dict[str, tuple[type[Any], set[str]]] = {
        "same": (Same, set()),
        "isotonic": (Isotonic, {"x", "y"}),
        "shift": (Shift, {"by"}),
        "confidence": (Confidence, {"failures"}),
    }
    if not isinstance(facts, Mapping) or facts.get("map") not in kinds:
        raise BadInput(where, f"an object with a map of {', '.join(kinds)}", repr(facts)[:80])
    kind, names = kinds[str(facts["map"])]
    fields = set(facts) - {"map"}
    if fields != names:
        raise BadInput(where, f"the fields {sorted(names)} of the map {facts['map']!r}", sorted(map(str, fields)))
    made: Map = kind(**{name: facts[name] for name in names})
    return made


def _listed(name: str, values: npt.ArrayLike) -> Floats:
    try:
        column = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadInput(name, "a list of numbers", error) from error
    if column.ndim != 1 or not np.isfinite(column).all():
        raise BadInput(name, "a list of finite numbers", "something else")
    return column
