"""How often intervals of a ranking by paired comparisons cover the truth, in a simulation with known strengths.

    python benchmarks/arena_ranking.py [--boards 1000] [--seed 0]        (--small: in seconds)

A board: 8 policies with strengths from a normal distribution (sd 1), 600 pairs in random order, an order effect of 0.3,
about a fifth ties. Each site adds its own taste to each strength: normal, with the sd of the row. Three intervals of
the differences of all pairs are compared at 95%: `rank_policies` (sites left out one at a time, Student's t); the
sandwich estimate over sites with the factor S / (S - 1) and Student's t; and the inverse Hessian with the normal
distribution, which takes all pairs as independent. The last two come from a fit without the order effect.

The truth is the difference of the mean strengths. With strong taste the fit estimates something smaller, the log-odds
of the average verdict; the column "of the average verdict" takes that as the truth. "Ranks" is the share of policies
whose true rank is in its range, "rank of the best" that of boards whose best policy may be the first, and "without
Holm" the same if each difference were tested alone. A board that does not link all policies is drawn again.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")  # before numpy is imported

import argparse
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import numpy.typing as npt

from demerit.evaluate.metrics.policy_ranking import (
    ANGLES,
    ComparisonTable,
    PairedComparison,
    count_comparisons,
    fit_davidson,
    rank_policies,
    student_mass,
)

Floats = npt.NDArray[np.float64]
POLICIES, PAIRS, ORDER, TIE = 8, 600, 0.3, -0.5
NAMES = tuple(f"policy {i}" for i in range(POLICIES))
CELLS = np.array([(f, g, 1) for f, g in permutations(range(POLICIES), 2)])
ONE_GROUP = np.zeros(POLICIES, dtype=np.int64)
LEFT, RIGHT = np.triu_indices(POLICIES, 1)


@dataclass(frozen=True)
class ArenaDesign:
    """Sites, sd of their taste, whether their sizes fall as 1 / k, policies at each site, sd of the strengths."""

    sites: int
    taste: float
    unequal: bool = False
    each: int = POLICIES
    spread: float = 1.0

    def __str__(self) -> str:
        facts = ["sites as 1, 1/2, 1/3 ..." if self.unequal else ""]
        facts += [f"{self.each} policies a site" if self.each < POLICIES else ""]
        facts += ["policies nearly equal" if self.spread < 1 else ""]
        return ", ".join(fact for fact in facts if fact) or "plain"


DESIGNS = [
    *(ArenaDesign(sites, taste) for sites in (7, 20) for taste in (0.0, 0.4, 0.8)),
    *(ArenaDesign(sites, 0.4) for sites in (2, 3)),
    *(ArenaDesign(sites, 0.4, unequal=True) for sites in (7, 20)),
    *(ArenaDesign(sites, 0.4, each=4) for sites in (7, 20)),
    *(ArenaDesign(sites, 0.4, spread=0.02) for sites in (7, 20)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boards", type=int, default=1000, help="simulated boards per row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="4 boards per row")
    given = parser.parse_args()
    boards = 4 if given.small else given.boards
    print(f"{boards} boards per row; coverage in %, ± twice its standard error over boards\n")
    print(
        "| sites | taste sd | design | over sites | of the average verdict | half width | sandwich | Hessian "
        "| half width | order effect | ranks | rank of the best | without Holm | intervals known |"
    )
    print("|---" * 14 + "|")
    for design in DESIGNS:
        rng = np.random.default_rng(
            [given.seed, design.sites, int(10 * design.taste), design.unequal, design.each, int(100 * design.spread)]
        )
        rows = np.array([measure_board(design, rng) for _ in range(boards)])
        over, verdict, half, sandwich, hessian, hessian_half, order, ranks, best, unadjusted, known = rows.T
        cells = [
            cover(over),
            cover(verdict),
            f"{np.nanmedian(half):.2f}",
            cover(sandwich),
            cover(hessian),
            f"{np.median(hessian_half):.2f}",
        ]
        cells += [cover(order), cover(ranks), cover(best), cover(unadjusted), f"{known.mean():.0%}"]
        print("|", " | ".join([str(design.sites), str(design.taste), str(design), *cells]), "|", flush=True)


def cover(shares: Floats) -> str:
    shares = shares[~np.isnan(shares)]
    if not len(shares):
        return "-"
    return f"{100 * shares.mean():.1f} ± {200 * shares.std() / len(shares) ** 0.5:.1f}"


def measure_board(design: ArenaDesign, rng: np.random.Generator) -> tuple[float, ...]:
    """Return the shares of one board's intervals that cover, and their median half widths."""
    plain = None
    while plain is None:
        strengths = design.spread * rng.standard_normal(POLICIES)
        rows = draw_comparisons(design, strengths, rng)
        plain = fit_davidson(count_comparisons(rows, NAMES), ONE_GROUP, with_order=False)
    ranking = rank_policies(rows, policies=NAMES)
    place = {name: i for i, name in enumerate(NAMES)}
    gaps = [gap for gap in ranking.differences if not np.isnan(gap.low)]
    a, b = (np.array([place[getattr(gap, side)] for gap in gaps], dtype=int) for side in ("a", "b"))
    low, high = np.array([gap.low for gap in gaps]), np.array([gap.high for gap in gaps])
    average = fit_average_verdict(strengths, design.taste)

    def share(truth: Floats) -> float:
        hit = (low <= truth[a] - truth[b]) & (truth[a] - truth[b] <= high)
        return float(hit.mean()) if len(gaps) else np.nan

    information = plain.informations.sum(axis=0)
    information[:POLICIES, :POLICIES] += 1.0
    inverse = np.linalg.inv(information)
    contrasts = np.eye(len(inverse))[LEFT] - np.eye(len(inverse))[RIGHT]
    error = np.sqrt(((contrasts @ inverse) * contrasts).sum(axis=1))
    moved = contrasts @ inverse @ plain.scores.T
    sandwich = np.sqrt(design.sites / (design.sites - 1) * (moved**2).sum(axis=1))
    t = (design.sites - 1) ** 0.5 * np.tan(np.interp(0.95, student_mass(design.sites - 1), ANGLES))
    gap = plain.estimates[:POLICIES] - strengths
    off = np.abs(gap[LEFT] - gap[RIGHT])

    order = ranking.order_effect
    rank = 1 + (strengths[None, :] > strengths[:, None]).sum(axis=1)
    ranges = {place[row.policy]: row.ranks for row in ranking.standings if row.ranks}
    inside = {i: low <= rank[i] <= high for i, (low, high) in ranges.items()}
    best = int(strengths.argmax())
    return (
        share(strengths),
        share(average),
        float(np.median(high - low) / 2) if gaps else np.nan,
        float((off <= t * sandwich).mean()),
        float((off <= 1.96 * error).mean()),
        float(1.96 * np.median(error)),
        np.nan if np.isnan(order.low) else float(order.low <= ORDER <= order.high),
        float(np.mean(list(inside.values()))),
        float(inside[best]),
        float(not (low[b == best] > 0).any()),
        len(gaps) / len(LEFT),
    )


