"""Ranking failed < suboptimal < successful within a task: Kendall's tau, and the gap between success and failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput
from demerit.evaluate.metrics.bootstrap import DEFAULT, Additive, Resampling, Tally, empty_tally, mean_tally
from demerit.evaluate.metrics.columns import Floats, Labels, flags, numbers, pick, rank_codes, ratio
from demerit.evaluate.metrics.measure import Measure

Variant = Literal["tau_a", "tau_b", "ordered"]

LEVELS = {"failed": 0.0, "suboptimal": 1.0, "successful": 2.0}
"""the words for how well an episode went, as numbers that rise"""


@dataclass(frozen=True)
class PairCounts:
    """What the pairs of one task say."""

    concordant: int
    discordant: int
    model_ties: int
    """pairs with equal values, whatever their levels"""
    level_ties: int
    """pairs of one level, whatever their values"""
    pairs: int

    def tau(self, variant: Variant) -> float:
        """Return (C - D) / d with d as the variant says; NaN when there is nothing to order or d is 0.

        tau_a: d = n (n - 1) / 2, all pairs; pairs of one level count, so even a perfect model stays below 1.
        tau_b: d = sqrt((pairs - model ties) (pairs - level ties)).
        ordered: d = pairs - level ties, only pairs with a strict order (Somers' d); a perfect model gets 1.
        """
        strict = self.pairs - self.level_ties
        if not strict:
            return float("nan")
        below = {"tau_a": self.pairs, "tau_b": ((self.pairs - self.model_ties) * strict) ** 0.5, "ordered": strict}
        return (self.concordant - self.discordant) / below[variant] if below[variant] else float("nan")


def count_pairs(values: npt.ArrayLike, levels: npt.ArrayLike) -> PairCounts:
    """Count concordant, discordant and tied pairs, a sorted search for each two levels."""
    value = numbers("values", values)
    level = numbers("levels", levels, len(value))
    groups = [np.sort(value[level == one]) for one in np.unique(level)]
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
    resampling: Resampling = DEFAULT,
) -> Measure:
    """Measure the mean over tasks of Kendall's tau between a task's values and levels (see `PairCounts.tau`).

    A task with one level has nothing to order and is not counted; a task where the formula has no value (tau_b of a
    constant model) is undefined. Unscored are the tasks that lost their order to unscored episodes.

    Args:
        values: one number per episode (usually the final reward), NaN = unscored.
        levels: how well it went, as numbers that rise (see `LEVELS`), NaN = not judged.
        tasks: the task of each episode.
        variant: tau_a, tau_b or ordered, part of the name of the result.
        clusters: what the interval resamples, one label per episode; the tasks when None.
        resampling: how the interval is made.
    """
    return kendall_tally(values, levels, tasks, variant=variant, clusters=clusters).measure(resampling)


def kendall_tally(
    values: npt.ArrayLike,
    levels: npt.ArrayLike,
    tasks: Labels,
    *,
    variant: Variant = "tau_a",
    clusters: Labels | None = None,
) -> Tally:
    """Count the evidence for `kendall_tau`: a row per task."""
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


def success_failure_gap(
    values: npt.ArrayLike,
    success: npt.ArrayLike,
    *,
    clusters: Labels | None = None,
    resampling: Resampling = DEFAULT,
) -> Measure:
    """Measure mean(value of successes) - mean(value of failures), in the model's own unit, over all episodes.

    Args:
        values: one number per episode (usually the final reward), NaN = unscored.
        success: whether people accepted it, NaN = unknown.
        clusters: the task of each episode; None resamples episodes.
        resampling: how the interval is made.
    """
    return gap_tally(values, success, clusters=clusters).measure(resampling)


def gap_tally(values: npt.ArrayLike, success: npt.ArrayLike, *, clusters: Labels | None = None) -> Tally:
    """Count the evidence for `success_failure_gap`: sums and counts of either side."""
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
