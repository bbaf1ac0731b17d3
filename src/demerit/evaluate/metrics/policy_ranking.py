"""Policies ranked by paired comparisons: Bradley-Terry with ties (Davidson) and an order effect, intervals over sites.

Policy f runs first, g second. Each outcome has a utility U, and its probability is exp(U) / sum of exp(U):

    U(f wins) = s_f + order / 2      U(g wins) = s_g - order / 2      U(tie) = tie + (s_f + s_g) / 2

So s_f - s_g + order is the log-odds that f wins, if one of them does. The log-likelihood is concave: Newton's method.

Comparisons of one site share a robot, tasks and taste, so they are not independent. Intervals come from leaving out
one site at a time, by one Newton step from the whole fit: with H the information, H_s and g_s the information and the
score of site s, the variance is (S - 1) / S sum over s of d_s d_s', d_s = (H - H_s)^-1 g_s, with Student's t of S - 1
degrees of freedom. `benchmarks/arena_ranking.py` measures how often these intervals cover the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal

import numpy as np

from demerit.data.arrays import Bools, Floats, Ints
from demerit.errors import BadInput
from demerit.evaluate.metrics.bootstrap import NAN, Measure, holm

MOST_STEPS = 100
FLAT = 1e-6
"""information below this does not determine a parameter: its standard error would be 1,000"""
ANGLES = np.linspace(0, np.pi / 2, 20_001)
Pair = tuple[int, int]


@dataclass(frozen=True)
class PairedComparison:
    """Two policies that did the same task at one site, and which one was preferred."""

    a: str
    b: str
    verdict: Literal["a", "b", "tie"]
    first: Literal["a", "b"] | None
    """which one ran first; None if unknown"""
    site: str

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.a == self.b or self.verdict not in ("a", "b", "tie") or self.first not in ("a", "b", None):
            expected = "two policies, verdict 'a', 'b' or 'tie', first 'a', 'b' or None"
            raise BadInput("paired comparison", expected, self)


@dataclass(frozen=True)
class PolicyStanding:
    """One policy of a ranking."""

    policy: str
    strength: Measure
    """log-odds against the mean policy of its scale. Without a scale n is 0, and the note says why."""
    ranks: tuple[int, int] | None
    """best and worst rank that it may have: at the ranking's level the true one is between; None without comparison"""
    wins: int
    losses: int
    ties: int


@dataclass(frozen=True)
class PolicyDifference:
    """Strength of a minus that of b: the log-odds that a is preferred, if one of them is."""

    a: str
    b: str
    difference: float
    low: float
    """NaN if the interval is unknown; so are `high` and `p`"""
    high: float
    p: float
    """two-sided, of no difference"""


@dataclass(frozen=True)
class PolicyRanking:
    """Policies from best to worst; those without a comparison come last."""

    standings: tuple[PolicyStanding, ...]
    differences: tuple[PolicyDifference, ...]
    """of each two policies on one scale, the better one first"""
    order_effect: Measure
    """log-odds that running first adds"""
    notes: tuple[str, ...]
    """what these comparisons cannot tell, as sentences"""


@dataclass(frozen=True, eq=False)
class ComparisonTable:
    """Comparisons counted by site and by who ran first against whom."""

    policies: tuple[str, ...]
    cells: Ints
    """(C, 3): first policy, second policy, 1 if they are known to have run in this order"""
    counts: Floats
    """(S, C, 3): wins of the first, wins of the second, ties"""


@dataclass(frozen=True, eq=False)
class DavidsonFit:
    """The maximum of the likelihood of the comparisons inside groups.

    Parameters: a strength per policy (those of a group sum to 0), `tie` if there are ties, `order` if `ordered`.
    """

    estimates: Floats
    """(P,)"""
    ordered: int
    """comparisons behind the order effect; 0 if it is not among the parameters"""
    scores: Floats
    """(S, P): gradient of each site's log-likelihood; sites without a comparison inside a group are left out"""
    informations: Floats
    """(S, P, P): negative second derivatives of each site's log-likelihood"""


