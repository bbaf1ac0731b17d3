"""Clips for training: which frames in which order, told what, worth how much. Negatives are views, not copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput
from demerit.training.compact.corpus import Corpus, Row
from demerit.training.compact.recipe import FOLDS, Recipe

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
DONE, NOT_DONE = 0.97, 0.7
"""of a demonstration, frames from here on count as done, up to there as not done, between them nobody knows"""
ROUNDING = 1e-4
SAME_KIND = 0.8
"""share of the wrong words that come from the same kind of data"""


@dataclass(frozen=True, eq=False)
class Clip:
    """One view of one episode."""

    frames: Ints
    """places in the corpus; the first of them is what the others are compared with"""
    progress: Floats
    """what the head should say, given the words"""
    success: Floats
    """1, 0, or NaN where nobody knows"""
    own: Floats
    """progress at the task that was really done, whatever the words"""
    instruction: str
    """empty: nothing was said"""
    task: str
    weight: float
    comparable: bool


class Drawer:
    """Draws groups of clips from the training part of a corpus."""

    def __init__(self, corpus: Corpus, recipe: Recipe) -> None:
        """Sort the episodes by kind and task."""
        self.corpus, self.recipe = corpus, recipe
        self.rows = [row for row in corpus.rows if is_for_training(row, recipe)]
        self.by_kind: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
        for row in self.rows:
            self.by_kind[row.kind][row.task].append(row)
        kinds = {kind: share for kind, share in recipe.shares.items() if self.by_kind.get(kind) and share > 0}
        if not kinds:
            found = f"{len(corpus.rows)} episodes, none of which the recipe may use"
            raise BadInput("the corpus", "episodes to train on", found)
        self.kinds = sorted(kinds)
        self.shares = np.array([kinds[kind] for kind in self.kinds]) / sum(kinds.values())
        self.tasks = {kind: sorted(self.by_kind[kind]) for kind in self.kinds}

    def draw(self, rng: np.random.Generator) -> list[list[Clip]]:
        """Draw the groups of one step."""
        kinds = rng.choice(len(self.kinds), size=self.recipe.groups, p=self.shares)
        return [self._group(self.kinds[kind], rng) for kind in kinds]

    def _group(self, kind: str, rng: np.random.Generator) -> list[Clip]:
        task = self.tasks[kind][rng.integers(len(self.tasks[kind]))]
        rows = self.by_kind[kind][task]
        words = rows[rng.integers(len(rows))].instruction
        if rng.random() < self.recipe.unsaid:
            words = ""
        chosen = _balanced(rows, self.recipe.clips, rng)
        return [self._clip(row, words, rng) for row in chosen]

    def _clip(self, row: Row, words: str, rng: np.random.Generator) -> Clip:
        chance = rng.random()
        order = _forward(row.frames, self.recipe, rng)
        if chance < self.recipe.rewind:
            order = _back(row.frames, self.recipe, rng)
        own = self._own(row)[order]
        lied_to = bool(words) and row.kind in self.recipe.wrong_kinds
        others = ""
        if lied_to and self.recipe.rewind <= chance < self.recipe.rewind + self.recipe.wrong_words:
            others = self._other_words(row, rng)
        wrong = bool(others)
        weight = self.recipe.model_weight if row.kind == "model" else 1.0
        return Clip(
            frames=row.first + order,
            progress=np.zeros_like(own) if wrong else own,
            success=np.zeros_like(own) if wrong else _success(row, own),
            own=own,
            instruction=others or words,
            task=row.task if row.kind == "measured" else "",
            weight=weight * (self.recipe.wrong_weight if wrong else 1.0),
            # told something else, a clip is worse than any that does what was said; told nothing, all is as before
            comparable=bool(words) or row.kind == "measured",
        )

    def _own(self, row: Row) -> Floats:
        if row.kind == "demonstration":
            return np.linspace(0, 1, row.frames, dtype=np.float32)
        return self.corpus.progress[row.places]

    def _other_words(self, row: Row, rng: np.random.Generator) -> str:
        """Return words of another task that share no telling word with this one's, empty when none were found.

        They are mostly of the same kind of data.
        """
        kind = row.kind if rng.random() < SAME_KIND else self.kinds[rng.integers(len(self.kinds))]
        mine = telling(row.instruction)
        for _ in range(20):
            task = self.tasks[kind][rng.integers(len(self.tasks[kind]))]
            rows = self.by_kind[kind][task]
            words = rows[rng.integers(len(rows))].instruction
            if words and not mine & telling(words):
                return words
        return ""


SMALL = frozenset(
    "a an and at by from in into it its of off on onto out over so that the then this to up down with".split()
)
COMMON = frozenset("goal move open close place position pull push put pick take robot spot target turn".split())


def telling(words: str) -> set[str]:
    """Return the words that name things: without the small ones and those that any task may have."""
    plain = "".join(letter if letter.isalpha() else " " for letter in words.lower())
    return {word for word in plain.split() if word not in SMALL and word not in COMMON}


def is_for_training(row: Row, recipe: Recipe) -> bool:
    """Whether the recipe may show this episode to the network."""
    ours = row.kind == "measured" and row.split in ("validation", "test")
    if ours or row.split == "held-out" or row.task in recipe.held_out_tasks:
        return False
    if row.kind == "measured" and not recipe.failures and not row.success:
        return False
    return not is_in_fold(row, recipe.fold)


def is_in_fold(row: Row, fold: int | None) -> bool:
    """Whether a demonstration's site, or an instruction of the teacher's, belongs to the fold that is held out."""
    if fold is None or row.kind == "measured":
        return False
    key = row.site if row.kind == "demonstration" else row.instruction
    return sum(key.encode()) % FOLDS == fold


def _balanced(rows: Sequence[Row], count: int, rng: np.random.Generator) -> list[Row]:
    """Choose episodes, half of them successes where both are known."""
    sides = [[row for row in rows if bool(row.success) is side] for side in (True, False)]
    chosen = []
    for number in range(count):
        side = sides[number % 2] or sides[1 - number % 2]
        chosen.append(side[rng.integers(len(side))])
    return chosen


def _forward(length: int, recipe: Recipe, rng: np.random.Generator) -> Ints:
    last = length - 1
    if rng.random() < recipe.cut:
        last = int(rng.integers(length // 4, length))
    return _warped(0, last, recipe.frames, rng)


def _back(length: int, recipe: Recipe, rng: np.random.Generator) -> Ints:
    """Go forward to some frame, then back to an earlier one."""
    turn = int(rng.integers(length // 2, length))
    until = int(rng.integers(0, max(1, turn * 3 // 4)))
    ahead = int(rng.integers(2, recipe.frames - 1))
    return np.concatenate([_warped(0, turn, ahead, rng), _warped(turn, until, recipe.frames - ahead, rng)])


def _warped(start: int, stop: int, count: int, rng: np.random.Generator) -> Ints:
    """Go from one frame to another in so many steps of uneven size: no speed means anything."""
    steps = rng.gamma(rng.uniform(0.5, 4.0), size=count - 1) + 1e-6
    way = np.concatenate([[0.0], np.cumsum(steps)])
    places: Ints = np.rint(start + (stop - start) * way / way[-1]).astype(np.int64)
    return places


def _success(row: Row, own: Floats) -> Floats:
    if row.kind == "measured":
        return np.where(np.isnan(own), np.nan, own >= 1.0 - ROUNDING).astype(np.float32)
    if row.kind == "demonstration":
        return np.where(own >= DONE, 1.0, np.where(own <= NOT_DONE, 0.0, np.nan)).astype(np.float32)
    return np.full_like(own, np.nan)
