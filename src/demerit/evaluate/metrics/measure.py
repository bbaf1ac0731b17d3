"""What a metric returns: a number that says what it is, how sure we are and what it left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from demerit.errors import BadInput

NAN = float("nan")


@dataclass(frozen=True)
class Measure:
    """One measured quantity. Nothing to measure is NaN with `n` = 0, never a zero."""

    name: str
    value: float
    low: float
    """lower end of the interval; NaN when it cannot be known (one cluster only)"""
    high: float
    n: int
    """how many `unit`s the value rests on"""
    unscored: int
    """how many more there would be, had the model scored everything; in the same unit"""
    unit: str = "episodes"
    ties: int | None = None
    """how often the model could not decide (each counts one half); None where ties play no part"""
    undefined: int = 0
    """scored, but the formula has no value there (the correlation of a constant)"""
    clusters: int = 0
    """how many clusters (tasks) the interval rests on"""
    level: float = 0.95
    counts: Mapping[str, int] = field(default_factory=dict)
    """what else was counted: human ties, unscored episodes ..."""
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse a number without evidence, and evidence without a number."""
        if (self.n == 0) != math.isnan(self.value):
            raise BadInput(f"measure {self.name!r}", "NaN if and only if n is 0", f"value {self.value}, n {self.n}")
        if min(self.n, self.unscored, self.undefined, self.clusters, self.ties or 0) < 0:
            raise BadInput(f"measure {self.name!r}", "counts of at least 0", self)

    @property
    def known(self) -> bool:
        """Whether there was anything to measure."""
        return self.n > 0

    def renamed(self, name: str) -> Measure:
        """Give the same numbers a more precise name."""
        return replace(self, name=name)

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values; NaN, which JSON does not know, becomes None."""
        plain = {**asdict(self), "counts": dict(self.counts)}
        for key in ("value", "low", "high"):
            plain[key] = None if math.isnan(plain[key]) else plain[key]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Measure:
        """Read what `as_dict` wrote."""
        facts = dict(plain)
        for key in ("value", "low", "high"):
            facts[key] = NAN if facts[key] is None else float(facts[key])
        return cls(**facts)

    def __str__(self) -> str:
        """Show the value, the interval and what it rests on in a line."""
        if not self.known:
            left = f", {self.unscored} unscored" if self.unscored else ""
            return f"{self.name}: nothing to measure (0 {self.unit}{left})"
        span = "interval unknown" if math.isnan(self.low) else f"{self.low:.3f} to {self.high:.3f}"
        extra = [f"{self.n} {self.unit}"]
        extra += [f"{self.ties} ties"] if self.ties else []
        extra += [f"{self.undefined} undefined"] if self.undefined else []
        extra += [f"{self.unscored} unscored"] if self.unscored else []
        return f"{self.name}: {self.value:.3f} ({span}; {', '.join(extra)})"
