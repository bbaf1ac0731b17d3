"""A task's physics and rendering: reset, step, read the facts of a moment, draw it."""

from __future__ import annotations

import ctypes.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from types import TracebackType
from typing import Any, Literal, get_args

import numpy as np

from demerit.data.arrays import Bools, Floats, Ints
from demerit.data.frames import Images
from demerit.errors import BadInput, MissingExtra, UnknownName
from demerit.negatives.sim.tasks import FETCH, SAWYER, Task

LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
INSTALL = "apt-get install -y libegl1 libopengl0 libgl1-mesa-dri"


ENVIRONMENTS = {SAWYER: "metaworld.env_dict", FETCH: "gymnasium_robotics"}


def load_mujoco(robot: str = SAWYER) -> Any:
    """Import MuJoCo with a renderer that needs no screen; raise with install instructions if something is missing."""
    choose_renderer()
    if find_spec("triton"):  # torch's optimizers import it; its LLVM crashes where Mesa's was loaded first
        import_module("triton")
    try:
        with redirect_stderr(StringIO()):  # gymnasium_robotics prints news about other environments
            import_module(ENVIRONMENTS[robot])  # fails here, with the same install line
        import mujoco  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise MissingExtra("Simulating", "sim") from missing
    except (ImportError, AttributeError) as broken:  # PyOpenGL finds a library and not what it needs in it
        raise no_renderer(f"{type(broken).__name__}: {broken}") from broken
    return mujoco


def choose_renderer() -> None:
    """Set MUJOCO_GL, which MuJoCo reads at import, unless it is set: EGL if available, else OSMesa (same pixels)."""
    if "MUJOCO_GL" in os.environ or sys.platform != "linux":
        return
    names = [name for name, library in LIBRARIES.items() if ctypes.util.find_library(library)]
    if not names:
        raise no_renderer("neither libEGL nor libOSMesa")
    os.environ["MUJOCO_GL"] = names[0]


def no_renderer(got: str) -> BadInput:
    """The error with install instructions."""
    return BadInput("rendering without a screen", f"an OpenGL library (Debian: {INSTALL}; or libosmesa6)", got)


STEPS_PER_SECOND = 80
METRES_PER_ACTION = 0.01
"""an action of 1 moves the hand this far in a step"""
SPARE_OBJECT = "spare-object"
SPARE_HALF_SIZE = (0.022, 0.022, 0.022)
SPARE_CLEARANCE = 0.13
"""least distance (m) of the second object from the right one and its target"""
ROBOT, LEFT, RIGHT, OBJECT, SCENE, SPARE = range(6)


@dataclass(frozen=True)
class StepFacts:
    """Measurements after a step. Lengths in metres, forces in newtons."""

    observation: Floats
    hand: Floats
    object: Floats
    target: Floats
    openness: float
    """of the gripper, 0 (closed) to 1 (open)"""
    distance: float
    """remaining distance in the task's own measure"""
    held: bool
    """whether both fingers touch a movable object other than the spare one"""
    touched: bool
    """whether the arm touches a movable object of the task"""
    object_force: float
    """largest contact force between the arm and a movable object"""
    scene_force: float
    """largest contact force between the arm and a fixed object (table, wall, housing); in gentle tasks, also between
    what it holds and a fixed object"""
    spare: Floats | None
    """position of the second object, None if the task has none"""
    spare_touched: bool


