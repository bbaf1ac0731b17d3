"""Clips for training: which frames in which order, with which instruction and which targets. Nothing is copied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demerit.data.arrays import Floats32
from demerit.data.splits import normalize_split
from demerit.errors import BadInput
from demerit.training.prepared import CorpusRow, PreparedCorpus
from demerit.training.rewind.data import FrameNumbers, distinctive_words
from train_compact.config import FOLDS, CompactTrainConfig

DONE, NOT_DONE = 0.97, 0.7
"""a demonstration's frames count as done from here on, as not done up to there, and as unknown in between"""
ROUNDING = 1e-4
SAME_KIND = 0.8
"""share of wrong instructions that come from the same kind of episode"""
TRIES = 20


@dataclass(frozen=True, eq=False)
class TrainingClip:
    """Some frames of one episode with their targets."""

    frames: FrameNumbers
    """numbers in `PreparedCorpus.images`; the others are compared with the first"""
    progress: Floats32
    """target progress, given the instruction; NaN where unknown"""
    success: Floats32
    """1, 0, or NaN where unknown"""
    own: Floats32
    """progress at the task that was really done, under any instruction"""
    instruction: str
    """empty: no instruction"""
    task: str
    weight: float
    comparable: bool
    """whether it may be ranked against the other clips of its group"""


class ClipSampler:
    """Samples groups of clips from the training part of a corpus."""

    def __init__(self, corpus: PreparedCorpus, config: CompactTrainConfig) -> None:
        """Sort the episodes by kind and task."""
        self.config = config
        self.rows = [row for row in corpus.rows if is_for_training(row, config)]
        self.by_kind: dict[str, dict[str, list[CorpusRow]]] = defaultdict(lambda: defaultdict(list))
        for row in self.rows:
            key = row.group or row.task if row.kind == "outcome" else row.task
            self.by_kind[row.kind][key].append(row)
        kinds = {kind: share for kind, share in config.shares.items() if self.by_kind.get(kind) and share > 0}
        if not kinds:
            found = f"{len(corpus.rows)} episodes, none of which the configuration may use"
            raise BadInput("the corpus", "episodes to train on", found)
        self.kinds = sorted(kinds)
        self.shares = np.array([kinds[kind] for kind in self.kinds]) / sum(kinds.values())
        self.tasks = {kind: sorted(self.by_kind[kind]) for kind in self.kinds}

    def sample(self, rng: np.random.Generator) -> list[list[TrainingClip]]:
        """Sample the groups of one step."""
        kinds = rng.choice(len(self.kinds), size=self.config.groups, p=self.shares)
        return [self._group(self.kinds[kind], rng) for kind in kinds]

    def _group(self, kind: str, rng: np.random.Generator) -> list[TrainingClip]:
        task = self.tasks[kind][rng.integers(len(self.tasks[kind]))]
        rows = self.by_kind[kind][task]
        if kind == "outcome":  # one video under several instructions, or attempts of one recording
            return [self._end_clip(row, rng) for row in _choose_balanced(rows, self.config.clips, rng)]
        instruction = rows[rng.integers(len(rows))].instruction
        if rng.random() < self.config.unsaid:
            instruction = ""
        chosen = _choose_balanced(rows, self.config.clips, rng)
        return [self._clip(row, instruction, rng) for row in chosen]

    def _clip(self, row: CorpusRow, instruction: str, rng: np.random.Generator) -> TrainingClip:
        config = self.config
        chance = rng.random()
        order = sample_forward(row.frames, config, rng)
        if chance < config.rewind:
            order = sample_rewind(row.frames, config, rng)
        own = _row_progress(row)[order]
        other = ""
        may_be_wrong = bool(instruction) and row.kind in config.wrong_kinds
        if may_be_wrong and config.rewind <= chance < config.rewind + config.wrong_words:
            other = self._other_instruction(row, rng)
        weight = config.model_weight if row.kind == "model" else 1.0
        return TrainingClip(
            frames=row.first + order,
            progress=np.zeros_like(own) if other else own,
            success=np.zeros_like(own) if other else _row_success(row, own),
            own=own,
            instruction=other or instruction,
            task=row.task if row.kind == "measured" else "",
            weight=weight * (config.wrong_weight if other else 1.0),
            # without an instruction only measured progress tells which clip is better
            comparable=bool(instruction) or row.kind == "measured",
        )

    def _end_clip(self, row: CorpusRow, rng: np.random.Generator) -> TrainingClip:
        """Show the whole episode under its own instruction; the end is all that is known."""
        order = _warp(0, row.frames - 1, self.config.frames, rng)
        success = np.full(len(order), np.nan, np.float32)
        if row.success is not None:
            success[-1] = float(row.success)
        return TrainingClip(
            frames=row.first + order,
            progress=row.progress[order],
            success=success,
            own=np.full(len(order), np.nan, np.float32),
            instruction=row.instruction,
            task="",
            weight=1.0,
            comparable=bool(row.instruction),
        )

    def _other_instruction(self, row: CorpusRow, rng: np.random.Generator) -> str:
        """Return an instruction of another task with no content word in common; empty if none is found."""
        kind = row.kind if rng.random() < SAME_KIND else self.kinds[rng.integers(len(self.kinds))]
        mine = distinctive_words(row.instruction)
        for _ in range(TRIES):
            task = self.tasks[kind][rng.integers(len(self.tasks[kind]))]
            rows = self.by_kind[kind][task]
            instruction = rows[rng.integers(len(rows))].instruction
            if instruction and not mine & distinctive_words(instruction):
                return instruction
        return ""


