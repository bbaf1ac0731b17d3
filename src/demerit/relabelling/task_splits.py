"""Splits by original task: whatever was made of a task's videos is on one side, under whatever words.

By lot, from the words alone: an episode that is added later moves nobody else to another side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from demerit.episode import Episode
from demerit.negatives.instructions import normalised
from demerit.negatives.mix import seed_of

TEST = "test"


def task_of(episode: Episode) -> str:
    """The original task: as the source names it, else the words of the original instruction."""
    return episode.origin.tags.get("task") or normalised(episode.instruction)


def split_of(task: str, shares: Mapping[str, float], seed: int) -> str:
    """Choose a task's split: a number from 0 to 1 by its words, laid along the shares."""
    place = seed_of(seed, "split", task) / 2**63 * sum(shares.values())
    for name, share in shares.items():
        if place < share:
            return name
        place -= share
    return list(shares)[-1]


class Leaks:
    """Tasks that were met in more than one split."""

    def __init__(self) -> None:
        """Begin with none."""
        self._splits: dict[str, set[str]] = defaultdict(set)

    def add(self, episode: Episode) -> None:
        """Look at one original."""
        self._splits[task_of(episode)].add(episode.origin.split)

    def tasks(self) -> list[str]:
        """Those that a split cuts through."""
        return sorted(task for task, splits in self._splits.items() if len(splits) > 1)
