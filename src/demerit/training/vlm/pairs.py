"""Pairs for Robometer: two trajectories and an instruction, which one is better, and the progress of the first.

The first four are those of section II-D of the paper:

    expertise     one instruction, different outcomes: a success and a failure, or clearly different progress
    instruction   the instruction of one task: a success at it is better, a success at another task has progress 0
    rewind        one success, forward and with its end undone: [t1 .. t3] against [t1 .. t3 .. t2]
    reverse       one success, forward and backward: [t1 .. t3] against [t3 .. t1]
    people        two episodes that a person compared

Which of the two comes first is random. Unknown targets are NaN. Progress is 0 at the first frame of a clip (or of the
episode: `zero_at`) and 1 where the task is done (`cutoffs`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Floats32, Ints
from demerit.data.episode import normalize_instruction, same_task
from demerit.errors import BadInput, UnknownName
from demerit.models.vlm.prefix_tree import window
from demerit.training.prepared import HELD_OUT, CorpusRow, PreparedCorpus
from demerit.training.vlm.config import STRATEGIES, RobometerTrainConfig

FrameNumbers = Ints
RowPairs = npt.NDArray[np.int32]
"""(pairs, 2) numbers of rows; a million episodes make tens of millions"""
TRIES = 32
ROUNDING = 1e-4
MOST_PARTNERS = 64
"""episodes or tasks that one episode is paired with"""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Frames of one episode in the order they are shown, with their targets."""

    row: int
    frames: FrameNumbers
    progress: Floats32
    success: Floats32
    """1, 0, or NaN where unknown"""


@dataclass(frozen=True, eq=False)
class TrajectoryPair:
    """Two trajectories and which one is better."""

    instruction: str
    first: Trajectory
    second: Trajectory
    first_is_better: bool
    strategy: str


