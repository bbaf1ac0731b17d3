"""Reading LeRobot datasets, versions 2.0, 2.1 and 3.

No video is opened while episodes are streamed. Version 3 keeps many episodes in one file: each camera is a clip of it.
"""

from __future__ import annotations

import io
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from demerit.data.arrays import Ints
from demerit.data.dataset import NO_INSTRUCTION, Problem, Record
from demerit.data.episode import Episode, Origin, safe_name
from demerit.data.files import is_file
from demerit.data.formats.lerobot.metadata import (
    FRAME_SUCCESS,
    LABEL_COLUMNS,
    LANGUAGE,
    PARQUET_ERRORS,
    STAGE_COLUMNS,
    STAGES_VOUCHED_BY,
    VERSIONS,
    LeRobotClip,
    LeRobotEntry,
    LeRobotInfo,
    episode_columns,
    first_line,
    read_card_licence,
    read_entries,
    read_info,
    read_labels,
    read_language,
    read_stage_plans,
    read_stages,
    read_tasks,
    stays_inside,
)
from demerit.data.frames import Frames, Images, Times, file_identity, short_hash
from demerit.data.stages import StagePlan
from demerit.data.video import MOST_FRAMES, VideoClip
from demerit.errors import BadInput, StoreError, UnknownName, UnreadableVideo


class LeRobotReader:
    """Streams the episodes of a LeRobot folder.

    No outcome is assumed: demonstrations without a success column come without an outcome.
    """

    def __init__(self, path: str | Path, *, outcome_key: str | None = None) -> None:
        """`outcome_key` is the success column, per frame or per episode, if it has an unusual name."""
        self.info = read_info(path)
        is_v3 = self.info.is_v3
        where = "meta/episodes" if is_v3 else "meta/episodes.jsonl"
        if not ((self.info.root / where).is_dir() if is_v3 else is_file(self.info.root / where)):
            raise BadInput(f"LeRobot dataset {self.info.root}", f"{where}, as {self.info.version} has it", "none")
        self._success_key, self._frame_key = _success_columns(self.info, outcome_key)
        signals = self.info.signals()
        self._signals = {name: key for name, key in signals.items() if key != self._frame_key}
        self._licence = read_card_licence(self.info.root)

    @property
    def name(self) -> str:
        """The folder's name."""
        return safe_name(self.info.root.resolve().name)

    def expected(self) -> int | None:
        """The number of episodes according to meta/info.json."""
        return self.info.total_episodes

    def notes(self) -> list[str]:
        """Return what the user should know."""
        is_newer = self.info.version not in VERSIONS
        return [f"meta/info.json says {self.info.version}, which is read as {VERSIONS[-1]}"] if is_newer else []

    def records(self) -> Iterator[Record]:
        """Stream episodes and problems in the order of the metadata."""
        tasks, problems = read_tasks(self.info)
        yield from problems
        for split in self.info.unread_splits:
            yield Problem("unreadable split", "meta/info.json", f"expected first:stop, got {split}", kept=True)
        plans, problems = read_stage_plans(self.info.root)
        yield from problems
        labels = list(
            dict.fromkeys(
                [*LABEL_COLUMNS, *STAGE_COLUMNS, STAGES_VOUCHED_BY, *([self._success_key] if self._success_key else [])]
            )
        )
        reading = _ReadPass(self, tasks, plans)
        count = 0
        for entry in read_entries(self.info, labels):
            if isinstance(entry, Problem):
                yield entry
            else:
                count += 1
                yield from reading.episode(entry)
        if self.info.total_episodes not in (None, count):
            detail = f"meta/info.json declares {self.info.total_episodes} episodes, the metadata lists {count}"
            yield Problem("episode count differs", self.name, detail, kept=True)


