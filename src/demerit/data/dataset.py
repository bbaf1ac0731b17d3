"""A dataset being read: episodes, preferences and problems in one stream.

Real datasets have faults. A reader neither crashes on an episode it cannot use nor drops it silently: it yields a
`Problem`, which `Dataset` counts (or raises when strict).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, overload, runtime_checkable

from demerit.data.episode import Episode, Preference, count_episodes, safe_name
from demerit.data.notebook import SHOWN_EPISODES, dataset_html
from demerit.errors import BadEpisode, BadInput, DemeritError
from demerit.registry import Registry

if TYPE_CHECKING:
    from demerit.data.formats.marks import MarkedBy

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
        "ros": "data.formats.ros:RosReader",
    },
    "demerit.sources",
)


NO_INSTRUCTION = "empty instruction"


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
    """A reader whose problems are counted. Iterate over it to get the episodes, or index it by place, slice or id.

    `len` and places need every episode: a demerit folder has an index; any other format is read once, without decoding,
    and its episodes are then kept for `len`, indexing and iteration. `records` always reads again.
    """

    def __init__(
        self,
        reader: DatasetReader,
        address: str = "",
        strict: bool = False,
        camera: str | None = None,
        instruction: str = "",
        marked_by: MarkedBy | None = None,
    ) -> None:
        """Open a reader.

        Args:
            reader: what reads the files.
            address: `format:path`.
            strict: raise at the first problem.
            camera: every episode's main camera.
            instruction: for episodes that have none.
            marked_by: the log of marks that are joined to the episodes.
        """
        self.reader, self.address, self.strict, self.camera = reader, address, strict, camera
        self.instruction, self.marked_by = instruction.strip(), marked_by
        self.problems = Problems()
        self._episodes: list[Episode] | None = None
        self.on_problem: Callable[[Problem], None] = lambda problem: None

    @classmethod
    def from_episodes(cls, episodes: Iterable[Episode], name: str = "memory") -> Dataset:
        """Make a dataset of episodes that are in memory."""
        return cls(ListReader(name, list(episodes)), address=name)

    def where(self, keep: Callable[[Episode], bool], address: str = "") -> Dataset:
        """Make a dataset of the episodes that `keep` accepts, and of the preferences between them.

        `address` says where it comes from; empty: like this dataset.
        """
        return Dataset(
            StreamReader(self.name, partial(_choose, self, keep), _not_counted), address or self.address, self.strict
        )

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self.reader.name

    def expected(self) -> int | None:
        """The number of episodes; None when only reading tells."""
        return self.reader.expected()

    def notes(self) -> list[str]:
        """What the reader found out by itself and the user should know, a sentence each."""
        elsewhere = map(_note_annotated, self.address.split(", "))
        marked = "" if self.marked_by is None else self.marked_by.note
        return [*_gather_notes([self.reader]), *filter(None, (marked, *elsewhere))]

    def records(self) -> Iterator[Episode | Preference]:
        """Stream episodes and preferences. Resets the problem counts; problems are counted, or raised when strict."""
        self.problems.clear()
        seen: set[str] = set()
        records = self.reader.records()
        for record in records if self.marked_by is None else self.marked_by.join(records):
            if isinstance(record, Problem):
                if not (self.instruction and record.kind == NO_INSTRUCTION):
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
        if self._episodes is None:
            yield from (record for record in self.records() if isinstance(record, Episode))
        else:
            yield from self._episodes

    def __len__(self) -> int:
        index = self._index()
        return len(self._list() if index is None else index)

    @overload
    def __getitem__(self, which: str | int) -> Episode: ...

    @overload
    def __getitem__(self, which: slice) -> Dataset: ...

    def __getitem__(self, which: str | int | slice) -> Episode | Dataset:
        """Find an episode by id or place, or make a dataset of a slice."""
        if isinstance(which, str):
            return self._find(which)
        places = range(len(self))
        if isinstance(which, slice):
            wanted = places[which]
            stream = enumerate(islice(self, max(wanted, default=-1) + 1))
            episodes = {place: episode for place, episode in stream if place in wanted}
            return Dataset.from_episodes([episodes[place] for place in wanted], self.name)
        try:
            place = places[which]
        except IndexError:
            raise BadInput(f"place in dataset {self.name!r}", f"at most {len(places) - 1}", which) from None
        return self._at(place)

    def __repr__(self) -> str:
        return f"Dataset({self.address or self.name!r}, {self._count()})"

    def _repr_html_(self) -> str:
        # Straight from the reader: showing a dataset must not reset its problem counts.
        records = (record for record in self.reader.records() if isinstance(record, Episode))
        return dataset_html(self.name, self._count(), islice(records, SHOWN_EPISODES))

    def _count(self) -> str:
        if self._index() is not None or self._episodes is not None:
            return f"{count_episodes(len(self))}"
        try:
            expected = self.expected()
        except DemeritError:
            expected = None
        return "episodes not counted yet" if expected is None else f"{count_episodes(expected)} expected"

    def _index(self) -> Any:
        """The reader, if it has `len`, `episode(id)` and `episode_at(place)` and so need not read the others."""
        # A main camera that some episodes lack makes the dataset smaller than its index; an instruction changes it.
        is_changed = self.camera is not None or self.instruction or self.marked_by is not None
        return self.reader if not is_changed and hasattr(self.reader, "episode_at") else None

    def _list(self) -> list[Episode]:
        if self._episodes is None:
            self._episodes = [record for record in self.records() if isinstance(record, Episode)]
        return self._episodes

    def _at(self, place: int) -> Episode:
        index = self._index()
        return self._list()[place] if index is None else index.episode_at(place)

    def _find(self, id: str) -> Episode:
        """Find an episode by id; without an index, reads until it is found."""
        index = self._index()
        if index is not None:
            episode: Episode = index.episode(id)
            return episode
        for episode in self:
            if episode.id == id:
                return episode
        raise BadEpisode(id, f"an id of dataset {self.name!r}", "an id that is not in it")

    def _check(self, episode: Episode, seen: set[str]) -> Iterator[Episode]:
        if episode.id in seen:
            self.report(Problem("id used twice", episode.id, "a second episode of this id", kept=False))
            return
        seen.add(episode.id)
        if not _is_encodable(episode):
            self.report(Problem("broken text", episode.id, "a text of it cannot be written as UTF-8", kept=False))
            return
        if self.camera is not None:
            if self.camera not in episode.views:
                cameras = ", ".join(episode.views)
                self.report(Problem("missing camera", episode.id, f"no {self.camera!r} among {cameras}", kept=False))
                return
            episode = episode.with_camera(self.camera)
        if self.instruction and not episode.instruction.strip():
            episode = replace(episode, instruction=self.instruction)
        elif self.instruction and episode.instruction.strip() != self.instruction:
            detail = f"{episode.instruction!r} stays: the given instruction is for episodes that have none"
            self.report(Problem("instruction of its own", episode.id, detail, kept=True))
        yield episode


def _is_encodable(episode: Episode) -> bool:
    """Whether all texts can be stored: JSON files may hold lone surrogates."""
    origin = (value for value in vars(episode.origin).values() if isinstance(value, str))
    texts = [episode.instruction, *episode.views, *origin]
    texts += [text for outcome in episode.outcomes for text in (outcome.note, outcome.by)]
    texts += [text for pair in episode.origin.tags.items() for text in pair]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


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


@dataclass(frozen=True)
class StreamReader:
    """Records that are made anew for each pass. Satisfies `DatasetReader`."""

    name: str
    records: Callable[[], Iterator[Record]]
    """streams everything"""
    expected: Callable[[], int | None]
    """the number of episodes; None when only reading tells"""
    notes: Callable[[], list[str]] = list
    """what the user should know"""


def _not_counted() -> None:
    """Only reading tells."""


def join_readers(parts: Mapping[str, DatasetReader]) -> StreamReader:
    """Read readers by name, one after the other. Ids and groups begin with the name, so that they stay distinct."""
    name, notes = safe_name("+".join(parts)), partial(_gather_notes, list(parts.values()))
    return StreamReader(name, partial(_join, parts), partial(_count_parts, parts), notes)


def annotated_folder(address: str) -> Path:
    """Return where `demerit annotate` keeps the labels of a dataset that is not a demerit folder."""
    path = Path(address.partition(":")[2])
    return path.parent / f"{path.name}.demerit" / "annotated"


def _note_annotated(address: str) -> str:
    """Say that people have labelled a dataset in a browser: its own labels are not theirs."""
    folder, store = annotated_folder(address), cast(Any, SOURCES.factory("demerit"))
    with suppress(DemeritError):  # the folder is not what was asked for
        if store.is_at(folder) and store(folder).given():
            return f"{address}: labels given in demerit annotate are in {folder} alone; name that folder to use them"
    return ""


def _gather_notes(readers: Iterable[DatasetReader]) -> list[str]:
    return [note for reader in readers for note in getattr(reader, "notes", list)()]


def _join(parts: Mapping[str, DatasetReader]) -> Iterator[Record]:
    for name, reader in parts.items():
        for record in reader.records():
            yield _prefix(name, record)


def _count_parts(parts: Mapping[str, DatasetReader]) -> int | None:
    counts = [reader.expected() for reader in parts.values()]
    return None if None in counts else sum(count or 0 for count in counts)


def _choose(dataset: Dataset, keep: Callable[[Episode], bool]) -> Iterator[Record]:
    """Stream some episodes, then the preferences between them. Problems are counted by the whole dataset."""
    ids: set[str] = set()
    preferences: list[Preference] = []
    for record in dataset.records():
        if isinstance(record, Preference):
            preferences.append(record)
        elif keep(record):
            ids.add(record.id)
            yield record
    yield from (preference for preference in preferences if {preference.a, preference.b} <= ids)


def _prefix(name: str, record: Record) -> Record:
    if isinstance(record, Problem):
        return replace(record, episode=f"{name}/{record.episode}")
    if not isinstance(record, Episode):
        return replace(record, a=f"{name}/{record.a}", b=f"{name}/{record.b}")
    group, parent = (f"{name}/{value}" if value else "" for value in (record.origin.group, record.origin.parent))
    return replace(record, id=f"{name}/{record.id}", origin=replace(record.origin, group=group, parent=parent))


def distinct_names(addresses: Sequence[str]) -> list[str]:
    """Name datasets by the shortest ends of their paths that differ.

    >>> distinct_names(["videos:/a/runs", "videos:/b/runs", "lerobot:/c"])
    ['a/runs', 'b/runs', 'c']
    """
    paths = [PurePath(address.partition(":")[2]).parts for address in addresses]
    if twice := next((address for address, path in zip(addresses, paths, strict=True) if paths.count(path) > 1), None):
        raise BadInput("datasets", "different ones", f"{twice} twice")
    names = []
    for path in paths:
        lengths = range(1, len(path) + 1)
        length = next(length for length in lengths if [other[-length:] for other in paths].count(path[-length:]) == 1)
        names.append("/".join(path[-length:]).lstrip("/"))
    return names
