"""A folder of videos, with or without a label file; and what other readers of videos share.

A row that cannot be used is reported with its file and line and never stops the others. A path in a row is followed
only within the dataset's folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy.typing as npt

from demerit.data.dataset import NO_INSTRUCTION, Problem, Record
from demerit.data.episode import Episode, Origin, safe_name
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
SPLIT_WORDS = frozenset({"train", "training", "val", "valid", "validation", "test"})


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

    Rows come first, in order, then videos without a row, by path. Nothing is guessed from file names: a video without
    an instruction gets an empty one and is counted. Hidden files and folders are ignored.
    """

    format = "videos"
    labels: str | None = field(default=None, kw_only=True)
    only: Sequence[Path] | None = field(default=None, kw_only=True)
    """read only these videos of the folder, with their rows; absolute paths"""

    def __post_init__(self) -> None:
        if not self.root.is_dir() or (self.labels is not None and not self._label_files):
            known = ", ".join(LABEL_FILES)
            raise BadInput("labels", f"a file, or nothing to look for {known}", repr(self.labels))

    def expected(self) -> int:
        """The number of rows of the label file; without one, the number of videos."""
        if self.only is not None:
            return len(self.only)
        return count_rows(self._label_files[0]) if self._label_files else sum(1 for _ in videos_under(self.root))

    def records(self) -> Iterator[Record]:
        """Stream the rows, then the videos without a row."""
        used: dict[Path, str] = {}
        columns: set[str] = set()
        for extra in self._label_files[1:]:
            detail = f"ignored, because {self._label_files[0].name} exists; choose with labels="
            yield Problem("second label file", extra.name, detail, kept=True)
        for row in read_rows(self._label_files[0]) if self._label_files else ():
            if isinstance(row, Problem):
                yield row
            else:
                cells = LabelCells(row)
                yield from cells.misspelt(columns)
                yield from self._read_labelled(row, cells, used)
        for path in videos_under(self.root) if self.only is None else self.only:
            if path not in used:
                yield from self._read_unlabelled(path)

    @cached_property
    def _label_files(self) -> list[Path]:
        if self.labels is not None:
            places = [Path(self.labels).absolute(), self.root / self.labels]
            return [place for place in places if place.is_file()][:1]
        return [self.root / name for name in LABEL_FILES if (self.root / name).is_file()]

    def _read_unlabelled(self, path: Path) -> Iterator[Record]:
        episode = video_id(self.root, path)
        video = find_video(self.root, path.relative_to(self.root).as_posix(), printable(episode))
        if isinstance(video, Problem):
            yield video
            return
        if self._label_files:
            detail = (
                f"{self._label_files[0].name} has no row for it: instruction and outcome are unknown (another camera "
                "of a trial belongs in the trial's row, column NAME_view)"
            )
            yield Problem("video without a row", printable(episode), detail, kept=True)
        else:
            yield Problem(NO_INSTRUCTION, printable(episode), "there is no label file", kept=True)
        yield build_episode(episode, "", {"main": video}, (), Origin(dataset=self.name))

    def _read_labelled(self, row: LabelRow, cells: LabelCells, used: dict[Path, str]) -> Iterator[Record]:
        problems: list[Problem] = []
        named, cameras = _cameras(cells)
        if not cameras:
            names = ", ".join(("file", *COLUMNS["file"]))
            yield Problem("missing video", row.where, f"no column names its video (one of {names})", kept=False)
            return
        videos: dict[str, Path] = {}
        for camera, given in cameras.items():
            video = find_video(self.root, given, printable(named or text(given) or row.where))
            if isinstance(video, Path):
                videos[camera] = video
            else:
                problems.append(video)
        if self.only is not None and not set(self.only) & set(videos.values()):
            return
        if not videos:
            yield problems[0]
            return
        first = next(iter(videos.values()))
        episode = named or video_id(self.root, first)
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
        yield build_episode(episode, instruction, videos, outcomes, _origin(self.name, cells))


def videos_under(root: Path) -> Iterator[Path]:
    """List the video files under a folder, by path; links to folders are not followed."""
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
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


def _origin(dataset: str, cells: LabelCells) -> Origin:
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
        found = path_inside(root, wanted + suffix)
        if found is None:
            detail = (
                f"{wanted!r} is not a path inside the dataset folder (no '..', no absolute path, no link out of it)"
            )
            return Problem("path leaves the folder", episode, detail, kept=False)
        if not is_file(found):
            continue
        if found.suffix.lower() not in VIDEO_SUFFIXES:
            other = f"; the file of that name is not a video ({', '.join(VIDEO_SUFFIXES)})"
        elif found.stat().st_size == 0:
            return Problem("empty video", episode, f"{wanted!r} has 0 bytes", kept=False)
        else:
            return found
    return Problem("missing video", episode, f"there is no video {wanted!r} in the dataset folder{other}", kept=False)


def video_id(root: Path, path: Path) -> str:
    """The id of a video: its path in the folder, without extension."""
    return path.relative_to(root).with_suffix("").as_posix()
