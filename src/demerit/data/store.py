"""The dataset folder: a manifest (`dataset.json`), the parquet parts it lists, and `Store`, which reads and appends.

A commit writes new parts, syncs them, then replaces the manifest with one rename. A reader sees the state before or
after a commit; a crash leaves at most files that no manifest lists, and the next writer removes them.
"""

from __future__ import annotations

import json
import operator
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from demerit.data.dataset import Problem, Record
from demerit.data.episode import Edit, Episode, Origin
from demerit.data.files import atomic_file, check_free, lock_folder, make_folder, path_inside, write_json
from demerit.data.frames import Frames, FrameSource, frame_source, short_hash
from demerit.data.labels import Event, Outcome, Preference, most_trusted
from demerit.errors import BadEpisode, StoreError, UnknownName

FORMAT_VERSION = 1
ROW = "row in its group"
ROWS_PER_GROUP = 2048
MOST_ROWS = 2**40
PART_FILE = re.compile(r"[a-z_]+/part-\d{6,9}\.parquet")
# Parts smaller than this are merged when a writer closes; larger ones are never rewritten.
FULL_PART_ROWS = 50_000
MOST_SMALL_PARTS = 8


@dataclass(frozen=True)
class TablePart:
    """One parquet file."""

    file: str
    """relative to the folder"""
    rows: int


@dataclass(frozen=True)
class Manifest:
    """The contents of a folder."""

    header: Mapping[str, Any]
    """facts about the folder: name, licence, model card ..."""
    tables: Mapping[str, tuple[TablePart, ...]] = field(default_factory=dict)

    def rows(self, table: str) -> int:
        """The number of rows of a table."""
        return sum(part.rows for part in self.tables.get(table, ()))


def read_manifest(path: Path, format_name: str) -> Manifest:
    """Read and check a manifest."""
    try:
        facts = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise StoreError(path.parent, f"it has no {path.name}, so it is not a {format_name} folder") from None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(path, f"it cannot be read ({error})") from error
    if not isinstance(facts, dict) or facts.get("format") != format_name:
        raise StoreError(path, f"it is not a {format_name} manifest")
    version = facts.get("version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise StoreError(
            path, f"its format is {version}, and this demerit reads up to {FORMAT_VERSION}: upgrade demerit"
        )
    try:
        tables = {
            name: tuple(_read_part(path, name, **part) for part in parts) for name, parts in facts["tables"].items()
        }
        return Manifest({**facts["header"]}, tables)
    except (KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            path, f"it is damaged: expected a header and tables of parts (file, rows), {error!r}"
        ) from None


def _read_part(manifest: Path, table: str, file: str, rows: int) -> TablePart:
    """Check a part: a file of its table's folder. A downloaded manifest must not name other files."""
    is_named = PART_FILE.fullmatch(file) and file.startswith(f"{table}/")
    if not is_named or path_inside(manifest.parent, file) is None:
        raise StoreError(manifest, f"expected parts such as {table}/part-000000.parquet in this folder, got {file!r}")
    if not 0 <= operator.index(rows) < MOST_ROWS:
        raise StoreError(manifest, f"it is damaged: {file} cannot have {rows} rows")
    return TablePart(file, rows)


def write_manifest(path: Path, format_name: str, manifest: Manifest) -> None:
    """Replace the manifest atomically."""
    facts = {
        "format": format_name,
        "version": FORMAT_VERSION,
        "header": dict(manifest.header),
        "rows": {name: manifest.rows(name) for name in manifest.tables},
        "tables": {name: [vars(part) for part in parts] for name, parts in manifest.tables.items()},
    }
    write_json(path, facts)


