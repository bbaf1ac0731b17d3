"""The dataset folder: its tables, and `Store`, which reads and appends."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from demerit.data.dataset import Problem, Record
from demerit.data.episode import (
    Check,
    Edit,
    Episode,
    Event,
    Origin,
    Outcome,
    Preference,
    choose_labels,
    most_trusted,
    read_check,
)
from demerit.data.files import check_free, lock_folder, make_folder
from demerit.data.frames import Frames, FrameSource, frame_source, short_hash
from demerit.data.parts import (
    ROW,
    Manifest,
    PartWriter,
    TablePart,
    match_rows,
    open_part,
    read_batches,
    read_manifest,
    read_matching,
    write_manifest,
)
from demerit.data.stages import StageSpan
from demerit.errors import BadEpisode, StoreError, UnknownName

ORIGIN_COLUMNS = ("dataset", "revision", "licence", "embodiment", "site", "split", "group", "parent")
_TEXT, _INT, _REAL, _FLAG = pa.string(), pa.int32(), pa.float64(), pa.bool_()
_EVENT = pa.struct({"kind": _TEXT, "first": _INT, "last": _INT, "note": _TEXT})
_OUTCOME = pa.struct(
    {"source": _TEXT, "by": _TEXT, "success": _FLAG, "progress": _REAL, "grade": pa.int8()}
    | {"curve": pa.list_(pa.float32()), "events": pa.list_(_EVENT), "note": _TEXT}
)
_STAGE = pa.struct({"name": _TEXT, "first": _INT, "last": _INT, "start": _REAL, "stop": _REAL})
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
STAGED = EPISODES.set(
    EPISODES.get_field_index("outcomes"),
    pa.field("outcomes", pa.list_(pa.struct([*_OUTCOME, pa.field("stages", pa.list_(_STAGE))]))),
)
"""of the parts with a label that has stages; earlier versions cannot read those"""
# Signals are by far the largest column; they are read on first access.
LIGHT_COLUMNS = [name for name in EPISODES.names if name != "signals"]
FILTER_COLUMNS = ("id", "instruction", *ORIGIN_COLUMNS, "success", "grade", "vouched_by")

PREFERENCES = pa.schema([(name, pa.string()) for name in ("a", "b", "verdict", "source", "why", "by")])
PROBLEMS = pa.schema({"kind": _TEXT, "episode": _TEXT, "detail": _TEXT, "kept": _FLAG, "episodes": _INT})
GIVEN = pa.schema({"label": _TEXT})
"""hashes of the outcomes that were given with `relabel`; an import keeps them"""
FORMAT_NAME = "demerit-dataset"
MANIFEST = "dataset.json"
SCHEMAS = {"episodes": EPISODES, "preferences": PREFERENCES, "problems": PROBLEMS, "given": GIVEN}
COMMIT_ROWS = 5_000
COMMIT_SECONDS = 2.0


class Store:
    """A dataset folder, as of when it was opened. Satisfies `DatasetReader`."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).resolve()
        self.manifest = read_manifest(self.root / MANIFEST, FORMAT_NAME)
        if not isinstance(self.manifest.header.get("name"), str):
            raise StoreError(self.root / MANIFEST, "it is damaged: its header has no name")

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
        count = 0
        try:
            for part in self.manifest.tables.get("episodes", ()):
                for first_row, table in read_matching(self.root, part, LIGHT_COLUMNS, where):
                    for row in table.to_pylist():
                        place = first_row + row.pop(ROW)
                        yield self._episode(part, place, row)
                        count += 1
        except StoreError:
            newest = read_manifest(self.root / MANIFEST, FORMAT_NAME)
            if count or newest == self.manifest:
                raise
            self.manifest = newest  # new labels replaced the parts between opening and reading
            yield from self.episodes(where)

    def ids(self, where: Mapping[str, Any] | None = None) -> list[str]:
        """List the ids of matching episodes. Reads only the needed columns."""
        where = where or {}
        _check_columns(where)
        ids: list[str] = []
        for table in self.batches("episodes", ["id", *(name for name in where if name != "id")]):
            ids += table.column("id").take(match_rows(table, where)).to_pylist()
        return ids

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Read flat columns of all episodes."""
        schema = pa.schema([EPISODES.field(name) for name in names])
        try:
            return pa.concat_tables([schema.empty_table(), *self.batches("episodes", list(names))])
        except pa.ArrowException as error:
            raise StoreError(self.root, f"its episodes have other columns ({str(error).splitlines()[0]})") from None

    def episode(self, id: str) -> Episode:
        """Find an episode by id."""
        for episode in self.episodes({"id": id}):
            return episode
        raise BadEpisode(id, f"an id of dataset {self.name!r}", "an id that is not in it")

    def episode_at(self, index: int) -> Episode:
        """Find an episode by its place, from 0."""
        place = index
        for part in self.manifest.tables.get("episodes", ()):
            if place < part.rows:
                row = _read_row(str(self.root / part.file), place, tuple(LIGHT_COLUMNS))
                return self._episode(part, place, row)
            place -= part.rows
        raise StoreError(self.root, f"it has no episode {index}")

    def preferences(self) -> Iterator[Preference]:
        """Stream preferences."""
        for table in self.batches("preferences", None):
            yield from (Preference(**row) for row in table.to_pylist())

    def problems(self) -> Iterator[Problem]:
        """Stream the problems found when the data was imported."""
        for table in self.batches("problems", None):
            yield from (Problem(**row) for row in table.to_pylist())

    def given(self) -> set[str]:
        """Read the hashes of the outcomes that were given with `relabel`."""
        return {label for table in self.batches("given", None) for label in table.column("label").to_pylist()}

    def writer(self) -> StoreWriter:
        """Open the dataset for appending: `with store.writer() as writer: writer.add(episode)`."""
        return StoreWriter(self.root)

    def _episode(self, part: TablePart, place: int, row: Mapping[str, Any]) -> Episode:
        path = str(self.root / part.file)
        try:
            return row_episode(row, self.root, StoredSignals(path, place))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise StoreError(path, f"row {place} is damaged ({error!r})") from error

    def batches(self, table: str, columns: list[str] | None) -> Iterator[pa.Table]:
        """Stream the rows of a table, only the given columns."""
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
    """Appends records; durable once `commit` returns. One writer at a time. A dry run writes nothing."""

    def __init__(self, root: Path, dry_run: bool = False) -> None:
        self.root, self.dry_run = root, dry_run
        self._stack = ExitStack()
        self._pending: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
        self._last_commit = time.monotonic()
        self.written: set[str] = set()

    def __enter__(self) -> StoreWriter:
        if self.dry_run and not Store.is_at(self.root):
            return self
        if not self.dry_run:
            self._stack.enter_context(lock_folder(self.root))
        try:
            store = Store(self.root)  # opened under the lock: another writer may just have finished
            if not self.dry_run:
                self._parts = PartWriter(self.root / MANIFEST, FORMAT_NAME, store.manifest, SCHEMAS)
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
            if kind is None and not self.dry_run:
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

    def relabel(
        self,
        labels: Mapping[str, Sequence[Outcome]],
        tags: Mapping[str, Mapping[str, str]] | None = None,
        **tables: Sequence[Mapping[str, Any]],
    ) -> None:
        """Replace the labels of episodes, by id, perhaps their tags, and whole tables, in one commit.

        A later import keeps the labels that are new, and what people said of them.
        """
        for id in labels:
            if id not in self.written:
                raise BadEpisode(id, "an id that is in the dataset", "one that is not")
        self.commit()
        store, tags, columns = Store(self.root), tags or {}, dict[str, dict[str, Any]]()
        for table in store.batches("episodes", ["id", "tags"]):
            for row in table.to_pylist():
                if (id := row["id"]) in labels:
                    own = tags.get(id, dict(row["tags"]))
                    columns[id] = {**label_columns(labels[id], read_check(own)), "tags": list(own.items())}
        new = {label_hash(id, label) for id, cells in columns.items() for label in cells["outcomes"]}
        for table in store.batches("episodes", ["id", "outcomes"]):
            for row in table.to_pylist():
                new -= {label_hash(row["id"], label) for label in row["outcomes"]}
        self.update(columns, given=[{"label": label} for label in sorted(store.given() | new)], **tables)

    def update(self, episodes: Mapping[str, Mapping[str, Any]], **tables: Sequence[Mapping[str, Any]]) -> None:
        """Change columns of episodes, by id, and replace whole tables, in one commit."""
        self.commit()
        if not self.dry_run:
            new = {name: pa.Table.from_pylist(list(rows), SCHEMAS[name]) for name, rows in tables.items()}
            self._parts.update("episodes", "id", episodes, new, _schema("episodes", episodes.values()))

    def commit(self) -> int:
        """Write pending records; return the number of episodes in the dataset."""
        if self.dry_run:
            return len(self.written)
        if any(self._pending.values()):
            tables = {name: pa.Table.from_pylist(rows, _schema(name, rows)) for name, rows in self._pending.items()}
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


def _schema(table: str, rows: Iterable[Mapping[str, Any]]) -> pa.Schema:
    has_stages = any("stages" in label for row in rows for label in row.get("outcomes", ()))
    return STAGED if has_stages else SCHEMAS[table]


def _check_columns(where: Mapping[str, Any]) -> None:
    for name in where:
        if name not in FILTER_COLUMNS:
            raise UnknownName("column to filter by", name, FILTER_COLUMNS)


def episode_row(episode: Episode, root: Path) -> dict[str, Any]:
    """Turn an episode into a row; paths below `root` become relative."""
    return {
        **flat_columns(episode),
        **label_columns(episode.outcomes, episode.check),
        "tags": list(episode.origin.tags.items()),
        "fingerprint": episode.fingerprint(),
        "views": [_view_row(camera, frames, root) for camera, frames in episode.views.items()],
        "edits": [
            {"name": edit.name, "params": json.dumps(dict(edit.params), sort_keys=True), "seed": edit.seed}
            for edit in episode.edits
        ],
        "signals": [_signal_row(name, values) for name, values in episode.signals.items()],
    }


def label_columns(outcomes: Sequence[Outcome], check: Check) -> dict[str, Any]:
    """The columns of an episode that hold its labels."""
    return {**flat_labels(choose_labels(outcomes, check)), "outcomes": [outcome_row(outcome) for outcome in outcomes]}


def flat_labels(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The columns of an episode that hold its most trusted label as plain values."""
    best = most_trusted(outcomes)
    return {
        "success": best and best.success,
        "progress": best and best.progress,
        "grade": best and best.grade,
        "vouched_by": best and best.source,
        "has_curve": any(label.curve is not None for label in outcomes),
    }


