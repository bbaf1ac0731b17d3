"""Order: preference-ordering accuracy, agreement with A/B/tie labels, value-order correlation (VOC), Kendall's tau.

A pair counts 1 if the model agrees, 1/2 if it is tied, 0 if it disagrees; with `ties="wrong"` a tie counts 0.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Bools, Floats, Ints
from demerit.errors import BadInput
from demerit.evaluate.metrics.bootstrap import (
    Additive,
    Labels,
    Statistic,
    Tally,
    Weighted,
    average_ranks,
    empty_tally,
    flags,
    mean_tally,
    numbers,
    pick,
    rank_codes,
    ratio,
)

Verdicts = Sequence[str] | npt.NDArray[Any]
Return = Literal["sum", "final", "mean"]
"""how per-step rewards become one number per episode"""
TieCredit = Literal["half", "wrong"]
"""what a pair counts that the model ties; `wrong` is the position paper's rule"""


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
    ties: TieCredit = "half",
) -> Tally:
    """Measure preference-ordering accuracy; with `ties="wrong"` it is the A of the position paper.

    P_c = pairs {i, j} of one context with human scores y_i != y_j;
    A = sum over c and P_c of credit / sum over c of |P_c|, where credit is 1 if sign(return_i - return_j) =
    sign(y_i - y_j), 1/2 for equal returns (0 with `ties="wrong"`), else 0.
    With ties wrong, a constant scores 0 and a model of few values scores less than a finer one of equal rank: chance is
    1/2 only for models that never tie.

    Args:
        returns: one number per episode (see `episode_returns`), NaN = unscored.
        human: one score per episode, NaN = unlabelled.
        contexts: the task context of each episode.
        clusters: what the interval resamples; None = the contexts. A pair of two clusters counts as often as both
            are drawn together: the product of their counts.
        how: how the returns were computed; part of the name of the result.
        ties: what equal returns count; part of the name of the result.
    """
    if ties not in get_args(TieCredit):
        raise BadInput("ties", "'half' or 'wrong'", repr(ties))
    model = numbers("returns", returns)
    truth = numbers("human scores", human, len(model))
    context, _ = rank_codes(contexts, len(model), "contexts")
    owner, labels = rank_codes(contexts if clusters is None else clusters, len(model))
    is_judged = ~np.isnan(truth)
    level = np.unique(truth, return_inverse=True)[1].reshape(-1)
    judged = _split_levels(context, level, np.zeros(len(model)), np.flatnonzero(is_judged))
    scored = _split_levels(context, level, model, np.flatnonzero(is_judged & ~np.isnan(model)))
    involved, used = (_rows_of(splits) for splits in (judged, scored))
    asked, n, tied = _count(judged)[0], *_count(scored)
    counts = {
        "contexts": len(np.unique(context[used])),
        "episodes": len(involved),
        "unscored episodes": int(np.isnan(model[involved]).sum()),
        "human ties": _count_ties(context[is_judged] * len(model) + level[is_judged]),
    }
    name = f"{'strict_' if ties == 'wrong' else ''}preference_ordering_by_{how}"
    facts = (n, asked - n, tied, 0, counts)
    if not n:
        return replace(empty_tally(name, "pairs", asked, "no pair was scored" if asked else ""), ties=0, counts=counts)
    half = 0.5 if ties == "half" else 0.0
    codes, place = np.unique(owner[used], return_inverse=True)
    cluster = np.zeros(len(model), np.int64)
    cluster[used] = place.reshape(-1)
    # pairs within one cluster: their credit and their number, for each cluster
    within = np.zeros((len(codes), 2))
    for split in _split_levels(context * len(labels) + owner, level, model, used):
        sums = split.sums(np.ones((1, len(split.rows))), half)
        for column, values in enumerate(sums):
            within[:, column] += np.bincount(cluster[split.rows[split.better]], values[0], len(codes))
    statistic: Statistic = Additive(within, _share_of_pairs)
    each, owners = np.arange(len(codes)), tuple(labels[code] for code in codes)
    if within[:, 1].sum() < n:
        statistic = _mean_over_crossing_pairs(scored, cluster, within, half)
    elif len(codes) == 1:  # a single cluster may be resampled by its rows: one per pair
        won = round(float(within[0, 0]) - half * tied)
        rows = np.repeat([[0.0, 1.0], [half, 1.0], [1.0, 1.0]], [n - tied - won, tied, won], axis=0)
        statistic, each = Additive(rows, _share_of_pairs), np.zeros(n, np.int64)
    return Tally(name, "pairs", statistic, each, owners, *facts)


