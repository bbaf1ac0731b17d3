"""Rank agreement: value-order correlation (VOC) over time, Kendall's tau over outcomes, and the success-failure gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput
from demerit.evaluate.metrics.bootstrap import Additive, Tally, empty_tally, mean_tally
from demerit.evaluate.metrics.columns import Floats, Labels, average_ranks, flags, numbers, pick, rank_codes, ratio

Method = Literal["pearson", "spearman"]
FrameOrder = Literal["in_order", "reversed", "shuffled"]
"""the order in which the frames were presented to the model"""


@dataclass(frozen=True, eq=False)
class Correlations:
    """One correlation per episode; NaN where the episode is unscored or the correlation undefined."""

    value: Floats
    unscored: npt.NDArray[np.bool_]
    undefined: npt.NDArray[np.bool_]


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
        found = float("nan") if missing else correlate(column, when)
        value.append(found)
        unscored.append(missing)
        undefined.append(not missing and bool(np.isnan(found)))
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
    found = order_correlations(values, times, method)
    suffix = "" if shown == "in_order" else f"_{shown}"
    return correlation_tally(found, f"voc_{method}{suffix}", clusters)


def correlation_tally(found: Correlations, name: str, clusters: Labels | None = None) -> Tally:
    """Tally the mean of correlations that were computed already."""
    keep = ~np.isnan(found.value)
    unscored, undefined = int(found.unscored.sum()), int(found.undefined.sum())
    kept = pick(clusters, keep)
    return mean_tally(name, "episodes", found.value[keep], kept, unscored=unscored, undefined=undefined)


Variant = Literal["tau_a", "tau_b", "ordered"]

LEVELS = {"failed": 0.0, "suboptimal": 1.0, "successful": 2.0}
"""how well an episode went, as increasing numbers"""


@dataclass(frozen=True)
class PairCounts:
    """Counts over the pairs of episodes of one task."""

    concordant: int
    discordant: int
    model_ties: int
    """pairs with equal values, whatever their levels"""
    level_ties: int
    """pairs of one level, whatever their values"""
    pairs: int

    def tau(self, variant: Variant) -> float:
        """Return (C - D) / d with d by variant; NaN if there is nothing to order or d is 0.

        tau_a: d = n (n - 1) / 2, all pairs, so pairs of equal level keep even a perfect model below 1.
        tau_b: d = sqrt((pairs - model ties) (pairs - level ties)).
        ordered: d = pairs - level ties, only pairs with a strict order (Somers' d): a perfect model scores 1.
        """
        strict = self.pairs - self.level_ties
        if not strict:
            return float("nan")
        below = {"tau_a": self.pairs, "tau_b": ((self.pairs - self.model_ties) * strict) ** 0.5, "ordered": strict}
        return (self.concordant - self.discordant) / below[variant] if below[variant] else float("nan")


def count_pairs(values: npt.ArrayLike, levels: npt.ArrayLike) -> PairCounts:
    """Count concordant, discordant and tied pairs, by sorted search for each pair of levels."""
    value = numbers("values", values)
    level = numbers("levels", levels, len(value))
    groups = [np.sort(value[level == name]) for name in np.unique(level)]
    concordant = discordant = 0
    for high in range(1, len(groups)):
        for low in range(high):
            below = np.searchsorted(groups[low], groups[high], side="left")
            reached = np.searchsorted(groups[low], groups[high], side="right")
            concordant += int(below.sum())
            discordant += int((len(groups[low]) - reached).sum())
    return PairCounts(concordant, discordant, _tied(value), _tied(level), len(value) * (len(value) - 1) // 2)


def kendall_tau(
    values: npt.ArrayLike,
    levels: npt.ArrayLike,
    tasks: Labels,
    *,
    variant: Variant = "tau_a",
    clusters: Labels | None = None,
) -> Tally:
    """Measure the mean over tasks of Kendall's tau between a task's values and levels (see `PairCounts.tau`).

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
        there = judged & ~np.isnan(value)
        counted = count_pairs(value[there], level[there])
        tau = counted.tau(variant)
        if counted.pairs == counted.level_ties:
            unscored += 1
        elif np.isnan(tau):
            undefined += 1
        else:
            ties += counted.model_ties
            taus.append(tau)
            labels.append(owners[owner[judged][0]])
    counts = {"unscored episodes": int((np.isnan(value) & ~np.isnan(level)).sum())}
    name, found = f"kendall_{variant}", np.array(taus)
    return mean_tally(name, "tasks", found, labels, unscored=unscored, undefined=undefined, ties=ties, counts=counts)


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


def _tied(column: Floats) -> int:
    _, size = np.unique(column, return_counts=True)
    return int((size * (size - 1) // 2).sum())
