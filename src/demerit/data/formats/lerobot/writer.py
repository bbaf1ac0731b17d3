"""Writing LeRobot v3.0 datasets with pyarrow and PyAV.

The first episode decides on cameras, signals and frame rate; later ones must match. Beyond the format, and harmless to
other readers: the episodes file has the nullable columns `success`, `vouched_by`, `progress` and `grade`.
`next.success` cannot express "unknown", so it is written only if the success of every episode is known.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from av.container import OutputContainer
from av.video.frame import PictureType, VideoFrame
from av.video.stream import VideoStream

from demerit.data.arrays import Floats, Floats32
from demerit.data.episode import Episode, Outcome, most_trusted, safe_name
from demerit.data.files import atomic_folder, check_free
from demerit.data.formats.lerobot.metadata import FRAME_SUCCESS, IMAGES_PREFIX, NOT_SIGNALS, STAGES_VOUCHED_BY
from demerit.data.frames import Frames, Images, spread
from demerit.data.stages import StagePlan, plan_task
from demerit.data.video import Encoding, open_encoder
from demerit.errors import BadInput, UnknownName

REWARD = "next.reward"
MATRIX = 2
# Real timestamps are rounded: rates closer than this are equal.
SAME_RATE = 0.01
NEARLY_WHOLE = 2e-4
DTYPES = {"f": "float32", "i": "int64", "u": "int64", "b": "bool"}
FIXED_COLUMNS = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
    "next.done": "bool",
}


@dataclass(frozen=True)
class LeRobotCamera:
    """A camera that every episode has."""

    view: str
    key: str
    height: int
    width: int


@dataclass(frozen=True)
class LeRobotColumn:
    """A signal that every episode has."""

    signal: str
    key: str
    dtype: str
    width: int | None
    """numbers per frame; None = a scalar"""


@dataclass(frozen=True)
class LeRobotPlan:
    """Cameras, signals and frame rate of the whole dataset."""

    fps: float
    cameras: tuple[LeRobotCamera, ...]
    columns: tuple[LeRobotColumn, ...]
    retime: bool
    """whether the caller gave the rate, which overrides the recordings"""
    has_rewards: bool

    @property
    def rate(self) -> Fraction:
        """The frame rate as a fraction."""
        return _fraction(self.fps)

    def numbers(self) -> dict[str, tuple[str, int | None]]:
        """The columns of the data file except success: key to (dtype, width)."""
        signals = {column.key: (column.dtype, column.width) for column in self.columns}
        rewards: dict[str, tuple[str, int | None]] = {REWARD: ("float32", None)} if self.has_rewards else {}
        return {**signals, **{key: (dtype, None) for key, dtype in FIXED_COLUMNS.items()}, **rewards}

    def check(self, episode: Episode) -> None:
        """Raise if an episode does not match the first one."""
        missing = [camera.view for camera in self.cameras if camera.view not in episode.views]
        if missing:
            got = f"{', '.join(episode.views)} in episode {episode.id!r}"
            raise BadInput("cameras", f"{', '.join(c.view for c in self.cameras)} as in the first episode", got)
        lengths = {camera.view: len(episode.views[camera.view]) for camera in self.cameras}
        if len(set(lengths.values())) > 1:
            raise BadInput(f"cameras of episode {episode.id!r}", "the same number of frames", lengths)
        if not self.retime:
            for camera in self.cameras:
                _check_rate(self.fps, episode.views[camera.view], f"{camera.view!r} of episode {episode.id!r}")

    def values(self, column: LeRobotColumn, episode: Episode, frames: int) -> npt.NDArray[Any]:
        """Read a signal of an episode; raise if it does not match the first one."""
        if column.signal not in episode.signals:
            hint = f"{', '.join(episode.signals) or 'none'} (choose with signals=)"
            raise BadInput(f"signals of episode {episode.id!r}", f"{column.signal!r} as in the first episode", hint)
        layout = _column(column.signal, episode.signals[column.signal])
        values = np.asarray(episode.signals[column.signal])
        if len(values) != frames or (layout.dtype, layout.width) != (column.dtype, column.width):
            expected = f"{column.dtype} {_shape(frames, column.width)}"
            got = f"{layout.dtype} {_shape(len(values), layout.width)}"
            raise BadInput(f"signal {column.signal!r} of episode {episode.id!r}", expected, got)
        return values.astype(column.dtype).reshape(_shape(frames, column.width))


def plan_dataset(
    first: Episode,
    fps: float | None,
    cameras: Mapping[str, str] | None,
    signals: Sequence[str] | None,
    has_rewards: bool,
) -> LeRobotPlan:
    """Plan the dataset by its first episode."""
    if fps is not None and not fps > 0:
        raise BadInput("fps", "a positive number", fps)
    keys = {name: _camera_key(name) for name in first.views} if cameras is None else dict(cameras)
    unknown = [name for name in keys if name not in first.views]
    if unknown or not keys:
        raise BadInput("cameras", f"some of {', '.join(first.views)}", ", ".join(unknown) or "none")
    if len(set(keys.values())) < len(keys) or any("/" in key for key in keys.values()):
        raise BadInput("camera keys", "different names without '/'", keys)
    names = [*first.signals] if signals is None else [*signals]
    kept_names = [name for name in names if not (has_rewards and name == REWARD)]
    absent = [name for name in kept_names if name not in first.signals]
    if absent:
        raise BadInput("signals", f"some of {', '.join(first.signals) or 'none'}", ", ".join(absent))
    return LeRobotPlan(
        # Exactly the rate of the video: otherwise long files would drift from their timestamps.
        fps=float(_fraction(fps if fps is not None else _rate_of(first.views[next(iter(keys))]))),
        cameras=tuple(LeRobotCamera(name, key, *_size(first.views[name], first.id)) for name, key in keys.items()),
        columns=tuple(_column(name, first.signals[name]) for name in kept_names),
        retime=fps is not None,
        has_rewards=has_rewards,
    )


def describe_features(plan: LeRobotPlan, video: Mapping[str, Any], has_success: bool) -> dict[str, dict[str, Any]]:
    """The `features` of meta/info.json; `video` are the common facts of all videos."""
    features: dict[str, dict[str, Any]] = {}
    for column in plan.columns:
        names = None if column.width is None else [f"{column.signal}_{i}" for i in range(column.width)]
        features[column.key] = {"dtype": column.dtype, "shape": [column.width or 1], "names": names}
    for camera in plan.cameras:
        shape = [camera.height, camera.width, 3]
        details = {"video.height": camera.height, "video.width": camera.width, **video}
        features[camera.key] = {
            "dtype": "video",
            "shape": shape,
            "names": ["height", "width", "channels"],
            "info": details,
        }
    rest = {key: dtype for key, (dtype, _) in plan.numbers().items() if key not in features}
    for key, dtype in {**rest, **({FRAME_SUCCESS: "bool"} if has_success else {})}.items():
        features[key] = {"dtype": dtype, "shape": [1], "names": None}
    return features


def _fraction(fps: float) -> Fraction:
    return Fraction(fps).limit_denominator(1001)


def _camera_key(view: str) -> str:
    return view if view.startswith("observation.image") else IMAGES_PREFIX + safe_name(view)


def _size(frames: Frames, episode: str) -> tuple[int, int]:
    if not len(frames):
        raise BadInput(f"episode {episode!r}", "at least one frame", "none")
    _, height, width, _ = frames.take([0]).shape
    return height, width


def _column(name: str, values: npt.ArrayLike) -> LeRobotColumn:
    array = np.asarray(values)
    key = "observation.state" if name == "state" else name
    if key in NOT_SIGNALS or "/" in key:
        raise BadInput("signal name", "a name that LeRobot does not use itself and without '/'", repr(name))
    if array.dtype.kind not in DTYPES or not 1 <= array.ndim <= MATRIX:
        got = f"{array.dtype} of shape {array.shape} (choose others with signals=)"
        raise BadInput(f"signal {name!r}", "numbers, (frames,) or (frames, dimensions)", got)
    width = None if array.ndim == 1 or array.shape[1] == 1 else int(array.shape[1])
    return LeRobotColumn(name, key, DTYPES[array.dtype.kind], width)


def _shape(frames: int, width: int | None) -> tuple[int, ...]:
    return (frames,) if width is None else (frames, width)


def _rate_of(frames: Frames) -> float:
    rate = _measured_rate(frames)
    if rate is None:
        raise BadInput("fps", "a number, as one frame does not tell a rate", None)
    return float(round(rate)) if abs(rate / max(round(rate), 1) - 1) < NEARLY_WHOLE else rate


def _measured_rate(frames: Frames) -> float | None:
    times = frames.times()
    return float((len(times) - 1) / (times[-1] - times[0])) if len(times) > 1 and times[-1] > times[0] else None


def _check_rate(fps: float, frames: Frames, whose: str) -> None:
    rate = _measured_rate(frames)
    if rate is not None and abs(rate / fps - 1) > SAME_RATE:
        expected = f"{fps:g} frames per second as in the first episode (fps=, or --fps, writes all at one rate)"
        raise BadInput(f"frame rate of camera {whose}", expected, f"{rate:g}")


FRAMES_AT_ONCE = 32
FRAMES_MEASURED = 16
"""per episode and camera, for the colour statistics"""


def write_lerobot(
    episodes: Iterable[Episode],
    dest: str | Path,
    *,
    fps: float | None = None,
    robot_type: str = "",
    cameras: Mapping[str, str] | None = None,
    signals: Sequence[str] | None = None,
    rewards: Mapping[str, npt.ArrayLike] | None = None,
    codec: str = "libx264",
    gop: int = 2,
    options: Mapping[str, str] | None = None,
    video_files_mb: float = 500,
    data_files_mb: float = 100,
) -> Path:
    """Write episodes as a LeRobot v3.0 folder and return it.

    Args:
        episodes: read once, one at a time.
        dest: a folder that does not exist or is empty; it appears when everything is written.
        fps: overrides the rate of the recordings, which must otherwise be equal.
        robot_type: by default the first episode's embodiment.
        cameras: camera name to feature key; by default all cameras as observation.images.<name>.
        signals: which signals to write; by default all.
        rewards: episode id to a number per frame, written as next.reward; NaN stays NaN.
        codec: an encoder of PyAV, such as libx264 or libsvtav1.
        gop: frames per key frame.
        options: encoder options such as {"crf": "20"}.
        video_files_mb: start a new video file after this size.
        data_files_mb: start a new data file after this size.
    """
    dest = Path(dest).expanduser().absolute()
    encoding = Encoding(codec, gop=gop, options={**QUALITY.get(codec, {}), **(options or {})})
    _check_encoding(encoding)
    check_free(dest)
    stream = iter(episodes)
    first = next(stream, None)
    if first is None:
        raise BadInput("episodes", "at least one", "none")
    plan = plan_dataset(first, fps, cameras, signals, rewards is not None)
    with (
        atomic_folder(dest) as partial,
        _LeRobotWriter(partial, plan, encoding, video_files_mb, data_files_mb) as writer,
    ):
        for episode in chain([first], stream):
            writer.add(episode, rewards)
        writer.finish(robot_type or first.origin.embodiment)
    return dest


class _LeRobotWriter:
    """A dataset being written."""

    def __init__(self, root: Path, plan: LeRobotPlan, encoding: Encoding, video_mb: float, data_mb: float) -> None:
        self._root, self._plan, self._video_mb, self._data_mb = root, plan, video_mb, data_mb
        self._videos = {camera.key: _VideoFiles(root, camera, plan.rate, encoding, video_mb) for camera in plan.cameras}
        self._data = _DataTables(root, plan, data_mb)
        self._episodes = _EpisodeTable(root, plan)
        self._tasks: dict[str, int] = {}
        self._totals: dict[str, Moments] = {}
        self._splits: list[tuple[str, int]] = []
        self._count = self._rows = 0
        self._all_known = True

    def __enter__(self) -> _LeRobotWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._close()
        for part in self._parts() if kind is not None else ():
            with contextlib.suppress(Exception):
                part.close()

    def add(self, episode: Episode, rewards: Mapping[str, npt.ArrayLike] | None) -> None:
        self._plan.check(episode)
        frames = len(episode.views[self._plan.cameras[0].view])
        if not frames:
            raise BadInput(f"episode {episode.id!r}", "at least one frame", "none")
        columns = self._columns(episode, frames, rewards)
        stats = {key: Moments.of(values) for key, values in columns.items() if values.dtype != np.bool_}
        success = None if episode.outcome is None else episode.outcome.success
        self._all_known &= success is not None
        data_place = self._data.add(columns, success)
        clips: dict[str, dict[str, float]] = {}
        for camera in self._plan.cameras:
            clips[camera.key], stats[camera.key] = self._video(episode, camera.view, self._videos[camera.key])
        rows = (self._rows, self._rows + frames)
        self._episodes.add(episode, index=self._count, rows=rows, data=data_place, clips=clips, stats=stats)
        for key, moments in stats.items():
            self._totals[key] = self._totals[key] + moments if key in self._totals else moments
        if not self._splits or self._splits[-1][0] != episode.origin.split:
            self._splits.append((episode.origin.split, self._count))
        self._count, self._rows = self._count + 1, self._rows + frames

    def finish(self, robot_type: str) -> None:
        self._close()
        if not self._all_known:
            self._data.drop(FRAME_SUCCESS)
        write_tasks(self._root / "meta/tasks.parquet", list(self._tasks))
        self._episodes.add_stages(self._root / "meta/temporal_proportions_dense.json")
        features = describe_features(self._plan, {}, self._all_known)
        for camera in self._plan.cameras:
            features[camera.key]["info"].update(self._videos[camera.key].details())
        stats = {key: moments.measures(features[key]["dtype"]) for key, moments in self._totals.items()}
        measured_stats = {key: measures for key, measures in stats.items() if measures is not None}
        _write_json(self._root / "meta/stats.json", measured_stats)
        _write_json(self._root / "meta/info.json", self._info(robot_type, features))

    def _close(self) -> None:
        for part in self._parts():
            part.close()

    def _parts(self) -> tuple[_VideoFiles | _DataTables | _EpisodeTable, ...]:
        return (*self._videos.values(), self._data, self._episodes)

    def _info(self, robot_type: str, features: Mapping[str, Any]) -> dict[str, Any]:
        fps = self._plan.fps
        return {
            "codebase_version": "v3.0",
            "robot_type": robot_type or None,
            "total_episodes": self._count,
            "total_frames": self._rows,
            "total_tasks": len(self._tasks),
            "chunks_size": FILES_PER_CHUNK,
            "data_files_size_in_mb": self._data_mb,
            "video_files_size_in_mb": self._video_mb,
            "fps": int(fps) if fps == int(fps) else fps,
            "splits": _split_ranges(self._splits, self._count),
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
            "features": features,
        }

    def _columns(
        self, episode: Episode, frames: int, rewards: Mapping[str, npt.ArrayLike] | None
    ) -> dict[str, npt.NDArray[Any]]:
        columns = {column.key: self._plan.values(column, episode, frames) for column in self._plan.columns}
        task = self._tasks.setdefault(episode.instruction, len(self._tasks))
        at = np.arange(frames)
        columns |= {
            "timestamp": (at / self._plan.fps).astype(np.float32),
            "frame_index": at,
            "episode_index": np.full(frames, self._count),
            "index": at + self._rows,
            "task_index": np.full(frames, task),
            "next.done": at == frames - 1,
        }
        if rewards is not None:
            columns[REWARD] = _rewards_of(rewards, episode.id, frames)
        return columns

    def _video(self, episode: Episode, view: str, files: _VideoFiles) -> tuple[dict[str, float], Moments]:
        frames = episode.views[view]
        measured = spread(len(frames), FRAMES_MEASURED)
        moments: Moments | None = None
        files.begin()
        for start in range(0, len(frames), FRAMES_AT_ONCE):
            images = frames.take(range(start, min(start + FRAMES_AT_ONCE, len(frames))))
            files.add(images, episode.id)
            places = measured[(measured >= start) & (measured < start + len(images))] - start
            if len(places):
                colours = Moments.of_images(images[places])
                moments = colours if moments is None else moments + colours
        assert moments is not None
        return files.end(), moments


def _rewards_of(rewards: Mapping[str, npt.ArrayLike], episode: str, frames: int) -> Floats32:
    values = np.asarray(rewards.get(episode, ()), dtype=np.float32)
    if values.shape != (frames,):
        got = f"an array of shape {values.shape}" if episode in rewards else "none"
        raise BadInput(f"rewards of episode {episode!r}", f"{frames} numbers (NaN where unscored)", got)
    return values


def _split_ranges(starts: Sequence[tuple[str, int]], count: int) -> dict[str, str]:
    """Splits are ranges in LeRobot: if splits are unknown or interleaved, everything is 'train'."""
    names = [name for name, _ in starts]
    if "" in names or len(set(names)) < len(names):
        return {"train": f"0:{count}"}
    stops = [*(start for _, start in starts[1:]), count]
    return {name: f"{start}:{stop}" for (name, start), stop in zip(starts, stops, strict=True)}


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=4, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


EPISODES_AT_ONCE = 256
ARROW = {"float32": pa.float32(), "int64": pa.int64(), "bool": pa.bool_()}


class TableWriter(pq.ParquetWriter):  # type: ignore[misc]  # pyarrow has no types
    """A parquet writer that tries to close its file only once; a second attempt would print a traceback."""

    def close(self) -> None:
        """Finish the file."""
        try:
            super().close()
        finally:
            self.is_open = False


class _DataTables:
    """data/chunk-*/file-*.parquet, with a row group per episode."""

    def __init__(self, root: Path, plan: LeRobotPlan, limit_mb: float) -> None:
        self._root, self._limit = root, limit_mb * 1e6
        self._columns = {**plan.numbers(), FRAME_SUCCESS: ("bool", None)}
        self._number = -1
        self._writer: Any = None

    def add(self, columns: Mapping[str, npt.NDArray[Any]], success: bool | None) -> tuple[int, int]:
        """Append an episode's rows and return the chunk and file that they are in."""
        if self._writer is None or self._path(self._number).stat().st_size > self._limit:
            self.close()
            self._number += 1
            self._path(self._number).parent.mkdir(parents=True, exist_ok=True)
            self._writer = TableWriter(self._path(self._number), _data_schema(self._columns))
        frames = len(columns["index"])
        # Success is true on the last frame only; an unknown outcome is null on all frames.
        verdict = [None] * frames if success is None else [False] * (frames - 1) + [success]
        arrays = [_arrow(columns[key], *kind) for key, kind in self._columns.items() if key != FRAME_SUCCESS]
        self._writer.write_table(
            pa.Table.from_arrays([*arrays, pa.array(verdict, pa.bool_())], schema=self._writer.schema)
        )
        return chunk_and_file(self._number)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def drop(self, column: str) -> None:
        """Remove a column from every file."""
        kept = {key: kind for key, kind in self._columns.items() if key != column}
        for number in range(self._number + 1):
            path = self._path(number)
            with pq.ParquetFile(path) as file, TableWriter(path.with_suffix(".tmp"), _data_schema(kept)) as writer:
                for group in range(file.metadata.num_row_groups):
                    writer.write_table(file.read_row_group(group).select(list(kept)).cast(writer.schema))
            path.with_suffix(".tmp").replace(path)

    def _path(self, number: int) -> Path:
        chunk, file = chunk_and_file(number)
        return self._root / f"data/chunk-{chunk:03d}/file-{file:03d}.parquet"


