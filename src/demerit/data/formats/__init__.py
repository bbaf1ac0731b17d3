"""Readers of the dataset formats that robotics people have, one module each.

`open_dataset("lerobot:/path")` names the format; `open_dataset("/path")` looks at the folder and tells it by its files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from demerit.data.dataset import SOURCES, Dataset
from demerit.errors import BadInput, UnknownName

VIDEO_SUFFIXES = {".mp4", ".mkv", ".webm", ".mov", ".avi"}
HDF5_SUFFIXES = {".hdf5", ".h5"}


def open_dataset(address: str | Path, *, strict: bool = False, camera: str | None = None, **options: Any) -> Dataset:
    """Open a dataset where it lies; nothing is copied or converted.

    Args:
        address: `format:path`, or a path whose format is told by its files.
        strict: raise at the first problem instead of counting it.
        camera: the camera to look through; others stay available.
        **options: what the format's reader takes (see its class).
    """
    kind, path = split_address(str(address))
    try:
        reader = SOURCES.factory(kind)(str(path), **options)
    except TypeError as error:
        unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unexpected is None:
            raise
        raise BadInput(
            f"option {unexpected[1]!r}", f"an option of the {kind} format", "one that it does not have"
        ) from error
    return Dataset(reader, address=f"{kind}:{path}", strict=strict, camera=camera)


def split_address(address: str) -> tuple[str, Path]:
    """Split `format:path`, or tell the format of a plain path."""
    kind, colon, rest = address.partition(":")
    if colon and kind in SOURCES:
        path = Path(rest).expanduser()
    elif colon and re.fullmatch(r"[a-z][a-z0-9_-]+", kind) and not Path(address).exists():
        raise UnknownName("dataset format", kind, SOURCES)
    else:
        path = Path(address).expanduser()
        kind = ""
    if not path.exists():
        raise BadInput(address, "a folder or file that exists", "a path where there is nothing")
    return kind or detect(path), path.resolve()


def detect(path: Path) -> str:
    """Tell a dataset's format by the files that only this format has."""
    for kind, is_this in DETECTORS.items():
        if is_this(path):
            return kind
    known = ", ".join(f"{name}:{path.name}" for name in SOURCES)
    raise BadInput(str(path), f"a dataset whose format its files tell, or one that you name ({known})", "neither")


def _has_file(path: Path, suffixes: set[str]) -> bool:
    return any(found.suffix.lower() in suffixes for found in path.rglob("*"))


DETECTORS: dict[str, Callable[[Path], bool]] = {
    "demerit": lambda path: (path / "dataset.json").is_file(),
    "lerobot": lambda path: (path / "meta" / "info.json").is_file(),
    "roboarena": lambda path: (path / "evaluation_sessions").is_dir(),
    "roboreward": lambda path: any((path / split / "metadata.jsonl").is_file() for split in ("train", "val", "test")),
    "rlds": lambda path: path.is_dir() and any([*path.glob("features.json"), *path.glob("*/features.json")]),
    "hdf5": lambda path: path.suffix in HDF5_SUFFIXES or (path.is_dir() and _has_file(path, HDF5_SUFFIXES)),
    "videos": lambda path: path.is_dir() and _has_file(path, VIDEO_SUFFIXES),
}
"""In order: the first that fits wins. `rbm` has no file of its own and must be named."""
