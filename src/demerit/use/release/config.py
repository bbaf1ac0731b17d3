"""What a release is asked to be, which licences may be combined in it, and which fields are allowed.

Licences are SPDX ids (`packaging.licenses`); `LicenseRef-NAME` stands for the owner's own terms. The table below is
short and strict: a licence that it does not know may be released alone, with a warning. Every episode keeps its own
licence; the release as a whole has the strictest, or all of them ("Apache-2.0 AND MIT") where none is strictest.

The allow-list: a released episode is built from the fields named here. Everything else is dropped and counted.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from demerit.data.episode import CHECK, Edit, Episode, Event, Origin, Outcome, Preference
from demerit.data.frames import Frames
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
    expression = AND.join(FROM_HUB.get(part.strip().lower(), part) for part in text.replace("-and-", AND).split(AND))
    try:
        return str(canonicalize_license_expression(expression))
    except InvalidLicenseExpression:
        expected = "an SPDX id such as CC-BY-4.0, or LicenseRef-NAME for your own terms (--where skips episodes)"
        raise BadInput("licence", expected, repr(text)) from None


def combine_licences(counts: Mapping[str, int], changed: bool = False) -> str:
    """Return the licence of the whole release, or refuse with what to do.

    `counts` maps SPDX expressions (empty = none) to numbers of episodes; `changed`: edited, or with changed pixels.
    """
    if counts.get(""):
        expected = "one for every episode (--licence NAME fills gaps, --where skips episodes)"
        raise BadInput("licence", expected, f"none for {counts['']} of {sum(counts.values())} episodes")
    names: Counter[str] = Counter()
    for licence, count in counts.items():
        names.update(dict.fromkeys(_parts(licence), count))
    unchanged = [name for name in names if TERMS.get(name) == UNCHANGED]
    if unchanged and changed:
        expected = "one that allows changes (release without edits, masks and --to lerobot)"
        raise BadInput("licence", expected, f"{unchanged[0]}, {names[unchanged[0]]} episodes")
    wholes = [whole for whole in names if all(_goes_into(part, whole) for part in names)]
    if not wholes:
        summary = ", ".join(f"{name} ({count})" for name, count in names.most_common())
        longest = max(names, key=len)
        expected = f"licences that may be combined (release them separately, e.g. --where 'licence={longest}')"
        raise BadInput("licences", expected, summary)
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
KEEP = ("notes", "site", "stages", "tags", "signals")
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
    """fields to release verbatim: notes, site, stages, tags, tags.NAME, signals, signals.NAME"""
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
            raise BadInput("--fps", "--to lerobot (the demerit folder keeps each recording's times)", "folder")

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
    values = {}
    for pair in pairs:
        column, equals, value = pair.partition("=")
        if not equals:
            raise BadInput("--where", "COLUMN=VALUE", repr(pair))
        values[column.strip()] = value.strip()
    return values


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


VERBATIM_ORIGIN = ("dataset", "revision", "licence", "embodiment", "split")
SIGNALS = ("state", "action", "actions")
"""released by default, if they are numbers"""
TIME_SIGNALS = ("timestamp", "timestamps", "time")
"""begin at zero when they are kept"""


NUMBERED = {
    "episodes": "episode_{:06d}",
    "unreleased": "unreleased_{:06d}",
    "annotators": "annotator_{}",
    "groups": "group_{}",
}
"""private names that become numbers, and how these are written"""


@dataclass(frozen=True, eq=False)
class _AllowedSignals(Mapping[str, npt.NDArray[Any]]):
    """Some signals of an episode, read when asked for. Time signals begin at zero."""

    source: Mapping[str, npt.NDArray[Any]]
    names: Mapping[str, str]
    """released name to the source's name"""

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        values = np.asarray(self.source[self.names[name]])
        if self.names[name] in TIME_SIGNALS and values.size and values.dtype.kind in "fiuM":
            values = np.asarray(values - values.flat[0])
            return np.asarray(values / np.timedelta64(1, "s")) if values.dtype.kind == "m" else values
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class ReleaseFields:
    """Builds released episodes and preferences, and remembers what was renamed and dropped."""

    def __init__(self, config: ReleaseConfig, episodes: Iterable[Episode]) -> None:
        """Number the episodes in their order; `config.scrub` is imported here."""
        self.numbered: dict[str, dict[str, str]] = {kind: {} for kind in NUMBERED}
        """by kind: private name to public name"""
        for episode in episodes:
            self._number("episodes", episode.id)
        self.dropped: Counter[str] = Counter()
        """field to the number of episodes or labels that had it"""
        self.texts: set[str] = set()
        """instructions as released, also those that only an edit mentions"""
        self.unused = set(config.replacements)
        """replacements that matched nothing so far"""
        self._config = config
        self._scrub: Callable[[Any], Any] | None = load_hook(config.scrub, "--scrub") if config.scrub else None

    def id(self, id: str) -> str:
        """Return the released id; episodes that are not part of the release get numbers of their own."""
        return self.numbered["episodes"].get(id) or self._number("unreleased", id)

    def name(self, text: str) -> str:
        """Return a released name (camera, split, kind of failure ...): verbatim unless the owner replaces it."""
        self.unused.discard(text)
        return self._config.replacements.get(text, text)

    def episode(self, episode: Episode) -> Episode:
        """Build the released episode; its frames are still the source's."""
        views: dict[str, Frames] = {self.name(camera): frames for camera, frames in episode.views.items()}
        if len(views) < len(episode.views):
            raise BadInput("--replace", "different names for different cameras", ", ".join(views))
        return Episode(
            id=self.id(episode.id),
            instruction=self._instruction(episode.instruction),
            views=views,
            outcomes=tuple(self._outcome(outcome) for outcome in episode.labels),
            origin=self._origin(episode.origin),
            signals=_AllowedSignals(episode.signals, self._signals(episode.signals)),
            edits=tuple(Edit(edit.name, self._params(edit), edit.seed) for edit in episode.edits),
        )

    def preference(self, preference: Preference) -> Preference:
        """Build the released preference."""
        a, b, why = self.id(preference.a), self.id(preference.b), self._note(preference.why)
        return Preference(a, b, preference.verdict, preference.source, why, self._by(preference))

    def _number(self, kind: str, name: str) -> str:
        """Number private names in the order in which they are first used; empty stays empty."""
        names = self.numbered[kind]
        return names.setdefault(name, NUMBERED[kind].format(len(names) + 1)) if name else ""

    def _outcome(self, outcome: Outcome) -> Outcome:
        events = tuple(Event(self.name(e.kind), e.first, e.last, self._note(e.note)) for e in outcome.events)
        labels = (outcome.source, outcome.success, outcome.progress, outcome.grade, outcome.curve)
        kept = outcome.stages if self._config.keeps("stages") else ()
        if outcome.stages and not kept:
            self.dropped["stages"] += 1
        stages = tuple(replace(stage, name=self._scrub_text(self.name(stage.name)) or "hidden") for stage in kept)
        return Outcome(*labels, events, self._note(outcome.note), self._by(outcome), stages)

    def _by(self, label: Outcome | Preference) -> str:
        return self._number("annotators", label.by) if label.source == "human" else self.name(label.by)

    def _origin(self, origin: Origin) -> Origin:
        tags = {name: value for name, value in origin.tags.items() if name == CHECK or self._config.keeps("tags", name)}
        self.dropped.update(f"tags.{name}" for name in origin.tags if name not in tags)
        site = origin.site if self._config.keeps("site") else ""
        self.dropped["site"] += bool(origin.site) and not site
        texts = {name: self.name(getattr(origin, name)) for name in VERBATIM_ORIGIN}
        parent, group = self.id(origin.parent) if origin.parent else "", self._number("groups", origin.group)
        return Origin(**texts, site=site, group=group, parent=parent, tags=tags)

    def _signals(self, signals: Mapping[str, npt.NDArray[Any]]) -> dict[str, str]:
        default = [name for name in signals if name in SIGNALS and np.asarray(signals[name]).dtype.kind in "fiub"]
        kept = [name for name in signals if name in default or self._config.keeps("signals", name)]
        self.dropped.update(f"signals.{name}" for name in signals if name not in kept)
        return {self.name(name): name for name in kept}

    def _params(self, edit: Edit) -> dict[str, Any]:
        """Return the numbers, and the texts that our own edits write."""
        texts = {"partner": self.id, "words": self._instruction, "was": self._instruction}
        texts |= {"model": self.name, "prompts": self.name}
        kept = {name: value for name, value in edit.params.items() if _is_numeric(value)}
        kept |= {n: texts[n](value) for n, value in edit.params.items() if n in texts and isinstance(value, str)}
        self.dropped.update(f"edits.{name}" for name in edit.params if name not in kept)
        return kept

    def _instruction(self, text: str) -> str:
        released = self.name(text) if text in self._config.replacements else self._scrub_text(text)
        self.texts.add(released)
        return released

    def _note(self, text: str) -> str:
        if not text or self._config.keeps("notes"):
            return self._scrub_text(text)
        self.dropped["notes"] += 1
        return ""

    def _scrub_text(self, text: str) -> str:
        if self._scrub is None or not text:
            return text
        clean = self._scrub(text)
        if not isinstance(clean, str):
            raise BadInput("--scrub", "a text", type(clean).__name__)
        return clean


def _is_numeric(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_numeric(inner) for inner in value)
    return value is None or isinstance(value, bool | int | float)