def rank_policies(
    comparisons: Iterable[PairedComparison], policies: Iterable[str] = (), level: float = 0.95
) -> PolicyRanking:
    """Rank policies by paired comparisons, with intervals clustered by site.

    Policies get strengths on one scale if a chain of wins and ties leads from each to each. A policy that shares no
    scale with another one (it won all, lost all or has no comparison) gets no strength and harms no other.

    Args:
        comparisons: the verdicts, in any order.
        policies: names to list even without a comparison.
        level: of the intervals and of the ranges of ranks.
    """
    table = count_comparisons(comparisons, policies)
    if not table.policies:
        raise BadInput("ranking", "at least one policy", "none")
    for tied_links, with_order in product((True, False), repeat=2):
        reach = find_reach(table, tied_links)
        groups = (reach & reach.T).argmax(axis=1)
        fit = fit_davidson(table, groups, with_order)
        if fit is not None:
            break
    assert fit is not None, "cycles of wins have a finite maximum without an order effect"
    names, size, sites = table.policies, len(table.policies), len(fit.scores)
    unit = np.eye(len(fit.estimates))
    pairs = [(a, b) for a, b in combinations(range(size), 2) if groups[a] == groups[b]]
    pairs = [(a, b) if fit.estimates[a] >= fit.estimates[b] else (b, a) for a, b in pairs]
    intervals = find_intervals(fit, np.array([unit[a] - unit[b] for a, b in pairs]).reshape(-1, len(unit)), level)
    differences = tuple(
        PolicyDifference(names[a], names[b], *row) for (a, b), row in zip(pairs, intervals, strict=True)
    )
    p_values = {pair: row.p for pair, row in zip(pairs, differences, strict=True)}

    record = count_outcomes(table)
    ranked = int(record.any(axis=1).sum())
    games = count_outcomes(table, groups).sum(axis=1)
    joined = np.eye(size, dtype=bool)
    for a, b in pairs:
        joined[a, b] = joined[b, a] = not np.isnan(p_values[a, b])
    strengths = find_intervals(
        fit, (np.eye(size) - find_centre(groups, joined, games, fit.estimates[:size])) @ unit[:size], level
    )
    standings, notes = [], []
    for i, (value, low, high, _) in enumerate(strengths):
        note = explain(i, names, groups, record)
        if not note and np.isnan(low) and sites > 1:
            note = "no interval: one site alone links it to the others, or the sites agree exactly"
        span = (value, low, high) if games[i] else (NAN, NAN, NAN)
        strength = Measure("strength", *span, int(games[i]), 0, "comparisons", clusters=sites, level=level, note=note)
        ranks = find_ranks(i, ranked, p_values, level) if record[i].any() else None
        standings.append(PolicyStanding(names[i], strength, ranks, *record[i].tolist()))
        notes += [f"{names[i]}: {note}."] if note else []
    place = reach.sum(axis=1) - reach.sum(axis=0)
    best_first = sorted(range(size), key=lambda i: (not record[i].any(), -place[i], -strengths[i][0], names[i]))

    span, note = (NAN, NAN, NAN), "it is not known which policy ran first"
    if fit.ordered:
        span, note = find_intervals(fit, unit[-1:], level)[0][:3], ""
    elif table.cells[:, 2].any():
        note = "these comparisons do not determine it (for example, the first one always won)"
    order = Measure("order", *span, fit.ordered, 0, "comparisons", clusters=sites, level=level, note=note)
    notes += [f"The effect of running first is not estimated: {note}."] if note else []
    if sites == 1:
        notes.append("The comparisons are from one site: how much sites differ is unknown, so there are no intervals.")
    return PolicyRanking(tuple(standings[i] for i in best_first), differences, order, tuple(notes))


def count_comparisons(comparisons: Iterable[PairedComparison], policies: Iterable[str] = ()) -> ComparisonTable:
    """Count comparisons. The table does not depend on their order, nor on which policy is called a."""
    rows = list(comparisons)
    names = sorted({*policies, *(row.a for row in rows), *(row.b for row in rows)})
    sites = {name: i for i, name in enumerate(sorted({row.site for row in rows}))}
    index = {name: i for i, name in enumerate(names)}
    keys = []
    for row in rows:
        swapped = row.first == "b" or (row.first is None and row.a > row.b)
        outcome = 2 if row.verdict == "tie" else int((row.verdict == "b") != swapped)
        pair = (row.b, row.a) if swapped else (row.a, row.b)
        keys.append((index[pair[0]], index[pair[1]], int(row.first is not None), sites[row.site], outcome))
    columns = np.array(keys, dtype=np.int64).reshape(-1, 5)
    cells, place = np.unique(columns[:, :3], axis=0, return_inverse=True)
    counts = np.zeros((len(sites), len(cells), 3))
    np.add.at(counts, (columns[:, 3], place.reshape(-1), columns[:, 4]), 1.0)
    return ComparisonTable(tuple(names), cells, counts)


