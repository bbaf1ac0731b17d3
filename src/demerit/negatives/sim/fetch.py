"""The Fetch robot of gymnasium-robotics in Meta-World's frame and units, with scripted experts of our own.

Behaviours, endings and measurements are those of Meta-World's tasks, because this arena looks the same from outside:
x to the robot's right, y away from it, z above the table, 80 steps a second, 1 cm per action, a gripper that closes at
+1. The shipped weights are never trained on it: it is the robot on which teaching is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from demerit.data.arrays import Floats
from demerit.negatives.sim.arena import (
    AZIMUTHS,
    METRES_PER_ACTION,
    ROBOT,
    STEPS_PER_SECOND,
    Arena,
    SimCamera,
    StepFacts,
    model_with_spare,
)
from demerit.negatives.sim.tasks import Task

CLASSES = {
    "fetch-insert": "pick_and_place:MujocoFetchPickAndPlaceEnv",
    "fetch-pick": "pick_and_place:MujocoFetchPickAndPlaceEnv",
    "fetch-push": "push:MujocoFetchPushEnv",
    "fetch-reach": "reach:MujocoFetchReachEnv",
    "fetch-slide": "slide:MujocoFetchSlideEnv",
}
ORIGIN = np.array([0.72, 0.75, 0.4])
"""of Meta-World's frame in Fetch's world"""
BACK = 0.35
"""the robot stands this much (m) farther back to slide a puck"""
AXES = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
"""the rows are Meta-World's axes in Fetch's world"""
DOWN = np.array([1.0, 0.0, 1.0, 0.0]) / np.sqrt(2)
"""the rotation (quaternion) of a hand that points down"""
TURN = -30.0
"""of the camera (degrees): -90 for the axes, and 60 to see past the wider arm"""
SUBSTEPS = 6
WIDEST = 0.1
"""distance (m) between the fingers of the open gripper"""
LOW, HIGH = np.array([-0.32, 0.35, -0.03]), np.array([0.32, 0.88, 0.55])
"""corners of the box that the hand stays in"""
LOWEST_START = 0.47
"""height (m) of the hand above the floor: some tasks start with the fingers on the table"""
FARTHEST, HIGHEST = 1.2, 0.3
"""the largest y of a goal to slide to, and z of a goal in the air: farther ones would be out of the picture"""


class FetchArena(Arena):
    """A task of the Fetch robot."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.groups[self.model.geom("floor0").id] = ROBOT  # it carries the robot, which is no collision

    def reset(self, seed: int, rng: np.random.Generator) -> StepFacts:
        """Start an episode: the seed places the task's objects, `rng` the spare object."""
        self.env.reset(seed=seed)
        while not self._is_fair():
            self.env.reset()
        self.data.mocap_pos[0] = self.data.body("robot0:gripper_link").xpos
        self.data.mocap_pos[0, 2] = max(self.data.mocap_pos[0, 2], LOWEST_START)
        self.data.mocap_quat[0] = self._face_goal() if self.task.name == "fetch-slide" else DOWN
        if self.task.spare:
            self._place_spare(rng, self._observe())
        for _ in range(40):  # let everything come to rest
            self._advance()
        self.env._render_callback()  # moves the goal's mark
        observation = self._observe()
        self.home, self.start, self.speed = observation[:3], observation[4:7], 0.0
        self.is_spoiled = False
        return self._facts(observation)

    def expert(self) -> Callable[[Floats], Floats]:
        """Return a new scripted expert: observation -> action (x, y, z, gripper; -1 to 1)."""
        act = EXPERTS.get(self.task.name) or make_striker()
        return lambda observation: np.clip(act(observation), -1, 1)

    def step(self, action: Floats) -> StepFacts:
        """Advance by 1/80 s."""
        place = self.from_world(self.data.mocap_pos[0]) + action[:3] * METRES_PER_ACTION * self.haste
        self.data.mocap_pos[0] = self.to_world(np.clip(place, LOW, HIGH))
        self.data.ctrl[:] = np.clip([self._finger(side) - action[3] for side in "lr"], 0, 0.2)[: self.model.nu]
        before = self.data.site(self.thing).xpos.copy()
        self._advance()
        self.speed = float(np.linalg.norm(self.data.site(self.thing).xpos - before)) * STEPS_PER_SECOND
        facts = self._facts(self._observe())
        if self.task.gentle:
            self.is_spoiled |= self.task.is_forced(facts)
        return facts

    def succeeded(self, facts: StepFacts) -> bool:
        """Whether the task is done at this moment; not by a puck that slides over the goal, nor by force."""
        is_steady = self.task.name != "fetch-slide" or self.speed < AT_REST
        return facts.distance < self.task.within and is_steady and not self.is_spoiled

    def lead(self) -> Floats:
        """How far the mocap point that pulls the hand is ahead of it."""
        ahead = self.data.mocap_pos[0] - self.data.body("robot0:gripper_link").xpos
        return np.asarray(AXES @ ahead / self.haste, dtype=np.float64)

    def target(self) -> Floats:
        """The position of the goal."""
        return self.from_world(self.env.goal)

    def fingertips(self) -> Floats:
        """The point between the fingertips."""
        return self.from_world(self.data.site("robot0:grip").xpos)

    def to_world(self, place: Floats) -> Floats:
        """Convert a position in Meta-World's frame to Fetch's world."""
        return np.asarray(place @ AXES + self.origin)

    def from_world(self, place: Floats) -> Floats:
        """Convert a position of Fetch's world to Meta-World's frame."""
        return np.asarray(AXES @ (place - self.origin))

    def view(self, camera: SimCamera) -> SimCamera:
        """Convert a camera to Fetch's world: farther away and higher, as its goals are."""
        up, away, farther = VIEWS[self.task.name]
        look_at = self.to_world(np.array(camera.look_at) + np.array([0, away, up]))
        return SimCamera(camera.azimuth + TURN, camera.elevation, camera.distance * farther, tuple(look_at.tolist()))

    def _make_environment(self) -> Any:
        module, name = CLASSES[self.task.name].split(":")
        plain: Any = getattr(import_module(f"gymnasium_robotics.envs.fetch.{module}"), name)
        mujoco, is_insert = self.mujoco, self.task.name == "fetch-insert"

        def with_spare(env: Any) -> None:
            if is_insert:
                env.initial_qpos["object0:joint"][2] = TABLE + PEG[2]
            env.model = model_with_spare(env.fullpath, mujoco, add_hole if is_insert else lambda spec: None)
            env.data = mujoco.MjData(env.model)
            env._model_names = env._utils.MujocoModelNames(env.model)
            env._env_setup(initial_qpos=env.initial_qpos)
            env.initial_time, env.initial_qpos, env.initial_qvel = 0.0, env.data.qpos.copy(), env.data.qvel.copy()

        changed: dict[str, Any] = {"_initialize_simulation": with_spare} if self.task.spare else {}
        changed |= {"_sample_goal": place_hole} if is_insert else {}
        env = type(name, (plain,), changed)()
        self.origin = ORIGIN - [BACK if self.task.name == "fetch-slide" else 0.0, 0, 0]
        model = env.model
        model.opt.timestep = 1 / STEPS_PER_SECOND / SUBSTEPS
        model.opt.cone = mujoco.mjtCone.mjCONE_ELLIPTIC  # with the other cone, things that slide turn aside
        model.geom_rgba[model.geom_bodyid == model.body("robot0:mocap").id, 3] = 0  # its axes would be drawn
        self.thing = "object0" if env.has_object else "robot0:grip"
        self.haste = 1.5 if self.task.name == "fetch-slide" else 1.0
        return env

    def _is_fair(self) -> bool:
        """Whether the task is not nearly done at the start, and the goal is in view and, for a puck, ahead."""
        goal = self.target()
        way = goal - self._observe()[4:7]
        in_view = goal[1] < FARTHEST and goal[2] < HIGHEST
        is_ahead = self.task.name != "fetch-slide" or way[1] > 2 * abs(way[0])
        is_far = np.linalg.norm(way) > 2 * self.task.within
        return bool(in_view and is_ahead and is_far and all(map(self._is_in_sight, AZIMUTHS["varied"])))

    def _is_in_sight(self, azimuth: float) -> bool:
        """Whether nothing is between the goal, or the object, and a camera."""
        view = self.view(SimCamera(azimuth))
        turn, rise = np.deg2rad([view.azimuth, view.elevation])
        ahead = np.array([np.cos(rise) * np.cos(turn), np.cos(rise) * np.sin(turn), np.sin(rise)])
        eye = np.array(view.look_at) - view.distance * ahead
        site = self.data.site(self.thing)
        hit = np.zeros(1, dtype=np.int32)
        body = int(self.model.site_bodyid[site.id])
        targets = [(self.env.goal, -1)] + ([(site.xpos, body)] if self.env.has_object else [])
        rays = [self.mujoco.mj_ray(self.model, self.data, at, eye - at, None, 1, own, hit) for at, own in targets]
        return bool(max(rays) < 0)

    def _face_goal(self) -> Floats:
        """Return the hand's rotation when it points down and its fingers' faces point from the puck to the goal."""
        x, y = (self.target() - self._observe()[4:7])[:2]
        turn = -np.arctan2(x, y) / 2
        facing = np.zeros(4)
        self.mujoco.mju_mulQuat(facing, np.array([np.cos(turn), 0, 0, np.sin(turn)]), DOWN)
        return facing

    def _advance(self) -> None:
        self.mujoco.mj_step(self.model, self.data, nstep=SUBSTEPS)
        self.env._step_callback()
        self.mujoco.mj_forward(self.model, self.data)

    def _finger(self, side: str) -> float:
        return float(self.data.joint(f"robot0:{side}_gripper_finger_joint").qpos.item())

    def _observe(self) -> Floats:
        """Return hand, openness, object and goal at the places where Meta-World's observation has them."""
        observation = np.zeros(39)
        observation[:3], observation[3] = self.fingertips(), sum(map(self._finger, "lr")) / WIDEST
        observation[4:7], observation[-3:] = self.from_world(self.data.site(self.thing).xpos), self.target()
        return observation