class PartWriter:
    """Adds parts to a folder's tables. The caller holds the folder's lock."""

    def __init__(self, manifest_path: Path, format_name: str, manifest: Manifest) -> None:
        self.path, self.format_name, self.manifest = manifest_path, format_name, manifest
        self.root = manifest_path.parent
        self._remove_orphans()

    def commit(self, tables: Mapping[str, pa.Table], header: Mapping[str, Any] | None = None) -> None:
        """Add the tables' rows; durable once this returns."""
        added = {name: self._write_part(name, [table]) for name, table in tables.items() if table.num_rows}
        new = {name: (*self.manifest.tables.get(name, ()), part) for name, part in added.items()}
        self._replace(new, header)

    def update(
        self, table: str, key: str, rows: Mapping[str, Mapping[str, Any]], tables: Mapping[str, pa.Table]
    ) -> None:
        """Change columns of some rows of `table`, found by their `key`, and replace other tables, in one commit."""
        parts: dict[str, tuple[TablePart, ...]] = {
            name: (self._write_part(name, [new]),) if new.num_rows else () for name, new in tables.items()
        }
        if rows:
            parts[table] = tuple(self._update_part(table, part, key, rows) for part in self.manifest.tables[table])
        self._replace(parts, None)
        self._remove_orphans()

    def compact(self) -> None:
        """Merge adjacent small parts if there are many."""
        merged: dict[str, tuple[TablePart, ...]] = {}
        for name, parts in self.manifest.tables.items():
            if sum(part.rows < FULL_PART_ROWS for part in parts) > MOST_SMALL_PARTS:
                merged[name] = tuple(self._merge(name, group) for group in _groups(parts))
        if merged:
            self._replace(merged, None)
            self._remove_orphans()

    def _replace(self, tables: Mapping[str, tuple[TablePart, ...]], header: Mapping[str, Any] | None) -> None:
        manifest = replace(
            self.manifest,
            header=self.manifest.header if header is None else header,
            tables={**self.manifest.tables, **tables},
        )
        write_manifest(self.path, self.format_name, manifest)
        self.manifest = manifest

    def _merge(self, name: str, group: Sequence[TablePart]) -> TablePart:
        if len(group) == 1:
            return group[0]
        return self._write_part(name, (table for part in group for table in read_batches(self.root, part, None)))

    def _update_part(self, name: str, part: TablePart, key: str, rows: Mapping[str, Mapping[str, Any]]) -> TablePart:
        keys = chain.from_iterable(table.column(key).to_pylist() for table in read_batches(self.root, part, [key]))
        if rows.keys().isdisjoint(keys):
            return part
        return self._write_part(name, (_update_rows(table, key, rows) for table in read_batches(self.root, part, None)))

    def _write_part(self, name: str, tables: Sequence[pa.Table] | Iterator[pa.Table]) -> TablePart:
        folder = make_folder(self.root / name)
        numbers = [int(path.stem.rpartition("-")[2]) for path in folder.glob("part-*.parquet")]
        final = folder / f"part-{max(numbers, default=-1) + 1:06d}.parquet"
        with atomic_file(final) as partial:
            rows = _write_parquet(partial, tables)
        return TablePart(f"{name}/{final.name}", rows)

    def _remove_orphans(self) -> None:
        """Remove unlisted parts and half-written files. Safe under the lock."""
        listed = {part.file for parts in self.manifest.tables.values() for part in parts}
        for path in self.root.glob("*/part-*.parquet"):
            if f"{path.parent.name}/{path.name}" not in listed:
                path.unlink(missing_ok=True)
        for path in [*self.root.glob(".*.part"), *self.root.glob("*/.*.part")]:
            path.unlink(missing_ok=True)


def _write_parquet(path: Path, tables: Sequence[pa.Table] | Iterator[pa.Table]) -> int:
    rows = 0
    writer: pq.ParquetWriter | None = None
    with open(path, "wb") as file:
        for table in tables:
            writer = writer or pq.ParquetWriter(file, table.schema, compression="zstd")
            writer.write_table(table, row_group_size=ROWS_PER_GROUP)
            rows += table.num_rows
        if writer is not None:
            writer.close()
    return rows


def _update_rows(table: pa.Table, key: str, rows: Mapping[str, Mapping[str, Any]]) -> pa.Table:
    new = {place: rows[value] for place, value in enumerate(table.column(key).to_pylist()) if value in rows}
    for name in dict.fromkeys(chain.from_iterable(new.values())):
        values = table.column(name).to_pylist()
        for place, cells in new.items():
            values[place] = cells.get(name, values[place])
        column = table.schema.get_field_index(name)
        table = table.set_column(column, table.schema.field(column), pa.array(values, table.schema.field(column).type))
    return table


def read_batches(root: Path, part: TablePart, columns: Sequence[str] | None) -> Iterator[pa.Table]:
    """Stream a part in row groups."""
    with _readable(root / part.file) as file:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, columns=columns, use_threads=False)


def read_matching(
    root: Path, part: TablePart, columns: Sequence[str], where: Mapping[str, Any]
) -> Iterator[tuple[int, pa.Table]]:
    """Stream a part's matching rows as (number of the row group's first row, matches numbered in column ROW).

    Only row groups with a match are read in full.
    """
    first_row = 0
    with _readable(root / part.file) as file:
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            kept = np.arange(count)
            if where:
                kept = match_rows(file.read_row_group(group, columns=list(where), use_threads=False), where)
            if len(kept):
                table = file.read_row_group(group, columns=columns, use_threads=False)
                table = table if len(kept) == count else table.take(kept)
                yield first_row, table.append_column(ROW, pa.array(kept))
            first_row += count


