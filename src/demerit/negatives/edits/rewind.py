"""rewind, reverse, undo: progress that is taken back (Robometer's video rewind, in both its forms)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.frames import Indices
from demerit.data.labels import Event
from demerit.errors import NotApplicable
from demerit.negatives.edits.edits import pick, reshown
from demerit.negatives.negative import negative
from demerit.negatives.targets import UNFINISHED_GRADES, Targets, targets_of

UNDONE = "undone"


@negative("rewind", grades=UNFINISHED_GRADES)
def rewind(
    episode: Episode,
    rng: np.random.Generator,
    *,
    grade: int | None = None,
    turn: int | None = None,
    last: int | None = None,
) -> Episode:
    """Forward to `turn`, then back to the earlier frame `last`: [o_1 .. o_turn, o_turn-1 .. o_last]."""
    targets = targets_of(episode)
    last = pick(_with_later_progress(targets, targets.ends(grade)), rng, last, grade, "the end")
    later = np.arange(last + 1, len(targets), dtype=np.int32)
    turn = pick(later[targets.curve[later] > targets.curve[last]], rng, turn, None, "the turn")
    there_and_back = np.concatenate([np.arange(turn + 1), np.arange(turn - 1, last - 1, -1)])
    return _taken_back(episode, "rewind", {"turn": turn, "last": last}, there_and_back, targets, turn + 1)


@negative("reverse", grades=(1,))
def reverse(episode: Episode, rng: np.random.Generator) -> Episode:
    """The whole video backwards: [o_T .. o_1]."""
    targets = _beginning_undone(targets_of(episode))
    return _taken_back(episode, "reverse", {}, np.arange(len(targets) - 1, -1, -1), targets, 1)


@negative("undo", grades=(1,))
def undo(episode: Episode, rng: np.random.Generator) -> Episode:
    """The task is done, and then all of it is taken back."""
    targets = _beginning_undone(targets_of(episode))
    end = len(targets) - 1
    there_and_back = np.concatenate([np.arange(end + 1), np.arange(end - 1, -1, -1)])
    return _taken_back(episode, "undo", {}, there_and_back, targets, end + 1)


def _taken_back(
    episode: Episode, name: str, params: dict[str, int], indices: npt.NDArray[np.int64], targets: Targets, first: int
) -> Episode:
    event = Event(UNDONE, first, len(indices) - 1, "played backwards")
    return reshown(episode, name, params, indices, targets, events=(event,))


def _with_later_progress(targets: Targets, ends: Indices) -> Indices:
    """Ends from which the original went on to more: going back to them undoes something."""
    known = np.where(np.isnan(targets.curve), -np.inf, targets.curve)
    most_from_here = np.maximum.accumulate(known[::-1])[::-1]
    return ends[most_from_here[ends] > targets.curve[ends]]


def _beginning_undone(targets: Targets) -> Targets:
    if np.isnan(targets.curve[0]) or targets.done[0]:
        raise NotApplicable("its first frame is not known to be unfinished")
    return targets
