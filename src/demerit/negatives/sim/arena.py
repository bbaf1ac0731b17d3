"""One task's physics: reset it, step it, and read the facts of the moment."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from demerit.negatives.sim.gl import load_mujoco
from demerit.negatives.sim.tasks import Task

Floats: TypeAlias = npt.NDArray[np.float64]

STEPS_PER_SECOND = 80
SPARE_OBJECT = "spare-object"
SPARE_HALF_SIZE = (0.022, 0.022, 0.022)
SPARE_CLEARANCE = 0.13
"""how far (m) the second object lies from the right one and from its target"""
ROBOT, LEFT, RIGHT, OBJECT, SCENE, SPARE = range(6)


@dataclass(frozen=True)
class Facts:
    """What is measured after a step. Lengths in metres, forces in newtons."""

    observation: Floats
    hand: Floats
    object: Floats
    target: Floats
    openness: float
    """of the gripper, 0 closed to 1 open"""
    distance: float
    """what is left of the task, in the task's own measure; 0 is exactly there"""
    held: bool
    """both fingers touch one movable thing that is not the spare object"""
    touched: bool
    """a part of the arm touches a movable thing of the task"""
    object_force: float
    """the largest contact force between the arm and a movable thing"""
    scene_force: float
    """the largest contact force between the arm and something fixed: the table, a wall, a housing"""
    spare: Floats | None
    """where the second object is, None when the task has none"""
    spare_touched: bool


class Arena:
    """A task's environment, used for one episode after another."""

    def __init__(self, task: Task) -> None:
        """Build the model; a task that can have one gets a second, spare object."""
        self.mujoco = load_mujoco()
        self.task = task
        with quiet():
            self.env: Any = _environment(task, self.mujoco)
            self._policy_class = _policy_class(task)
        self.model: Any = self.env.model
        self.data: Any = self.env.data
        self.groups = _geom_groups(self.model)

    def reset(self, seed: int, rng: np.random.Generator) -> Facts:
        """Start an episode: the seed places the task's things, `rng` the spare object."""
        self.env.seed(seed)
        with quiet():
            self.env.reset()
        self.home = self.data.mocap_pos[0].copy()
        if self.task.spare:
            self._place_spare(rng)
            for _ in range(20):  # let it come to rest
                self.env.do_simulation([-1, 1], self.env.frame_skip)
        self.mujoco.mj_forward(self.model, self.data)
        observation = self.env._get_obs()
        observation[18:36] = observation[:18]
        self.start = observation[4:7].copy()
        self.env._prev_obs = observation[:18].copy()
        return self._facts(observation)

    def expert(self) -> Callable[[Floats], Floats]:
        """Return a fresh scripted expert: observation to action (three moves and the gripper, -1 to 1)."""
        policy = self._policy_class()
        return lambda observation: np.clip(np.asarray(policy.get_action(observation), dtype=np.float64), -1, 1)

    def step(self, action: Floats) -> Facts:
        """Move for 1/80 s. As the environment's own step, but its costly reward is left out."""
        self.env.set_xyz_action(action[:3])
        self.env.do_simulation([action[3], -action[3]], self.env.frame_skip)
        for site in self.env._target_site_config:
            self.env._set_pos_site(*site)
        self.mujoco.mj_forward(self.model, self.data)
        space = self.env.sawyer_observation_space
        return self._facts(np.clip(self.env._get_obs(), space.low, space.high))

    def succeeded(self, facts: Facts) -> bool:
        """Ask whether the task is done at this moment; it may be undone at the next."""
        if self.task.is_done_at(facts.distance):
            return True
        _, info = self.env.evaluate_state(facts.observation, np.zeros(4, dtype=np.float32))
        return bool(info["success"])

    def lead(self) -> Floats:
        """How far the point that pulls the hand is ahead of it: it goes on moving by so much."""
        return np.asarray(self.data.mocap_pos[0] - self.data.body("hand").xpos, dtype=np.float64)

    def _facts(self, observation: Floats) -> Facts:
        contacts = self.data.contact.geom
        pairs = np.sort(self.groups[contacts], axis=1) if len(contacts) else np.zeros((0, 2), dtype=np.int64)
        arm = pairs[:, 0] <= RIGHT
        on_object, on_scene = arm & (pairs[:, 1] == OBJECT), arm & (pairs[:, 1] == SCENE)
        return Facts(
            observation=observation,
            hand=observation[:3].copy(),
            object=observation[4:7].copy(),
            target=np.array(self.env._target_pos, dtype=np.float64),
            openness=float(observation[3]),
            distance=self.task.distance(self, observation),
            held=bool({LEFT, RIGHT} <= set(pairs[on_object, 0].tolist())),
            touched=bool(on_object.any()),
            object_force=self._force(on_object),
            scene_force=self._force(on_scene),
            spare=self.data.body(SPARE_OBJECT).xpos.copy() if self.task.spare else None,
            spare_touched=bool((arm & (pairs[:, 1] == SPARE)).any()),
        )

    def _force(self, chosen: npt.NDArray[np.bool_]) -> float:
        force, largest = np.zeros(6), 0.0
        for index in np.flatnonzero(chosen):
            self.mujoco.mj_contactForce(self.model, self.data, int(index), force)
            largest = max(largest, float(np.linalg.norm(force[:3])))
        return largest

    def _place_spare(self, rng: np.random.Generator) -> None:
        joint = self.data.joint(SPARE_OBJECT)
        low, high = self.task.spare_area
        taken = [self.env._get_obs()[4:6], np.asarray(self.env._target_pos)[:2]]
        spots = rng.uniform(low[:2], high[:2], size=(200, 2))
        gaps = np.min([np.linalg.norm(spots - spot, axis=1) for spot in taken], axis=0)
        clear = np.flatnonzero(gaps > SPARE_CLEARANCE)
        spot = spots[clear[0] if len(clear) else int(np.argmax(gaps))]
        joint.qpos[:] = [*spot, low[2] + SPARE_HALF_SIZE[2], 1, 0, 0, 0]
        joint.qvel[:] = 0