def match_rows(table: pa.Table, where: Mapping[str, Any]) -> npt.NDArray[np.int64]:
    """Row numbers, increasing, whose columns equal the given values; None matches null."""
    mask = np.ones(table.num_rows, dtype=bool)
    for name, wanted in where.items():
        column = table.column(name)
        is_equal = pc.is_null(column) if wanted is None else pc.fill_null(pc.equal(column, wanted), False)
        mask &= np.asarray(is_equal)
    return np.flatnonzero(mask)


@contextmanager
def _readable(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except FileNotFoundError:
        raise StoreError(path, "the manifest lists this file and it is gone: reopen the folder or restore it") from None
    except (OSError, pa.ArrowException) as error:
        raise StoreError(path, f"it is damaged ({error})") from error


def _groups(parts: Sequence[TablePart]) -> Iterator[list[TablePart]]:
    """Group adjacent parts up to a full part, in order."""
    group: list[TablePart] = []
    for part in parts:
        if group and sum(p.rows for p in group) + part.rows > FULL_PART_ROWS:
            yield group
            group = []
        group.append(part)
    if group:
        yield group


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
        for part in self.manifest.tables.get("episodes", ()):
            for first_row, table in read_matching(self.root, part, LIGHT_COLUMNS, where):
                for row in table.to_pylist():
                    place = first_row + row.pop(ROW)
                    yield self._episode(part, place, row)

    def ids(self, where: Mapping[str, Any] | None = None) -> list[str]:
        """List the ids of matching episodes. Reads only the needed columns."""
        where = where or {}
        _check_columns(where)
        found: list[str] = []
        for table in self.batches("episodes", ["id", *(name for name in where if name != "id")]):
            found += table.column("id").take(match_rows(table, where)).to_pylist()
        return found

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Read flat columns of all episodes."""
        schema = pa.schema([EPISODES.field(name) for name in names])
        try:
            return pa.concat_tables([schema.empty_table(), *self.batches("episodes", list(names))])
        except pa.ArrowException as error:
            raise StoreError(self.root, f"its episodes have other columns ({str(error).splitlines()[0]})") from None

    def episode(self, id: str) -> Episode:
        """Find an episode by id."""
        for found in self.episodes({"id": id}):
            return found
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

    def relabel(self, labels: Mapping[str, Sequence[Outcome]]) -> None:
        """Replace the labels of episodes, by id, in one commit. A later import keeps those that are new."""
        for id in labels:
            if id not in self.written:
                raise BadEpisode(id, "an id that is in the dataset", "one that is not")
        self.commit()
        store, columns = Store(self.root), {id: label_columns(outcomes) for id, outcomes in labels.items()}
        new = {label_hash(id, label) for id, cells in columns.items() for label in cells["outcomes"]}
        for table in store.batches("episodes", ["id", "outcomes"]):
            for row in table.to_pylist():
                new -= {label_hash(row["id"], label) for label in row["outcomes"]}
        self.update(columns, given=[{"label": label} for label in sorted(store.given() | new)])

    def update(self, episodes: Mapping[str, Mapping[str, Any]], **tables: Sequence[Mapping[str, Any]]) -> None:
        """Change columns of episodes, by id, and replace whole tables, in one commit."""
        self.commit()
        if not self.dry_run:
            new = {name: pa.Table.from_pylist(list(rows), SCHEMAS[name]) for name, rows in tables.items()}
            self._parts.update("episodes", "id", episodes, new)

    def commit(self) -> int:
        """Write pending records; return the number of episodes in the dataset."""
        if self.dry_run:
            return len(self.written)
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
        **label_columns(episode.outcomes),
        "tags": list(episode.origin.tags.items()),
        "fingerprint": episode.fingerprint(),
        "views": [_view_row(camera, frames, root) for camera, frames in episode.views.items()],
        "edits": [
            {"name": edit.name, "params": json.dumps(dict(edit.params), sort_keys=True), "seed": edit.seed}
            for edit in episode.edits
        ],
        "signals": [_signal_row(name, values) for name, values in episode.signals.items()],
    }


def label_columns(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The columns of an episode that hold its labels."""
    return {**flat_labels(outcomes), "outcomes": [outcome_row(outcome) for outcome in outcomes]}


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
        **flat_labels(episode.outcomes),
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
    with _readable(Path(path)) as file:
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
    return row


def label_hash(id: str, row: Mapping[str, Any]) -> str:
    """Hash the row of an outcome of an episode."""
    curve = row["curve"]
    plain = {**row, "curve": None if curve is None else np.asarray(curve, dtype=np.float32).tolist()}
    return short_hash(json.dumps([id, plain], sort_keys=True).encode())


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
