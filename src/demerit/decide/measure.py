"""How well a detector works on labelled episodes that neither it nor its model has seen; alarms as labels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.episode import NOT_A_MODEL, Episode, Event, Outcome, most_trusted, select_labels
from demerit.data.files import plain
from demerit.data.splits import SeenEpisodes
from demerit.data.store import Store
from demerit.data.taxonomy import UNKNOWN
from demerit.decide.detector import Detection
from demerit.decide.interval import Share

SURVIVED = frozenset({"collision", "excessive force", "hesitation"})
"""kinds of event that successes have too: a failure with other events failed by those"""


@dataclass(frozen=True)
class DetectionFigures:
    """False alarms, failures found and delays."""

    false_alarms: Share
    """of successes"""
    found: Share
    """of failures"""
    early: Share
    """of the failures found whose moment is known: those with an alarm before it"""
    delay: float
    """median frames from the moment of failure to the alarm; early ones are negative; NaN = unknown"""
    delay_share: float
    """the same, as a share of the episode"""
    moment_error: float
    """median distance from the moment of failure to where it is said to have gone wrong, as a share of the episode"""
    kinds: Share
    """of the failures found that have a labelled and a detected kind: those with the same"""
    not_counted: int
    """episodes that the detector was calibrated on, or that the model learned from"""

    @property
    def f1(self) -> float:
        """F1 of failures; NaN = there are none."""
        wrong = self.false_alarms.hits + self.found.n - self.found.hits
        return 2 * self.found.hits / (2 * self.found.hits + wrong) if self.found.n else math.nan

    def as_rows(self) -> list[tuple[str, str]]:
        """Return what was measured on labels, as names and texts, with intervals."""
        rows = [("false alarms", str(self.false_alarms))] if self.false_alarms.n else []
        rows += [("failures found", str(self.found))] if self.found.n else []
        if self.early.n:
            delay = f"median {self.delay:+.0f} frames, {self.delay_share:+.0%} of the episode"
            rows.append(("from the marked failure to the alarm", f"{delay}; before it: {self.early}"))
            rows.append(("guessed moment", f"{self.moment_error:.0%} of the episode from the marked failure (median)"))
        rows += [("kind of failure as labelled", str(self.kinds))] if self.kinds.n else []
        count = f"{self.not_counted} episodes: learned from, or calibrated on"
        return rows + ([("do not count", count)] if self.not_counted else [])

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; NaN becomes None."""
        facts = {**vars(self), "f1": self.f1}
        return {name: value.as_dict() if isinstance(value, Share) else plain(value) for name, value in facts.items()}


def measure_detections(
    judged: Iterable[tuple[Episode, Detection]], seen: SeenEpisodes | None = None
) -> DetectionFigures:
    """Compare detections with labels (not those of models); episodes in `seen` do not count."""
    alarms: dict[bool, list[bool]] = {True: [], False: []}
    delays: list[tuple[int, int, int]] = []
    kinds: list[bool] = []
    not_counted = 0
    for episode, detection in judged:
        label = most_trusted(select_labels(episode.labels, NOT_A_MODEL))
        if label is None or label.success is None or detection.alarm is None:
            continue
        if seen is not None and seen.has(episode):
            not_counted += 1
            continue
        alarms[label.success].append(detection.alarm)
        moment = failure_moment(label)
        wrong_at = detection.went_wrong_at
        if not label.success and detection.flagged_at is not None and wrong_at is not None and moment is not None:
            delays.append((detection.flagged_at - moment[0], abs(wrong_at - moment[0]), len(episode)))
            kinds += [detection.kind == moment[1]] if detection.kind and moment[1] != UNKNOWN else []
    return DetectionFigures(
        Share.count(sum(alarms[True]), len(alarms[True])),
        Share.count(sum(alarms[False]), len(alarms[False])),
        Share.count(sum(delay < 0 for delay, *_ in delays), len(delays)),
        float(np.median([delay for delay, *_ in delays])) if delays else math.nan,
        float(np.median([delay / length for delay, _, length in delays])) if delays else math.nan,
        float(np.median([error / length for _, error, length in delays])) if delays else math.nan,
        Share.count(sum(kinds), len(kinds)),
        not_counted,
    )


def failure_moment(label: Outcome) -> tuple[int, str] | None:
    """Return the first frame and the kind of the event by which an episode failed; None = no event is marked."""
    decisive = [event for event in label.events if event.kind not in SURVIVED] or list(label.events)
    first = min(decisive, key=lambda event: event.first, default=None)
    return None if first is None else (first.first, first.kind)


def label_detections(folder: Path, judged: Iterable[tuple[Episode, Detection]], model: str) -> None:
    """Write an event per alarm, with the source `model`, in one commit; earlier ones by this detector are replaced."""
    by = f"detect with {model}"
    labels: dict[str, list[Outcome]] = {}
    for episode, detection in judged:
        outcomes = [outcome for outcome in episode.outcomes if (outcome.source, outcome.by) != ("model", by)]
        if detection.went_wrong_at is not None:
            at = f"its beginning is a guess; flagged at {detection.flagged_at}"
            note = f"{at}, behind {detection.behind:.3g}, threshold {detection.threshold:.3g}"
            event = Event(detection.kind or UNKNOWN, detection.went_wrong_at, len(episode) - 1, note)
            outcomes.append(Outcome("model", events=(event,), by=by))
        if outcomes != list(episode.outcomes):
            labels[episode.id] = outcomes
    with Store(folder).writer() as writer:
        writer.relabel(labels)
