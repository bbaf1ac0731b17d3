"""Store: a dataset folder (`dataset.json`, the parquet files it lists, videos): open, filter, stream and append to."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from demerit.data.dataset import Problem, Record
from demerit.data.episode import Edit, Episode, Origin
from demerit.data.files import check_free, lock_folder, make_folder
from demerit.data.frames import Frames, FrameSource, frame_source
from demerit.data.labels import Event, Outcome, Preference
from demerit.data.parts import (
    ROW,
    Manifest,
    PartWriter,
    match_rows,
    read_batches,
    read_manifest,
    read_matching,
    write_manifest,
)
from demerit.errors import BadEpisode, StoreError, UnknownName

ORIGIN_COLUMNS = ("dataset", "revision", "licence", "embodiment", "site", "split", "group", "parent")
_TEXT, _INT, _REAL, _FLAG = pa.string(), pa.int32(), pa.float64(), pa.bool_()
_EVENT = pa.struct({"kind": _TEXT, "first": _INT, "last": _INT, "note": _TEXT})
_OUTCOME = pa.struct(
    {"source": _TEXT, "by": _TEXT, "success": _FLAG, "progress": _REAL, "grade": pa.int8()}
    | {"curve": pa.list_(pa.float32()), "events": pa.list_(_EVENT), "note": _TEXT}
)
_VIEW = pa.struct({"camera": _TEXT, "kind": _TEXT, "path": _TEXT, "fields": _TEXT, "indices": pa.list_(_INT)})
_EDIT = pa.struct({"name": _TEXT, "params": _TEXT, "seed": pa.int64()})
_SIGNAL = pa.struct({"name": _TEXT, "dtype": _TEXT, "shape": pa.list_(_INT), "data": pa.binary()})
EPISODES = pa.schema(
    {"id": _TEXT, "instruction": _TEXT, **dict.fromkeys(ORIGIN_COLUMNS, _TEXT), "tags": pa.map_(_TEXT, _TEXT)}
    | {"cameras": pa.list_(_TEXT), "frames": _INT, "seconds": _REAL}
    | {"success": _FLAG, "progress": _REAL, "grade": pa.int8(), "vouched_by": _TEXT, "has_curve": _FLAG}
    | {"fingerprint": _TEXT, "views": pa.list_(_VIEW), "outcomes": pa.list_(_OUTCOME)}
    | {"edits": pa.list_(_EDIT), "signals": pa.list_(_SIGNAL)}
)
# Signals are by far the largest column; they are read on first access.
LIGHT_COLUMNS = [name for name in EPISODES.names if name != "signals"]
FILTER_COLUMNS = ("id", "instruction", *ORIGIN_COLUMNS, "success", "grade", "vouched_by")

PREFERENCES = pa.schema([(name, pa.string()) for name in ("a", "b", "verdict", "source", "why", "by")])
PROBLEMS = pa.schema({"kind": _TEXT, "episode": _TEXT, "detail": _TEXT, "kept": _FLAG, "episodes": _INT})
FORMAT_NAME = "demerit-dataset"
MANIFEST = "dataset.json"
SCHEMAS = {"episodes": EPISODES, "preferences": PREFERENCES, "problems": PROBLEMS}
COMMIT_ROWS = 5_000
COMMIT_SECONDS = 2.0


class Store:
    """A dataset folder, as of when it was opened. Satisfies `DatasetReader`."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).resolve()
        self.manifest = read_manifest(self.root / MANIFEST, FORMAT_NAME)

    @classmethod
    def create(cls, root: str | Path, name: str, licence: str = "", source: str = "") -> Store:
        """Create an empty dataset; the folder must be absent or empty."""
        root = Path(root).resolve()
        if (root / MANIFEST).exists():
            raise StoreError(root, "it contains a dataset already")
        check_free(root)
        make_folder(root)
        write_manifest(root / MANIFEST, FORMAT_NAME, Manifest({"name": name, "licence": licence, "source": source}))
        return cls(root)

    @staticmethod
    def is_at(root: str | Path) -> bool:
        """Whether the folder contains a dataset."""
        return (Path(root) / MANIFEST).is_file()

    @property
    def name(self) -> str:
        """The dataset's name."""
        return str(self.manifest.header["name"])

    def __len__(self) -> int:
        return self.manifest.rows("episodes")

    def expected(self) -> int:
        """The number of episodes."""
        return len(self)

    def records(self) -> Iterator[Record]:
        """Stream episodes and preferences; the problems of the import are in `problems()`."""
        yield from self.episodes()
        yield from self.preferences()

    def episodes(self, where: Mapping[str, Any] | None = None) -> Iterator[Episode]:
        """Stream episodes; `where` maps columns to required values (None = unknown)."""
        where = where or {}
        _check_columns(where)
        for part in self.manifest.tables.get("episodes", ()):
            for first_row, table in read_matching(self.root, part, LIGHT_COLUMNS, where):
                for row in table.to_pylist():
                    place = first_row + row.pop(ROW)
                    signals = StoredSignals(str(self.root / part.file), place)
                    yield row_episode(row, self.root, signals)

    def ids(self, where: Mapping[str, Any] | None = None) -> list[str]:
        """List the ids of matching episodes. Reads only the needed columns."""
        where = where or {}
        _check_columns(where)
        found: list[str] = []
        for table in self._columns("episodes", ["id", *(name for name in where if name != "id")]):
            found += table.column("id").take(match_rows(table, where)).to_pylist()
        return found

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Read flat columns of all episodes."""
        schema = pa.schema([EPISODES.field(name) for name in names])
        return pa.concat_tables([schema.empty_table(), *self._columns("episodes", list(names))])

    def episode(self, id: str) -> Episode:
        """Find an episode by id."""
        for found in self.episodes({"id": id}):
            return found
        raise BadEpisode(id, f"an id of dataset {self.name!r}", "an id that is not in it")

    def preferences(self) -> Iterator[Preference]:
        """Stream preferences."""
        for table in self._columns("preferences", None):
            yield from (Preference(**row) for row in table.to_pylist())

    def problems(self) -> Iterator[Problem]:
        """Stream the problems found when the data was imported."""
        for table in self._columns("problems", None):
            yield from (Problem(**row) for row in table.to_pylist())

    def writer(self) -> StoreWriter:
        """Open the dataset for appending: `with store.writer() as writer: writer.add(episode)`."""
        return StoreWriter(self.root)

    def _columns(self, table: str, columns: list[str] | None) -> Iterator[pa.Table]:
        for part in self.manifest.tables.get(table, ()):
            yield from read_batches(self.root, part, columns)


def open_or_create(dest: str | Path, name: str, licence: str, source: str) -> Store:
    """Open the folder of an earlier run of the same job, or create it. `source` describes the job."""
    if not Store.is_at(dest):
        return Store.create(dest, name, licence, source)
    store = Store(dest)
    if store.manifest.header.get("source") != source:
        other = store.manifest.header.get("source") or "something else"
        raise StoreError(dest, f"it contains the result of another job ({other}); choose another folder")
    return store


class StoreWriter:
    """Appends records; durable once `commit` returns. One writer at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._stack = ExitStack()
        self._pending: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
        self._last_commit = time.monotonic()
        self.written: set[str] = set()

    def __enter__(self) -> StoreWriter:
        self._stack.enter_context(lock_folder(self.root))
        try:
            store = Store(self.root)  # opened under the lock: another writer may just have finished
            self._parts = PartWriter(self.root / MANIFEST, FORMAT_NAME, store.manifest)
            self.written = set(store.ids())
            self._known = {tuple(problem_row(problem).values()) for problem in store.problems()}
            self._known |= {tuple(preference_row(preference).values()) for preference in store.preferences()}
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with self._stack:
            self.commit()
            if kind is None:
                self._parts.compact()

    def __contains__(self, id: object) -> bool:
        return id in self.written

    def add(self, record: Record) -> None:
        """Add a record; a preference or problem that exists already is ignored."""
        if isinstance(record, Episode):
            if record.id in self.written:
                raise BadEpisode(record.id, "an id that is not in the dataset yet", "one that is in it")
            self._pending["episodes"].append(episode_row(record, self.root))
            self.written.add(record.id)
        elif isinstance(record, Preference):
            self._add_once("preferences", preference_row(record))
        else:
            self._add_once("problems", problem_row(record))
        if self._is_time():
            self.commit()

    def commit(self) -> int:
        """Write pending records; return the number of episodes in the dataset."""
        if any(self._pending.values()):
            tables = {name: pa.Table.from_pylist(rows, SCHEMAS[name]) for name, rows in self._pending.items()}
            self._parts.commit(tables)
            self._pending = {name: [] for name in SCHEMAS}
        self._last_commit = time.monotonic()
        return self._parts.manifest.rows("episodes")

    def _add_once(self, table: str, row: dict[str, Any]) -> None:
        key = tuple(row.values())
        if key not in self._known:
            self._known.add(key)
            self._pending[table].append(row)

    def _is_time(self) -> bool:
        many = sum(map(len, self._pending.values())) >= COMMIT_ROWS
        return many or time.monotonic() - self._last_commit > COMMIT_SECONDS


