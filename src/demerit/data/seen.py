"""What a model learned from, as marks of its episodes, so that it is not measured on them unnoticed.

A mark is eight bytes of a hash: of a whole video's content (see `videos_of`), or of the task, behaviour, setting and
seed that a simulated episode follows from. Ids, paths, instructions and labels do not count, so copies, renamed files,
imports and edits of an episode have its marks. A re-encoded video has another mark. No frame is decoded.

A model that learned has an attribute `seen`, and keeps it beside its weights:

    seen.json    {"format": 1, "complete": true, "marks": "<base64 of the sorted marks>"}
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demerit.data.episode import Episode
from demerit.data.frames import short_hash
from demerit.data.splits import videos_of
from demerit.data.untrusted import read_json
from demerit.errors import BadInput

SEEN = "seen.json"
FORMAT = 1
EXPECTED = "a record of seen episodes (copy the model again)"
MARK_BYTES = 8
SIMULATED = ("task", "behaviour", "setting", "seed")
"""tags of a simulated episode, which follows from them"""


@dataclass(frozen=True)
class SeenEpisodes:
    """The episodes that a model learned from."""

    marks: frozenset[str] = frozenset()
    """16 hexadecimal digits each"""
    complete: bool = True
    """False: it also learned from episodes that were not recorded"""
    are_goals: bool = False
    """they are not training data: it is shown their last frames as goals"""

    @classmethod
    def of(cls, episodes: Iterable[Episode]) -> SeenEpisodes:
        """Record episodes."""
        return cls(frozenset(mark for episode in episodes for mark in mark_episode(episode)))

    @classmethod
    def from_hashes(cls, hashes: Iterable[str], complete: bool = True) -> SeenEpisodes:
        """Take hexadecimal hashes of 8 bytes or more, which are shortened."""
        return cls(frozenset(text[: 2 * MARK_BYTES] for text in hashes), complete)

    @classmethod
    def read(cls, path: Path) -> SeenEpisodes:
        """Read a file; without it, what the model learned from is unknown."""
        if not path.is_file():
            return cls(complete=False)
        return cls.from_facts(read_json(path, EXPECTED), str(path))

    @classmethod
    def from_facts(cls, facts: dict[str, Any], where: str) -> SeenEpisodes:
        """Take what `as_facts` returned; `where` is for messages."""
        try:
            marks = base64.b64decode(facts["marks"], validate=True)
            if facts["format"] != FORMAT or len(marks) % MARK_BYTES:
                raise ValueError(f"format {facts['format']}, {len(marks)} bytes of marks")
            return cls(_split_marks(marks), facts["complete"] is True)
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(where, EXPECTED, error) from error

    def as_facts(self) -> dict[str, Any]:
        """Return JSON values."""
        marks = base64.b64encode(bytes.fromhex("".join(sorted(self.marks)))).decode()
        return {"format": FORMAT, "complete": self.complete, "marks": marks}

    def content(self) -> bytes:
        """Return what `read` reads."""
        return (json.dumps(self.as_facts(), indent=1) + "\n").encode()

    def has(self, episode: Episode) -> bool:
        """Whether an episode, or what it was made from, is among them."""
        return bool(self.marks) and not self.marks.isdisjoint(mark_episode(episode))

    def __or__(self, other: SeenEpisodes) -> SeenEpisodes:
        goals = self.are_goals and other.are_goals
        return SeenEpisodes(self.marks | other.marks, self.complete and other.complete, goals)

    def __repr__(self) -> str:
        return f"SeenEpisodes({len(self.marks)} marks{'' if self.complete else ', and others not recorded'})"


def mark_episode(episode: Episode) -> list[str]:
    """Return the marks of an episode: one per video, and one if it was simulated."""
    tags = episode.origin.tags
    simulated = [hash_simulated(*(tags[name] for name in SIMULATED))] if all(name in tags for name in SIMULATED) else []
    return [found[: 2 * MARK_BYTES] for found in (*videos_of(episode), *simulated)]


def hash_simulated(task: str, behaviour: str, setting: str, seed: int | str) -> str:
    """Return the hash of a simulated episode, whatever its image size and encoding."""
    return short_hash("/".join(["simulated", task, behaviour, setting, str(seed)]).encode())


def seen_by(model: object) -> SeenEpisodes:
    """Return what a model or network learned from; nothing if it does not say."""
    found = getattr(model, "seen", None)
    return found if isinstance(found, SeenEpisodes) else SeenEpisodes()


def _split_marks(marks: bytes) -> frozenset[str]:
    return frozenset(marks[start : start + MARK_BYTES].hex() for start in range(0, len(marks), MARK_BYTES))
