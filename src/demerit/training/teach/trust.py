"""Is the taught model good enough? One answer: trust it, label more, this camera cannot see it, or not yet measurable.

The AUROC on new episodes is estimated from held-out ones: a beta distribution, from a prior (what teaching usually
reaches) and as many observations as explain the variance of an AUROC of so few recordings (Hanley and McNeil 1982).
How often the answer was right, and on what the bars below were chosen: docs/results/trust.md (`benchmarks/trust.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.success import auroc
from demerit.evaluate.metrics.verdict import ControlVerdict, round_up
from demerit.models.taught.head import Floats
from demerit.training.teach.validate import CurvePoint

TrustKind = Literal["trust it", "label more", "this camera cannot see it", "not yet measurable"]
GOOD = 0.9
"""the AUROC on new episodes that "trust it" stands for"""
BAR, CERTAINTY = 0.8, 0.9
"""trust it when the AUROC is at least BAR with this certainty: it was then at least GOOD in 29 of 34 lessons"""
PRIOR_AUROC, PRIOR_WEIGHT = 0.7, 4.0
FEWEST = 3
"""different recordings of a success, and of a failure, below which nothing is said"""
ENOUGH, BLIND = 10, 0.7
"""with this many of each, and an AUROC surely below BLIND, the camera does not show the difference"""
MOST = 200
"""no larger number of further episodes is named"""
USUAL_SLOPE, SLOPE_WEIGHT = 0.5, 10.0
"""1 - AUROC falls with episodes to the power of -0.5, unless the learning curve says otherwise; weight in points"""
SMALLEST_ERROR = 0.02


@dataclass(frozen=True)
class HeldOutEvidence:
    """How held-out episodes of one look were ranked."""

    auroc: float
    """NaN when no pair of a success and a failure was held out"""
    successes: int
    """different recordings with a success"""
    failures: int

    @property
    def low(self) -> float:
        """The AUROC on new episodes is at least this, with CERTAINTY."""
        return bound_auroc(self.auroc, self.successes, self.failures, 1 - CERTAINTY)

    @property
    def high(self) -> float:
        """The AUROC on new episodes is at most this, with CERTAINTY."""
        return bound_auroc(self.auroc, self.successes, self.failures, CERTAINTY)

    @property
    def lacks(self) -> str:
        """What is missing to say anything; empty if nothing is."""
        counts = (("success", self.successes), ("failure", self.failures))
        for word, count in counts:
            if count == 0:
                return f"no {word} is labelled"
        for word, count in counts:
            if count < FEWEST:
                plural = "" if count == 1 else "s"
                return f"{count} recording{plural} of a {word}, and {FEWEST} different ones are needed"
        return "no pair of a success and a failure was held out" if math.isnan(self.auroc) else ""


@dataclass(frozen=True)
class TrustAnswer:
    """The answer to "is it good enough?"."""

    kind: TrustKind
    reason: str
    auroc: float = math.nan
    """on held-out episodes; of several looks, the worst"""
    low: float = math.nan
    """it is at least this on new episodes, with 90% certainty"""
    more: int | None = None
    """about how many more episodes to label; None where that would not help or is unknown"""

    @property
    def headline(self) -> str:
        """The answer in a few words."""
        count = f"at least {MOST}" if self.more == MOST else f"about {self.more}"
        return f"Label {count} more" if self.kind == "label more" else self.kind[:1].upper() + self.kind[1:]

    @property
    def title(self) -> str:
        """The answer and the reason as one line."""
        return f"{self.headline}: {self.reason}"

    def as_facts(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        known = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in vars(self).items()}
        return {**known, "title": self.title}


def gather_evidence(values: Floats, success: Floats, groups: Sequence[str]) -> HeldOutEvidence:
    """Measure held-out final values (NaN = not held out); a group counts once as a success and once as a failure."""
    held_out = ~np.isnan(values)
    good, bad = ({g for g, s in zip(groups, success, strict=True) if s == label} for label in (1, 0))
    area = auroc(values[held_out], success[held_out]).measure(Resampling(resamples=1)).value
    return HeldOutEvidence(area, len(good), len(bad))


def decide_trust(
    looks: Sequence[HeldOutEvidence], control: ControlVerdict | None, curve: Sequence[CurvePoint] = ()
) -> TrustAnswer:
    """Answer from the evidence of each look (the worst decides), the verdict against the controls, and the curve."""
    where = " in one of its two looks" if len(looks) > 1 else ""
    lacking = next((look.lacks for look in looks if look.lacks), "")
    if lacking:
        return TrustAnswer("not yet measurable", lacking + where)
    worst = min(looks, key=lambda look: look.low)
    area, low = worst.auroc, worst.low
    sure = f"90% sure of at least {low:.2f}" if low < area else "chance is 0.50"
    ranks = f"it ranks {area:.0%} of held-out pairs right{where} (AUROC {area:.2f}, {sure})"
    if low >= BAR and (control is None or control.is_better):
        return TrustAnswer("trust it", ranks, area, low)
    if low >= BAR and control is not None:
        reason = f"{ranks}, but the control {control.control} gets {control.control_value:.2f} without seeing the task"
        return TrustAnswer("label more", reason, area, low, min(control.more or ENOUGH, MOST))
    slope, level = fit_curve(worst, curve)
    now = worst.successes + worst.failures
    flat = 1 - math.exp(level - slope * math.log(4 * now)) < BAR
    if min(worst.successes, worst.failures) >= ENOUGH and worst.high < BLIND and flat:
        reason = f"{ranks} after {now} recordings; try a closer view or another camera"
        return TrustAnswer("this camera cannot see it", reason, area, low)
    return TrustAnswer("label more", ranks, area, low, count_more(now, slope, level))


def bound_auroc(area: float, successes: int, failures: int, quantile: float) -> float:
    """Return a quantile of the AUROC on new episodes, from the held-out one of this many recordings."""
    smooth = (area * min(successes, failures) + PRIOR_AUROC) / (min(successes, failures) + 1)  # 0 and 1 have no width
    observations = smooth * (1 - smooth) / auroc_variance(smooth, successes, failures)
    x = (np.arange(1000) + 0.5) / 1000
    above = PRIOR_WEIGHT * PRIOR_AUROC + observations * area
    below = PRIOR_WEIGHT * (1 - PRIOR_AUROC) + observations * (1 - area)
    log = (above - 1) * np.log(x) + (below - 1) * np.log1p(-x)
    total = np.cumsum(np.exp(log - log.max()))
    return float(x[np.searchsorted(total, quantile * total[-1])])


def auroc_variance(area: float, successes: int, failures: int) -> float:
    """Return the variance of an AUROC after Hanley and McNeil."""
    success_twice, failure_twice = area / (2 - area), 2 * area**2 / (1 + area)
    excess = (successes - 1) * (success_twice - area**2) + (failures - 1) * (failure_twice - area**2)
    return (area * (1 - area) + excess) / (successes * failures)


def fit_curve(now: HeldOutEvidence, curve: Sequence[CurvePoint]) -> tuple[float, float]:
    """Fit log(1 - AUROC) = level - slope log(recordings) to the learning curve and to what is known now."""
    weight = min(now.successes, now.failures)
    area = (now.auroc * weight + PRIOR_AUROC * PRIOR_WEIGHT / 2) / (weight + PRIOR_WEIGHT / 2)
    points = [(point.groups, point.auroc) for point in curve if not math.isnan(point.auroc)]
    points.append((now.successes + now.failures, area))
    x = np.log([count for count, _ in points])
    y = np.log(np.maximum(1 - np.array([a for _, a in points]), SMALLEST_ERROR))
    # the line goes through the last point, the only one from all recordings
    dx, dy = x - x[-1], y - y[-1]
    slope = float((SLOPE_WEIGHT * USUAL_SLOPE - dx @ dy) / (SLOPE_WEIGHT + dx @ dx))
    slope = min(max(slope, 0.0), 1.0)
    return slope, float(y[-1] + slope * x[-1])


def count_more(now: int, slope: float, level: float) -> int:
    """Return about how many more recordings lead to trust if the learning curve goes on like this, at most MOST."""
    for more in range(2, MOST + 1, 2):
        area = 1 - max(math.exp(level - slope * math.log(now + more)), SMALLEST_ERROR)
        side = (now + more) // 2
        if bound_auroc(area, side, side, 1 - CERTAINTY) >= BAR:
            return min(round_up(more), MOST)
    return MOST
