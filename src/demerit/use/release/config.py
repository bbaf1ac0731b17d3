"""What a release is asked to be, and which licences may be combined in it.

Licences are SPDX ids (`packaging.licenses`); `LicenseRef-NAME` stands for the owner's own terms. The table below is
short and strict: a licence that it does not know may be released alone, with a warning. Every episode keeps its own
licence; the release as a whole has the strictest, or all of them ("Apache-2.0 AND MIT") where none is strictest.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from demerit.data.store import FILTER_COLUMNS
from demerit.errors import BadInput, UnknownName
from demerit.registry import load_attribute

FREE, NAMED, ALIKE = "no conditions", "name the authors", "share alike"
NONCOMMERCIAL, NONCOMMERCIAL_ALIKE, UNCHANGED = "not commercial", "not commercial, share alike", "no changes"
TERMS = {
    **dict.fromkeys(("CC0-1.0", "PDDL-1.0", "Unlicense"), FREE),
    **dict.fromkeys(("MIT", "ISC", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "CC-BY-3.0", "CC-BY-4.0"), NAMED),
    **dict.fromkeys(("ODC-By-1.0", "CDLA-Permissive-2.0"), NAMED),
    **dict.fromkeys(("CC-BY-SA-4.0", "ODbL-1.0", "CDLA-Sharing-1.0", "GPL-3.0-only", "GPL-3.0-or-later"), ALIKE),
    "CC-BY-NC-4.0": NONCOMMERCIAL,
    "CC-BY-NC-SA-4.0": NONCOMMERCIAL_ALIKE,
    **dict.fromkeys(("CC-BY-ND-4.0", "CC-BY-NC-ND-4.0"), UNCHANGED),
}
GOES_INTO = {
    FREE: {FREE, NAMED, ALIKE, NONCOMMERCIAL, NONCOMMERCIAL_ALIKE},
    NAMED: {NAMED, ALIKE, NONCOMMERCIAL, NONCOMMERCIAL_ALIKE},
    NONCOMMERCIAL: {NONCOMMERCIAL, NONCOMMERCIAL_ALIKE},
}
"""terms of a part to the terms that the whole may have; a licence always goes with itself"""
HUB_NAMES = {"PDDL-1.0": "pddl", "ODC-By-1.0": "odc-by", "ODbL-1.0": "odbl", "GPL-3.0-only": "gpl-3.0"}
"""where dataset cards do not use the SPDX id in lower case"""
FROM_HUB = {hub: spdx for spdx, hub in HUB_NAMES.items()}
AND = " AND "


def parse_licence(text: str) -> str:
    """Return the SPDX expression; empty stays empty, anything else is refused."""
    if not text.strip():
        return ""
    given = AND.join(FROM_HUB.get(part.strip().lower(), part) for part in text.replace("-and-", AND).split(AND))
    try:
        return str(canonicalize_license_expression(given))
    except InvalidLicenseExpression:
        expected = "an SPDX id such as CC-BY-4.0, or LicenseRef-NAME for your own terms (--where skips episodes)"
        raise BadInput("licence", expected, repr(text)) from None


def combine_licences(counts: Mapping[str, int], changed: bool = False) -> str:
    """Return the licence of the whole release, or refuse with what to do.

    Args:
        counts: SPDX expression of episodes to their number; empty = no licence.
        changed: whether episodes were edited or pixels changed.
    """
    if counts.get(""):
        expected = "one for every episode (--licence NAME fills gaps, --where skips episodes)"
        raise BadInput("licence", expected, f"none for {counts['']} of {sum(counts.values())} episodes")
    names: Counter[str] = Counter()
    for licence, count in counts.items():
        names.update(dict.fromkeys(_parts(licence), count))
    unchanged = [name for name in names if TERMS.get(name) == UNCHANGED]
    if unchanged and changed:
        expected = "one that allows changes (release without edits, masks and --format lerobot)"
        raise BadInput("licence", expected, f"{unchanged[0]}, {names[unchanged[0]]} episodes")
    wholes = [whole for whole in names if all(_goes_into(part, whole) for part in names)]
    if not wholes:
        listed = ", ".join(f"{name} ({count})" for name, count in names.most_common())
        one = max(names, key=len)
        expected = f"licences that may be combined (release them separately, e.g. --where 'licence={one}')"
        raise BadInput("licences", expected, listed)
    return wholes[0] if len(wholes) == 1 else AND.join(sorted(names, key=str.casefold))


def licence_doubts(counts: Mapping[str, int]) -> list[str]:
    """Name the licences whose terms are not in the table, one text each."""
    unknown = {part: count for licence, count in counts.items() for part in _parts(licence) if part not in TERMS}
    return [
        f"demerit does not know the terms of {name} ({count} episodes): check that it allows sharing, and add its text."
        for name, count in unknown.items()
    ]


def hub_licence(licence: str) -> dict[str, str]:
    """Return the licence fields of a hub's dataset card."""
    if licence in TERMS:
        return {"license": HUB_NAMES.get(licence, licence.lower())}
    return {"license": "other", "license_name": licence.lower().replace(" ", "-")}


def _goes_into(part: str, whole: str) -> bool:
    return part == whole or TERMS.get(whole, "unknown") in GOES_INTO.get(TERMS.get(part, ""), set())


def _parts(licence: str) -> list[str]:
    return [licence] if " OR " in licence or "(" in licence else licence.split(AND)


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
