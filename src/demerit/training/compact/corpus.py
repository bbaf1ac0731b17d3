"""What the compact model keeps of an episode: square frames, a progress curve and numbers from the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import Indices, Prepare, spread
from demerit.data.labels import Outcome
from demerit.models.compact.resize import resize_square
from demerit.training.prepared import HELD_OUT, CorpusPart, CorpusRow, Floats

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
    has_preferences = False

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
        """Label an episode by its curve, or as a demonstration."""
        labelled = find_label(episode, part.use == "demonstrations")
        if labelled is None:
            return "neither a curve nor a demonstration"
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
            progress=np.full(len(frames), np.nan, np.float32) if curve is None else curve[frames].astype(np.float32),
            times=episode.main.times()[frames].astype(np.float32),
            task=episode.origin.tags.get("task") or episode.instruction,
            site=episode.origin.site or episode.origin.tags.get("lab", ""),
            group=episode.origin.group,
            split=HELD_OUT if part.use == HELD_OUT else episode.origin.split,
            facts=simulator_facts(episode, frames),
        )


def find_label(episode: Episode, is_demonstration: bool) -> tuple[str, Outcome | None] | None:
    """Return the kind of an episode and the outcome with its curve; None if it cannot be used."""
    with_curve = [outcome for outcome in episode.outcomes if outcome.curve is not None]
    measured = [outcome for outcome in with_curve if outcome.source in ("human", "simulator")]
    if measured:
        return "measured", measured[0]
    outcome = episode.outcome
    if is_demonstration or (outcome is not None and outcome.success and outcome.source in ("human", "rule")):
        return "demonstration", None
    return ("model", with_curve[0]) if with_curve else None


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
