"""Do the intervals of `demerit compare` hold, and how much narrower are they than those of the labels alone?

    python benchmarks/compare_policies.py
    python benchmarks/compare_policies.py --data STORE --rewards FOLDER     (a model's real predictions)
    python benchmarks/compare_policies.py --small

Simulated: two policies with known success rates, N episodes of each, n labels of each chosen at random, and models of
several kinds; with --data, stored predictions of a real one instead (`demerit score STORE --out FOLDER`), drawn from
the dataset's successes and failures. Coverage is the share of 95% intervals that hold the truth: for one rate (10, 50
and 90%), and for the difference over eight pairs of rates. Width is the mean width over that of the labels alone
(Wilson's interval for a rate, Newcombe's for a difference). `textbook` is PPI++ as published (normal, tuned lambda,
nothing for few labels), `before` what demerit computed until 2026-11-17. The last table asks how often equal policies
are called different by someone who looks again after every ten labels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from demerit.data.episode import NOT_A_MODEL
from demerit.data.formats import open_dataset
from demerit.data.splits import SeenEpisodes
from demerit.decide.interval import Z95
from demerit.models.reward_store import RewardStore, ScoredDataset
from demerit.use.compare import DOUBT, PolicyRollouts, estimate_rate

Floats = npt.NDArray[np.float64]
Rng = np.random.Generator
Interval = tuple[Floats, Floats, Floats]
"""value, low and high, by run"""
RATES = [(0.1, 0.5), (0.5, 0.9), (0.9, 0.1), (0.5, 0.5), (0.5, 0.7), (0.9, 0.8), (0.95, 0.95), (0.98, 0.8)]
SINGLE = 3
"""the first policies of so many pairs have the rates 10, 50 and 90%: intervals of one rate are measured on these"""
CHECKED = 5
"""runs of each row that are also computed by `estimate_rate` itself"""
TINY = 1e-12
"""for a model that gives every episode the same value"""
LABELS = [5, 10, 20, 50, 100]


def good(y: Floats, rng: Rng, is_second: bool) -> Floats:
    """A probability that separates: AUROC 0.98."""
    return 1 / (1 + np.exp(-(3 * (2 * y - 1) + 2 * rng.standard_normal(y.shape))))


def fair(y: Floats, rng: Rng, is_second: bool) -> Floats:
    """A probability that separates a little: AUROC 0.83."""
    return 1 / (1 + np.exp(-((2 * y - 1) + 1.5 * rng.standard_normal(y.shape))))


def useless(y: Floats, rng: Rng, is_second: bool) -> Floats:
    """Random numbers."""
    return rng.random(y.shape)


def inverted(y: Floats, rng: Rng, is_second: bool) -> Floats:
    """As good, but failures get the high values."""
    return 1 - good(y, rng, is_second)


def biased(y: Floats, rng: Rng, is_second: bool) -> Floats:
    """Half of the failures pass for successes, and the second policy is flattered by 0.2 more."""
    fooled = (y == 0) & (rng.random(y.shape) < 0.5)
    found = np.where((y == 1) | fooled, 1 - 0.2 * rng.random(y.shape), 0.3 * rng.random(y.shape))
    return np.minimum(found + 0.2 * is_second, 1.0)


def rarely_wrong(y: Floats, rng: Rng, is_second: bool) -> Floats:
    """Verdicts of 0 and 1, 3% of them wrong: few labels see no mistake."""
    return np.where(rng.random(y.shape) < 0.03, 1 - y, y)


MODELS: dict[str, Callable[[Floats, Rng, bool], Floats]] = {
    "good": good,
    "fair": fair,
    "useless": useless,
    "inverted": inverted,
    "biased": biased,
    "rarely wrong": rarely_wrong,
}


def draw_from(data: str, rewards: str) -> Callable[[Floats, Rng, bool], Floats]:
    """Return a model whose predictions are drawn from stored ones of episodes with the same outcome."""
    scored, said = ScoredDataset(open_dataset(data), RewardStore(rewards)), PolicyRollouts("")
    for episode, reward in scored:
        said.add(episode, reward, NOT_A_MODEL, SeenEpisodes(), None)
    f, y = np.array(said.predictions), np.array(said.labels)
    pools = [f[(y == label) & ~np.isnan(f)] for label in (0, 1)]
    print(f"{scored.card.name} on {data}: {len(pools[1])} successes, {len(pools[0])} failures")
    return lambda y, rng, is_second: np.where(y == 1, rng.choice(pools[1], y.shape), rng.choice(pools[0], y.shape))


def simulate(rate: float, shape: tuple[int, int], model: str, rng: Rng, is_second: bool) -> tuple[Floats, Floats]:
    """Return predictions and true outcomes, (runs, episodes)."""
    y = (rng.random(shape) < rate).astype(np.float64)
    return MODELS[model](y, rng, is_second), y


def hide(y: Floats, labels: int) -> Floats:
    """Keep the first labels; the order of simulated episodes is random."""
    return np.where(np.arange(y.shape[-1]) < labels, y, np.nan)


def textbook(f: Floats, y: Floats, n: int) -> tuple[Floats, Floats]:
    """Return rates and variances of PPI++ for a mean, by run."""
    some, other, f_mean, y_mean = f[:, :n], f[:, n:], f[:, :n].mean(axis=1), y[:, :n].mean(axis=1)
    both = ((some - f_mean[:, None]) * (y[:, :n] - y_mean[:, None])).sum(axis=1) / (n - 1)
    lam = both / np.maximum(some.var(axis=1, ddof=1), TINY) * other.shape[1] / f.shape[1]
    left = (y[:, :n] - lam[:, None] * some).var(axis=1, ddof=1)
    rate = y_mean + lam * (other.mean(axis=1) - f_mean)
    return rate, left / n + lam**2 * other.var(axis=1, ddof=1) / other.shape[1]


def before(f: Floats, y: Floats, n: int) -> tuple[Floats, Floats]:
    """Return what demerit computed: half a success at the lowest prediction, half a failure at the highest, normal."""
    weights, ones = np.append(np.ones(n), [0.5, 0.5]), np.ones(len(f))
    ys = np.column_stack([y[:, :n], ones, 0 * ones])
    fs = np.column_stack([f[:, :n], f.min(axis=1), f.max(axis=1)])
    y_mean, f_mean = ys @ weights / (n + 1), fs @ weights / (n + 1)
    ys, fs = ys - y_mean[:, None], fs - f_mean[:, None]
    slope = np.maximum(0, (fs * ys) @ weights / np.maximum(fs**2 @ weights, TINY))
    residual = (ys - slope[:, None] * fs) ** 2 @ weights / (n - 1)
    return y_mean + slope * (f.mean(axis=1) - f_mean), residual / (n + 1) + slope**2 * f.var(axis=1) / f.shape[1]


def now(f: Floats, y: Floats, n: int) -> tuple[Floats, Floats]:
    """Return rates, and how many labels the labels are worth: `estimate_rate` for many runs at once."""
    weights, ones = np.append(np.ones(n), [DOUBT, DOUBT]), np.ones(len(f))
    ys = np.column_stack([y[:, :n], ones, 0 * ones])
    fs = np.column_stack([f[:, :n], f.min(axis=1), f.max(axis=1)])
    ys, fs = (a - (a @ weights / weights.sum())[:, None] for a in (ys, fs))
    together, own = np.maximum(0, (fs * ys) @ weights), np.maximum(fs**2 @ weights, TINY)
    explained = np.maximum(0, 1 - (1 - together**2 / own / (ys**2 @ weights)) * (n - 1) / (n - 2))
    slope = np.where(explained > 0, together / own, 0)
    rate = np.clip(y[:, :n].mean(axis=1) + slope * (f.mean(axis=1) - f[:, :n].mean(axis=1)), 0, 1)
    worth = n / (1 - explained * (1 - n / f.shape[1]))
    for i in range(CHECKED):
        one = estimate_rate(f[i], hide(y[i], n))
        assert np.allclose((one.rate, one.worth()), (rate[i], worth[i]))
    return rate, worth


def spread(rate: Floats, variance: Floats, low: float) -> Interval:
    """Return the normal interval, cut at `low` and 1."""
    half = Z95 * np.sqrt(variance)
    return rate, np.clip(rate - half, low, 1), np.clip(rate + half, low, 1)


def wilson(rate: Floats, size: Floats | int) -> Interval:
    """Return Wilson's interval."""
    extra = Z95**2 / size
    centre = (rate + extra / 2) / (1 + extra)
    half = Z95 / (1 + extra) * np.sqrt(rate * (1 - rate) / size + extra / size / 4)
    return rate, np.minimum(rate, centre - half), np.maximum(rate, centre + half)


