"""A folder of videos, with or without a label file; and what other readers of videos share.

A row that cannot be used is reported with its file and line and never stops the others. A path in a row is followed
only within the dataset's folder.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, ClassVar

import numpy.typing as npt

from demerit.data.dataset import NO_INSTRUCTION, Problem, Record
from demerit.data.episode import Episode, Origin, Outcome, count_episodes, safe_name
from demerit.data.files import is_file, path_inside
from demerit.data.formats.label_file import (
    COLUMNS,
    VIDEO_SUFFIXES,
    LabelCells,
    LabelRow,
    count_rows,
    detail_of,
    parse_cell,
    printable,
    read_outcomes,
    read_rows,
    text,
)
from demerit.data.frames import Frames, file_state
from demerit.data.video import VideoClip
from demerit.errors import BadEpisode, BadInput, UnreadableVideo

LABEL_FILES = (
    "labels.csv",
    "labels.jsonl",
    "labels.json",
    "metadata.csv",
    "metadata.jsonl",
    "episodes.jsonl",
    "index.json",
)
SPLIT_WORDS = frozenset({"train", "training", "val", "valid", "validation", "test"})
_VIEW = r"left|right|top|wrist|front|back|side|third_person"
_CAMERA = rf"""
    (?:{_VIEW})                                                  # left
    | (?:cam|camera)[_-]?[a-z0-9]+(?:_[a-z0-9]+)?                # cam0, cam_high, camera_left_wrist
    | (?:{_VIEW})_(?:wrist|shoulder|hand|gripper|cam|camera)     # left_wrist
"""
CAMERA_NAME = re.compile(_CAMERA, re.IGNORECASE | re.VERBOSE)
TRIAL_AND_CAMERA = re.compile(rf"(.+?)_({_CAMERA})", re.IGNORECASE | re.VERBOSE)
ODD_SHARE = 0.2
"""of the trials in a folder, at most so many (or one) have other cameras than the rest"""


DATE_AND_TIME = re.compile(r"(?<!\d)(20\d\d)[-_.]?(\d\d)[-_.]?(\d\d)[-_.T ]*(\d\d)[-_.:h]?(\d\d)[-_.:m]?(\d\d)(?!\d)")
"""in the name of a video, as cameras and recorders write it: when it began, by the clock on the wall"""
SLACK, CLOSING = 2.0, 300.0
"""seconds by which the times in names are rounded, and within which a recorder closes the file of a video"""


@dataclass(frozen=True)
class SharedCameras:
    """The cameras that most trials of a folder have, by the names of the videos."""

    cameras: frozenset[str]
    whole: int
    """trials with exactly these cameras"""
    trials: int
    """trials with some camera"""
    others: int
    """videos beside them whose names name no camera"""

    @property
    def are_cameras(self) -> bool:
        """Whether the names mean cameras: nearly all trials have the same ones, and few videos have other names."""
        return self.trials - self.whole <= max(1, ODD_SHARE * self.trials) and self.others <= self.whole


@dataclass(frozen=True)
class FolderReader:
    """The part that readers of a folder share. Subclasses set `format` and add `records` and `expected`."""

    path: str | Path
    format: ClassVar[str]

    @cached_property
    def root(self) -> Path:
        """The dataset's folder, as an absolute path."""
        folder = Path(self.path)
        if not folder.is_dir():
            hint = " (a file; did you mean its folder?)" if folder.is_file() else ""
            raise BadInput(f"the {self.format} dataset", "an existing folder", f"{str(self.path)!r}{hint}")
        return folder.resolve()

    @property
    def name(self) -> str:
        """The folder's name, or the format if no character of it can be kept."""
        try:
            return safe_name(self.root.name)
        except BadInput:
            return self.format.lower()