@contextmanager
def quiet() -> Iterator[None]:
    """Silence two known warnings of the packages underneath, and no others."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Constant\(s\) may be too high", category=UserWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


def _environment(task: Task, mujoco: Any) -> Any:
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS  # noqa: PLC0415

    plain = ALL_V3_ENVIRONMENTS[f"{task.name}-v3"]
    kind = plain
    if task.spare:

        def with_spare(env: Any) -> tuple[Any, Any]:
            model = _model_with_spare(env.fullpath, mujoco)
            return model, mujoco.MjData(model)

        kind = type(plain.__name__, (plain,), {"_initialize_simulation": with_spare})
    env = kind()
    # The environment's own way to a new start from each seed; reset(seed=...) is ignored by it.
    env._partially_observable, env._freeze_rand_vec = False, False
    env.seeded_rand_vec, env._set_task_called = True, True
    del env.sawyer_observation_space  # cached from when the goal was hidden
    return env


def _model_with_spare(path: str, mujoco: Any) -> Any:
    """Add a small free box as the last body, so that every index of the task's own things stays what it was."""
    spec = mujoco.MjSpec.from_file(path)
    body = spec.worldbody.add_body(name=SPARE_OBJECT, pos=[0.3, 0.6, 0.05])
    body.explicitinertial = True
    body.mass, body.ipos, body.inertia = 0.1, [0, 0, 0], [4e-5, 4e-5, 4e-5]
    body.add_freejoint(name=SPARE_OBJECT)
    body.add_geom(
        type=mujoco.mjtGeom.mjGEOM_BOX,
        size=list(SPARE_HALF_SIZE),
        rgba=[0.95, 0.8, 0.15, 1],
        friction=[1.0, 0.1, 0.002],
        condim=4,
        name=SPARE_OBJECT,
    )
    return spec.compile()


def _policy_class(task: Task) -> Any:
    from metaworld.policies import ENV_POLICY_MAP  # noqa: PLC0415

    return ENV_POLICY_MAP[f"{task.name}-v3"]


def _geom_groups(model: Any) -> npt.NDArray[np.int64]:
    """Tell for every geom whether it is the arm, a finger, a movable thing, something fixed or the spare object."""
    fingers = {"leftclaw": LEFT, "leftpad": LEFT, "rightclaw": RIGHT, "rightpad": RIGHT}
    groups = np.full(model.ngeom, SCENE, dtype=np.int64)
    for geom in range(model.ngeom):
        body = int(model.geom_bodyid[geom])
        names = []
        while body:
            names.append(model.body(body).name)
            body = int(model.body_parentid[body])
        if SPARE_OBJECT in names:
            groups[geom] = SPARE
        elif {"base", "hand", "right_arm_base_link"} & set(names):
            groups[geom] = next((fingers[name] for name in names if name in fingers), ROBOT)
        elif model.body_weldid[model.geom_bodyid[geom]] != 0:
            groups[geom] = OBJECT
    return groups