@dataclass(frozen=True, eq=False)
class _LevelSplit:
    """Rows that one binary digit of their level tells apart, by group and then by rising return.

    Every two rows of one group and of unequal levels are apart in exactly one digit: the highest one that differs. So
    pairs are counted in n log n steps, and no list of pairs is ever made: 10,000 episodes of one task have 50 million.
    """

    rows: Ints
    better: Bools
    """which of them have the digit"""
    spans: tuple[Ints, Ints, Ints, Ints]
    """of each better row: where its group starts, where its ties start and stop, where its group stops"""

    def sums(self, weights: Floats, tie: float) -> tuple[Floats, Floats]:
        """Return the credit and the number of pairs of each better row: (R, better), for weights (R, rows)."""
        worse = np.zeros((len(weights), len(self.rows) + 1))
        np.cumsum(weights * ~self.better, axis=1, out=worse[:, 1:])
        start, first, last, stop = (worse[:, span] for span in self.spans)
        own = weights[:, self.better]
        return own * ((1 - tie) * first + tie * last - start), own * (stop - start)


def _split_levels(groups: Ints, level: Ints, returns: Floats, rows: Ints) -> list[_LevelSplit]:
    """Tell apart every two of these rows that have one group and unequal levels."""
    splits = []
    for digit in range(int(level[rows].max(initial=0)).bit_length()):
        bucket = groups * (int(level.max()) + 1) + (level >> (digit + 1))
        order = rows[np.lexsort((returns[rows], bucket[rows]))]
        better = (level[order] >> digit) & 1 == 1
        _, group, size = np.unique(bucket[order], return_inverse=True, return_counts=True)
        above = np.bincount(group.reshape(-1), better)
        is_mixed = ((above > 0) & (above < size))[group.reshape(-1)]
        order, better = order[is_mixed], better[is_mixed]
        if not len(order):
            continue
        group, value = bucket[order], returns[order]
        starts = np.flatnonzero(np.append(True, (group[1:] != group[:-1]) | (value[1:] != value[:-1])))
        tie = np.searchsorted(starts, np.arange(len(order)), side="right")
        spans = (
            np.searchsorted(group, group, side="left"),
            starts[tie - 1],
            np.append(starts, len(order))[tie],
            np.searchsorted(group, group, side="right"),
        )
        splits.append(_LevelSplit(order, better, tuple(span[better] for span in spans)))
    return splits


def _share_of_pairs(sums: Floats) -> Floats:
    """Return credit / pairs."""
    return ratio(sums[:, 0], sums[:, 1])


def _rows_of(splits: Sequence[_LevelSplit]) -> Ints:
    return np.unique(np.concatenate([np.zeros(0, np.int64), *(split.rows for split in splits)]))


def _count(splits: Sequence[_LevelSplit]) -> tuple[int, int]:
    """Count the pairs, and those that are tied."""
    pairs = tied = 0
    for split in splits:
        ones = np.ones((1, len(split.rows)))
        credit, number = split.sums(ones, 1.0)
        pairs += int(number.sum())
        tied += int((credit - split.sums(ones, 0.0)[0]).sum())
    return pairs, tied


def _mean_over_crossing_pairs(splits: Sequence[_LevelSplit], cluster: Ints, within: Floats, tie: float) -> Weighted:
    """Return the mean credit as a function of the counts of clusters; a pair within one cluster counts once a draw."""
    owners = [cluster[split.rows] for split in splits]

    def mean(counts: Floats) -> Floats:
        # the splits count a pair within a cluster as often as its two rows are drawn together
        totals = (counts - counts**2) @ within
        for split, owner in zip(splits, owners, strict=True):
            totals += np.stack([part.sum(axis=1) for part in split.sums(counts[:, owner], tie)], axis=1)
        return _share_of_pairs(totals)

    blocks = 8 * max(map(len, owners)) // len(within) + 1
    return Weighted(np.arange(len(within), dtype=np.int64), mean, blocks)