@dataclass(frozen=True)
class VideosReader(FolderReader):
    """Reads every video under a folder; a label file adds instructions and labels.

    `labels` is a CSV, JSON or JSON lines file; the default is the first of LABEL_FILES in the folder. docs/labels.md
    describes its columns: COLUMNS, and further cameras. Other columns become tags.

    Rows come first, in order, then videos without a row, by path. Videos whose paths differ only in a camera's name
    (`07_left.mp4` and `07_right.mp4`, `cam_high/07.mp4` and `cam_low/07.mp4`) are one episode. Nothing else is guessed
    from file names: a video without an instruction gets an empty one and is counted. Hidden files and folders are
    ignored.
    """

    format = "videos"
    labels: str | None = field(default=None, kw_only=True)
    only: Sequence[Path] | None = field(default=None, kw_only=True)
    """read only these videos of the folder, with their rows; absolute paths"""
    pair_cameras: bool = field(default=True, kw_only=True)
    """find the cameras of an episode by their names; False = only where a row of the label file names them"""
    times: str = field(default="", kw_only=True)
    """what says when a video was recorded: `name`, or `file`, its time of modification; empty = both, if they agree"""

    def __post_init__(self) -> None:
        if self.times not in ("", "name", "file"):
            raise BadInput("times", "name or file", repr(self.times))
        self._label_files  # noqa: B018  # refuses a label file that is not there

    def expected(self) -> int:
        """The number of rows of the label file; without one, of trials and other videos."""
        if self._label_files and self.only is None:
            return count_rows(self._label_files[0])
        videos = videos_under(self.root) if self.only is None else self.only
        return len({self._trials[path][0] if path in self._trials else path for path in videos})

    def records(self) -> Iterator[Record]:
        """Stream the rows, then the videos without a row."""
        users: dict[Path, str] = {}
        columns: set[str] = set()
        yield from report_others(self._label_files)
        for row in read_rows(self._label_files[0]) if self._label_files else ():
            if isinstance(row, Problem):
                yield row
            else:
                cells = LabelCells(row)
                yield from cells.misspelt(columns)
                yield from self._read_labelled(row, cells, users)
        for path in videos_under(self.root) if self.only is None else self.only:
            if path not in users:
                yield from self._read_unlabelled(path, users)

    def recorded(self, episode: Episode) -> tuple[float, float]:
        """Return when an episode began and ended: by the date and time in its name, else by when its file was closed.

        Raises BadInput where the two disagree: the file is a copy, or its name has another time zone or meaning.
        """
        path = str(episode.main.source.describe()["path"])
        closed = file_state(path)[1] / 1e9
        try:
            length = float(max(episode.main.times(), default=0.0))
        except UnreadableVideo:
            length = 0.0
        begun = None if self.times == "file" else read_time(PurePath(episode.id).name)
        if begun is None and self.times != "name":
            return closed - length, closed
        if begun is None or not (self.times == "name" or -SLACK <= closed - length - begun <= CLOSING):
            start, at = (
                None if moment is None else f"{datetime.fromtimestamp(moment):%Y-%m-%d %H:%M:%S}"
                for moment in (begun, closed)
            )
            expected = (
                "names with the time of the start, soon after whose end the file was closed (--with times=name or "
            )
            got = f"a file closed at {at}, and {f'{start} in its name' if start else 'no date and time in its name'}"
            raise BadInput(f"the time of {printable(episode.id)}", f"{expected}times=file: use only one)", got)
        return begun, begun + length

    @cached_property
    def _label_files(self) -> list[Path]:
        return find_label_files(self.root, self.labels)

    def notes(self) -> list[str]:
        """Say which cameras were found by their names, or why they are not used, and how to change that."""
        paths = self._trials if self.only is None else [path for path in self.only if path in self._trials]
        trials = dict(self._trials[path] for path in paths)
        if trials:
            (cameras, _), *_ = Counter(tuple(views) for views in trials.values()).most_common(1)
            summary = f"{count_episodes(len(trials))} with the cameras {', '.join(cameras)}, by the names of the videos"
            return [printable(f"{self.name}: {summary} (to turn this off: --with pair-cameras=false)")]
        return [
            f"{printable(folder.name)}: only {shared.whole} of {shared.trials + shared.others} trials have the cameras "
            f"{', '.join(sorted(shared.cameras))}, so each video is an episode of its own (see docs/labels.md)"
            for folder, shared in self._named[1].items()
            if not shared.are_cameras
        ][:1]

    @cached_property
    def _trials(self) -> Mapping[Path, tuple[Path, dict[str, Path]]]:
        """The trial that a video is a camera of, by its name: the path without the camera, and all cameras.

        Nearly all trials of a folder must have the same cameras, so that names which end like a camera's by chance join
        nothing; then a trial that lacks one is a trial too. Videos that have a row each, and those beside a video with
        the trial's name, are episodes of their own.
        """
        trials, folders = self._named
        shared = {folder: group.cameras for folder, group in folders.items() if group.are_cameras}
        rows = Counter(parts[0] for parts in map(self._split, self._row_videos() if shared else ()) if parts)
        return {
            path: (trial, views)
            for trial, views in trials.items()
            if rows[trial] < 2 and views.keys() & shared.get(trial.parent, ())  # noqa: PLR2004
            for path in views.values()
        }

    @cached_property
    def _named(self) -> tuple[dict[Path, dict[str, Path]], dict[Path, SharedCameras]]:
        """Videos by trial and camera, as their names say, and by folder the cameras that most trials share."""
        trials: dict[Path, dict[str, Path]] = {}
        videos = list(videos_under(self.root, is_deep=self.only is None)) if self.pair_cameras else []
        trial_names = {path.with_suffix("") for path in videos}
        for path in videos:
            if (parts := self._split(path)) and parts[0] not in trial_names:
                trials.setdefault(parts[0], {}).setdefault(parts[1], path)
        others = Counter(path.parent for path in videos if not self._split(path))
        sets: dict[Path, Counter[frozenset[str]]] = {}
        for trial, views in trials.items():
            sets.setdefault(trial.parent, Counter())[frozenset(views)] += 1
        folders = {}
        for folder, counts in sets.items():
            if several := [cameras for cameras in counts if len(cameras) > 1]:
                cameras = max(several, key=lambda names: (counts[names], len(names), sorted(names)))
                folders[folder] = SharedCameras(cameras, counts[cameras], counts.total(), others[folder])
        return trials, folders

    def _split(self, path: Path) -> tuple[Path, str] | None:
        return split_camera(self.root, path)

    def _row_videos(self) -> Iterator[Path]:
        """List the main video of each row."""
        for row in read_rows(self._label_files[0]) if self._label_files else ():
            if isinstance(row, LabelRow):
                video = find_video(self.root, _cameras(LabelCells(row))[1].get("main"), row.where)
                yield from [video] if isinstance(video, Path) else []

    def _name_cameras(self, videos: dict[str, Path]) -> tuple[str, dict[str, Path]]:
        """Return an episode's id and cameras: those of the trial, if all of its videos are cameras of it."""
        first = next(iter(videos.values()))
        trial, views = self._trials.get(first, (first, {}))
        if "main" not in videos or not set(videos.values()) <= set(views.values()):
            return video_id(self.root, first), videos
        main = {camera: path for camera, path in views.items() if path == first}
        return trial.relative_to(self.root).as_posix(), main | views

    def _read_unlabelled(self, path: Path, used: dict[Path, str]) -> Iterator[Record]:
        _, views = self._trials.get(path, (path, {"main": path}))
        episode, cameras = self._name_cameras({"main": next(iter(views.values()))})
        used.update(dict.fromkeys(cameras.values(), episode))
        files = {
            camera: find_video(self.root, place.relative_to(self.root).as_posix(), printable(episode))
            for camera, place in cameras.items()
        }
        videos = {camera: file for camera, file in files.items() if isinstance(file, Path)}
        yield from (replace(file, kept=bool(videos)) for file in files.values() if isinstance(file, Problem))
        if not videos:
            return
        if self._label_files:
            detail = (
                f"{self._label_files[0].name} has no row for it: instruction and outcome are unknown (another camera "
                "of a trial belongs in the trial's row, column NAME_view)"
            )
            yield Problem("video without a row", printable(episode), detail, kept=True)
        else:
            yield Problem(NO_INSTRUCTION, printable(episode), "there is no label file", kept=True)
        yield build_episode(episode, "", videos, (), Origin(dataset=self.name))

    def _read_labelled(self, row: LabelRow, cells: LabelCells, used: dict[Path, str]) -> Iterator[Record]:
        problems: list[Problem] = []
        name, cameras = _cameras(cells)
        if not cameras:
            names = ", ".join(("file", *COLUMNS["file"]))
            yield Problem("missing video", row.where, f"no column names its video (one of {names})", kept=False)
            return
        videos: dict[str, Path] = {}
        for camera, cell in cameras.items():
            video = find_video(self.root, cell, printable(name or text(cell) or row.where))
            if isinstance(video, Path):
                videos[camera] = video
            else:
                problems.append(video)
        if not videos:
            if self.only is None:
                yield problems[0]
            return
        first = next(iter(videos.values()))
        episode, videos = (name, videos) if name else self._name_cameras(videos)
        if self.only is not None and not set(self.only) & set(videos.values()):
            return
        problems = [Problem(problem.kind, printable(episode), problem.detail, kept=True) for problem in problems]
        if first in used:
            detail = f"{row.where} names the video of {used[first]} again and is skipped"
            yield Problem("second row for a video", printable(episode), detail, kept=False)
            return
        used.update(dict.fromkeys(videos.values(), row.where))
        instruction = text(cells.take("instruction"))
        if not instruction:
            problems.append(Problem(NO_INSTRUCTION, printable(episode), f"{row.where} gives none", kept=True))
        outcomes = read_outcomes(cells, Frames(VideoClip(str(first))), printable(episode), problems)
        yield from problems
        yield build_episode(episode, instruction, videos, outcomes, read_origin(self.name, cells))


