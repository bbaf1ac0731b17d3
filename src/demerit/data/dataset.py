"""A dataset being read: episodes, preferences and problems in one stream.

Real datasets have faults. A reader neither crashes on an episode it cannot use nor drops it silently: it yields a
`Problem`, which `Dataset` counts (or raises when strict).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from demerit.data.episode import Episode
from demerit.data.labels import Preference
from demerit.errors import BadEpisode
from demerit.registry import Registry

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


@dataclass(frozen=True)
class Problem:
    """A fault in a dataset."""

    kind: str
    """a short class to count by: 'missing video', 'empty instruction' ..."""
    episode: str
    """the episode's id, or the file with the problem"""
    detail: str
    """the facts, as text without a full stop"""
    kept: bool
    """whether the episode is still in the stream; False = skipped"""
    episodes: int = 1
    """number of episodes affected: a lost file may hold many"""


Record: TypeAlias = Episode | Preference | Problem


@runtime_checkable
class DatasetReader(Protocol):
    """One dataset on disk, in one format."""

    @property
    def name(self) -> str:
        """The dataset's name, used in ids and folders."""
        ...

    def records(self) -> Iterator[Record]:
        """Stream everything in a fixed order, without decoding a frame."""
        ...

    def expected(self) -> int | None:
        """The number of episodes; None when only reading tells."""
        ...


@dataclass
class Problems:
    """Problems counted by kind, with the first few of each kept."""

    keep: int = 20
    counts: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """episodes by (kind, kept)"""
    examples: dict[tuple[str, bool], list[Problem]] = field(default_factory=dict)

    def add(self, problem: Problem) -> None:
        """Count a problem."""
        key = (problem.kind, problem.kept)
        self.counts[key] += problem.episodes
        examples = self.examples.setdefault(key, [])
        if len(examples) < self.keep:
            examples.append(problem)

    def clear(self) -> None:
        """Reset all counts."""
        self.counts.clear()
        self.examples.clear()

    def __len__(self) -> int:
        return sum(self.counts.values())

    def skipped(self) -> int:
        """The number of skipped episodes."""
        return sum(count for (_, kept), count in self.counts.items() if not kept)

    def rows(self) -> list[dict[str, Any]]:
        """A row per kind, most frequent first."""
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
    """A reader whose problems are counted. Iterate over it to get the episodes."""

    def __init__(
        self, reader: DatasetReader, address: str = "", strict: bool = False, camera: str | None = None
    ) -> None:
        """`strict` raises at the first problem; `camera` becomes every episode's main camera."""
        self.reader, self.address, self.strict, self.camera = reader, address, strict, camera
        self.problems = Problems()
        self.on_problem: Callable[[Problem], None] = lambda problem: None

    @classmethod
    def from_episodes(cls, episodes: Iterable[Episode], name: str = "memory") -> Dataset:
        """Make a dataset of episodes that are in memory."""
        return cls(ListReader(name, list(episodes)), address=name)

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self.reader.name

    def expected(self) -> int | None:
        """The number of episodes; None when only reading tells."""
        return self.reader.expected()

    def records(self) -> Iterator[Episode | Preference]:
        """Stream episodes and preferences. Resets the problem counts; problems are counted, or raised when strict."""
        self.problems.clear()
        seen: set[str] = set()
        for record in self.reader.records():
            if isinstance(record, Problem):
                self.report(record)
            elif isinstance(record, Episode):
                yield from self._check(record, seen)
            else:
                yield record

    def report(self, problem: Problem) -> None:
        """Count a problem, or raise it when strict."""
        if self.strict:
            raise BadEpisode(problem.episode, f"no {problem.kind}", problem.detail)
        self.problems.add(problem)
        self.on_problem(problem)

    def __iter__(self) -> Iterator[Episode]:
        return (record for record in self.records() if isinstance(record, Episode))

    def __getitem__(self, id: str) -> Episode:
        """Find an episode by id; reads until it is found."""
        for episode in self:
            if episode.id == id:
                return episode
        raise BadEpisode(id, f"an id of dataset {self.name!r}", "an id that is not in it")

    def _check(self, episode: Episode, seen: set[str]) -> Iterator[Episode]:
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


@dataclass(frozen=True, eq=False)
class ListReader:
    """Records in memory. Satisfies `DatasetReader`."""

    name: str
    items: list[Any]
    """episodes, preferences and problems"""

    def records(self) -> Iterator[Record]:
        """Stream the records."""
        return iter(self.items)

    def expected(self) -> int:
        """The number of episodes."""
        return sum(isinstance(item, Episode) for item in self.items)
