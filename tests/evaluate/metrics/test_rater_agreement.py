"""Kappa and alpha: published examples, a second computation pair by pair, and raters that answer at random."""

import math
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.errors import BadInput
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.rater_agreement import cohen_kappa, krippendorff_alpha

QUICK = Resampling(resamples=200)
check = settings(max_examples=60)
grade = st.integers(1, 5)
METRICS = ("nominal", "ordinal", "interval")


def table(text):
    """Read one line per rater, "." for a missing answer; return one row per item."""
    raters = [[None if word == "." else int(word) for word in line.split()] for line in text.strip().splitlines()]
    return list(zip(*raters, strict=True))


# Krippendorff, "Computing Krippendorff's alpha-reliability" (2011): four observers, twelve units
FOUR = table("""
1 2 3 3 2 1 4 1 2 . . .
1 2 3 3 2 2 4 1 2 5 . 3
. 3 3 3 2 3 4 2 2 5 1 .
1 2 3 3 2 4 4 1 2 5 1 .
""")
# the example of Wikipedia's article on Krippendorff's alpha: three observers, fifteen units
THREE = table("""
. . . . . 3 4 1 2 1 1 3 3 . 3
1 . 2 1 3 3 4 3 . . . . . . .
. . 2 1 3 4 4 . 2 1 1 3 3 . 4
""")


