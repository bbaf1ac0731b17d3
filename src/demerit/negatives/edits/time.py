"""Edits of time: clip, rewind, reverse, undo, freeze, slow, stall, jump.

The label follows the last frame, as in RoboReward's rubric, which judges the final state and sets no time limit. So
slow, stall and jump stay successes of grade 5 with another progress curve: a model that follows the clock gets them
wrong, one that looks at the frames gets them right.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.labels import Event
from demerit.errors import NotApplicable
from demerit.negatives.edits.edit import pick, select_frames
from demerit.negatives.negative import DONE_GRADE, UNFINISHED_GRADES, Targets, negative, targets_of

FEWEST_TO_CLIP = 2
FEWEST_TO_STALL = 3
FEWEST_TO_JUMP = 4
LEAST_MISSING = 0.25
LEAST_SLOW, SLOWEST = 1.5, 3.0


@negative("clip", grades=UNFINISHED_GRADES)
def clip(episode: Episode, rng: np.random.Generator, *, grade: int | None = None, last: int | None = None) -> Episode:
    """Keep the frames up to `last` (RoboReward's negative clipping). The video just ends, so there is no event."""
    targets = targets_of(episode, FEWEST_TO_CLIP)
    last = pick(targets.ends(grade, first=FEWEST_TO_CLIP - 1), rng, last, grade, "the cut")
    return select_frames(episode, "clip", {"last": last}, np.arange(last + 1), targets)


@negative("rewind", grades=UNFINISHED_GRADES)
def rewind(
    episode: Episode,
    rng: np.random.Generator,
    *,
    grade: int | None = None,
    turn: int | None = None,
    last: int | None = None,
) -> Episode:
    """Forward to `turn`, then back to the earlier frame `last` (Robometer's video rewind)."""
    targets = targets_of(episode)
    known = np.where(np.isnan(targets.curve), -np.inf, targets.curve)
    most_from_here = np.maximum.accumulate(known[::-1])[::-1]
    ends = targets.ends(grade)
    # Going back undoes something only if there is more progress later.
    last = pick(ends[most_from_here[ends] > targets.curve[ends]], rng, last, grade, "the end")
    later = np.arange(last + 1, len(targets), dtype=np.int32)
    turn = pick(later[targets.curve[later] > targets.curve[last]], rng, turn, None, "the turn")
    indices = np.concatenate([np.arange(turn + 1), np.arange(turn - 1, last - 1, -1)])
    return _play_back(episode, "rewind", {"turn": turn, "last": last}, indices, targets, turn + 1)


@negative("reverse", grades=(1,))
def reverse(episode: Episode, rng: np.random.Generator) -> Episode:
    """The whole video backwards."""
    targets = _check_start(targets_of(episode))
    return _play_back(episode, "reverse", {}, np.arange(len(targets) - 1, -1, -1), targets, 1)


@negative("undo", grades=(1,))
def undo(episode: Episode, rng: np.random.Generator) -> Episode:
    """The whole video forwards, then backwards."""
    targets = _check_start(targets_of(episode))
    end = len(targets) - 1
    indices = np.concatenate([np.arange(end + 1), np.arange(end - 1, -1, -1)])
    return _play_back(episode, "undo", {}, indices, targets, end + 1)


@negative("freeze", grades=UNFINISHED_GRADES)
def freeze(episode: Episode, rng: np.random.Generator, *, grade: int | None = None, at: int | None = None) -> Episode:
    """Forward to frame `at`, which is repeated up to the original's length, so that the length is not a cue."""
    targets = targets_of(episode)
    at = pick(targets.ends(grade), rng, at, grade, "the stop")
    event = Event("incomplete", at + 1, len(targets) - 1, "stands still")
    indices = np.minimum(np.arange(len(targets)), at)
    return select_frames(episode, "freeze", {"at": at}, indices, targets, events=(event,))


@negative("slow", grades=(DONE_GRADE,))
def slow(episode: Episode, rng: np.random.Generator, *, factor: float | None = None) -> Episode:
    """Every frame, `factor` times as slow."""
    targets = targets_of(episode)
    factor = round(float(rng.uniform(LEAST_SLOW, SLOWEST)), 2) if factor is None else factor
    if factor <= 1:
        raise NotApplicable("the factor does not slow it down")
    steps = np.arange(int(np.ceil(len(targets) * factor)))
    return select_frames(episode, "slow", {"factor": factor}, (steps / factor).astype(np.int64), targets)


@negative("stall", grades=(DONE_GRADE,))
def stall(episode: Episode, rng: np.random.Generator, *, at: int | None = None, frames: int | None = None) -> Episode:
    """Stop at frame `at` for `frames` more frames, then continue to the end."""
    targets = targets_of(episode, FEWEST_TO_STALL)
    length = len(targets)
    at = pick(np.arange(1, length - 1, dtype=np.int32), rng, at, None, "the stop")
    frames = int(rng.integers(max(1, length // 4), length + 1)) if frames is None else frames
    if frames < 1:
        raise NotApplicable("the stop has no frame")
    indices = np.concatenate([np.arange(at + 1), np.full(frames, at), np.arange(at + 1, length)])
    event = Event("hesitation", at + 1, at + frames, "stands still, then goes on")
    return select_frames(episode, "stall", {"at": at, "frames": frames}, indices, targets, events=(event,))


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
    indices = np.concatenate([np.arange(before + 1), np.arange(after, length)])
    return select_frames(episode, "jump", {"before": before, "after": after}, indices, targets)


def _play_back(
    episode: Episode, name: str, params: dict[str, int], indices: npt.NDArray[np.int64], targets: Targets, first: int
) -> Episode:
    event = Event("undone", first, len(indices) - 1, "played backwards")
    return select_frames(episode, name, params, indices, targets, events=(event,))


def _check_start(targets: Targets) -> Targets:
    if np.isnan(targets.curve[0]) or targets.done[0]:
        raise NotApplicable("its first frame is not known to be unfinished")
    return targets
