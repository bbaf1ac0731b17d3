"""RBM-1M, the data of Robometer: one video a row, with a word for its quality.

A row has id, task, data_source, frames (a path to an mp4), is_robot, quality_label (successful, suboptimal or failure)
and partial_success (0 to 1, or nothing); lang_vector is never read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from demerit.data.dataset import Problem, Record
from demerit.data.episode import Episode, Origin
from demerit.data.formats.videos import (
    Row,
    checked,
    count_rows,
    dataset_folder,
    dataset_name,
    find_video,
    read_fraction,
    read_rows,
    read_success,
    sentence,
    shown,
    text,
    video_id,
)
from demerit.data.frames import Frames
from demerit.data.labels import Outcome
from demerit.data.video import VideoClip
from demerit.errors import BadEpisode, BadInput

COLUMNS = ("id", "task", "data_source", "frames", "is_robot", "quality_label", "partial_success")
METADATA_SUFFIXES = (".jsonl", ".parquet", ".json")
NOT_ROWS = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"})
SUCCESS_OF_QUALITY = {"successful": True, "suboptimal": False, "failure": False}


@dataclass(frozen=True)
class RbmReader:
    """Reads every .jsonl, .parquet and .json file of rows in the folder, by path.

    Who vouches: RBM joins datasets whose labels come from people, from how the data were collected and from heuristics,
    and a row does not say which, so each is vouched for by a "rule", which is trusted less than a person. Successful is
    a success; suboptimal and failure are not. The word itself stays in the tag "quality". The rows of people's own
    hands (is_robot false) have the embodiment "human".

    A video's path is relative to the dataset's folder, or else to the folder of the file that names it.
    """

    path: str | Path

    def __post_init__(self) -> None:
        """Refuse a folder without rows."""
        if not self._manifests:
            raise BadInput("the RBM dataset", f"a file ending in {', '.join(METADATA_SUFFIXES)}", str(self.root))

    @cached_property
    def root(self) -> Path:
        """The dataset's folder."""
        return dataset_folder(self.path, "RBM")

    @property
    def name(self) -> str:
        """The folder's name."""
        return dataset_name(self.root, "rbm")

    def expected(self) -> int | None:
        """As many episodes as there are rows; None when a file cannot be counted."""
        try:
            return sum(count_rows(manifest) for manifest in self._manifests)
        except BadInput:
            return None

    def records(self) -> Iterator[Record]:
        """Stream the rows, file by file."""
        for manifest in self._manifests:
            try:
                for row in read_rows(manifest, COLUMNS):
                    if isinstance(row, Problem):
                        yield row
                    else:
                        yield from self._episode(manifest.parent, row)
            except BadInput as bad:  # the other files may be whole
                yield Problem("unreadable manifest", manifest.name, sentence(bad), kept=False)

    @cached_property
    def _manifests(self) -> list[Path]:
        found = []
        for folder, inner, names in os.walk(self.root):
            inner[:] = sorted(name for name in inner if not name.startswith("."))
            rows = (name for name in names if name.endswith(METADATA_SUFFIXES) and name not in NOT_ROWS)
            found += [Path(folder, name) for name in rows if not name.startswith(".")]
        return sorted(found)

    def _episode(self, folder: Path, row: Row) -> Iterator[Record]:
        given = row.fields.get("frames")
        episode = text(row.fields.get("id"))
        problems: list[Problem] = []
        video = find_video(self.root, given, shown(episode or row.where))
        if isinstance(video, Problem) and video.kind == "missing video" and folder != self.root and given:
            beside = find_video(folder, given, shown(episode or row.where))
            video = beside if isinstance(beside, Path) else video
        if isinstance(video, Problem):
            yield video
            return
        if not episode:
            episode = video_id(self.root, video)
            problems.append(Problem("absent id", shown(episode), f"{row.where} has no id: the path is used", kept=True))
        instruction = text(row.fields.get("task"))
        if not instruction:
            problems.append(Problem("empty instruction", shown(episode), f"{row.where} has no task", kept=True))
        outcomes = _outcomes(row, shown(episode), problems)
        origin = _origin(self.name, row, shown(episode), problems)
        yield from problems
        try:
            yield Episode(episode, instruction, {"main": Frames(VideoClip(str(video)))}, outcomes, origin)
        except BadEpisode as bad:
            yield Problem("unusable id", shown(episode), sentence(bad), kept=False)


def _read_quality(name: str, value: object) -> str | None:
    word = text(value).lower()
    if word and word not in SUCCESS_OF_QUALITY:
        raise BadInput(name, f"one of {', '.join(SUCCESS_OF_QUALITY)}", shown(repr(value)))
    return word or None


def _outcomes(row: Row, episode: str, problems: list[Problem]) -> tuple[Outcome, ...]:
    quality = checked(_read_quality, "quality_label", row.fields.get("quality_label"), episode, problems)
    progress = checked(read_fraction, "partial_success", row.fields.get("partial_success"), episode, problems)
    if quality is None and progress is None:
        return ()
    success = None if quality is None else SUCCESS_OF_QUALITY[quality]
    return (Outcome("rule", success=success, progress=progress, by="rbm quality_label"),)


def _origin(dataset: str, row: Row, episode: str, problems: list[Problem]) -> Origin:
    source = text(row.fields.get("data_source"))
    is_robot = checked(read_success, "is_robot", row.fields.get("is_robot"), episode, problems)
    tags = {"data_source": source, "quality": text(row.fields.get("quality_label"))}
    return Origin(
        dataset=f"{dataset}/{source}" if source else dataset,
        embodiment="human" if is_robot is False else "",
        tags={name: value for name, value in tags.items() if value},
    )