def judgement_agreement(margin: npt.ArrayLike, verdicts: Verdicts, *, clusters: Labels | None = None) -> Tally:
    """Measure agreement with human A/B/tie judgements: the share of A and B verdicts that the model repeats.

    Human ties are skipped and counted; a margin of exactly 0 is a model tie and counts one half.

    Args:
        margin: the model's preference for A over B (a difference of returns, or a probability minus 1/2);
            NaN = unscored.
        verdicts: human verdicts 'a', 'b' or 'tie'.
        clusters: the task of each judgement; None resamples judgements.
    """
    answers, decided = _verdicts(verdicts)
    credit = pair_credit(numbers("margin", margin, len(answers))[decided], answers[decided] == "a")
    return _agreement("judgement_agreement", credit, answers, decided, clusters)


def both_orders_agreement(leaning: npt.ArrayLike, verdicts: Verdicts, *, clusters: Labels | None = None) -> Tally:
    """Measure agreement of a comparer that saw each pair twice, as (A, B) and as (B, A).

    The credit of a pair is the mean over both orders: a comparer that always names the first scores exactly 1/2.

    Args:
        leaning: mean over both orders of the sign of its preference for A: 1, 1/2, 0, -1/2 or -1. NaN = unscored in
            either order.
        verdicts: human verdicts 'a', 'b' or 'tie'.
        clusters: the task of each judgement; None resamples judgements.
    """
    answers, decided = _verdicts(verdicts)
    leans = numbers("leaning", leaning, len(answers))[decided]
    credit = (np.where(answers[decided] == "a", leans, -leans) + 1) / 2
    return _agreement("both_orders_agreement", credit, answers, decided, clusters)


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
    answers = np.array(verdicts, dtype=str)
    if answers.ndim != 1 or not bool(np.isin(answers, ("a", "b", "tie")).all()):
        raise BadInput("verdicts", "'a', 'b' or 'tie' per pair", sorted(set(answers.ravel().tolist())))
    return answers, answers != "tie"


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
        raise BadInput("confusion matrix", "rewards of at least 0 (negative ones have no share)", "one below")
    shares = np.diagonal(_by_column(square)).astype(np.float64)
    unscored = np.isnan(square).any(axis=0)
    keep = ~np.isnan(shares)
    labels: list[Hashable] = list(range(len(shares))) if clusters is None else list(clusters)
    missing, undefined = int(unscored.sum()), int((~keep & ~unscored).sum())
    name, groups = "instruction_diagonal_share", pick(labels, keep)
    return mean_tally(name, "instructions", shares[keep], groups, unscored=missing, undefined=undefined)


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


Method = Literal["pearson", "spearman"]
FrameOrder = Literal["in_order", "reversed", "shuffled"]
"""the order in which the frames were presented to the model"""


@dataclass(frozen=True, eq=False)
class Correlations:
    """One correlation per episode; NaN where the episode is unscored or the correlation undefined."""

    value: Floats
    unscored: Bools
    undefined: Bools