def count_outcomes(table: ComparisonTable, groups: Ints | None = None) -> Ints:
    """Count wins, losses and ties of each policy, (K, 3); with `groups`, only comparisons inside a group."""
    first, second, _ = table.cells.T
    totals = table.counts.sum(axis=0)
    if groups is not None:
        totals = totals * (groups[first] == groups[second])[:, None]
    counts = np.zeros((len(table.policies), 3))
    np.add.at(counts, first, totals)
    np.add.at(counts, second, totals[:, [1, 0, 2]])
    return counts.astype(np.int64)


def find_reach(table: ComparisonTable, tied_links: bool) -> Bools:
    """Return whether a chain of wins (and ties, if `tied_links`) leads from policy i to policy j, (K, K)."""
    first, second, _ = table.cells.T
    wins, losses, ties = (table.counts.sum(axis=0) > 0).T
    reach = np.eye(len(table.policies), dtype=bool)
    for won, a, b in ((wins, first, second), (losses, second, first)):
        links = won | (ties & tied_links)
        reach[a[links], b[links]] = True
    for _ in range(len(reach).bit_length()):
        reach = reach @ reach
    return reach


def fit_davidson(table: ComparisonTable, groups: Ints, with_order: bool) -> DavidsonFit | None:
    """Maximise the likelihood of the comparisons inside groups; None if they do not determine the parameters."""
    inside = groups[table.cells[:, 0]] == groups[table.cells[:, 1]]
    first, second, order = table.cells[inside].T
    counts = table.counts[:, inside][table.counts[:, inside].any(axis=(1, 2))]
    ordered = int(counts[:, order > 0].sum()) if with_order else 0
    tied, size = bool(counts[..., 2].any()), len(table.policies)
    counts = counts[..., : 2 + tied]
    design = np.zeros((len(first), 2 + tied, size + tied + (ordered > 0)))
    cell = np.arange(len(first))
    design[cell, 0, first] = design[cell, 1, second] = 1.0
    if tied:
        design[cell, 2, first] = design[cell, 2, second] = 0.5
        design[:, 2, size] = 1.0
    if ordered:
        design[:, 0, -1], design[:, 1, -1] = order / 2, -order / 2
    gauge = np.zeros((design.shape[2],) * 2)  # fixes the sum of each group's strengths
    gauge[:size, :size] = groups[:, None] == groups[None, :]
    games = counts.sum(axis=2)

    def log_chances(at: Floats) -> Floats:
        utility = design @ at
        return utility - np.logaddexp.reduce(utility, axis=1, keepdims=True)

    def weigh(chances: Floats, weights: Floats) -> Floats:
        """Return the information of comparisons with these numbers per cell."""
        rows = (design - chances[:, None, :] @ design) * np.sqrt(weights[:, None] * chances)[..., None]
        rows = rows.reshape(-1, design.shape[2])
        return rows.T @ rows

    estimates = np.zeros(design.shape[2])
    for _ in range(MOST_STEPS):
        logs = log_chances(estimates)
        chances = np.exp(logs)
        information = weigh(chances, games.sum(axis=0)) + gauge
        if np.linalg.eigvalsh(information).min(initial=1.0) < FLAT:
            return None
        scores = np.tensordot(counts - games[..., None] * chances, design, axes=2)
        step = np.linalg.solve(information, scores.sum(axis=0))
        if scores.sum(axis=0) @ step <= 1e-20 * games.sum():
            return DavidsonFit(estimates, ordered, scores, np.array([weigh(chances, site) for site in games]))
        while (counts * (log_chances(estimates + step) - logs)).sum() < -1e-9:  # noqa: PLR2004
            step = step / 2
        estimates = estimates + step
    return None


