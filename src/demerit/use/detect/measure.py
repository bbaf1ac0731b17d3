"""How well a detector works, on labelled episodes that neither the model nor the detector has seen."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.labels import NOT_A_MODEL, Outcome, most_trusted, select_labels
from demerit.data.seen import SeenEpisodes
from demerit.use.detect.detector import Detection

Z = 1.96
SURVIVED = frozenset({"collision", "excessive force", "hesitation"})
"""kinds of event that successes have too: a failure with other events failed by those"""


@dataclass(frozen=True)
class CountedShare:
    """A share of episodes, with its 95% interval (Wilson)."""

    hits: int
    n: int

    @property
    def value(self) -> float:
        """The share; NaN = there are none."""
        return self.hits / self.n if self.n else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the interval; NaN = there are none."""
        if not self.n:
            return math.nan, math.nan
        middle = self.value + Z * Z / (2 * self.n)
        half = Z * math.sqrt(self.value * (1 - self.value) / self.n + (Z / (2 * self.n)) ** 2)
        low, high = ((middle + sign * half) / (1 + Z * Z / self.n) for sign in (-1, 1))
        return max(0.0, low), min(1.0, high)

    def __str__(self) -> str:
        if not self.n:
            return "unknown"
        low, high = self.interval
        return f"{self.hits} of {self.n} ({self.value:.1%}, 95% interval {low:.1%} to {high:.1%})"


@dataclass(frozen=True)
class DetectionFigures:
    """False alarms, failures found and delays."""

    false_alarms: CountedShare
    """of successes"""
    found: CountedShare
    """of failures"""
    early: CountedShare
    """of the failures found whose moment is known: those with an alarm before it"""
    delay: float
    """median frames from the moment of failure to the alarm; early ones are negative; NaN = unknown"""
    delay_share: float
    """the same, as a share of the episode"""
    kinds: CountedShare
    """of the failures found that have a labelled and a detected kind: those with the same"""
    not_counted: int
    """episodes that the detector was calibrated on, or that the model learned from"""

    @property
    def f1(self) -> float:
        """F1 of failures; NaN = there are none."""
        wrong = self.false_alarms.hits + self.found.n - self.found.hits
        return 2 * self.found.hits / (2 * self.found.hits + wrong) if self.found.n else math.nan

    def to_json(self) -> dict[str, Any]:
        """Return plain values; NaN becomes None."""
        found = {**asdict(self), "f1": self.f1}
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value for name, value in found.items()
        }


def measure_detections(
    judged: Iterable[tuple[Episode, Detection]], seen: SeenEpisodes | None = None
) -> DetectionFigures:
    """Compare detections with labels (not those of models); episodes in `seen` do not count."""
    alarms: dict[bool, list[bool]] = {True: [], False: []}
    delays: list[tuple[int, int]] = []
    kinds: list[bool] = []
    not_counted = 0
    for episode, detection in judged:
        label = most_trusted(select_labels(episode.outcomes, NOT_A_MODEL))
        if label is None or label.success is None or detection.alarm is None:
            continue
        if seen is not None and seen.has(episode):
            not_counted += 1
            continue
        alarms[label.success].append(detection.alarm)
        moment = failure_moment(label)
        if not label.success and detection.frame is not None and moment is not None:
            delays.append((detection.frame - moment[0], len(episode)))
            kinds += [detection.kind == moment[1]] if detection.kind else []
    return DetectionFigures(
        CountedShare(sum(alarms[True]), len(alarms[True])),
        CountedShare(sum(alarms[False]), len(alarms[False])),
        CountedShare(sum(delay < 0 for delay, _ in delays), len(delays)),
        float(np.median([delay for delay, _ in delays])) if delays else math.nan,
        float(np.median([delay / length for delay, length in delays])) if delays else math.nan,
        CountedShare(sum(kinds), len(kinds)),
        not_counted,
    )


def failure_moment(label: Outcome) -> tuple[int, str] | None:
    """Return the first frame and the kind of the event by which an episode failed; None = no event is marked."""
    decisive = [event for event in label.events if event.kind not in SURVIVED] or list(label.events)
    first = min(decisive, key=lambda event: event.first, default=None)
    return None if first is None else (first.first, first.kind)
