"""Success detection and calibration, each against a plain loop over its definition."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from demerit.errors import BadInput
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.success import (
    auroc,
    average_precision,
    best_f1,
    brier,
    calibration_error,
    f1,
    false_positive_rate,
    over_reward,
    over_reward_above,
    reliability,
)

QUICK = Resampling(resamples=100)
check = settings(max_examples=150)
score = st.one_of(st.integers(0, 4).map(lambda k: k / 4), st.just(math.nan))
episodes = st.lists(st.tuples(score, st.sampled_from([0, 1, None])), min_size=1, max_size=25)


def known(rows):
    kept = [(v, s) for v, s in rows if not math.isnan(v) and s is not None]
    return [v for v, s in kept if s], [v for v, s in kept if not s]


def f1_in_a_loop(good, bad, cut, positive):
    if positive == "success":
        tp, fp, fn = sum(v >= cut for v in good), sum(v >= cut for v in bad), sum(v < cut for v in good)
    else:
        tp, fp, fn = sum(v < cut for v in bad), sum(v < cut for v in good), sum(v >= cut for v in bad)
    return 2 * tp / (2 * tp + fp + fn) if tp + fp + fn else math.nan


@check
@given(episodes)
def test_auroc_counts_pairs(rows):
    good, bad = known(rows)
    found = auroc(*zip(*rows, strict=True)).measure(QUICK)
    pairs = [1.0 if g > b else 0.5 if g == b else 0.0 for g, b in product(good, bad)]
    assert found.value == pytest.approx(np.mean(pairs) if pairs else math.nan, nan_ok=True)
    assert found.unscored == sum(math.isnan(v) and s is not None for v, s in rows)
    if pairs:
        assert found.ties == pairs.count(0.5)
        by_scipy = stats.mannwhitneyu(good, bad, method="asymptotic").statistic if len({*good, *bad}) > 1 else None
        assert by_scipy is None or found.value == pytest.approx(by_scipy / len(pairs))


@check
@given(episodes, st.sampled_from(["success", "failure"]))
def test_average_precision_and_f1_threshold_by_threshold(rows, positive):
    good, bad = known(rows)
    scores, success = zip(*rows, strict=True)
    ap = average_precision(scores, success, positive=positive).measure(QUICK)
    best = best_f1(scores, success, positive=positive).measure(QUICK)
    if not good or not bad:
        assert ap.n == best.n == 0 and math.isnan(ap.value)
        return
    wanted, other = (good, bad) if positive == "success" else ([-v for v in bad], [-v for v in good])
    total = recall = 0.0
    for cut in sorted({*wanted, *other}, reverse=True):
        hits, alarms = sum(v >= cut for v in wanted), sum(v >= cut for v in other)
        total += (hits / len(wanted) - recall) * hits / (hits + alarms)
        recall = hits / len(wanted)
    assert ap.value == pytest.approx(total)
    cuts = [*good, *bad, 2.0]
    assert best.value == pytest.approx(np.nanmax([f1_in_a_loop(good, bad, c, positive) for c in cuts]))
    for cut in (0.25, 0.6):
        found = f1(scores, success, cut, positive=positive).measure(QUICK)
        assert found.value == pytest.approx(f1_in_a_loop(good, bad, cut, positive), nan_ok=True)
        assert found.known is False or found.value <= best.value + 1e-12


@check
@given(episodes)
def test_over_reward_in_a_loop(rows):
    good, bad = known(rows)
    found = over_reward(*zip(*rows, strict=True)).measure(QUICK)
    expected = np.mean(np.array(bad) >= np.median(good)) if good and bad else math.nan
    assert found.value == pytest.approx(expected, nan_ok=True)
    assert found.unscored == sum(math.isnan(v) and s == 0 for v, s in rows)
    rate = false_positive_rate(*zip(*rows, strict=True), 0.5).measure(QUICK)
    assert rate.value == pytest.approx(np.mean(np.array(bad) >= 0.5) if bad else math.nan, nan_ok=True)
    assert rate.n == len(bad)
    above = over_reward_above(*zip(*rows, strict=True), 0.5).measure(QUICK)
    assert above.value == pytest.approx(np.mean(np.array(bad) > 0.5) if bad else math.nan, nan_ok=True)
    assert (above.n, above.unscored) == (len(bad), found.unscored)
    assert above.counts["successes above"] == sum(v > 0.5 for v in good)


def test_absolute_over_reward_sees_what_the_relative_one_hides():
    success = np.arange(200) % 2
    high = np.where(success, 0.98, 0.93)  # all failures nearly a success
    assert over_reward(high, success).measure(QUICK).value == 0.0
    assert over_reward_above(high, success, 0.5).measure(QUICK).value == 1.0
    for constant in (0.0, 0.5, 1.0):  # a constant cannot be right about both sides
        found = over_reward_above(np.full(200, constant), success, 0.5).measure(QUICK)
        assert (found.value, found.counts["successes above"]) == ((1.0, 100) if constant > 0.5 else (0.0, 0))
    shuffled = np.random.default_rng(0).permutation(success)  # without knowledge failures and successes pass alike
    found = over_reward_above(np.where(success, 0.9, 0.1), shuffled, 0.5).measure(QUICK)
    assert found.value == pytest.approx(found.counts["successes above"] / 100, abs=0.15)


@check
@given(episodes, st.integers(1, 7))
def test_calibration_in_a_loop(rows, bins):
    p, success = zip(*rows, strict=True)
    pairs = [(v, s) for v, s in rows if not math.isnan(v) and s is not None]
    found = calibration_error(p, success, bins=bins).measure(QUICK)
    diagram = reliability(p, success, bins=bins, resampling=QUICK)
    edges = diagram.edges
    total = 0.0
    for i in range(len(edges) - 1):
        last = i == len(edges) - 2
        inside = [(v, s) for v, s in pairs if edges[i] <= v < edges[i + 1] or (last and v == edges[i + 1])]
        assert diagram.count[i] == len(inside)
        if inside:
            means = np.mean(inside, axis=0)
            assert diagram.predicted[i] == pytest.approx(means[0]) and diagram.observed[i] == pytest.approx(means[1])
            total += len(inside) / len(pairs) * abs(means[0] - means[1])
        else:
            assert math.isnan(diagram.observed[i])
    assert diagram.count.sum() == len(pairs) == found.n
    assert found.value == pytest.approx(total if pairs else math.nan, nan_ok=True)
    score = brier(p, success).measure(QUICK)
    assert score.value == pytest.approx(np.mean([(v - s) ** 2 for v, s in pairs]) if pairs else math.nan, nan_ok=True)


def test_calibration_error_finds_overconfidence():
    rng = np.random.default_rng(3)
    p = rng.random(4000)
    success = rng.random(4000) < p
    assert calibration_error(p, success).measure(QUICK).value < 0.03
    diagram = reliability(p, success, resampling=QUICK)
    assert ((diagram.low <= diagram.predicted) & (diagram.predicted <= diagram.high)).sum() >= 8
    assert calibration_error(np.sqrt(p), success).measure(QUICK).value == pytest.approx(1 / 6, abs=0.02)
    assert brier(p, success).measure(QUICK).value == pytest.approx(1 / 6, abs=0.01)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: brier([1.5], [1]), "from 0 to 1"),
        (lambda: auroc([1.0], [2]), "true, false"),
        (lambda: calibration_error([0.5], [1], bins=0), "at least 1"),
        (lambda: best_f1([0.1, 0.2], [0, 1], positive="x"), "'failure'"),
    ],
)
def test_invalid_inputs_are_refused(call, word):
    with pytest.raises(BadInput, match=word):
        call()
