"""The failure taxonomy: kinds of failure with a definition, examples and the grades they usually deserve.

The kinds are data (`taxonomy.toml`). Events are free text at the level of the nouns, so that any dataset can be read;
this is where a label that should be comparable with others finds its word. Anybody can add kinds: `register_kind` in a
process, or the path of a TOML file of the same form in DEMERIT_TAXONOMY (several are parted as in PATH).
"""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from demerit.errors import BadInput, UnknownName

OWN_FILE = Path(__file__).parents[1] / "assets" / "taxonomy.toml"
VARIABLE = "DEMERIT_TAXONOMY"
FIELDS = {"name", "definition", "examples", "grades", "guidance"}
LOWEST, HIGHEST = 1, 5


@dataclass(frozen=True)
class Kind:
    """One way in which behaviour is bad."""

    name: str
    """lower case, words apart by single spaces; what `Event.kind` holds"""
    definition: str
    examples: tuple[str, ...] = ()
    grades: tuple[int, int] = (LOWEST, HIGHEST)
    """the lowest and the highest grade that an episode with this failure usually deserves"""
    guidance: str = ""

    def __post_init__(self) -> None:
        """Refuse what could not be told apart or looked up."""
        if self.name != " ".join(self.name.lower().split()) or not self.name:
            raise BadInput("kind of failure", "a name in lower case, single spaces", repr(self.name))
        if not self.definition.strip():
            raise BadInput(f"kind of failure {self.name!r}", "a definition", "none")
        low, high = self.grades
        if not LOWEST <= low <= high <= HIGHEST:
            raise BadInput(f"grades of {self.name!r}", "the lowest and the highest, from 1 to 5", list(self.grades))


_added: dict[str, Kind] = {}


def kinds() -> list[Kind]:
    """Every known kind: demerit's own, those of DEMERIT_TAXONOMY, those registered in this process."""
    return list(_known().values())


def kind(name: str) -> Kind:
    """Find a kind by its name; an unknown one lists the known and the nearest."""
    known = _known()
    if name not in known:
        raise UnknownName("kind of failure", name, known)
    return known[name]


def register_kind(new: Kind) -> Kind:
    """Add a kind in this process; the same again changes nothing, another meaning for a known name is refused."""
    there = _known().get(new.name)
    if there not in (None, new):
        raise BadInput(f"kind of failure {new.name!r}", "a name that is free", "one that has another meaning already")
    _added[new.name] = new
    return new


def load_kinds(path: str | Path) -> list[Kind]:
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
    found = [_kind(path, table) for table in tables]
    twice = [name for name, count in Counter(one.name for one in found).items() if count > 1]
    if twice:
        raise BadInput(str(path), "each kind once", f"{twice[0]!r} twice")
    return found


def unknown_kinds(names: Iterable[str]) -> Counter[str]:
    """Count the names that are no kind of the taxonomy: [event.kind for event in outcome.events], say."""
    known = _known()
    return Counter(name for name in names if name not in known)


def check_kinds(names: Iterable[str]) -> None:
    """Raise at the first name that is no kind of the taxonomy."""
    for name in names:
        kind(name)


def taxonomy_page() -> str:
    """Write demerit's own kinds as the page `docs/taxonomy.md`."""
    lines = [
        "# Kinds of failure",
        "",
        "This page is made from `src/demerit/taxonomy.toml` (`python -m demerit.data.taxonomy > docs/taxonomy.md`).",
        "",
        "An event names one of these kinds and the frames between which it is seen. The grades are those that an",
        "episode with this failure usually deserves, on the scale from 1 (nothing done) to 5 (done as asked); they are",
        "a guide for people who label, not a rule that anything computes with.",
        "",
        "To add your own, write a file of the same form and name it in `DEMERIT_TAXONOMY`, or call",
        "`demerit.data.taxonomy.register_kind`.",
        "",
        "Those that the simulator can show, with what it measured; the frames in which the failure is seen are framed",
        "(`python docs/make_failure_pictures.py STORE`). The others need liquids, people or a longer story.",
        "",
        "![Eleven kinds of failure in simulation, a row each](images/failures.png)",
        "",
        "| kind | definition | grades |",
        "|---|---|---|",
    ]
    own = load_kinds(OWN_FILE)
    lines += [f"| [{one.name}](#{one.name.replace(' ', '-')}) | {one.definition} | {_range(one)} |" for one in own]
    for one in own:
        lines += ["", f"## {one.name}", "", one.definition, ""]
        lines += [f"- {example}" for example in one.examples]
        lines += ["", f"Grade {_range(one)}. {one.guidance}"]
    return "\n".join(lines) + "\n"


def _range(one: Kind) -> str:
    low, high = one.grades
    return str(low) if low == high else f"{low} to {high}"


def _known() -> dict[str, Kind]:
    return {**_from_files(os.environ.get(VARIABLE, "")), **_added}


@lru_cache(maxsize=8)
def _from_files(variable: str) -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    for path in [OWN_FILE, *map(Path, filter(None, variable.split(os.pathsep)))]:
        for one in load_kinds(path):
            if found.get(one.name, one) != one:
                raise BadInput(f"{path}, kind {one.name!r}", "a name that is free", "one that has another meaning")
            found[one.name] = one
    return found


def _kind(path: str | Path, table: Any) -> Kind:
    if not isinstance(table, dict) or not {"name", "definition"} <= set(table):
        raise BadInput(str(path), "kinds with at least a name and a definition", table)
    strange = sorted(set(table) - FIELDS)
    if strange:
        raise UnknownName(f"field of a kind in {path}", strange[0], FIELDS)
    grades = tuple(table.get("grades", (LOWEST, HIGHEST)))
    if len(grades) != 2 or not all(isinstance(grade, int) for grade in grades):  # noqa: PLR2004
        raise BadInput(f"{path}, grades of {table['name']!r}", "two whole numbers", list(grades))
    return Kind(**{**table, "examples": tuple(table.get("examples", ())), "grades": grades})


if __name__ == "__main__":
    print(taxonomy_page(), end="")
