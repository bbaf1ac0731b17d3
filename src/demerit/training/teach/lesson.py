"""A lesson: labelled episodes with their features, ready to be fitted on some and to predict others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.instructions import normalize_instruction, same_task
from demerit.data.reward import Reward
from demerit.models.taught.features import (
    FeatureMaker,
    Features,
    Layout,
    Stream,
    checked_parts,
    followed_rows,
    widths_of,
)
from demerit.models.taught.head import Floats, Head
from demerit.training.teach.head import fit_examples
from demerit.training.teach.labels import Label
from demerit.training.teach.rows import Example, Pair
from demerit.training.teach.settings import Settings
from demerit.training.teach.targets import Target


@dataclass(frozen=True, eq=False)
class Seen:
    """An episode that went through the tower."""

    episode: Episode
    """its frames are not needed any more, only what is known about it"""
    length: int
    """frames of its video"""
    at: npt.NDArray[np.int32]
    """the frames that were looked at"""
    tower: Mapping[str, Features]
    """the tower's numbers, by camera"""
    controls: tuple[Reward, ...] = ()
    """what models that know nothing say of it"""

    @property
    def id(self) -> str:
        """Its episode's id."""
        return self.episode.id

    @property
    def words(self) -> str:
        """What was to be done, in plain words."""
        return normalize_instruction(self.episode.instruction)


@dataclass(frozen=True, eq=False)
class Room:
    """What all episodes of a lesson share: the network, the cameras and how often it looks."""

    maker: FeatureMaker
    cameras: tuple[str, ...]
    stride: int
    settings: Settings

    def layout(self, seen: Seen) -> Layout:
        """Which numbers stand where, as found on one episode."""
        parts = checked_parts(list(self.settings.parts))
        tower = next(iter(seen.tower.values()))
        hidden, vector = 0, self.maker.vector
        if {"hidden", "outputs"} & set(parts):
            hidden = int(np.asarray(self.maker.follow(np.asarray(tower[:1], np.float32), "").hidden).shape[-1])
        return Layout(self.cameras, parts, widths_of(parts, vector, tower.shape[1] - vector, hidden))

    def features(self, seen: Seen, instruction: str | None = None) -> Features:
        """Everything that the head sees of an episode: (frames looked at, columns)."""
        words = seen.episode.instruction if instruction is None else instruction
        return self.shown(seen, np.arange(len(seen.at)), words, seen.length)

    def shown(
        self, seen: Seen, order: npt.NDArray[np.integer], instruction: str, length: int | None = None
    ) -> Features:
        """The same for the looked-at frames in another order: nothing is decoded, only followed again."""
        found = []
        for camera in self.cameras:
            tower = np.asarray(seen.tower[camera], dtype=np.float32)[order]
            stream = Stream(self.maker, instruction, checked_parts(list(self.settings.parts)))
            beats = len(tower) if length is None else length
            found.append(followed_rows(stream, tower, beats, 1 if length is None else self.stride))
        return np.concatenate(found, axis=1)


@dataclass(frozen=True, eq=False)
class Lesson:
    """Labelled examples in one order; an example is named by its place."""

    room: Room
    seen: Sequence[Seen]
    labels: Sequence[Label]
    targets: Sequence[Target]
    """at the frames that were looked at"""
    groups: Sequence[str]
    pairs: Sequence[Pair] = ()
    views: Sequence[tuple[int, Example]] = ()
    """negatives made of the examples, each with the place of its original"""
    memory: dict[int, Features] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.seen)

    @cached_property
    def layout(self) -> Layout:
        """Which numbers stand where."""
        return self.room.layout(self.seen[0])

    @cached_property
    def success(self) -> Floats:
        """1, 0 or NaN by example."""
        return np.array([np.nan if one.verdict is None else float(one.verdict) for one in self.labels])

    @cached_property
    def tasks(self) -> dict[str, str]:
        """Which task plain words name: words that may ask for the same thing name one."""
        return tasks_of(dict.fromkeys(one.words for one in self.seen))

    def task(self, place: int) -> str:
        """The task of an example."""
        return self.tasks[self.seen[place].words]

    def x(self, place: int) -> Features:
        """An example's features; half precision in memory, which changes nothing that matters."""
        if place not in self.memory:
            self.memory[place] = half(self.room.features(self.seen[place]))
        return self.memory[place].astype(np.float32)

    def fit(self, places: Iterable[int] | None = None, settings: Settings | None = None) -> Head:
        """Fit a head on some examples, or on all; their views and the pairs among them come along."""
        chosen = list(range(len(self))) if places is None else sorted(places)
        where = {place: i for i, place in enumerate(chosen)}
        examples = [self._example(place) for place in chosen]
        examples += [view for place, view in self.views if place in where]
        pairs = [
            Pair(where[one.better], where[one.worse], one.tie)
            for one in self.pairs
            if one.better in where and one.worse in where
        ]
        return fit_examples(examples, settings or self.room.settings, pairs=pairs, layout=self.layout)

    def outputs(self, head: Head, place: int) -> Floats:
        """What a head says of an example: (frames looked at, 2)."""
        return head.outputs(self.x(place), self.task(place))

    def with_views(self, views: Sequence[tuple[int, Example]]) -> Lesson:
        """Add the negatives that were made."""
        return replace(self, views=[*self.views, *views])

    def _example(self, place: int) -> Example:
        return Example(self.x(place), self.targets[place], self.groups[place], self.task(place))


def label_at(label: Label, at: npt.NDArray[np.int32], length: int) -> Label:
    """Say the same of the frames that were looked at: marks and events move to the nearest one."""
    if len(at) == length:
        return label
    curve = label.curve
    if curve is not None and len(curve) == length:
        marked = np.full(len(at), np.nan, dtype=np.float32)
        known = np.flatnonzero(~np.isnan(curve))
        marked[_nearest(at, known)] = curve[known]
        full = curve[at]
        curve = np.where(np.isnan(full), marked, full)
    events = tuple(
        replace(one, first=first, last=last)
        for one in label.events
        if one.first < length
        for first, last in [_nearest(at, np.array([one.first, one.last])).tolist()]
    )
    return replace(label, curve=curve, events=events)


def half(numbers: Features) -> Any:
    """Keep numbers in half the space; what would overflow is cut."""
    most = float(np.finfo(np.float16).max)
    return np.clip(numbers, -most, most).astype(np.float16)


def tasks_of(words: Iterable[str]) -> dict[str, str]:
    """Give words that may ask for the same thing one name: the first of them."""
    names: dict[str, str] = {}
    for one in words:
        names[one] = next((name for other, name in names.items() if same_task(one, other)), one)
    return names


def groups_of(seen: Sequence[Seen]) -> list[str]:
    """Name what must not be parted: one session, one original, one video.

    Two episodes share a group when they share any of these, directly or through others.
    """
    parent = list(range(len(seen)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    first: dict[tuple[str, str], int] = {}
    for i, one in enumerate(seen):
        origin = one.episode.origin
        names = [("group", origin.group), ("id", origin.parent or one.id), ("id", one.id)]
        names += [("video", frames.source.identity()) for frames in one.episode.views.values()]
        for name in names:
            if name[1]:
                parent[root(i)] = root(first.setdefault(name, i))
    return [seen[root(i)].id for i in range(len(seen))]


def _nearest(at: npt.NDArray[np.int32], frames: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    right = np.clip(np.searchsorted(at, frames), 0, len(at) - 1)
    left = np.maximum(right - 1, 0)
    return np.where(np.abs(at[left] - frames) <= np.abs(at[right] - frames), left, right).astype(np.int64)
