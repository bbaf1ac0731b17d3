"""Variants of recorded episodes: the same actions in a scene that is changed a little. Labels are measured anew.

The scene follows from an episode's task, setting and seed, and the commands from its signal `action`. So no state of
the simulator is stored, and rollouts of a policy are varied like scripted ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from demerit.data.arrays import Floats
from demerit.data.frames import short_hash
from demerit.errors import BadInput, NotApplicable
from demerit.negatives.sim.arena import METRES_PER_ACTION, OBJECT, Arena, StepFacts
from demerit.negatives.sim.tasks import Task

CHANGES = {
    "start": "the hand starts up to 4 cm aside and 3 cm higher",
    "object": "the object lies up to 3 cm aside, and turned",
    "size": "the object is 0.8 to 1.2 times as large",
    "timing": "the motion takes 0.8 to 1.25 times as long; the gripper acts up to 2 frames earlier or later",
    "grip": "the gripper has 0.2 to 1 times its force, the object 0.5 to 1 times its friction",
    "look": "another camera, light and colours",
}
"""what a variant can change"""
MESHES = frozenset(
    "assembly basketball box-close coffee-pull coffee-push disassemble peg-unplug-side soccer sweep".split()
)
"""tasks whose object is a mesh, which has one size"""
ON_RAILS = frozenset("plate-slide plate-slide-back plate-slide-back-side plate-slide-side".split())
"""tasks whose object slides and cannot be put elsewhere"""
ALTERED = ("geom_size", "geom_rbound", "geom_aabb", "geom_friction", "actuator_gainprm", "actuator_biasprm")
"""the parts of the model that a variant changes; the next episode has the original ones"""
SETTLE_STEPS, MOVE_STEPS = 20, 8
OPEN = np.array([0.0, 0.0, 0.0, -1.0])
"""stand still with an open gripper"""


@dataclass(frozen=True, eq=False)
class Recording:
    """The actions of an episode, to be done again with changes."""

    like: str
    """the episode's id"""
    number: int
    """of the variant, from 0"""
    group: str
    instruction: str
    actions: Floats
    """(frames, 4): x, y, z and gripper from -1 to 1, each held until the next frame"""
    stride: int
    """steps of the simulation from one frame to the next"""
    changes: tuple[str, ...] = tuple(CHANGES)
    """those to draw from; none = do the same again"""

    @property
    def name(self) -> str:
        """A short name that differs between episodes and variants."""
        return f"like-{short_hash(self.like.encode())[:10]}/{self.number}"

    def check(self, task: Task) -> None:
        """Raise NotApplicable if no change makes sense for the task."""
        if self.changes and not possible_changes(self.changes, task):
            why = f"the object of {task.name} is a mesh" if task.name in MESHES else f"{task.name} has no loose object"
            raise NotApplicable(f"{' and '.join(self.changes)} cannot be changed: {why}")


def possible_changes(changes: Sequence[str], task: Task) -> list[str]:
    """Return those of the changes that the task allows."""
    impossible = set() if task.loose and task.name not in ON_RAILS else {"object", "size", "grip"}
    impossible |= {"size"} if task.name in MESHES else set()
    return [name for name in changes if name not in impossible]


def draw_changes(recording: Recording, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
    """Draw which changes a variant has: one or two, so that the failure is still the same kind more often than not."""
    if not recording.changes:
        return ()
    possible = possible_changes(recording.changes, task)
    count = min(len(possible), int(rng.integers(1, 3)))
    return tuple(possible[place] for place in sorted(rng.permutation(len(possible))[:count]))


def retime(recording: Recording, changes: Sequence[str], rng: np.random.Generator) -> Floats:
    """Return the command of every step: (frames x stride, 4). A slower motion has smaller commands and the same way."""
    pace, shift = (float(rng.uniform(0.8, 1.25)), float(rng.uniform(-2, 2))) if "timing" in changes else (1.0, 0.0)
    last = len(recording.actions) - 1
    steps = (round(last * pace) + 1) * recording.stride
    at = np.arange(steps) / recording.stride / pace
    moves, grips = (np.clip(np.floor(moment).astype(int), 0, last) for moment in (at, at - shift))
    return np.hstack([np.clip(recording.actions[moves, :3] / pace, -1, 1), recording.actions[grips, 3:]])


@contextmanager
def change_physics(arena: Arena, changes: Sequence[str], rng: np.random.Generator) -> Iterator[None]:
    """Change sizes, forces and friction; afterwards the model is as before."""
    model, objects = arena.model, arena.groups == OBJECT
    before = {name: np.array(getattr(model, name)) for name in ALTERED}
    factor, force, friction = rng.uniform(0.8, 1.2), np.exp(rng.uniform(np.log(0.2), 0)), rng.uniform(0.5, 1)
    if "size" in changes:
        for name in ("geom_size", "geom_rbound", "geom_aabb"):
            getattr(model, name)[objects] *= factor
    if "grip" in changes:
        model.actuator_gainprm[:, 0] *= force
        model.actuator_biasprm[:, 1] *= force
        model.geom_friction[objects] *= friction
    try:
        yield
    finally:
        for name, values in before.items():
            getattr(model, name)[:] = values


def move_start(arena: Arena, first: StepFacts, changes: Sequence[str], rng: np.random.Generator) -> StepFacts:
    """Move the object and the hand of a scene that was just reset; return the facts of the new start."""
    aside, turn, offset = rng.uniform(-0.03, 0.03, 2), rng.uniform(-np.pi, np.pi), rng.uniform(-0.04, 0.04, 3)
    if {"object", "size"} & set(changes):
        start = arena.data.qpos[_free_joint(arena) :][:7]
        if "object" in changes:
            start[:2] += aside
            turned = np.zeros(4)
            about = np.array([np.cos(turn / 2), 0, 0, np.sin(turn / 2)])
            arena.mujoco.mju_mulQuat(turned, about, np.array(start[3:]))
            start[3:] = turned
        start[2] += 0.005  # above the table, also if it is larger
        for _ in range(SETTLE_STEPS):
            first = arena.step(OPEN)
    if "start" in changes:
        offset[2] = abs(offset[2]) * 0.75
        for _ in range(MOVE_STEPS):
            first = arena.step(np.array([*(offset / MOVE_STEPS / METRES_PER_ACTION), -1.0]))
    arena.start = first.object.copy()
    return first


def _free_joint(arena: Arena) -> int:
    """Return where the position of the task's loose object begins in qpos."""
    model = arena.model
    for geom in np.flatnonzero(arena.groups == OBJECT):
        body = model.body(int(model.geom_bodyid[geom]))
        while body.id:
            joint = int(body.jntadr[0])
            if joint >= 0 and model.jnt_type[joint] == arena.mujoco.mjtJoint.mjJNT_FREE:
                return int(model.jnt_qposadr[joint])
            body = model.body(int(body.parentid[0]))
    raise BadInput("changes", f"start, timing or look for {arena.task.name}", "no free object to move")
