"""Checked columns, counted evidence (`Tally`) and intervals by a bootstrap clustered by task, in bounded memory.

Episodes of one task resemble each other, so a resample draws whole tasks: G of G with replacement, which equals giving
the tasks multinomial counts (c_1 ... c_G). A statistic made of sums over rows needs only the sums of each task: all
resamples together are one matrix product, counts (R, G) times sums (G, k). Any other statistic gets the count of each
row's task as that row's weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Bools, Floats, Ints
from demerit.data.files import plain
from demerit.errors import BadInput

Labels = Sequence[Hashable] | npt.NDArray[Any]


def numbers(name: str, values: npt.ArrayLike, length: int | None = None) -> Floats:
    """Return a float64 column; None becomes NaN. Raises BadInput for infinity or a wrong length."""
    try:
        column = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadInput(name, "one number per row", error) from None
    if column.ndim != 1:
        raise BadInput(name, "one number per row", f"an array of shape {column.shape}")
    if length is not None and len(column) != length:
        raise BadInput(name, f"{length} rows", len(column))
    if bool(np.isinf(column).any()):
        raise BadInput(name, "finite numbers (NaN = unscored)", "an infinite one")
    return column


def flags(name: str, values: npt.ArrayLike, length: int) -> Floats:
    """Return yes/no labels as 1.0, 0.0 and NaN (unknown); raises BadInput for anything else."""
    column = numbers(name, values, length)
    if not bool(np.isin(column[~np.isnan(column)], (0.0, 1.0)).all()):
        raise BadInput(name, "true, false or unknown", "other numbers")
    return column


def rank_codes(labels: Labels | None, length: int, name: str = "clusters") -> tuple[Ints, tuple[Hashable, ...]]:
    """Number the labels in the order of their text; None gives every row its own cluster.

    Codes, and so seeded intervals, do not depend on the order of the rows.
    """
    if labels is None:
        return np.arange(length, dtype=np.int64), tuple(range(length))
    rows = list(labels.tolist() if isinstance(labels, np.ndarray) else labels)
    if len(rows) != length:
        raise BadInput(name, f"{length} labels", len(rows))
    values = tuple(sorted(set(rows), key=lambda label: (str(label), repr(label))))
    position = {label: i for i, label in enumerate(values)}
    return np.array([position[label] for label in rows], dtype=np.int64), values


def pick(labels: Labels | None, keep: Bools) -> list[Hashable] | None:
    """Keep the labels of the chosen rows; None stays None."""
    if labels is None:
        return None
    if len(labels) != len(keep):
        raise BadInput("labels", f"{len(keep)} labels", len(labels))
    return [labels[i] for i in np.flatnonzero(keep).tolist()]


def ratio(above: Floats, below: Floats) -> Floats:
    """Divide; NaN, without a warning, where the divisor is 0."""
    out: Floats = np.full(np.broadcast(above, below).shape, np.nan)
    np.divide(above, below, out=out, where=below != 0)
    return out


def average_ranks(values: Floats) -> Floats:
    """Rank from 1 up; equal values share the mean of the ranks they cover."""
    _, group, size = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(size)
    return ((last - size + 1 + last) / 2.0)[group.reshape(-1)]


NAN = float("nan")
FEW_TASKS = 10
"""With fewer clusters a bootstrap interval is too narrow to be trusted."""


@dataclass(frozen=True)
class Measure:
    """One measured quantity. If there was nothing to measure, the value is NaN and `n` is 0."""

    name: str
    value: float
    low: float
    """lower end of the interval; NaN if unknown (only one cluster)"""
    high: float
    n: int
    """number of `unit`s behind the value"""
    unscored: int
    """how many more units there would be if the model had scored everything"""
    unit: str = "episodes"
    ties: int | None = None
    """ties of the model, each counted as one half; None where ties do not apply"""
    undefined: int = 0
    """scored, but the formula has no value (for example the correlation of a constant)"""
    clusters: int = 0
    """number of clusters (tasks) behind the interval"""
    level: float = 0.95
    counts: Mapping[str, int] = field(default_factory=dict)
    """further counts: human ties, unscored episodes ..."""
    note: str = ""
    resampled: str = "tasks"
    """what the clusters are: tasks, recordings or episodes"""

    def __post_init__(self) -> None:
        """Check that the value is NaN if and only if n is 0."""
        if (self.n == 0) != math.isnan(self.value):
            raise BadInput(f"measure {self.name!r}", "NaN if and only if n is 0", f"value {self.value}, n {self.n}")
        if min(self.n, self.unscored, self.undefined, self.clusters, self.ties or 0) < 0:
            raise BadInput(f"measure {self.name!r}", "counts of at least 0", self)

    @property
    def known(self) -> bool:
        """Whether there was anything to measure."""
        return self.n > 0

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values; NaN becomes None."""
        return dict(plain(self))

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Measure:
        """Read what `as_dict` wrote."""
        facts = dict(plain)
        for key in ("value", "low", "high"):
            facts[key] = NAN if facts[key] is None else float(facts[key])
        return cls(**facts)

    def __str__(self) -> str:
        """Return value, interval and counts on one line."""
        if not self.known:
            rest = f", {self.unscored} unscored" if self.unscored else ""
            return f"{self.name}: nothing to measure (0 {self.unit}{rest})"
        span = "interval unknown" if math.isnan(self.low) else f"{self.low:.3f} to {self.high:.3f}"
        extra = [f"{self.n} {self.unit}"]
        extra += [f"{self.ties} ties"] if self.ties else []
        extra += [f"{self.undefined} undefined"] if self.undefined else []
        extra += [f"{self.unscored} unscored"] if self.unscored else []
        return f"{self.name}: {self.value:.3f} ({span}; {', '.join(extra)})"


