"""What one robomimic or LIBERO file says about all of its demos: names, splits, instruction, simulator."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.dataset import Problem
from demerit.data.formats.hdf5_links import HDF5_FAILURES, Refused, children, resolve, sentence

NOMINAL_FPS = 20.0
"""robosuite's default control rate, used when env_args does not give one"""
SPLITS = ("train", "valid", "test")
LIBERO_ATTRIBUTES = ("problem_info", "bddl_file_name")
LIBERO_FILE_ENDING = "_demo.hdf5"
SCENE = re.compile(r"^[A-Z]+(_[A-Z]+)*_SCENE\d+_")


@dataclass(frozen=True)
class Survey:
    """One file, before any demo is read."""

    path: Path
    place: str
    """the beginning of its episodes' ids"""
    names: tuple[str, ...]
    splits: Mapping[str, str]
    libero: bool
    instruction: str
    fps: float
    embodiment: str
    tags: Mapping[str, str]
    problems: tuple[Problem, ...]


def survey_file(file: Any, path: Path, place: str) -> Survey:
    """Look over an open file without touching a demo's data."""
    attributes = resolve(file, "data").attrs
    names = tuple(children(file, "data"))
    problems = [] if names else [Problem("no demos", place, "the data group is empty", kept=False)]
    libero = any(name in attributes for name in LIBERO_ATTRIBUTES) or _looks_like_libero(file, path, names)
    environment = _json_attribute(attributes, "env_args")
    options = environment.get("env_kwargs")
    options = options if isinstance(options, dict) else {}
    rate, robots = options.get("control_freq"), options.get("robots", "")
    splits, of_mask = _splits(file, place, names)
    return Survey(
        path,
        place,
        names,
        splits,
        libero,
        _instruction(attributes, path) if libero else "",
        float(rate) if isinstance(rate, int | float) and rate > 0 else NOMINAL_FPS,
        "+".join(map(str, robots)) if isinstance(robots, list) else str(robots),
        {"environment": str(environment["env_name"])} if environment.get("env_name") else {},
        (*problems, *of_mask),
    )


def instruction_of_name(stem: str) -> str:
    """Read LIBERO's instruction out of a file name.

    >>> instruction_of_name("KITCHEN_SCENE3_turn_on_the_stove_demo")
    'turn on the stove'
    """
    return SCENE.sub("", stem.removesuffix("_demo")).replace("_", " ").strip()


def _looks_like_libero(file: Any, path: Path, names: tuple[str, ...]) -> bool:
    if not names or not path.name.endswith(LIBERO_FILE_ENDING):
        return False
    try:
        return any(key.endswith("_rgb") for key in children(file, f"data/{names[0]}/obs"))
    except Refused:  # told with the demo itself
        return False


def _instruction(attributes: Any, path: Path) -> str:
    said = _json_attribute(attributes, "problem_info").get("language_instruction") or ""
    joined = "".join(map(str, said)) if isinstance(said, list) else str(said)  # some files hold a list of letters
    return joined.strip().strip('"') or instruction_of_name(path.stem)


def _json_attribute(attributes: Any, name: str) -> dict[str, Any]:
    try:
        value = attributes.get(name, "{}")
        loaded = json.loads(value)
    except (TypeError, RecursionError, *HDF5_FAILURES):  # free text where JSON should be: nothing is learned from it
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _splits(file: Any, place: str, names: tuple[str, ...]) -> tuple[dict[str, str], list[Problem]]:
    """Map demos to splits by the masks train, valid and test; a demo in two of them gets none."""
    members: dict[str, list[str]] = {}
    problems = []
    try:
        for split in children(file, "mask"):
            if split in SPLITS:
                for name in np.asarray(resolve(file, f"mask/{split}")[()]).reshape(-1).tolist():
                    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
                    members.setdefault(text, []).append(split)
    except (Refused, *HDF5_FAILURES) as failure:
        return {}, [Problem("unreadable mask", place, f"{sentence(failure)}; no demo has a split", kept=True)]
    for name, splits in members.items():
        if name not in names:
            detail = f"mask/{splits[0]} names it and data has no such group"
            problems.append(Problem("missing demo", f"{place}/{name}", detail, kept=False))
        elif len(set(splits)) > 1:
            detail = f"{' and '.join(splits)} both name it, so it has no split"
            problems.append(Problem("several splits", f"{place}/{name}", detail, kept=True))
    return {name: splits[0] for name, splits in members.items() if len(set(splits)) == 1}, problems