class Arena:
    """A task's environment; reusable for many episodes."""

    def __init__(self, task: Task) -> None:
        self.mujoco = load_mujoco(task.robot)
        self.task = task
        with silence_warnings():
            self.env: Any = self._make_environment()
        self.model: Any = self.env.model
        self.data: Any = self.env.data
        self.groups = _geom_groups(self.model)

    def reset(self, seed: int, rng: np.random.Generator) -> StepFacts:
        """Start an episode: the seed places the task's objects, `rng` the spare object."""
        self.env.seed(seed)
        with silence_warnings():
            self.env.reset()
        self.home = self.data.mocap_pos[0].copy()
        if self.task.spare:
            self._place_spare(rng, self.env._get_obs())
            for _ in range(20):  # let it come to rest
                self.env.do_simulation([-1, 1], self.env.frame_skip)
        self.mujoco.mj_forward(self.model, self.data)
        observation = self.env._get_obs()
        observation[18:36] = observation[:18]
        self.start = observation[4:7].copy()
        self.env._prev_obs = observation[:18].copy()
        return self._facts(observation)

    def expert(self) -> Callable[[Floats], Floats]:
        """Return a new scripted expert: observation -> action (x, y, z, gripper; -1 to 1)."""
        from metaworld.policies import ENV_POLICY_MAP  # noqa: PLC0415

        kind: Any = ENV_POLICY_MAP[f"{self.task.name}-v3"]
        policy = kind()
        return lambda observation: np.clip(np.asarray(policy.get_action(observation), dtype=np.float64), -1, 1)

    def step(self, action: Floats) -> StepFacts:
        """Advance by 1/80 s, like the environment's step but without its expensive reward."""
        self.env.set_xyz_action(action[:3])
        self.env.do_simulation([action[3], -action[3]], self.env.frame_skip)
        for site in self.env._target_site_config:
            self.env._set_pos_site(*site)
        self.mujoco.mj_forward(self.model, self.data)
        space = self.env.sawyer_observation_space
        return self._facts(np.clip(self.env._get_obs(), space.low, space.high))

    def succeeded(self, facts: StepFacts) -> bool:
        """Whether the task is done at this moment."""
        if self.task.is_done_at(facts.distance):
            return True
        _, info = self.env.evaluate_state(facts.observation, np.zeros(4, dtype=np.float32))
        return bool(info["success"])

    def lead(self) -> Floats:
        """How far the mocap point that pulls the hand is ahead of it."""
        return np.asarray(self.data.mocap_pos[0] - self.data.body("hand").xpos, dtype=np.float64)

    def target(self) -> Floats:
        """The position of the goal."""
        return np.array(self.env._target_pos, dtype=np.float64)

    def fingertips(self) -> Floats:
        """The point between the fingertips."""
        return np.asarray(self.env.tcp_center, dtype=np.float64)

    def to_world(self, place: Floats) -> Floats:
        """Convert a position of this module, in Meta-World's frame, to one of the simulated world."""
        return place

    def from_world(self, place: Floats) -> Floats:
        """Convert a position of the simulated world to Meta-World's frame."""
        return place.copy()

    def view(self, camera: SimCamera) -> SimCamera:
        """Convert a camera to the simulated world."""
        return camera

    def _facts(self, observation: Floats) -> StepFacts:
        contacts = self.data.contact.geom
        pairs = np.sort(self.groups[contacts], axis=1) if len(contacts) else np.zeros((0, 2), dtype=np.int64)
        arm = pairs[:, 0] <= RIGHT
        on_object, on_scene = arm & (pairs[:, 1] == OBJECT), arm & (pairs[:, 1] == SCENE)
        is_held = {LEFT, RIGHT} <= set(pairs[on_object, 0].tolist())
        if self.task.gentle and is_held:
            on_scene |= (pairs == (OBJECT, SCENE)).all(axis=1)
        return StepFacts(
            observation=observation,
            hand=observation[:3].copy(),
            object=observation[4:7].copy(),
            target=self.target(),
            openness=float(observation[3]),
            distance=self.task.distance(self, observation),
            held=is_held,
            touched=bool(on_object.any()),
            object_force=self._force(on_object),
            scene_force=self._force(on_scene),
            spare=self.from_world(self.data.body(SPARE_OBJECT).xpos) if self.task.spare else None,
            spare_touched=bool((arm & (pairs[:, 1] == SPARE)).any()),
        )

    def _make_environment(self) -> Any:
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS  # noqa: PLC0415

        plain = ALL_V3_ENVIRONMENTS[f"{self.task.name}-v3"]
        kind = plain
        if self.task.spare:

            def with_spare(env: Any) -> tuple[Any, Any]:
                model = model_with_spare(env.fullpath, self.mujoco)
                return model, self.mujoco.MjData(model)

            kind = type(plain.__name__, (plain,), {"_initialize_simulation": with_spare})
        env = kind()
        # The environment's own way to a new start from each seed; reset(seed=...) is ignored by it.
        env._partially_observable, env._freeze_rand_vec = False, False
        env.seeded_rand_vec, env._set_task_called = True, True
        del env.sawyer_observation_space  # cached from when the goal was hidden
        return env

    def _force(self, chosen: Bools) -> float:
        force, largest = np.zeros(6), 0.0
        for index in np.flatnonzero(chosen):
            self.mujoco.mj_contactForce(self.model, self.data, int(index), force)
            largest = max(largest, float(np.linalg.norm(force[:3])))
        return largest

    def _place_spare(self, rng: np.random.Generator, observation: Floats) -> None:
        joint = self.data.joint(SPARE_OBJECT)
        low, high = self.task.spare_area
        obstacles = [observation[4:6], self.target()[:2]]
        spots = rng.uniform(low[:2], high[:2], size=(200, 2))
        gaps = np.min([np.linalg.norm(spots - spot, axis=1) for spot in obstacles], axis=0)
        clear = np.flatnonzero(gaps > SPARE_CLEARANCE)
        spot = spots[clear[0] if len(clear) else int(np.argmax(gaps))]
        joint.qpos[:] = [*self.to_world(np.array([*spot, low[2] + SPARE_HALF_SIZE[2]])), 1, 0, 0, 0]
        joint.qvel[:] = 0


