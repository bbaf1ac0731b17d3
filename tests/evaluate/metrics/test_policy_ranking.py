"""Rankings from paired comparisons: against choix, against the plain likelihood, and where no number fits."""

import math
from dataclasses import replace
from itertools import product

import choix
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from demerit.errors import BadInput
from demerit.evaluate.metrics.policy_ranking import (
    ANGLES,
    PairedComparison,
    count_comparisons,
    find_reach,
    fit_davidson,
    rank_policies,
    student_mass,
)

check = settings(max_examples=40)
NAMES = "abcde"
row = st.builds(
    lambda pair, verdict, first, site: PairedComparison(pair[0], pair[1], verdict, first, site),
    st.permutations(NAMES[:4]),
    st.sampled_from(["a", "b", "tie"]),
    st.sampled_from(["a", "b", None]),
    st.sampled_from("xyz"),
)


def draw(games, policies=5, sites=4, ties=True, order=0.4, taste=0.3, seed=0):
    """Invented comparisons with known strengths; the one that ran first is called a or b at random."""
    rng = np.random.default_rng(seed)
    strength = rng.normal(size=policies) + taste * rng.normal(size=(sites, policies))
    rows = []
    for _ in range(games):
        (f, g), site = rng.choice(policies, 2, replace=False), rng.integers(sites)
        gap = strength[site, f] - strength[site, g] + order
        pull = np.array([gap / 2, -gap / 2, -0.5 if ties else -np.inf]) + rng.gumbel(size=3)
        row = PairedComparison(NAMES[f], NAMES[g], ("a", "b", "tie")[pull.argmax()], "a", f"site {site}")
        rows.append(swap(row) if rng.random() < 0.5 else row)
    return rows


def swap(row):
    other = {"a": "b", "b": "a", "tie": "tie", None: None}
    return PairedComparison(row.b, row.a, other[row.verdict], other[row.first], row.site)


def games_of(text, site="here", first=None):
    """Read "a>b b=c": a beat b, b and c tied."""
    verdicts = {">": "a", "<": "b", "=": "tie"}
    return [PairedComparison(word[0], word[2], verdicts[word[1]], first, site) for word in text.split()]


def strengths(ranking):
    return {row.policy: row.strength.value for row in ranking.standings}


def facts(ranking):
    """Every number of a ranking, by policy."""
    rows = {row.policy: row for row in ranking.standings}
    span = {name: (m.value, m.low, m.high, m.n, row.ranks, row.wins, row.losses, row.ties)
            for name, row in rows.items() for m in [row.strength]}  # fmt: skip
    gaps = {}
    for gap in ranking.differences:
        gaps[gap.a, gap.b] = (gap.difference, gap.low, gap.high, gap.p)
        gaps[gap.b, gap.a] = (-gap.difference, -gap.high, -gap.low, gap.p)
    order = ranking.order_effect
    return span, gaps, (order.value, order.low, order.high, order.n)


def assert_same(one, other, rename=None):
    rename = rename or {}
    (span, gaps, order), (span2, gaps2, order2) = facts(one), facts(other)
    assert {rename.get(name, name) for name in span} == set(span2)
    for name, (*numbers, ranks, wins, losses, ties) in span.items():
        *numbers2, ranks2, wins2, losses2, ties2 = span2[rename.get(name, name)]
        assert numbers == pytest.approx(numbers2, abs=1e-7, nan_ok=True)
        assert (ranks, wins, losses, ties) == (ranks2, wins2, losses2, ties2)
    for (a, b), numbers in gaps.items():
        assert numbers == pytest.approx(gaps2[rename.get(a, a), rename.get(b, b)], abs=1e-7, nan_ok=True)
    assert order == pytest.approx(order2, abs=1e-7, nan_ok=True)


