"""RoboReward: robot videos with an instruction and a grade from 1 to 5.

    train/metadata.jsonl  val/metadata.jsonl  test/metadata.jsonl     {file_name, task, reward, gpt5_mini_check}

`file_name` is "<subset>/....mp4", relative to the split's folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from demerit.data.dataset import NO_INSTRUCTION, Problem, Record
from demerit.data.episode import Origin, Outcome
from demerit.data.formats.label_file import (
    HIGHEST_GRADE,
    LabelRow,
    check_label,
    count_rows,
    read_grade,
    read_rows,
    text,
)
from demerit.data.formats.videos import FolderReader, build_episode, find_video, video_id
from demerit.data.frames import short_hash
from demerit.data.published_sets import find_source, published_sets
from demerit.errors import BadInput, UnknownName

SPLITS = ("train", "val", "test")
FOLDERS = {**{name: name for name in SPLITS}, "validation": "val"}
VALIDATED_BY = "roboreward, validated by GPT-5 mini"

CLIP_MARK = re.compile(
    r"[_-](?:clip|clipped|segment|seg|part|trim|trimmed|trunc|truncated|cut|prefix|first|last)"
    r"(?:[_-]?(?:\d+|start|end|to|frames?|pct|percent))*$",
    re.IGNORECASE,
)
"""the end of a file name that marks a part of the video named before it"""


@dataclass(frozen=True)
class RoboRewardReader(FolderReader):
    """Reads one split of RoboReward, or all of them in the order train, val, test.

    Label source: people checked the grades of the test split ("human"); those of train and val were written by language
    models and confirmed by another ("model:validated"). Grade r is progress (r - 1) / 4; only 5 is a success.

    `gpt5_mini_check` argues for the grade and so reveals it. It is kept only in `Outcome.note`, which models under
    evaluation never see. Unknown columns are not read.

    A video appears with several instructions, so an id ends in a short hash of the instruction. `Origin.group` is the
    original video, if the file name tells (`x_clip_2.mp4` is a part of `x.mp4`). Embodiment and the tag `perspective`
    are those of the subset in the paper's list of sources; RoboArena mixes perspectives and has no such tag.
    """

    format = "RoboReward"
    split: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.split is not None and self.split not in FOLDERS:
            raise UnknownName("RoboReward split", self.split, FOLDERS)
        if not self._manifests:
            wanted = self.split or "train, val or test"
            hint = " (did you mean the folder above?)" if (self.root / "metadata.jsonl").is_file() else ""
            raise BadInput("the RoboReward dataset", f"{wanted} with a metadata.jsonl in it", f"{self.root}{hint}")

    def expected(self) -> int:
        """The number of lines."""
        return sum(count_rows(manifest) for manifest in self._manifests.values())

    def records(self) -> Iterator[Record]:
        """Stream the rows, split by split."""
        for split, manifest in self._manifests.items():
            seen: dict[str, tuple[str, int | None]] = {}
            for row in read_rows(manifest):
                if isinstance(row, Problem):
                    yield Problem(row.kind, f"{split}/{row.episode}", row.detail, row.kept)
                else:
                    yield from self._episode(split, row, seen)

    @cached_property
    def _manifests(self) -> dict[str, Path]:
        splits = SPLITS if self.split is None else (FOLDERS[self.split],)
        manifests = {split: self.root / split / "metadata.jsonl" for split in splits}
        return {split: manifest for split, manifest in manifests.items() if manifest.is_file()}

    def _episode(self, split: str, row: LabelRow, seen: dict[str, tuple[str, int | None]]) -> Iterator[Record]:
        video = find_video(self.root / split, row.fields.get("file_name"), f"{split}/{row.where}")
        if isinstance(video, Problem):
            yield video
            return
        stem = video_id(self.root / split, video)
        instruction = text(row.fields.get("task"))
        episode = f"{split}/{stem}#{short_hash(instruction.encode())[:8]}"
        problems: list[Problem] = []
        grade = _grade(row, episode, problems)
        if episode in seen:
            yield _repetition(episode, row, grade, seen[episode])
            return
        seen[episode] = (row.where, grade)
        if not instruction:
            problems.append(Problem(NO_INSTRUCTION, episode, f"{row.where} has no task", kept=True))
        yield from problems
        origin = _origin(self.name, split, stem)
        yield build_episode(episode, instruction, {"main": video}, _outcomes(split, grade, row), origin)


def original_video(stem: str) -> str:
    """The video that a clip was cut from, according to its name; otherwise the name itself."""
    whole = CLIP_MARK.sub("", stem)
    return stem if not whole or whole.endswith("/") else whole


def _grade(row: LabelRow, episode: str, problems: list[Problem]) -> int | None:
    cell = row.fields.get("reward")
    grade = check_label(read_grade, "reward", cell, episode, problems)
    if grade is None and not problems:
        problems.append(Problem("bad label", episode, f"{row.where} has no reward", kept=True))
    return grade


def _repetition(episode: str, row: LabelRow, grade: int | None, first: tuple[str, int | None]) -> Problem:
    where, earlier = first
    if grade == earlier:
        detail = f"{row.where} repeats {where}: same video, instruction and grade"
        return Problem("repeated row", episode, detail, kept=True)
    detail = f"{row.where} says grade {grade} where {where} says {earlier} of the same video and instruction"
    return Problem("contradicting grades", episode, f"{detail}; the later one is skipped", kept=False)


def _outcomes(split: str, grade: int | None, row: LabelRow) -> tuple[Outcome, ...]:
    if grade is None:
        return ()
    return (
        Outcome(
            "human" if split == "test" else "model",
            success=grade == HIGHEST_GRADE,
            progress=(grade - 1) / (HIGHEST_GRADE - 1),
            grade=grade,
            note=text(row.fields.get("gpt5_mini_check")),
            by="roboreward" if split == "test" else VALIDATED_BY,
        ),
    )


def _origin(dataset: str, split: str, stem: str) -> Origin:
    subset = stem.partition("/")[0] if "/" in stem else ""
    printed = find_source(subset, published_sets("roborewardbench@1"))
    tags = {"subset": subset, "perspective": printed.perspective}
    return Origin(
        dataset=f"{dataset}/{subset}" if subset else dataset,
        embodiment=printed.embodiment,
        split=split,
        group=original_video(stem),
        tags={name: value for name, value in tags.items() if value},
    )
