"""Readers of dataset formats, one module each.

`open_dataset("lerobot:/path")` names the format; `open_dataset("/path")` detects it by the files in the folder. A video
file, or a bag, is read as part of its folder: with its row in the folder's label file, and the id that it has there.
"""

from __future__ import annotations

import difflib
import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from demerit.data.dataset import SOURCES, Dataset, DatasetReader, distinct_names, join_readers
from demerit.data.formats.label_file import VIDEO_SUFFIXES
from demerit.data.formats.marks import LATE, MarkedBy
from demerit.errors import BadInput, UnknownName

HDF5_SUFFIXES = {".hdf5", ".h5"}
BAG_SUFFIXES = {".mcap", ".bag", ".db3"}


def open_dataset(
    address: str | Path | Sequence[str | Path],
    *,
    strict: bool = False,
    camera: str | None = None,
    instruction: str = "",
    marks: str | Path | None = None,
    late: float | str = LATE,
    **options: Any,
) -> Dataset:
    """Open a dataset in place; nothing is copied or converted.

    Args:
        address: `format:path`, a path whose format is detected, a video, a pattern (`runs/*.mp4`), or several of them.
            The episodes of several datasets get their dataset's name before their id.
        strict: raise at the first problem instead of counting it.
        camera: the main camera; others stay available.
        instruction: for episodes that have none; episodes that have one keep it and are counted.
        marks: the log of `demerit mark` while they were recorded, joined to the labels (docs/mark.md).
        late: seconds after the end of an episode in which a mark is its verdict.
        **options: options of the format's reader (see its class).
    """
    addresses = [address] if isinstance(address, (str, Path)) else address
    common: dict[str, Any] = {"camera": camera, "instruction": instruction, "marks": marks, "late": late}
    parts = open_parts(addresses, strict=strict, **common, **options)
    if len(parts) == 1:
        return parts[0]
    names = distinct_names([part.address for part in parts])
    joined = join_readers(dict(zip(names, [part.reader for part in parts], strict=True)))
    return Dataset(joined, ", ".join(part.address for part in parts), strict, camera, instruction)


def open_parts(
    addresses: Sequence[str | Path],
    *,
    strict: bool = False,
    camera: str | None = None,
    instruction: str = "",
    marks: str | Path | None = None,
    late: float | str = LATE,
    **options: Any,
) -> list[Dataset]:
    """Open several datasets, each for itself; videos of one folder are one dataset. Takes what `open_dataset` takes."""
    groups: dict[tuple[str, Path], list[Path]] = {}
    whole: set[tuple[str, Path]] = set()
    for address in addresses:
        for place in _expand(str(address)):
            kind, path = split_address(place)
            is_video = kind == "videos" and path.is_file() and path.suffix.lower() in VIDEO_SUFFIXES
            is_part = is_video or (kind == "ros" and is_bag(path))
            parts_of = groups.setdefault((kind, path.parent if is_part else path), [])
            if not is_part:
                whole.add((kind, path))
            elif path not in parts_of:
                parts_of.append(path)
    if not groups:
        raise BadInput("dataset", "at least one", "none")
    for (kind, path), (other, again) in combinations(groups, 2):
        if path == again:
            raise BadInput(str(path), "one format", f"two ({kind} and {other})")
    if marks is not None and (len(groups) > 1 or next(iter(groups))[0] == "demerit"):
        raise BadInput("marks", "one dataset as it was recorded (docs/mark.md)", ", ".join(map(str, addresses)))
    parts = []
    for (kind, path), parts_of in groups.items():
        selection = {} if (kind, path) in whole else {"only": tuple(parts_of)}
        reader = _open_reader(kind, path, **options, **selection)
        marked_by = None if marks is None else MarkedBy(Path(marks), getattr(reader, "recorded", None), late)
        parts.append(Dataset(reader, f"{kind}:{path}", strict, camera, instruction, marked_by))
    return parts


