"""Experts that do not stop when they are done: they go on too far, or undo it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from demerit.negatives.sim.behaviours import Expert, Moment, Stage
from demerit.negatives.sim.endings import METRES_PER_ACTION

Floats = npt.NDArray[np.float64]

NEARLY = 0.9


class Overshoot(Expert):
    """Do not stop at the goal: go on in the direction of travel."""

    ends_on_success = False

    def __init__(self, stage: Stage) -> None:
        """Draw how far."""
        super().__init__(stage)
        self.left = int(self.rng.integers(12, 30))
        self.velocity = np.zeros(3)
        self.before: Floats | None = None
        self.past = False

    def act(self, now: Moment) -> Floats:
        """Follow the expert, then the direction it had."""
        hand = now.facts.hand
        if self.before is not None and not self.past:
            self.velocity = 0.9 * self.velocity + 0.1 * (hand - self.before)
        self.before = hand
        self.past = self.past or now.success or now.progress >= NEARLY
        action = super().act(now)
        if not self.past:
            return action
        self.left -= 1
        self.over = self.left <= 0
        direction = self.velocity / (np.linalg.norm(self.velocity) + 1e-9)
        return np.array([*np.clip(direction * 1.2, -1, 1), action[3]])


class Undo(Expert):
    """Do the task, then take it back the way it came."""

    ends_on_success = False

    def __init__(self, stage: Stage) -> None:
        """Draw how long it stays done, and how far back it goes."""
        super().__init__(stage)
        self.path: list[Floats] = []
        self.rest = int(self.rng.integers(6, 20))
        self.back = float(self.rng.uniform(0.5, 0.9))
        self.done_for = 0
        self.target = 0

    def act(self, now: Moment) -> Floats:
        """Do it; wait; go back along the path, gripper closed."""
        if self.done_for == 0 and not now.success:
            self.path.append(now.facts.hand)
            return super().act(now)
        self.done_for += 1
        if self.done_for < self.rest:
            self.waits = True
            return super().act(now)
        self.waits = False
        if self.done_for == self.rest:
            self.target = len(self.path) - 1
        end = int(len(self.path) * (1 - self.back))
        if self.target <= end:
            self.over = True
            return np.array([0, 0, 0, 1.0 if self.stage.task.grasps else -1.0])
        # skip ahead on the path so that the hand moves at a working speed
        while self.target > end and np.linalg.norm(self.path[self.target] - now.facts.hand) < 0.02:  # noqa: PLR2004
            self.target -= 1
        move = (self.path[self.target] - now.facts.hand) / METRES_PER_ACTION
        return np.array([*np.clip(move, -0.9, 0.9), 1.0])