def pearson(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Return sum (x - mx)(y - my) / sqrt(sum (x - mx)^2 sum (y - my)^2); NaN if x or y is constant or too short."""
    first = numbers("x", x)
    second = numbers("y", y, len(first))
    if len(first) < 2 or first.min() == first.max() or second.min() == second.max():  # noqa: PLR2004
        return float("nan")
    # scaling by the spread first keeps the squares from under- or overflowing
    a, b = ((v - v.mean()) / np.ptp(v) for v in (first, second))
    return float(np.clip((a @ b) / np.sqrt((a @ a) * (b @ b)), -1.0, 1.0))


def spearman(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Return Pearson's correlation of the ranks; equal values share their average rank."""
    return pearson(average_ranks(numbers("x", x)), average_ranks(numbers("y", y)))


def order_correlations(
    values: Sequence[npt.ArrayLike], times: Sequence[npt.ArrayLike] | None = None, method: Method = "pearson"
) -> Correlations:
    """Correlate each episode's values with the true time of the frames they were given to.

    Args:
        values: per episode, one value per presented frame, in the order of presentation. One missing value makes the
            episode unscored.
        times: per episode, the true index of each presented frame (for a reversed video T-1, ..., 0; for shuffled
            frames the permutation). None: presented in order, 0, 1, ...
        method: pearson or spearman.
    """
    if method not in get_args(Method):
        raise BadInput("correlation", "'pearson' or 'spearman'", repr(method))
    if times is not None and len(times) != len(values):
        raise BadInput("times", f"one array for each of {len(values)} episodes", len(times))
    correlate = pearson if method == "pearson" else spearman
    value, unscored, undefined = [], [], []
    for i, curve in enumerate(values):
        column = numbers("values", curve)
        when = np.arange(len(column)) if times is None else numbers("times", times[i], len(column))
        missing = not len(column) or bool(np.isnan(column).any())
        correlation = float("nan") if missing else correlate(column, when)
        value.append(correlation)
        unscored.append(missing)
        undefined.append(not missing and bool(np.isnan(correlation)))
    return Correlations(np.array(value, dtype=np.float64), np.array(unscored, bool), np.array(undefined, bool))


def value_order_correlation(
    values: Sequence[npt.ArrayLike],
    times: Sequence[npt.ArrayLike] | None = None,
    *,
    method: Method = "pearson",
    shown: FrameOrder = "in_order",
    clusters: Labels | None = None,
) -> Tally:
    """Measure VOC: the mean over episodes of corr(value, true time of the frame).

    A constant curve is counted as undefined, not as 0. A model that counts steps scores 1 with frames in order, -1
    reversed, and 0 in expectation with shuffled frames, where a model that looks at the images scores higher.

    Args:
        values: per episode, one value per presented frame.
        times: per episode, the true index of each presented frame; needed unless they were presented in order.
        method: pearson or spearman, part of the name of the result.
        shown: how the frames were presented, part of the name of the result.
        clusters: the task of each episode; None resamples episodes.
    """
    if shown not in get_args(FrameOrder):
        raise BadInput("presentation", "'in_order', 'reversed' or 'shuffled'", repr(shown))
    if times is None and shown != "in_order":
        raise BadInput(f"{shown} frames", "the true time of each presented frame", "no times")
    correlations = order_correlations(values, times, method)
    suffix = "" if shown == "in_order" else f"_{shown}"
    return correlation_tally(correlations, f"voc_{method}{suffix}", clusters)


def correlation_tally(found: Correlations, name: str, clusters: Labels | None = None) -> Tally:
    """Tally the mean of correlations that were computed already."""
    keep = ~np.isnan(found.value)
    unscored, undefined = int(found.unscored.sum()), int(found.undefined.sum())
    kept = pick(clusters, keep)
    return mean_tally(name, "episodes", found.value[keep], kept, unscored=unscored, undefined=undefined)


Variant = Literal["tau_a", "tau_b", "ordered"]

LEVELS = {"failed": 0.0, "suboptimal": 1.0, "successful": 2.0}
"""how well an episode went, as increasing numbers"""


def count_pairs(value: Floats, level: Floats) -> tuple[int, int]:
    """Count concordant and discordant pairs, by sorted search for each pair of levels."""
    groups = [np.sort(value[level == name]) for name in np.unique(level)]
    concordant = discordant = 0
    for high in range(1, len(groups)):
        for low in range(high):
            below = np.searchsorted(groups[low], groups[high], side="left")
            reached = np.searchsorted(groups[low], groups[high], side="right")
            concordant += int(below.sum())
            discordant += int((len(groups[low]) - reached).sum())
    return concordant, discordant


def kendall_tau(
    values: npt.ArrayLike,
    levels: npt.ArrayLike,
    tasks: Labels,
    *,
    variant: Variant = "tau_a",
    clusters: Labels | None = None,
) -> Tally:
    """Measure the mean over tasks of Kendall's tau between a task's values and levels, (C - D) / d by variant.

    tau_a: d = n (n - 1) / 2, all pairs, so pairs of equal level keep even a perfect model below 1.
    tau_b: d = sqrt((pairs - model ties) (pairs - level ties)).
    ordered: d = pairs - level ties, only pairs with a strict order (Somers' d): a perfect model scores 1.

    A task with one level is skipped; a task where the formula has no value (tau_b of a constant model) is undefined; a
    task left with one level because episodes are unscored counts as unscored.

    Args:
        values: one number per episode (usually the final reward), NaN = unscored.
        levels: how well it went (see `LEVELS`), NaN = unlabelled.
        tasks: the task of each episode.
        variant: tau_a, tau_b or ordered, part of the name of the result.
        clusters: what the interval resamples, one label per episode; the tasks when None.
    """
    if variant not in get_args(Variant):
        raise BadInput("variant of tau", f"one of {', '.join(get_args(Variant))}", repr(variant))
    value = numbers("values", values)
    level = numbers("levels", levels, len(value))
    task, names = rank_codes(tasks, len(value), "tasks")
    owner, owners = rank_codes(tasks if clusters is None else clusters, len(value))
    taus, labels, unscored, undefined, ties = [], [], 0, 0, 0
    for i in range(len(names)):
        judged = (task == i) & ~np.isnan(level)
        if len(np.unique(level[judged])) < 2:  # noqa: PLR2004
            continue
        is_scored = judged & ~np.isnan(value)
        concordant, discordant = count_pairs(value[is_scored], level[is_scored])
        pairs, model_ties = math.comb(int(is_scored.sum()), 2), _count_ties(value[is_scored])
        strict = pairs - _count_ties(level[is_scored])
        below = {"tau_a": pairs, "tau_b": ((pairs - model_ties) * strict) ** 0.5, "ordered": strict}[variant]
        if not strict:
            unscored += 1
        elif not below:
            undefined += 1
        else:
            ties += model_ties
            taus.append((concordant - discordant) / below)
            labels.append(owners[owner[judged][0]])
    counts = {"unscored episodes": int((np.isnan(value) & ~np.isnan(level)).sum())}
    name, correlations = f"kendall_{variant}", np.array(taus)
    return mean_tally(
        name, "tasks", correlations, labels, unscored=unscored, undefined=undefined, ties=ties, counts=counts
    )


def success_failure_gap(values: npt.ArrayLike, success: npt.ArrayLike, *, clusters: Labels | None = None) -> Tally:
    """Measure mean(value of successes) - mean(value of failures), in the model's own unit, over all episodes.

    Args:
        values: one number per episode (usually the final reward), NaN = unscored.
        success: whether people accepted it, NaN = unknown.
        clusters: the task of each episode; None resamples episodes.
    """
    value = numbers("values", values)
    label = flags("success", success, len(value))
    keep = ~np.isnan(value) & ~np.isnan(label)
    missing = int((np.isnan(value) & ~np.isnan(label)).sum())
    good = label[keep]
    counts = {"successes": int(good.sum()), "failures": int((1 - good).sum())}
    if not min(counts.values()):
        return empty_tally("success_failure_gap", "episodes", missing, "needs successes and failures")
    kept = value[keep]
    codes, labels = rank_codes(pick(clusters, keep), len(kept))
    parts = np.stack([kept * good, good, kept * (1 - good), 1 - good], axis=1)
    statistic = Additive(parts, _difference_of_means)
    return Tally("success_failure_gap", "episodes", statistic, codes, labels, len(kept), missing, counts=counts)


def _difference_of_means(sums: Floats) -> Floats:
    return ratio(sums[:, 0], sums[:, 1]) - ratio(sums[:, 2], sums[:, 3])


def _count_ties(column: Floats | Ints) -> int:
    _, size = np.unique(column, return_counts=True)
    return int((size * (size - 1) // 2).sum())
