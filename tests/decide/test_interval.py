"""The interval of a share, against scipy; its text and its JSON."""

import math

import pytest
from scipy.stats import binomtest

from demerit.decide.interval import Share


@pytest.mark.parametrize(("hits", "n"), [(0, 1), (0, 20), (3, 10), (10, 10), (57, 90), (1, 1000)])
def test_the_interval_of_a_count_is_wilsons_as_scipy_computes_it(hits: int, n: int) -> None:
    theirs = binomtest(hits, n).proportion_ci(method="wilson")
    share = Share.count(hits, n)
    assert (share.low, share.high) == (pytest.approx(theirs.low), pytest.approx(theirs.high))
    assert (share.value, share.hits, share.n) == (hits / n, hits, n)


def test_of_nothing_the_share_is_unknown_and_may_be_anything() -> None:
    share = Share.count(0, 0)
    assert math.isnan(share.value) and (share.low, share.high, share.hits) == (0, 1, 0)
    assert str(share) == "unknown"
    assert share.as_dict() == {"value": None, "low": 0, "high": 1, "hits": 0, "n": 0}


def test_an_estimate_says_no_count_and_a_difference_is_in_points() -> None:
    assert str(Share.count(3, 20)) == "15% (95%: 5 to 36), 3 of 20"
    estimate = Share.around(0.5, 20.5)
    assert str(estimate) == "50% (95%: 30 to 70)"
    assert estimate.as_dict() == {"value": 0.5, "low": 0.30137, "high": 0.69863}
    assert str(Share.difference(-0.1, -0.3, 0.1)) == "−10 points (95%: −30 to 10)"


def test_intervals_stay_within_their_range() -> None:
    assert Share.around(1.0, 20.5).high == 1
    assert Share.difference(-0.98, -1.2, -0.8).low == -1