TABLE = 0.4
"""height (m) of the table top in Fetch's world"""
PEG = (0.022, 0.022, 0.05)
"""half the size (m) of the peg"""
GRASP = 0.025
"""height (m) above the peg's middle at which it is grasped"""
BLOCK, DEEP, ROOM = 0.05, 0.045, 0.006
"""half the width (m) of the block, its height, which is the depth of the hole, and the room on each side of the peg"""
HOLE_AWAY = 0.13
"""least distance (m) of the hole from the peg at the start"""


def add_hole(spec: Any) -> None:
    """Make the block of the pick environment a peg that stands, and add a block with a hole, open at the bottom."""
    peg, site = spec.geom("object0"), spec.site("object0")
    peg.size, peg.mass, peg.condim, peg.friction = list(PEG), 0.3, 4, [1.0, 0.05, 0.01]
    site.pos, site.size = [0, 0, GRASP], [0.005] * 3
    spec.site("target0").rgba = [0, 0, 0, 0]
    block = spec.worldbody.add_body(name="block", pos=[1.3, 0.75, TABLE])
    hole = PEG[0] + ROOM
    middle, half = (BLOCK + hole) / 2, (BLOCK - hole) / 2
    for side in (-1, 1):
        for place, size in (([side * middle, 0], [half, BLOCK]), ([0, side * middle], [hole, half])):
            block.add_geom(
                type=peg.type, pos=[*place, DEEP / 2], size=[*size, DEEP / 2], rgba=[0.45, 0.62, 0.75, 1], condim=4
            )


