"""Clips for ReWiND: which frames in which order, with which targets, and an instruction that does not fit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demerit.data.frames import spread
from demerit.data.splits import normalize_split
from demerit.errors import BadInput
from demerit.training.compact.clips import FrameNumbers, distinctive_words
from demerit.training.prepared import CorpusRow, Floats
from demerit.training.rewind.config import RewindTrainConfig

TRIES = 20
FEWEST_TO_REWIND = 3
KINDS = ("measured", "demonstration", "outcome")


@dataclass(frozen=True, eq=False)
class RewindClip:
    """Some frames of one episode with their targets, padded with the last frame to a fixed number."""

    frames: FrameNumbers
    """numbers in the corpus"""
    targets: Floats
    """NaN where unknown, and where a frame is padding"""
    instruction: str
    other: str
    """another task's instruction; empty if none was found"""


class RewindSampler:
    """Samples the clips of a step: kinds of episodes in equal shares, then a task, then an episode."""

    def __init__(self, rows: Sequence[CorpusRow], config: RewindTrainConfig) -> None:
        """Sort the episodes by kind and task."""
        self.config = config
        ends = np.cumsum([0, *(row.frames for row in rows)])
        self.first = {id(row): int(first) for row, first in zip(rows, ends, strict=False)}
        """number of a row's first frame in the features"""
        self.rows = [row for row in rows if is_for_rewind(row, config)]
        if not any(row.success for row in self.rows):
            raise BadInput(
                "the corpus", "successes with an instruction to train on", f"{len(rows)} episodes, none such"
            )
        self.tasks: dict[str, dict[str, list[list[CorpusRow]]]] = defaultdict(lambda: defaultdict(lambda: [[], []]))
        for row in self.rows:
            self.tasks[row.kind][row.task][0 if row.success else 1].append(row)
        self.names = {kind: sorted(tasks) for kind, tasks in self.tasks.items()}
        self.kinds = sorted(self.names)
        self.words = {row.instruction: distinctive_words(row.instruction) for row in self.rows}

    def sample(self, rng: np.random.Generator) -> list[RewindClip]:
        """Sample the clips of one step."""
        return [self._clip(self._row(rng), rng) for _ in range(self.config.clips)]

    def _row(self, rng: np.random.Generator) -> CorpusRow:
        kind = self.kinds[rng.integers(len(self.kinds))]
        good, bad = self.tasks[kind][self.names[kind][rng.integers(len(self.names[kind]))]]
        rows = bad if bad and (rng.random() < self.config.failures or not good) else good
        return rows[rng.integers(len(rows))]

    def _clip(self, row: CorpusRow, rng: np.random.Generator) -> RewindClip:
        known = row_targets(row, self.config.targets)
        is_rewound = bool(row.success) and row.frames >= FEWEST_TO_REWIND and rng.random() < self.config.rewind
        order = order_rewound(row.frames, rng) if is_rewound else order_forward(known, rng)
        order = order[spread(len(order), self.config.frames)]
        targets = known[order]
        padding = self.config.frames - len(order)
        return RewindClip(
            frames=self.first[id(row)] + np.pad(order, (0, padding), mode="edge").astype(np.int64),
            targets=np.pad(targets, (0, padding), constant_values=np.nan),
            instruction=row.instruction,
            other=self._other_instruction(row, rng) if self.config.mismatched else "",
        )

    def _other_instruction(self, row: CorpusRow, rng: np.random.Generator) -> str:
        """Return an instruction of another task with no content word in common; empty if none is found."""
        mine = self.words[row.instruction]
        for _ in range(TRIES):
            other = self._row(rng)
            if other.task != row.task and not mine & self.words[other.instruction]:
                return other.instruction
        return ""


def is_for_rewind(row: CorpusRow, config: RewindTrainConfig) -> bool:
    """Whether this episode may be trained on: successes, and others of known progress if failures are asked for."""
    if normalize_split(row.split) != "train" or row.task in config.held_out_tasks or row.kind not in KINDS:
        return False
    wanted = bool(row.success) or (config.failures > 0 and not bool(np.isnan(row.progress).all()))
    return wanted and bool(row.instruction.strip())


def order_forward(targets: Floats, rng: np.random.Generator) -> FrameNumbers:
    """Go forward to a random frame; to the last one if no other has a target."""
    whole = bool(np.isnan(targets[:-1]).all())
    return np.arange(len(targets) if whole else rng.integers(1, len(targets) + 1))


def order_rewound(length: int, rng: np.random.Generator) -> FrameNumbers:
    """Go forward to a frame of the second half, then back over a random number of frames, as the authors do."""
    turn = int(rng.integers(max(1, length // 2), length))
    back = int(rng.integers(1, turn + 1))
    return np.concatenate([np.arange(turn + 1), np.arange(turn - 1, turn - back - 1, -1)])


def row_targets(row: CorpusRow, targets: str) -> Floats:
    """Return t / T, t from 1, for a success unless its measured progress is wanted and known; else what is known."""
    if row.success and (targets == "time" or row.kind != "measured"):
        return np.arange(1, row.frames + 1, dtype=np.float32) / np.float32(row.frames)
    return row.progress
