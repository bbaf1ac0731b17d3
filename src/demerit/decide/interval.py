"""A share of episodes with its 95% interval."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal

from demerit.data.files import plain

Z95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Share:
    """A share, or a difference of two shares, with its 95% interval."""

    value: float
    """NaN = nothing was counted"""
    low: float
    high: float
    n: int = 0
    """of how many; 0 = none, or it is an estimate and not a count"""
    unit: Literal["%", " points"] = "%"
    """" points" for a difference"""

    @classmethod
    def count(cls, hits: float, n: int) -> Share:
        """Count hits among n, with Wilson's interval; of none, the share is unknown: NaN, 0 to 1."""
        if not n:
            return cls(math.nan, 0.0, 1.0)
        return replace(cls.around(hits / n, n), n=n)

    @classmethod
    def around(cls, share: float, size: float) -> Share:
        """Return an estimated share that is worth so many counted ones, with Wilson's interval."""
        extra = Z95**2 / size
        centre = (share + extra / 2) / (1 + extra)
        half = Z95 / (1 + extra) * math.sqrt(share * (1 - share) / size + extra / size / 4)
        return cls(share, min(share, max(centre - half, 0.0)), max(share, min(centre + half, 1.0)))

    @classmethod
    def difference(cls, value: float, low: float, high: float) -> Share:
        """Return a difference of two shares, cut at -1 and 1."""
        return cls(value, max(low, -1.0), min(high, 1.0), unit=" points")

    @property
    def hits(self) -> int:
        """How many were counted; 0 where it is an estimate."""
        return round(self.value * self.n) if self.n else 0

    def __str__(self) -> str:
        """`71% (95%: 62 to 79)`, and of how many where it was counted."""
        if math.isnan(self.value):
            return "unknown"
        value, low, high = (f"{100 * end:.0f}".replace("-", "−") for end in (self.value, self.low, self.high))
        of = f", {self.hits} of {self.n}" if self.n else ""
        return f"{value}{self.unit} (95%: {low} to {high}){of}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values: value (None = unknown), low and high; where it was counted also hits and n."""
        ends = {name: plain(round(getattr(self, name), 6)) for name in ("value", "low", "high")}
        return {**ends, "hits": self.hits, "n": self.n} if self.n or math.isnan(self.value) else ends