class _ReadPass:
    """One pass over the dataset."""

    def __init__(self, reader: LeRobotReader, tasks: dict[int, str], plans: dict[str, StagePlan]) -> None:
        self._reader, self._info, self._tasks, self._plans = reader, reader.info, tasks, plans
        self._name, self._cameras = reader.name, reader.info.cameras()
        self._wanted = ["task_index", *([reader._frame_key] if reader._frame_key else [])]
        # The rows of the last data files: of each, only the episode index and the wanted columns are read, once.
        self._recent: OrderedDict[Path, dict[int, EpisodeRows] | StoreError] = OrderedDict()
        # Episodes of version 3 share video files: check each file once.
        self._is_file = lru_cache(maxsize=1024)(is_file)

    def episode(self, entry: LeRobotEntry) -> Iterator[Record]:
        """Yield the problems of an episode, then the episode unless it must be skipped."""
        id = f"{self._name}/episode_{entry.index:06d}"
        outside = [path for path in (entry.data, *(c.path for c in entry.clips.values())) if not stays_inside(path)]
        if outside:
            yield Problem("path leaves the dataset", id, f"{outside[0]} is not below the dataset's folder", kept=False)
            return
        if entry.length is not None and entry.length < 1:
            yield Problem("empty episode", id, f"the metadata gives it {entry.length} frames", kept=False)
            return
        problems: list[Problem] = []
        rows = self._rows(id, entry, problems)
        views = self._views(id, entry, rows, self._length(id, entry, rows, problems), problems)
        if not views:
            details = [problem.detail for problem in problems if problem.kind in ("missing video", "missing images")]
            yield Problem("missing video", id, "; ".join(details) or "the dataset has no camera", kept=False)
            return
        record = self._make_episode(id, entry, rows, views, problems)
        yield from problems
        yield record

    def _make_episode(
        self, id: str, entry: LeRobotEntry, rows: EpisodeRows | None, views: dict[str, Frames], problems: list[Problem]
    ) -> Episode:
        tasks = entry.tasks or self._tasks_of(rows)
        if not tasks:
            problems.append(Problem(NO_INSTRUCTION, id, "neither the metadata nor the data names a task", True))
        key = self._reader._frame_key
        columns = {} if rows is None else rows.columns
        outcomes, unclear = read_labels(entry.labels, self._reader._success_key, columns.get(key or ""), key)
        length = entry.length if rows is None else rows.count
        staged, crooked = read_stages(entry.labels, self._plans, length)
        if rows is not None:
            staged += read_language(rows.language, self._info.fps, rows.count)
        problems.extend(Problem(kind, id, detail, kept=True) for kind, detail in (*unclear, *crooked))
        tags = {"tasks": json.dumps(tasks, ensure_ascii=False)} if len(tasks) > 1 else {}
        if entry.labels.get("quality_label") is not None:
            tags["quality_label"] = str(entry.labels["quality_label"])
        origin = Origin(
            dataset=self._name,
            revision=self._info.version,
            licence=self._reader._licence,
            embodiment=self._info.robot_type,
            split=self._info.split_of(entry.index),
            tags=tags,
        )
        path = str(self._info.root / entry.data)
        signals = {} if rows is None else ParquetSignals(path, self._reader._signals, rows.first, rows.count)
        return Episode(id, "; ".join(tasks), views, (*outcomes, *staged), origin, signals)

    def _rows(self, id: str, entry: LeRobotEntry, problems: list[Problem]) -> EpisodeRows | None:
        path = self._info.root / entry.data
        if not self._is_file(path):
            problems.append(Problem("missing data", id, f"there is no {entry.data}", kept=True))
            return None
        if path not in self._recent:
            self._recent[path] = self._find_rows(path, entry.index)
            if len(self._recent) > FILES_REMEMBERED:
                self._recent.popitem(last=False)
        by_episode = self._recent[path]
        if isinstance(by_episode, StoreError):
            problems.append(Problem("unreadable data", id, f"{entry.data}: {by_episode.reason}", kept=True))
            return None
        rows = by_episode.get(entry.index)
        if rows is None or not rows.count:
            problems.append(Problem("missing data", id, f"{entry.data} has no row of this episode", kept=True))
            return None
        return rows

    def _find_rows(self, path: Path, episode: int) -> dict[int, EpisodeRows] | StoreError:
        """Find the rows of a file by episode. Files of version 3 hold several episodes, older ones the given one."""
        try:
            with pq.ParquetFile(path) as file:
                names = [name for name in self._wanted if name in file.schema_arrow.names]
                if not self._info.is_v3:
                    table = file.read(columns=names)
                    columns = {name: as_array(table[name]) for name in names}
                    rows = {episode: EpisodeRows(0, file.metadata.num_rows, columns)}
                    return _with_language(file, rows) if file.metadata.num_rows else rows
                if "episode_index" not in file.schema_arrow.names:
                    return StoreError(path, "it has no episode_index column")
                return _with_language(file, _owners(file.read(columns=["episode_index", *names]), names))
        except (*PARQUET_ERRORS, ValueError) as broken:
            return StoreError(path, first_line(broken))

    def _length(self, id: str, entry: LeRobotEntry, rows: EpisodeRows | None, problems: list[Problem]) -> int | None:
        """The number of frames if metadata, data and clips agree, else None."""
        lengths: dict[str, int] = {} if entry.length is None else {"the metadata": entry.length}
        if rows is not None:
            lengths["the data"] = rows.count
        for key, clip in entry.clips.items():
            if clip.start is not None and clip.stop is not None:
                lengths[f"the clip of {key}"] = round((clip.stop - clip.start) * self._info.fps)
        if len(set(lengths.values())) > 1:
            detail = ", ".join(f"{who} has {count} frames" for who, count in lengths.items())
            problems.append(Problem("length disagrees", id, detail, kept=True))
            return None
        if any(length > MOST_FRAMES for length in lengths.values()):
            problems.append(Problem("length disagrees", id, f"more than {MOST_FRAMES} frames declared", kept=True))
            return None
        return next(iter(lengths.values()), None)

    def _views(
        self, id: str, entry: LeRobotEntry, rows: EpisodeRows | None, length: int | None, problems: list[Problem]
    ) -> dict[str, Frames]:
        views = {}
        for name, key in self._cameras.items():
            if self._info.is_video(key):
                clip = entry.clips.get(key)
                if clip is not None and self._is_file(self._info.root / clip.path):
                    views[name] = Frames(self._clip(clip, length))
                else:
                    detail = f"the metadata does not place {key}" if clip is None else f"there is no {clip.path}"
                    problems.append(Problem("missing video", id, detail, kept=True))
            elif rows is not None:
                path = str(self._info.root / entry.data)
                views[name] = Frames(ParquetImages(path, key, rows.first, rows.count, self._info.fps))
            else:
                problems.append(Problem("missing images", id, f"{key} is in {entry.data}", kept=True))
        return views

    def _clip(self, clip: LeRobotClip, length: int | None) -> VideoClip:
        return VideoClip(str(self._info.root / clip.path), clip.start, clip.stop, length)

    def _tasks_of(self, rows: EpisodeRows | None) -> tuple[str, ...]:
        if rows is None or "task_index" not in rows.columns:
            return ()
        texts = [self._tasks.get(index, "").strip() for index in dict.fromkeys(rows.columns["task_index"].tolist())]
        return tuple(text for text in texts if text)


