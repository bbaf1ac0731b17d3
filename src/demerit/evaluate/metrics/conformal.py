"""A threshold with a promise: at most a share alpha of failures passes as success (split conformal prediction)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput
from demerit.evaluate.metrics.columns import numbers


@dataclass(frozen=True)
class ConformalThreshold:
    """Say success when the score reaches `threshold`."""

    threshold: float
    """+inf when there are too few calibration failures to promise anything: then nothing passes"""
    alpha: float
    n: int
    """scored calibration failures"""
    unscored: int

    @property
    def enough(self) -> bool:
        """Whether there were enough failures for a threshold below infinity."""
        return math.isfinite(self.threshold)

    @property
    def note(self) -> str:
        """Say what is promised."""
        if not self.enough:
            need = math.ceil(1 / self.alpha - 1e-9) - 1
            few = f"{self.n} calibration failures are too few for a risk of {self.alpha:g} (it needs {need})"
            return f"{few}: nothing passes"
        return f"at most {self.alpha:.1%} of failures pass, if they resemble the {self.n} calibration failures"


def conformal_threshold(failures: npt.ArrayLike, alpha: float) -> ConformalThreshold:
    """Calibrate a threshold t so that P(score >= t | failure) <= alpha for a new failure.

    With n calibration scores s_(1) <= ... <= s_(n) and k = n + 1 - floor(alpha (n + 1)): t is the next number above
    s_(k), and +inf when k > n. A new exchangeable failure exceeds s_(k) with a probability of at most
    1 - k / (n + 1) <= alpha, ties or not. The promise needs exchangeable failures: it does not carry over to
    other tasks, robots or cameras, and it holds on average over calibration sets.

    Args:
        failures: scores of human-rejected episodes that are not among the test episodes, NaN = unscored.
        alpha: the risk, above 0 and below 1.
    """
    if not 0 < alpha < 1:
        raise BadInput("risk alpha", "a number between 0 and 1", alpha)
    scores = numbers("scores of calibration failures", failures)
    known = np.sort(scores[~np.isnan(scores)])
    n = len(known)
    rank = n + 1 - math.floor(alpha * (n + 1) + 1e-9)  # the slack undoes rounding: 0.29 * 100 is below 29
    threshold = math.inf if rank > n else float(np.nextafter(known[rank - 1], np.inf))
    return ConformalThreshold(threshold, alpha, n, len(scores) - n)
