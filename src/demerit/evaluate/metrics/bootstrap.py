"""Intervals: the bootstrap clustered by task, in bounded memory.

Episodes of one task resemble each other, so a resample draws whole tasks: G of G with replacement, which is the same
as giving the tasks multinomial counts (c_1 ... c_G). A measure made of sums over rows needs only the sums of each
task: all resamples together are one matrix product, counts (R, G) times sums (G, k). Any other measure gets the count
of each row's task as that row's weight.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from demerit.errors import BadInput
from demerit.evaluate.metrics.columns import Floats, Ints, Labels, numbers, pick, rank_codes, ratio
from demerit.evaluate.metrics.measure import NAN, Measure

FEW = 256
"""up to so many clusters a multinomial draw is quicker than counting drawn indices"""


@dataclass(frozen=True)
class Resampling:
    """How intervals are made; the same settings give the same interval, bit for bit."""

    resamples: int = 10_000
    level: float = 0.95
    seed: int = 0
    alone: Literal["unknown", "rows"] = "unknown"
    """with one cluster: say that the interval is unknown, or resample its rows as if they were independent"""
    memory: int = 4 * 2**20
    """bytes for a block of counts or weights: a few megabytes stay in the cache, which is twice as fast as 64; the
    draws do not depend on it, sums only in the last bit"""

    def __post_init__(self) -> None:
        """Refuse settings that give no interval."""
        if self.resamples < 1 or not 0 < self.level < 1 or self.memory < 1:
            raise BadInput("resampling", "resamples >= 1, 0 < level < 1, memory >= 1", self)
        if self.alone not in ("unknown", "rows"):
            raise BadInput("resampling of one cluster", "'unknown' or 'rows'", repr(self.alone))


DEFAULT = Resampling()


@dataclass(frozen=True, eq=False)
class Additive:
    """A statistic of column sums: `finish` turns sums (R, k) into values (R,)."""

    parts: Floats
    """(rows, k): what each row adds"""
    finish: Callable[[Floats], Floats]


@dataclass(frozen=True, eq=False)
class Weighted:
    """Any other statistic: `function` turns whole-number row weights (R, rows) into values (R,)."""

    order: Ints
    """the order in which the function wants the rows, usually by score: sorted once, not in every resample"""
    function: Callable[[Floats], Floats]
    blocks: int = 4
    """how many arrays of the size of the weights it holds at a time"""


Statistic = Additive | Weighted


@dataclass(frozen=True, eq=False)
class Tally:
    """Everything that a measure is, short of its interval: the counted evidence of one model."""

    name: str
    unit: str
    statistic: Statistic
    codes: Ints
    """the cluster of each row"""
    clusters: tuple[Hashable, ...]
    n: int
    unscored: int = 0
    ties: int | None = None
    undefined: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    note: str = ""

    def measure(self, resampling: Resampling = DEFAULT) -> Measure:
        """Compute the value and its percentile interval over resampled clusters."""
        if not self.n:
            return self._measure(NAN, (NAN, NAN), 0, resampling, self.note)
        value = float(values_of(self.statistic, self.codes, np.ones((1, len(self.clusters))))[0])
        codes, size = by_row_if_alone(self.codes, len(self.clusters), resampling)
        notes = [self.note] if self.note else []
        if size < 2:  # noqa: PLR2004
            notes.append("one cluster: the interval cannot be known")
            return self._measure(value, (NAN, NAN), size, resampling, "; ".join(notes))
        draws = replicates([self.statistic], codes, size, resampling)[0]
        lost = int(np.isnan(draws).sum())
        if lost:
            notes.append(f"undefined in {lost} of {resampling.resamples} resamples, which are left out")
        if size != len(self.clusters):
            notes.append("one cluster: rows resampled as if independent")
        return self._measure(value, percentiles(draws, resampling.level), size, resampling, "; ".join(notes))

    def by_cluster(self) -> dict[Hashable, float]:
        """Return the value of each cluster alone; NaN where a cluster has nothing to measure."""
        if not self.n:
            return {}
        values = values_of(self.statistic, self.codes, np.eye(len(self.clusters)))
        return dict(zip(self.clusters, values.tolist(), strict=True))

    def _measure(self, value: float, span: tuple[float, float], size: int, how: Resampling, note: str) -> Measure:
        return Measure(
            self.name,
            value,
            span[0],
            span[1],
            n=self.n,
            unscored=self.unscored,
            unit=self.unit,
            ties=self.ties,
            undefined=self.undefined,
            clusters=size,
            level=how.level,
            counts=dict(self.counts),
            note=note,
        )


def empty_tally(name: str, unit: str, unscored: int, note: str) -> Tally:
    """Return the tally of nothing: its measure is NaN with n = 0 and says why."""
    nothing = Additive(np.zeros((0, 1)), lambda sums: sums[:, 0])
    return Tally(name, unit, nothing, np.zeros(0, np.int64), (), 0, unscored, note=note)


def mean_tally(
    name: str,
    unit: str,
    values: Floats,
    clusters: Labels | None,
    *,
    unscored: int | None = None,
    ties: int | None = None,
    undefined: int = 0,
    counts: Mapping[str, int] | None = None,
    note: str = "",
) -> Tally:
    """Tally a mean over rows, sum(v) / n. NaN rows are left out, and counted as unscored unless the caller says so."""
    values = numbers(name, values)
    keep = ~np.isnan(values)
    kept = values[keep]
    missing = int((~keep).sum()) if unscored is None else unscored
    codes, labels = rank_codes(pick(clusters, keep), len(kept))
    parts = np.stack([kept, np.ones(len(kept))], axis=1)
    statistic = Additive(parts, lambda sums: ratio(sums[:, 0], sums[:, 1]))
    return Tally(name, unit, statistic, codes, labels, len(kept), missing, ties, undefined, counts or {}, note)


def by_row_if_alone(codes: Ints, size: int, resampling: Resampling) -> tuple[Ints, int]:
    """Split a single cluster into its rows, if that was asked for."""
    if size == 1 and resampling.alone == "rows":
        return np.arange(len(codes), dtype=np.int64), len(codes)
    return codes, size


def percentiles(draws: Floats, level: float) -> tuple[float, float]:
    """Return the percentile interval of the defined resamples; NaN when fewer than half are defined."""
    defined = draws[~np.isnan(draws)]
    if 2 * len(defined) < len(draws):
        return NAN, NAN
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def values_of(statistic: Statistic, codes: Ints, counts: Floats) -> Floats:
    """Evaluate a statistic for cluster counts (R, G)."""
    if isinstance(statistic, Additive):
        return statistic.finish(counts @ cluster_sums(statistic.parts, codes, counts.shape[1]))
    return statistic.function(counts[:, codes[statistic.order]])


def cluster_sums(parts: Floats, codes: Ints, size: int) -> Floats:
    """Add the rows of each cluster: (rows, k) to (G, k)."""
    columns = [np.bincount(codes, weights=column, minlength=size) for column in parts.T]
    return np.stack(columns, axis=1) if columns else np.zeros((size, 0))


def replicates(statistics: Sequence[Statistic], codes: Ints, size: int, how: Resampling) -> list[Floats]:
    """Evaluate several statistics on the same resamples of the same clusters: a (R,) array each."""
    additive = [one for one in statistics if isinstance(one, Additive)]
    if len(additive) == len(statistics):
        totals = resampled_totals(np.concatenate([one.parts for one in additive], axis=1), codes, size, how)
        stops = np.cumsum([one.parts.shape[1] for one in additive])[:-1]
        return [one.finish(sums) for one, sums in zip(additive, np.split(totals, stops, axis=1), strict=True)]
    rows = max(len(one.order) * one.blocks for one in statistics if isinstance(one, Weighted))
    out: list[list[Floats]] = [[] for _ in statistics]
    for counts in draws_of(np.ones(size), how, max(size, rows)):
        for values, statistic in zip(out, statistics, strict=True):
            values.append(values_of(statistic, codes, counts))
    return [np.concatenate(values) for values in out]


def resampled_totals(parts: Floats, codes: Ints, size: int, how: Resampling) -> Floats:
    """Sum `parts` over each resample: (R, k).

    Clusters with the same sums are interchangeable: drawing *which sums* with their frequencies is the same
    distribution, and turns 100,000 one-pair clusters into a handful.
    """
    sums = cluster_sums(parts, codes, size)
    frequency = np.ones(size)
    if size > FEW:
        distinct, counted = np.unique(sums, axis=0, return_counts=True)
        if 8 * len(distinct) <= size:
            sums, frequency = distinct, counted.astype(np.float64)
    return np.concatenate([counts @ sums for counts in draws_of(frequency, how, len(sums))])


def draws_of(frequency: Floats, how: Resampling, width: int) -> Iterator[Floats]:
    """Yield blocks (r, K) of multinomial counts of sum(frequency) draws.

    Every resample takes its random numbers by itself, so the size of a block changes nothing.
    """
    rng = np.random.default_rng(how.seed)
    kinds, total = len(frequency), int(frequency.sum())
    block = max(1, min(how.resamples, how.memory // (8 * max(1, width))))
    for start in range(0, how.resamples, block):
        rows = min(block, how.resamples - start)
        if kinds < total or kinds <= FEW:
            yield rng.multinomial(total, frequency / total, size=rows).astype(np.float64)
            continue
        counts = np.empty((rows, kinds))
        for row in counts:
            row[:] = np.bincount(rng.integers(0, kinds, size=total, dtype=np.uint32), minlength=kinds)
        yield counts