def flat_columns(episode: Episode) -> dict[str, Any]:
    """The columns of an episode that are plain values: what can be counted and filtered."""
    times = episode.main.times()
    return {
        "id": episode.id,
        "instruction": episode.instruction,
        **{name: getattr(episode.origin, name) for name in ORIGIN_COLUMNS},
        "cameras": list(episode.views),
        "frames": len(episode),
        "seconds": float(times[-1]) if len(times) else 0.0,
        **flat_labels(episode.labels),
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
    """Turn a problem into a row. It may quote names that cannot be written as UTF-8: they are escaped."""
    quoted = {
        name: str(getattr(problem, name)).encode("utf-8", "backslashreplace").decode() for name in ("episode", "detail")
    }
    return {name: getattr(problem, name) for name in PROBLEMS.names} | quoted


@dataclass(frozen=True)
class StoredSignals(Mapping[str, npt.NDArray[Any]]):
    """The signals of an episode, read on access."""

    path: str
    row: int

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Read one signal."""
        for signal in self._rows():
            if signal["name"] == name:
                try:
                    values = np.frombuffer(signal["data"], dtype=np.dtype(signal["dtype"]))
                    return values.reshape(signal["shape"])
                except (TypeError, ValueError) as error:
                    raise StoreError(self.path, f"signal {name!r} of row {self.row} is damaged ({error})") from None
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (signal["name"] for signal in self._rows())

    def __len__(self) -> int:
        return len(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        return list(_read_row(self.path, self.row, ("signals",))["signals"])


def _read_row(path: str, row: int, columns: tuple[str, ...]) -> dict[str, Any]:
    """Read one row; the last ones are remembered while their file stays the same."""
    try:
        state = os.stat(path)
    except OSError as error:
        raise StoreError(path, f"it cannot be read ({error.strerror})") from None
    return _read_row_once(path, row, columns, (state.st_ino, state.st_mtime_ns))


@lru_cache(maxsize=16)
def _read_row_once(path: str, row: int, columns: tuple[str, ...], _state: tuple[int, int]) -> dict[str, Any]:
    with open_part(Path(path)) as file:
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if row < rows:
                table = file.read_row_group(group, columns=list(columns), use_threads=False)
                return dict(table.slice(row, 1).to_pylist()[0])
            row -= rows
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
    address = Path(view["path"])  # absolute when the data is used in place
    if ".." in address.parts:
        raise StoreError(root, f"expected frames in this folder or at an absolute path, got {view['path']!r}")
    source = frame_source(view["kind"], {**json.loads(view["fields"]), "path": str(root / address)})
    indices = view["indices"]
    if indices and min(indices) < 0:
        raise StoreError(root, f"expected frame indices from 0, got {min(indices)}")
    return Frames(source, None if indices is None else np.asarray(indices, dtype=np.int32))


def outcome_row(outcome: Outcome) -> dict[str, Any]:
    """Turn a label into a row."""
    row = {name: getattr(outcome, name) for name in ("source", "by", "success", "progress", "grade", "note", "curve")}
    row["events"] = [vars(event) for event in outcome.events]
    return row | ({"stages": [vars(stage) for stage in outcome.stages]} if outcome.stages else {})


def label_hash(id: str, row: Mapping[str, Any]) -> str:
    """Hash the row of an outcome of an episode."""
    curve = row["curve"]
    plain = {**row, "curve": None if curve is None else np.asarray(curve, dtype=np.float32).tolist()}
    if not plain.get("stages"):
        plain.pop("stages", None)
    return short_hash(json.dumps([id, plain], sort_keys=True).encode())


def _row_outcome(row: Mapping[str, Any]) -> Outcome:
    curve = row["curve"]
    events = tuple(Event(**event) for event in row["events"])
    stages = tuple(StageSpan(**stage) for stage in row.get("stages") or ())
    fields = {
        **row,
        "events": events,
        "stages": stages,
        "curve": None if curve is None else np.asarray(curve, dtype=np.float32),
    }
    return Outcome(**fields)


def _signal_row(name: str, values: npt.NDArray[Any]) -> dict[str, Any]:
    contiguous = np.ascontiguousarray(values)
    return {
        "name": name,
        "dtype": contiguous.dtype.str,
        "shape": list(contiguous.shape),
        "data": contiguous.tobytes(),
    }