def find_label_files(root: Path, labels: str | None) -> list[Path]:
    """Find the label file that was named, or those of LABEL_FILES in the folder: the first is read."""
    if labels is None:
        return [root / name for name in LABEL_FILES if (root / name).is_file()]
    places = [place for place in (Path(labels).absolute(), root / labels) if place.is_file()]
    if not places:
        raise BadInput("labels", f"a file, or nothing to look for {', '.join(LABEL_FILES)}", repr(labels))
    return places[:1]


def report_others(label_files: Sequence[Path]) -> Iterator[Problem]:
    """Report the label files that are not read."""
    for extra in label_files[1:]:
        detail = f"ignored, because {label_files[0].name} exists; choose with labels="
        yield Problem("second label file", extra.name, detail, kept=True)


def videos_under(root: Path, is_deep: bool = True) -> Iterator[Path]:
    """List the video files under a folder, by path, also those of its folders; links to folders are not followed."""
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if is_deep and not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(VIDEO_SUFFIXES) and not name.startswith("."):
                yield Path(folder, name)


def build_episode(
    id: str,
    instruction: str,
    videos: Mapping[str, Path | VideoClip],
    outcomes: tuple[Outcome, ...],
    origin: Origin,
    signals: Mapping[str, npt.NDArray[Any]] | None = None,
) -> Record:
    """Build an episode of videos by camera; a problem if the id cannot be used."""
    clips = {camera: VideoClip(str(video)) if isinstance(video, Path) else video for camera, video in videos.items()}
    try:
        return Episode(
            id,
            instruction,
            {name: Frames(clip) for name, clip in clips.items()},
            outcomes,
            origin,
            {} if signals is None else signals,
        )
    except BadEpisode as bad:
        return Problem("unusable id", printable(id), detail_of(bad), kept=False)


