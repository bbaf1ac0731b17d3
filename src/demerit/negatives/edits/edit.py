"""Building an edited episode: new frames or instruction, and the label that follows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Edit, Episode
from demerit.data.frames import Frames, Indices, short_hash
from demerit.data.labels import Event, Outcome
from demerit.errors import NotApplicable
from demerit.negatives.negative import DONE_GRADE, Targets, grade_of

ID_DIGITS = 10


def build_edited(
    episode: Episode,
    name: str,
    params: Mapping[str, Any],
    outcome: Outcome,
    *,
    views: Mapping[str, Frames] | None = None,
    instruction: str | None = None,
) -> Episode:
    """Build the edited episode: new id, `origin.parent`, one outcome.

    Outcomes and signals of the original do not apply to it and are dropped (actions played backwards are not actions).
    """
    digits = short_hash(json.dumps(dict(params), sort_keys=True).encode())[:ID_DIGITS]
    origin = episode.origin
    return Episode(
        id=f"{episode.id}+{name}-{digits}",
        instruction=episode.instruction if instruction is None else instruction,
        views=episode.views if views is None else views,
        outcomes=(outcome,),
        # Without a group, the original is the group: a split must not separate it from its edits.
        origin=replace(origin, parent=episode.id, group=origin.group or episode.id),
        edits=(*episode.edits, Edit(name, dict(params))),
    )


def select_frames(
    episode: Episode,
    name: str,
    params: Mapping[str, Any],
    indices: npt.NDArray[np.integer[Any]],
    targets: Targets,
    *,
    events: tuple[Event, ...] = (),
) -> Episode:
    """Build an episode of the given frames of every camera, labelled by the targets at these frames.

    A video that ends where the task is done is a success of grade 5; any other is a failure with the grade of its last
    frame.
    """
    curve = targets.curve[indices]
    finished = bool(targets.done[indices[-1]])
    progress = float(curve[-1])
    if targets.events and np.all(np.diff(indices) >= 0):
        events = (*_remap_events(targets.events, indices), *events)
    outcome = Outcome(
        "edit",
        success=finished,
        progress=progress,
        grade=DONE_GRADE if finished else grade_of(progress),
        curve=curve,
        events=events,
        by=name,
    )
    views = {camera: frames.select(indices) for camera, frames in episode.views.items()}
    return build_edited(episode, name, params, outcome, views=views)


def pick(candidates: Indices, rng: np.random.Generator, given: int | None, grade: int | None, what: str) -> int:
    """Draw one of the candidate frames, or check the given one."""
    if given is not None:
        if given not in candidates:
            raise NotApplicable(f"{what} is not at a possible frame")
        return int(given)
    if not len(candidates):
        at = "unfinished frame" if grade is None else f"frame at grade {grade}"
        raise NotApplicable(f"it has no {at} to end at")
    return int(candidates[rng.integers(len(candidates))])


def _remap_events(events: Iterable[Event], indices: npt.NDArray[np.integer[Any]]) -> Iterator[Event]:
    """Find the original's events among frames in forward order."""
    for event in events:
        seen = np.flatnonzero((indices >= event.first) & (indices <= event.last))
        if len(seen):
            yield replace(event, first=int(seen[0]), last=int(seen[-1]))