FEW = 256
"""up to this many clusters a multinomial draw is faster than counting drawn indices"""


@dataclass(frozen=True)
class Resampling:
    """Bootstrap settings. The same settings give the same interval, bit for bit."""

    resamples: int = 10_000
    level: float = 0.95
    seed: int = 0
    alone: Literal["unknown", "rows"] = "unknown"
    """with one cluster: report an unknown interval, or resample its rows as if they were independent"""
    memory: int = 4 * 2**20
    """bytes per block of counts; a few megabytes stay in the cache. The draws do not depend on it."""

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.resamples < 1 or not 0 < self.level < 1 or self.memory < 1:
            raise BadInput("resampling", "resamples >= 1, 0 < level < 1, memory >= 1", self)
        if self.alone not in ("unknown", "rows"):
            raise BadInput("resampling of one cluster", "'unknown' or 'rows'", repr(self.alone))


DEFAULT = Resampling()


@dataclass(frozen=True, eq=False)
class Additive:
    """A statistic of column sums: `finish` maps sums (R, k) to values (R,)."""

    parts: Floats
    """(rows, k): contribution of each row"""
    finish: Callable[[Floats], Floats]


@dataclass(frozen=True, eq=False)
class Weighted:
    """Any other statistic: `function` maps whole-number row weights (R, rows) to values (R,)."""

    order: Ints
    """the row order that the function expects, usually by score: sorted once, not in every resample"""
    function: Callable[[Floats], Floats]
    blocks: int = 4
    """number of arrays of the size of the weights that it holds at a time"""


Statistic = Additive | Weighted


@dataclass(frozen=True, eq=False)
class Tally:
    """The counts behind one measure of one model; `measure` adds value and interval, `compare` takes two of them."""

    name: str
    unit: str
    statistic: Statistic
    codes: Ints
    """cluster of each row"""
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
        losses = int(np.isnan(draws).sum())
        if losses:
            notes.append(f"undefined in {losses} of {resampling.resamples} resamples, which are left out")
        if size != len(self.clusters):
            notes.append("one cluster: rows resampled as if independent")
        return self._measure(value, percentiles(draws, resampling.level), size, resampling, "; ".join(notes))

    def by_cluster(self) -> dict[Hashable, float]:
        """Return the value of each cluster; NaN where a cluster has nothing to measure."""
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
    """Return a tally with n = 0; its measure is NaN and the note says why."""
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
    """Tally a mean over rows, sum(v) / n. NaN rows are skipped, and counted as unscored unless `unscored` is given."""
    values = numbers(name, values)
    keep = ~np.isnan(values)
    kept = values[keep]
    missing = int((~keep).sum()) if unscored is None else unscored
    codes, labels = rank_codes(pick(clusters, keep), len(kept))
    parts = np.stack([kept, np.ones(len(kept))], axis=1)
    statistic = Additive(parts, lambda sums: ratio(sums[:, 0], sums[:, 1]))
    return Tally(name, unit, statistic, codes, labels, len(kept), missing, ties, undefined, counts or {}, note)


def by_row_if_alone(codes: Ints, size: int, resampling: Resampling) -> tuple[Ints, int]:
    """Split a single cluster into its rows if `resampling.alone` is "rows"."""
    if size == 1 and resampling.alone == "rows":
        return np.arange(len(codes), dtype=np.int64), len(codes)
    return codes, size


def percentiles(draws: Floats, level: float) -> tuple[float, float]:
    """Return the percentile interval of the defined resamples; NaN if fewer than half are defined."""
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
    """Evaluate several statistics on the same resamples: one (R,) array each."""
    additive = [statistic for statistic in statistics if isinstance(statistic, Additive)]
    if len(additive) == len(statistics):
        totals = resampled_totals(np.concatenate([statistic.parts for statistic in additive], axis=1), codes, size, how)
        stops = np.cumsum([statistic.parts.shape[1] for statistic in additive])[:-1]
        columns = np.split(totals, stops, axis=1)
        return [statistic.finish(sums) for statistic, sums in zip(additive, columns, strict=True)]
    rows = max(len(weighted.order) * weighted.blocks for weighted in statistics if isinstance(weighted, Weighted))
    out: list[list[Floats]] = [[] for _ in statistics]
    for counts in draws_of(np.ones(size), how, max(size, rows)):
        for values, statistic in zip(out, statistics, strict=True):
            values.append(values_of(statistic, codes, counts))
    return [np.concatenate(values) for values in out]


