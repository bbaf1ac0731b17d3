"""Instruction sensitivity: is the reward about *this* instruction, or about any robot that moves?"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput
from demerit.evaluate.metrics.bootstrap import DEFAULT, Resampling, Tally, cluster_sums, mean_tally
from demerit.evaluate.metrics.columns import Floats, Labels, numbers, pick, rank_codes, ratio
from demerit.evaluate.metrics.measure import Measure
from demerit.evaluate.metrics.ordering import pair_credit


@dataclass(frozen=True, eq=False)
class Confusion:
    """Mean reward for videos of one task (rows) under the instruction of another (columns)."""

    tasks: tuple[Hashable, ...]
    values: Floats
    """(tasks, tasks); NaN where a reward is unscored or no such pair was shown"""
    normalised: Floats
    """each column divided by its sum: how an instruction shares its reward among the videos"""


def confusion_matrix(values: npt.ArrayLike, videos: Labels, instructions: Labels) -> Confusion:
    """Build the video x instruction matrix from scored combinations; repeated ones are averaged.

    One unscored reward makes its cell NaN: a cell without its worst video would flatter the model.

    Args:
        values: the final reward of each combination, NaN = unscored.
        videos: the task that the video shows.
        instructions: the task that the words ask for.
    """
    column = numbers("values", values)
    seen, names = rank_codes(list(videos) + list(instructions), 2 * len(column), "videos and instructions")
    row, col = seen[: len(column)], seen[len(column) :]
    size = len(names)
    cell = row * size + col
    sums = cluster_sums(column[:, None], cell, size * size)[:, 0]
    shown = np.bincount(cell, minlength=size * size).astype(np.float64)
    matrix = ratio(sums, shown).reshape(size, size)
    return Confusion(names, matrix, _by_column(matrix))


def diagonal_share(
    matrix: npt.ArrayLike, *, clusters: Labels | None = None, resampling: Resampling = DEFAULT
) -> Measure:
    """Measure the column-normalised diagonal mean: mean over instructions j of M_jj / sum over videos i of M_ij.

    1 is a reward for the right video only; a model blind to words and pictures gets 1 / tasks. A column that sums to
    0 rewards nothing and is undefined. Shares of negative numbers mean nothing, so rewards must not be below 0
    (turn log-probabilities into probabilities first). The interval resamples instructions, the videos stay.

    Args:
        matrix: rewards, videos in rows, instructions in columns, the right ones on the diagonal.
        clusters: a group of each instruction; None resamples instructions.
        resampling: how the interval is made.
    """
    return diagonal_tally(matrix, clusters=clusters).measure(resampling)


def diagonal_tally(matrix: npt.ArrayLike, *, clusters: Labels | None = None) -> Tally:
    """Count the evidence for `diagonal_share`: a row per instruction."""
    square = np.array(matrix, dtype=np.float64)
    if square.ndim != 2 or square.shape[0] != square.shape[1]:  # noqa: PLR2004
        raise BadInput("confusion matrix", "as many videos as instructions", f"shape {square.shape}")
    if bool((square < 0).any()):
        raise BadInput("confusion matrix", "rewards of at least 0 (of negative ones there is no share)", "one below")
    shares = np.diagonal(_by_column(square)).astype(np.float64)
    unscored = np.isnan(square).any(axis=0)
    keep = ~np.isnan(shares)
    labels: list[Hashable] = list(range(len(shares))) if clusters is None else list(clusters)
    missing, undefined = int(unscored.sum()), int((~keep & ~unscored).sum())
    name, chosen = "instruction_diagonal_share", pick(labels, keep)
    return mean_tally(name, "instructions", shares[keep], chosen, unscored=missing, undefined=undefined)


def right_instruction(
    right: npt.ArrayLike,
    wrong: npt.ArrayLike,
    *,
    clusters: Labels | None = None,
    resampling: Resampling = DEFAULT,
) -> Measure:
    """Measure how often a video gets more reward under its own instruction than under a wrong one; ties are 1/2.

    Args:
        right: the reward under the right instruction, a row per comparison; NaN = unscored.
        wrong: the reward of the same video under the wrong one.
        clusters: the task of the video; None resamples comparisons.
        resampling: how the interval is made.
    """
    return right_instruction_tally(right, wrong, clusters=clusters).measure(resampling)


def right_instruction_tally(right: npt.ArrayLike, wrong: npt.ArrayLike, *, clusters: Labels | None = None) -> Tally:
    """Count the evidence for `right_instruction`."""
    own = numbers("right instruction", right)
    margin = own - numbers("wrong instruction", wrong, len(own))
    credit = pair_credit(margin, np.ones(len(margin), dtype=bool))
    ties = int((margin == 0).sum())
    return mean_tally("right_instruction_accuracy", "comparisons", credit, clusters, ties=ties)


def _by_column(matrix: Floats) -> Floats:
    return ratio(matrix, np.broadcast_to(matrix.sum(axis=0, keepdims=True), matrix.shape))
