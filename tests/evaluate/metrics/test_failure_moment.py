"""The failure moment and instruction sensitivity."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.errors import BadInput
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.failure_moment import falls_at
from demerit.evaluate.metrics.ranking import diagonal_share, right_instruction

QUICK = Resampling(resamples=100)
check = settings(max_examples=50)
value = st.integers(-1, 8).map(lambda k: k / 8 if k >= 0 else math.nan)
curves = st.lists(st.tuples(st.integers(0, 30), value), min_size=1, max_size=15, unique_by=lambda row: row[0])


def look(frames, values, start, window, delta):
    """The definition, frame by frame."""
    of = dict(zip(frames, values, strict=True))
    before = [of[f] for f in range(start + 1) if f in of]
    inside = [(f, of[f]) for f in range(start, start + window + 1) if f in of]
    if not before or not inside:
        return "unseen"
    if any(math.isnan(v) for v in [*before, *(v for _, v in inside)]):
        return "unscored"
    peak = max(before)
    late = [f - start for f, v in inside if peak - v >= delta]
    return peak - min(v for _, v in inside), (late[0] if late else None)


@check
@given(curves, st.integers(0, 30), st.integers(0, 10), st.sampled_from([0.125, 0.25, 0.5]))
def test_falls_match_the_definition(rows, start, window, delta):
    frames, values = zip(*sorted(rows), strict=True)
    found = falls_at([values], [frames], [start], window=window, delta=delta)
    expected = look(frames, values, start, window, delta)
    if isinstance(expected, str):
        assert math.isnan(found.drop[0]) and math.isnan(found.caught[0])
        assert bool(found.unseen[0]) == (expected == "unseen")
        return
    drop, late = expected
    assert found.drop[0] == drop and found.caught[0] == (late is not None)
    assert found.latency[0] == late if late is not None else math.isnan(found.latency[0])
    others = [
        look(frames, values, f, window, delta)[1] is not None
        for f in frames
        if abs(f - start) > window
        and f + window <= frames[-1]
        and not any(math.isnan(v) for g, v in zip(frames, values, strict=True) if g <= f + window)
    ]
    assert found.placebo[0] == pytest.approx(np.mean(others) if others else math.nan, nan_ok=True)


def test_constant_and_clock_catch_nothing_and_the_placebo_exposes_a_falling_curve():
    frames, starts, clock = [list(range(60))] * 3, [20, 30, 25], np.linspace(0, 1, 60)
    for curve in (np.full(60, 0.7), clock):
        found = falls_at([curve] * 3, frames, starts, window=10, delta=0.05)
        assert not (found.caught.any() or found.placebo.any() or found.early.any()) and np.isnan(found.latency).all()
    back = falls_at([clock[::-1]] * 3, frames, starts, window=10, delta=0.05)
    assert back.caught.all() and back.early.all() and (back.placebo == 1).all()


def test_a_random_curve_catches_as_much_at_its_placebo():
    rng = np.random.default_rng(0)
    found = falls_at(list(rng.random((200, 40))), [range(40)] * 200, rng.integers(10, 20, 200), window=3, delta=0.6)
    assert found.caught.mean() == pytest.approx(np.nanmean(found.placebo), abs=0.08)


def test_invalid_windows_and_frames_are_refused():
    for values, frames, starts, window, delta in (
        ([1.0], [0], [0], -1, 0.1),
        ([1.0], [0], [0], 5, 0.0),
        ([1.0, 2.0], [3, 3], [0], 1, 0.1),
        ([1.0], [0], [0, 1], 1, 0.1),
    ):
        with pytest.raises(BadInput):
            falls_at([values], [frames], starts, window=window, delta=delta)
    assert falls_at([], [], [], window=1, delta=0.1).drop.shape == (0,)


@check
@given(st.integers(1, 6), st.integers(0, 1000))
def test_the_diagonal_share_in_a_loop(size, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(0, 4, (size, size)).astype(float)
    matrix[rng.random((size, size)) < 0.05] = np.nan
    found = diagonal_share(matrix).measure(QUICK)
    totals = [sum(matrix[i, j] for i in range(size)) for j in range(size)]
    shares = [matrix[j, j] / total for j, total in enumerate(totals) if total > 0]
    unscored, undefined = sum(map(math.isnan, totals)), totals.count(0)
    assert found.value == pytest.approx(np.mean(shares) if shares else math.nan, nan_ok=True)
    assert (found.n, found.unscored, found.undefined) == (len(shares), unscored, undefined)


def test_diagonal_share_of_perfect_and_blind_models():
    assert diagonal_share(np.eye(4)).measure(QUICK).value == 1.0
    assert diagonal_share(np.full((4, 4), 0.3)).measure(QUICK).value == pytest.approx(0.25)
    # columns are instructions: a video that everything rewards does not hide in its row
    assert diagonal_share([[1, 1], [0, 1]]).measure(QUICK).value == pytest.approx((1 + 0.5) / 2)
    for matrix in ([[-1.0]], [[1.0, 2.0]]):
        with pytest.raises(BadInput):
            diagonal_share(matrix)


@check
@given(st.lists(st.tuples(value, value), min_size=1, max_size=20))
def test_right_against_wrong_in_a_loop(rows):
    right, wrong = zip(*rows, strict=True)
    found = right_instruction(right, wrong).measure(QUICK)
    credit = [1.0 if r > w else 0.5 if r == w else 0.0 for r, w in rows if not math.isnan(r) and not math.isnan(w)]
    assert found.value == pytest.approx(np.mean(credit) if credit else math.nan, nan_ok=True)
    assert (found.n, found.ties, found.unscored) == (len(credit), credit.count(0.5), len(rows) - len(credit))
