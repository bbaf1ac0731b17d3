"""MAE on grades, and the exactness of the fitted thresholds (against every possible set of cuts)."""

import math
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.errors import BadInput
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.grades import Thresholds, fit_thresholds, grade_by_range, grade_error, group_wise_error

QUICK = Resampling(resamples=100)
check = settings(max_examples=60)
grade = st.integers(1, 5).map(float)
maybe_grade = st.one_of(grade, st.just(math.nan))


def every_cut(values, truth, weights):
    """The least error over all monotone maps, by trying every one."""
    distinct = sorted(set(values))
    best = math.inf
    for assigned in combinations_with_replacement(range(1, 6), len(distinct)):
        of = dict(zip(distinct, assigned, strict=True))
        best = min(best, sum(w * abs(of[v] - g) for v, g, w in zip(values, truth, weights, strict=True)))
    return best


@check
@given(st.lists(st.tuples(st.integers(0, 5), grade, st.sampled_from("xy")), min_size=1, max_size=14))
def test_fitted_thresholds_are_optimal(rows):
    values, truth, subsets = zip(*rows, strict=True)
    plain = fit_thresholds(values, truth)
    assert plain.error == pytest.approx(every_cut(values, truth, [1 / len(rows)] * len(rows)))
    assert np.abs(plain.grade(values) - truth).mean() == pytest.approx(plain.error)
    wise = fit_thresholds(values, truth, subsets)
    weights = [1 / subsets.count(s) / len(set(subsets)) for s in subsets]
    assert wise.error == pytest.approx(every_cut(values, truth, weights))
    assert group_wise_error(wise.grade(values), truth, subsets).measure(QUICK).value == pytest.approx(wise.error)


def test_cuts_lie_half_way_between_values():
    assert fit_thresholds([0.0, 1.0], [1, 5]).cuts == (0.5, 0.5, 0.5, 0.5)
    assert fit_thresholds([0.0, 1.0], [2, 4]).cuts == (-math.inf, 0.5, 0.5, math.inf)
    low = 0.1
    high = float(np.nextafter(low, 1))
    assert fit_thresholds([low, high], [1, 5]).grade([low, high]).tolist() == [1, 5]


def test_fitting_skips_unknown_rows():
    fitted = fit_thresholds([0.0, math.nan, 1.0, 0.5], [1, 5, 5, math.nan])
    assert (fitted.n, fitted.error) == (2, 0.0)
    assert np.array_equal(fitted.grade([math.nan, 1.0]), [math.nan, 5.0], equal_nan=True)
    with pytest.raises(BadInput, match="one"):
        fit_thresholds([math.nan], [3])
    with pytest.raises(BadInput, match="fall"):
        Thresholds((3.0, 2.0, 4.0, 5.0), 0.0, 1)


@check
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(-5, 5), st.floats(0.5, 5))
def test_grade_by_range_rounds(shares, low, width):
    values = [low + width * p for p in shares]
    found = grade_by_range(values, low, low + width)
    exact = [1 + 4 * (v - low) / ((low + width) - low) for v in values]
    assert all(abs(f - e) <= 0.5 + 1e-9 and 1 <= f <= 5 and f == int(f) for f, e in zip(found, exact, strict=True))


def test_grades_by_range_at_the_edges():
    assert grade_by_range([0, 0.124, 0.125, 0.5, 0.874, 0.875, 1], 0, 1).tolist() == [1, 1, 2, 3, 4, 5, 5]
    assert math.isnan(grade_by_range([math.nan], 0, 1)[0])
    with pytest.raises(BadInput, match="fit_thresholds"):
        grade_by_range([0.5], None, 1.0)
    with pytest.raises(BadInput, match="from 0 to 1"):
        grade_by_range([1.5], 0, 1)


@check
@given(st.lists(st.tuples(maybe_grade, maybe_grade, st.sampled_from("xyz")), min_size=1, max_size=25))
def test_grade_errors_in_a_loop(rows):
    predicted, truth, subsets = zip(*rows, strict=True)
    inside = {}
    for p, t, s in rows:
        if not math.isnan(p) and not math.isnan(t):
            inside.setdefault(s, []).append(abs(p - t))
    flat = [e for errors in inside.values() for e in errors]
    unscored = sum(not math.isnan(t) and math.isnan(p) for p, t, _ in rows)
    plain = grade_error(predicted, truth).measure(QUICK)
    assert plain.value == pytest.approx(np.mean(flat) if flat else math.nan, nan_ok=True)
    assert (plain.n, plain.unscored) == (len(flat), unscored)
    wise = group_wise_error(predicted, truth, subsets).measure(QUICK)
    expected = np.mean([np.mean(errors) for errors in inside.values()]) if flat else math.nan
    assert wise.value == pytest.approx(expected, nan_ok=True)
    assert (wise.n, wise.unscored) == (len(flat), unscored)


def test_unscored_subset_is_counted_and_a_grade_outside_the_scale_is_refused():
    found = group_wise_error([1, math.nan], [1, 3], ["x", "y"]).measure(QUICK)
    assert found.counts["unscored subsets"] == 1
    with pytest.raises(BadInput, match="from 1 to 5"):
        grade_error([1], [0])