def _cameras(cells: LabelCells) -> tuple[str, dict[str, Any]]:
    """Return the row's id (used only without a file) and the video of each camera."""
    several = parse_cell(cells.take("videos"))
    others = {str(camera): path for camera, path in several.items()} if isinstance(several, dict) else {}
    others |= cells.cameras()
    file = cells.take("file")
    if file is not None:
        return "", {"main": file, **others}
    name = cells.take("id")
    if others:
        return text(name), others
    return "", {} if name is None else {"main": name}


def read_origin(dataset: str, cells: LabelCells) -> Origin:
    """Read where an episode comes from; columns that nobody took become tags."""
    split, group = text(cells.take("split")), text(cells.take("group"))
    if not split and group.lower() in SPLIT_WORDS:
        # A group called "test" is a split.
        split, group = group, ""
    return Origin(
        dataset=dataset,
        licence=text(cells.take("licence")),
        embodiment=text(cells.take("embodiment")),
        site=text(cells.take("site")),
        split=split,
        group=group,
        tags=cells.tags(),
    )


def find_video(root: Path, given: object, episode: str) -> Path | Problem:
    """Find the video that a row names relative to `root`, with or without extension; a problem if it cannot be used.

    Absolute paths, '..' and links out of the folder are refused: a downloaded dataset must not read other files.
    """
    if not isinstance(given, str) or not given.strip():
        got = "nothing" if given is None or given == "" else printable(repr(given))[:60]
        return Problem("missing video", episode, f"expected the name of a video file, got {got}", kept=False)
    wanted, other = given.strip(), ""
    for suffix in ("", *VIDEO_SUFFIXES):
        video = path_inside(root, wanted + suffix)
        if video is None:
            detail = (
                f"{wanted!r} is not a path inside the dataset folder (no '..', no absolute path, no link out of it)"
            )
            return Problem("path leaves the folder", episode, detail, kept=False)
        if not is_file(video):
            continue
        if video.suffix.lower() not in VIDEO_SUFFIXES:
            other = f"; the file of that name is not a video ({', '.join(VIDEO_SUFFIXES)})"
        elif video.stat().st_size == 0:
            return Problem("empty video", episode, f"{wanted!r} has 0 bytes", kept=False)
        else:
            return video
    return Problem("missing video", episode, f"there is no video {wanted!r} in the dataset folder{other}", kept=False)