def draw_comparisons(design: ArenaDesign, strengths: Floats, rng: np.random.Generator) -> list[PairedComparison]:
    taste = strengths + design.taste * rng.standard_normal((design.sites, POLICIES))
    size = 1.0 / np.arange(1, design.sites + 1) if design.unequal else np.ones(design.sites)
    site = rng.choice(design.sites, PAIRS, p=size / size.sum())
    runs = rng.permuted(np.tile(np.arange(POLICIES), (design.sites, 1)), axis=1)[:, : design.each]
    pair = rng.permuted(np.tile(np.arange(design.each), (PAIRS, 1)), axis=1)[:, :2]
    first, second = runs[site, pair[:, 0]], runs[site, pair[:, 1]]
    gap = taste[site, first] - taste[site, second] + ORDER
    pull = np.stack([gap / 2, -gap / 2, np.full(PAIRS, TIE)], axis=1) + rng.gumbel(size=(PAIRS, 3))
    rows = zip(first.tolist(), second.tolist(), pull.argmax(axis=1).tolist(), site.tolist(), strict=True)
    return [PairedComparison(NAMES[f], NAMES[g], ("a", "b", "tie")[k], "a", f"site {s}") for f, g, k, s in rows]


def fit_average_verdict(strengths: Floats, taste: float) -> Floats:
    """Return the strengths that infinitely many pairs at infinitely many sites would give."""
    points, weights = np.polynomial.hermite_e.hermegauss(21)  # the taste for a difference is normal, sd sqrt(2) taste
    gap = (strengths[CELLS[:, 0]] - strengths[CELLS[:, 1]] + ORDER)[:, None] + 2**0.5 * taste * points
    pull = np.exp(np.stack([gap / 2, -gap / 2, np.full(gap.shape, TIE)], axis=2))
    chances = (pull / pull.sum(axis=2, keepdims=True) * weights[:, None]).sum(axis=1) / weights.sum()
    fit = fit_davidson(ComparisonTable(NAMES, CELLS, chances[None]), ONE_GROUP, with_order=True)
    assert fit is not None
    return fit.estimates[:POLICIES]


if __name__ == "__main__":
    main()
