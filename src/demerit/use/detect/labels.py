"""Alarms as labels, on request only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from demerit.data.episode import Episode
from demerit.data.labels import Event, Outcome
from demerit.data.store import Store
from demerit.use.detect.detector import Detection

UNKNOWN = "unknown"
"""the kind of an event where no chat model named it"""


def label_detections(folder: Path, judged: Iterable[tuple[Episode, Detection]], model: str) -> None:
    """Write an event per alarm, with the source `model`, in one commit; earlier ones by this detector are replaced."""
    by = f"detect with {model}"
    labels: dict[str, list[Outcome]] = {}
    for episode, one in judged:
        kept = [outcome for outcome in episode.outcomes if (outcome.source, outcome.by) != ("model", by)]
        if one.frame is not None:
            note = f"behind {one.behind:.3g}, threshold {one.threshold:.3g}"
            event = Event(one.kind or UNKNOWN, one.frame, len(episode) - 1, note)
            kept.append(Outcome("model", events=(event,), by=by))
        if kept != list(episode.outcomes):
            labels[episode.id] = kept
    with Store(folder).writer() as writer:
        writer.relabel(labels)
