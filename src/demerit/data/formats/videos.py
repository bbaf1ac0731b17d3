"""A folder of videos, with or without a file that says what they show."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from demerit.data.dataset import Problem, Record
from demerit.data.episode import Episode, Origin
from demerit.data.formats.label_columns import Columns, parsed, read_outcomes
from demerit.data.formats.manifest import (
    VIDEO_SUFFIXES,
    Row,
    count_rows,
    dataset_folder,
    dataset_name,
    find_video,
    read_rows,
    sentence,
    shown,
    text,
    video_id,
)
from demerit.data.frames import Frames
from demerit.data.labels import Outcome
from demerit.data.video import VideoClip
from demerit.errors import BadEpisode, BadInput

LABEL_FILES = (
    "labels.csv",
    "labels.jsonl",
    "labels.json",
    "metadata.csv",
    "metadata.jsonl",
    "episodes.jsonl",
    "index.json",
)
FILE = ("file", "file_name", "path", "video", "id")
INSTRUCTION = ("instruction", "task", "language_instruction", "prompt")
GROUP = ("group", "session", "scene")
SPLIT_WORDS = frozenset({"train", "training", "val", "valid", "validation", "test"})


@dataclass(frozen=True)
class VideosReader:
    """Reads every video under a folder; a label file adds what people know about them.

    `labels` is a CSV, JSON or JSON lines file; without it the first of LABEL_FILES in the folder is taken. A row names
    its video in `file` (also file_name, path, video or id; the extension may be missing), or several cameras at once in
    `videos`, a mapping from camera to file, or in columns called `camera:NAME`. The other columns, all optional:

        instruction (task, language_instruction, prompt)
        success (binary_success)      true or false
        progress (partial_success)    0 to 1; 0 to 100 is refused rather than guessed
        grade (reward)                1 to 5
        note (feedback)               why
        by (vouched_by)               who judged, by name
        source                        human, simulator, rule, edit, model; absent: human, as a person wrote the file
        curve (progress_curve)        progress at every frame, by `curve_by`; `curve_source` is model when absent
        events                        failures in time: [{"kind": "dropped", "first": 12, "last": 14}, ...]
        split, group (session, scene), site (location), licence (license), embodiment (robot)

    Whatever else is in a row becomes a tag. Rows come first, in their order, then the videos that no row names, by
    path. Nothing is taken from file names: a video without an instruction has the empty one, and is counted. Files and
    folders whose names begin with a dot are not looked at.
    """

    path: str | Path
    labels: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse a folder or a label file that is not there."""
        if not self.root.is_dir() or (self.labels is not None and not self._label_files):
            known = ", ".join(LABEL_FILES)
            raise BadInput("labels", f"a file, or nothing to look for {known}", repr(self.labels))

    @cached_property
    def root(self) -> Path:
        """The dataset's folder."""
        return dataset_folder(self.path, "videos")

    @property
    def name(self) -> str:
        """The folder's name."""
        return dataset_name(self.root, "videos")

    def expected(self) -> int:
        """As many episodes as the label file has rows; without one, as there are videos."""
        return count_rows(self._label_files[0]) if self._label_files else sum(1 for _ in videos_under(self.root))

    def records(self) -> Iterator[Record]:
        """Stream the rows, then the videos without one."""
        used: dict[Path, str] = {}
        for extra in self._label_files[1:]:
            detail = f"not read, because {self._label_files[0].name} is there; choose with labels="
            yield Problem("second label file", extra.name, detail, kept=True)
        for row in read_rows(self._label_files[0]) if self._label_files else ():
            if isinstance(row, Problem):
                yield row
            else:
                yield from self._labelled(row, used)
        for path in videos_under(self.root):
            if path not in used:
                yield from self._unlabelled(path)

    @cached_property
    def _label_files(self) -> list[Path]:
        if self.labels is not None:
            places = [Path(self.labels).absolute(), self.root / self.labels]
            return [place for place in places if place.is_file()][:1]
        return [self.root / name for name in LABEL_FILES if (self.root / name).is_file()]

    def _unlabelled(self, path: Path) -> Iterator[Record]:
        episode = video_id(self.root, path)
        video = find_video(self.root, path.relative_to(self.root).as_posix(), shown(episode))
        if isinstance(video, Problem):
            yield video
            return
        if self._label_files:
            detail = f"no row of {self._label_files[0].name} names it: instruction and outcome are unknown"
            yield Problem("video without a row", shown(episode), detail, kept=True)
        else:
            yield Problem("empty instruction", shown(episode), "there is no label file", kept=True)
        yield from _built(episode, "", {"main": video}, (), Origin(dataset=self.name))

    def _labelled(self, row: Row, used: dict[Path, str]) -> Iterator[Record]:
        columns = Columns(row.fields)
        problems: list[Problem] = []
        named, cameras = _cameras(columns)
        videos: dict[str, Path] = {}
        for camera, given in cameras.items():
            video = find_video(self.root, given, shown(named or text(given) or row.where))
            if isinstance(video, Path):
                videos[camera] = video
            else:
                problems.append(video)
        if not videos:
            yield problems[0]
            return
        first = next(iter(videos.values()))
        episode = named or video_id(self.root, first)
        problems = [Problem(problem.kind, shown(episode), problem.detail, kept=True) for problem in problems]
        if first in used:
            detail = f"{row.where} names the video of {used[first]} again and is left out"
            yield Problem("second row for a video", shown(episode), detail, kept=False)
            return
        used.update(dict.fromkeys(videos.values(), row.where))
        instruction = text(columns.take(*INSTRUCTION))
        if not instruction:
            problems.append(Problem("empty instruction", shown(episode), f"{row.where} gives none", kept=True))
        outcomes = read_outcomes(columns, shown(episode), problems)
        yield from problems
        yield from _built(episode, instruction, videos, outcomes, _origin(self.name, columns))


def videos_under(root: Path) -> Iterator[Path]:
    """Walk over the video files under a folder, by path; links to folders are not followed."""
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(VIDEO_SUFFIXES) and not name.startswith("."):
                yield Path(folder, name)


def _built(
    episode: str, instruction: str, videos: Mapping[str, Path], outcomes: tuple[Outcome, ...], origin: Origin
) -> Iterator[Record]:
    try:
        views = {camera: Frames(VideoClip(str(path))) for camera, path in videos.items()}
        yield Episode(episode, instruction, views, outcomes, origin)
    except BadEpisode as bad:
        yield Problem("unusable id", shown(episode), sentence(bad), kept=False)


def _cameras(columns: Columns) -> tuple[str, dict[str, Any]]:
    """Return the row's own id, which counts only where several videos make one episode, and the video per camera."""
    several = parsed(columns.take("videos"))
    cameras = {str(camera): path for camera, path in several.items()} if isinstance(several, dict) else {}
    cameras |= columns.cameras()
    if cameras:
        return text(columns.take("id")), cameras
    return "", {"main": columns.take(*FILE)}


def _origin(dataset: str, columns: Columns) -> Origin:
    split, group = text(columns.take("split")), text(columns.take(*GROUP))
    if not split and group.lower() in SPLIT_WORDS:
        # Nothing was recorded together under the name "test": whoever wrote this meant the split.
        split, group = group, ""
    return Origin(
        dataset=dataset,
        licence=text(columns.take("licence", "license")),
        embodiment=text(columns.take("embodiment", "robot")),
        site=text(columns.take("site", "location")),
        split=split,
        group=group,
        tags=columns.tags(),
    )