def find_intervals(fit: DavidsonFit, contrasts: Floats, level: float) -> list[tuple[float, float, float, float]]:
    """Return value, low, high and p of linear combinations (R, P) of the parameters, over sites.

    The interval is NaN with one site, or if the combination is not determined as soon as some site is left out.
    """
    values, sites = contrasts @ fit.estimates, len(fit.scores)
    if sites < 2:  # noqa: PLR2004
        return [(value, NAN, NAN, NAN) for value in values.tolist()]
    total, variance, unknown = fit.informations.sum(axis=0), np.zeros(len(values)), np.zeros(len(values), dtype=bool)
    for score, information in zip(fit.scores, fit.informations, strict=True):
        curvature, axes = np.linalg.eigh(total - information)
        is_flat, along = curvature < FLAT, contrasts @ axes
        variance += (sites - 1) / sites * (along[:, ~is_flat] @ (score @ axes[:, ~is_flat] / curvature[~is_flat])) ** 2
        unknown |= (np.abs(along[:, is_flat]) > 1e-6).any(axis=1)  # noqa: PLR2004
    error = np.where(unknown | (variance < 1e-18), NAN, np.sqrt(variance))  # noqa: PLR2004
    mass = student_mass(sites - 1)
    reach = np.sqrt(sites - 1) * np.tan(np.interp(level, mass, ANGLES)) * error
    p = 1.0 - np.interp(np.arctan(np.abs(values) / error / np.sqrt(sites - 1)), ANGLES, mass)
    return list(zip(*(column.tolist() for column in (values, values - reach, values + reach, p)), strict=True))


def student_mass(degrees: int) -> Floats:
    """Return P(|T| < sqrt(degrees) tan(angle)) of Student's t for each of `ANGLES`.

    With t = sqrt(degrees) tan(angle), the density of the angle is proportional to cos(angle)^(degrees - 1).
    """
    density = np.cos(ANGLES) ** (degrees - 1)
    mass: Floats = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    mass /= mass[-1]
    return mass


def find_centre(groups: Ints, joined: Bools, games: Ints, strengths: Floats) -> Floats:
    """Return, for each policy, the weights (K, K) of those whose mean strength is the 0 of its scale.

    They are the largest part of its group whose differences have intervals (`joined`), or else the whole group.
    """
    weights = np.zeros(joined.shape)
    for group in set(groups.tolist()):
        members = groups == group
        order = [
            (joined[i].sum(), games[joined[i]].sum(), strengths[joined[i]].mean(), i) for i in np.flatnonzero(members)
        ]
        part = joined[max(order)[3]]
        part = part if part.sum() > 1 else members
        weights[members] = part / part.sum()
    return weights


def find_ranks(policy: int, ranked: int, p_values: Mapping[Pair, float], level: float) -> tuple[int, int]:
    """Return the best and worst rank: 1 + those surely better, and `ranked` - those surely worse (Holm)."""
    own = {str(pair): p for pair, p in p_values.items() if policy in pair}
    sure = {pair for pair, p in holm(own).items() if p < 1 - level}
    better = sum(str(pair) in sure for pair in p_values if pair[1] == policy)
    worse = sum(str(pair) in sure for pair in p_values if pair[0] == policy)
    return 1 + better, ranked - worse


def explain(policy: int, names: tuple[str, ...], groups: Ints, record: Ints) -> str:
    """Say why a policy is not on the scale of most; empty if it is."""
    own = groups == groups[policy]
    wins, losses, ties = record[policy].tolist()
    if not wins + losses + ties:
        return "no comparison yet"
    if own.sum() == 1:
        if losses + ties == 0 or wins + ties == 0:
            return f"{'won' if wins else 'lost'} all its comparisons ({wins + losses}): no finite strength"
        return "no chain of wins leads from it to the others and back: no finite strength"
    largest = max(groups.tolist(), key=lambda group: ((groups == group).sum(), record[groups == group].sum()))
    if groups[policy] == largest:
        return ""
    others = ", ".join(name for name, inside in zip(names, own, strict=True) if inside and name != names[policy])
    return f"on a scale of its own with {others}: no chain of wins leads to the others and back"
