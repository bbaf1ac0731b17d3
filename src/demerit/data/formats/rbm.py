"""RBM-1M, the data of Robometer: one video per row, with a quality label.

A row has id, task, data_source, frames (a path to an mp4), is_robot, quality_label (successful, suboptimal or failure)
and partial_success (0 to 1, or nothing); lang_vector is never read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from demerit.data.dataset import NO_INSTRUCTION, Problem, Record
from demerit.data.episode import Origin, Outcome
from demerit.data.formats.label_file import (
    LabelRow,
    check_label,
    count_rows,
    detail_of,
    printable,
    read_fraction,
    read_rows,
    read_success,
    text,
)
from demerit.data.formats.videos import FolderReader, build_episode, find_video, video_id
from demerit.errors import BadInput

COLUMNS = ("id", "task", "data_source", "frames", "is_robot", "quality_label", "partial_success")
METADATA_SUFFIXES = (".jsonl", ".parquet", ".json")
NOT_ROWS = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"})
SUCCESS_OF_QUALITY = {"successful": True, "suboptimal": False, "failure": False}


@dataclass(frozen=True)
class RbmReader(FolderReader):
    """Reads every .jsonl, .parquet and .json file of rows in the folder, by path.

    Label source: RBM combines labels by people, by collection and by heuristics without saying which, so all are
    "rule". "successful" is a success; "suboptimal" and "failure" are not; the tag "quality" keeps the label. Rows with
    is_robot false have the embodiment "human".

    A video's path is relative to the dataset's folder, or to the folder of the file that names it.
    """

    format = "RBM"

    def __post_init__(self) -> None:
        if not self._manifests:
            raise BadInput("the RBM dataset", f"a file ending in {', '.join(METADATA_SUFFIXES)}", str(self.root))

    def expected(self) -> int | None:
        """The number of rows; None if a file cannot be counted."""
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
            except BadInput as bad:  # continue with the other files
                yield Problem("unreadable manifest", manifest.name, detail_of(bad), kept=False)

    @cached_property
    def _manifests(self) -> list[Path]:
        files = []
        for folder, inner, names in os.walk(self.root):
            inner[:] = sorted(name for name in inner if not name.startswith("."))
            rows = (name for name in names if name.endswith(METADATA_SUFFIXES) and name not in NOT_ROWS)
            files += [Path(folder, name) for name in rows if not name.startswith(".")]
        return sorted(files)

    def _episode(self, folder: Path, row: LabelRow) -> Iterator[Record]:
        name = row.fields.get("frames")
        episode = text(row.fields.get("id"))
        problems: list[Problem] = []
        video = find_video(self.root, name, printable(episode or row.where))
        if isinstance(video, Problem) and video.kind == "missing video" and folder != self.root and name:
            nearby = find_video(folder, name, printable(episode or row.where))
            video = nearby if isinstance(nearby, Path) else video
        if isinstance(video, Problem):
            yield video
            return
        if not episode:
            episode = video_id(self.root, video)
            problems.append(
                Problem("absent id", printable(episode), f"{row.where} has no id; its path is used", kept=True)
            )
        instruction = text(row.fields.get("task"))
        if not instruction:
            problems.append(Problem(NO_INSTRUCTION, printable(episode), f"{row.where} has no task", kept=True))
        outcomes = _outcomes(row, printable(episode), problems)
        origin = _origin(self.name, row, printable(episode), problems)
        yield from problems
        yield build_episode(episode, instruction, {"main": video}, outcomes, origin)


def _read_quality(name: str, value: object) -> str | None:
    word = text(value).lower()
    if word and word not in SUCCESS_OF_QUALITY:
        raise BadInput(name, f"one of {', '.join(SUCCESS_OF_QUALITY)}", printable(repr(value)))
    return word or None


def _outcomes(row: LabelRow, episode: str, problems: list[Problem]) -> tuple[Outcome, ...]:
    quality = check_label(_read_quality, "quality_label", row.fields.get("quality_label"), episode, problems)
    progress = check_label(read_fraction, "partial_success", row.fields.get("partial_success"), episode, problems)
    if quality is None and progress is None:
        return ()
    success = None if quality is None else SUCCESS_OF_QUALITY[quality]
    return (Outcome("rule", success=success, progress=progress, by="rbm quality_label"),)


def _origin(dataset: str, row: LabelRow, episode: str, problems: list[Problem]) -> Origin:
    source = text(row.fields.get("data_source"))
    is_robot = check_label(read_success, "is_robot", row.fields.get("is_robot"), episode, problems)
    tags = {"data_source": source, "quality": text(row.fields.get("quality_label"))}
    return Origin(
        dataset=f"{dataset}/{source}" if source else dataset,
        embodiment="human" if is_robot is False else "",
        tags={name: value for name, value in tags.items() if value},
    )
