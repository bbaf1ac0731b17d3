"""Intervals: resampling by weights is resampling by copies, and the intervals hold what they promise."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from demerit.errors import BadInput
from demerit.evaluate.metrics import Measure, Resampling, bootstrap, compare, holm
from demerit.evaluate.metrics.bootstrap import Tally, mean_tally, resampled_totals, two_sided, values_of
from demerit.evaluate.metrics.grades import group_wise_error
from demerit.evaluate.metrics.ranking import success_failure_gap
from demerit.evaluate.metrics.success import (
    auroc,
    average_precision,
    best_f1,
    brier,
    calibration_error,
    f1,
    over_reward,
)

QUICK = Resampling(resamples=200)
check = settings(max_examples=40)

BY_COPIES = {
    "mean": lambda v, y, c: mean_tally("mean", "episodes", v, c),
    "gap": lambda v, y, c: success_failure_gap(v, y, clusters=c),
    "auroc": lambda v, y, c: auroc(v, y, clusters=c),
    "ap": lambda v, y, c: average_precision(v, y, clusters=c),
    "ap of failure": lambda v, y, c: average_precision(v, y, positive="failure", clusters=c),
    "best f1": lambda v, y, c: best_f1(v, y, clusters=c),
    "f1": lambda v, y, c: f1(v, y, 0.4, clusters=c),
    "over-reward": lambda v, y, c: over_reward(v, y, clusters=c),
    "ece": lambda v, y, c: calibration_error(v, y, clusters=c),
    "brier": lambda v, y, c: brier(v, y, clusters=c),
    "group-wise": lambda v, y, c: group_wise_error(
        np.round(4 * v) + 1, 4 * y + 1, np.where(v > 0.5, "x", "y"), clusters=c
    ),
}


def point(tally: Tally) -> float:
    return float(values_of(tally.statistic, tally.codes, np.ones((1, len(tally.clusters))))[0]) if tally.n else math.nan


@pytest.mark.parametrize("name", BY_COPIES)
def test_weighting_clusters_is_the_same_as_copying_their_rows(name):
    rng = np.random.default_rng(5)
    make = BY_COPIES[name]
    for trial in range(25):
        n, size = int(rng.integers(6, 40)), int(rng.integers(2, 7))
        values = rng.integers(0, 6, n) / 5
        success = rng.integers(0, 2, n).astype(float)
        success[:2] = (0, 1)
        clusters = rng.integers(0, size, n)
        tally = make(values, success, clusters)
        counts = rng.multinomial(len(tally.clusters), np.full(len(tally.clusters), 1 / len(tally.clusters)))
        weighted = values_of(tally.statistic, tally.codes, counts[None, :].astype(float))[0]
        drawn = zip(tally.clusters, counts, strict=True)
        copies = np.concatenate([np.tile(np.flatnonzero(clusters == c), k) for c, k in drawn])
        expected = point(make(values[copies], success[copies], clusters[copies]))
        if name == "f1" and math.isnan(expected):
            assert math.isnan(weighted) or weighted == 0
        else:
            assert weighted == pytest.approx(expected, abs=1e-12, nan_ok=True), trial


@pytest.mark.parametrize("size", [5, 300])
def test_counts_are_multinomial(size):
    counts = np.concatenate(list(bootstrap.draws_of(np.ones(size), Resampling(resamples=4000, seed=3), size)))
    assert counts.shape == (4000, size) and (counts.sum(axis=1) == size).all()
    # a count is Binomial(size, 1/size)
    frequency = np.bincount(counts[:, 0].astype(int), minlength=6)[:6] / 4000
    assert np.allclose(frequency, stats.binom.pmf(np.arange(6), size, 1 / size), atol=0.03)
    assert np.cov(counts[:, 0], counts[:, 1])[0, 1] == pytest.approx(-1 / size, abs=0.06)


def test_merging_equal_clusters_keeps_the_distribution():
    credit = np.repeat([0.0, 0.5, 1.0], [200, 100, 700])
    parts = np.stack([credit, np.ones(1000)], axis=1)
    merged = resampled_totals(parts, np.arange(1000), 1000, Resampling(resamples=4000))[:, 0]
    noise = np.arange(1000) * 1e-9  # makes every cluster different, so nothing is merged
    noisy = parts + np.stack([noise, 0 * noise], axis=1)
    plain = resampled_totals(noisy, np.arange(1000), 1000, Resampling(resamples=4000))
    assert stats.ks_2samp(merged, np.round(plain[:, 0] * 2) / 2).pvalue > 0.01
    assert merged.var() == pytest.approx(1000 * credit.var(), rel=0.1)


def test_memory_and_blocks_change_nothing():
    rng = np.random.default_rng(0)
    for size in (20, 400):
        v, c = rng.normal(size=2000), rng.integers(0, size, 2000)
        y = (rng.random(2000) < 0.5).astype(float)
        for tally in (mean_tally("m", "rows", v, c), auroc(v, y, clusters=c)):
            large, small = (tally.measure(Resampling(resamples=50, memory=memory)) for memory in (2**26, 2000))
            assert (large.low, large.high) == pytest.approx((small.low, small.high), abs=1e-12)
            assert large == tally.measure(Resampling(resamples=50))
            assert large.low != tally.measure(Resampling(resamples=50, seed=1)).low


def test_the_interval_of_a_mean_agrees_with_scipy():
    v = np.random.default_rng(2).gamma(2.0, size=60)
    ours = mean_tally("m", "rows", v, None).measure(Resampling(resamples=5000))
    theirs = stats.bootstrap((v,), np.mean, n_resamples=5000, method="percentile", random_state=0).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.03)


def test_clustered_intervals_cover_and_row_intervals_do_not():
    rng = np.random.default_rng(8)
    how = Resampling(resamples=300, level=0.9)
    covered = {"clusters": 0, "rows": 0}
    for _ in range(150):
        task = np.repeat(np.arange(40), 5)
        v = rng.normal(size=40)[task] + 0.3 * rng.normal(size=200)
        for kind, labels in (("clusters", task), ("rows", None)):
            found = mean_tally("m", "rows", v, labels).measure(how)
            covered[kind] += found.low <= 0 <= found.high
    assert 0.82 <= covered["clusters"] / 150 <= 0.97
    assert covered["rows"] / 150 < 0.7


def test_one_cluster_has_no_interval_by_default():
    one = mean_tally("m", "rows", np.array([1.0, 2.0, 4.0]), ["t"] * 3)
    unknown, asked = one.measure(QUICK), one.measure(Resampling(resamples=200, alone="rows"))
    assert (unknown.value, unknown.clusters) == (pytest.approx(7 / 3), 1)
    assert math.isnan(unknown.low) and math.isnan(unknown.high) and unknown.note
    assert asked.low < asked.value < asked.high and asked.note


def test_undefined_resamples_are_skipped_and_counted():
    # one failure in one of three tasks: a resample without that task has no AUROC
    tally = auroc([0.1, 0.5, 0.6, 0.9], [0, 1, 1, 1], clusters=[0, 0, 1, 2])
    assert "left out" in tally.measure(QUICK).note
    assert all(math.isnan(end) for end in bootstrap.percentiles(np.array([np.nan, np.nan, 1.0]), 0.95))
    assert bootstrap.percentiles(np.array([np.nan, 1.0]), 0.95) == (1.0, 1.0)


def test_measure_needs_n_and_value_to_agree():
    for value, n in ((0.0, 0), (math.nan, 4)):
        with pytest.raises(BadInput, match="NaN"):
            Measure("m", value, 0.0, 0.0, n, 0)
    with pytest.raises(BadInput, match="resamples"):
        Resampling(resamples=0)


def test_paired_comparison_uses_the_same_resamples():
    rng = np.random.default_rng(4)
    task = np.repeat(np.arange(30), 6)
    base = rng.normal(size=30)[task]  # hard and easy tasks, the same for both models
    a, b = base + 0.2 + 0.1 * rng.normal(size=180), base + 0.1 * rng.normal(size=180)
    found = compare(lambda v: mean_tally("m", "rows", v, task), a, b, Resampling(resamples=2000))
    assert found.difference == pytest.approx(a.mean() - b.mean())
    assert found.low > 0.1 and found.high < 0.3 and found.p < 0.01
    # apart, the two intervals overlap: pairing is what shows the difference
    apart = [mean_tally("m", "rows", v, task).measure(QUICK) for v in (a, b)]
    assert apart[0].low < apart[1].high
    # the interval of the difference is that of the mean of differences
    direct = mean_tally("m", "rows", a - b, task).measure(Resampling(resamples=2000))
    assert (found.low, found.high) == (pytest.approx(direct.low), pytest.approx(direct.high))


def test_comparison_skips_rows_that_either_model_did_not_score():
    v = np.array([0.1, 0.4, np.nan, 0.9, 0.3])
    w = np.array([0.1, np.nan, 0.2, 0.9, 0.3])
    found = compare(lambda x: mean_tally("m", "rows", x, None), v, w, QUICK)
    assert (found.n, found.unscored, found.difference, found.p) == (3, 2, 0.0, 1.0)
    mixed = compare(lambda x: auroc(x, [0, 1, 0, 1, 0]), v, w, QUICK)
    assert mixed.difference == 0 and mixed.p == 1
    alone = compare(lambda x: mean_tally("m", "rows", x, ["t"] * 5), v, w, QUICK)
    assert math.isnan(alone.p) and math.isnan(alone.low)
    none = compare(lambda x: mean_tally("m", "rows", x, None), np.full(2, np.nan), np.zeros(2), QUICK)
    assert (none.n, none.unscored) == (0, 2) and math.isnan(none.difference)
    with pytest.raises(BadInput, match="same rows"):
        compare(lambda x: mean_tally("m", "rows", x, None), [1.0], [1.0, 2.0])


def test_the_p_value_of_no_difference_is_nearly_uniform():
    rng = np.random.default_rng(6)
    how = Resampling(resamples=300)
    pairs = rng.normal(size=(150, 2, 60))
    found = [compare(lambda v: mean_tally("m", "rows", v, None), *pair, how).p for pair in pairs]
    assert 0.01 <= np.mean(np.array(found) < 0.1) <= 0.2


def test_the_two_sided_p_is_twice_the_smaller_share():
    assert two_sided(np.array([-1.0] + [1.0] * 98)) == pytest.approx(2 * (1 + 1) / 100)
    assert two_sided(np.array([0.0] * 3 + [-1.0] * 96)) == pytest.approx(2 * (1 + 3) / 100)
    assert two_sided(np.ones(99)) == pytest.approx(0.02)  # never 0
    assert two_sided(np.array([0.0, np.nan])) == 1.0


@check
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_by_its_definition(p):
    names = [f"c{i}" for i in range(len(p))]
    found = holm(dict(zip(names, p, strict=True)))
    order = sorted(range(len(p)), key=lambda i: p[i])
    for place, i in enumerate(order):
        expected = max(min(1.0, (len(p) - j) * p[order[j]]) for j in range(place + 1))
        assert found[names[i]] == pytest.approx(expected)
    assert all(found[names[a]] <= found[names[b]] + 1e-12 for a, b in pairwise(order))


def test_holm_skips_unknown_comparisons():
    found = holm({"a": 0.02, "b": math.nan, "c": 0.04})
    assert found["a"] == 0.04 and found["c"] == 0.04 and math.isnan(found["b"])
    with pytest.raises(BadInput):
        holm({"a": 2.0})