def place_hole(env: Any) -> Floats:
    """Draw where the block stands; return where the peg's grasp point is when it is in the hole."""
    peg = env.data.joint("object0:joint").qpos[:2]
    spot = peg
    while np.linalg.norm(spot - peg) < HOLE_AWAY:
        spot = env.initial_gripper_xpos[:2] + env.np_random.uniform(-env.target_range, env.target_range, size=2)
    env.model.body("block").pos[:2] = spot
    env._mujoco.mj_forward(env.model, env.data)
    return np.array([*spot, TABLE + PEG[2] + GRASP])


VIEWS = {
    "fetch-insert": (0.0, -0.02, 0.8),
    "fetch-pick": (0.08, -0.02, 1.05),
    "fetch-push": (0.0, -0.02, 0.9),
    "fetch-reach": (0.08, -0.02, 1.0),
    "fetch-slide": (-0.02, 0.15, 1.2),
}
"""metres that the camera looks higher and farther away from the robot, and how many times farther away it is"""
AT_REST = 0.05
"""a puck slower than this (m/s) has stopped"""
GAIN = 10.0
ABOVE = 0.1
"""height (m) at which the hand moves over things"""
BEHIND = 0.075
"""distance (m) of the hand behind an object before it pushes"""
PUSH_HEIGHT = 0.03


def reach(seen: Floats) -> Floats:
    """Move to the goal."""
    return np.array([*0.4 * GAIN * (seen[-3:] - seen[:3]), 1.0])


def pick(seen: Floats) -> Floats:
    """Go above the object, down, close, and carry it to the goal over a little height."""
    hand, openness, thing, goal = seen[:3], seen[3], seen[4:7], seen[-3:]
    if np.linalg.norm((hand - thing)[:2]) > 0.02:  # noqa: PLR2004
        return _hover(hand, thing, -1.0)
    if hand[2] - thing[2] > (0.012 if openness > 0.62 else 0.03):  # noqa: PLR2004
        return np.array([*GAIN * (thing - hand), -1.0])
    if openness > 0.62:  # noqa: PLR2004
        return np.array([0, 0, 0, 1.0])
    way = goal - thing
    if np.linalg.norm(way[:2]) > 0.05:  # noqa: PLR2004
        way[2] = max(goal[2], ABOVE) - thing[2]
    return np.array([*GAIN * way, 1.0])


