"""Finds a way to draw without a screen before MuJoCo is imported: it reads its choice once, at import."""

from __future__ import annotations

import ctypes.util
import os
import sys
from typing import Any

from demerit.errors import BadInput, MissingExtra

LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
INSTALL = "apt-get install -y libegl1 libopengl0 libgl1-mesa-dri"


def load_mujoco() -> Any:
    """Import MuJoCo with a renderer that needs no screen; say what is missing when something is."""
    choose_renderer()
    try:
        import metaworld.env_dict  # noqa: F401, PLC0415  # fails here, with the same install line
        import mujoco  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise MissingExtra("Simulating", "sim") from missing
    except (ImportError, AttributeError) as broken:  # PyOpenGL finds a library and not what it needs in it
        raise no_renderer(f"{type(broken).__name__}: {broken}") from broken
    return mujoco


def choose_renderer() -> None:
    """Set MUJOCO_GL unless the user did: EGL where its library is, else OSMesa; both draw the same bytes."""
    if "MUJOCO_GL" in os.environ or sys.platform != "linux":
        return
    found = [name for name, library in LIBRARIES.items() if ctypes.util.find_library(library)]
    if not found:
        raise no_renderer("neither libEGL nor libOSMesa")
    os.environ["MUJOCO_GL"] = found[0]


def no_renderer(got: str) -> BadInput:
    """Say how to install one."""
    return BadInput("drawing without a screen", f"an OpenGL library (Debian: {INSTALL}; or libosmesa6)", got)