def test_equals_choix_without_ties():
    rows = [replace(row, first=None) for row in draw(300, ties=False)]
    index = {name: i for i, name in enumerate(NAMES)}
    won = [(index[row.a], index[row.b]) if row.verdict == "a" else (index[row.b], index[row.a]) for row in rows]
    found = strengths(rank_policies(rows))
    for expected in (choix.ilsr_pairwise(5, won, tol=1e-12), choix.opt_pairwise(5, won, alpha=0.0, tol=1e-12)):
        assert [found[name] for name in NAMES] == pytest.approx(expected - np.mean(expected), abs=1e-6)


def plain_likelihood(rows):
    """Minus the log-likelihood, row by row, from the formulas in the module's docstring."""

    def minus(x):
        total = 0.0
        for row in rows:
            f, g = (row.a, row.b) if row.first == "a" else (row.b, row.a)
            sf, sg = x[NAMES.index(f)], x[NAMES.index(g)]
            utility = [sf + x[6] / 2, sg - x[6] / 2, x[5] + (sf + sg) / 2]
            won = {"a": row.a, "b": row.b}.get(row.verdict)
            total += utility[2 if won is None else int(won == g)] - np.logaddexp.reduce(utility)
        return -total + 0.5 * np.sum(x[:5]) ** 2

    return minus


def test_equals_the_plain_likelihood_with_ties_and_order():
    rows = draw(200)
    other = optimize.minimize(plain_likelihood(rows), np.zeros(7), method="BFGS", options={"gtol": 1e-6})
    ranking = rank_policies(rows)
    found = strengths(ranking)
    assert [found[name] for name in NAMES] == pytest.approx(other.x[:5], abs=1e-5)
    assert ranking.order_effect.value == pytest.approx(other.x[6], abs=1e-5)
    assert ranking.order_effect.n == 200


def test_intervals_are_those_of_leaving_out_one_site():
    """With many comparisons a site, one Newton step is nearly the whole way: compare with fitting again."""
    rows = draw(4000, taste=0.2)
    whole = rank_policies(rows)
    sites = sorted({row.site for row in rows})
    apart = [strengths(rank_policies([row for row in rows if row.site != site])) for site in sites]
    for gap in whole.differences:
        moved = np.array([part[gap.a] - part[gap.b] - gap.difference for part in apart])
        error = np.sqrt(3 / 4 * np.sum(moved**2))
        width = stats.t.ppf(0.975, 3) * error
        assert (gap.high - gap.low) / 2 == pytest.approx(width, rel=0.05)
        assert gap.p == pytest.approx(2 * stats.t.sf(abs(gap.difference) / error, 3), rel=0.2, abs=1e-4)


def test_scores_and_information_are_derivatives():
    rows = draw(60, sites=2)
    table = count_comparisons(rows)
    fit = fit_davidson(table, np.zeros(5, int), with_order=True)
    for s, site in enumerate(sorted({row.site for row in rows})):
        minus = plain_likelihood([row for row in rows if row.site == site])
        slope = optimize.approx_fprime(fit.estimates, minus, 1e-6)
        assert fit.scores[s] == pytest.approx(-slope, abs=1e-3)
        curve = optimize.approx_fprime(fit.estimates, lambda x, f=minus: optimize.approx_fprime(x, f, 1e-4), 1e-4)
        gauge = np.zeros((7, 7))
        gauge[:5, :5] = 1.0  # the plain likelihood holds the sum of the strengths
        assert fit.informations[s] + gauge == pytest.approx(curve, abs=0.02)


