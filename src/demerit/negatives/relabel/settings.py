"""RelabelSettings: everything that decides what is made of a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from demerit.errors import BadInput
from demerit.negatives.negative import UNFINISHED_GRADES

SHARES = {"train": 0.8, "val": 0.1, "test": 0.1}


@dataclass(frozen=True)
class RelabelSettings:
    """How originals become labels. Where the model runs and what it costs is no part of it."""

    grades: tuple[int, ...] = UNFINISHED_GRADES
    """grades to write commands for"""
    clips: tuple[int, ...] = (2, 3, 4)
    """grades of the clip ladder: an early, a middle and a late end; empty for none"""
    clean_up: bool = True
    """repair the spelling and grammar of instructions first"""
    rounds: int = 3
    """how often what was turned down is written anew, the first time included"""
    fps: float = 1.0
    """pictures a second; the true last frame is always shown"""
    most_pictures: int = 32
    """a longer video is shown by so many, spread evenly"""
    size: int = 256
    """pixels of a picture's longer side, at most"""
    temperature: float | None = 0.7
    """of plans and commands; everything else is asked at 0. None leaves all of it to the server"""
    per_dataset: int = 1200
    """originals used of one dataset at most, chosen evenly; 0 = all"""
    seed: int = 0
    """chooses originals, cuts and splits"""
    keep_originals: bool = False
    """write the originals too, under their repaired words: grade 5"""
    assume_success: str = ""
    """what makes it right to take an episode without an outcome for a success; empty = it is not used"""
    split: str = "task"
    """'task': the words of the original task decide, by lot; 'source': as the source has it"""
    shares: Mapping[str, float] = field(default_factory=lambda: dict(SHARES))
    """splits and their shares of the tasks, with split='task'"""

    def __post_init__(self) -> None:
        """Refuse what cannot be made."""
        for name in ("grades", "clips"):
            chosen = tuple(getattr(self, name))
            if any(grade not in UNFINISHED_GRADES for grade in chosen) or list(chosen) != sorted(set(chosen)):
                raise BadInput(name, "different grades from 1 to 4, growing", list(chosen))
            object.__setattr__(self, name, chosen)
        if not self.grades and not self.clips:
            raise BadInput("grades and clips", "at least one of the two", "neither")
        for name, least in {"rounds": 1, "most_pictures": 2, "size": 16, "per_dataset": 0}.items():
            if getattr(self, name) < least:
                raise BadInput(name, f"a number from {least} on", getattr(self, name))
        if not self.fps > 0:
            raise BadInput("fps", "a number above 0", self.fps)
        if self.temperature is not None and not self.temperature >= 0:
            raise BadInput("temperature", "0 or more", self.temperature)
        if self.split not in ("task", "source"):
            raise BadInput("split", "'task' or 'source'", repr(self.split))
        if self.split == "task" and (not self.shares or not all(share > 0 for share in self.shares.values())):
            raise BadInput("shares of the splits", "a share above 0 for each", dict(self.shares))

    def facts(self) -> dict[str, Any]:
        """Everything, for the record of a run."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**found, "grades": list(self.grades), "clips": list(self.clips), "shares": dict(self.shares)}