def _check_columns(where: Mapping[str, Any]) -> None:
    for name in where:
        if name not in FILTER_COLUMNS:
            raise UnknownName("column to filter by", name, FILTER_COLUMNS)


def episode_row(episode: Episode, root: Path) -> dict[str, Any]:
    """Turn an episode into a row; paths below `root` become relative."""
    return {
        **flat_columns(episode),
        "tags": list(episode.origin.tags.items()),
        "fingerprint": episode.fingerprint(),
        "views": [_view_row(camera, frames, root) for camera, frames in episode.views.items()],
        "outcomes": [_outcome_row(outcome) for outcome in episode.outcomes],
        "edits": [
            {"name": edit.name, "params": json.dumps(dict(edit.params), sort_keys=True), "seed": edit.seed}
            for edit in episode.edits
        ],
        "signals": [_signal_row(name, values) for name, values in episode.signals.items()],
    }


def flat_columns(episode: Episode) -> dict[str, Any]:
    """The columns of an episode that are plain values: what can be counted and filtered."""
    outcome = episode.outcome
    times = episode.main.times()
    return {
        "id": episode.id,
        "instruction": episode.instruction,
        **{name: getattr(episode.origin, name) for name in ORIGIN_COLUMNS},
        "cameras": list(episode.views),
        "frames": len(episode),
        "seconds": float(times[-1]) if len(times) else 0.0,
        "success": outcome and outcome.success,
        "progress": outcome and outcome.progress,
        "grade": outcome and outcome.grade,
        "vouched_by": outcome and outcome.source,
        "has_curve": any(label.curve is not None for label in episode.outcomes),
    }