def test_alpha_of_published_examples():
    for metric, expected in (("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)):
        found = krippendorff_alpha(FOUR, metric).measure(QUICK)
        assert found.value == pytest.approx(expected, abs=5e-4)
        assert (found.n, found.unscored) == (11, 1)
        assert found.low < found.value < found.high <= 1
    for metric, expected in (("nominal", 0.691), ("interval", 0.811)):
        found = krippendorff_alpha(THREE, metric).measure(QUICK)
        assert found.value == pytest.approx(expected, abs=5e-4)
        assert (found.n, found.unscored) == (12, 3)


@pytest.mark.parametrize(
    ("cells", "kappa"), [((20, 5, 10, 15), 0.4), ((45, 15, 25, 15), 0.1304), ((25, 35, 5, 35), 0.2593)]
)
def test_kappa_of_published_examples(cells, kappa):
    answers = list(zip(cells, product(["yes", "no"], repeat=2), strict=True))
    first, second = zip(*(pair for count, pair in answers for _ in range(count)), strict=True)
    assert cohen_kappa(first, second).measure(QUICK).value == pytest.approx(kappa, abs=5e-5)
    # with two answers all weights are the same
    as_numbers = [[float(answer == "yes") for answer in column] for column in (first, second)]
    assert cohen_kappa(*as_numbers, "quadratic").measure(QUICK).value == pytest.approx(kappa, abs=5e-5)


def count_kappa(pairs, difference):
    """Observed over expected disagreement: the mean over items, and over all pairs of an answer of each rater."""
    observed = np.mean([difference(x, y) for x, y in pairs])
    expected = np.mean([difference(x, y) for (x, _), (_, y) in product(pairs, repeat=2)])
    return 1 - observed / expected if expected else math.nan


@check
@given(st.lists(st.tuples(grade, grade), min_size=1, max_size=15))
def test_kappa_pair_by_pair(pairs):
    first, second = zip(*pairs, strict=True)
    plain, quadratic = cohen_kappa(first, second).measure(QUICK), cohen_kappa(first, second, "quadratic").measure(QUICK)
    assert plain.value == pytest.approx(count_kappa(pairs, lambda x, y: x != y), nan_ok=True)
    assert quadratic.value == pytest.approx(count_kappa(pairs, lambda x, y: (x - y) ** 2), nan_ok=True)
    assert plain.undefined == (len(pairs) if math.isnan(plain.value) else 0)


def count_alpha(items, metric):
    """Alpha without a coincidence matrix: the mean difference of pairs within items, over that of any two answers."""
    items = [[v for v in row if v is not None] for row in items]
    items = [row for row in items if len(row) > 1]
    pool = [v for row in items for v in row]

    def difference(c, k):
        if metric == "ordinal":
            low, high = sorted((c, k))
            return (sum(low <= v <= high for v in pool) - (pool.count(c) + pool.count(k)) / 2) ** 2
        return (c - k) ** 2 if metric == "interval" else float(c != k)

    observed = sum(sum(difference(*two) for two in permutations(row, 2)) / (len(row) - 1) for row in items)
    expected = sum(difference(*two) for two in permutations(pool, 2))
    return 1 - observed * (len(pool) - 1) / expected if expected else math.nan


@check
@given(st.lists(st.lists(st.one_of(grade, st.none()), min_size=3, max_size=3), min_size=1, max_size=12))
def test_alpha_pair_by_pair(items):
    for metric in METRICS:
        found = krippendorff_alpha(items, metric).measure(QUICK)
        assert found.value == pytest.approx(count_alpha(items, metric), nan_ok=True)
        assert found.n + found.undefined + found.unscored == len(items)


@check
@given(st.lists(st.tuples(grade, grade), min_size=3, max_size=15), st.randoms(use_true_random=False))
def test_order_of_items_and_raters_changes_nothing(pairs, random):
    shuffled = random.sample(pairs, len(pairs))
    for metric in METRICS:
        one, other = krippendorff_alpha(pairs, metric), krippendorff_alpha([pair[::-1] for pair in shuffled], metric)
        assert one.measure(QUICK).value == pytest.approx(other.measure(QUICK).value, nan_ok=True)
    one, other = cohen_kappa(*zip(*pairs, strict=True)), cohen_kappa(*zip(*(p[::-1] for p in shuffled), strict=True))
    assert one.measure(QUICK).value == pytest.approx(other.measure(QUICK).value, nan_ok=True)


def test_random_raters_agree_by_chance_and_full_agreement_is_one():
    rng = np.random.default_rng(0)
    random, same = rng.integers(1, 6, (2000, 3)), np.repeat(rng.integers(1, 6, (50, 1)), 3, axis=1)
    for metric in METRICS:
        found = krippendorff_alpha(random.tolist(), metric).measure(QUICK)
        assert abs(found.value) < 0.04 and found.low < 0 < found.high
        assert krippendorff_alpha(same.tolist(), metric).measure(QUICK).value == 1
    for weights in ("none", "quadratic"):
        found = cohen_kappa(random[:, 0].tolist(), random[:, 1].tolist(), weights).measure(QUICK)
        assert abs(found.value) < 0.06 and found.low < 0 < found.high
        assert cohen_kappa(same[:, 0].tolist(), same[:, 1].tolist(), weights).measure(QUICK).value == 1


def test_intervals_cover_the_truth():
    """Two raters who both copy the true answer with probability 0.8, else guess: kappa and alpha are 0.64."""
    rng, hits = np.random.default_rng(1), {"kappa": 0, "alpha": 0}
    for _ in range(200):
        truth, guess = rng.integers(0, 4, (80, 1)), rng.integers(0, 4, (80, 2))
        rows = np.where(rng.random((80, 2)) < 0.8, truth, guess)
        found = {"kappa": cohen_kappa(*rows.T.tolist()), "alpha": krippendorff_alpha(rows.tolist())}
        for name, tally in found.items():
            measure = tally.measure(QUICK)
            hits[name] += measure.low <= 0.64 <= measure.high
    assert 180 <= min(hits.values()) <= max(hits.values()) <= 200  # 95% of 200, percentile intervals a little below


def test_undefined_missing_and_refused():
    constant = cohen_kappa([1, 1, None], [1, 1, 1]).measure(QUICK)
    assert math.isnan(constant.value) and (constant.n, constant.undefined, constant.unscored) == (0, 2, 1)
    for metric in METRICS:
        found = krippendorff_alpha([[2, 2], [2, 2]], metric).measure(QUICK)
        assert math.isnan(found.value) and found.undefined == 2
        assert krippendorff_alpha([[2, None], [None, 3]], metric).measure(QUICK).unscored == 2
        assert krippendorff_alpha([], metric).measure(QUICK).n == 0
    assert cohen_kappa([1.0, math.nan, 2.0], [1.0, 2.0, 1.0]).measure(QUICK).unscored == 1
    assert krippendorff_alpha([["ok", "ok"], ["bad", "ok"], ["bad", "bad"]]).measure(QUICK).n == 3
    with pytest.raises(BadInput, match="one length"):
        krippendorff_alpha([[1, 2], [1]])
    with pytest.raises(BadInput, match="one number per row"):
        cohen_kappa(["good"], ["bad"], "quadratic")


def test_items_of_one_task_are_resampled_together():
    rows = [[1, 1], [1, 2], [2, 2], [3, 3]] * 10
    alone = krippendorff_alpha(rows).measure(QUICK)
    together = krippendorff_alpha(rows, clusters=[i % 4 for i in range(40)]).measure(QUICK)
    assert together.clusters == 4 and together.value == alone.value
    assert together.high - together.low > alone.high - alone.low
