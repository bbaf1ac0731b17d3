"""The answer to "is it good enough?", from held-out figures alone."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from demerit.evaluate.metrics.verdict import Answer, ControlVerdict
from demerit.training.teach.trust import (
    BAR,
    MOST,
    PRIOR_AUROC,
    PRIOR_WEIGHT,
    HeldOutEvidence,
    TrustAnswer,
    auroc_variance,
    bound_auroc,
    count_more,
    decide_trust,
    fit_curve,
    gather_evidence,
)
from demerit.training.teach.validate import CurvePoint


def against_controls(answer: Answer) -> ControlVerdict:
    return ControlVerdict("m", "auroc", answer, "change", 0.97, 0.9, 0.07, 0.0, 0.1, 7, 40, more=15)


@pytest.mark.parametrize(
    ("area", "each", "kind"),
    [
        (1.0, 2, "not yet measurable"),
        (math.nan, 9, "not yet measurable"),
        (1.0, 3, "label more"),
        (1.0, 5, "label more"),
        (0.99, 10, "trust it"),
        (0.95, 20, "trust it"),
        (0.85, 20, "label more"),
        (0.5, 20, "this camera cannot see it"),
        (0.5, 5, "label more"),
    ],
)
def test_the_answer_needs_both_a_high_figure_and_enough_recordings(area: float, each: int, kind: str) -> None:
    found = decide_trust([HeldOutEvidence(area, each, each)], against_controls("better"))
    assert found.kind == kind
    assert (found.more is not None) == (kind == "label more")


@pytest.mark.parametrize(("successes", "failures"), [(10, 0), (0, 10), (10, 1), (2, 10)])
def test_one_sided_lessons_are_never_trusted(successes: int, failures: int) -> None:
    assert decide_trust([HeldOutEvidence(1.0, successes, failures)], None).kind == "not yet measurable"


@pytest.mark.parametrize("answer", ["no evidence yet", "not better"])
def test_a_model_that_does_not_beat_the_controls_is_not_trusted(answer: Answer) -> None:
    found = decide_trust([HeldOutEvidence(0.99, 20, 20)], against_controls(answer))
    assert (found.kind, found.more) == ("label more", 15)


@pytest.mark.parametrize(
    ("unlabelled", "headline"),
    [
        (None, "Label about 90 more"),
        (200, "Label about 90 more"),
        (13, "Label all 13 left, and record about 77 more"),
        (0, "Record and label about 90 more"),
    ],
)
def test_no_more_labels_are_asked_for_than_there_are_episodes(unlabelled: int | None, headline: str) -> None:
    answer = TrustAnswer("label more", "it is early", 0.8, 0.6, 90, unlabelled)
    assert answer.headline == headline
    assert TrustAnswer.from_dict(answer.as_dict()) == answer


def test_the_worse_of_two_looks_decides() -> None:
    good, poor, empty = HeldOutEvidence(0.99, 20, 20), HeldOutEvidence(0.8, 20, 20), HeldOutEvidence(math.nan, 9, 0)
    assert decide_trust([good, poor], against_controls("better")).auroc == 0.8
    assert decide_trust([good, empty], against_controls("better")).kind == "not yet measurable"
    assert decide_trust([good, good], against_controls("better")).kind == "trust it"


@settings(max_examples=25)
@given(st.floats(0.02, 0.98), st.integers(3, 60), st.integers(3, 60), st.sampled_from([0.1, 0.5, 0.9]))
def test_bounds_equal_those_of_a_beta_distribution(area: float, good: int, bad: int, quantile: float) -> None:
    smooth = (area * min(good, bad) + PRIOR_AUROC) / (min(good, bad) + 1)
    seen = smooth * (1 - smooth) / auroc_variance(smooth, good, bad)
    above, below = PRIOR_WEIGHT * PRIOR_AUROC + seen * area, PRIOR_WEIGHT * (1 - PRIOR_AUROC) + seen * (1 - area)
    assert bound_auroc(area, good, bad, quantile) == pytest.approx(stats.beta.ppf(quantile, above, below), abs=3e-3)


def test_the_variance_of_an_auroc_equals_a_simulation() -> None:
    rng = np.random.default_rng(0)
    good, bad = rng.exponential(4, (4000, 12, 1)), rng.exponential(1, (4000, 1, 9))  # the model behind the formula
    areas = (good > bad).mean(axis=(1, 2))
    assert areas.var() == pytest.approx(auroc_variance(4 / 5, 12, 9), rel=0.15)


def test_fewer_labels_are_asked_for_when_the_curve_rises() -> None:
    now = HeldOutEvidence(0.8, 8, 8)
    rising = [CurvePoint(2, 0.5, 0.0), CurvePoint(4, 0.6, 0.0), CurvePoint(8, 0.72, 0.0)]
    flat = [CurvePoint(size, 0.8, 0.0) for size in (2, 4, 8)]
    few, many = (count_more(16, *fit_curve(now, curve)) for curve in (rising, flat))
    assert few is not None and few < 3 * 16 and (many is None or few < many)
    slope, level = fit_curve(now, rising)
    area = 1 - math.exp(level - slope * math.log(16 + few))
    assert bound_auroc(area, 8 + few // 2, 8 + few // 2, 0.1) >= BAR


def make_curve(*areas: float) -> list[CurvePoint]:
    return [CurvePoint(2 ** (i + 1), area, math.nan) for i, area in enumerate(areas)]


@pytest.mark.parametrize(("area", "each"), [(0.6, 5), (0.5, 5), (0.82, 12), (1.0, 3), (0.75, 100)])
def test_no_more_labels_are_asked_for_than_the_curve_can_show(area: float, each: int) -> None:
    found = decide_trust([HeldOutEvidence(area, each, each)], None, make_curve(0.4, 0.5))
    assert found.more is not None and 0 < found.more <= min(3 * 2 * each, MOST)


def test_where_the_end_is_not_in_sight_as_many_again_are_asked_for() -> None:
    found = decide_trust([HeldOutEvidence(0.6, 5, 5)], None, make_curve(0.62, 0.55))
    assert (found.kind, found.more) == ("label more", 10) and "then look again" in found.reason
    assert "then look again" not in decide_trust([HeldOutEvidence(0.95, 8, 8)], None, make_curve(0.6, 0.7, 0.8)).reason


def test_a_flat_curve_of_enough_recordings_asks_for_something_else() -> None:
    now = HeldOutEvidence(0.76, 14, 14)
    flat, rising = (decide_trust([now], None, make_curve(*areas)) for areas in ((0.74, 0.77, 0.76), (0.5, 0.6, 0.7)))
    assert (flat.kind, flat.more) == ("more labels will not help", None)
    assert flat.title.startswith("More labels will not help: ") and "another camera" in flat.reason
    assert "moments marked" in flat.reason
    assert rising.kind == "label more" and rising.more is not None
    few = decide_trust([HeldOutEvidence(0.76, 8, 8)], None, make_curve(0.74, 0.77, 0.76))
    assert few.kind == "label more"  # eight of each are too few to call a curve flat
    assert TrustAnswer.from_dict(flat.as_dict()) == flat
    good = decide_trust([HeldOutEvidence(0.9, 10, 10)], None, make_curve(0.9, 0.9, 0.9))
    assert good.kind == "label more"  # no better with more labels, but surer


def test_a_group_counts_once() -> None:
    values, success = np.array([0.9, 0.8, 0.7, 0.1, 0.2, math.nan]), np.array([1.0, 1, 1, 0, 0, 0])
    assert gather_evidence(values, success, ["a", "a", "b", "b", "c", "c"]) == HeldOutEvidence(1.0, 2, 2)
