"""Experts that are wrong about the world: where the object is, whether they hold it, which one it is, where it goes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from demerit.negatives.sim.behaviours import Expert, Moment, Stage
from demerit.negatives.sim.tasks import Task

Floats = npt.NDArray[np.float64]

OPEN, CLOSED = 1.0, 0.5
"""the gripper's openness as experts read it: wide open, and around an object"""
CLOSED_BY_NOW = 6
"""steps of closing after which an expert thinks that it has the object"""
AT_HAND = 0.075
"""a hand this near (m) to where it thinks the object is can close on it"""
READ_THE_GOAL = frozenset(
    "pick-place push push-wall pick-place-wall push-back coffee-push hand-insert pick-out-of-hole reach reach-wall "
    "peg-insert-side".split()
)
"""tasks whose expert looks where the goal is: shown another goal, it goes there"""


def believing(
    observation: Floats, thing: Floats | None = None, goal: Floats | None = None, openness: float | None = None
) -> Floats:
    """Change what an expert sees: where the object is, where the goal is, how open the gripper is."""
    seen = observation.copy()
    if thing is not None:
        seen[4:7] = thing
    if goal is not None:
        seen[-3:] = goal
    if openness is not None:
        seen[3] = openness
    return seen


class _EmptyHanded(Expert):
    """An expert that goes on as if it held the object."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.grip: Floats | None = None
        """where in the hand it thinks the object is, once it thinks so"""

    def carry_on(self, now: Moment, thing: Floats) -> Floats:
        """Act on a belief about where the object is, and on the belief to hold it once the gripper is closed."""
        hand = now.facts.hand
        if self.grip is not None:
            seen = believing(now.facts.observation, hand + self.grip, openness=CLOSED)
            return self.expert(seen)
        return self.expert(believing(now.facts.observation, thing))


class MissedGrasp(_EmptyHanded):
    """Reach beside the object, close, and carry nothing to the goal."""

    def __init__(self, stage: Stage) -> None:
        """Draw how far beside."""
        super().__init__(stage)
        angle = self.rng.uniform(0, 2 * np.pi)
        self.beside = self.rng.uniform(0.05, 0.09) * np.array([np.cos(angle), np.sin(angle), 0.0])
        self.closing = 0

    def act(self, now: Moment) -> Floats:
        """Think that the object is beside where it is."""
        thing = now.facts.object + self.beside
        action = self.carry_on(now, thing)
        near = float(np.linalg.norm(now.facts.hand - thing)) < AT_HAND
        self.closing = self.closing + 1 if near and action[3] > 0 else 0
        if self.stage.task.grasps and self.grip is None and self.closing > CLOSED_BY_NOW:
            self.grip = thing - now.facts.hand
        return action


class Drop(_EmptyHanded):
    """Take the object, lose it on the way, and go on without it."""

    def __init__(self, stage: Stage) -> None:
        """Draw how far it gets."""
        super().__init__(stage)
        self.until = float(self.rng.uniform(0.35, 0.65))

    @classmethod
    def why_not(cls, task: Task) -> str:
        """Only what is held can be dropped."""
        return "" if task.grasps else f"nothing is held in {task.name}"

    def act(self, now: Moment) -> Floats:
        """Open the gripper for good when that far."""
        if self.grip is None and now.facts.held and now.progress >= self.until:
            self.grip = now.facts.object - now.facts.hand
        action = self.carry_on(now, now.facts.object)
        return action if self.grip is None else np.array([*action[:3], -1.0])


class NeverCloses(_EmptyHanded):
    """Do everything with an open gripper."""

    def __init__(self, stage: Stage) -> None:
        """Start with an open hand."""
        super().__init__(stage)
        self.closing = 0

    @classmethod
    def why_not(cls, task: Task) -> str:
        """Where the gripper plays no part, leaving it open is no mistake."""
        return "" if task.grasps else f"the gripper plays no part in {task.name}"

    def act(self, now: Moment) -> Floats:
        """Leave the gripper open and think that it closed."""
        action = self.carry_on(now, now.facts.object)
        self.closing = self.closing + 1 if action[3] > 0 else 0
        if self.grip is None and self.closing > CLOSED_BY_NOW:
            self.grip = now.facts.object - now.facts.hand
        return np.array([*action[:3], -1.0])


class WrongPlace(Expert):
    """Bring the object near the goal, not to it."""

    def __init__(self, stage: Stage) -> None:
        """Draw where instead: beside the goal where the expert looks for it, else short of it."""
        super().__init__(stage)
        angle = self.rng.uniform(0, 2 * np.pi)
        away = stage.task.within + self.rng.uniform(0.03, 0.10)
        self.goal = stage.first.observation[-3:] + away * np.array([np.cos(angle), np.sin(angle), 0.0])
        self.until = float(self.rng.uniform(0.45, 0.8))
        self.releasing = 0
        self.reads = stage.task.name in READ_THE_GOAL

    def act(self, now: Moment) -> Floats:
        """Go to the other place, or as far as it goes, and let go there."""
        if self.releasing or (self._is_there(now) if self.reads else now.progress >= self.until):
            self.releasing += 1
            self.over = self.releasing > 12  # noqa: PLR2004
            return np.array([0, 0, 0, -1.0])
        return self.expert(believing(now.facts.observation, goal=self.goal)) if self.reads else super().act(now)

    def _is_there(self, now: Moment) -> bool:
        thing = now.facts.object if self.stage.task.loose else now.facts.hand
        return float(np.linalg.norm(thing - self.goal)) < 0.6 * self.stage.task.within


class WrongObject(Expert):
    """Do the task with the other object."""

    @classmethod
    def why_not(cls, task: Task) -> str:
        """There must be another object."""
        return "" if task.spare else f"there is no second object in {task.name}"

    def act(self, now: Moment) -> Floats:
        """Take the other object for the right one."""
        return self.expert(believing(now.facts.observation, now.facts.spare))
