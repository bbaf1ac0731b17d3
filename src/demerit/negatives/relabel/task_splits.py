"""Splits by original task: whatever was made of a task's videos is on one side, under whatever words.

A video may have been told in several wordings (DROID's have three): what shares a task, words, a video or a recording
is one bundle and goes together. A bundle's side is drawn by lot from the words of its least task alone: an episode that
is added later moves nobody else, unless it ties two bundles together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from demerit.data.episode import Episode
from demerit.data.splits import Bundles, task_of, ties
from demerit.errors import StoreError
from demerit.negatives.mix import seed_of


def split_of(task: str, shares: Mapping[str, float], seed: int) -> str:
    """Choose a task's split: a number from 0 to 1 by its words, laid along the shares."""
    place = seed_of(seed, "split", task) / 2**63 * sum(shares.values())
    for name, share in shares.items():
        if place < share:
            return name
        place -= share
    return list(shares)[-1]


class Sides:
    """The split of every original that is used."""

    def __init__(self, shares: Mapping[str, float], seed: int) -> None:
        """Begin with none."""
        self._shares, self._seed = shares, seed
        self._ties: dict[str, tuple[str, ...]] = {}
        self._tasks: dict[str, str] = {}
        self._of: dict[str, str] = {}

    def add(self, episode: Episode) -> None:
        """Look at one that may be used; no frame is decoded."""
        self._ties[episode.id] = tuple(ties(episode))
        self._tasks[episode.id] = task_of(episode)

    def settle(self, chosen: Iterable[str], known: Mapping[str, str], folder: Path) -> None:
        """Choose the sides, when all were looked at.

        Args:
            chosen: ids of those that are used.
            known: ids of those that an earlier run settled, with their splits. These stay, and take along what is tied
                to them.
            folder: where those are; named when something new ties two of them together that are on two sides.
        """
        used = sorted(id for id in {*chosen, *known} if id in self._ties)
        bundles = Bundles()
        for id in used:
            first, *others = self._ties[id]
            for other in others:
                bundles.join(first, other)
        lead = {id: bundles.first(self._ties[id][0]) for id in used}
        fixed: dict[str, str] = {}
        for id in used:
            if known.get(id) and fixed.setdefault(lead[id], known[id]) != known[id]:
                why = "shares a task, a video or a recording with originals that are in another split there"
                raise StoreError(folder, f"episode {id!r} ({known[id]}) now {why}; choose another folder")
        least: dict[str, str] = {}
        for id in used:
            least[lead[id]] = min(least.get(lead[id], self._tasks[id]), self._tasks[id])
        self._of = {id: fixed.get(lead[id]) or split_of(least[lead[id]], self._shares, self._seed) for id in used}
        self._ties.clear()
        self._tasks.clear()

    def of(self, id: str) -> str:
        """The split of one that is used."""
        return self._of[id]


class Leaks:
    """What was met in more than one split."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._splits: dict[str, set[str]] = defaultdict(set)
        self._said: dict[str, str] = {}

    def add(self, episode: Episode) -> None:
        """Look at one original; no frame is decoded."""
        for tie in dict.fromkeys(ties(episode)):
            self._splits[tie].add(episode.origin.split)
            is_video = tie.startswith("video ")
            self._said.setdefault(tie, f"the video of {episode.id}" if is_video else f"the {tie}")

    def found(self) -> list[str]:
        """The tasks, videos and recordings that splits cut through, each in a few words."""
        return sorted(self._said[tie] for tie, splits in self._splits.items() if len(splits) > 1)
