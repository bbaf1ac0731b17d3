"""A dataset that is being read: episodes, preferences and the problems met on the way, in one stream.

Real datasets are messy. A reader neither crashes on an episode that it cannot use nor drops it silently: it yields a
`Problem`, which whoever reads the stream counts and shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from demerit.data.episode import Episode
from demerit.data.labels import Preference
from demerit.errors import BadEpisode
from demerit.registry import Registry


@dataclass(frozen=True)
class Problem:
    """Something in a dataset that is not as it should be."""

    kind: str
    """a short class to count by: 'missing video', 'empty instruction' ..."""
    episode: str
    """the episode's id, or the file that the problem is in"""
    detail: str
    """the facts, as a sentence without a full stop"""
    kept: bool
    """whether the episode is still in the stream (with less), or had to be left out"""
    episodes: int = 1
    """how many episodes it concerns: a lost file may hold many"""


Record: TypeAlias = Episode | Preference | Problem


@runtime_checkable
class Reader(Protocol):
    """One dataset on disk, in one format."""

    @property
    def name(self) -> str:
        """The dataset's name, used in ids and folders."""
        ...

    def records(self) -> Iterator[Record]:
        """Stream everything, in a fixed order, without decoding a frame."""
        ...

    def expected(self) -> int | None:
        """How many episodes there should be, None when only reading tells."""
        ...


@dataclass
class Problems:
    """Problems counted by kind, with the first few of each kept."""

    keep: int = 20
    counts: Counter[tuple[str, bool]] = field(default_factory=Counter)
    examples: dict[tuple[str, bool], list[Problem]] = field(default_factory=dict)

    def add(self, problem: Problem) -> None:
        """Count one."""
        key = (problem.kind, problem.kept)
        self.counts[key] += problem.episodes
        shown = self.examples.setdefault(key, [])
        if len(shown) < self.keep:
            shown.append(problem)

    def clear(self) -> None:
        """Start counting anew."""
        self.counts.clear()
        self.examples.clear()

    def __len__(self) -> int:
        """How many episodes have a problem (one with two counts twice)."""
        return sum(self.counts.values())

    def left_out(self) -> int:
        """How many episodes were left out."""
        return sum(count for (_, kept), count in self.counts.items() if not kept)

    def rows(self) -> list[dict[str, Any]]:
        """A row a kind, most frequent first."""
        return [
            {
                "problem": kind,
                "episodes": count,
                "kept": kept,
                "first": f"{self.examples[kind, kept][0].episode}: {self.examples[kind, kept][0].detail}",
            }
            for (kind, kept), count in self.counts.most_common()
        ]


class Dataset:
    """A reader with its problems counted; iterate over it for the episodes."""

    def __init__(self, reader: Reader, address: str = "", strict: bool = False, camera: str | None = None) -> None:
        """`strict` raises at the first problem; `camera` becomes every episode's main camera."""
        self.reader, self.address, self.strict, self.camera = reader, address, strict, camera
        self.problems = Problems()
        self.on_problem: Callable[[Problem], None] = lambda problem: None

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self.reader.name

    def expected(self) -> int | None:
        """How many episodes there should be, None when only reading tells."""
        return self.reader.expected()

    def records(self) -> Iterator[Episode | Preference]:
        """Stream episodes and preferences; problems are counted, or raised when strict. Counts start anew."""
        self.problems.clear()
        seen: set[str] = set()
        for record in self.reader.records():
            if isinstance(record, Problem):
                self.report(record)
            elif isinstance(record, Episode):
                yield from self._admit(record, seen)
            else:
                yield record

    def report(self, problem: Problem) -> None:
        """Count a problem, or raise it when strict."""
        if self.strict:
            raise BadEpisode(problem.episode, f"no {problem.kind}", problem.detail)
        self.problems.add(problem)
        self.on_problem(problem)

    def __iter__(self) -> Iterator[Episode]:
        """Stream the episodes."""
        return (record for record in self.records() if isinstance(record, Episode))

    def __getitem__(self, episode: str) -> Episode:
        """Find one episode by its id (reads until it is found)."""
        for found in self:
            if found.id == episode:
                return found
        raise BadEpisode(episode, f"an id of dataset {self.name!r}", "one that is not in it")

    def _admit(self, episode: Episode, seen: set[str]) -> Iterator[Episode]:
        if episode.id in seen:
            self.report(Problem("id used twice", episode.id, "a second episode of this id", kept=False))
            return
        seen.add(episode.id)
        if self.camera is not None:
            if self.camera not in episode.views:
                known = ", ".join(episode.views)
                self.report(Problem("missing camera", episode.id, f"no {self.camera!r} among {known}", kept=False))
                return
            episode = episode.with_camera(self.camera)
        yield episode


SOURCES = Registry(
    "source",
    {
        "demerit": "data.store:Store",
        "videos": "data.formats.videos:VideosReader",
        "lerobot": "data.formats.lerobot.reader:LeRobotReader",
        "roboarena": "data.formats.roboarena:RoboArenaReader",
        "roboreward": "data.formats.roboreward:RoboRewardReader",
        "rbm": "data.formats.rbm:RbmReader",
        "rlds": "data.formats.rlds:RldsReader",
        "hdf5": "data.formats.hdf5:Hdf5Reader",
    },
    "demerit.sources",
)
