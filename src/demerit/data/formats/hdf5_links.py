"""Walking an HDF5 file without leaving it.

HDF5 lets a file point at other files: external links, raw data kept elsewhere, virtual datasets. A dataset that was
downloaded must not make demerit read whatever else is on the disk, so every object is reached through `resolve`, which
looks at each link before it follows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from demerit.errors import MissingExtra, UnreadableVideo

MOST_SOFT_LINKS = 16

HDF5_FAILURES = (OSError, KeyError, RuntimeError, ValueError)
"""what h5py raises for a file that is damaged inside"""


class Refused(Exception):
    """Something that points out of its file."""


@contextmanager
def opened(path: str | Path) -> Iterator[Any]:
    """Open a file for reading, and close it."""
    try:
        import h5py  # noqa: PLC0415  # an extra: demerit works without it
    except ModuleNotFoundError:
        raise MissingExtra("Reading HDF5 files", "hdf5") from None
    if not Path(path).is_file():
        raise UnreadableVideo(path, "there is no such file")
    try:
        file = h5py.File(path, "r")
    except OSError as failure:
        raise UnreadableVideo(path, f"not a readable HDF5 file ({failure})") from None
    with file:
        yield file


def resolve(file: Any, path: str) -> Any:
    """Return the group or dataset at a path from the root; Refused when it is elsewhere, KeyError when nowhere."""
    from h5py import Group, h5l  # noqa: PLC0415

    here, ahead, soft_links = file, _parts(path), 0
    while ahead:
        name = ahead.pop(0)
        if not isinstance(here, Group) or not here.id.links.exists(name):
            raise KeyError(f"there is no {path}")
        kind = here.id.links.get_info(name).type
        if kind == h5l.TYPE_HARD:
            here = here[name]
        elif kind == h5l.TYPE_SOFT:
            soft_links += 1
            if soft_links > MOST_SOFT_LINKS:
                raise KeyError(f"{path} goes through more than {MOST_SOFT_LINKS} soft links")
            target = here.id.links.get_val(name).decode("utf-8", errors="surrogateescape")
            here, ahead = (file if target.startswith("/") else here), _parts(target) + ahead
        else:
            raise Refused(f"{path} is an external link, and links out of a file are not followed")
    if not isinstance(here, Group) and (getattr(here, "external", None) or getattr(here, "is_virtual", False)):
        raise Refused(f"{path} keeps its data in other files, which are not followed")
    return here


def children(file: Any, path: str) -> list[str]:
    """List the names in a group, demo_2 before demo_10; nothing when there is no such group."""
    from h5py import Group  # noqa: PLC0415

    try:
        group = resolve(file, path)
    except KeyError:
        return []
    if not isinstance(group, Group):
        return []
    # h5py gives bytes for a name that is not text; such a name is shown, and then not found.
    names = [name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name for name in group.keys()]
    return sorted(names, key=natural)


def sentence(failure: BaseException) -> str:
    """Return what an error says; a KeyError would put its words in quotes."""
    return str(failure.args[0]) if isinstance(failure, KeyError) and failure.args else str(failure)


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sort key under which numbers inside names count as numbers."""
    parts = re.split(r"([0-9]+)", text)
    return [(1, int(part), "") if place % 2 else (0, 0, part) for place, part in enumerate(parts)]


def _parts(path: str) -> list[bytes]:
    return [part.encode("utf-8", "surrogateescape") for part in path.split("/") if part not in ("", ".")]
