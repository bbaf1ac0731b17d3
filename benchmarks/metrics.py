"""Time and memory of the clustered bootstrap, compared with plain implementations, on one core.

    python benchmarks/metrics.py [--pairs 100000] [--resamples 10000]        (--small: in seconds)

Slow implementations are timed on part of the resamples and scaled, marked with a tilde.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")  # before numpy is imported

import argparse
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--resamples", type=int, default=10_000)
    parser.add_argument("--part", type=int, default=100, help="resamples that the slow implementations run")
    parser.add_argument("--small", action="store_true", help="2,000 pairs, 200 resamples")
    OPTIONS = parser.parse_args()  # before the imports that need extras: --help works without them

import numpy as np
from scipy import stats

from demerit.evaluate.metrics.bootstrap import Resampling, Tally, mean_tally
from demerit.evaluate.metrics.ranking import preference_ordering
from demerit.evaluate.metrics.success import auroc


@dataclass(frozen=True)
class TimedRow:
    """One line of the table."""

    case: str
    way: str
    seconds: float
    scaled: bool
    low: float
    high: float
    megabytes: float


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    out = work()
    return time.perf_counter() - start, out


def peak(work: Callable[[], Any]) -> float:
    """Return the peak of newly allocated megabytes; a separate run, since tracing costs time."""
    tracemalloc.start()
    work()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most / 2**20


def ours(case: str, make: Callable[[], Tally], how: Resampling) -> TimedRow:
    seconds, found = timed(lambda: make().measure(how))
    megabytes = peak(lambda: make().measure(Resampling(resamples=min(how.resamples, 1000), memory=how.memory)))
    return TimedRow(case, "demerit", seconds, False, found.low, found.high, megabytes)


def plain(case: str, way: str, once: Callable[[np.random.Generator], float], part: int, resamples: int) -> TimedRow:
    rng = np.random.default_rng(1)
    seconds, draws = timed(lambda: [once(rng) for _ in range(part)])
    low, high = np.quantile(draws, [0.025, 0.975])
    megabytes = peak(lambda: once(rng))
    return TimedRow(case, way, seconds * resamples / part, part < resamples, float(low), float(high), megabytes)


def by_scipy(case: str, sums: np.ndarray, resamples: int) -> TimedRow:
    def work(count: int) -> Any:
        return stats.bootstrap(
            (sums[:, 0], sums[:, 1]),
            lambda a, b, axis: a.sum(axis=axis) / b.sum(axis=axis),
            paired=True,
            vectorized=True,
            n_resamples=count,
            batch=500,
            method="percentile",
            random_state=0,
        ).confidence_interval

    seconds, found = timed(lambda: work(resamples))
    megabytes = peak(lambda: work(500))
    return TimedRow(case, "scipy.stats.bootstrap on cluster sums", seconds, False, found.low, found.high, megabytes)


def rows_loop(credit: np.ndarray, groups: list[np.ndarray]) -> Callable[[np.random.Generator], float]:
    def once(rng: np.random.Generator) -> float:
        drawn = rng.integers(0, len(groups), len(groups))
        return float(credit[np.concatenate([groups[i] for i in drawn])].mean())

    return once


def auroc_loop(score: np.ndarray, good: np.ndarray, groups: list[np.ndarray]) -> Callable[[np.random.Generator], float]:
    def once(rng: np.random.Generator) -> float:
        rows = np.concatenate([groups[i] for i in rng.integers(0, len(groups), len(groups))])
        s, y = score[rows], good[rows]
        return float(stats.mannwhitneyu(s[y], s[~y], method="asymptotic").statistic / (y.sum() * (~y).sum()))

    return once


def ordering_case(pairs: int, how: Resampling, part: int) -> list[TimedRow]:
    rng = np.random.default_rng(0)
    size = 15  # rollouts of a context: 105 pairs
    contexts = np.repeat(np.arange(max(2, round(pairs / (size * (size - 1) / 2)))), size)
    human = rng.random(len(contexts))
    returns = human + rng.normal(size=len(contexts))
    tally = preference_ordering(returns, human, contexts)
    case = f"ordering, {tally.n:,} pairs in {len(tally.clusters)} contexts"
    parts = tally.statistic.parts  # type: ignore[union-attr]
    groups = [np.flatnonzero(tally.codes == i) for i in range(len(tally.clusters))]
    sums = np.array([parts[group].sum(axis=0) for group in groups])
    return [
        ours(case, lambda: preference_ordering(returns, human, contexts), how),
        by_scipy(case, sums, how.resamples),
        plain(case, "loop that copies the rows", rows_loop(parts[:, 0], groups), part, how.resamples),
    ]


def one_task_case(pairs: int, how: Resampling, part: int) -> list[TimedRow]:
    """One task, of which recordings are resampled: a pair counts as often as both of its recordings are drawn."""
    rng = np.random.default_rng(0)
    size = 2 * round(pairs**0.5)
    good = np.arange(size) % 2 == 0
    returns = good + rng.normal(size=size)
    left, right = (grid.ravel() for grid in np.meshgrid(np.flatnonzero(good), np.flatnonzero(~good)))
    credit = (returns[left] > returns[right]) * 1.0

    def once(rng: np.random.Generator) -> float:
        drawn = np.bincount(rng.integers(0, size, size), minlength=size)
        weight = drawn[left] * drawn[right]
        return float((weight * credit).sum() / weight.sum())

    case = f"ordering, {len(left):,} pairs of {size:,} recordings of one task"
    contexts = ["one"] * size
    return [
        ours(case, lambda: preference_ordering(returns, good * 1.0, contexts, clusters=range(size)), how),
        plain(case, "loop over a list of all pairs", once, part, how.resamples),
    ]


def alone_case(pairs: int, how: Resampling, part: int) -> list[TimedRow]:
    rng = np.random.default_rng(0)
    out = []
    for kind, values in (("right or wrong", (rng.random(pairs) < 0.6) * 1.0), ("any number", rng.random(pairs))):
        case = f"mean, {pairs:,} clusters of one row, {kind}"

        def once(rng: np.random.Generator, values: np.ndarray = values) -> float:
            return float(values[rng.integers(0, len(values), len(values))].mean())

        out += [
            ours(case, lambda values=values: mean_tally("mean", "rows", values, None), how),  # type: ignore[misc]
            plain(case, "loop, one gather a resample", once, part, how.resamples),
        ]
    return out


def auroc_case(episodes: int, how: Resampling, part: int) -> list[TimedRow]:
    rng = np.random.default_rng(0)
    task = rng.integers(0, 300, episodes)
    good = rng.random(episodes) < 0.4
    score = good + rng.normal(size=episodes)
    case = f"AUROC, {episodes:,} episodes in 300 tasks"
    groups = [np.flatnonzero(task == i) for i in range(300)]
    return [
        ours(case, lambda: auroc(score, good, clusters=task), how),
        plain(case, "loop of scipy.stats.mannwhitneyu", auroc_loop(score, good, groups), part, how.resamples),
    ]


def show(rows: list[TimedRow]) -> None:
    print(f"{'case':<55} {'way':<40} {'seconds':>9} {'times ours':>11} {'interval':>17} {'peak MB':>8}")
    base = 1.0
    for row in rows:
        base = row.seconds if row.way == "demerit" else base
        seconds = f"{'~' if row.scaled else ''}{row.seconds:.2f}"
        span = f"{row.low:.4f} - {row.high:.4f}"
        print(f"{row.case:<55} {row.way:<40} {seconds:>9} {row.seconds / base:>11.1f} {span:>17} {row.megabytes:>8.1f}")


def main(given: argparse.Namespace) -> None:
    if given.small:
        given.pairs, given.resamples, given.part = 2000, 200, 10
    how = Resampling(resamples=given.resamples)
    part = min(given.part, given.resamples)
    print(f"{how.resamples:,} resamples, one core; ~ = timed on {part} resamples and scaled\n")
    rows = ordering_case(given.pairs, how, part) + one_task_case(given.pairs, how, part)
    rows += auroc_case(max(20, given.pairs // 20), how, part)
    show(rows + alone_case(given.pairs, how, part))


if __name__ == "__main__":
    main(OPTIONS)