def subtract(b: Interval, a: Interval) -> Interval:
    """Return b - a with Newcombe's interval."""
    gap = b[0] - a[0]
    low, high = gap - np.hypot(b[0] - b[1], a[2] - a[0]), gap + np.hypot(b[2] - b[0], a[0] - a[1])
    return gap, np.maximum(low, -1), np.minimum(high, 1)


def measure(rates: tuple[float, float], model: str, n: int, shape: tuple[int, int], seed: int) -> list[list[Floats]]:
    """Return coverage and width of each of METHODS: for the rate of the first policy, and for the difference."""
    rng = np.random.default_rng(seed)
    pair = [simulate(rate, shape, model, rng, place == 1) for place, rate in enumerate(rates)]
    normal = [[method(f, y, n) for f, y in pair] for method in (textbook, before)]
    alone = [wilson(y[:, :n].mean(axis=1), n) for _, y in pair]
    found = [wilson(*now(f, y, n)) for f, y in pair]
    single = [alone[0], *(spread(*first, low=0.0) for first, _ in normal), found[0]]
    differences = [subtract(alone[1], alone[0]), *(spread(b[0] - a[0], a[1] + b[1], low=-1.0) for a, b in normal)]
    differences.append(subtract(found[1], found[0]))
    return [
        [np.array([((low <= truth) & (truth <= high)).mean(), (high - low).mean()]) for _, low, high in intervals]
        for intervals, truth in ((single, rates[0]), (differences, rates[1] - rates[0]))
    ]


