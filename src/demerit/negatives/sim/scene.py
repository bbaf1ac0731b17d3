"""What an episode looks like: camera, light and colours drawn from its seed, and the pictures."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from demerit.data.frames import Images
from demerit.errors import UnknownName
from demerit.negatives.sim.arena import OBJECT, SCENE, SPARE, Arena
from demerit.negatives.sim.gl import no_renderer

Setting = Literal["plain", "varied", "held-out"]
"""plain: one camera, the colours as they come; varied: drawn, for training; held-out: drawn, from cameras across the
table that no training episode uses"""
SETTINGS: tuple[Setting, ...] = get_args(Setting)

Floats = npt.NDArray[np.float64]
OVERSAMPLING = 2
"""pictures are drawn twice as large and averaged: smoother and ten times faster than the renderer's own smoothing"""
TABLE_TEXTURE = "T_table"
SPARE_COLOURS = ((0.95, 0.8, 0.15), (0.6, 0.25, 0.75), (0.9, 0.9, 0.9), (0.95, 0.55, 0.7))
"""never like the pucks and the blocks, never the green, red or blue of the goal marks"""
RESTORED = ("geom_rgba", "mat_rgba", "light_diffuse", "light_ambient", "light_pos", "tex_data")


@dataclass(frozen=True)
class Camera:
    """Where the picture is taken from: degrees, metres."""

    azimuth: float = 140.0
    elevation: float = -38.0
    distance: float = 1.0
    look_at: tuple[float, float, float] = (0.0, 0.68, 0.08)


AZIMUTHS = {"varied": (120.0, 166.0), "held-out": (196.0, 222.0)}
"""train cameras stand beside the arm and look where it looks; held-out ones face it from across the table"""


def draw_camera(setting: Setting, rng: np.random.Generator) -> Camera:
    """Draw a camera; the plain setting has one."""
    if setting not in SETTINGS:
        raise UnknownName("setting", setting, SETTINGS)
    if setting == "plain":
        return Camera()
    shift = rng.uniform(-0.03, 0.03, size=3)
    return Camera(
        azimuth=float(rng.uniform(*AZIMUTHS[setting])),
        elevation=float(rng.uniform(-48, -30)),
        distance=float(rng.uniform(0.92, 1.12)),
        look_at=(float(shift[0]), 0.68 + float(shift[1]), 0.08 + float(shift[2])),
    )


class Painter:
    """Draws one arena, episode after episode; close it, or use it in a with block."""

    def __init__(self, arena: Arena, size: int) -> None:
        """Make the renderer and remember the colours as they came."""
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

    def __enter__(self) -> Painter:
        """Use it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Free the graphics memory; waiting for the garbage collector would fail at exit."""
        self.renderer.close()

    def prepare(self, setting: Setting, rng: np.random.Generator) -> Camera:
        """Set camera, light and colours for an episode; nothing of the last one stays."""
        for name, values in self._original.items():
            if name != "tex_data" or self._table_changed:
                getattr(self.arena.model, name)[:] = values
        self.arena.model.vis.headlight.ambient[:], self.arena.model.vis.headlight.diffuse[:] = self._headlight
        camera = draw_camera(setting, rng)
        self._camera.azimuth, self._camera.elevation = camera.azimuth, camera.elevation
        self._camera.distance, self._camera.lookat[:] = camera.distance, camera.look_at
        if setting != "plain":
            self._vary_light(rng)
            self._vary_colours(rng)
        if setting != "plain" or self._table_changed:
            self._table(rng if setting != "plain" else None)
        return camera

    def picture(self) -> Images:
        """Draw the moment: (size, size, 3) uint8."""
        self.renderer.update_scene(self.arena.data, self._camera)
        large = self.renderer.render()
        offsets = [(row, column) for row in range(OVERSAMPLING) for column in range(OVERSAMPLING)]
        # sums of strided views: several times faster than a reshape and a sum over two axes
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
        """Paint the table top: as it came, plain, striped or clouded."""
        model = self.arena.model
        texture = self.mujoco.mj_name2id(model, self.mujoco.mjtObj.mjOBJ_TEXTURE, TABLE_TEXTURE)
        if texture < 0:
            return
        self._table_changed = rng is not None
        if rng is not None:
            height, width = int(model.tex_height[texture]), int(model.tex_width[texture])
            start = int(model.tex_adr[texture])
            pixels = model.tex_data[start : start + height * width * 3].reshape(height, width, 3)
            pixels[:] = _painted(pixels, rng)
        self.mujoco.mjr_uploadTexture(model, self.renderer._mjr_context, texture)


def _painted(wood: Images, rng: np.random.Generator) -> Images:
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