def _success_columns(info: LeRobotInfo, outcome_key: str | None) -> tuple[str | None, str | None]:
    """The episode-level and the per-frame success column; a column named by the user is the only one."""
    if outcome_key is None:
        return "success", FRAME_SUCCESS if FRAME_SUCCESS in info.features else None
    if outcome_key in info.features:
        return None, outcome_key
    episode_level = [name for name in episode_columns(info) if "/" not in name]
    if outcome_key in episode_level:
        return outcome_key, None
    raise UnknownName("outcome column", outcome_key, [*info.features, *episode_level])


IMAGE_BATCH = 64
FILES_REMEMBERED = 4


@dataclass(frozen=True, eq=False)
class EpisodeRows:
    """The rows of one episode in its data file."""

    first: int
    count: int
    columns: Mapping[str, npt.NDArray[Any]]
    """the wanted columns that exist"""
    language: object = None
    """the language rows of the first frame, which are those of every frame"""


def _with_language(file: Any, owners: dict[int, EpisodeRows]) -> dict[int, EpisodeRows]:
    if LANGUAGE not in file.schema_arrow.names or not owners:
        return owners
    firsts = np.sort([rows.first for rows in owners.values()])
    cells = dict(_cells(file, LANGUAGE, firsts))
    return {episode: replace(rows, language=cells[rows.first]) for episode, rows in owners.items()}


def _owners(table: Any, names: Sequence[str]) -> dict[int, EpisodeRows]:
    owner = as_array(table["episode_index"])
    columns = {name: as_array(table[name]) for name in names}
    starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]]) if len(owner) else np.array([], dtype=np.int64)
    stops = np.r_[starts[1:], len(owner)]
    rows: dict[int, EpisodeRows] = {}
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        # Rows of an episode are adjacent; otherwise only the first run is used.
        pieces = {name: values[start:stop] for name, values in columns.items()}
        rows.setdefault(int(owner[start]), EpisodeRows(start, stop - start, pieces))
    return rows


