"""The words of the prompts: text files with a version, and the labels that stand before each picture.

A changed prompt is another model. Whoever edits a file in `prompts/` gives it the next number, here and in its name;
the hash of all words is on the card of every model that uses them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template
from typing import Literal

from demerit.data.frames import short_hash

FOLDER = Path(__file__).parents[2] / "assets" / "prompts" / "gvl"
VERSIONS = {
    "system": 1,
    "task": 1,
    "failures": 1,
    "failure_frames": 1,
    "references": 1,
    "frames": 1,
    "feedback": 1,
}
ANCHOR_LABEL = "The first scene, worth 0 percent by definition:"

Role = Literal["anchor", "frame", "failure", "reference"]
"""what a picture is to the prompt: the first scene, one to judge, another attempt's failure, one with its value"""
_LABELS: dict[Role, re.Pattern[str]] = {
    "anchor": re.compile(re.escape(ANCHOR_LABEL)),
    "frame": re.compile(r"Frame (?P<number>\d+):"),
    "failure": re.compile(r"Failed attempt (?P<example>\d+), picture (?P<number>\d+):"),
    "reference": re.compile(r"Rejected attempt (?P<example>\d+), picture (?P<number>\d+), (?P<percent>\d+) percent:"),
}


@dataclass(frozen=True)
class Label:
    """What is written before one picture."""

    role: Role
    number: int = 0
    """which picture of its attempt, from 1 on in the order shown"""
    example: int = 0
    """which other attempt, from 1 on"""
    percent: int = 0
    """a reference's known value"""

    def __str__(self) -> str:
        """Write it as the prompt does."""
        return {
            "anchor": ANCHOR_LABEL,
            "frame": f"Frame {self.number}:",
            "failure": f"Failed attempt {self.example}, picture {self.number}:",
            "reference": f"Rejected attempt {self.example}, picture {self.number}, {self.percent} percent:",
        }[self.role]

    @classmethod
    def read(cls, text: str) -> Label | None:
        """Read a label back; None for any other text. A server that simulates a model needs it."""
        for role, pattern in _LABELS.items():
            match = pattern.fullmatch(text.strip())
            if match is not None:
                return cls(role, **{name: int(value) for name, value in match.groupdict().items()})
        return None


def words(name: str, **blanks: object) -> str:
    """Read a prompt and fill its blanks; what is filled in is never searched for blanks again."""
    return Template(_text(name)).substitute({blank: str(value) for blank, value in blanks.items()})


def opening(name: str) -> str:
    """Return the words of a prompt before its first blank, by which it can be recognised."""
    return _text(name).partition("$")[0]


def words_hash() -> str:
    """Identify all the words."""
    return short_hash(*(f"{name}-{VERSIONS[name]}\0{_text(name)}".encode() for name in sorted(VERSIONS)))


@cache
def _text(name: str) -> str:
    return (FOLDER / f"{name}-{VERSIONS[name]}.txt").read_text(encoding="utf-8").strip()
