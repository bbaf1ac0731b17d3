"""What a release is asked to be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

from demerit.data.store import FILTER_COLUMNS
from demerit.errors import BadInput, UnknownName
from demerit.use.release.names import Dates

Layout = Literal["folder", "lerobot"]
Notes = Literal["scrub", "drop", "keep"]
EVERY_CAMERA = "*"
NUMBERS_OF_A_BOX = 4
CAME_FROM, CAME_AS = "released_from", "released_as"
"""tags of an episode whose fingerprint is another than its source's: that fingerprint, and what was done"""
RULES = 3
"""of cleaning, counted up when they change: what older ones have left is neither gone on with nor taken for done"""


@dataclass(frozen=True)
class Mask:
    """A region of a camera's picture that nobody is to see, in pixels from the top left corner."""

    camera: str
    """`*` for every camera"""
    x: int
    y: int
    width: int
    height: int

    def __post_init__(self) -> None:
        """Refuse a region that covers nothing."""
        if self.x < 0 or self.y < 0 or self.width < 1 or self.height < 1:
            got = f"{self.x},{self.y},{self.width},{self.height}"
            raise BadInput(f"mask of camera {self.camera!r}", "x,y from 0 and a width and height from 1", got)

    @classmethod
    def parse(cls, text: str) -> Mask:
        """Read CAMERA=X,Y,WIDTH,HEIGHT."""
        camera, equals, box = text.rpartition("=")
        parts = [part.strip() for part in box.split(",")]
        if not equals or not camera or len(parts) != NUMBERS_OF_A_BOX or not all(part.isdecimal() for part in parts):
            raise BadInput("--mask", "CAMERA=X,Y,WIDTH,HEIGHT in pixels", repr(text))
        x, y, width, height = map(int, parts)
        return cls(camera, x, y, width, height)


@dataclass(frozen=True)
class Settings:
    """Everything that decides what a release looks like."""

    layout: Layout = "folder"
    materialize: bool = False
    """write each view as a video of its own, and nothing that no episode shows"""
    name: str = ""
    """by default the dataset's"""
    licence: str = ""
    """recorded where an episode does not say"""
    where: Mapping[str, str] = field(default_factory=dict)
    """release only episodes whose columns have these values"""
    masks: tuple[Mask, ...] = ()
    blur: str = ""
    """module:function that finds what has to be blurred in a picture"""
    names: tuple[str, ...] = ()
    """names and places to replace wherever they stand, on top of those that the data itself gives away"""
    notes: Notes = "scrub"
    dates: Dates = "month"
    allow_leaks: bool = False
    fps: float | None = None
    """for LeRobot, where recordings differ"""

    def __post_init__(self) -> None:
        """Refuse what nobody could do."""
        for what, value, allowed in (
            ("format", self.layout, get_args(Layout)),
            ("treatment of notes (--notes)", self.notes, get_args(Notes)),
            ("precision of dates (--dates)", self.dates, get_args(Dates)),
        ):
            if value not in allowed:
                raise UnknownName(what, value, allowed)
        for column in self.where:
            if column not in FILTER_COLUMNS:
                raise UnknownName("column to choose by (--where)", column, FILTER_COLUMNS)
        if self.fps is not None and self.layout != "lerobot":
            raise BadInput("--fps", "--format lerobot (our folder keeps every recording's own times)", "our folder")

    @property
    def repaints(self) -> bool:
        """Whether pixels are changed."""
        return bool(self.masks or self.blur)

    @property
    def encodes(self) -> bool:
        """Whether every picture is encoded anew."""
        return self.repaints or self.materialize or self.layout == "lerobot"

    def digest(self) -> bytes:
        """Everything that changes what comes out, as bytes."""
        return json.dumps({**asdict(self), "rules": RULES}, sort_keys=True).encode()


def parse_where(pairs: list[str]) -> dict[str, str]:
    """Read COLUMN=VALUE pairs."""
    found = {}
    for pair in pairs:
        column, equals, value = pair.partition("=")
        if not equals:
            raise BadInput("--where", "COLUMN=VALUE", repr(pair))
        found[column.strip()] = value.strip()
    return found