class ParquetSignals(Mapping[str, npt.NDArray[Any]]):
    """The signals of an episode, read on first access."""

    def __init__(self, path: str, columns: Mapping[str, str], first: int, count: int) -> None:
        """`columns` maps a signal's name to its column; the episode's rows are `first` to `first + count`."""
        self.path, self.columns, self.first, self.count = path, dict(columns), first, count
        self._loaded: dict[str, npt.NDArray[Any]] = {}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Read one signal: (frames,) or (frames, ...)."""
        if name not in self._loaded:
            self._loaded[name] = self._read(self.columns[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": {}}

    def __repr__(self) -> str:
        return f"ParquetSignals({list(self.columns)}, rows {self.first} to {self.first + self.count - 1})"

    def _read(self, column: str) -> npt.NDArray[Any]:
        try:
            with pq.ParquetFile(self.path) as file:
                groups = [(g, start) for g, start, stop in _groups(file, self.first, self.first + self.count)]
                if not groups:
                    raise StoreError(self.path, f"rows {self.first} to {self.first + self.count - 1} are not in it")
                table = file.read_row_groups([g for g, _ in groups], columns=[column])
                return as_array(table[column].slice(self.first - groups[0][1], self.count))
        except (*PARQUET_ERRORS, KeyError, ValueError) as broken:
            raise StoreError(self.path, f"column {column!r} cannot be read ({first_line(broken)})") from None


@dataclass(frozen=True)
class ParquetImages:
    """The encoded images (PNG or JPEG) of an episode in a column of its data file."""

    kind = "lerobot-images"
    path: str
    column: str
    first: int
    """the row of the first frame"""
    rows: int
    fps: float

    def __len__(self) -> int:
        return self.rows

    def times(self) -> Times:
        """Evenly spaced seconds."""
        return np.arange(self.rows) / self.fps

    def take(self, indices: Sequence[int]) -> Images:
        """Decode the given frames, in the given order."""
        if not len(indices):
            return np.empty((0, 0, 0, 3), dtype=np.uint8)
        wanted, places = np.unique(np.asarray(indices, dtype=np.int64), return_inverse=True)
        if wanted[0] < 0 or wanted[-1] >= self.rows:
            raise BadInput("frame indices", f"0 to {self.rows - 1}", f"{wanted[0]} to {wanted[-1]}")
        images = [_decode_image(cell, self.path, row) for row, cell in self._cells(self.first + wanted)]
        if len(images) != len(wanted):
            raise UnreadableVideo(self.path, f"{len(wanted)} images were asked for, and {len(images)} are there")
        sizes = {image.shape for image in images}
        if len(sizes) > 1:
            raise UnreadableVideo(self.path, f"the images of {self.column!r} have different sizes ({sorted(sizes)})")
        return np.stack(images)[places]

    def identity(self) -> str:
        """Hash the data file's identity and the rows."""
        return short_hash(file_identity(self.path).encode(), repr((self.column, self.first, self.rows)).encode())

    def describe(self) -> dict[str, Any]:
        """The arguments that rebuild these frames."""
        return {
            "path": self.path,
            "column": self.column,
            "first": self.first,
            "rows": self.rows,
            "fps": self.fps,
        }

    def _cells(self, rows: Ints) -> Iterator[tuple[int, Any]]:
        """Stream (row, cell)."""
        try:
            with pq.ParquetFile(self.path) as file:
                yield from _cells(file, self.column, rows)
        except (*PARQUET_ERRORS, KeyError) as broken:
            raise UnreadableVideo(self.path, first_line(broken)) from None


def _cells(file: Any, column: str, rows: Ints) -> Iterator[tuple[int, Any]]:
    """Stream (row, cell) of the given rows, in batches: a row group may have hundreds of megabytes."""
    for group, start, stop in _groups(file, int(rows[0]), int(rows[-1]) + 1):
        chunk = rows[(rows >= start) & (rows < stop)]
        if not len(chunk):
            continue
        at = start
        for batch in file.iter_batches(IMAGE_BATCH, row_groups=[group], columns=[column]):
            for row in chunk[(chunk >= at) & (chunk < at + batch.num_rows)].tolist():
                yield row, batch.column(column)[row - at].as_py()
            at += batch.num_rows
            if at > chunk[-1]:
                break


def as_array(column: Any) -> npt.NDArray[Any]:
    """Copy an arrow column of numbers, or of equally long lists of numbers: (rows, ...)."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], type=array.type)
    shape = [len(array)]
    while (width := _width(array)) is not None:
        shape.append(width)
        array = array.flatten()
    return np.array(array.to_numpy(zero_copy_only=False)).reshape(shape)


def _width(array: Any) -> int | None:
    """The length of the lists; None if the array has no lists."""
    if pa.types.is_fixed_size_list(array.type):
        lengths = {array.type.list_size} | ({"no"} if array.null_count else set())
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        lengths = {"no" if length is None else length for length in array.value_lengths().to_pylist()}
    else:
        return None
    if len(lengths) > 1 or "no" in lengths:
        raise ValueError(f"one row holds {' items, another '.join(sorted(map(str, lengths)))} items")
    return int(lengths.pop()) if lengths else 0


def _groups(file: Any, first: int, stop: int) -> list[tuple[int, int, int]]:
    """The row groups that overlap rows [first, stop): (group, its first row, its last row + 1)."""
    groups, at = [], 0
    for group in range(file.metadata.num_row_groups):
        end = at + file.metadata.row_group(group).num_rows
        if at < stop and end > first:
            groups.append((group, at, end))
        at = end
    return groups


def _decode_image(cell: Any, path: str, row: int) -> Images:
    data = cell.get("bytes") if isinstance(cell, dict) else cell
    if not isinstance(data, bytes):
        raise UnreadableVideo(path, f"row {row} holds no image")
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError) as broken:
        raise UnreadableVideo(path, f"the image of row {row} cannot be decoded ({first_line(broken)})") from None
