"""Do the intervals of `demerit compare` hold, and how much narrower are they than those of the labels alone?

    python benchmarks/compare_policies.py
    python benchmarks/compare_policies.py --data STORE --rewards FOLDER     (a model's real predictions)
    python benchmarks/compare_policies.py --small

Simulated: two policies with known success rates, N episodes of each, n labels of each chosen at random, and models of
several kinds; with --data, stored predictions of a real one instead (`demerit score STORE --out FOLDER`), drawn from
the dataset's successes and failures. Coverage is the share of 95% intervals of the difference that hold the true one,
over six pairs of rates; width is the mean width over that of Newcombe's interval for the labels alone. `plain PPI++` is
the textbook interval (normal, tuned lambda, nothing for few labels). The last table asks how often equal policies are
called different by someone who looks again after every ten labels.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from demerit.data.formats import open_dataset
from demerit.data.labels import NOT_A_MODEL
from demerit.data.seen import SeenEpisodes
from demerit.models.reward_store import RewardStore
from demerit.use.compare import Z95, PolicyComparison, PolicyRollouts, estimate_rate
from demerit.use.scored import ScoredDataset

Floats = npt.NDArray[np.float64]
Rng = np.random.Generator
RATES = [(0.5, 0.5), (0.5, 0.7), (0.3, 0.6), (0.9, 0.8), (0.95, 0.95), (0.98, 0.8)]
LABELS = [5, 10, 20, 50, 100]


def good(y: Floats, rng: Rng, is_second: bool) -> Floats:
    """A probability that separates: AUROC 0.98."""
    return 1 / (1 + np.exp(-(3 * (2 * y - 1) + 2 * rng.standard_normal(len(y)))))


def fair(y: Floats, rng: Rng, is_second: bool) -> Floats:
    """A probability that separates a little: AUROC 0.83."""
    return 1 / (1 + np.exp(-((2 * y - 1) + 1.5 * rng.standard_normal(len(y)))))


def useless(y: Floats, rng: Rng, is_second: bool) -> Floats:
    """Random numbers."""
    return rng.random(len(y))


def biased(y: Floats, rng: Rng, is_second: bool) -> Floats:
    """Half of the failures pass for successes, and the second policy is flattered by 0.2 more."""
    fooled = (y == 0) & (rng.random(len(y)) < 0.5)
    found = np.where((y == 1) | fooled, 1 - 0.2 * rng.random(len(y)), 0.3 * rng.random(len(y)))
    return np.minimum(found + 0.2 * is_second, 1.0)


def rarely_wrong(y: Floats, rng: Rng, is_second: bool) -> Floats:
    """Verdicts of 0 and 1, 3% of them wrong: few labels see no mistake."""
    return np.where(rng.random(len(y)) < 0.03, 1 - y, y)


MODELS: dict[str, Callable[[Floats, Rng, bool], Floats]] = {
    "good": good,
    "fair": fair,
    "useless": useless,
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
    return lambda y, rng, is_second: np.where(y == 1, rng.choice(pools[1], len(y)), rng.choice(pools[0], len(y)))


def simulate(rate: float, count: int, model: str, rng: Rng, is_second: bool) -> tuple[Floats, Floats]:
    """Return predictions and true outcomes."""
    y = (rng.random(count) < rate).astype(np.float64)
    return MODELS[model](y, rng, is_second), y


def hide(y: Floats, labels: int) -> Floats:
    """Keep the first labels; the order of simulated episodes is random."""
    return np.where(np.arange(len(y)) < labels, y, np.nan)


def plain_ppi(f: Floats, y: Floats, n: int) -> tuple[float, float]:
    """Return rate and variance of textbook PPI++ for a mean."""
    rest = len(f) - n
    lam = np.cov(y[:n], f[:n])[0, 1] / max(f[:n].var(ddof=1), 1e-12) * rest / len(f)
    rate = lam * f[n:].mean() + (y[:n] - lam * f[:n]).mean()
    return rate, lam**2 * f[n:].var(ddof=1) / rest + (y[:n] - lam * f[:n]).var(ddof=1) / n


def measure(rates: tuple[float, float], model: str, n: int, episodes: int, runs: int, seed: int) -> list[float]:
    """Return coverage, width, width by labels alone, and coverage of plain PPI++."""
    rng, truth, found = np.random.default_rng(seed), rates[1] - rates[0], []
    for _ in range(runs):
        pair = [simulate(rate, episodes, model, rng, place == 1) for place, rate in enumerate(rates)]
        result = PolicyComparison(*(estimate_rate(f, hide(y, n)) for f, y in pair))
        gap, alone = result.difference, result.by_labels
        (rate_a, var_a), (rate_b, var_b) = (plain_ppi(f, y, n) for f, y in pair)
        plain = abs(rate_b - rate_a - truth) <= Z95 * math.sqrt(var_a + var_b)
        found.append([gap.low <= truth <= gap.high, gap.high - gap.low, alone.high - alone.low, plain])
    return [float(column) for column in np.mean(found, axis=0)]


def look_again(model: str, episodes: int, runs: int) -> tuple[float, float]:
    """Return how often equal policies are called different: at 100 labels, and at any of 10, 20 ... 100."""
    rng, once, ever = np.random.default_rng(5), 0, 0
    for _ in range(runs):
        pair = [simulate(0.5, episodes, model, rng, place == 1) for place in (0, 1)]
        decided = [
            PolicyComparison(*(estimate_rate(f, hide(y, n)) for f, y in pair)).sign != 0 for n in range(10, 101, 10)
        ]
        once, ever = once + decided[-1], ever + any(decided)
    return once / runs, ever / runs


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="few runs: seconds, and the figures mean nothing")
    parser.add_argument("--runs", type=int, default=2000, help="simulated comparisons per row")
    parser.add_argument("--episodes", type=int, default=300, help="episodes of each policy")
    parser.add_argument("--data", default="", help="a labelled dataset")
    parser.add_argument("--rewards", default="", help="its rewards, a folder")
    given = parser.parse_args()
    if given.data:
        MODELS.clear()
        MODELS["real predictions"] = draw_from(given.data, given.rewards)
    runs = 20 if given.small else given.runs
    print(f"{given.episodes} episodes of each policy, {runs} runs per row\n")
    print("| model | labels of each | coverage | lowest | highest | plain PPI++, lowest | width / labels alone |")
    print("|---|---|---|---|---|---|---|")
    for model in MODELS:
        for n in LABELS:
            rows = [measure(rates, model, n, given.episodes, runs, place) for place, rates in enumerate(RATES)]
            cover, width, alone, plain = zip(*rows, strict=True)
            span = f"{np.mean(cover):.1%} | {min(cover):.1%} | {max(cover):.1%} | {min(plain):.1%}"
            print(f"| {model} | {n} | {span} | {np.mean(width) / np.mean(alone):.2f} |", flush=True)
    print("\n| model | equal, called different at 100 labels | at any of 10, 20 ... 100 |\n|---|---|---|")
    for model in MODELS.keys() & {"good", "useless", "real predictions"}:
        once, ever = look_again(model, given.episodes, runs)
        print(f"| {model} | {once:.1%} | {ever:.1%} |")


if __name__ == "__main__":
    main()