METHODS = ("labels alone", "textbook", "before", "now")


def print_rows(title: str, rows: dict[tuple[str, int], list[list[Floats]]]) -> None:
    """Print coverage (mean, lowest and highest over rates) and mean width of each method."""
    print(f"\n| {title}: model | labels | {' | '.join(METHODS)} | width, before | width, now |")
    print("|---|---|" + "---|" * (len(METHODS) + 2))
    for (model, n), found in rows.items():
        cover, width = np.moveaxis(np.array(found), -1, 0)  # (pairs, methods)
        cells = [f"{c.mean():.1%} ({c.min():.1%} to {c.max():.1%})" for c in cover.T]
        _, _, old, new = width.mean(axis=0) / width.mean(axis=0)[0]
        print(f"| {model} | {n} | {' | '.join(cells)} | {old:.2f} | {new:.2f} |")


def look_again(model: str, episodes: int, runs: int) -> tuple[float, float]:
    """Return how often equal policies are called different: at 100 labels, and at any of 10, 20 ... 100."""
    rng = np.random.default_rng(5)
    (fa, ya), (fb, yb) = (simulate(0.5, (runs, episodes), model, rng, is_second) for is_second in (False, True))
    gaps = [subtract(wilson(*now(fb, yb, n)), wilson(*now(fa, ya, n))) for n in range(10, 101, 10)]
    decided = np.array([(low > 0) | (high < 0) for _, low, high in gaps]).T
    return float(decided[:, -1].mean()), float(decided.any(axis=1).mean())


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="few runs: seconds, and the figures mean nothing")
    parser.add_argument("--runs", type=int, default=4000, help="simulated comparisons per pair of rates")
    parser.add_argument("--episodes", type=int, default=200, help="episodes of each policy")
    parser.add_argument("--data", default="", help="a labelled dataset")
    parser.add_argument("--rewards", default="", help="its rewards, a folder")
    given = parser.parse_args()
    if given.data:
        MODELS.clear()
        MODELS["real predictions"] = draw_from(given.data, given.rewards)
    runs = 20 if given.small else given.runs
    print(f"{given.episodes} episodes of each policy, {runs} runs per pair of rates")
    single, differences = {}, {}
    for model in MODELS:
        for n in LABELS:
            found = [measure(rates, model, n, (runs, given.episodes), place) for place, rates in enumerate(RATES)]
            single[model, n], differences[model, n] = [one for one, _ in found[:SINGLE]], [two for _, two in found]
    print_rows("one rate", single)
    print_rows("difference", differences)
    print("\n| model | equal, called different at 100 labels | at any of 10, 20 ... 100 |\n|---|---|---|")
    for model in [name for name in MODELS if name in ("good", "useless", "real predictions")]:
        once, ever = look_again(model, given.episodes, runs)
        print(f"| {model} | {once:.1%} | {ever:.1%} |")


if __name__ == "__main__":
    main()
