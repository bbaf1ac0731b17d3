"""What training reads: pictures in one file, a line for each episode and each preference in others. Numpy alone.

Made by `prepare` from any datasets; a machine with a GPU and neither a video decoder nor a robot library can train.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from demerit.data.frames import RGB, Images, short_hash
from demerit.errors import BadInput
from demerit.models.vlm.prompt import is_words_alone

PICTURES, EPISODES, PREFERENCES = "pictures.raw", "episodes.jsonl", "preferences.jsonl"
GRADES = range(1, 6)
Floats = npt.NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Row:
    """An episode of the corpus."""

    id: str
    source: str
    """the dataset it comes from"""
    instruction: str
    success: bool | None
    progress: Floats
    """how far the task is done at each frame, 0 to 1; NaN where nobody says"""
    measured: bool
    """somebody measured that; otherwise a success is taken to grow evenly"""
    final: float
    """how far it got: 1 for successes, NaN where nobody says"""
    grade: int | None
    times: Floats
    """seconds, a number a frame"""
    start: int
    """of its pictures in the file, in bytes"""
    height: int
    width: int
    split: str = ""
    group: str = ""

    @property
    def frames(self) -> int:
        """How many pictures there are."""
        return len(self.progress)

    @property
    def bytes_each(self) -> int:
        """Size of one picture."""
        return self.height * self.width * RGB

    @property
    def end(self) -> int:
        """Where its pictures end."""
        return self.start + self.frames * self.bytes_each

    def facts(self) -> dict[str, Any]:
        """Return it as JSON has it; unknown is null."""
        told = dict(vars(self))
        told["final"] = None if np.isnan(self.final) else self.final
        told["progress"] = [None if np.isnan(one) else float(one) for one in self.progress]
        told["times"] = [float(one) for one in self.times]
        return told

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Row:
        """Read what `facts` wrote."""
        told = dict(facts)
        told["final"] = np.nan if told["final"] is None else told["final"]
        told["progress"] = np.array([np.nan if one is None else one for one in told["progress"]], np.float32)
        told["times"] = np.array(told["times"], np.float32)
        row = cls(**told)
        if not row._is_as_written():
            raise TypeError
        return row

    def _is_as_written(self) -> bool:
        """Whether every field, which came from a file, is of its kind."""
        words = (self.id, self.source, self.instruction, self.split, self.group)
        places = (self.start, self.height, self.width)
        return (
            all(isinstance(one, str) for one in words)
            and all(type(one) is int and one >= 0 for one in places)
            and (self.success is None or isinstance(self.success, bool))
            and isinstance(self.measured, bool)
            and isinstance(self.final, int | float)
            and (self.grade is None or (isinstance(self.grade, int | float) and self.grade in GRADES))
            and self.progress.ndim == 1
            and self.progress.shape == self.times.shape
            and len(self.progress) > 0
        )


@dataclass(frozen=True)
class Choice:
    """Somebody's choice between two episodes of the corpus, at the same words and in the same split."""

    better: int
    """number of the row"""
    worse: int
    source: str
    """who vouches for it: human, simulator ..."""

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Choice:
        """Read what `line` wrote."""
        one = cls(**facts)
        if not (type(one.better) is int and type(one.worse) is int and isinstance(one.source, str)):
            raise TypeError
        return one

    def line(self) -> str:
        """Write it as one line of JSON."""
        return json.dumps(vars(self), sort_keys=True)


@dataclass(frozen=True, eq=False)
class Corpus:
    """All episodes, their pictures, and what somebody chose between them."""

    rows: tuple[Row, ...]
    pictures: npt.NDArray[np.uint8]
    """all bytes, end to end"""
    choices: tuple[Choice, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a choice between episodes that are not there."""
        for one in self.choices:
            if one.better == one.worse or not all(0 <= at < len(self.rows) for at in (one.better, one.worse)):
                raise BadInput(PREFERENCES, f"two different numbers from 0 to {len(self.rows) - 1}", one.line())

    @classmethod
    def load(cls, folder: str | Path) -> Corpus:
        """Open a prepared folder; pictures stay on disk until they are shown."""
        folder = Path(folder)
        missing = [name for name in (PICTURES, EPISODES, PREFERENCES) if not (folder / name).exists()]
        if missing:
            raise BadInput(str(folder), "a prepared corpus", f"a folder without {', '.join(missing)}")
        rows = _lines(folder / EPISODES, Row.of)
        if not rows:
            raise BadInput(str(folder), "a corpus with episodes", "none")
        odd = next((row for row in rows if not is_words_alone(row.instruction)), None)
        if odd is not None:
            expected = "instructions of words alone (prepare it again: such episodes are left out now)"
            raise BadInput(str(folder), expected, f"{odd.instruction!r} in episode {odd.id!r}")
        if any(row.start != before.end for before, row in pairwise(rows)) or rows[0].start:
            expected = "pictures of one episode behind another's (prepare it again)"
            raise BadInput(str(folder / EPISODES), expected, "gaps between them")
        size = (folder / PICTURES).stat().st_size
        if size != rows[-1].end:
            got = f"{size} bytes of pictures, {rows[-1].end} by the list of episodes"
            raise BadInput(str(folder), "as many pictures as the episodes have", got)
        pictures = np.memmap(folder / PICTURES, np.uint8, "r")
        return cls(rows, pictures, _lines(folder / PREFERENCES, Choice.of))

    @classmethod
    def of(cls, rows: Sequence[Row], images: Sequence[Images], choices: Sequence[Choice] = ()) -> Corpus:
        """Make one of episodes in memory, their pictures in the same order."""
        pictures = np.concatenate([np.ascontiguousarray(some).reshape(-1) for some in images])
        return cls(tuple(rows), pictures, tuple(choices))

    def picture(self, row: int, frame: int) -> Images:
        """Return (height, width, 3)."""
        one = self.rows[row]
        start = one.start + frame * one.bytes_each
        return np.asarray(self.pictures[start : start + one.bytes_each]).reshape(one.height, one.width, RGB)

    def fingerprint(self, row: int, frame: int) -> str:
        """Hash one picture: the same pixels are the same everywhere."""
        picture = self.picture(row, frame)
        return short_hash(repr(picture.shape).encode(), picture.tobytes())

    @cached_property
    def identity(self) -> str:
        """Hash what there is to learn from: every label and choice, and a picture of every episode."""
        told = [json.dumps(row.facts(), sort_keys=True).encode() for row in self.rows]
        seen = [self.fingerprint(at, row.frames - 1).encode() for at, row in enumerate(self.rows)]
        return short_hash(*told, *seen, *(one.line().encode() for one in self.choices))


def _lines(path: Path, made: Callable[[dict[str, Any]], T]) -> tuple[T, ...]:
    """Read a line of JSON for each; one that is cut or not ours is refused by its number."""
    found: list[T] = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            found.append(made(json.loads(line)))
        except (ValueError, TypeError, KeyError) as error:
            expected = "whole lines of a prepared corpus (prepare it again)"
            raise BadInput(str(path), expected, f"something else in line {number}") from error
    return tuple(found)
