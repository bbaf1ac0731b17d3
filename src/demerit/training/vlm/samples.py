"""Pairs for Robometer: two trajectories, one instruction, which does better, and how far the first one is.

Drawn as in section II-D of the paper, the last one aside:

    expertise     the same words, another outcome: a success and a failure, or outcomes that clearly differ
    instruction   another task's words: the trajectory that does what was said is better, the other has progress 0
    rewind        one success, forward and with its end taken back: [t1 .. t3] against [t1 .. t3 .. t2]
    reverse       one success, forward and backward: [t1 .. t3] against [t3 .. t1]
    people        two episodes that somebody compared: the one that was chosen is better

Which of the two is shown first is a coin's choice, and progress is asked of the first alone. What nobody knows is NaN.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from demerit.data.instructions import normalize_instruction, same_task
from demerit.errors import BadInput
from demerit.models.vlm.windows import window
from demerit.training.vlm.corpus import Corpus, Floats, Row
from demerit.training.vlm.recipe import STRATEGIES, RobometerRecipe

Ints = npt.NDArray[np.int64]
TRIES = 32
ROUNDING = 1e-4
MOST_OTHERS = 64
"""episodes or tasks that one is set against: enough variety, and no list of a million squared"""


@dataclass(frozen=True, eq=False)
class Side:
    """One trajectory as it is shown."""

    row: int
    frames: Ints
    """numbers of frames within the episode, in the order they are shown"""
    progress: Floats
    success: Floats
    """1, 0, or NaN where nobody knows"""


@dataclass(frozen=True, eq=False)
class Sample:
    """Two trajectories and which one does better what was said."""

    instruction: str
    first: Side
    second: Side
    first_is_better: bool
    strategy: str


class Drawer:
    """Draws pairs from the training part of a corpus; the same generator draws the same pairs."""

    def __init__(self, corpus: Corpus, recipe: RobometerRecipe, split: str = "train") -> None:
        """Sort the episodes, and find out which kinds of pairs they can make."""
        self.corpus, self.recipe = corpus, recipe
        self.rows = [at for at, row in enumerate(corpus.rows) if row.split == split]
        self.by_words: dict[str, list[int]] = defaultdict(list)
        for at in self.rows:
            self.by_words[normalize_instruction(corpus.rows[at].instruction)].append(at)
        self.unequal = _unequal(corpus.rows, list(self.by_words.values()), recipe.apart)
        self.shown = [at for at in self.rows if _rises(corpus.rows[at])]
        self.foreign = self._foreign()
        mine = set(self.rows)
        self.chosen = [(one.better, one.worse) for one in corpus.choices if {one.better, one.worse} <= mine]
        self.ways: dict[str, Callable[[np.random.Generator], Sample]] = {
            "expertise": self._expertise,
            "instruction": self._instruction,
            "rewind": self._rewind,
            "reverse": self._reverse,
            "people": self._people,
        }
        enough: dict[str, Sequence[object]] = {
            "expertise": self.unequal,
            "instruction": self.foreign,
            "rewind": self.shown,
            "reverse": self.shown,
            "people": self.chosen,
        }
        self.possible = [name for name in STRATEGIES if recipe.strategies.get(name, 0) > 0 and enough[name]]
        if not self.possible:
            expected = "pairs with different outcomes, preferences, two tasks, or successes to rewind"
            raise BadInput("the corpus", expected, f"none in {len(self.rows)} episodes for {split}")
        shares = np.array([recipe.strategies[name] for name in self.possible], float)
        self.shares = shares / shares.sum()

    def draw(self, rng: np.random.Generator) -> Sample:
        """Draw one pair."""
        sample = self.ways[self.possible[rng.choice(len(self.possible), p=self.shares)]](rng)
        if rng.random() < 0.5:  # noqa: PLR2004  a coin
            return sample
        return replace(sample, first=sample.second, second=sample.first, first_is_better=not sample.first_is_better)

    def _expertise(self, rng: np.random.Generator) -> Sample:
        return self._compared(*self.unequal[rng.integers(len(self.unequal))], rng, "expertise")

    def _people(self, rng: np.random.Generator) -> Sample:
        return self._compared(*self.chosen[rng.integers(len(self.chosen))], rng, "people")

    def _compared(self, better: int, worse: int, rng: np.random.Generator, strategy: str) -> Sample:
        # outcomes are compared, so both are shown to their end; where they begin is free
        good, bad = (self._side(at, self._path(at, rng, to_the_end=True)) for at in (better, worse))
        return Sample(self.corpus.rows[better].instruction, good, bad, True, strategy)

    def _instruction(self, rng: np.random.Generator) -> Sample:
        right, wrong = self.foreign[rng.integers(len(self.foreign))]
        other = self._side(wrong, self._path(wrong, rng))
        nothing = np.zeros_like(other.progress)
        other = replace(other, progress=nothing, success=nothing)
        mine = self._side(right, self._path(right, rng))
        return Sample(self.corpus.rows[right].instruction, mine, other, True, "instruction")

    def _rewind(self, rng: np.random.Generator) -> Sample:
        at = self.shown[rng.integers(len(self.shown))]
        first, back, turn = self._three(self.corpus.rows[at], rng)
        ahead = np.arange(first, turn + 1)
        again = np.concatenate([ahead, np.arange(turn - 1, back - 1, -1)])
        return self._against(at, ahead, again, "rewind")

    def _reverse(self, rng: np.random.Generator) -> Sample:
        at = self.shown[rng.integers(len(self.shown))]
        first, _, turn = self._three(self.corpus.rows[at], rng)
        ahead = np.arange(first, turn + 1)
        return self._against(at, ahead, ahead[::-1], "reverse")

    def _against(self, at: int, ahead: Ints, back: Ints, strategy: str) -> Sample:
        sides = self._side(at, ahead), self._side(at, back)
        return Sample(self.corpus.rows[at].instruction, *sides, True, strategy)

    def _three(self, row: Row, rng: np.random.Generator) -> tuple[int, int, int]:
        """Draw t1 < t2 < t3 so that going back from t3 undoes something; a finished task may stand still for long."""
        for _ in range(TRIES):
            first, back, turn = sorted(rng.choice(row.frames, 3, replace=False).tolist())
            if row.progress[turn] > row.progress[back] and row.progress[turn] > row.progress[first]:
                return first, back, turn
        last = int(np.nanargmax(row.progress[2:])) + 2
        return 0, 1, last

    def _path(self, at: int, rng: np.random.Generator, *, to_the_end: bool = False) -> Ints:
        """Draw where a trajectory begins and ends."""
        length = self.corpus.rows[at].frames
        if to_the_end:
            return np.arange(int(rng.integers(0, length // 2 + 1)), length)
        first, last = sorted(rng.choice(length, 2, replace=False).tolist())
        return np.arange(first, last + 1)

    def _side(self, at: int, path: Ints) -> Side:
        """Show so many frames of a path, evenly, both ends in."""
        row = self.corpus.rows[at]
        frames = path[list(window(len(path) - 1, self.recipe.frames))]
        return Side(at, frames, row.progress[frames], success_of(row, self.recipe.unsure_from)[frames])

    def _foreign(self) -> list[tuple[int, int]]:
        """Pair every success with one episode of each other task, by whose words it is a failure."""
        shown = {
            words: good
            for words, some in self.by_words.items()
            if words and (good := [at for at in some if self.corpus.rows[at].success])
        }
        names, pairs = list(shown), []
        for number, words in enumerate(names):
            behind = (names[(number + ahead) % len(names)] for ahead in range(1, len(names)))
            others = list(islice((other for other in behind if not same_task(words, other)), MOST_OTHERS))
            for place, at in enumerate(shown[words]):
                pairs += [(at, shown[other][place % len(shown[other])]) for other in others]
        return pairs


def success_of(row: Row, unsure_from: float) -> Floats:
    """Say at which frames the task is done: 1, 0, or NaN where nobody knows.

    A failure is done at no frame. A success whose progress was measured is done where that is as high as at its end. Of
    a demonstration the last frame is done, the beginning is not, and between them nobody looked.
    """
    if row.success is None:
        return np.full(row.frames, np.nan, np.float32)
    if not row.success:
        return np.zeros(row.frames, np.float32)
    if row.measured:
        done = row.progress >= row.progress[-1] - ROUNDING
        return np.where(np.isnan(row.progress), np.nan, done).astype(np.float32)
    done = np.where(row.progress < unsure_from, 0.0, np.nan)
    done[-1] = 1.0
    return done.astype(np.float32)


def is_better(one: Row, other: Row, apart: float) -> bool:
    """Whether an outcome is clearly better than another at the same words."""
    if one.success and other.success is False:
        return True
    if one.success is False and other.success:
        return False
    return bool(one.final - other.final >= apart)  # unknown is NaN, and no better than anything


def _unequal(rows: Sequence[Row], groups: Sequence[list[int]], apart: float) -> list[tuple[int, int]]:
    """Pair every episode with some that did clearly worse at the same words."""
    pairs = []
    for some in groups:
        for at in some:
            worse = [other for other in some if is_better(rows[at], rows[other], apart)]
            pairs += [(at, other) for other in worse[:: 1 + len(worse) // MOST_OTHERS]]
    return pairs


def _rises(row: Row) -> bool:
    """Whether a success has a known beginning, middle and end, so that playing it back undoes something."""
    if not row.success or np.isnan(row.progress).any():
        return False
    return bool(row.progress[2:].max() > max(row.progress[0], row.progress[1]))