def has_maximum(table, groups, with_order):
    """Decide by linear programming: no direction may leave every observed outcome as likely or make it likelier."""
    inside = groups[table.cells[:, 0]] == groups[table.cells[:, 1]]
    cells, totals, k = table.cells[inside], table.counts[:, inside].sum(axis=0), len(table.policies)
    tied, order = bool(totals[:, 2].any()), with_order and bool(cells[:, 2].any())
    rows = [np.zeros(k + tied + order)]
    for (f, g, known), counts in zip(cells, totals, strict=True):
        utility = np.zeros((2 + tied, k + tied + order))
        utility[0, f] = utility[1, g] = 1
        if tied:
            utility[2, [f, g, k]] = 0.5, 0.5, 1
        if order:
            utility[:2, -1] = known / 2, -known / 2
        rows += [utility[seen] - u for seen in np.flatnonzero(counts) for u in np.delete(utility, seen, axis=0)]
    rows = np.array(rows)
    bound = np.repeat([0.0, 1.0], len(rows))
    best = optimize.linprog(-rows.sum(axis=0), np.vstack([-rows, rows]), bound, bounds=(None, None))
    return -best.fun < 1e-7 and np.linalg.matrix_rank(rows) == k + tied + order - len(set(groups.tolist()))


@check
@given(st.lists(row, min_size=1, max_size=12))
def test_a_fit_is_found_if_and_only_if_there_is_one(rows):
    table = count_comparisons(rows)
    for tied_links, with_order in product((True, False), repeat=2):
        reach = find_reach(table, tied_links)
        groups = (reach & reach.T).argmax(axis=1)
        found = fit_davidson(table, groups, with_order) is not None
        assert found == has_maximum(table, groups, with_order)
        assert found or tied_links or with_order


@pytest.mark.parametrize("degrees", [1, 2, 3, 6, 19, 200])
def test_student_against_scipy(degrees):
    t = np.sqrt(degrees) * np.tan(ANGLES[:-1])
    assert student_mass(degrees)[:-1] == pytest.approx(1 - 2 * stats.t.sf(t, degrees), abs=1e-6)