def insert(seen: Floats) -> Floats:
    """Grasp the peg, carry it above the hole, and lower it slowly once it is aligned."""
    hand, openness, thing, goal = seen[:3], seen[3], seen[4:7], seen[-3:]
    if np.linalg.norm((hand - thing)[:2]) > 0.02:  # noqa: PLR2004
        return _hover(hand, thing, -1.0)
    if hand[2] - thing[2] > (0.012 if openness > 0.5 else 0.03):  # noqa: PLR2004
        return np.array([*GAIN * (thing - hand), -1.0])
    if openness > 0.5:  # noqa: PLR2004
        return np.array([0, 0, 0, 1.0])
    way = goal - thing
    is_above = np.linalg.norm(way[:2]) < (0.003 if way[2] < -DEEP else 0.008)
    if not is_above:
        way[2] = goal[2] + DEEP + 0.02 - thing[2]
        way[:2] *= way[2] < 0.03  # noqa: PLR2004  # rise first
    return np.array([*GAIN * way[:2], max(GAIN * way[2], -0.25), 1.0])


def push(seen: Floats) -> Floats:
    """Go behind the object and push it to the goal."""
    hand, thing, goal = seen[:3], seen[4:7], seen[-3:]
    distance, along, place, off = _line_up(hand, thing, goal)
    if distance < 0.015:  # noqa: PLR2004
        return np.array([0, 0, 0, 1.0])
    if hand[2] > 2 * PUSH_HEIGHT or off > 0.03 or np.dot(thing - hand, along) < 0.02:  # noqa: PLR2004
        return _get_behind(hand, place)
    speed = np.clip(4 * distance, 0.1, 0.6)
    return np.array([*(speed * along + _stay_on(hand, place, along)), 1.0])


EXPERTS = {"fetch-insert": insert, "fetch-pick": pick, "fetch-push": push, "fetch-reach": reach}

SLOWING, CREEP = 0.85, 0.04
"""m/s^2 by which the puck slows down on the table, and metres that it creeps on at the end"""


def make_striker() -> Callable[[Floats], Floats]:
    """Return an expert that pushes the puck until it is fast enough to slide to the goal."""
    before: Floats | None = None
    is_struck, pace = False, 0.1

    def strike(seen: Floats) -> Floats:
        nonlocal before, is_struck, pace
        hand, thing, goal = seen[:3], seen[4:7], seen[-3:]
        distance, along, place, off = _line_up(hand, thing, goal)
        moved = np.zeros(3) if before is None else thing - before
        before = thing.copy()
        speed = float(moved @ along) * STEPS_PER_SECOND
        is_struck = is_struck or speed**2 > 2 * SLOWING * (distance - CREEP)
        if is_struck:
            return np.array([0, 0, 0, 1.0])
        if hand[2] > 2 * PUSH_HEIGHT or off > 0.03 or np.dot(thing - hand, along) < 0.02:  # noqa: PLR2004
            pace = 0.1
            return _get_behind(hand, place)
        if speed > 0.03:  # noqa: PLR2004
            pace += 0.012
        return np.array([*(pace * along + _stay_on(hand, place, along)), 1.0])

    return strike


def _line_up(hand: Floats, thing: Floats, goal: Floats) -> tuple[float, Floats, Floats, float]:
    """Return the distance to push, its direction, the place to push from, and the hand's distance from the line."""
    way = np.array([*(goal - thing)[:2], 0.0])
    distance = float(np.linalg.norm(way))
    along = way / max(distance, 1e-6)
    place = np.array([*(thing - BEHIND * along)[:2], PUSH_HEIGHT])
    aside = (hand - thing) * [1, 1, 0]
    return distance, along, place, float(np.linalg.norm(aside - along * (aside @ along)))


def _stay_on(hand: Floats, place: Floats, along: Floats) -> Floats:
    error = place - hand
    return np.asarray(GAIN * (error - along * (error @ along)))


def _get_behind(hand: Floats, place: Floats) -> Floats:
    if np.linalg.norm((place - hand)[:2]) > 0.02:  # noqa: PLR2004
        return _hover(hand, place, 1.0)
    return np.array([*GAIN * (place - hand), 1.0])


def _hover(hand: Floats, place: Floats, gripper: float) -> Floats:
    """Move over things to above a place."""
    way = np.array([*place[:2], max(ABOVE, place[2] + 0.06)]) - hand
    if way[2] > 0.04:  # noqa: PLR2004
        way[:2] *= 0.1  # rise first
    return np.array([*GAIN * way, gripper])