def is_for_training(row: CorpusRow, config: CompactTrainConfig) -> bool:
    """Whether this episode may be trained on."""
    if normalize_split(row.split) != "train" or row.task in config.held_out_tasks:  # `held-out` is not `train` either
        return False
    if row.kind in ("measured", "outcome") and not config.failures and not row.success:
        return False
    return not is_in_fold(row, config.fold)


def is_in_fold(row: CorpusRow, fold: int | None) -> bool:
    """Whether a demonstration's site, or the instruction of a model's curve, is in the held-out fold."""
    if fold is None or row.kind in ("measured", "outcome"):
        return False
    key = row.site if row.kind == "demonstration" else row.instruction
    return sum(key.encode()) % FOLDS == fold


def sample_forward(length: int, config: CompactTrainConfig, rng: np.random.Generator) -> FrameNumbers:
    """Sample frame numbers that go forward, with uneven steps; some clips end early."""
    last = length - 1
    if rng.random() < config.cut:
        last = int(rng.integers(length // 4, length))
    return _warp(0, last, config.frames, rng)


def sample_rewind(length: int, config: CompactTrainConfig, rng: np.random.Generator) -> FrameNumbers:
    """Sample frame numbers that go forward to some frame, then back to an earlier one."""
    turn = int(rng.integers(length // 2, length))
    until = int(rng.integers(0, max(1, turn * 3 // 4)))
    ahead = int(rng.integers(2, config.frames - 1))
    return np.concatenate([_warp(0, turn, ahead, rng), _warp(turn, until, config.frames - ahead, rng)])


def _warp(start: int, stop: int, count: int, rng: np.random.Generator) -> FrameNumbers:
    """Go from one frame to another in steps of random size, so that speed carries no information."""
    steps = rng.gamma(rng.uniform(0.5, 4.0), size=count - 1) + 1e-6
    way = np.concatenate([[0.0], np.cumsum(steps)])
    numbers: FrameNumbers = np.rint(start + (stop - start) * way / way[-1]).astype(np.int64)
    return numbers


def _choose_balanced(rows: Sequence[CorpusRow], count: int, rng: np.random.Generator) -> list[CorpusRow]:
    """Choose episodes, half of them successes where there are both."""
    sides = [[row for row in rows if bool(row.success) is side] for side in (True, False)]
    chosen = []
    for number in range(count):
        side = sides[number % 2] or sides[1 - number % 2]
        chosen.append(side[rng.integers(len(side))])
    return chosen


def _row_progress(row: CorpusRow) -> Floats32:
    return np.linspace(0, 1, row.frames, dtype=np.float32) if row.kind == "demonstration" else row.progress


def _row_success(row: CorpusRow, own: Floats32) -> Floats32:
    if row.kind == "measured":
        return np.where(np.isnan(own), np.nan, own >= 1.0 - ROUNDING).astype(np.float32)
    if row.kind == "demonstration":
        return np.where(own >= DONE, 1.0, np.where(own <= NOT_DONE, 0.0, np.nan)).astype(np.float32)
    return np.full_like(own, np.nan)