def row_episode(row: Mapping[str, Any], root: Path, signals: Mapping[str, npt.NDArray[Any]]) -> Episode:
    """Turn a row into an episode."""
    origin = Origin(**{name: row[name] for name in ORIGIN_COLUMNS}, tags=dict(row["tags"]))
    return Episode(
        id=row["id"],
        instruction=row["instruction"],
        views={view["camera"]: _row_view(view, root) for view in row["views"]},
        outcomes=tuple(_row_outcome(label) for label in row["outcomes"]),
        origin=origin,
        signals=signals,
        edits=tuple(Edit(edit["name"], json.loads(edit["params"]), edit["seed"]) for edit in row["edits"]),
    )


def preference_row(preference: Preference) -> dict[str, Any]:
    """Turn a preference into a row."""
    return {name: getattr(preference, name) for name in PREFERENCES.names}


def problem_row(problem: Problem) -> dict[str, Any]:
    """Turn a problem into a row."""
    return {name: getattr(problem, name) for name in PROBLEMS.names}


@dataclass(frozen=True)
class StoredSignals(Mapping[str, npt.NDArray[Any]]):
    """The signals of an episode, read on access."""

    path: str
    row: int

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Read one signal."""
        for signal in self._rows():
            if signal["name"] == name:
                values = np.frombuffer(signal["data"], dtype=np.dtype(signal["dtype"]))
                return values.reshape(signal["shape"])
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (signal["name"] for signal in self._rows())

    def __len__(self) -> int:
        return len(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        return _signals_of(self.path, self.row)


@lru_cache(maxsize=16)
def _signals_of(path: str, row: int) -> list[dict[str, Any]]:
    try:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if row < rows:
                    column = file.read_row_group(group, columns=["signals"]).column(0)
                    return list(column.slice(row, 1).to_pylist()[0])
                row -= rows
    except (OSError, pa.ArrowException) as error:
        raise StoreError(path, f"its signals cannot be read ({error})") from error
    raise StoreError(path, f"it has no row {row}")


def _view_row(camera: str, frames: Frames, root: Path) -> dict[str, Any]:
    path, fields = _address(frames.source, root)
    return {"camera": camera, "kind": frames.source.kind, "path": path, "fields": fields, "indices": frames.indices}


def _address(source: FrameSource, root: Path) -> tuple[str, str]:
    fields = source.describe()
    path = Path(fields.pop("path"))
    address = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    return address, json.dumps({name: value for name, value in fields.items() if value is not None})


def _row_view(view: Mapping[str, Any], root: Path) -> Frames:
    source = frame_source(view["kind"], {"path": str(root / view["path"]), **json.loads(view["fields"])})
    indices = view["indices"]
    return Frames(source, None if indices is None else np.asarray(indices, dtype=np.int32))


def _outcome_row(outcome: Outcome) -> dict[str, Any]:
    row = {name: getattr(outcome, name) for name in ("source", "by", "success", "progress", "grade", "note", "curve")}
    row["events"] = [vars(event) for event in outcome.events]
    return row


def _row_outcome(row: Mapping[str, Any]) -> Outcome:
    curve = row["curve"]
    events = tuple(Event(**event) for event in row["events"])
    known = {**row, "events": events, "curve": None if curve is None else np.asarray(curve, dtype=np.float32)}
    return Outcome(**known)


def _signal_row(name: str, values: npt.NDArray[Any]) -> dict[str, Any]:
    contiguous = np.ascontiguousarray(values)
    return {
        "name": name,
        "dtype": contiguous.dtype.str,
        "shape": list(contiguous.shape),
        "data": contiguous.tobytes(),
    }