@check
@given(st.lists(row, min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_row_order_swaps_and_names_change_nothing(rows, random):
    found = rank_policies(rows, policies=NAMES)
    shuffled = [swap(row) if random.random() < 0.5 else row for row in random.sample(rows, len(rows))]
    assert repr(rank_policies(shuffled, policies=NAMES)) == repr(found)  # bit for bit, NaN included
    new = dict(zip(NAMES, random.sample("vwxyz", 5), strict=True))
    sites = dict(zip("xyz", random.sample("xyz", 3), strict=True))
    renamed = [PairedComparison(new[r.a], new[r.b], r.verdict, r.first, sites[r.site]) for r in rows]
    assert_same(found, rank_policies(renamed, policies=new.values()), new)


@check
@given(st.lists(row, max_size=12))
def test_any_comparisons_give_a_ranking(rows):
    ranking = rank_policies(rows, policies=NAMES)
    assert {r.policy for r in ranking.standings} == set(NAMES)
    seen = {name for row in rows for name in (row.a, row.b)}
    for standing in ranking.standings:
        m = standing.strength
        assert math.isnan(m.value) == (m.n == 0) and (m.note or m.n)
        if standing.policy in seen:
            best, worst = standing.ranks
            assert 1 <= best <= worst <= len(seen)
        else:
            assert standing.ranks is None
        assert m.note == "" or any(standing.policy in note for note in ranking.notes)


def test_all_win_all_lose_and_absent_policies_leave_the_rest_alone():
    core = draw(200)
    alone = rank_policies(core)
    more = [*core, *games_of("w>a w>b w>c a>l b>l l<c", "site 1")]
    ranking = rank_policies(more, policies=["z"])
    assert {name: strengths(ranking)[name] for name in NAMES} == pytest.approx(strengths(alone), abs=1e-9)
    for gap, before in zip(ranking.differences, alone.differences, strict=True):
        assert (gap.a, gap.b) == (before.a, before.b)
        assert (gap.difference, gap.low, gap.high) == pytest.approx((before.difference, before.low, before.high))
    assert ranking.standings[0].policy == "w"
    assert [row.policy for row in ranking.standings][-2:] == ["l", "z"]
    by_name = {row.policy: row for row in ranking.standings}
    for name, count in (("w", "3"), ("l", "3"), ("z", "no comparison")):
        assert by_name[name].strength.n == 0 and count in by_name[name].strength.note
        assert any(note.startswith(f"{name}: ") for note in ranking.notes)
    assert by_name["w"].ranks == (1, 7) and by_name["z"].ranks is None


def test_unconnected_groups_get_scales_of_their_own():
    left, right = draw(200), [replace(row, a=row.a.upper(), b=row.b.upper()) for row in draw(150, seed=1)]
    ranking = rank_policies([*left, *right])
    values = strengths(ranking)
    assert sum(values[name] for name in NAMES) == pytest.approx(0, abs=1e-9)
    assert sum(values[name.upper()] for name in NAMES) == pytest.approx(0, abs=1e-9)
    assert all(gap.a.isupper() == gap.b.isupper() for gap in ranking.differences) and len(ranking.differences) == 20
    noted = {row.policy for row in ranking.standings if row.strength.note}
    assert noted == {name.upper() for name in NAMES}  # the smaller one


def test_only_wins_and_ties_between_two_have_no_finite_difference():
    for text in ("a>b a=b", "a=b", "a>b"):
        ranking = rank_policies(games_of(text))
        assert [row.strength.n for row in ranking.standings] == [0, 0] and not ranking.differences
    mixed = rank_policies(games_of("a>b b=c c>a"))
    assert [row.policy for row in mixed.standings] == ["c", "a", "b"] and len(mixed.differences) == 3


def test_one_site_has_no_interval_and_says_so():
    ranking = rank_policies([replace(row, site="here") for row in draw(200)])
    assert all(math.isnan(gap.low) and math.isnan(gap.p) for gap in ranking.differences)
    assert all(math.isnan(row.strength.low) and row.strength.n for row in ranking.standings)
    assert all(row.ranks == (1, 5) for row in ranking.standings)
    assert math.isnan(ranking.order_effect.low) and not math.isnan(ranking.order_effect.value)
    assert any("one site" in note for note in ranking.notes)


def test_policy_seen_at_one_site_has_no_interval_and_the_others_keep_theirs():
    core = draw(300)
    ranking = rank_policies([*core, *games_of("n>a n<b n>c n<d n=e n>b n<a", "site 0", first="a")])
    by_name = {row.policy: row.strength for row in ranking.standings}
    assert by_name["n"].n == 7 and math.isnan(by_name["n"].low) and "one site" in by_name["n"].note
    assert all(by_name[name].low < by_name[name].value < by_name[name].high for name in NAMES)
    assert all(math.isnan(gap.p) == ("n" in (gap.a, gap.b)) for gap in ranking.differences)


def test_order_effect_that_cannot_be_told_is_not_reported():
    always_first = games_of("a>b a>b a<b", "x", "a") + games_of("a>b a<b a=b", "y", "a")
    first_wins = games_of("a>b b>a b>c c>b a>c c>a", "x", "a") * 2
    for rows in (always_first, first_wins):
        ranking = rank_policies(rows)
        assert ranking.order_effect.n == 0 and ranking.order_effect.note
        assert all(row.strength.n for row in ranking.standings)
    unknown = rank_policies([replace(row, first=None) for row in draw(200)])
    assert unknown.order_effect.n == 0 and "not known" in unknown.order_effect.note


def test_ranges_of_ranks_are_narrow_where_sites_agree():
    rows = draw(6000, taste=0.0, seed=3)
    ranking = rank_policies(rows)
    assert ranking.standings[0].ranks == (1, 1)
    assert rank_policies(rows[:60]).standings[0].ranks[1] > 1


def test_comparisons_are_checked():
    with pytest.raises(BadInput, match="two policies"):
        PairedComparison("a", "a", "tie", None, "x")
    with pytest.raises(BadInput, match="verdict"):
        PairedComparison("a", "b", "left", None, "x")
    with pytest.raises(BadInput, match="at least one policy"):
        rank_policies([])
