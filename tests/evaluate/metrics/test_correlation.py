"""VOC and Kendall's tau against scipy; what is undefined stays undefined."""

import math
from itertools import combinations
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from demerit.errors import BadInput
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.ranking import (
    LEVELS,
    Variant,
    count_pairs,
    kendall_tau,
    pearson,
    spearman,
    success_failure_gap,
    value_order_correlation,
)

QUICK = Resampling(resamples=100)
check = settings(max_examples=80)
curve = st.lists(st.one_of(st.integers(-3, 3).map(float), st.floats(-100, 100)), min_size=2, max_size=20)


@check
@given(st.lists(st.tuples(st.integers(-4, 4), st.floats(-10, 10)), min_size=2, max_size=25))
def test_correlations_match_scipy(rows):
    x, y = (np.array(v, dtype=float) for v in zip(*rows, strict=True))
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert math.isnan(pearson(x, y)) and math.isnan(spearman(x, y))
    else:
        if np.ptp(y) > 1e-6:  # scipy itself warns of a nearly constant input
            assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-6)
        assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-9)


@check
@given(st.lists(curve, min_size=1, max_size=6))
def test_voc_is_the_mean_over_defined_episodes(curves):
    for method, rank in (("pearson", np.array), ("spearman", stats.rankdata)):
        defined = [rank(values) for values in curves if len(set(values)) > 1]
        expected = [np.corrcoef(values / np.ptp(values), np.arange(len(values)))[0, 1] for values in defined]
        found = value_order_correlation(curves, method=method).measure(QUICK)
        assert found.value == pytest.approx(np.mean(expected) if expected else math.nan, abs=1e-6, nan_ok=True)
        assert (found.n, found.undefined, found.unscored) == (len(expected), len(curves) - len(expected), 0)
        assert found.name == f"voc_{method}"


def test_constant_is_undefined_and_a_gap_is_unscored():
    curves = [[0.5, 0.5, 0.5], [0.0, math.nan, 1.0], [], [1.0], [0.0, 0.5, 1.0]]
    found = value_order_correlation(curves).measure(QUICK)
    assert (found.value, found.n, found.undefined, found.unscored) == (pytest.approx(1.0), 1, 2, 2)
    nothing = value_order_correlation(curves[:4]).measure(QUICK)
    assert math.isnan(nothing.value) and nothing.n == 0
    # a constant that rounding makes look alive
    assert math.isnan(pearson([0.1] * 10, np.arange(10)))


def test_reversed_and_shuffled_frames_use_true_time():
    length = 12
    back, mixed = np.arange(length)[::-1], np.random.default_rng(0).permutation(length)
    for times, shown in ((back, "reversed"), (mixed, "shuffled")):
        looks = value_order_correlation([times / 11], [times], shown=shown).measure(QUICK)
        assert looks.value == pytest.approx(1.0) and looks.name == f"voc_pearson_{shown}"
    clock = np.linspace(0, 1, length)
    assert value_order_correlation([clock], [back], shown="reversed").measure(QUICK).value == pytest.approx(-1.0)
    with pytest.raises(BadInput, match="true time"):
        value_order_correlation([clock], shown="shuffled")


def test_correlation_ignores_scale():
    v = np.random.default_rng(1).normal(size=30)
    for scale in (1e-200, 1e200):
        assert pearson(v, np.arange(30)) == pytest.approx(pearson(scale * v, np.arange(30)))


ranked = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 1.0, 2.0])), min_size=2, max_size=20)


@check
@given(ranked)
def test_tau_matches_scipy(rows):
    values, levels = zip(*rows, strict=True)
    tau = {v: kendall_tau(values, levels, ["one"] * len(rows), variant=v).measure().value for v in get_args(Variant)}
    signs = [np.sign(a[0] - b[0]) * np.sign(a[1] - b[1]) for a, b in combinations(rows, 2)]
    counted = count_pairs(np.array(values, float), np.array(levels))
    assert counted == (signs.count(1), signs.count(-1))
    n, strict = len(rows), sum(a[1] != b[1] for a, b in combinations(rows, 2))
    if not strict:
        assert all(map(math.isnan, tau.values()))
        return
    assert tau["tau_a"] == pytest.approx(sum(signs) / (n * (n - 1) / 2))
    expected = stats.somersd(levels, values).statistic if len(set(values)) > 1 else 0.0
    assert tau["ordered"] == pytest.approx(expected)
    expected = stats.kendalltau(values, levels, variant="b").statistic if len(set(values)) > 1 else math.nan
    assert tau["tau_b"] == pytest.approx(expected, nan_ok=True)


def test_tau_is_computed_within_tasks():
    values = [0, 1, 2, 5, 5, 9, 8, 7]
    levels = [0, 1, 2, 0, 2, 0, 2, math.nan]
    tasks = list("ppp") + list("qq") + list("rrr")
    a = kendall_tau(values, levels, tasks).measure(QUICK)
    assert (a.value, a.n) == (pytest.approx((1 + 0 - 1) / 3), 3)
    b = kendall_tau(values, levels, tasks, variant="tau_b").measure(QUICK)
    assert (b.value, b.n, b.undefined) == (pytest.approx(0.0), 2, 1)
    gone = kendall_tau([0, 1, math.nan], [0, 1, 2], ["p", "p", "p"]).measure(QUICK)
    assert gone.n == 1 and gone.counts["unscored episodes"] == 1
    lost = kendall_tau([0, math.nan, 3], [0, 1, 2], ["p", "p", "q"]).measure(QUICK)
    assert (lost.n, lost.unscored) == (0, 1)
    assert LEVELS["failed"] < LEVELS["suboptimal"] < LEVELS["successful"]
    with pytest.raises(BadInput, match="tau_a"):
        kendall_tau([1], [1], ["p"], variant="c")


score = st.one_of(st.floats(-5, 5), st.just(math.nan))


@check
@given(st.lists(st.tuples(score, st.sampled_from([0, 1, None])), min_size=1, max_size=20))
def test_success_failure_gap_in_a_loop(rows):
    good = [v for v, s in rows if s == 1 and not math.isnan(v)]
    bad = [v for v, s in rows if s == 0 and not math.isnan(v)]
    found = success_failure_gap(*zip(*rows, strict=True)).measure(QUICK)
    expected = np.mean(good) - np.mean(bad) if good and bad else math.nan
    assert found.value == pytest.approx(expected, nan_ok=True)
    assert found.unscored == sum(math.isnan(v) and s is not None for v, s in rows)
