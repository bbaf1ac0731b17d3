"""Store: a dataset folder that can be opened, filtered, streamed and appended to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from demerit.data.dataset import Problem, Record
from demerit.data.episode import Episode
from demerit.data.files import check_free, lock_folder, make_folder
from demerit.data.labels import Preference
from demerit.data.store import rows
from demerit.data.store.parts import (
    ROW,
    Manifest,
    PartWriter,
    matching,
    read_batches,
    read_manifest,
    read_matching,
    write_manifest,
)
from demerit.errors import BadEpisode, StoreError, UnknownName

FORMAT_NAME = "demerit-dataset"
MANIFEST = "dataset.json"
SCHEMAS = {"episodes": rows.EPISODES, "preferences": rows.PREFERENCES, "problems": rows.PROBLEMS}
COMMIT_ROWS = 5_000
COMMIT_SECONDS = 2.0


class Store:
    """A dataset folder, as it was when it was opened. Satisfies `demerit.data.dataset.Reader`."""

    def __init__(self, root: str | Path) -> None:
        """Open a folder: reads its manifest and nothing else."""
        self.root = Path(root).resolve()
        self.manifest = read_manifest(self.root / MANIFEST, FORMAT_NAME)

    @classmethod
    def create(cls, root: str | Path, name: str, licence: str = "", source: str = "") -> Store:
        """Make an empty dataset folder; a folder that holds anything else is left alone."""
        root = Path(root).resolve()
        if (root / MANIFEST).exists():
            raise StoreError(root, "there is a dataset in this folder already")
        check_free(root)
        make_folder(root)
        write_manifest(root / MANIFEST, FORMAT_NAME, Manifest({"name": name, "licence": licence, "source": source}))
        return cls(root)

    @staticmethod
    def is_at(root: str | Path) -> bool:
        """Whether a dataset folder is there."""
        return (Path(root) / MANIFEST).is_file()

    @property
    def name(self) -> str:
        """The dataset's name."""
        return str(self.manifest.header["name"])

    def __len__(self) -> int:
        """How many episodes there are."""
        return self.manifest.rows("episodes")

    def expected(self) -> int:
        """How many episodes there are."""
        return len(self)

    def records(self) -> Iterator[Record]:
        """Stream episodes and preferences; problems of the import are on record, not met again."""
        yield from self.episodes()
        yield from self.preferences()

    def episodes(self, where: Mapping[str, Any] | None = None) -> Iterator[Episode]:
        """Stream episodes; `where` keeps those whose columns equal the given values (None = unknown)."""
        where = where or {}
        _check_columns(where)
        for part in self.manifest.tables.get("episodes", ()):
            for first_row, table in read_matching(self.root, part, rows.LIGHT_COLUMNS, where):
                for row in table.to_pylist():
                    place = first_row + row.pop(ROW)
                    signals = rows.StoredSignals(str(self.root / part.file), place)
                    yield rows.row_episode(row, self.root, signals)

    def ids(self, where: Mapping[str, Any] | None = None) -> list[str]:
        """List the ids of matching episodes; reads no other column than it needs."""
        where = where or {}
        _check_columns(where)
        found: list[str] = []
        for table in self._columns("episodes", ["id", *(name for name in where if name != "id")]):
            found += table.column("id").take(matching(table, where)).to_pylist()
        return found

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Read some flat columns of all episodes."""
        schema = pa.schema([rows.EPISODES.field(name) for name in names])
        return pa.concat_tables([schema.empty_table(), *self._columns("episodes", list(names))])

    def episode(self, id: str) -> Episode:
        """Find one episode."""
        for found in self.episodes({"id": id}):
            return found
        raise BadEpisode(id, f"an id of dataset {self.name!r}", "one that is not in it")

    def preferences(self) -> Iterator[Preference]:
        """Stream preferences."""
        for table in self._columns("preferences", None):
            yield from (Preference(**row) for row in table.to_pylist())

    def problems(self) -> Iterator[Problem]:
        """Stream what was wrong with the data when it was imported."""
        for table in self._columns("problems", None):
            yield from (Problem(**row) for row in table.to_pylist())

    def writer(self) -> StoreWriter:
        """Append to this dataset: `with store.writer() as writer: writer.add(episode)`."""
        return StoreWriter(self.root)

    def _columns(self, table: str, columns: list[str] | None) -> Iterator[pa.Table]:
        for part in self.manifest.tables.get(table, ()):
            yield from read_batches(self.root, part, columns)


class StoreWriter:
    """Appends records; what `commit` has returned from survives anything. One writer at a time."""

    def __init__(self, root: Path) -> None:
        """Remember where; the lock is taken on entering."""
        self.root = root
        self._stack = ExitStack()
        self._waiting: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
        self._last_commit = time.monotonic()
        self.written: set[str] = set()

    def __enter__(self) -> StoreWriter:
        """Take the lock and see what is there."""
        self._stack.enter_context(lock_folder(self.root))
        try:
            store = Store(self.root)  # opened under the lock: another writer may just have finished
            self._parts = PartWriter(self.root / MANIFEST, FORMAT_NAME, store.manifest)
            self.written = set(store.ids())
            self._known = {tuple(rows.problem_row(problem).values()) for problem in store.problems()}
            self._known |= {tuple(rows.preference_row(preference).values()) for preference in store.preferences()}
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Commit what is waiting, also when leaving through Ctrl-C; nothing that was added is lost."""
        with self._stack:
            self.commit()
            if kind is None:
                self._parts.compact()

    def __contains__(self, id: object) -> bool:
        """Whether an episode of this id is in the dataset, or waiting to be."""
        return id in self.written

    def add(self, record: Record) -> None:
        """Add an episode, a preference or a problem; the same preference or problem again changes nothing."""
        if isinstance(record, Episode):
            if record.id in self.written:
                raise BadEpisode(record.id, "an id that is not in the dataset yet", "one that is")
            self._waiting["episodes"].append(rows.episode_row(record, self.root))
            self.written.add(record.id)
        elif isinstance(record, Preference):
            self._add_once("preferences", rows.preference_row(record))
        else:
            self._add_once("problems", rows.problem_row(record))
        if self._is_time():
            self.commit()

    def commit(self) -> int:
        """Make everything added so far durable; return how many episodes the dataset has now."""
        if any(self._waiting.values()):
            tables = {name: pa.Table.from_pylist(waiting, SCHEMAS[name]) for name, waiting in self._waiting.items()}
            self._parts.commit(tables)
            self._waiting = {name: [] for name in SCHEMAS}
        self._last_commit = time.monotonic()
        return self._parts.manifest.rows("episodes")

    def _add_once(self, table: str, row: dict[str, Any]) -> None:
        key = tuple(row.values())
        if key not in self._known:
            self._known.add(key)
            self._waiting[table].append(row)

    def _is_time(self) -> bool:
        many = sum(map(len, self._waiting.values())) >= COMMIT_ROWS
        return many or time.monotonic() - self._last_commit > COMMIT_SECONDS


def _check_columns(where: Mapping[str, Any]) -> None:
    for name in where:
        if name not in rows.FILTER_COLUMNS:
            raise UnknownName("column to filter by", name, rows.FILTER_COLUMNS)