def split_camera(root: Path, path: Path) -> tuple[Path, str] | None:
    """Split the path of a video into trial and camera; None if it names no camera.

    `07_left.mp4`, `07/left.mp4` and `left/07.mp4` are the camera `left` of the trial `07`.
    """
    is_inside = path.parent != root
    if is_inside and CAMERA_NAME.fullmatch(path.stem):
        return path.parent, path.stem.lower()
    if match := TRIAL_AND_CAMERA.fullmatch(path.stem):
        return path.with_name(match[1]), match[2].lower()
    if is_inside and CAMERA_NAME.fullmatch(path.parent.name):
        return path.parent.with_name(path.stem), path.parent.name.lower()
    return None


def read_time(name: str) -> float | None:
    """Read the date and time in a name, by the clock of this place: seconds since 1970.

    >>> read_time("run_3") is None, read_time("2026-11-18_14-03-22") == read_time("VID_20261118_140322")
    (True, True)
    """
    match = DATE_AND_TIME.search(name)
    try:
        return None if match is None else datetime(*map(int, match.groups())).timestamp()  # type: ignore[arg-type]
    except ValueError:
        return None


def video_id(root: Path, path: Path) -> str:
    """The id of a video: its path in the folder, without extension."""
    return path.relative_to(root).with_suffix("").as_posix()
