"""An edited episode: the frames and words that are left, and the label that follows from them."""

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


def edited(
    episode: Episode,
    name: str,
    params: Mapping[str, Any],
    outcome: Outcome,
    *,
    views: Mapping[str, Frames] | None = None,
    instruction: str | None = None,
) -> Episode:
    """Make the edited episode: a new id, the parent on record, one outcome.

    The original's accounts spoke of the original and go. Signals go as well: actions played backwards are no actions.
    Both are found again through `origin.parent`.
    """
    origin = episode.origin
    return Episode(
        id=edited_id(episode.id, name, params),
        instruction=episode.instruction if instruction is None else instruction,
        views=episode.views if views is None else views,
        outcomes=(outcome,),
        # Without a group of its own the original is the group: a split must not part it from what was made of it.
        origin=replace(origin, parent=episode.id, group=origin.group or episode.id),
        edits=(*episode.edits, Edit(name, dict(params))),
    )


def edited_id(parent: str, name: str, params: Mapping[str, Any]) -> str:
    """Name an edited episode: the same parent, edit and parameters give the same id everywhere."""
    digits = short_hash(json.dumps(dict(params), sort_keys=True).encode())[:ID_DIGITS]
    return f"{parent}+{name}-{digits}"


def reshown(
    episode: Episode,
    name: str,
    params: Mapping[str, Any],
    indices: npt.NDArray[np.integer[Any]],
    targets: Targets,
    *,
    events: tuple[Event, ...] = (),
) -> Episode:
    """Show the chosen frames of every camera; the label is the targets at exactly these frames.

    A video that ends where the task is done is a success of grade 5, whatever was changed before; any other is a
    failure with the grade of its last frame.
    """
    curve = targets.curve[indices]
    finished = bool(targets.done[indices[-1]])
    progress = float(curve[-1])
    if targets.events and np.all(np.diff(indices) >= 0):
        events = (*_carried(targets.events, indices), *events)
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
    return edited(episode, name, params, outcome, views=views)


def pick(candidates: Indices, rng: np.random.Generator, given: int | None, grade: int | None, what: str) -> int:
    """Draw one of the frames that will do, or check the given one."""
    if given is not None:
        if given not in candidates:
            raise NotApplicable(f"{what} is not at a frame that will do")
        return int(given)
    if not len(candidates):
        at = "that is unfinished" if grade is None else f"at grade {grade}"
        raise NotApplicable(f"it has no frame {at} to end at")
    return int(candidates[rng.integers(len(candidates))])


def _carried(events: Iterable[Event], indices: npt.NDArray[np.integer[Any]]) -> Iterator[Event]:
    """Find the original's events again among frames that still run forwards."""
    for event in events:
        seen = np.flatnonzero((indices >= event.first) & (indices <= event.last))
        if len(seen):
            yield replace(event, first=int(seen[0]), last=int(seen[-1]))
