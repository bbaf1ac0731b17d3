"""What goes into a release: layout, episodes, fields to keep, text replacements, masks and the owner's own hooks."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from demerit.data.store import FILTER_COLUMNS
from demerit.errors import BadInput, UnknownName
from demerit.registry import load_attribute

ReleaseLayout = Literal["folder", "lerobot"]
EVERY_CAMERA = "*"
BOX_NUMBERS = 4
KEEP = ("notes", "site", "tags", "signals")
"""fields that are dropped unless kept; `tags` and `signals` also take a name, as in `tags.policy`"""
REPLACEMENT_HEADER = ["instruction", "replacement"]


@dataclass(frozen=True)
class Mask:
    """A region of a camera's image to paint black, in pixels from the top left corner."""

    camera: str
    """`*` for every camera"""
    x: int
    y: int
    width: int
    height: int

    def __post_init__(self) -> None:
        """Refuse an empty region."""
        if not self.camera or self.x < 0 or self.y < 0 or self.width < 1 or self.height < 1:
            raise BadInput("mask", "a camera, x and y from 0, width and height from 1", self)

    @classmethod
    def parse(cls, text: str) -> Mask:
        """Read CAMERA=X,Y,WIDTH,HEIGHT."""
        camera, _, box = text.rpartition("=")
        try:
            x, y, width, height = map(int, box.split(","))
        except ValueError:
            raise BadInput("--mask", "CAMERA=X,Y,WIDTH,HEIGHT in pixels", repr(text)) from None
        return cls(camera, x, y, width, height)


@dataclass(frozen=True)
class ReleaseConfig:
    """Everything that decides what a release contains."""

    layout: ReleaseLayout = "folder"
    name: str = ""
    """default: the name of the destination folder"""
    licence: str = ""
    """SPDX id, used where an episode has none"""
    where: Mapping[str, str] = field(default_factory=dict)
    """release only episodes whose columns have these values"""
    keep: tuple[str, ...] = ()
    """fields to release verbatim: notes, site, tags, tags.NAME, signals, signals.NAME"""
    replacements: Mapping[str, str] = field(default_factory=dict)
    """exact instruction (or other released text) to its replacement"""
    scrub: str = ""
    """module:function, text to text, applied to instructions and kept notes"""
    masks: tuple[Mask, ...] = ()
    blur: str = ""
    """module:function that finds regions to hide in an image"""
    allow_leaks: bool = False
    fps: float | None = None
    """LeRobot only: write all episodes at this rate"""

    def __post_init__(self) -> None:
        """Refuse unknown layouts, columns and fields."""
        if self.layout not in get_args(ReleaseLayout):
            raise UnknownName("format", self.layout, get_args(ReleaseLayout))
        for column in self.where:
            if column not in FILTER_COLUMNS:
                raise UnknownName("column to choose by (--where)", column, FILTER_COLUMNS)
        for entry in self.keep:
            kind, dot, name = entry.partition(".")
            if entry not in KEEP and not (kind in ("tags", "signals") and dot and name):
                raise UnknownName("field to keep (--keep)", entry, [*KEEP, "tags.NAME", "signals.NAME"])
        if self.fps is not None and self.layout != "lerobot":
            raise BadInput("--fps", "--format lerobot (the demerit folder keeps each recording's times)", "folder")

    @property
    def changes_pixels(self) -> bool:
        """Whether masks or a detector change pixels."""
        return bool(self.masks or self.blur)

    def keeps(self, kind: str, name: str = "") -> bool:
        """Whether a field is kept, such as `notes` or the tag `policy`."""
        return kind in self.keep or (bool(name) and f"{kind}.{name}" in self.keep)

    def digest(self) -> bytes:
        """Everything that changes the result, as bytes."""
        return json.dumps(asdict(self), sort_keys=True).encode()


def parse_where(pairs: Sequence[str]) -> dict[str, str]:
    """Read COLUMN=VALUE pairs."""
    found = {}
    for pair in pairs:
        column, equals, value = pair.partition("=")
        if not equals:
            raise BadInput("--where", "COLUMN=VALUE", repr(pair))
        found[column.strip()] = value.strip()
    return found


def read_replacements(path: Path) -> dict[str, str]:
    """Read exact texts and their replacements from a JSON object or a CSV file with two columns."""
    try:
        text = path.read_text("utf-8-sig")
        rows = [*json.loads(text).items()] if path.suffix == ".json" else [*csv.reader(text.splitlines(keepends=True))]
    except (OSError, ValueError, AttributeError) as error:
        raise BadInput("--replace", "a JSON object or a CSV file with two columns", f"{path} ({error})") from error
    rows = [row for row in rows if row]
    for row in rows:
        if len(row) != len(REPLACEMENT_HEADER) or not all(isinstance(cell, str) for cell in row):
            raise BadInput("--replace", "two texts per row", f"{list(row)} in {path}")
    return {old: new for old, new in rows if [old, new] != REPLACEMENT_HEADER}


def load_hook(address: str, option: str) -> Callable[[Any], Any]:
    """Import the owner's `module:function`, also from the current folder."""
    sys.path.insert(0, "")
    try:
        hook = load_attribute(address, option)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(option, "MODULE:FUNCTION that can be imported", f"{address!r} ({error})") from error
    finally:
        sys.path.remove("")
    if not callable(hook):
        raise BadInput(option, "a function", f"{type(hook).__name__} {address!r}")
    return hook
