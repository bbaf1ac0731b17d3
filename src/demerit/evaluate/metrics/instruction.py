"""Instruction sensitivity: does a video get more reward under its own instruction than under another?"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput
from demerit.evaluate.metrics.bootstrap import Tally, mean_tally
from demerit.evaluate.metrics.columns import Floats, Labels, numbers, pick, ratio
from demerit.evaluate.metrics.ordering import pair_credit


def diagonal_share(matrix: npt.ArrayLike, *, clusters: Labels | None = None) -> Tally:
    """Measure the column-normalised diagonal mean: mean over instructions j of M_jj / sum over videos i of M_ij.

    1 rewards the right video only; a model blind to instruction and images scores 1 / tasks. A column that sums to 0 is
    undefined. Rewards must not be negative (turn log-probabilities into probabilities first). The interval resamples
    instructions, not videos.

    Args:
        matrix: rewards, videos in rows, instructions in columns, the right ones on the diagonal.
        clusters: a group of each instruction; None resamples instructions.
    """
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


def right_instruction(right: npt.ArrayLike, wrong: npt.ArrayLike, *, clusters: Labels | None = None) -> Tally:
    """Measure how often a video gets more reward under its own instruction than under a wrong one; a tie counts 1/2.

    Args:
        right: the reward under the right instruction, a row per comparison; NaN = unscored.
        wrong: the reward of the same video under the wrong one.
        clusters: the task of the video; None resamples comparisons.
    """
    own = numbers("right instruction", right)
    margin = own - numbers("wrong instruction", wrong, len(own))
    credit = pair_credit(margin, np.ones(len(margin), dtype=bool))
    ties = int((margin == 0).sum())
    return mean_tally("right_instruction_accuracy", "comparisons", credit, clusters, ties=ties)


def _by_column(matrix: Floats) -> Floats:
    return ratio(matrix, np.broadcast_to(matrix.sum(axis=0, keepdims=True), matrix.shape))
