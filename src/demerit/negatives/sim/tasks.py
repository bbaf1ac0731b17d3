"""The fifty tasks of Meta-World: our words for them, what is left to do at a moment, and what their experts need."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from demerit.errors import UnknownName

if TYPE_CHECKING:
    from demerit.negatives.sim.arena import Arena

Floats = npt.NDArray[np.float64]
Corner: TypeAlias = tuple[float, float, float]

TABLE_AREA: tuple[Corner, Corner] = ((-0.28, 0.48, 0.0), (0.28, 0.78, 0.0))
"""corners of the part of the table on which a second object may lie"""
NAIL_DEPTH = 0.09
NAIL_WEIGHT = 3.0
"""driving the nail 9 cm in counts as much as bringing the hammer 27 cm nearer"""

AXES = ("x", "y", "z")
"""measures of mechanisms, which are moved along one axis"""


@dataclass(frozen=True)
class Task:
    """One task. Lengths in metres, forces in newtons, times in steps of 1/80 s."""

    name: str
    instructions: tuple[str, ...]
    """several ways to say it; an episode gets one by its seed"""
    measure: str
    """how the distance that is left is measured: a name in MEASURES"""
    within: float
    """a distance that is near enough"""
    grasps: bool
    """whether the expert takes hold of something"""
    loose: bool
    """whether the thing to move can be put anywhere: not a door, a button or a tool"""
    spare: bool
    """whether a second object that could be mistaken for the right one lies on the table"""
    steps: int
    """when experts succeed: the median over seeds"""
    stays: bool
    """whether the task stays done when the arm lets go and leaves"""
    settles: bool
    """whether the expert, going on after success, stays successful; where it does not, it is stopped at once"""
    object_force: float
    """the largest force with which experts touch movable things"""
    scene_force: float
    """the largest force with which experts touch the table, walls and housings"""
    inside: tuple[Corner, Corner] | None = None
    """where the task ends in a bin, a hole or a net: its inside, as corners relative to the target"""
    spare_area: tuple[Corner, Corner] = TABLE_AREA

    @property
    def long_pause(self) -> int:
        """Steps of standing still that are no part of the work: experts wait for their gripper, but not that long."""
        return max(24, round(0.36 * self.steps))

    def distance(self, arena: Arena, observation: Floats) -> float:
        """Measure what is left of the task."""
        target = np.asarray(arena.env._target_pos)
        if self.inside is not None and _is_inside(observation[4:7] - target, self.inside):
            return 0.0
        return float(MEASURES[self.measure](arena, observation, target))

    def is_done_at(self, distance: float) -> bool:
        """Whether nothing is left, in a way that the environment's own test may miss.

        Its tests have two sides: a handle pressed further than asked would not be pressed, and a block that has
        settled in a corner of its bin or hole would not be in it. These are done, too.
        """
        return distance == 0 and (self.inside is not None or self.measure in AXES)


def _along(axis: int) -> Callable[[Arena, Floats, Floats], float]:
    """Measure a mechanism (a button, a handle, a sliding window) along its axis: further than asked is done, too."""

    def left(arena: Arena, observation: Floats, target: Floats) -> float:
        forward = np.sign(target[axis] - arena.start[axis])
        return max(0.0, float(forward * (target[axis] - observation[4 + axis])))

    return left


def _is_inside(place: Floats, corners: tuple[Corner, Corner]) -> bool:
    return bool(np.all(place >= corners[0]) and np.all(place <= corners[1]))


def _between(a: Floats, b: Floats) -> float:
    return float(np.linalg.norm(a - b))


def _nail(arena: Arena, observation: Floats, target: Floats) -> float:
    depth = float(arena.data.joint("NailSlideJoint").qpos.item())
    # The hammer must come to the nail first: the nail alone would show no progress until it is hit.
    return _between(observation[4:7], observation[11:14]) + NAIL_WEIGHT * max(0.0, NAIL_DEPTH - depth)


def _stick(arena: Arena, observation: Floats, target: Floats) -> float:
    return 0.5 * _between(observation[4:7], observation[11:14]) + _between(observation[11:14], target)


MEASURES: Mapping[str, Callable[[Arena, Floats, Floats], float]] = {
    "xyz": lambda arena, observation, target: _between(observation[4:7], target),
    "x": _along(0),
    "y": _along(1),
    "z": _along(2),
    "hand": lambda arena, observation, target: _between(arena.env.tcp_center, target),
    "rise": lambda arena, observation, target: max(0.0, float(target[2] - observation[6])),
    "ring": lambda arena, observation, target: _between(arena.env._get_site_pos("RoundNut"), target),
    "lever": lambda arena, observation, target: abs(np.pi / 2 + float(arena.data.joint("LeverAxis").qpos.item())),
    "peg": lambda arena, observation, target: _between(arena.env._get_site_pos("pegHead"), target),
    "nail": _nail,
    "stick": _stick,
}


@cache
def tasks() -> dict[str, Task]:
    """All tasks by name."""
    folder = files("demerit") / "assets" / "sim"
    told: dict[str, dict[str, Any]] = json.loads((folder / "tasks.json").read_text("utf-8"))
    measured: dict[str, dict[str, Any]] = json.loads((folder / "experts.json").read_text("utf-8"))
    return {
        name: Task(name=name, **{**facts, **measured[name], "instructions": tuple(facts["instructions"])})
        for name, facts in told.items()
    }


def task(name: str) -> Task:
    """Find a task; an unknown name lists the known ones."""
    if name not in tasks():
        raise UnknownName("task", name, tasks())
    return tasks()[name]
