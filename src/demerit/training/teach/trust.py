"""Is the taught model good enough? One answer, of five (`TrustKind`).

The AUROC on new episodes is estimated from held-out ones: a beta distribution, from a prior (what teaching usually
reaches) and as many observations as explain the variance of an AUROC of so few recordings (Hanley and McNeil 1982).
How often the answer was right, and on what the bars below were chosen: docs/results/trust.md (`benchmarks/trust.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from demerit.data.arrays import Floats
from demerit.data.files import plain
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.success import auroc
from demerit.evaluate.metrics.verdict import ControlVerdict, round_up
from demerit.training.teach.validate import CurvePoint

TrustKind = Literal[
    "trust it", "label more", "more labels will not help", "this camera cannot see it", "not yet measurable"
]
GOOD = 0.9
"""the AUROC on new episodes that "trust it" stands for"""
BAR, CERTAINTY = 0.8, 0.9
"""trust it when the AUROC is at least BAR with this certainty: so in 19 of 19 lessons, at least GOOD in 14"""
PRIOR_AUROC, PRIOR_WEIGHT = 0.7, 4.0
FEWEST = 3
"""different recordings of a success, and of a failure, below which nothing is said"""
ENOUGH, BLIND = 10, 0.7
"""with this many of each, and an AUROC surely below BLIND, the camera does not show the difference"""
MOST, REACH = 200, 4
"""no larger number of further episodes is named, and the learning curve is followed to so many times its length"""
FLAT = 0.02
"""a learning curve that is lower than what all recordings reach by less than this, on average, is flat"""
INSTEAD = "what helps is another camera, a closer view, or moments marked in each episode"
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
    unlabelled: int | None = None
    """episodes of the dataset that have no label yet; None = unknown"""

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> TrustAnswer:
        """Take what `as_dict` returned."""
        numbers = {name: math.nan if facts[name] is None else facts[name] for name in ("auroc", "low")}
        return cls(facts["kind"], facts["reason"], **numbers, more=facts["more"], unlabelled=facts.get("unlabelled"))

    @property
    def is_trusted(self) -> bool:
        """Whether the model can be used as it is."""
        return self.kind == "trust it"

    @property
    def headline(self) -> str:
        """The answer in a few words; no more labels than there are episodes without one."""
        if self.kind != "label more" or self.more is None:
            return self.kind[:1].upper() + self.kind[1:]
        if self.unlabelled is None or self.unlabelled >= self.more:
            return f"Label about {self.more} more"
        if not self.unlabelled:
            return f"Record and label about {self.more} more"
        return f"Label all {self.unlabelled} left, and record about {self.more - self.unlabelled} more"

    @property
    def title(self) -> str:
        """The answer and the reason as one line."""
        return f"{self.headline}: {self.reason}"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**plain(self), "title": self.title}


def gather_evidence(values: Floats, success: Floats, groups: Sequence[str]) -> HeldOutEvidence:
    """Measure held-out final values (NaN = not held out); a group counts once as a success and once as a failure."""
    held_out = ~np.isnan(values)
    good, bad = ({g for g, s in zip(groups, success, strict=True) if s == label} for label in (1, 0))
    area = auroc(values[held_out], success[held_out]).measure(Resampling(resamples=1)).value
    return HeldOutEvidence(area, len(good), len(bad))


def decide_trust(
    looks: Sequence[HeldOutEvidence],
    control: ControlVerdict | None,
    curve: Sequence[CurvePoint] = (),
    unlabelled: int | None = None,
) -> TrustAnswer:
    """Answer from the evidence of each look (the worst decides), the verdict against the controls, and the curve.

    `unlabelled` is the number of episodes that could be labelled.
    """
    where = " in one of its two looks" if len(looks) > 1 else ""
    lacking = next((look.lacks for look in looks if look.lacks), "")
    if lacking:
        return TrustAnswer("not yet measurable", lacking + where)
    worst = min(looks, key=lambda look: look.low)
    area, low, now = worst.auroc, worst.low, worst.successes + worst.failures
    sure = f"90% sure of at least {low:.2f}" if low < area else "chance is 0.50"
    ranks = f"it ranks {area:.0%} of held-out pairs right{where} (AUROC {area:.2f}, {sure})"
    if low >= BAR and (control is None or control.is_better):
        return TrustAnswer("trust it", ranks, area, low)
    if low >= BAR and control is not None:
        reason = f"{ranks}, but the control {control.control} gets {control.control_value:.2f} without seeing the task"
        return TrustAnswer("label more", reason, area, low, min(control.more or ENOUGH, _most(now)), unlabelled)
    slope, level = fit_curve(worst, curve)
    reached = 1 - math.exp(level - slope * math.log(REACH * now))
    if min(worst.successes, worst.failures) >= ENOUGH:
        if worst.high < BLIND and reached < BAR:
            reason = f"{ranks} after {now} recordings; try a closer view or another camera"
            return TrustAnswer("this camera cannot see it", reason, area, low)
        as_now = math.log(max(1 - area, SMALLEST_ERROR))
        if is_flat(area, curve) and count_more(now, 0.0, as_now) is None:  # else more labels would make it surer
            reason = f"{ranks}, and as many after a few of the {now} recordings: {INSTEAD}"
            return TrustAnswer("more labels will not help", reason, area, low)
    more = count_more(now, slope, level)
    if more is None:  # as many again: a step as long as the one that was seen
        more, ranks = min(now, MOST), f"{ranks}; then look again, since it cannot be seen yet how many it takes"
    return TrustAnswer("label more", ranks, area, low, more, unlabelled)


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


def is_flat(area: float, curve: Sequence[CurvePoint]) -> bool:
    """Whether all recordings rank held-out episodes no better than 2, 4, 8 ... of them, on average."""
    areas = [point.auroc for point in curve if not math.isnan(point.auroc)]
    return bool(areas) and area - float(np.mean(areas)) < FLAT


def count_more(now: int, slope: float, level: float) -> int | None:
    """Return about how many more recordings lead to trust if the learning curve goes on like this.

    None when it does not get there within REACH times its length, or MOST: beyond that nothing is known.
    """
    for more in range(2, _most(now) + 1, 2):
        area = 1 - max(math.exp(level - slope * math.log(now + more)), SMALLEST_ERROR)
        side = (now + more) // 2
        if bound_auroc(area, side, side, 1 - CERTAINTY) >= BAR:
            return min(round_up(more), _most(now))
    return None


def _most(now: int) -> int:
    return min((REACH - 1) * now, MOST)