class PairSampler:
    """Samples pairs from one split of a corpus; the same generator samples the same pairs."""

    def __init__(self, corpus: PreparedCorpus, config: RobometerTrainConfig, split: str = "train") -> None:
        """Find which pairs the episodes can make."""
        self.config, self.labels = config, read_labels(corpus, config)
        self.rows = [number for number, row in enumerate(corpus.rows) if row.split == split]
        self.by_instruction: dict[str, list[int]] = defaultdict(list)
        for number in self.rows:
            self.by_instruction[normalize_instruction(corpus.rows[number].instruction)].append(number)
        self.unequal = pair_unequal(self.labels, list(self.by_instruction.values()), config.apart)
        self.rising = [number for number in self.rows if _can_rewind(self.labels[number])]
        self.foreign = self._pair_foreign()
        self.chosen = _find_choices(corpus, set(self.rows))
        self.strategies: dict[str, tuple[Callable[[np.random.Generator], TrajectoryPair], Sized]] = {
            "expertise": (self._sample_expertise, self.unequal),
            "instruction": (self._sample_instruction, self.foreign),
            "rewind": (self._sample_rewind, self.rising),
            "reverse": (self._sample_reverse, self.rising),
            "people": (self._sample_people, self.chosen),
        }
        self.possible = [
            name for name in STRATEGIES if config.strategies.get(name, 0) > 0 and len(self.strategies[name][1])
        ]
        if not self.possible:
            expected = "pairs with different outcomes, preferences, two tasks, or successes to rewind"
            raise BadInput("the corpus", expected, f"none in {len(self.rows)} episodes for {split}")
        shares = np.array([config.strategies[name] for name in self.possible], float)
        self.shares = shares / shares.sum()

    def sample(self, rng: np.random.Generator) -> TrajectoryPair:
        """Sample one pair."""
        pair = self.strategies[self.possible[rng.choice(len(self.possible), p=self.shares)]][0](rng)
        if rng.random() < 0.5:  # noqa: PLR2004
            return pair
        return replace(pair, first=pair.second, second=pair.first, first_is_better=not pair.first_is_better)

    def _sample_expertise(self, rng: np.random.Generator) -> TrajectoryPair:
        better, worse = self.unequal[rng.integers(len(self.unequal))].tolist()
        return self._compare(better, worse, rng, "expertise")

    def _sample_people(self, rng: np.random.Generator) -> TrajectoryPair:
        return self._compare(*self.chosen[rng.integers(len(self.chosen))], rng, "people")

    def _compare(self, better: int, worse: int, rng: np.random.Generator, strategy: str) -> TrajectoryPair:
        # outcomes are compared, so both go to their end; where they begin is random
        good, bad = (self._show(row, self._sample_path(row, rng, to_the_end=True)) for row in (better, worse))
        return TrajectoryPair(self.labels[better].instruction, good, bad, True, strategy)

    def _sample_instruction(self, rng: np.random.Generator) -> TrajectoryPair:
        right, wrong = self.foreign[rng.integers(len(self.foreign))].tolist()
        other = self._show(wrong, self._sample_path(wrong, rng))
        nothing = np.zeros_like(other.progress)
        other = replace(other, progress=nothing, success=nothing)
        mine = self._show(right, self._sample_path(right, rng))
        return TrajectoryPair(self.labels[right].instruction, mine, other, True, "instruction")

    def _sample_rewind(self, rng: np.random.Generator) -> TrajectoryPair:
        row = self.rising[rng.integers(len(self.rising))]
        first, back, turn = _sample_turn(self.labels[row], rng)
        ahead = np.arange(first, turn + 1)
        undone = np.concatenate([ahead, np.arange(turn - 1, back - 1, -1)])
        return self._pair_within(row, ahead, undone, "rewind")

    def _sample_reverse(self, rng: np.random.Generator) -> TrajectoryPair:
        row = self.rising[rng.integers(len(self.rising))]
        first, _, turn = _sample_turn(self.labels[row], rng)
        ahead = np.arange(first, turn + 1)
        return self._pair_within(row, ahead, ahead[::-1], "reverse")

    def _pair_within(self, row: int, ahead: FrameNumbers, back: FrameNumbers, strategy: str) -> TrajectoryPair:
        instruction = self.labels[row].instruction
        return TrajectoryPair(instruction, self._show(row, ahead), self._show(row, back), True, strategy)

    def _sample_path(self, row: int, rng: np.random.Generator, *, to_the_end: bool = False) -> FrameNumbers:
        length = self.labels[row].frames
        if to_the_end:
            return np.arange(int(rng.integers(0, length // 2 + 1)), length)
        first, last = sorted(rng.choice(length, 2, replace=False).tolist())
        return np.arange(first, last + 1)

    def _show(self, number: int, path: FrameNumbers) -> Trajectory:
        """Spread the frames evenly over a path, both ends included."""
        row = self.labels[number]
        frames = path[list(window(len(path) - 1, self.config.frames))]
        progress = row.progress[frames]
        if self.config.zero_at == "clip" and row.kind != "outcome":
            progress = start_at_zero(progress, float(row.progress[path.min()]))
        return Trajectory(number, frames, progress, label_success(row, frames, progress, self.config.unsure_from))

    def _pair_foreign(self) -> RowPairs:
        """Pair every success with one success of each other task."""
        successes = {
            instruction: np.array(good, np.int32)
            for instruction, numbers in self.by_instruction.items()
            if instruction and (good := [number for number in numbers if self.labels[number].success])
        }
        names, pairs = list(successes), [np.empty((0, 2), np.int32)]
        for number, instruction in enumerate(names):
            behind = (names[(number + ahead) % len(names)] for ahead in range(1, len(names)))
            others = list(islice((other for other in behind if not same_task(instruction, other)), MOST_PARTNERS))
            if others:
                mine = successes[instruction]
                place = np.arange(len(mine))
                theirs = np.stack([successes[other][place % len(successes[other])] for other in others], 1)
                pairs.append(np.stack([np.repeat(mine, len(others)), theirs.ravel()], 1))
        return np.concatenate(pairs)


def read_labels(corpus: PreparedCorpus, config: RobometerTrainConfig) -> list[CorpusRow]:
    """Return the rows with the progress that `cutoffs` give them."""
    names = {name for row in corpus.rows for name in (row.source, row.site) if name}
    for name in config.cutoffs:
        if name not in names:
            raise UnknownName("dataset in cutoffs", name, sorted(names))
    shares = (config.cutoffs.get(row.site, config.cutoffs.get(row.source, 1.0)) for row in corpus.rows)
    return [finish_early(row, share) for row, share in zip(corpus.rows, shares, strict=True)]


def finish_early(row: CorpusRow, share: float) -> CorpusRow:
    """Let a demonstration be done after a share of it: its progress rises evenly to 1 there and stays."""
    if row.kind != "demonstration" or share == 1:
        return row
    before = row.progress[row.progress <= share + ROUNDING]
    return replace(row, progress=np.minimum(row.progress / (before[-1] if len(before) else row.progress[0]), 1))


def start_at_zero(progress: Floats32, start: float) -> Floats32:
    """Measure progress from a start: the share of what remained; unknown where nothing remained.

    For a demonstration this is the authors' (i - start) / (T - start - 1). Measured progress below the start is 0.
    """
    if not start < 1 - ROUNDING:
        return np.full_like(progress, np.nan)
    return np.asarray(np.clip((progress - start) / (1 - start), 0, 1), np.float32)


def label_success(row: CorpusRow, frames: FrameNumbers, progress: Floats32, unsure_from: float) -> Floats32:
    """Return for each frame of a clip whether the task is done: 1, 0, or NaN where unknown.

    A failure is done nowhere. A measured success is done where its progress is as high as at its end. A demonstration
    is done where its progress is 1, not done where the clip's `progress` is below `unsure_from`, else unknown.
    """
    if row.success is None:
        return np.full(len(frames), np.nan, np.float32)
    if not row.success:
        return np.zeros(len(frames), np.float32)
    whole = row.progress[frames]
    if row.kind == "measured":
        done = whole >= row.progress[-1] - ROUNDING
        return np.where(np.isnan(whole), np.nan, done).astype(np.float32)
    unfinished = np.where(progress < unsure_from, 0.0, np.nan)
    return np.where(whole >= 1 - ROUNDING, 1.0, unfinished).astype(np.float32)


def pair_held_out(corpus: PreparedCorpus, apart: float) -> dict[str, list[tuple[int, int]]]:
    """Return by instruction the held-out episodes of which one is clearly better, or was chosen: (better, worse)."""
    groups: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(corpus.rows):
        if row.split == HELD_OUT:
            groups[normalize_instruction(row.instruction)].append(number)
    pairs = {
        name: [*map(tuple, pair_unequal(corpus.rows, [group], apart).tolist()), *_find_choices(corpus, set(group))]
        for name, group in groups.items()
    }
    return {name: couples for name, couples in pairs.items() if couples}


def is_better(row: CorpusRow, other: CorpusRow, apart: float) -> bool:
    """Whether an outcome is clearly better than another one with the same instruction; unknown is not better."""
    if row.success and other.success is False:
        return True
    if row.success is False and other.success:
        return False
    return bool(row.final - other.final >= apart)


def _find_choices(corpus: PreparedCorpus, rows: set[int]) -> list[tuple[int, int]]:
    """Return what people chose among some rows."""
    choices = ((choice.better, choice.worse) for choice in corpus.choices)
    return [pair for pair in choices if rows.issuperset(pair)]


def pair_unequal(rows: Sequence[CorpusRow], groups: Sequence[list[int]], apart: float) -> RowPairs:
    """Pair every episode with some that are clearly worse with the same instruction (see `is_better`)."""
    pairs = [np.empty((0, 2), np.int32)]
    for group in groups:
        numbers = np.array(group, np.int32)
        done = np.array([np.nan if rows[number].success is None else rows[number].success for number in group], float)
        final = np.array([rows[number].final for number in group])
        for number, mine, end in zip(group, done, final, strict=True):
            is_lower = end - final >= apart
            worse = numbers[is_lower | (done == 0) if mine == 1 else is_lower & (done != 1) if mine == 0 else is_lower]
            chosen = worse[:: 1 + len(worse) // MOST_PARTNERS]
            pairs.append(np.stack([np.full_like(chosen, number), chosen], 1))
    return np.concatenate(pairs)


def _can_rewind(row: CorpusRow) -> bool:
    """Whether a success has known progress that rises after its second frame."""
    if not row.success or np.isnan(row.progress).any():
        return False
    return bool(row.progress[2:].max() > max(row.progress[0], row.progress[1]))


def _sample_turn(row: CorpusRow, rng: np.random.Generator) -> tuple[int, int, int]:
    """Sample t1 < t2 < t3 so that going back from t3 lowers the progress."""
    for _ in range(TRIES):
        first, back, turn = sorted(rng.choice(row.frames, 3, replace=False).tolist())
        if row.progress[turn] > row.progress[back] and row.progress[turn] > row.progress[first]:
            return first, back, turn
    last = int(np.nanargmax(row.progress[2:])) + 2
    return 0, 1, last