@contextmanager
def silence_warnings() -> Iterator[None]:
    """Silence two known warnings of gymnasium and metaworld."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Constant\(s\) may be too high", category=UserWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


def model_with_spare(path: str, mujoco: Any, change: Callable[[Any], None] = lambda spec: None) -> Any:
    """Add a small free box as the last body, which keeps all other indices; `change` changes the scene before."""
    spec = mujoco.MjSpec.from_file(path)
    change(spec)
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


def _geom_groups(model: Any) -> Ints:
    """Classify every geom: arm, finger, movable object, fixed object, spare object."""
    fingers = {"leftclaw": LEFT, "leftpad": LEFT, "rightclaw": RIGHT, "rightpad": RIGHT}
    fingers |= {"robot0:l_gripper_finger_link": LEFT, "robot0:r_gripper_finger_link": RIGHT}
    groups = np.full(model.ngeom, SCENE, dtype=np.int64)
    for geom in range(model.ngeom):
        body = int(model.geom_bodyid[geom])
        names = []
        while body:
            names.append(model.body(body).name)
            body = int(model.body_parentid[body])
        if SPARE_OBJECT in names:
            groups[geom] = SPARE
        elif {"base", "hand", "right_arm_base_link", "robot0:base_link"} & set(names):
            groups[geom] = next((fingers[name] for name in names if name in fingers), ROBOT)
        elif model.body_weldid[model.geom_bodyid[geom]] != 0:
            groups[geom] = OBJECT
    return groups


Setting = Literal["plain", "varied", "held-out"]
"""plain: one camera, original colours; varied: random, for training;
held-out: random, with cameras across the table that no training episode uses"""
SETTINGS: tuple[Setting, ...] = get_args(Setting)

OVERSAMPLING = 2
"""images are rendered this much larger and averaged: ten times faster than the renderer's own antialiasing"""
TABLE_TEXTURE = "T_table"
SPARE_COLOURS = ((0.95, 0.8, 0.15), (0.6, 0.25, 0.75), (0.9, 0.9, 0.9), (0.95, 0.55, 0.7))
"""different from pucks, blocks and the green, red and blue of the goal marks"""
RESTORED = ("geom_rgba", "mat_rgba", "light_diffuse", "light_ambient", "light_pos", "tex_data")


@dataclass(frozen=True)
class SimCamera:
    """A camera position: degrees, metres."""

    azimuth: float = 140.0
    elevation: float = -38.0
    distance: float = 1.0
    look_at: tuple[float, float, float] = (0.0, 0.68, 0.08)


AZIMUTHS = {"varied": (120.0, 166.0), "held-out": (196.0, 222.0)}
"""training cameras are next to the arm; held-out ones face it from across the table"""


def draw_camera(setting: Setting, rng: np.random.Generator) -> SimCamera:
    """Draw a camera; the plain setting has one."""
    if setting not in SETTINGS:
        raise UnknownName("setting", setting, SETTINGS)
    if setting == "plain":
        return SimCamera()
    shift = rng.uniform(-0.03, 0.03, size=3)
    return SimCamera(
        azimuth=float(rng.uniform(*AZIMUTHS[setting])),
        elevation=float(rng.uniform(-48, -30)),
        distance=float(rng.uniform(0.92, 1.12)),
        look_at=(float(shift[0]), 0.68 + float(shift[1]), 0.08 + float(shift[2])),
    )