class _EpisodeTable:
    """meta/episodes/chunk-000/file-000.parquet."""

    def __init__(self, root: Path, plan: LeRobotPlan) -> None:
        self._path = root / "meta/episodes/chunk-000/file-000.parquet"
        self._kinds = {key: dtype for key, (dtype, _) in plan.numbers().items() if dtype != "bool"}
        self._kinds |= {camera.key: "video" for camera in plan.cameras}
        self._schema = _episode_schema([camera.key for camera in plan.cameras], self._kinds)
        self._pending: list[dict[str, Any]] = []
        self._staged: list[Outcome | None] = []
        self._writer: Any = None

    def add(
        self,
        episode: Episode,
        *,
        index: int,
        rows: tuple[int, int],
        data: tuple[int, int],
        clips: Mapping[str, Mapping[str, float]],
        stats: Mapping[str, Moments],
    ) -> None:
        row: dict[str, Any] = {
            "episode_index": index,
            "tasks": [episode.instruction],
            "length": rows[1] - rows[0],
            "data/chunk_index": data[0],
            "data/file_index": data[1],
            "dataset_from_index": rows[0],
            "dataset_to_index": rows[1],
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        for key, clip in clips.items():
            row |= {f"videos/{key}/{name}": value for name, value in clip.items()}
        for key, kind in self._kinds.items():
            measures = stats[key].measures(kind) or {}
            row |= {f"stats/{key}/{name}": measures.get(name) for name in MEASURES}
        outcome = episode.outcome
        if outcome is not None:
            row |= {"success": outcome.success, "vouched_by": outcome.source}
            row |= {"progress": outcome.progress, "grade": outcome.grade}
        self._staged.append(most_trusted(label for label in episode.labels if label.stages))
        self._pending.append(row)
        if len(self._pending) >= EPISODES_AT_ONCE:
            self._flush()

    def add_stages(self, proportions: Path) -> None:
        """Add the columns that SARM reads, and what share of the task each stage is, to the finished file."""
        spans = [() if label is None else label.stages for label in self._staged]
        if not any(spans):
            return
        table = pq.read_table(self._path)
        parts = {
            "names": ("name", pa.string()),
            "start_frames": ("first", pa.int64()),
            "end_frames": ("last", pa.int64()),
        }
        for part, (field, kind) in parts.items():
            values = [[getattr(stage, field) for stage in stages] or None for stages in spans]
            table = table.append_column(f"dense_subtask_{part}", pa.array(values, pa.list_(kind)))
        sources = [label and label.source for label in self._staged]
        table = table.append_column(STAGES_VOUCHED_BY, pa.array(sources, pa.string()))
        with TableWriter(self._path.with_suffix(".tmp"), table.schema) as writer:
            writer.write_table(table)
        self._path.with_suffix(".tmp").replace(self._path)
        steps = [stage for stages in spans for stage in stages]
        stated = {
            stage.name: (stage.start, stage.stop)
            for stage in steps
            if stage.start is not None and stage.stop is not None
        }
        plan: StagePlan = stated or plan_task(spans)
        if plan.keys() == {stage.name for stage in steps}:
            ordered = sorted(plan.items(), key=lambda item: item[1])
            _write_json(proportions, {name: stop - start for name, (start, stop) in ordered})

    def close(self) -> None:
        if self._pending:
            self._flush()
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _flush(self) -> None:
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = TableWriter(self._path, self._schema)
        self._writer.write_table(pa.Table.from_pylist(self._pending, schema=self._schema))
        self._pending = []


def write_tasks(path: Path, tasks: Sequence[str]) -> None:
    """Write the tasks as LeRobot expects: the texts are the pandas index."""
    index = "__index_level_0__"
    column = {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"}
    text = {"name": None, "field_name": index, "pandas_type": "unicode", "numpy_type": "object"}
    pandas = {
        "index_columns": [index],
        "column_indexes": [
            {
                "name": None,
                "field_name": None,
                "pandas_type": "unicode",
                "numpy_type": "object",
                "metadata": {"encoding": "UTF-8"},
            }
        ],
        "columns": [{**column, "metadata": None}, {**text, "metadata": None}],
        "attributes": {},
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    schema = pa.schema([("task_index", pa.int64()), (index, pa.string())], {"pandas": json.dumps(pandas)})
    path.parent.mkdir(parents=True, exist_ok=True)
    with TableWriter(path, schema) as writer:
        writer.write_table(pa.table([list(range(len(tasks))), list(tasks)], schema=schema))


def _data_schema(columns: Mapping[str, tuple[str, int | None]]) -> Any:
    fields, features = [], {}
    for key, (dtype, width) in columns.items():
        value = {"dtype": dtype, "_type": "Value"}
        fields.append((key, ARROW[dtype] if width is None else pa.list_(ARROW[dtype], width)))
        features[key] = value if width is None else {"feature": value, "length": width, "_type": "List"}
    # The datasets library reads its types from this metadata.
    return pa.schema(fields, {"huggingface": json.dumps({"info": {"features": features}})})


def _arrow(values: npt.NDArray[Any], dtype: str, width: int | None) -> Any:
    flat = pa.array(np.ascontiguousarray(values).reshape(-1), ARROW[dtype])
    return flat if width is None else pa.FixedSizeListArray.from_arrays(flat, width)


def _episode_schema(cameras: Sequence[str], kinds: Mapping[str, str]) -> Any:
    first = ["data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index"]
    fields = [("episode_index", pa.int64()), ("tasks", pa.list_(pa.string())), ("length", pa.int64())]
    fields += [(name, pa.int64()) for name in first]
    for key in cameras:
        fields += [(f"videos/{key}/{part}", pa.int64()) for part in ("chunk_index", "file_index")]
        fields += [(f"videos/{key}/{part}", pa.float64()) for part in ("from_timestamp", "to_timestamp")]
    for key, kind in kinds.items():
        for measure in MEASURES:
            number = (
                pa.int64() if measure == "count" or (kind == "int64" and measure in ("min", "max")) else pa.float64()
            )
            vector = pa.list_(number)
            is_colour = kind == "video" and measure != "count"
            fields.append((f"stats/{key}/{measure}", pa.list_(pa.list_(vector)) if is_colour else vector))
    fields += [("meta/episodes/chunk_index", pa.int64()), ("meta/episodes/file_index", pa.int64())]
    # Beyond the format: outcomes for demerit's reader.
    fields += [("success", pa.bool_()), ("vouched_by", pa.string())]
    fields += [("progress", pa.float64()), ("grade", pa.int64())]
    return pa.schema(fields)


FILES_PER_CHUNK = 1000
QUALITY: Mapping[str, Mapping[str, str]] = {
    "libx264": {"crf": "20", "preset": "veryfast"},
    "libsvtav1": {"crf": "30", "preset": "8"},
}


def _check_encoding(encoding: Encoding) -> None:
    try:
        av.Codec(encoding.codec, "w")
    except ValueError:
        raise UnknownName("video encoder", encoding.codec, QUALITY) from None
    if encoding.gop < 1:
        raise BadInput("gop", "1 or more frames", encoding.gop)


def chunk_and_file(number: int) -> tuple[int, int]:
    """Chunk and file index of the n-th file."""
    return divmod(number, FILES_PER_CHUNK)


class _VideoFiles:
    """The video files of a camera, with one episode after the other."""

    def __init__(self, root: Path, camera: LeRobotCamera, rate: Fraction, encoding: Encoding, limit_mb: float) -> None:
        self._folder, self._camera, self._rate, self._limit = root / "videos" / camera.key, camera, rate, limit_mb * 1e6
        # yuv420p needs even sizes
        pixels = "yuv444p" if camera.height % 2 or camera.width % 2 else "yuv420p"
        self._encoding = replace(encoding, pixel_format=pixels)
        self._container: OutputContainer | None = None
        self._stream: VideoStream | None = None
        self._number, self._frames, self._episode_start, self._bytes = -1, 0, 0, 0

    def begin(self) -> None:
        """Start an episode, in a new file if the last one is too large."""
        if self._container is None or self._bytes > self._limit:
            self.close()
            self._open_next()
        self._episode_start = self._frames

    def add(self, images: Images, episode: str) -> None:
        camera = self._camera
        if images.shape[1:3] != (camera.height, camera.width):
            expected = f"{camera.width}x{camera.height} pixels as in the first episode"
            got = f"{images.shape[2]}x{images.shape[1]}"
            raise BadInput(f"camera {camera.view!r} of episode {episode!r}", expected, got)
        for image in images:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.pts, frame.time_base = self._frames, 1 / self._rate
            if self._frames == self._episode_start:
                frame.pict_type = PictureType.I  # an episode does not depend on the one before
            self._encode(frame)
            self._frames += 1

    def end(self) -> dict[str, float]:
        """Finish the episode and return its position, as columns."""
        chunk, file = chunk_and_file(self._number)
        start, stop = float(self._episode_start / self._rate), float(self._frames / self._rate)
        return {"chunk_index": chunk, "file_index": file, "from_timestamp": start, "to_timestamp": stop}

    def close(self) -> None:
        if self._container is not None:
            if self._frames:
                self._encode(None)
            self._container.close()
        self._container = self._stream = None

    def details(self) -> dict[str, Any]:
        """The facts of these videos in meta/info.json."""
        return {
            "video.codec": av.Codec(self._encoding.codec, "w").canonical_name,
            "video.pix_fmt": self._encoding.pixel_format,
            "video.is_depth_map": False,
            "video.fps": float(self._rate) if self._rate.denominator > 1 else int(self._rate),
            "video.channels": 3,
            "has_audio": False,
        }

    def _encode(self, frame: VideoFrame | None) -> None:
        assert self._stream is not None and self._container is not None
        packets = self._stream.encode(frame)
        # The file grows in jumps: count the packets.
        self._bytes += sum(packet.size for packet in packets)
        self._container.mux(packets)

    def _open_next(self) -> None:
        self._number, self._frames, self._bytes = self._number + 1, 0, 0
        chunk, file = chunk_and_file(self._number)
        path = self._folder / f"chunk-{chunk:03d}" / f"file-{file:03d}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._container = av.open(str(path), "w", format="mp4")
        encoding = self._encoding
        stream: Any = self._container.add_stream(encoding.codec, rate=self._rate, options=dict(encoding.options))
        stream.width, stream.height = self._camera.width, self._camera.height
        stream.pix_fmt = encoding.pixel_format
        stream.codec_context.time_base = 1 / self._rate
        stream.codec_context.gop_size = encoding.gop
        # B-frames would need an edit list, which readers treat differently.
        stream.codec_context.max_b_frames = 0
        open_encoder(stream.codec_context)
        self._stream = stream


MEASURES = ("min", "max", "mean", "std", "count")


@dataclass(frozen=True, eq=False)
class Moments:
    """Running statistics of finite numbers, per dimension."""

    rows: int
    """number of frames"""
    n: Floats
    """number of finite numbers, per dimension"""
    mean: Floats
    squares: Floats
    """sum of (x - mean)^2"""
    low: Floats
    high: Floats

    @classmethod
    def of(cls, values: npt.ArrayLike, rows: int | None = None) -> Moments:
        """Measure (rows,) or (rows, dimensions) numbers."""
        table = np.asarray(values, dtype=np.float64)
        table = table.reshape(len(table), -1)
        finite = np.isfinite(table)
        n = finite.sum(axis=0).astype(np.float64)
        mean = np.where(finite, table, 0).sum(axis=0) / np.maximum(n, 1)
        return cls(
            rows=len(table) if rows is None else rows,
            n=n,
            mean=mean,
            squares=np.where(finite, (np.where(finite, table, 0) - mean) ** 2, 0).sum(axis=0),
            low=np.where(finite, table, np.inf).min(axis=0, initial=np.inf),
            high=np.where(finite, table, -np.inf).max(axis=0, initial=-np.inf),
        )

    @classmethod
    def of_images(cls, images: Images) -> Moments:
        """Measure the colours of images on the scale 0 to 1, every other pixel."""
        return cls.of(images[:, ::2, ::2].reshape(-1, images.shape[-1]) / 255.0, rows=len(images))

    def __add__(self, other: Moments) -> Moments:
        """Combine two measurements.

        n = n1 + n2, d = mean2 - mean1, mean = mean1 + d * n2 / n, squares = squares1 + squares2 + d^2 * n1 * n2 / n.
        """
        n = self.n + other.n
        share = other.n / np.maximum(n, 1)
        gap = other.mean - self.mean
        return Moments(
            rows=self.rows + other.rows,
            n=n,
            mean=self.mean + gap * share,
            squares=self.squares + other.squares + gap**2 * self.n * share,
            low=np.minimum(self.low, other.low),
            high=np.maximum(self.high, other.high),
        )

    def measures(self, dtype: str) -> dict[str, Any] | None:
        """LeRobot's statistics: a list per measure, colours as (3, 1, 1); None if a dimension has no finite number."""
        if not (self.n > 0).all():
            return None
        exact: Callable[[float], float] = int if dtype.startswith("int") else float
        values: dict[str, Any] = {
            "min": [exact(x) for x in self.low],
            "max": [exact(x) for x in self.high],
            "mean": self.mean.tolist(),
            "std": np.sqrt(self.squares / self.n).tolist(),
        }
        if dtype == "video":
            values = {name: [[[x]] for x in numbers] for name, numbers in values.items()}
        return {**values, "count": [self.rows]}
