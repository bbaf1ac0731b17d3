"""Pool: the words and partners that a dataset offers, kept apart by split."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.instructions import normalize_instruction, objects, same_task
from demerit.errors import BadEpisode

NEARNESS = ("same scene and objects", "same scene", "same objects", "another task")
"""How near other words are to the right ones, the hardest to tell apart first."""

FEW = 4

Numbers = npt.NDArray[np.int64]


@dataclass
class _Words:
    """One split's instructions, numbered in the order of their text, and where to find them."""

    texts: list[str]
    by_object: dict[str, Numbers]
    by_group: dict[str, Numbers]


@dataclass
class Pool:
    """What other episodes have to offer. The order in which they were added does not matter."""

    keep_partners: bool = False
    """whether to remember the episodes too: only a splice needs them"""
    _groups: dict[str, dict[str, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    _spelt: dict[tuple[str, str], str] = field(default_factory=dict)
    _partners: dict[tuple[str, str], list[Episode]] = field(default_factory=lambda: defaultdict(list))
    _ready: dict[str, _Words] = field(default_factory=dict)
    _last: tuple[tuple[str, str, str], list[Numbers]] | None = None

    @classmethod
    def of(cls, episodes: Iterable[Episode], keep_partners: bool = False) -> Pool:
        """Gather a pool."""
        pool = cls(keep_partners)
        for episode in episodes:
            pool.add(episode)
        return pool

    def add(self, episode: Episode) -> None:
        """Take in one episode's words, and itself if partners are kept. Edited episodes offer nothing new."""
        text = normalize_instruction(episode.instruction)
        if not text or episode.edits:
            return
        split = episode.origin.split
        self._groups[split][text].add(episode.origin.group)
        spelt = self._spelt.setdefault((split, text), episode.instruction)
        self._spelt[split, text] = min(spelt, episode.instruction)  # the same whichever came first
        if self.keep_partners:
            self._partners[split, text].append(episode)
        self._ready.clear()
        self._last = None

    def other_words(self, episode: Episode, rng: np.random.Generator, easy: float) -> tuple[str, str] | None:
        """Draw another task's words from the same split, and say how near they are; None where there are none.

        The hardest that there are, or, with probability `easy`, any.
        """
        split = episode.origin.split
        tiers = self._tiers(split, episode.instruction, episode.origin.group)
        order = range(len(tiers)) if rng.random() >= easy else range(len(tiers) - 1, -1, -1)
        for tier in order:
            for number in _drawn(tiers[tier], rng):
                text = self._ready[split].texts[number]
                if not same_task(text, episode.instruction):
                    near = next(i for i, those in enumerate(tiers) if number in those)
                    return self._spelt[split, text], NEARNESS[near]
        return None

    def partners(self, episode: Episode) -> list[Episode]:
        """Other attempts at the same words that no split can part from this one, by id.

        Where the split is not decided yet, only what was recorded together is sure to stay together.
        """
        origin = episode.origin
        found = self._partners.get((origin.split, normalize_instruction(episode.instruction)), [])
        others = [other for other in found if other.id != episode.id]
        if not origin.split:
            others = [other for other in others if origin.group and other.origin.group == origin.group]
        return sorted(others, key=lambda other: other.id)

    def find(self, id: str) -> Episode:
        """Find a kept episode."""
        for episodes in self._partners.values():
            for episode in episodes:
                if episode.id == id:
                    return episode
        raise BadEpisode(id, "an episode of the pool", "one that is not in it")

    def _tiers(self, split: str, instruction: str, group: str) -> list[Numbers]:
        """Numbers of this split's instructions by nearness: see NEARNESS. One episode asks several times in a row."""
        key = (split, instruction, group)
        if self._last is None or self._last[0] != key:
            words = self._index(split)
            none = np.empty(0, dtype=np.int64)
            shared = [words.by_object[word] for word in sorted(objects(instruction)) if word in words.by_object]
            alike = np.unique(np.concatenate(shared)) if shared else none
            here = words.by_group.get(group, none) if group else none
            both = np.intersect1d(alike, here, assume_unique=True)
            self._last = (key, [both, here, alike, np.arange(len(words.texts))])
        return self._last[1]

    def _index(self, split: str) -> _Words:
        if split not in self._ready:
            texts = sorted(self._groups[split]) if split in self._groups else []
            by_object: dict[str, list[int]] = defaultdict(list)
            by_group: dict[str, list[int]] = defaultdict(list)
            for number, text in enumerate(texts):
                for word in objects(text):
                    by_object[word].append(number)
                for group in self._groups[split][text]:
                    by_group[group].append(number)
            self._ready[split] = _Words(texts, _arrays(by_object), _arrays(by_group))
        return self._ready[split]


def _drawn(numbers: Numbers, rng: np.random.Generator) -> Iterator[int]:
    """Nearly all of them will do, so draw a few before going through all."""
    if len(numbers):
        yield from rng.choice(numbers, FEW).tolist()
        yield from rng.permutation(numbers).tolist()


def _arrays(lists: dict[str, list[int]]) -> dict[str, Numbers]:
    return {name: np.array(numbers, dtype=np.int64) for name, numbers in lists.items()}
