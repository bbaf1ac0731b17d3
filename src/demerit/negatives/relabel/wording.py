"""The words of the stages: text files with a version.

Whoever edits a file in `data/relabel` gives it the next number, here and in its name. `prompt_version` stands on every
label that the words brought about: two labels of different words are told apart, and a run is never finished with
other words than it was begun with.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from string import Template

from demerit.data.frames import short_hash

FOLDER = files("demerit") / "assets" / "prompts" / "relabel"
VERSIONS = {"system": 1, "rubric": 1, "clean": 1, "analyse": 1, "plan": 1, "command": 1, "validate": 1, "verbs": 1}
BLANKS: dict[str, tuple[str, ...]] = {
    "clean": ("task",),
    "analyse": ("task",),
    "plan": ("task", "grades", "start", "actions", "end", "objects", "rubric"),
    "command": ("grade", "task", "objects", "end", "rubric", "grade", "idea", "failure", "history", "rejected"),
    "validate": ("command", "rubric", "task"),
}
"""the blanks of each stage's words, in the order in which they stand there"""
STAGES = tuple(BLANKS)
HASH_DIGITS = 8


def words(name: str, **blanks: object) -> str:
    """Read a prompt and fill its blanks; the rubric fills itself. What is filled in is not searched for blanks."""
    given = {"rubric": text("rubric"), **blanks} if "rubric" in BLANKS.get(name, ()) else blanks
    return Template(text(name)).substitute({blank: str(value) for blank, value in given.items()})


def read_back(name: str, prompt: str) -> dict[str, str] | None:
    """Find what was filled into a stage's words; None when the prompt does not begin with them.

    A server that simulates a model needs it. A blank that stands there twice must hold the same both times.
    """
    pieces = words(name, **dict.fromkeys(BLANKS[name], "\0")).split("\0")
    if not prompt.startswith(pieces[0]):
        return None
    found: dict[str, str] = {}
    rest = prompt[len(pieces[0]) :]
    for blank, piece in zip(BLANKS[name], pieces[1:], strict=True):
        filled, there, rest = rest.partition(piece)
        if not there or found.setdefault(blank, filled) != filled:
            return None
    return found


def prompt_version() -> str:
    """Name all the words: `relabel-1.` and a hash of every file."""
    digits = short_hash(*(f"{name}-{VERSIONS[name]}\0{text(name)}".encode() for name in sorted(VERSIONS)))
    return f"relabel-{max(VERSIONS.values())}.{digits[:HASH_DIGITS]}"


@cache
def text(name: str) -> str:
    """Read one file."""
    return (FOLDER / f"{name}-{VERSIONS[name]}.txt").read_text(encoding="utf-8").strip()


@cache
def verbs() -> frozenset[str]:
    """The verbs that a robot can be told."""
    return frozenset(text("verbs").split())
