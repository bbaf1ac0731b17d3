"""What LeRobot metadata says about each episode: lines of JSON in v2, rows of parquet in v3."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from demerit.data.dataset import Problem
from demerit.data.formats.lerobot.info import Info, whole

METADATA_BATCH = 512
PARQUET_ERRORS = (OSError, pa.ArrowException)


@dataclass(frozen=True)
class Clip:
    """Where one camera's video of one episode is."""

    path: str
    """relative to the dataset's root, as the metadata says"""
    start: float | None = None
    stop: float | None = None


@dataclass(frozen=True)
class Entry:
    """One episode according to the metadata. None means that it does not say."""

    index: int
    tasks: tuple[str, ...]
    length: int | None
    data: str
    """the data file, relative to the dataset's root, as the metadata says"""
    clips: Mapping[str, Clip]
    """feature key to video"""
    labels: Mapping[str, Any] = field(default_factory=dict)
    """episode-level columns that speak about the outcome"""


def entries(info: Info, labels: Sequence[str]) -> Iterator[Entry | Problem]:
    """Stream the episodes' metadata in the dataset's order."""
    return _rows_of_parquet(info, labels) if info.version == "v3.0" else _lines_of_json(info, labels)


def read_tasks(info: Info) -> tuple[dict[int, str], list[Problem]]:
    """Read task index to text, with what went wrong on the way."""
    return _tasks_parquet(info) if info.version == "v3.0" else _tasks_json(info)


def episode_columns(info: Info) -> list[str]:
    """List the episode-level columns, from the first line or file."""
    if info.version == "v3.0":
        for path in _metadata_files(info):
            try:
                return [str(name) for name in pq.read_schema(path).names]
            except PARQUET_ERRORS:
                continue
        return []
    records = (record for _, record in json_lines(info.root / "meta/episodes.jsonl") if isinstance(record, dict))
    return list(next(records, {}))


