"""Tables in a folder: a manifest and the parquet parts it lists.

A commit writes new parts, syncs them, then replaces the manifest with one rename. A reader sees the state before or
after a commit; a crash leaves at most files that no manifest lists, and the next writer removes them.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from demerit.data.arrays import Ints
from demerit.data.files import atomic_file, make_folder, path_inside, write_json
from demerit.errors import StoreError

FORMAT_VERSION = 1
ROW = "row in its group"
ROWS_PER_GROUP = 2048
MOST_ROWS = 2**40
HALF_FILE = re.compile(r"\..+\.\d+\.part")
"""what `atomic_file` names a file that is being written"""
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

    def __init__(self, manifest_path: Path, format_name: str, manifest: Manifest, tables: Iterable[str]) -> None:
        """`tables` are the names that this format can have."""
        self._known = {*tables, *manifest.tables}
        self.path, self.format_name, self.manifest = manifest_path, format_name, manifest
        self.root = manifest_path.parent
        self._remove_orphans()

    def commit(self, tables: Mapping[str, pa.Table], header: Mapping[str, Any] | None = None) -> None:
        """Add the tables' rows; durable once this returns."""
        new_parts = {name: self._write_part(name, [table]) for name, table in tables.items() if table.num_rows}
        new = {name: (*self.manifest.tables.get(name, ()), part) for name, part in new_parts.items()}
        self._replace(new, header)

    def update(
        self,
        table: str,
        key: str,
        rows: Mapping[str, Mapping[str, Any]],
        tables: Mapping[str, pa.Table],
        schema: pa.Schema,
    ) -> None:
        """Change columns of some rows of `table`, found by their `key`, and replace other tables, in one commit.

        `schema` is that of the new cells; parts with changed rows get its fields.
        """
        parts: dict[str, tuple[TablePart, ...]] = {
            name: (self._write_part(name, [new]),) if new.num_rows else () for name, new in tables.items()
        }
        if rows:
            parts[table] = tuple(
                self._update_part(table, part, key, rows, schema) for part in self.manifest.tables[table]
            )
        self._replace(parts, None)
        self._remove_orphans()

    def compact(self, most: int = MOST_SMALL_PARTS) -> None:
        """Merge adjacent small parts if there are more than `most`."""
        merged: dict[str, tuple[TablePart, ...]] = {}
        for name, parts in self.manifest.tables.items():
            if sum(part.rows < FULL_PART_ROWS for part in parts) > most:
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
        schema = _unify([read_schema(self.root / part.file) for part in group])
        tables = (_widen(table, schema) for part in group for table in read_batches(self.root, part, None))
        return self._write_part(name, tables)

    def _update_part(
        self, name: str, part: TablePart, key: str, rows: Mapping[str, Mapping[str, Any]], schema: pa.Schema
    ) -> TablePart:
        keys = chain.from_iterable(table.column(key).to_pylist() for table in read_batches(self.root, part, [key]))
        if rows.keys().isdisjoint(keys):
            return part
        own = read_schema(self.root / part.file)
        fields = pa.schema([field for field in schema if field.name in own.names])
        tables = (_widen(table, _unify([own, fields])) for table in read_batches(self.root, part, None))
        return self._write_part(name, (_update_rows(table, key, rows) for table in tables))

    def _write_part(self, name: str, tables: Sequence[pa.Table] | Iterator[pa.Table]) -> TablePart:
        folder = make_folder(self.root / name)
        numbers = [int(path.stem.rpartition("-")[2]) for path in self._find_parts(name)]
        final = folder / f"part-{max(numbers, default=-1) + 1:06d}.parquet"
        with atomic_file(final) as partial:
            rows = _write_parquet(partial, tables)
        return TablePart(f"{name}/{final.name}", rows)

    def _remove_orphans(self) -> None:
        """Remove unlisted parts and half-written files; other files are not ours. Safe under the lock."""
        files = {self.root / part.file for parts in self.manifest.tables.values() for part in parts}
        orphans = [path for name in self._known for path in self._find_parts(name) if path not in files]
        halves = chain(self.root.glob(".*.part"), self.root.glob("*/.*.part"))
        orphans += [path for path in halves if HALF_FILE.fullmatch(path.name)]
        for path in orphans:
            path.unlink(missing_ok=True)

    def _find_parts(self, table: str) -> Iterator[Path]:
        files = (self.root / table).glob("part-*.parquet")
        return (path for path in files if PART_FILE.fullmatch(f"{table}/{path.name}"))


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


def read_schema(path: Path) -> pa.Schema:
    """Read the schema of a part."""
    with open_part(path) as file:
        return file.schema_arrow


def _unify(schemas: Sequence[pa.Schema]) -> pa.Schema:
    return pa.unify_schemas(schemas, promote_options="permissive")


def _widen(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give a table the fields that it lacks, without values."""
    return (
        table
        if table.schema.equals(schema)
        else pa.concat_tables([schema.empty_table(), table], promote_options="permissive")
    )


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
    with open_part(root / part.file) as file:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, columns=columns, use_threads=False)


def read_matching(
    root: Path, part: TablePart, columns: Sequence[str], where: Mapping[str, Any]
) -> Iterator[tuple[int, pa.Table]]:
    """Stream a part's matching rows as (number of the row group's first row, matches numbered in column ROW).

    Only row groups with a match are read in full.
    """
    first_row = 0
    with open_part(root / part.file) as file:
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


def match_rows(table: pa.Table, where: Mapping[str, Any]) -> Ints:
    """Row numbers, increasing, whose columns equal the given values; None matches null."""
    mask = np.ones(table.num_rows, dtype=bool)
    for name, wanted in where.items():
        column = table.column(name)
        is_equal = pc.is_null(column) if wanted is None else pc.fill_null(pc.equal(column, wanted), False)
        mask &= np.asarray(is_equal)
    return np.flatnonzero(mask)


@contextmanager
def open_part(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a part; a missing or damaged file raises StoreError."""
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
