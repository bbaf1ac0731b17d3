"""Mix: how many negatives of which kind to make, with balanced grades. Pool: instructions and partners to draw from.

Everything is drawn from the seed and the episode's id alone, so the order and selection of episodes do not matter.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from demerit.data.arrays import Floats, Ints
from demerit.data.episode import Episode, normalize_instruction, objects, same_task
from demerit.data.splits import seed_of
from demerit.errors import BadEpisode, BadInput, NotApplicable, UnknownName
from demerit.negatives.negative import (
    GENERATORS,
    NEGATIVES,
    UNFINISHED_GRADES,
    VARIANTS,
    Negative,
    is_generator,
    load_negative,
    require_label,
    require_success,
)

DEFAULT_MIX = "clip=10,freeze=8,rewind=12,wrong-instruction=6,jump=3,stall=1"
"""With eight per episode and the originals kept, each grade from 1 to 5 is a fifth of all, and the length of a video
tells almost nothing about success: clips are shorter than originals, rewinds longer, freezes equal, jumps offset
stalls."""
PER_EPISODE = 8
PER_DATASET = 1200
ATTEMPTS = 8


MixCell = tuple[str, int | None, float]
"""a negative, its grade (None = it has no choice of grade), and its share of all negatives"""


@dataclass(frozen=True)
class Mix:
    """Shares of negatives by name, the seed, and limits per episode and dataset."""

    shares: Mapping[str, float]
    seed: int = 0
    per_episode: int = PER_EPISODE
    """most negatives from one original"""
    per_dataset: int = PER_DATASET
    """most originals from one dataset, drawn at random; 0 = all"""

    def __post_init__(self) -> None:
        if not self.shares:
            raise BadInput("the mix", f"at least one NAME=SHARE, such as {DEFAULT_MIX}", "an empty one")
        for name, share in self.shares.items():
            if name not in NEGATIVES and not is_generator(name):
                raise UnknownName("negative", name, {*NEGATIVES, *GENERATORS, "variants"})
            if not 0 < share < float("inf"):
                raise BadInput(f"the share of {name!r} in the mix", "a number above 0", share)
        if self.per_episode < 1:
            raise BadInput("negatives per episode", "at least 1", self.per_episode)
        if self.per_dataset < 0:
            raise BadInput("originals per dataset", "a whole number, 0 for all", self.per_dataset)

    @classmethod
    def parse(cls, text: str, *, seed: int = 0, per_episode: int = PER_EPISODE, per_dataset: int = PER_DATASET) -> Mix:
        """Parse `clip=4,rewind=2`; the default share is 1. `variants` stands for all of them, each with that share."""
        shares: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            given, equals, share = (piece.strip() for piece in part.partition("="))
            for name in VARIANTS if given == "variants" else (given,):
                if name in shares:
                    raise BadInput("the mix", "each negative once", f"{name!r} twice")
                try:
                    shares[name] = float(share) if equals else 1.0
                except ValueError:
                    raise BadInput(f"the share of {name!r} in the mix", "a number above 0", repr(share)) from None
        return cls(shares, seed, per_episode, per_dataset)

    def __str__(self) -> str:
        return ",".join(f"{name}={share:g}" for name, share in self.shares.items())

    @property
    def needs_partners(self) -> bool:
        """Whether the pool must keep whole episodes."""
        return "splice" in self.shares

    @cached_property
    def cells(self) -> tuple[MixCell, ...]:
        """The share of each negative at each grade.

        Some negatives always end at grade 1. The others choose their grades such that the grades 1 to 4 are as even as
        the shares allow. Grade 5 comes from the originals and `slow`, `stall` and `jump`.
        """
        total = sum(self.shares.values())
        negatives = self._loaded
        fixed: Counter[int] = Counter()
        aimed = 0.0
        for name, negative in negatives.items():
            share = self.shares[name] / total
            if len(negative.grades) == 1:
                fixed[negative.grades[0]] += share  # type: ignore[assignment]
            elif negative.grades:
                aimed += share
        room = level_out({grade: fixed[grade] for grade in UNFINISHED_GRADES}, aimed)
        return tuple(
            cell for name, negative in negatives.items() for cell in _cells(negative, self.shares[name] / total, room)
        )

    def check_original(self, episode: Episode) -> None:
        """Raise NotApplicable where nothing of this mix is made of such an episode."""
        if not any(negative.generates for negative in self._loaded.values()):
            any_label = any(negative.keeps for negative in self._loaded.values())
            require_label(episode) if any_label else require_success(episode)

    def slots(self, episode: str) -> Iterator[MixCell]:
        """The negatives to make from this episode, by systematic sampling.

        Over many episodes, counts are closer to the shares than with independent draws.
        """
        offset = seed_of(self.seed, episode) / 2**63
        places = (np.arange(self.per_episode) + offset) / self.per_episode
        numbers = np.searchsorted(self._bounds, places, side="right")
        return (self.cells[number] for number in numbers.tolist())

    @cached_property
    def _bounds(self) -> Floats:
        """Cumulative shares: where each cell after the first starts."""
        return np.cumsum([share for _, _, share in self.cells])[:-1]

    @cached_property
    def _loaded(self) -> dict[str, Negative]:
        return {name: load_negative(name) for name in sorted(self.shares)}

    def make(
        self, episode: Episode, pool: Pool | None = None, present: Container[str] = ()
    ) -> Iterator[Episode | tuple[str, str]]:
        """Make this episode's negatives, all different; where one cannot be made, yield its name and the reason.

        `present` are ids of an earlier run: what a generator made is not made again.
        """
        seen: set[str] = set()
        for slot, (name, grade, _) in enumerate(self.slots(episode.id)):
            params = {} if grade is None else {"grade": grade}
            try:
                for attempt in range(ATTEMPTS):
                    seed = seed_of(self.seed, episode.id, slot, attempt)
                    negative = self._loaded[name]
                    if negative.generates and negative.clip_id(episode, seed) in present:
                        yield name, "an earlier run has made it"
                        break
                    variant = negative.make_with_seed(episode, seed, pool=pool, **params)
                    if variant.id not in seen:
                        seen.add(variant.id)
                        yield variant
                        break
                else:
                    yield name, "every draw repeats an earlier one"
            except NotApplicable as no:
                yield name, no.reason


def choose_originals(possible: Mapping[str, str], seed: int, most: int) -> set[str]:
    """Choose the ids of at most `most` episodes of each dataset (0 = all), those with the lowest hashes.

    `possible` are the names of the datasets by id.
    """
    by_dataset: dict[str, list[str]] = defaultdict(list)
    for id in sorted(possible, key=lambda id: seed_of(seed, "chosen", id)):
        by_dataset[possible[id]].append(id)
    return {id for ids in by_dataset.values() for id in (ids[:most] if most else ids)}


def level_out(there: Mapping[int, float], more: float) -> dict[int, float]:
    """Distribute `more` so that the lowest are raised to one level first; return what each gets."""
    order = sorted(there, key=lambda grade: there[grade])
    level = 0.0
    for count in range(1, len(order) + 1):
        level = (more + sum(there[grade] for grade in order[:count])) / count
        if count == len(order) or level <= there[order[count]]:
            break
    return {grade: max(0.0, level - there[grade]) for grade in there}


def _cells(negative: Negative, share: float, room: Mapping[int, float]) -> Iterator[MixCell]:
    if len(negative.grades) < 2:  # noqa: PLR2004
        yield negative.name, None, share
        return
    weights = {grade: room.get(grade, 0.0) for grade in negative.grades}
    total = sum(weights.values())
    for grade, weight in weights.items():
        part = weight / total if total else 1 / len(weights)
        if part:
            yield negative.name, grade, share * part


NEARNESS = ("same scene and objects", "same scene", "same objects", "another task")
"""similarity of another instruction, most similar first"""

FEW = 4


_Instructions = tuple[list[str], dict[str, Ints], dict[str, Ints]]
"""the instructions of a split, numbered alphabetically, and their numbers by object and by group"""


@dataclass
class Pool:
    """Other episodes' instructions and frames, by split. The order of `add` does not matter."""

    keep_partners: bool = False
    """whether to keep the episodes too; only a splice needs them"""
    _groups: dict[str, dict[str, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    _tasks: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    """names of the tasks that an instruction of a split was given for"""
    _spelling: dict[tuple[str, str], str] = field(default_factory=dict)
    _partners: dict[tuple[str, str], list[Episode]] = field(default_factory=lambda: defaultdict(list))
    _ready: dict[str, _Instructions] = field(default_factory=dict)
    _last: tuple[tuple[str, str, str], list[Ints]] | None = None

    @classmethod
    def of(cls, episodes: Iterable[Episode], keep_partners: bool = False) -> Pool:
        """Make a pool of episodes."""
        pool = cls(keep_partners)
        for episode in episodes:
            pool.add(episode)
        return pool

    def add(self, episode: Episode) -> None:
        """Add an episode's instruction, and the episode if partners are kept. Edited episodes are ignored."""
        text = normalize_instruction(episode.instruction)
        if not text or episode.edits:
            return
        split = episode.origin.split
        self._groups[split][text].add(episode.origin.group)
        self._tasks[split, text].add(episode.origin.tags.get("task", ""))
        spelling = self._spelling.setdefault((split, text), episode.instruction)
        self._spelling[split, text] = min(spelling, episode.instruction)  # independent of the order
        if self.keep_partners:
            self._partners[split, text].append(episode)
        self._ready.clear()
        self._last = None

    def other_instruction(self, episode: Episode, rng: np.random.Generator, easy: float) -> tuple[str, str] | None:
        """Draw another task's instruction from the same split, and its similarity (NEARNESS); None if there is none.

        One of the most similar, or, with probability `easy`, any.
        """
        split, task = episode.origin.split, episode.origin.tags.get("task", "")
        tiers = self._tiers(split, episode.instruction, episode.origin.group)
        order = range(len(tiers)) if rng.random() >= easy else range(len(tiers) - 1, -1, -1)
        for tier in order:
            for number in _draw(tiers[tier], rng):
                text = self._ready[split][0][number]
                reworded = bool(task) and task in self._tasks[split, text]
                if not reworded and not same_task(text, episode.instruction):
                    near = next(i for i, those in enumerate(tiers) if number in those)
                    return self._spelling[split, text], NEARNESS[near]
        return None

    def partners(self, episode: Episode) -> list[Episode]:
        """Other attempts at the same instruction in the same split, sorted by id.

        Without a split, only those of the same group: they will stay together when splits are made.
        """
        origin = episode.origin
        episodes = self._partners.get((origin.split, normalize_instruction(episode.instruction)), [])
        others = [other for other in episodes if other.id != episode.id]
        if not origin.split:
            others = [other for other in others if origin.group and other.origin.group == origin.group]
        return sorted(others, key=lambda other: other.id)

    def find(self, id: str) -> Episode:
        """Find a kept episode by id."""
        for episodes in self._partners.values():
            for episode in episodes:
                if episode.id == id:
                    return episode
        raise BadEpisode(id, "an episode of the pool", "one that is not in it")

    def _tiers(self, split: str, instruction: str, group: str) -> list[Ints]:
        """The numbers of this split's instructions by NEARNESS; cached for the last episode."""
        key = (split, instruction, group)
        if self._last is None or self._last[0] != key:
            texts, by_object, by_group = self._index(split)
            none = np.empty(0, dtype=np.int64)
            shared = [by_object[word] for word in sorted(objects(instruction)) if word in by_object]
            alike = np.unique(np.concatenate(shared)) if shared else none
            own_group = by_group.get(group, none) if group else none
            both = np.intersect1d(alike, own_group, assume_unique=True)
            self._last = (key, [both, own_group, alike, np.arange(len(texts))])
        return self._last[1]

    def _index(self, split: str) -> _Instructions:
        if split not in self._ready:
            texts = sorted(self._groups[split]) if split in self._groups else []
            by_object: dict[str, list[int]] = defaultdict(list)
            by_group: dict[str, list[int]] = defaultdict(list)
            for number, text in enumerate(texts):
                for word in objects(text):
                    by_object[word].append(number)
                for group in self._groups[split][text]:
                    by_group[group].append(number)
            self._ready[split] = (texts, _arrays(by_object), _arrays(by_group))
        return self._ready[split]


def _draw(numbers: Ints, rng: np.random.Generator) -> Iterator[int]:
    """Draw a few at random, then all: nearly every number is accepted."""
    if len(numbers):
        yield from rng.choice(numbers, FEW).tolist()
        yield from rng.permutation(numbers).tolist()


def _arrays(lists: dict[str, list[int]]) -> dict[str, Ints]:
    return {name: np.array(numbers, dtype=np.int64) for name, numbers in lists.items()}
