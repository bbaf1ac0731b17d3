"""The failure taxonomy: kinds of failure with definitions, examples and usual grades.

The kinds are in `assets/taxonomy.toml`. `Event.kind` is free text, so that any dataset can be read; labels that should
be comparable use these names. Add kinds with `register_kind`, or with TOML files of the same form in the environment
variable DEMERIT_TAXONOMY (paths separated as in PATH).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from demerit.errors import BadInput, UnknownName

OWN_FILE = Path(__file__).parents[1] / "assets" / "taxonomy.toml"
VARIABLE = "DEMERIT_TAXONOMY"
RUBRIC_VERSION = 2
RUBRIC = Path(__file__).parents[1] / "assets" / "prompts" / "relabel" / f"rubric-{RUBRIC_VERSION}.txt"
"""what the grades mean, for people and for models"""
UNKNOWN = "unknown"
"""the kind of an event that nobody named"""
FIELDS = {"name", "definition", "examples", "grades", "guidance"}
LOWEST, HIGHEST = 1, 5


@dataclass(frozen=True)
class FailureKind:
    """A kind of failure."""

    name: str
    """lower case, single spaces; the value of `Event.kind`"""
    definition: str
    examples: tuple[str, ...] = ()
    grades: tuple[int, int] = (LOWEST, HIGHEST)
    """lowest and highest usual grade of an episode with this failure"""
    guidance: str = ""

    def __post_init__(self) -> None:
        if self.name != " ".join(self.name.lower().split()) or not self.name:
            raise BadInput("kind of failure", "a name in lower case, single spaces", repr(self.name))
        if not self.definition.strip():
            raise BadInput(f"kind of failure {self.name!r}", "a definition", "none")
        low, high = self.grades
        if not LOWEST <= low <= high <= HIGHEST:
            raise BadInput(f"grades of {self.name!r}", "the lowest and the highest, from 1 to 5", list(self.grades))


@lru_cache(maxsize=1)
def read_rubric() -> dict[int, tuple[str, str]]:
    """Return the meaning of each grade: in a word or two, and in a sentence."""
    lines = re.findall(r"^([1-5]) \((.+?)\): (.+)$", RUBRIC.read_text("utf-8"), re.MULTILINE)
    return {int(grade): (name, meaning) for grade, name, meaning in lines}


_added: dict[str, FailureKind] = {}


def kinds() -> list[FailureKind]:
    """All kinds: built-in, from DEMERIT_TAXONOMY, and registered in this process."""
    return list(_known().values())


def kind(name: str) -> FailureKind:
    """Find a kind by name."""
    kinds_by_name = _known()
    if name not in kinds_by_name:
        raise UnknownName("kind of failure", name, kinds_by_name)
    return kinds_by_name[name]


def register_kind(new: FailureKind) -> FailureKind:
    """Add a kind in this process. Registering it twice is fine; redefining a known name raises."""
    existing_kind = _known().get(new.name)
    if existing_kind not in (None, new):
        raise BadInput(f"kind of failure {new.name!r}", "a new name", "one with another definition")
    _added[new.name] = new
    return new


def load_kinds(path: str | Path) -> list[FailureKind]:
    """Read kinds from a TOML file: [[kind]] tables with name, definition, examples, grades and guidance."""
    try:
        facts = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise BadInput(str(path), "a TOML file of kinds", error.strerror or error) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(str(path), "a TOML file of kinds", error) from error
    tables = facts.get("kind")
    if not isinstance(tables, list) or not tables:
        raise BadInput(str(path), "at least one [[kind]]", "none")
    file_kinds = [_kind(path, table) for table in tables]
    twice = [name for name, count in Counter(entry.name for entry in file_kinds).items() if count > 1]
    if twice:
        raise BadInput(str(path), "each kind once", f"{twice[0]!r} twice")
    return file_kinds


def _known() -> dict[str, FailureKind]:
    return {**_from_files(os.environ.get(VARIABLE, "")), **_added}


@lru_cache(maxsize=8)
def _from_files(variable: str) -> dict[str, FailureKind]:
    kinds_by_name: dict[str, FailureKind] = {}
    for path in [OWN_FILE, *map(Path, filter(None, variable.split(os.pathsep)))]:
        for new in load_kinds(path):
            if kinds_by_name.get(new.name, new) != new:
                raise BadInput(f"{path}, kind {new.name!r}", "a new name", "one with another definition")
            kinds_by_name[new.name] = new
    return kinds_by_name


def _kind(path: str | Path, table: Any) -> FailureKind:
    if not isinstance(table, dict) or not {"name", "definition"} <= set(table):
        raise BadInput(str(path), "kinds with at least a name and a definition", table)
    strange = sorted(set(table) - FIELDS)
    if strange:
        raise UnknownName(f"field of a kind in {path}", strange[0], FIELDS)
    grades = tuple(table.get("grades", (LOWEST, HIGHEST)))
    if len(grades) != 2 or not all(isinstance(grade, int) for grade in grades):  # noqa: PLR2004
        raise BadInput(f"{path}, grades of {table['name']!r}", "two whole numbers", list(grades))
    return FailureKind(**{**table, "examples": tuple(table.get("examples", ())), "grades": grades})
