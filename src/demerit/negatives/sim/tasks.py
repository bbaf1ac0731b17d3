"""The tasks, fifty of Meta-World and five of Fetch: instructions, remaining distance, facts about the experts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from demerit.data.arrays import Floats
from demerit.errors import UnknownName

if TYPE_CHECKING:
    from demerit.negatives.sim.arena import Arena, StepFacts

Corner: TypeAlias = tuple[float, float, float]

TABLE_AREA: tuple[Corner, Corner] = ((-0.28, 0.48, 0.0), (0.28, 0.78, 0.0))
"""corners of the table area for a second object"""
SAWYER, FETCH = "sawyer", "fetch"
"""the robots of Meta-World and of gymnasium-robotics"""
NAIL_DEPTH = 0.09
NAIL_WEIGHT = 3.0
"""driving the nail in by 9 cm counts as much as moving the hammer 27 cm closer"""

AXES = ("x", "y", "z")
"""measures of mechanisms that move along one axis"""


@dataclass(frozen=True)
class Task:
    """A task. Lengths in metres, forces in newtons, times in steps of 1/80 s."""

    name: str
    instructions: tuple[str, ...]
    """several wordings; the seed of an episode chooses one"""
    measure: str
    """how the remaining distance is measured: a name in MEASURES"""
    within: float
    """the distance that counts as success"""
    grasps: bool
    """whether the expert grasps something"""
    loose: bool
    """whether the object can be put anywhere (not a door, button or tool)"""
    spare: bool
    """whether there is a second object that could be mistaken for the right one"""
    steps: int
    """median number of steps until the expert succeeds"""
    stays: bool
    """whether the task stays done when the arm releases and leaves"""
    settles: bool
    """whether the task stays done while the expert continues; otherwise it is stopped at once"""
    object_force: float
    """the largest contact force of experts on movable objects"""
    scene_force: float
    """the largest contact force of experts on table, walls and housings"""
    inside: tuple[Corner, Corner] | None = None
    """corners of the inside of a bin, hole or net, relative to the target"""
    spare_area: tuple[Corner, Corner] = TABLE_AREA
    robot: str = SAWYER
    gentle: bool = False
    """whether a force above the largest of the experts spoils the task for good"""

    @property
    def long_pause(self) -> int:
        """A pause of this many steps is longer than any of the expert's."""
        return max(24, round(0.36 * self.steps))

    def distance(self, arena: Arena, observation: Floats) -> float:
        """The remaining distance."""
        target = arena.target()
        if self.inside is not None and _is_inside(observation[4:7] - target, self.inside):
            return 0.0
        return float(MEASURES[self.measure](arena, observation, target))

    def is_forced(self, facts: StepFacts) -> bool:
        """Whether a force is larger than any of the experts."""
        return facts.object_force > self.object_force or facts.scene_force > self.scene_force

    def is_done_at(self, distance: float) -> bool:
        """Whether the task is done where the environment's own test may fail.

        That test rejects a handle pressed further than required, and a block in the corner of its bin or hole.
        """
        return distance == 0 and (self.inside is not None or self.measure in AXES)


def _along(axis: int) -> Callable[[Arena, Floats, Floats], float]:
    """The remaining distance of a mechanism (button, handle, window) along its axis; 0 beyond the target."""

    def remaining(arena: Arena, observation: Floats, target: Floats) -> float:
        forward = np.sign(target[axis] - arena.start[axis])
        return max(0.0, float(forward * (target[axis] - observation[4 + axis])))

    return remaining


def _is_inside(place: Floats, corners: tuple[Corner, Corner]) -> bool:
    return bool(np.all(place >= corners[0]) and np.all(place <= corners[1]))


def _between(a: Floats, b: Floats) -> float:
    return float(np.linalg.norm(a - b))


def _nail(arena: Arena, observation: Floats, target: Floats) -> float:
    depth = float(arena.data.joint("NailSlideJoint").qpos.item())
    # The nail alone would show no progress until it is hit.
    return _between(observation[4:7], observation[11:14]) + NAIL_WEIGHT * max(0.0, NAIL_DEPTH - depth)


def _stick(arena: Arena, observation: Floats, target: Floats) -> float:
    return 0.5 * _between(observation[4:7], observation[11:14]) + _between(observation[11:14], target)


MEASURES: Mapping[str, Callable[[Arena, Floats, Floats], float]] = {
    "xyz": lambda arena, observation, target: _between(observation[4:7], target),
    "x": _along(0),
    "y": _along(1),
    "z": _along(2),
    "hand": lambda arena, observation, target: _between(arena.fingertips(), target),
    "rise": lambda arena, observation, target: max(0.0, float(target[2] - observation[6])),
    "ring": lambda arena, observation, target: _between(arena.env._get_site_pos("RoundNut"), target),
    "lever": lambda arena, observation, target: abs(np.pi / 2 + float(arena.data.joint("LeverAxis").qpos.item())),
    "peg": lambda arena, observation, target: _between(arena.env._get_site_pos("pegHead"), target),
    "nail": _nail,
    "stick": _stick,
}


def tasks(robot: str = SAWYER) -> dict[str, Task]:
    """The tasks of a robot by name."""
    return {name: task for name, task in all_tasks().items() if task.robot == robot}


@cache
def all_tasks() -> dict[str, Task]:
    """The tasks of all robots by name."""
    folder = files("demerit") / "assets" / "sim"
    described: dict[str, dict[str, Any]] = json.loads((folder / "tasks.json").read_text("utf-8"))
    measured: dict[str, dict[str, Any]] = json.loads((folder / "experts.json").read_text("utf-8"))
    return {
        name: Task(name=name, **{**facts, **measured[name], "instructions": tuple(facts["instructions"])})
        for name, facts in described.items()
    }


def task(name: str) -> Task:
    """Find a task by name."""
    if name not in all_tasks():
        raise UnknownName("task", name, all_tasks())
    return all_tasks()[name]