class SceneRenderer:
    """Renders an arena, episode after episode. Close it, or use it in a with block."""

    def __init__(self, arena: Arena, size: int) -> None:
        mujoco = arena.mujoco
        self.arena, self.size, self.mujoco = arena, size, mujoco
        arena.model.vis.quality.offsamples = 0
        view = arena.model.vis.global_
        view.offwidth, view.offheight = (max(now, size * OVERSAMPLING) for now in (view.offwidth, view.offheight))
        try:
            self.renderer: Any = mujoco.Renderer(arena.model, size * OVERSAMPLING, size * OVERSAMPLING)
        except (RuntimeError, AttributeError, mujoco.FatalError) as broken:
            raise no_renderer(f"{type(broken).__name__}: {broken}") from broken
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self.renderer.scene.flags[flag] = 0
        self._camera: Any = mujoco.MjvCamera()
        self._original = {name: np.array(getattr(arena.model, name)) for name in RESTORED}
        self._headlight = np.array([arena.model.vis.headlight.ambient, arena.model.vis.headlight.diffuse])
        self._table_changed = False

    def __enter__(self) -> SceneRenderer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Free the graphics memory; the garbage collector would fail to at exit."""
        self.renderer.close()

    def prepare(self, setting: Setting, rng: np.random.Generator) -> SimCamera:
        """Set camera, light and colours for an episode."""
        for name, values in self._original.items():
            if name != "tex_data" or self._table_changed:
                getattr(self.arena.model, name)[:] = values
        self.arena.model.vis.headlight.ambient[:], self.arena.model.vis.headlight.diffuse[:] = self._headlight
        camera = draw_camera(setting, rng)
        view = self.arena.view(camera)
        self._camera.azimuth, self._camera.elevation = view.azimuth, view.elevation
        self._camera.distance, self._camera.lookat[:] = view.distance, view.look_at
        if setting != "plain":
            self._vary_light(rng)
            self._vary_colours(rng)
        if setting != "plain" or self._table_changed:
            self._table(rng if setting != "plain" else None)
        return camera

    def render(self) -> Images:
        """Render the current state: (size, size, 3) uint8."""
        self.renderer.update_scene(self.arena.data, self._camera)
        large = self.renderer.render()
        offsets = [(row, column) for row in range(OVERSAMPLING) for column in range(OVERSAMPLING)]
        # several times faster than a reshape and a sum over two axes
        total = np.full((self.size, self.size, 3), OVERSAMPLING**2 // 2, dtype=np.uint16)
        for row, column in offsets:
            total += large[row::OVERSAMPLING, column::OVERSAMPLING]
        return (total // OVERSAMPLING**2).astype(np.uint8)

    def _vary_light(self, rng: np.random.Generator) -> None:
        model = self.arena.model
        model.vis.headlight.ambient[:] *= rng.uniform(0.7, 1.3)
        model.vis.headlight.diffuse[:] *= rng.uniform(0.6, 1.3)
        warmth = rng.uniform(-0.15, 0.15)
        for light in range(model.nlight):
            model.light_diffuse[light] *= rng.uniform(0.5, 1.5) * np.array([1 + warmth, 1.0, 1 - warmth])
            model.light_pos[light] += rng.uniform(-0.5, 0.5, size=3)

    def _vary_colours(self, rng: np.random.Generator) -> None:
        """Tint each material and each untextured movable geom; the arm and the goal marks keep their colours."""
        model, groups = self.arena.model, self.arena.groups
        arm_materials = set(model.geom_matid[(groups != OBJECT) & (groups != SCENE) & (groups != SPARE)].tolist())
        for material in range(model.nmat):
            tint = rng.uniform(0.55, 1.35, size=3)
            if material not in arm_materials:
                model.mat_rgba[material, :3] = np.clip(model.mat_rgba[material, :3] * tint, 0, 1)
        for geom in np.flatnonzero(groups == OBJECT):
            if model.geom_matid[geom] < 0:
                tint = rng.uniform(0.55, 1.35, size=3)
                model.geom_rgba[geom, :3] = np.clip(model.geom_rgba[geom, :3] * tint, 0, 1)
        for geom in np.flatnonzero(groups == SPARE):
            model.geom_rgba[geom, :3] = SPARE_COLOURS[int(rng.integers(len(SPARE_COLOURS)))]

    def _table(self, rng: np.random.Generator | None) -> None:
        """Paint the table top: original, plain, striped or mottled."""
        model = self.arena.model
        texture = self.mujoco.mj_name2id(model, self.mujoco.mjtObj.mjOBJ_TEXTURE, TABLE_TEXTURE)
        if texture < 0:
            return
        self._table_changed = rng is not None
        if rng is not None:
            height, width = int(model.tex_height[texture]), int(model.tex_width[texture])
            start = int(model.tex_adr[texture])
            pixels = model.tex_data[start : start + height * width * 3].reshape(height, width, 3)
            pixels[:] = _paint_table(pixels, rng)
        self.mujoco.mjr_uploadTexture(model, self.renderer._mjr_context, texture)


def _paint_table(wood: Images, rng: np.random.Generator) -> Images:
    kind = int(rng.integers(4))
    if kind == 0:
        return wood
    colour, contrast = rng.uniform(60, 200, size=3), rng.uniform(5, 30)
    height, width = wood.shape[:2]
    if kind == 1:
        pattern = np.zeros((height, width))
    elif kind == 2:  # noqa: PLR2004
        pattern = np.sin(np.arange(width) / rng.uniform(4, 30))[None, :].repeat(height, axis=0)
    else:
        coarse = rng.normal(size=(16, 16))
        pattern = coarse.repeat(height // 16, axis=0).repeat(width // 16, axis=1)
    return np.clip(colour + contrast * pattern[..., None], 0, 255).astype(np.uint8)
