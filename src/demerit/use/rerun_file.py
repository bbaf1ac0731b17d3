"""A dataset as one Rerun file, its episodes one after the other with a gap of one frame.

`camera` shows frames of `videos/N` by reference; `rewards` has a series per model, one of labelled progress and one per
kind of failure (1 while it lasts); `log` lists episodes and failures. Values are rounded to 1/4096: half the bytes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.dataset import Dataset, Problem
from demerit.data.episode import Episode
from demerit.data.files import atomic_file
from demerit.errors import MissingExtra, UnreadableVideo
from demerit.use.view import ViewIndex, index_for_file
from demerit.web.media import EpisodeMedia, video_times

ROWS_AT_ONCE, GRID, GAP_SECONDS = 20_000, 4096, 0.1
AFTER = 50_000  # nanoseconds after a frame's time, so that rounding cannot show the frame before it


def write_rerun(dataset: Dataset, dest: str | Path, on_progress: Callable[[int], None] = lambda _: None) -> list[str]:
    """Write the file atomically, with the rewards that are stored next to the dataset; return their models' names.

    An episode without its video keeps its curves and is counted as a problem. Raises StaleRewards.
    """
    try:
        import rerun.blueprint  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra("Writing Rerun files", "rerun") from error
    index = index_for_file(dataset, dest)
    with tempfile.TemporaryDirectory(prefix="demerit-rerun-") as cache, atomic_file(dest) as partial:
        file = _RerunFile(rerun, partial, index, EpisodeMedia(cache))
        for written, episode in enumerate(dataset, 1):
            if problem := file.add(index.places[episode.id], episode):
                dataset.report(Problem("unreadable video", episode.id, problem, kept=True))
            on_progress(written)
        file.flush()
        file.recording.disconnect()
    return [model.name for model in index.models]


class _RerunFile:
    """Collects the rows of many episodes: a chunk takes about a kilobyte, however few rows it has."""

    def __init__(self, rerun: Any, path: Path, index: ViewIndex, media: EpisodeMedia) -> None:
        self.rerun, self.index, self.media, self.frame, self.time = rerun, index, media, 0, 0.0
        self.kinds = sorted({kind for kinds in index.columns["kinds"].values() for kind in kinds})
        names = [*(model.name for model in index.models), "labelled progress", *(f"failure: {k}" for k in self.kinds)]
        see = rerun.blueprint
        above = see.Horizontal(see.Spatial2DView(origin="/camera"), see.TextLogView(origin="/log"))
        self.recording = rerun.RecordingStream("demerit", recording_id=index.dataset.name, send_properties=False)
        self.recording.save(path, see.Blueprint(see.Vertical(above, see.TimeSeriesView(origin="/rewards"))))
        # points too: scores with gaps between them have no line
        self.recording.log("rewards", rerun.SeriesLines(names=names), rerun.SeriesPoints(names=names), static=True)
        self.rows: dict[str, list[tuple[npt.NDArray[Any], npt.NDArray[Any], Any]]] = {}

    def add(self, place: int, episode: Episode) -> str:
        """Add an episode; return why its video is missing, empty if it is not."""
        problem, rewards = "", self.index.fresh_rewards(episode)
        try:
            video = self.media.video(episode.main)
            times, entity = video_times(episode.main), f"videos/{place}"
            self.recording.log(entity, self.rerun.AssetVideo.from_fields(blob=video.read_bytes()), static=True)
            if video.parent == self.media.cache:
                video.unlink()
            self._add("camera timestamp", np.arange(len(times)), times, np.round(times * 1e9).astype(np.int64) + AFTER)
            self._add("camera video_reference", np.zeros(1, int), times, [entity])
        except UnreadableVideo as error:
            problem = f"{error.path}: {error.reason}"
            ends = [int(reward.at[-1]) + 1 for reward in rewards if reward is not None and len(reward.at)]
            times = np.asarray(np.arange(max([1, *ends])) * GAP_SECONDS, dtype=np.float64)
            self._add("camera opacity", np.zeros(1, int), times, [0.0])  # not the last frame of the episode before
        self._add("camera opacity", np.full(1, len(times)), np.append(times, times[-1] + GAP_SECONDS), [1.0])
        self._add_series(episode, rewards, times)
        events = [event for label in episode.labels for event in label.events if event.first < len(times)]
        lines = ["; ".join([f"{episode.id}: {episode.instruction}", *map(str, episode.labels)])]
        lines += [f"{event.kind} {event.note}".strip() for event in events]
        self._add("log text", np.array([0, *(event.first for event in events)]), times, lines)
        self.frame, self.time = self.frame + len(times) + 1, self.time + float(times[-1]) + 2 * GAP_SECONDS
        if sum(len(at) for at, _, _ in self.rows["rewards scalars"]) > ROWS_AT_ONCE:
            self.flush()
        return problem

    def _add_series(self, episode: Episode, rewards: Sequence[Any], times: npt.NDArray[np.float64]) -> None:
        """Add a row per frame and an unknown one in the gap after the episode: episodes are not joined by a line."""
        length, models = len(times), len(rewards)
        values = np.full((length + 1, models + 1 + len(self.kinds)), np.nan)
        curves = [(i, reward.at, reward.value) for i, reward in enumerate(rewards) if reward is not None]
        measured = [label.curve for label in episode.labels if label.curve is not None]
        curves += [(models, np.arange(len(curve)), curve) for curve in measured[:1]]
        for column, at, value in curves:
            values[at[at < length], column] = value[at < length]
        values[:length, models + 1 :] = 0.0
        for event in (event for label in episode.labels for event in label.events):
            values[event.first : min(event.last + 1, length), models + 1 + self.kinds.index(event.kind)] = 1.0
        self._add("rewards scalars", np.arange(length + 1), np.append(times, times[-1] + GAP_SECONDS), values)

    def _add(self, name: str, at: npt.NDArray[Any], times: npt.NDArray[np.float64], values: Any) -> None:
        self.rows.setdefault(name, []).append((self.frame + at, self.time + times[at], values))

    def flush(self) -> None:
        """Write the collected rows, a chunk per column."""
        makers = {"camera": self.rerun.VideoFrameReference, "log": self.rerun.TextLog, "rewards": self.rerun.Scalars}
        for name, parts in self.rows.items():
            (entity, field), (frames, times, values) = name.split(), map(np.concatenate, zip(*parts, strict=True))
            axes = [self.rerun.TimeColumn("frame", sequence=frames), self.rerun.TimeColumn("time", duration=times)]
            flat = np.round(values * GRID).reshape(-1) / GRID if entity == "rewards" else values.tolist()
            cells = makers[entity].columns(**{field: flat}).partition([len(flat) // len(frames)] * len(frames))
            self.recording.send_columns(entity, indexes=axes, columns=cells)
        self.rows = {}