def resampled_totals(parts: Floats, codes: Ints, size: int, how: Resampling) -> Floats:
    """Sum `parts` over each resample: (R, k).

    Clusters with equal sums are interchangeable, so drawing the distinct sums with their frequencies has the same
    distribution, and reduces 100,000 one-pair clusters to a few.
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

    Each resample draws its own random numbers, so the block size changes nothing.
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


@dataclass(frozen=True)
class Comparison:
    """The difference of one measure between two models, a minus b, on the rows that both scored."""

    name: str
    difference: float
    low: float
    high: float
    p: float
    """two-sided, from the share of resamples on the other side of 0; NaN if unknown"""
    n: int
    unscored: int
    """rows skipped because at least one model did not score them; in the unit of n"""
    a: float
    b: float
    clusters: int = 0
    note: str = ""


def compare(
    tally: Callable[[Floats], Tally],
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    resampling: Resampling = DEFAULT,
) -> Comparison:
    """Compare two models by any measure, resampling the same clusters for both.

    p = min(1, 2 min((1 + #{d* <= 0}), (1 + #{d* >= 0})) / (R + 1)) over the R resampled differences d*.

    Args:
        tally: turns one model's numbers (one per row, NaN = unscored) into a tally, for example
            ``lambda scores: auroc(scores, success, clusters=tasks)``.
        a: the numbers of the first model.
        b: the numbers of the second; a row that either did not score is skipped in both.
        resampling: bootstrap settings.
    """
    return pair_up(tally, a, b, resampling)[0]


def pair_up(
    tally: Callable[[Floats], Tally], a: npt.ArrayLike, b: npt.ArrayLike, resampling: Resampling = DEFAULT
) -> tuple[Comparison, Floats]:
    """Compare as `compare` does; also return the resampled differences, none if they cannot be known."""
    first, second = (np.array(values, dtype=np.float64) for values in (a, b))
    if first.shape != second.shape:
        raise BadInput("comparison", "two models on the same rows", f"{first.shape} and {second.shape}")
    either = np.isnan(first) | np.isnan(second)
    ours, theirs = (tally(np.where(either, np.nan, values)) for values in (first, second))
    if ours.clusters != theirs.clusters or not np.array_equal(ours.codes, theirs.codes):
        raise BadInput(f"comparison by {ours.name}", "a measure defined on the same rows for both", "different rows")
    if not ours.n:
        return Comparison(ours.name, NAN, NAN, NAN, NAN, 0, ours.unscored, NAN, NAN, 0, ours.note), np.zeros(0)
    ones = np.ones((1, len(ours.clusters)))
    value_a, value_b = (float(values_of(side.statistic, side.codes, ones)[0]) for side in (ours, theirs))
    codes, size = by_row_if_alone(ours.codes, len(ours.clusters), resampling)
    low = high = p = NAN
    draws, note = np.zeros(0), "one cluster: the interval cannot be known"
    if size > 1:
        drawn_a, drawn_b = replicates([ours.statistic, theirs.statistic], codes, size, resampling)
        draws = drawn_a - drawn_b
        (low, high), p, note = percentiles(draws, resampling.level), two_sided(draws), ours.note
    facts = (ours.n, ours.unscored, value_a, value_b, size, note)
    return Comparison(ours.name, value_a - value_b, low, high, p, *facts), draws


def two_sided(draws: Floats) -> float:
    """Return the two-sided bootstrap p of "no difference"; never 0."""
    defined = draws[~np.isnan(draws)]
    if not len(defined):
        return NAN
    least = min(int((defined <= 0).sum()), int((defined >= 0).sum()))
    return min(1.0, 2 * (1 + least) / (len(defined) + 1))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjust p-values for multiple comparisons (Holm's step-down), in the given order.

    With p_(1) <= ... <= p_(m): adjusted_(i) = max over j <= i of min(1, (m - j + 1) p_(j)). NaN stays NaN and does not
    count as a comparison.
    """
    pairs = sorted((p, name) for name, p in p_values.items() if not isnan(p))
    adjusted: dict[str, float] = {}
    worst = 0.0
    for i, (p, name) in enumerate(pairs):
        if not 0 <= p <= 1:
            raise BadInput(f"p-value of {name!r}", "a number from 0 to 1", p)
        worst = max(worst, min(1.0, (len(pairs) - i) * p))
        adjusted[name] = worst
    return {name: adjusted.get(name, NAN) for name in p_values}