def json_lines(path: Path) -> Iterator[tuple[int, object]]:
    """Stream (line number, value); a line that is not JSON gives the error itself. Empty lines are skipped."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as broken:
                yield number, broken


def _lines_of_json(info: Info, labels: Sequence[str]) -> Iterator[Entry | Problem]:
    for number, record in json_lines(info.root / "meta/episodes.jsonl"):
        index = whole(record.get("episode_index")) if isinstance(record, dict) else None
        if not isinstance(record, dict) or index is None or index < 0:
            why = str(record) if isinstance(record, Exception) else "it names no episode_index"
            yield Problem("malformed metadata", f"meta/episodes.jsonl line {number}", why, kept=False)
            continue
        fields = {"episode_chunk": index // info.chunks_size, "episode_index": index}
        keys = [key for key in info.cameras().values() if info.is_video(key) and info.video_path]
        yield Entry(
            index=index,
            tasks=_texts(record.get("tasks")),
            length=whole(record.get("length")),
            data=info.data_path.format(**fields, video_key=""),
            clips={key: Clip(info.video_path.format(**fields, video_key=key)) for key in keys},
            labels={name: record[name] for name in labels if record.get(name) is not None},
        )


def _rows_of_parquet(info: Info, labels: Sequence[str]) -> Iterator[Entry | Problem]:
    for path in _metadata_files(info):
        where = path.relative_to(info.root).as_posix()
        try:
            with pq.ParquetFile(path) as file:
                # Real files have a hundred stats/* columns: name what is needed.
                wanted = [name for name in _needed(info, labels) if name in set(file.schema_arrow.names)]
                for batch in file.iter_batches(batch_size=METADATA_BATCH, columns=wanted):
                    for row in batch.select(wanted).to_pylist():
                        yield _entry(info, labels, row, where)
        except PARQUET_ERRORS as broken:
            yield Problem("unreadable metadata", where, first_line(broken), kept=False)


def _needed(info: Info, labels: Sequence[str]) -> list[str]:
    keys = [key for key in info.cameras().values() if info.is_video(key)]
    parts = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
    videos = [f"videos/{key}/{part}" for key in keys for part in parts]
    return ["episode_index", "tasks", "length", "data/chunk_index", "data/file_index", *videos, *labels]


def _entry(info: Info, labels: Sequence[str], row: Mapping[str, Any], where: str) -> Entry | Problem:
    index = whole(row.get("episode_index"))
    chunk, file = whole(row.get("data/chunk_index")), whole(row.get("data/file_index"))
    if index is None or index < 0 or chunk is None or file is None:
        why = f"a row needs episode_index, data/chunk_index and data/file_index, this one has {index}, {chunk}, {file}"
        return Problem("malformed metadata", where, why, kept=False)
    clips = {}
    for key in info.cameras().values():
        place = {part: whole(row.get(f"videos/{key}/{part}")) for part in ("chunk_index", "file_index")}
        start, stop = (row.get(f"videos/{key}/{end}_timestamp") for end in ("from", "to"))
        # Without both ends the clip would silently be the videos of other episodes as well.
        is_placed = None not in place.values() and _is_moment(start) and _is_moment(stop)
        if info.is_video(key) and info.video_path and is_placed:
            clips[key] = Clip(info.video_path.format(**place, video_key=key), start, stop)
    return Entry(
        index=index,
        tasks=_texts(row.get("tasks")),
        length=whole(row.get("length")),
        data=info.data_path.format(chunk_index=chunk, file_index=file, video_key=""),
        clips=clips,
        labels={name: row[name] for name in labels if row.get(name) is not None},
    )


def _is_moment(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _metadata_files(info: Info) -> list[Path]:
    found = (info.root / "meta/episodes").glob("*/*.parquet")
    return sorted(found, key=lambda path: [int(number) for number in re.findall(r"\d+", "/".join(path.parts[-2:]))])


def _tasks_json(info: Info) -> tuple[dict[int, str], list[Problem]]:
    tasks: dict[int, str] = {}
    problems: list[Problem] = []
    try:
        for number, record in json_lines(info.root / "meta/tasks.jsonl"):
            index = whole(record.get("task_index")) if isinstance(record, dict) else None
            if isinstance(record, dict) and index is not None and isinstance(record.get("task"), str):
                tasks[index] = record["task"]
                continue
            why = str(record) if isinstance(record, Exception) else "it needs a task_index and a task"
            problems.append(Problem("malformed metadata", f"meta/tasks.jsonl line {number}", why, kept=True))
    except OSError as broken:
        problems.append(Problem("missing tasks", "meta/tasks.jsonl", first_line(broken), kept=True))
    return tasks, problems


def _tasks_parquet(info: Info) -> tuple[dict[int, str], list[Problem]]:
    where = "meta/tasks.parquet"
    try:
        table = pq.read_table(info.root / where)
    except PARQUET_ERRORS as broken:
        kind = "unreadable tasks" if (info.root / where).is_file() else "missing tasks"
        return {}, [Problem(kind, where, first_line(broken), kept=True)]
    text = _text_column(table.schema)
    if text is None or "task_index" not in table.column_names:
        why = f"expected task_index and a column of texts, got {', '.join(table.column_names)}"
        return {}, [Problem("unreadable tasks", where, why, kept=True)]
    pairs = zip(table["task_index"].to_pylist(), table[text].to_pylist(), strict=True)
    return {index: task for index, task in pairs if index is not None and task is not None}, []


def _text_column(schema: Any) -> str | None:
    """The texts are the index of a pandas frame, and what that is called depends on who wrote it."""
    try:
        named = json.loads((schema.metadata or {}).get(b"pandas", b"{}")).get("index_columns", [])
    except (ValueError, AttributeError):
        named = []
    texts = [f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
    likely = [*(name for name in named if isinstance(name, str)), "__index_level_0__", "task", *texts]
    return next((name for name in likely if name in texts), None)


def _texts(value: object) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    stripped = [text.strip() for text in values if isinstance(text, str)]
    return tuple(dict.fromkeys(text for text in stripped if text))


def first_line(broken: BaseException) -> str:
    """Shorten an error of the parquet library to what fits into a sentence."""
    lines = str(broken).splitlines()
    return (lines[0] if lines else type(broken).__name__).rstrip(".")
