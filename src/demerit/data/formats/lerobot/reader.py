"""LeRobot datasets, versions 2.0, 2.1 and 3.0, read without the lerobot package.

Nothing is decoded and no video is opened while episodes stream by. Version 3 keeps many episodes in one file: each
camera becomes a clip between two moments of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from demerit.data.dataset import Problem, Record
from demerit.data.episode import Episode, Origin, safe_name
from demerit.data.formats.lerobot.entries import Clip, Entry, entries, episode_columns, read_tasks
from demerit.data.formats.lerobot.info import FRAME_SUCCESS, Info, card_licence, read_info, stays_inside
from demerit.data.formats.lerobot.outcomes import LABEL_COLUMNS, verdicts
from demerit.data.formats.lerobot.rows import DataFiles, EpisodeRows, ParquetImages, ParquetSignals
from demerit.data.frames import Frames
from demerit.data.video import VideoClip
from demerit.errors import BadInput, StoreError, UnknownName

__all__ = ["LeRobotReader", "ParquetImages", "ParquetSignals"]


class LeRobotReader:
    """Streams the episodes of one LeRobot folder.

    No outcome is assumed: demonstrations without a success column come without an outcome.
    """

    def __init__(self, path: str | Path, *, outcome_key: str | None = None) -> None:
        """`outcome_key` names the column that tells success, per frame or per episode, if it has an unusual name."""
        self.info = read_info(path)
        where = "meta/episodes" if self.info.version == "v3.0" else "meta/episodes.jsonl"
        if not (self.info.root / where).exists():
            raise BadInput(f"LeRobot dataset {self.info.root}", f"{where}, as {self.info.version} has it", "none")
        self._success_key, self._frame_key = _success_columns(self.info, outcome_key)
        signals = self.info.signals()
        self._signals = {name: key for name, key in signals.items() if key != self._frame_key}
        self._licence = card_licence(self.info.root)

    @property
    def name(self) -> str:
        """The folder's name."""
        return safe_name(self.info.root.resolve().name)

    def expected(self) -> int | None:
        """How many episodes meta/info.json promises."""
        return self.info.total_episodes

    def records(self) -> Iterator[Record]:
        """Stream episodes and problems in the order of the metadata."""
        tasks, problems = read_tasks(self.info)
        yield from problems
        for split in self.info.unread_splits:
            yield Problem("unreadable split", "meta/info.json", f"expected first:stop, got {split}", kept=True)
        labels = list(dict.fromkeys([*LABEL_COLUMNS, *([self._success_key] if self._success_key else [])]))
        wanted = ["task_index", *([self._frame_key] if self._frame_key else [])]
        pass_ = _Pass(self, tasks, DataFiles(wanted, shared=self.info.version == "v3.0"))
        listed = 0
        for entry in entries(self.info, labels):
            if isinstance(entry, Problem):
                yield entry
            else:
                listed += 1
                yield from pass_.episode(entry)
        if self.info.total_episodes not in (None, listed):
            detail = f"meta/info.json promises {self.info.total_episodes} episodes, the metadata lists {listed}"
            yield Problem("episode count differs", self.name, detail, kept=True)


class _Pass:
    """One pass over the dataset: what was learnt on the way and the problems of the episode at hand."""

    def __init__(self, reader: LeRobotReader, tasks: dict[int, str], files: DataFiles) -> None:
        self._reader, self._info, self._tasks, self._files = reader, reader.info, tasks, files
        self._name, self._cameras = reader.name, reader.info.cameras()
        # Episodes of version 3 share a few video files: ask the file system once for each.
        self._is_file = lru_cache(maxsize=1024)(Path.is_file)

    def episode(self, entry: Entry) -> Iterator[Record]:
        """Make one episode, after the problems that it has; or say why it had to be left out."""
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
            lost = [problem.detail for problem in problems if problem.kind in ("missing video", "missing images")]
            yield Problem("missing video", id, "; ".join(lost) or "the dataset has no camera", kept=False)
            return
        made = self._made(id, entry, rows, views, problems)
        yield from problems
        yield made

    def _made(
        self, id: str, entry: Entry, rows: EpisodeRows | None, views: dict[str, Frames], problems: list[Problem]
    ) -> Episode:
        tasks = entry.tasks or self._tasks_of(rows)
        if not tasks:
            problems.append(Problem("empty instruction", id, "neither the metadata nor the data names a task", True))
        key = self._reader._frame_key
        columns = {} if rows is None else rows.columns
        verdict = verdicts(entry.labels, self._reader._success_key, columns.get(key or ""), key)
        problems.extend(Problem(kind, id, detail, kept=True) for kind, detail in verdict.complaints)
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
        return Episode(id, "; ".join(tasks), views, verdict.outcomes, origin, signals)

    def _rows(self, id: str, entry: Entry, problems: list[Problem]) -> EpisodeRows | None:
        path = self._info.root / entry.data
        if not self._is_file(path):
            problems.append(Problem("missing data", id, f"there is no {entry.data}", kept=True))
            return None
        try:
            rows = self._files.rows(path, entry.index)
        except StoreError as broken:
            problems.append(Problem("unreadable data", id, f"{entry.data}: {broken.reason}", kept=True))
            return None
        if rows is None or not rows.count:
            problems.append(Problem("missing data", id, f"{entry.data} has no row of this episode", kept=True))
            return None
        return rows

    def _length(self, id: str, entry: Entry, rows: EpisodeRows | None, problems: list[Problem]) -> int | None:
        """The number of frames if everybody agrees on it; otherwise None, and the video itself must tell."""
        said: dict[str, int] = {} if entry.length is None else {"the metadata": entry.length}
        if rows is not None:
            said["the data"] = rows.count
        for key, clip in entry.clips.items():
            if clip.start is not None and clip.stop is not None:
                said[f"the clip of {key}"] = round((clip.stop - clip.start) * self._info.fps)
        if len(set(said.values())) > 1:
            detail = ", ".join(f"{who} says {count} frames" for who, count in said.items())
            problems.append(Problem("length disagrees", id, detail, kept=True))
            return None
        return next(iter(said.values()), None)

    def _views(
        self, id: str, entry: Entry, rows: EpisodeRows | None, length: int | None, problems: list[Problem]
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

    def _clip(self, clip: Clip, length: int | None) -> VideoClip:
        return VideoClip(str(self._info.root / clip.path), clip.start, clip.stop, length)

    def _tasks_of(self, rows: EpisodeRows | None) -> tuple[str, ...]:
        if rows is None or "task_index" not in rows.columns:
            return ()
        texts = [self._tasks.get(index, "").strip() for index in dict.fromkeys(rows.columns["task_index"].tolist())]
        return tuple(text for text in texts if text)


def _success_columns(info: Info, outcome_key: str | None) -> tuple[str | None, str | None]:
    """The episode-level and the per-frame column that tell success; a column the user names is the only one."""
    if outcome_key is None:
        return "success", FRAME_SUCCESS if FRAME_SUCCESS in info.features else None
    if outcome_key in info.features:
        return None, outcome_key
    episode_level = [name for name in episode_columns(info) if "/" not in name]
    if outcome_key in episode_level:
        return outcome_key, None
    raise UnknownName("outcome column", outcome_key, [*info.features, *episode_level])
