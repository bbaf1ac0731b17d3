"""jump: the middle is missing.

What is the right label for a video that is cut? Its last frame shows the task done, and the rubric judges the final
state, so it stays a success of grade 5. What changes is the curve: progress leaps with the picture. A model that
follows the clock, or that carries its last answer on, is wrong there; one that looks at the frame is right.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.frames import Indices
from demerit.data.labels import Event
from demerit.errors import NotApplicable
from demerit.negatives.edits.edit import pick, reshown
from demerit.negatives.negative import DONE_GRADE, UNFINISHED_GRADES, Targets, negative, targets_of

FEWEST_FRAMES = 2  # a single picture shows no attempt


@negative("clip", grades=UNFINISHED_GRADES)
def clip(episode: Episode, rng: np.random.Generator, *, grade: int | None = None, last: int | None = None) -> Episode:
    """Keep the frames up to `last`; early, middle and late cut points are the grades 1 to 4.

    Nothing wrong is seen, the video just ends: there is no failure event.
    """
    targets = targets_of(episode, FEWEST_FRAMES)
    last = pick(targets.ends(grade, first=FEWEST_FRAMES - 1), rng, last, grade, "the cut")
    return reshown(episode, "clip", {"last": last}, np.arange(last + 1), targets)


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


SLOWEST = 3.0
LEAST_SLOW = 1.5
FEWEST_TO_STALL = 3


@negative("freeze", grades=UNFINISHED_GRADES)
def freeze(episode: Episode, rng: np.random.Generator, *, grade: int | None = None, at: int | None = None) -> Episode:
    """Forward to frame `at`, which then stays until the original's length is reached."""
    targets = targets_of(episode)
    at = pick(targets.ends(grade), rng, at, grade, "the stop")
    held = Event("incomplete", at + 1, len(targets) - 1, "stands still")
    return reshown(episode, "freeze", {"at": at}, np.minimum(np.arange(len(targets)), at), targets, events=(held,))


@negative("slow", grades=(DONE_GRADE,))
def slow(episode: Episode, rng: np.random.Generator, *, factor: float | None = None) -> Episode:
    """Every frame, `factor` times as slowly."""
    targets = targets_of(episode)
    factor = round(float(rng.uniform(LEAST_SLOW, SLOWEST)), 2) if factor is None else factor
    if factor <= 1:
        raise NotApplicable("the factor does not slow it down")
    steps = np.arange(int(np.ceil(len(targets) * factor)))
    return reshown(episode, "slow", {"factor": factor}, (steps / factor).astype(np.int64), targets)


@negative("stall", grades=(DONE_GRADE,))
def stall(episode: Episode, rng: np.random.Generator, *, at: int | None = None, frames: int | None = None) -> Episode:
    """Stop at frame `at` for so many more frames, then go on to the end."""
    targets = targets_of(episode, FEWEST_TO_STALL)
    length = len(targets)
    inside = np.arange(1, length - 1, dtype=np.int32)
    at = pick(inside, rng, at, None, "the stop")
    frames = int(rng.integers(max(1, length // 4), length + 1)) if frames is None else frames
    if frames < 1:
        raise NotApplicable("the stop lasts no frame")
    indices = np.concatenate([np.arange(at + 1), np.full(frames, at), np.arange(at + 1, length)])
    pause = Event("hesitation", at + 1, at + frames, "stands still, then goes on")
    return reshown(episode, "stall", {"at": at, "frames": frames}, indices, targets, events=(pause,))


FEWEST_TO_JUMP = 4
LEAST_MISSING = 0.25


@negative("jump", grades=(DONE_GRADE,))
def jump(episode: Episode, rng: np.random.Generator, *, before: int | None = None, after: int | None = None) -> Episode:
    """Keep the frames up to `before` and from `after` on; at least a quarter is missing between them."""
    targets = targets_of(episode, FEWEST_TO_JUMP)
    length = len(targets)
    missing = max(1, int(np.ceil(LEAST_MISSING * length)))
    before = pick(np.arange(length - 1 - missing, dtype=np.int32), rng, before, None, "the last frame before it")
    after = int(rng.integers(before + 1 + missing, length)) if after is None else after
    if not before + 1 < after < length:
        raise NotApplicable("nothing is missing between the two parts")
    kept = np.concatenate([np.arange(before + 1), np.arange(after, length)])
    return reshown(episode, "jump", {"before": before, "after": after}, kept, targets)
