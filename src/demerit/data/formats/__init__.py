"""Readers of dataset formats, one module each.

`open_dataset("lerobot:/path")` names the format; `open_dataset("/path")` detects it by the files in the folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from demerit.data.dataset import SOURCES, Dataset
from demerit.data.formats.videos import VIDEO_SUFFIXES
from demerit.errors import BadInput, UnknownName

HDF5_SUFFIXES = {".hdf5", ".h5"}


def open_dataset(address: str | Path, *, strict: bool = False, camera: str | None = None, **options: Any) -> Dataset:
    """Open a dataset in place; nothing is copied or converted.

    Args:
        address: `format:path`, or a path whose format is detected.
        strict: raise at the first problem instead of counting it.
        camera: the main camera; others stay available.
        **options: options of the format's reader (see its class).
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
    """Split `format:path`, or detect the format of a plain path."""
    kind, colon, rest = address.partition(":")
    if colon and kind in SOURCES:
        path = Path(rest).expanduser()
    elif colon and re.fullmatch(r"[a-z][a-z0-9_-]+", kind) and not Path(address).exists():
        raise UnknownName("dataset format", kind, SOURCES)
    else:
        path = Path(address).expanduser()
        kind = ""
    if not path.exists():
        raise BadInput(address, "an existing folder or file", "a path that does not exist")
    return kind or detect(path), path.resolve()


def detect(path: Path) -> str:
    """Detect a dataset's format by its files."""
    for kind, is_this in DETECTORS.items():
        if is_this(path):
            return kind
    known = ", ".join(f"{name}:{path.name}" for name in SOURCES)
    raise BadInput(
        str(path), f"a dataset of a known format; name the format if you know it ({known})", "an unknown one"
    )


def _has_file(path: Path, suffixes: set[str]) -> bool:
    return any(found.suffix.lower() in suffixes for found in path.rglob("*"))


DETECTORS: dict[str, Callable[[Path], bool]] = {
    "demerit": lambda path: (path / "dataset.json").is_file(),
    "lerobot": lambda path: (path / "meta" / "info.json").is_file(),
    "roboarena": lambda path: (path / "evaluation_sessions").is_dir(),
    "roboreward": lambda path: any((path / split / "metadata.jsonl").is_file() for split in ("train", "val", "test")),
    "rlds": lambda path: path.is_dir() and any([*path.glob("features.json"), *path.glob("*/features.json")]),
    "hdf5": lambda path: path.suffix in HDF5_SUFFIXES or (path.is_dir() and _has_file(path, HDF5_SUFFIXES)),
    "videos": lambda path: path.is_dir() and _has_file(path, set(VIDEO_SUFFIXES)),
}
"""In order: the first match wins. `rbm` cannot be detected and must be named."""
