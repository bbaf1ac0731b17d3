"""RelabelConfig: everything that decides what is made of a dataset, apart from the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from demerit.errors import BadInput
from demerit.negatives.negative import UNFINISHED_GRADES


@dataclass(frozen=True)
class RelabelConfig:
    """How originals become labels."""

    grades: tuple[int, ...] = UNFINISHED_GRADES
    """grades to write commands for"""
    clips: tuple[int, ...] = (2, 3, 4)
    """grades to cut the video early at; empty for none"""
    rounds: int = 3
    """attempts per command, the first included"""
    size: int = 256
    """pixels of a frame's longer side, at most"""
    temperature: float | None = 0.7
    """of plans and commands; the other stages use 0. None leaves it to the server"""
    more_tokens: int = 0
    """added to the token limit of every answer, for models that reason first"""
    per_dataset: int = 1200
    """originals used of one dataset at most, chosen evenly; 0 = all"""
    seed: int = 0
    """chooses originals, cuts and splits"""
    keep_originals: bool = False
    """write the originals too"""
    assume_success: str = ""
    """why an episode without an outcome counts as a success; empty = it is not used"""
    split: str = "task"
    """'task': new splits that never part a task, video or recording; 'source': as the source has it"""
    shares: Mapping[str, float] = field(default_factory=lambda: {"train": 0.8, "val": 0.1, "test": 0.1})
    """splits and their shares, with split='task'"""

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("grades", "clips"):
            grades = tuple(getattr(self, name))
            if any(grade not in UNFINISHED_GRADES for grade in grades) or list(grades) != sorted(set(grades)):
                raise BadInput(name, "different grades from 1 to 4, growing", list(grades))
            object.__setattr__(self, name, grades)
        if not self.grades and not self.clips:
            raise BadInput("grades and clips", "at least one of the two", "neither")
        for name, least in {"rounds": 1, "size": 16, "per_dataset": 0, "more_tokens": 0}.items():
            if getattr(self, name) < least:
                raise BadInput(name, f"a number from {least} on", getattr(self, name))
        if self.temperature is not None and not self.temperature >= 0:
            raise BadInput("temperature", "0 or more", self.temperature)
        if self.split not in ("task", "source"):
            raise BadInput("split", "'task' or 'source'", repr(self.split))
        if self.split == "task" and (not self.shares or not all(share > 0 for share in self.shares.values())):
            raise BadInput("shares of the splits", "a share above 0 for each", dict(self.shares))
