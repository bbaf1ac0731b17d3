"""Calibration as mathematics: the fit computed another way, what maps keep, and whether the promise holds."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.decide.threshold import conformal_threshold
from demerit.errors import BadInput
from demerit.evaluate.metrics import Resampling
from demerit.models.calibrated import CalibrationMap, Confidence, Isotonic, Same, Shift, read_map
from demerit.training.calibration import CalibrationExample, cross_validate, doubts, fit, isotonic, too_few

unit = st.floats(0, 1, width=32)
rows = st.lists(st.tuples(st.integers(0, 12), unit, st.floats(0.1, 3)), min_size=1, max_size=25)
QUICK = Resampling(resamples=50)


def by_formula(points: Sequence[tuple[float, float, float]]) -> dict[float, float]:
    """The isotonic fit by its min-max formula: f(i) = max over a <= i of min over b >= i of the mean of rows a..b."""
    xs = sorted({x for x, _, _ in points})

    def mean(a: int, b: int) -> float:
        inside = [(y, w) for x, y, w in points if xs[a] <= x <= xs[b]]
        return sum(y * w for y, w in inside) / sum(w for _, w in inside)

    size = len(xs)
    return {xs[i]: max(min(mean(a, b) for b in range(i, size)) for a in range(i + 1)) for i in range(size)}


@given(rows)
def test_isotonic_matches_the_min_max_formula(points: list[tuple[int, float, float]]) -> None:
    expected = by_formula(points)
    found = isotonic(*(list(column) for column in zip(*points, strict=True)))
    assert found(list(expected)) == pytest.approx(list(expected.values()), abs=1e-9)


maps = st.one_of(
    st.builds(Shift, st.floats(-1, 1)),
    st.builds(lambda scores: Confidence(np.array(scores)), st.lists(unit, max_size=30)),
    rows.map(lambda points: isotonic([x / 12 for x, _, _ in points], [y for _, y, _ in points])),
)


@given(maps, st.lists(unit, min_size=2, max_size=20))
def test_maps_are_monotone_and_keep_nan(made: CalibrationMap, values: list[float]) -> None:
    out = made(sorted(values))
    assert (np.diff(out) >= 0).all() and out.min() >= 0 and out.max() <= 1
    assert np.isnan(made([math.nan])).all()
    again = read_map("test", made.as_dict())
    assert np.array_equal(again(values), made(values))


@given(st.lists(unit, min_size=1, max_size=40), st.lists(unit, min_size=1, max_size=20), st.floats(0.02, 0.9))
def test_confidence_and_threshold_agree(failures: list[float], scores: list[float], risk: float) -> None:
    """Passing the conformal threshold is the same as a p-value of at most the risk, counted one by one."""
    threshold = conformal_threshold(failures, risk).at
    confidence = Confidence(np.array(failures))(scores)
    for score, sure in zip(scores, confidence, strict=True):
        p = (1 + sum(failure >= score for failure in failures)) / (len(failures) + 1)
        assert sure == pytest.approx(1 - p)
        assert (score >= threshold) == (p <= risk + 1e-12)


@given(st.lists(st.tuples(unit, unit), min_size=19, max_size=60))
def test_progress_bound_holds_on_its_own_examples(pairs: list[tuple[float, float]]) -> None:
    finals, truths = zip(*pairs, strict=True)

    def bound(finals: Sequence[float]) -> CalibrationMap:
        rows = zip(finals, truths, strict=True)
        return fit([CalibrationExample("", "t", v, True, v, truth) for v, truth in rows], "conformal", 0.05).progress

    sure = bound(finals)(finals)
    over = sum(value > truth + 1e-12 for value, truth in zip(sure, truths, strict=True))
    assert over <= 0.05 * (len(pairs) + 1)
    assert bound(sure.tolist())(sure) == pytest.approx(sure, abs=1e-9)


def draw(rng: np.random.Generator, count: int, power: float) -> list[CalibrationExample]:
    """Exchangeable episodes: one in two a success, scored higher by `power` standard deviations; ties included."""
    good = rng.random(count) < 0.5
    scores = np.round(rng.standard_normal(count) + power * good, 1)
    progress = np.clip(rng.random(count) * (1 + good) / 2, 0, 1)
    return [
        CalibrationExample(f"{i}", f"task {i % 4}", float(s), bool(g), float(p), float(p), np.array([p]), np.array([p]))
        for i, (s, g, p) in enumerate(zip(scores, good, progress, strict=True))
    ]


@pytest.mark.parametrize(("power", "risk"), [(0.0, 0.05), (3.0, 0.05), (3.0, 0.2)])
def test_guarantee_holds_on_exchangeable_data(power: float, risk: float) -> None:
    """By simulation; a model that knows nothing (power 0) keeps it as well, and lets no more successes through."""
    rng = np.random.default_rng(0)
    false, true, over = [], [], []
    for _ in range(400):
        found = fit(draw(rng, 120, power), "conformal", risk)
        test = draw(rng, 120, power)
        assert found.threshold is not None
        bad, good = (np.array([x.score for x in test if x.success is kind]) for kind in (False, True))
        false.append(np.mean(bad >= found.threshold))
        true.append(np.mean(good >= found.threshold))
        over.append(np.mean(found.success(bad) >= 1 - risk - 1e-12))
    error = 3 * float(np.std(false)) / 400**0.5
    assert np.mean(false) <= risk + error and np.allclose(over, false)
    assert np.mean(true) <= risk + error if power == 0 else np.mean(true) > 0.5


def test_guarantee_fails_on_other_scores() -> None:
    """The control of the simulation above: failures that are scored higher than those calibrated on do pass."""
    rng = np.random.default_rng(0)
    found = fit(draw(rng, 400, 2.0), "conformal", 0.05)
    assert found.threshold is not None
    assert np.mean([x.score + 1.5 >= found.threshold for x in draw(rng, 400, 2.0) if not x.success]) > 0.2


def test_too_few_failures_names_the_number_needed() -> None:
    few = [CalibrationExample(str(i), "t", 0.1, i > 9, 0.1, None) for i in range(20)]
    assert fit(few, "isotonic", 0.05).threshold is None
    assert "19" in fit(few, "isotonic", 0.05).promise
    assert "takes 9 labelled failures" in too_few(0, 0.1)
    for count in range(1, 150):  # the risk that is offered can be promised
        offered = float(too_few(count, 0.001).rpartition(" ")[2].rstrip(")"))
        assert conformal_threshold(np.linspace(0, 1, count), offered).enough


def test_maps_without_labels_are_the_identity() -> None:
    judged = [CalibrationExample(str(i), "t", i / 30, i > 25, i / 30, None) for i in range(30)]
    found = fit(judged, "isotonic", 0.1)
    assert isinstance(found.progress, Same) and isinstance(found.success, Isotonic) and found.notes
    half = np.array([0.5])
    good = [CalibrationExample(str(i), "t", i / 30, True, i / 30, i / 30, half, half) for i in range(30)]
    assert isinstance(fit(good, "isotonic", 0.1).success, Same)
    failed = [CalibrationExample(str(i), "t", float(i), False, float(i), 0.5) for i in range(30)]
    assert isinstance(fit(failed, "conformal", 0.1, is_progress=False).progress, Same)
    assert isinstance(fit(failed, "conformal", 0.01).progress, Same)
    with pytest.raises(BadInput, match="isotonic"):
        fit(good, "platt", 0.1)  # type: ignore[arg-type]


def test_episodes_have_equal_weight() -> None:
    """Ten frames of one episode weigh as much as one frame of another."""
    long = CalibrationExample("a", "t", 0.5, True, 0.5, 1.0, np.full(10, 0.5), np.ones(10))
    short = CalibrationExample("b", "t", 0.5, False, 0.5, 0.0, np.array([0.5]), np.zeros(1))
    assert fit([long, short], "isotonic", 0.1).progress([0.5]) == pytest.approx([0.5])


def test_held_out_tasks_expose_task_specific_scores() -> None:
    """Each task has an offset of its own: on the same tasks the score works, on another one it does not."""
    rng = np.random.default_rng(3)
    knows = [replace(x, task=f"task {i % 5}") for i, x in enumerate(draw(rng, 200, 3.0))]
    drawn = enumerate(draw(rng, 200, 0.0))
    useless = [replace(x, task=f"task {i % 5}", score=x.score + 20.0 * (7 * i % 5)) for i, x in drawn]
    good = cross_validate(knows, "isotonic", 0.1, False, QUICK)
    bad = cross_validate(useless, "isotonic", 0.1, False, QUICK)
    assert good["brier"].value < 0.12 and bad["brier"].value > 0.24
    assert good["true_positive_rate"].value > 0.6
    counts = {"successes": 100, "failures": 100}
    assert not list(doubts(good, counts, 0.1))
    assert len(list(doubts(bad, counts, 0.1))) == 2
    alone = [replace(x, task="one task") for x in knows]
    assert cross_validate(alone, "conformal", 0.1, False, QUICK)["false_positive_rate"].n > 50


def test_numbers_that_calibration_makes_worse_are_told_beyond_noise() -> None:
    """Right numbers can only get worse by a map that was fitted to a few of them; half as large, they get better."""
    rng = np.random.default_rng(0)
    right, half = list[CalibrationExample](), list[CalibrationExample]()
    for i, x in enumerate(rng.random(50).tolist()):
        truth = float(np.clip(x + rng.normal(0, 0.05), 0, 1))
        for rows, y in ((right, x), (half, x / 2)):
            one = CalibrationExample(str(i), f"task {i % 5}", y, bool(rng.random() < x), y, truth)
            rows.append(replace(one, values=np.array([y]), truth=np.array([truth])))
    told = {}
    for name, rows, method in (("right", right, "isotonic"), ("half", half, "isotonic"), ("bound", right, "conformal")):
        found = cross_validate(rows, method, 0.1, True, QUICK)  # type: ignore[arg-type]
        for low, word in ((-1.0, "is not shown to help"), (1e-9, "makes this worse")):
            sure = {key: replace(measure, low=low) if "change" in key else measure for key, measure in found.items()}
            lines = [x for x in doubts(sure, {"successes": 25, "failures": 25}, 0.1) if x.startswith("Calibration")]
            assert all(word in line for line in lines)
        told[name] = [
            name for name in ("brier", "progress_error", "progress_overrated") for line in lines if name in line
        ]
    assert told == {"right": ["brier", "progress_error"], "half": [], "bound": []}
    # a bound is below the progress on purpose
    assert found["progress_error"].value > found["progress_error_before"].value
    assert found["progress_overrated"].value < found["progress_overrated_before"].value


def test_broken_maps_are_refused() -> None:
    shifts = [{"map": "shift", **facts} for facts in ({}, {"by": "much"}, {"by": 0.1, "more": 1})]
    points = (([0, 1], [1, 0]), ([0, 0], [0, 1]), ([0], [2]), ([], []), ("ab", [0, 1]))
    isotonics = [{"map": "isotonic", "x": x, "y": y} for x, y in points]
    for facts in (*shifts, *isotonics, {"map": "confidence", "failures": [None]}, {"map": "cubic"}, "same"):
        with pytest.raises(BadInput):
            read_map("model.json", facts)
