"""Examples as rows of one regression: frames with targets, differences of pairs, weights and groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from demerit.models.taught.features import Layout
from demerit.training.teach.settings import Settings
from demerit.training.teach.targets import Target

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
EXACT, AT_MOST, AT_LEAST = 0, -1, 1
CONSTANT = 30.0
"""the value of the constant column: so large that its coefficient is hardly penalised"""


@dataclass(frozen=True, eq=False)
class Example:
    """One episode's features (frames, columns) and targets; or a view of one, in the group of its original."""

    x: npt.NDArray[np.floating]
    target: Target
    group: str
    task: str = ""
    told: bool = False
    """shown under another task's words: counts only in what is particular to that task"""


@dataclass(frozen=True)
class Pair:
    """Somebody's choice between two examples (their places in the list)."""

    better: int
    worse: int
    tie: bool = False


@dataclass(frozen=True, eq=False)
class Rows:
    """What is fitted: `combine` turns anything computed per frame into the rows of the regression."""

    frames: Floats
    """(frames, columns), not standardised"""
    plain: int
    """so many frames are rows by themselves; the others are only parts of pairs"""
    differences: tuple[tuple[slice, slice], ...]
    """frames of the better and of the worse one, a row each"""
    y: Floats
    """(rows, 2): progress and done"""
    bound: npt.NDArray[np.int8]
    """(rows, 2): EXACT, AT_MOST or AT_LEAST"""
    weight: Floats
    group: npt.NDArray[np.str_]
    task: npt.NDArray[np.str_]
    weights_of_frames: Floats = field(repr=False)

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.y)

    def combine(self, columns: Floats) -> Floats:
        """Turn (frames, q) numbers into (rows, q): as they are, or mean of the better less mean of the worse."""
        pairs = [columns[a].mean(axis=0) - columns[b].mean(axis=0) for a, b in self.differences]
        return np.concatenate([columns[: self.plain], np.array(pairs).reshape(len(pairs), columns.shape[1])])

    def constant(self) -> Floats:
        """The constant column: a difference has none."""
        return np.concatenate([np.full(self.plain, CONSTANT), np.zeros(len(self.differences))])[:, None]

    def satisfied(self, y: Floats, predicted: Floats) -> Floats:
        """Move bounds that are kept to what is predicted: only what breaks a bound pulls."""
        return np.where(
            self.bound == AT_MOST,
            np.minimum(self.y, predicted),
            np.where(self.bound == AT_LEAST, np.maximum(self.y, predicted), y),
        )


def rows_of(examples: Sequence[Example], pairs: Sequence[Pair], settings: Settings) -> Rows:
    """Choose and weigh the frames of all examples and pairs."""
    found = [_frames(one, settings) for one in examples]
    plain = sum(len(one[0]) for one in found)
    ends, differences, start = [], [], plain
    for pair in pairs:
        a, b = (_end(examples[i], settings) for i in (pair.better, pair.worse))
        differences.append((slice(start, start + len(a)), slice(start + len(a), start + len(a) + len(b))))
        ends += [a, b]
        start += len(a) + len(b)
    counted = [(pair.better, pair.worse) for pair in pairs]
    y = [one[1] for one in found] + [np.array([[0.0 if pair.tie else settings.margin, 0.0]]) for pair in pairs]
    bound = [one[2] for one in found] + [np.full((1, 2), EXACT if pair.tie else AT_LEAST) for pair in pairs]
    weight = np.concatenate([*(one[3] for one in found), np.full(len(pairs), settings.weights.pair)])
    group = [np.full(len(rows[0]), one.group) for one, rows in zip(examples, found, strict=True)]
    task = [np.full(len(rows[0]), one.task) for one, rows in zip(examples, found, strict=True)]
    share = settings.weights.pair * len(pairs) / max(1, start - plain)
    frame_weight = np.concatenate([weight[:plain], np.full(start - plain, share)])
    columns = examples[0].x.shape[1]
    return Rows(
        np.concatenate([*(one[0] for one in found), *ends, np.zeros((0, columns))]),
        plain,
        tuple(differences),
        np.concatenate([*y, np.zeros((0, 2))]),
        np.concatenate([*bound, np.zeros((0, 2))]).astype(np.int8),
        weight,
        np.concatenate([*group, np.array([examples[i].group for i, _ in counted], dtype=np.str_)]),
        np.concatenate([*task, np.array([examples[i].task for i, _ in counted], dtype=np.str_)]),
        frame_weight,
    )


def standardised(rows: Rows, layout: Layout | None, settings: Settings) -> tuple[Floats, Floats]:
    """Return centre and scale of the columns.

    A column that hardly moves in the few taught episodes must not explode on others, so that every deviation is
    damped: sqrt(sd^2 + (damping * typical sd)^2), typical over all columns.
    """
    weight = rows.weights_of_frames / rows.weights_of_frames.sum()
    centre = weight @ rows.frames
    variance = weight @ (rows.frames - centre) ** 2
    weights = _one_block(len(centre)) if layout is None else layout.scales(settings.parts)
    scale = np.zeros(len(centre))
    for block in _blocks(layout, len(centre)):
        typical = float(np.sqrt(variance[block].mean()))
        deviation = np.sqrt(variance[block] + (settings.damping * typical) ** 2)
        scale[block] = weights[block] / deviation if typical > 0 else 0.0
    return centre, scale


def _blocks(layout: Layout | None, columns: int) -> list[slice]:
    """Columns of one part of one camera: they share what is typical."""
    if layout is None:
        return [slice(0, columns)]
    bounds = np.concatenate([[0], np.cumsum(list(layout.widths) * len(layout.cameras))]).tolist()
    return [slice(a, b) for a, b in pairwise(bounds)]


def _one_block(columns: int) -> Floats:
    return np.full(columns, 1 / np.sqrt(columns))


def _frames(one: Example, settings: Settings) -> tuple[Floats, Floats, npt.NDArray[np.int64], Floats]:
    at, weight = one.target.rows(settings.rows, settings.last)
    y = np.stack([one.target.value[at], one.target.done[at]], axis=1)
    bound = np.stack([np.where(one.target.capped[at], AT_MOST, EXACT), np.full(len(at), EXACT)], axis=1)
    return np.asarray(one.x[at], dtype=np.float64), y, bound, weight


def _end(one: Example, settings: Settings) -> Floats:
    return np.asarray(one.x[-settings.ending(len(one.x)) :], dtype=np.float64)
