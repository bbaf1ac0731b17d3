"""Writing LeRobot v3.0 datasets with pyarrow and PyAV alone.

Two things go beyond the format, both harmless to other readers: the episodes file has the nullable columns `success`,
`vouched_by`, `progress` and `grade`, and an episode of unknown outcome stays unknown (`next.success` is written only
when every episode's success is known, as its column cannot say "unknown").
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.files import atomic_folder, check_free
from demerit.data.formats.lerobot.info import FRAME_SUCCESS
from demerit.data.formats.lerobot.stats import Moments
from demerit.data.formats.lerobot.tables import DataTables, EpisodeTable, write_tasks
from demerit.data.formats.lerobot.video_files import FILES_PER_CHUNK, Placement, VideoFiles, VideoSettings
from demerit.data.formats.lerobot.write_plan import REWARD, Plan, info_features, plan_of
from demerit.data.frames import spread
from demerit.errors import BadInput

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
        episodes: read once, one at a time; the first decides on cameras, sizes, signals and frame rate.
        dest: a folder that does not exist yet or is empty; it appears when everything is written.
        fps: write at this rate whatever the recordings say; by default their own, which must be one.
        robot_type: by default the first episode's embodiment.
        cameras: camera name to feature key, for some of the cameras; by default all as observation.images.<name>.
        signals: which signals to write; by default all.
        rewards: episode id to a number per frame, written as next.reward; NaN stays NaN.
        codec: an encoder of PyAV, such as libx264 or libsvtav1.
        gop: a key frame every so many frames.
        options: encoder options such as {"crf": "20"}.
        video_files_mb: begin a new video file after this many megabytes.
        data_files_mb: begin a new data file after this many megabytes.
    """
    dest = Path(dest).expanduser().absolute()
    settings = VideoSettings(codec, gop, dict(options or {}), video_files_mb)
    check_free(dest)
    stream = iter(episodes)
    first = next(stream, None)
    if first is None:
        raise BadInput("episodes", "at least one", "none")
    plan = plan_of(first, fps, cameras, signals, rewards is not None)
    with atomic_folder(dest) as partial, _Writer(partial, plan, settings, data_files_mb) as writer:
        for episode in chain([first], stream):
            writer.add(episode, rewards)
        writer.finish(robot_type or first.origin.embodiment)
    return dest


class _Writer:
    """The half-written dataset."""

    def __init__(self, root: Path, plan: Plan, settings: VideoSettings, data_mb: float) -> None:
        self._root, self._plan, self._settings, self._data_mb = root, plan, settings, data_mb
        self._videos = {camera.key: VideoFiles(root, camera, plan.rate, settings) for camera in plan.cameras}
        self._data = DataTables(root, plan, data_mb)
        self._episodes = EpisodeTable(root, plan)
        self._tasks: dict[str, int] = {}
        self._totals: dict[str, Moments] = {}
        self._splits: list[tuple[str, int]] = []
        self._count = self._rows = 0
        self._all_known = True

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close what is open. After an error that error is the news, not what closing half a file says."""
        if kind is None:
            self._close()
        for part in self._parts() if kind is not None else ():
            with contextlib.suppress(Exception):  # each: one that cannot be closed must not keep the others open
                part.close()

    def add(self, episode: Episode, rewards: Mapping[str, npt.ArrayLike] | None) -> None:
        """Write one episode's rows, videos and metadata."""
        self._plan.check(episode)
        frames = len(episode.views[self._plan.cameras[0].view])
        if not frames:
            raise BadInput(f"episode {episode.id!r}", "at least one frame", "none")
        columns = self._columns(episode, frames, rewards)
        stats = {key: Moments.of(values) for key, values in columns.items() if values.dtype != np.bool_}
        success = None if episode.outcome is None else episode.outcome.success
        self._all_known &= success is not None
        data_place = self._data.add(columns, success)
        clips: dict[str, Placement] = {}
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
        """Write what is known only at the end."""
        self._close()
        if not self._all_known:
            self._data.drop(FRAME_SUCCESS)
        write_tasks(self._root / "meta/tasks.parquet", list(self._tasks))
        features = info_features(self._plan, {}, self._all_known)
        for camera in self._plan.cameras:
            features[camera.key]["info"].update(self._videos[camera.key].details())
        stats = {key: moments.measures(features[key]["dtype"]) for key, moments in self._totals.items()}
        known = {key: measures for key, measures in stats.items() if measures is not None}
        _write_json(self._root / "meta/stats.json", known)
        _write_json(self._root / "meta/info.json", self._info(robot_type, features))

    def _close(self) -> None:
        for part in self._parts():
            part.close()

    def _parts(self) -> tuple[VideoFiles | DataTables | EpisodeTable, ...]:
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
            "video_files_size_in_mb": self._settings.limit_mb,
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

    def _video(self, episode: Episode, view: str, files: VideoFiles) -> tuple[Placement, Moments]:
        frames = episode.views[view]
        measured = spread(len(frames), FRAMES_MEASURED)
        moments: Moments | None = None
        files.begin()
        for start in range(0, len(frames), FRAMES_AT_ONCE):
            images = frames.take(range(start, min(start + FRAMES_AT_ONCE, len(frames))))
            files.add(images, episode.id)
            here = measured[(measured >= start) & (measured < start + len(images))] - start
            if len(here):
                colours = Moments.of_images(images[here])
                moments = colours if moments is None else moments + colours
        assert moments is not None
        return files.end(), moments


def _rewards_of(rewards: Mapping[str, npt.ArrayLike], episode: str, frames: int) -> npt.NDArray[np.float32]:
    values = np.asarray(rewards.get(episode, ()), dtype=np.float32)
    if values.shape != (frames,):
        got = f"an array of shape {values.shape}" if episode in rewards else "none"
        raise BadInput(f"rewards of episode {episode!r}", f"{frames} numbers (NaN where unscored)", got)
    return values


def _split_ranges(starts: Sequence[tuple[str, int]], count: int) -> dict[str, str]:
    """LeRobot's splits are ranges: episodes whose splits are unknown or interleaved are all 'train', as it does."""
    names = [name for name, _ in starts]
    if "" in names or len(set(names)) < len(names):
        return {"train": f"0:{count}"}
    stops = [*(start for _, start in starts[1:]), count]
    return {name: f"{start}:{stop}" for (name, start), stop in zip(starts, stops, strict=True)}


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=4, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
