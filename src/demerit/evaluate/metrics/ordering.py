"""Pairwise agreement: human order, A/B/tie judgements, and right against wrong instructions.

A pair counts 1 if the model agrees, 1/2 if it is tied, 0 if it disagrees.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput
from demerit.evaluate.metrics.bootstrap import Tally, mean_tally
from demerit.evaluate.metrics.columns import Bools, Floats, Ints, Labels, numbers, pick, rank_codes, ratio

Verdicts = Sequence[str] | npt.NDArray[Any]
Return = Literal["sum", "final", "mean"]
"""how per-step rewards become one number per episode"""


def episode_returns(values: Sequence[npt.ArrayLike], how: Return = "sum") -> Floats:
    """Compute each episode's return from its per-step rewards; NaN if a value that it needs is missing.

    sum: r_1 + ... + r_T (the position paper's return; grows with the length). mean: sum / T. final: r_T.
    Sums are exact before rounding (fsum): the same values in another order, or a constant over another length, give the
    same number, so ties stay ties.
    """
    if how not in get_args(Return):
        raise BadInput("return", "'sum', 'final' or 'mean'", repr(how))
    return np.array([_return(numbers("per-step rewards", curve), how) for curve in values], dtype=np.float64)


def preference_ordering(
    returns: npt.ArrayLike,
    human: npt.ArrayLike,
    contexts: Labels,
    *,
    clusters: Labels | None = None,
    how: Return = "sum",
) -> Tally:
    """Measure preference-ordering accuracy, the A of the position paper.

    P_c = pairs {i, j} of one context with human scores y_i != y_j;
    A = sum over c and P_c of credit / sum over c of |P_c|, where credit is 1 if sign(return_i - return_j) =
    sign(y_i - y_j), 1/2 for equal returns, else 0. (The paper gives ties 0.)

    Args:
        returns: one number per episode (see `episode_returns`), NaN = unscored.
        human: one score per episode, NaN = unlabelled.
        contexts: the task context of each episode.
        clusters: what the interval resamples; None = the contexts.
        how: how the returns were computed; part of the name of the result.
    """
    model = numbers("returns", returns)
    truth = numbers("human scores", human, len(model))
    left, right, context = pairs_within(contexts, len(model))
    judged = ~np.isnan(truth[left]) & ~np.isnan(truth[right])
    strict = judged & (truth[left] != truth[right])
    left, right = left[strict], right[strict]
    credit = pair_credit(model[left] - model[right], truth[left] > truth[right])
    scored = ~np.isnan(credit)
    involved = np.unique(np.concatenate([left, right]))
    counts = {
        "contexts": len(np.unique(context[strict][scored])),
        "episodes": len(involved),
        "unscored episodes": int(np.isnan(model[involved]).sum()),
        "human ties": int((judged & ~strict).sum()),
    }
    owner = rank_codes(contexts if clusters is None else clusters, len(model))
    if clusters is not None and not np.array_equal(owner[0][left], owner[0][right]):
        raise BadInput("clusters", "each context inside one cluster", "a pair that crosses two")
    labels = [owner[1][code] for code in owner[0][left]]
    ties = int((credit == 0.5).sum())  # noqa: PLR2004
    return mean_tally(f"preference_ordering_by_{how}", "pairs", credit, labels, ties=ties, counts=counts)


def judgement_agreement(margin: npt.ArrayLike, verdicts: Verdicts, *, clusters: Labels | None = None) -> Tally:
    """Measure agreement with human A/B/tie judgements: the share of A and B verdicts that the model repeats.

    Human ties are skipped and counted; a margin of exactly 0 is a model tie and counts one half.

    Args:
        margin: the model's preference for A over B (a difference of returns, or a probability minus 1/2);
            NaN = unscored.
        verdicts: human verdicts 'a', 'b' or 'tie'.
        clusters: the task of each judgement; None resamples judgements.
    """
    said, decided = _verdicts(verdicts)
    credit = pair_credit(numbers("margin", margin, len(said))[decided], said[decided] == "a")
    return _agreement("judgement_agreement", credit, said, decided, clusters)


def both_orders_agreement(leaning: npt.ArrayLike, verdicts: Verdicts, *, clusters: Labels | None = None) -> Tally:
    """Measure agreement of a comparer that saw each pair twice, as (A, B) and as (B, A).

    The credit of a pair is the mean over both orders: a comparer that always names the first scores exactly 1/2.

    Args:
        leaning: mean over both orders of the sign of its preference for A: 1, 1/2, 0, -1/2 or -1. NaN = unscored in
            either order.
        verdicts: human verdicts 'a', 'b' or 'tie'.
        clusters: the task of each judgement; None resamples judgements.
    """
    said, decided = _verdicts(verdicts)
    leans = numbers("leaning", leaning, len(said))[decided]
    credit = (np.where(said[decided] == "a", leans, -leans) + 1) / 2
    return _agreement("both_orders_agreement", credit, said, decided, clusters)


def pairs_within(groups: Labels, length: int) -> tuple[Ints, Ints, Ints]:
    """List all pairs i < j of rows with the same label: rows i, rows j and the code of their label."""
    codes, _ = rank_codes(groups, length, "contexts")
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], codes[order], side="right")
    partners = ends - np.arange(length) - 1
    first = np.repeat(np.arange(length), partners)
    offset = np.arange(len(first)) - np.repeat(np.cumsum(partners) - partners, partners)
    left, right = order[first], order[first + 1 + offset]
    return left, right, codes[left]


def pair_credit(margin: Floats, first_is_better: Bools) -> Floats:
    """Return 1 for the right sign of the margin, 1/2 for a margin of 0, 0 for the wrong sign, NaN for NaN."""
    signed = np.where(first_is_better, margin, -margin)
    return np.where(np.isnan(signed), np.nan, (np.sign(signed) + 1) / 2)


def _return(values: Floats, how: Return) -> float:
    if not len(values):
        return math.nan
    if how == "final":
        return float(values[-1])
    if np.isnan(values).any():
        return math.nan
    if how == "sum":
        return math.fsum(values)
    least = float(values.min())  # subtracted first, so that the mean of a constant is exactly that constant
    return least + math.fsum(values - least) / len(values)


def _verdicts(verdicts: Verdicts) -> tuple[npt.NDArray[Any], Bools]:
    said = np.array(verdicts, dtype=str)
    if said.ndim != 1 or not bool(np.isin(said, ("a", "b", "tie")).all()):
        raise BadInput("verdicts", "'a', 'b' or 'tie' per pair", sorted(set(said.ravel().tolist())))
    return said, said != "tie"


def _agreement(name: str, credit: Floats, said: npt.NDArray[Any], decided: Bools, clusters: Labels | None) -> Tally:
    counts = {"a": int((said == "a").sum()), "b": int((said == "b").sum()), "human ties": int((~decided).sum())}
    kept = pick(clusters, decided)
    ties = int((credit == 0.5).sum())  # noqa: PLR2004
    note = "" if kept is not None else "judgements resampled as if independent"
    return mean_tally(name, "judgements", credit, kept, ties=ties, counts=counts, note=note)


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