def _expand(address: str) -> Iterator[str]:
    """Yield the paths that match a pattern (a shell leaves a quoted one as it is), or the address itself."""
    if not glob.has_magic(address) or Path(address).exists():
        yield address
        return
    kind, colon, rest = address.partition(":")
    prefix, pattern = (f"{kind}:", rest) if colon and kind in SOURCES else ("", address)
    paths = sorted(glob.glob(str(Path(pattern).expanduser()), recursive=True))
    if not paths and not Path(pattern).exists():
        raise BadInput(address, "a pattern that matches a file or folder", "one that matches nothing")
    yield from (prefix + path for path in paths or [pattern])


def _open_reader(kind: str, path: Path, **options: Any) -> DatasetReader:
    try:
        reader: DatasetReader = SOURCES.factory(kind)(str(path), **options)
    except TypeError as error:
        unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unexpected is None:
            raise
        raise BadInput(
            f"option {unexpected[1]!r}", f"an option of the {kind} format", "one that it does not have"
        ) from error
    return reader


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
        raise BadInput(address, "an existing folder or file", f"a path that does not exist{_suggest(path)}")
    resolved = path.resolve()
    if path.suffix.lower() in VIDEO_SUFFIXES and resolved.suffix.lower() not in VIDEO_SUFFIXES:
        resolved = path.parent.resolve() / path.name  # a link into a cache whose files have no extension
    return kind or detect(path), resolved


def detect(path: Path) -> str:
    """Detect a dataset's format by its files."""
    for kind, is_this in DETECTORS.items():
        if is_this(path):
            return kind
    if path.is_dir() and not any(file.is_file() for file in path.rglob("*")):
        raise BadInput(str(path), "videos or a dataset", "an empty folder: no videos or dataset found")
    formats = ", ".join(f"{name}:{path.name}" for name in SOURCES)
    raise BadInput(
        str(path), f"a dataset of a known format; name the format if you know it ({formats})", "an unknown one"
    )


def _suggest(path: Path) -> str:
    """Name what exists beside the path and is called nearly the same."""
    try:
        near = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1)
    except OSError:
        return ""
    return f" (did you mean {path.parent / near[0]}?)" if near else ""


def is_bag(path: Path) -> bool:
    """Whether a path is a bag: a file of one, or the folder of a ROS 2 bag, also one without its metadata.yaml."""
    if not path.is_dir():
        return path.suffix.lower() in BAG_SUFFIXES
    if (path / "metadata.yaml").is_file():
        return any(BAG_SUFFIXES & set(file.suffixes) for file in path.iterdir())  # run_0.mcap, run_0.mcap.zstd
    return any(re.fullmatch(re.escape(path.name) + r"_\d+\.(mcap|db3)", file.name) for file in path.iterdir())


def _has_file(path: Path, suffixes: set[str]) -> bool:
    return any(file.suffix.lower() in suffixes for file in path.rglob("*"))


DETECTORS: dict[str, Callable[[Path], bool]] = {
    "demerit": lambda path: (path / "dataset.json").is_file(),
    "lerobot": lambda path: (path / "meta" / "info.json").is_file(),
    "roboarena": lambda path: (path / "evaluation_sessions").is_dir(),
    "roboreward": lambda path: any((path / split / "metadata.jsonl").is_file() for split in ("train", "val", "test")),
    "rlds": lambda path: path.is_dir() and any([*path.glob("features.json"), *path.glob("*/features.json")]),
    "hdf5": lambda path: path.suffix in HDF5_SUFFIXES or (path.is_dir() and _has_file(path, HDF5_SUFFIXES)),
    "videos": lambda path: path.suffix.lower() in VIDEO_SUFFIXES or _has_file(path, set(VIDEO_SUFFIXES)),
    "ros": lambda path: is_bag(path) or _has_file(path, BAG_SUFFIXES),
}
"""In order: the first match wins. `rbm` cannot be detected and must be named."""
