"""What the compact model keeps of an episode: square frames, a progress curve and numbers from the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import Indices, Prepare, spread
from demerit.data.labels import TRAINED_SOURCES, Outcome, most_trusted
from demerit.data.splits import has_own_instruction
from demerit.models.compact.resize import resize_square
from demerit.training.prepared import CorpusPart, CorpusRow, Floats

MOST_FRAMES = 32
"""frames kept of an episode; longer ones are thinned evenly"""
LENGTH, HEIGHT = 0.3, 0.2
"""metres that count as 1 in `SIMULATOR_FACTS`"""
SIMULATOR_FACTS = ("object moved", "hand to object", "gripper open", "object lifted")
"""what a simulator measures at each frame, scaled to about 1; NaN elsewhere"""


@dataclass(frozen=True)
class CompactCorpusPlan:
    """A `PreparePlan` for square frames of `size` pixels per side."""

    size: int
    sources: tuple[str, ...] = TRAINED_SOURCES
    without: tuple[str, ...] = ()
    has_preferences = False
    has_grades = False

    @property
    def facts(self) -> Mapping[str, Any]:
        """The numbers that decide which frames are kept."""
        return {"model": "compact", "size": self.size, "most_frames": MOST_FRAMES}

    @property
    def resize(self) -> Prepare:
        """Stretch images to squares."""
        return partial(resize_square, side=self.size)

    def choose_frames(self, episode: Episode) -> Indices:
        """Return at most 32 frame numbers, evenly spread."""
        return spread(len(episode), MOST_FRAMES)

    def label(self, episode: Episode, frames: Indices, part: CorpusPart) -> CorpusRow | str:
        """Label an episode by its curve, as a demonstration, or by its end."""
        labelled = find_label(episode, part.use == "demonstrations")
        if labelled is None:
            return "no label"
        kind, outcome = labelled
        if not len(episode):
            return "no frames"
        curve = None if outcome is None else outcome.curve
        if curve is not None and len(curve) != len(episode):
            return "a curve of another length than the video"
        return CorpusRow(
            id=episode.id,
            source=part.name,
            instruction=episode.instruction,
            kind=kind,
            success=True if outcome is None else outcome.success,
            progress=_end_progress(len(frames), kind, outcome) if curve is None else curve[frames].astype(np.float32),
            times=episode.main.times()[frames].astype(np.float32),
            grade=None if outcome is None else outcome.grade,
            task=episode.origin.tags.get("task") or episode.instruction,
            site=episode.origin.site or episode.origin.tags.get("lab", ""),
            group=episode.origin.group,
            facts=simulator_facts(episode, frames),
        )


def find_label(episode: Episode, is_demonstration: bool) -> tuple[str, Outcome | None] | None:
    """Return the kind of an episode and its outcome; None if it cannot be used.

    Episodes with an instruction of an edit are of the kind `outcome`, since other kinds share instructions in a task.
    """
    if not has_own_instruction(episode):
        return ("outcome", episode.outcome) if episode.outcome is not None else None
    with_curve = [outcome for outcome in episode.outcomes if outcome.curve is not None]
    measured = most_trusted(outcome for outcome in with_curve if outcome.source in ("human", "simulator", "edit"))
    if measured is not None:
        return "measured", measured
    outcome = episode.outcome
    if is_demonstration or (outcome is not None and outcome.success and outcome.source in ("human", "rule")):
        return "demonstration", None
    if with_curve:
        return "model", with_curve[0]
    judged = (one for one in episode.outcomes if (one.success, one.progress, one.grade) != (None, None, None))
    found = most_trusted(judged)
    return ("outcome", found) if found is not None else None


def _end_progress(frames: int, kind: str, outcome: Outcome | None) -> Floats:
    """Return NaN, and at the last frame the final progress of an outcome where it is known."""
    progress = np.full(frames, np.nan, np.float32)
    if kind == "outcome" and outcome is not None:
        graded = None if outcome.grade is None else (outcome.grade - 1) / 4
        known = outcome.progress if outcome.progress is not None else graded
        progress[-1] = 1.0 if outcome.success else np.nan if known is None else known
    return progress


def simulator_facts(episode: Episode, frames: Indices) -> Floats | None:
    """Return (frames, 4) numbers in the order of `SIMULATOR_FACTS`; None without a simulator's signals."""
    if not {"object", "state"} <= set(episode.signals):
        return None
    thing, state = (np.asarray(episode.signals[name], dtype=np.float32)[frames] for name in ("object", "state"))
    place, hand, gripper = thing[:, :3], state[:, :3], state[:, 3]
    columns = [
        np.linalg.norm(place - place[0], axis=1) / LENGTH,
        np.linalg.norm(place - hand, axis=1) / LENGTH,
        gripper,
        (place[:, 2] - place[0, 2]) / HEIGHT,
    ]
    return np.stack(columns, axis=1).astype(np.float32)
