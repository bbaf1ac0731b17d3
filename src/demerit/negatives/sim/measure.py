"""Progress and success, measured at every frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demerit.negatives.sim.arena import Facts
from demerit.negatives.sim.tasks import Task

Floats = npt.NDArray[np.float64]

REACH_SHARE = 0.3
"""getting to the object is worth this much, moving it where it should be the rest"""
TOUCHING = 0.03
"""a hand this near (m) to an object's middle is at the object"""
UNDER_WAY = 0.1
"""once this share of the way is done, the object was reached, wherever the hand is now"""
NOT_YET = 0.95
"""the most that anything short of success is worth"""
SHORTEST_WAY = 1e-3


def progress(task: Task, first: Facts, now: Facts, success: bool) -> float:
    """Measure how much of the task is done at a moment, 0 to 1.

    p = 0.3 reach + 0.7 done, at most 0.95, and 1 while the task is done. With d the distance that is left, d0 the one
    at the start and w what is near enough: done = 1 - max(0, d - w) / (d0 - w). reach is the same of the hand's
    distance to the object, or done / 0.1 where that is more: who let go of an object half-way has still reached it.
    """
    if success:
        return 1.0
    done = _covered(now.distance, first.distance, task.within)
    if task.measure == "hand":
        return min(NOT_YET, done)
    apart, apart_first = (float(np.linalg.norm(facts.hand - facts.object)) for facts in (now, first))
    reach = max(_covered(apart, apart_first, TOUCHING), min(1.0, done / UNDER_WAY))
    return min(NOT_YET, REACH_SHARE * reach + (1 - REACH_SHARE) * done)


def _covered(left: float, at_first: float, enough: float) -> float:
    way = max(at_first - enough, SHORTEST_WAY)
    return float(np.clip(1 - max(0.0, left - enough) / way, 0, 1))


@dataclass(frozen=True, eq=False)
class Measured:
    """Everything that was measured in one episode: a value per frame, and the facts of every step between them."""

    task: Task
    stride: int
    """steps from one frame to the next"""
    steps: tuple[Facts, ...]
    """the facts before the first step, then after each: step k * stride is frame k"""
    success: npt.NDArray[np.bool_]
    """at each frame"""
    progress: Floats
    """at each frame"""

    @classmethod
    def of(cls, task: Task, stride: int, steps: Sequence[Facts], success: Sequence[bool]) -> Measured:
        """Measure progress at every frame."""
        frames = steps[::stride]
        curve = [progress(task, steps[0], facts, done) for facts, done in zip(frames, success, strict=True)]
        return cls(task, stride, tuple(steps), np.array(success, dtype=bool), np.array(curve))

    def __len__(self) -> int:
        """How many frames there are."""
        return len(self.success)

    @property
    def ever(self) -> bool:
        """Whether the task was done at some frame."""
        return bool(self.success.any())

    @property
    def at_end(self) -> bool:
        """Whether the task is done at the last frame: the label."""
        return bool(self.success[-1])

    def forces(self, name: str) -> npt.NDArray[np.float32]:
        """Return `object_force` or `scene_force`: at each frame the largest since the frame before."""
        values = np.array([getattr(facts, name) for facts in self.steps])
        padded = np.concatenate([np.zeros(self.stride - 1), values])
        return np.asarray(padded.reshape(len(self), self.stride).max(axis=1), dtype=np.float32)

    def states(self) -> npt.NDArray[np.float32]:
        """Return the hand's position and the gripper's openness at each frame: (frames, 4)."""
        frames = self.steps[:: self.stride]
        return np.array([[*facts.hand, facts.openness] for facts in frames], dtype=np.float32)

    def objects(self) -> npt.NDArray[np.float32]:
        """Return the position of the thing to move at each frame, and the distance that is left: (frames, 4)."""
        frames = self.steps[:: self.stride]
        return np.array([[*facts.object, facts.distance] for facts in frames], dtype=np.float32)
