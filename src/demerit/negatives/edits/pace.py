"""freeze, slow, stall: the same motion at another pace. Time is not progress.

`freeze` stops half-way and never goes on: a failure, and as long as the original, so that length does not give it
away. `slow` and `stall` still get there. The final state decides (RoboReward's rubric sets no time limit), so they
stay successes of grade 5 whose progress grows more slowly: examples that a model which counts frames gets wrong.
"""

from __future__ import annotations

import numpy as np

from demerit.data.episode import Episode
from demerit.data.labels import Event
from demerit.errors import NotApplicable
from demerit.negatives.edits.edits import pick, reshown
from demerit.negatives.negative import negative
from demerit.negatives.targets import DONE_GRADE, UNFINISHED_GRADES, targets_of

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
