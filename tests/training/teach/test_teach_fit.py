"""The fitted part: ridge by two ways, left-out predictions against brute force, targets, heads on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from demerit.data.labels import Event
from demerit.errors import BadInput, NotApplicable, StoreError, UnknownName
from demerit.models.taught.features import FeatureLayout
from demerit.models.taught.head import LinearPart, RbfPart, TaughtHead, rbf_kernel, success_score
from demerit.training.teach.config import TeachConfig
from demerit.training.teach.data import FrameTargets, TeachLabel, start_targets, targets_of, wrong_task_targets
from demerit.training.teach.fit import (
    FitExample,
    PreferencePair,
    factor_dual,
    factor_primal,
    factor_ridge,
    fit_head,
    group_rows,
    monotone_medians,
)
from demerit.training.teach.validate import assign_folds, fit_probabilities


def fit(
    features: Sequence[np.ndarray],
    targets: Sequence[FrameTargets],
    config: TeachConfig | None = None,
    tasks: Sequence[str] | None = None,
    pairs: Sequence[PreferencePair] = (),
) -> TaughtHead:
    """Fit episodes that are a group each."""
    named = zip(features, targets, tasks or [""] * len(features), strict=True)
    return fit_head([FitExample(x, t, str(i), task) for i, (x, t, task) in enumerate(named)], config, pairs=pairs)


sizes = st.tuples(st.integers(2, 12), st.integers(1, 9))


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
    rows, columns = draw(sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x, y = rng.normal(size=(rows, columns)), rng.normal(size=(rows, 2))
    penalty = draw(st.floats(1e-3, 1e3))
    groups = np.array(draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)))
    return x, y, penalty, groups


def plain_ridge(x: np.ndarray, y: np.ndarray, penalty: float) -> np.ndarray:
    """The normal equations, as in any book."""
    return np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ y)


@given(problems())
def test_ridge_both_ways_and_by_the_book(problem: tuple[np.ndarray, np.ndarray, float, np.ndarray]) -> None:
    x, y, penalty, _ = problem
    wanted = plain_ridge(x, y, penalty)
    for way in (factor_primal, factor_dual, factor_ridge):
        assert np.allclose(way(x).coefficients(y, penalty), wanted, atol=1e-8)
        assert np.allclose(way(x).fitted(y, penalty), x @ wanted, atol=1e-8)


@given(problems())
def test_left_out_is_what_a_fit_without_the_group_says(
    problem: tuple[np.ndarray, np.ndarray, float, np.ndarray],
) -> None:
    x, y, penalty, groups = problem
    for way in (factor_primal, factor_dual):
        found = way(x).held_out(y, penalty, group_rows(groups))
        for group in np.unique(groups):
            inside, out = groups != group, groups == group
            wanted = x[out] @ plain_ridge(x[inside], y[inside], penalty)
            assert np.allclose(found[out], wanted, atol=1e-6)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_members_lists_every_row_once(groups: list[int]) -> None:
    found = group_rows(np.array(groups))
    assert sorted(np.concatenate(found).tolist()) == list(range(len(groups)))
    assert all(len({groups[i] for i in rows}) == 1 for rows in found)
    assert len(found) == len(set(groups))


curves = hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(0, 1, width=32) | st.just(float("nan")))
labels = st.builds(
    TeachLabel,
    success=st.none() | st.booleans(),
    progress=st.none() | st.floats(0, 1),
    grade=st.none() | st.integers(1, 5),
    curve=st.none() | curves.filter(lambda curve: not np.isnan(curve).all()),
    events=st.lists(st.builds(Event, st.just("dropped"), st.integers(0, 20), st.integers(20, 60)), max_size=2).map(
        tuple
    ),
)


@given(labels, st.integers(1, 60), st.integers(2, 32))
def test_targets_are_in_range_weighed_and_honest(label: TeachLabel, length: int, rows: int) -> None:
    if label.curve is not None:
        length = len(label.curve)
    chosen = TeachConfig(rows=rows)
    try:
        target = targets_of(label, length, chosen)
    except NotApplicable:
        assert not label.known
        return
    known = target.origin > 0
    assert len(target) == length
    assert np.array_equal(np.isnan(target.value), ~known)
    assert np.array_equal(np.isnan(target.done), ~known)
    assert ((target.value[known] >= 0) & (target.value[known] <= 1)).all()
    at, weight = target.choose_rows(chosen.rows, chosen.last)
    assert known[at].all()
    assert (weight > 0).all()
    assert len(np.unique(at)) == len(at)
    total = sum(getattr(chosen.weights, part) for part in target.origins)
    assert weight.sum() <= total + 1e-9
    if label.curve is not None:
        seen = ~np.isnan(label.curve)
        assert np.allclose(target.value[seen], label.curve[seen])
        assert {target.origins[0]} <= {"measured", "marked"}
    if label.curve is None and label.verdict is False and label.end is None:
        assert target.capped[-1]
        assert target.value[-1] == chosen.cap
        assert target.done[-1] == 0


def test_a_verdict_alone_is_an_end_a_start_and_a_made_up_way() -> None:
    good = targets_of(TeachLabel(success=True), 20)
    assert good.origins == ("end", "start", "made_up")
    assert good.value[0] == 0
    assert (good.value[-3:] == 1).all()
    assert (np.diff(good.value) >= 0).all()
    assert good.done[-3:].all()
    assert not good.done[:15].any()
    bad = targets_of(TeachLabel(success=False), 20)
    assert bad.origins == ("start", "capped")
    assert np.isnan(bad.value[5])
    graded = targets_of(TeachLabel(grade=3), 20)
    assert graded.value[-1] == 0.5
    assert graded.done[-1] == 0


def test_a_failure_event_caps_what_follows() -> None:
    event = (Event("dropped", 8, 10),)
    failed = targets_of(TeachLabel(success=False, events=event), 20)
    assert failed.capped[8:].all()
    assert not failed.capped[:8].any()
    alone = targets_of(TeachLabel(events=event), 20)
    assert alone.capped[10:].all()
    ended_low = targets_of(TeachLabel(progress=0.4, events=event), 20)
    assert ended_low.value[8] == pytest.approx(0.4)
    assert np.allclose(ended_low.value[8:], 0.4)


def test_what_cannot_be_a_target_is_said() -> None:
    with pytest.raises(NotApplicable, match="label"):
        targets_of(TeachLabel(), 5)
    with pytest.raises(NotApplicable, match="curve has 4 values and its video 5 frames"):
        targets_of(TeachLabel(curve=np.zeros(4, np.float32)), 5)
    assert (wrong_task_targets(6, TeachConfig()).value == 0).all()
    assert start_targets(6, TeachConfig()).origins == ("start",)


def lines(count: int, noise: float = 0.3, columns: int = 20, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Episodes whose features are a direction times progress, and noise; every second fails."""
    rng = np.random.default_rng(seed)
    way = np.random.default_rng(99).normal(size=columns)
    found = []
    for number in range(count):
        truth = np.linspace(0, 1, 25) if number % 2 == 0 else np.minimum(np.linspace(0, 1, 25), rng.uniform(0, 0.6))
        found.append((np.outer(truth, way) + noise * rng.normal(size=(25, columns)), truth))
    return found


@pytest.mark.parametrize("kind", ["linear", "rbf", "both", "auto"])
@pytest.mark.parametrize("label", ["curve", "verdict"])
def test_fit_finds_the_way(kind: str, label: str) -> None:
    chosen = TeachConfig(kind=kind)  # type: ignore[arg-type]
    taught = lines(12)
    targets = [_target(label, truth, number % 2 == 0, chosen) for number, (_, truth) in enumerate(taught)]
    head = fit([x for x, _ in taught], targets, chosen)
    others = lines(30, seed=7)
    finals = np.array([head.progress(x)[-1] for x, _ in others])
    good = np.arange(30) % 2 == 0
    assert finals[good].min() > np.median(finals[~good])
    error = np.mean([np.abs(head.progress(x) - truth).mean() for x, truth in others])
    assert error < (0.12 if label == "curve" else 0.2)
    probability = np.array([head.success(head.outputs(x))[-1] for x, _ in others])
    assert probability[good].mean() > probability[~good].mean() + 0.2


def _target(label: str, truth: np.ndarray, success: bool, chosen: TeachConfig) -> FrameTargets:
    known = (
        TeachLabel(success=success, curve=truth.astype(np.float32)) if label == "curve" else TeachLabel(success=success)
    )
    return targets_of(known, len(truth), chosen)


def test_a_kept_bound_does_not_pull_and_a_broken_one_does() -> None:
    (good, truth), (bad, _) = lines(2, noise=0.0)
    chosen = TeachConfig(grid=(1e-4,))
    alone = fit([good], [_target("curve", truth, True, chosen)], chosen)
    capped = fit(
        [good, bad], [_target("curve", truth, True, chosen), targets_of(TeachLabel(success=False), 25, chosen)], chosen
    )
    assert np.allclose(capped.outputs(bad), alone.outputs(bad), atol=0.02)  # it stays below the cap by itself
    twin = fit(
        [good, good], [_target("curve", truth, True, chosen), targets_of(TeachLabel(success=False), 25, chosen)], chosen
    )
    assert twin.outputs(good)[-1, 0] < alone.outputs(good)[-1, 0] - 0.05


def test_pairs_alone_teach_an_order() -> None:
    taught = lines(12)
    chosen = TeachConfig()
    targets = [start_targets(25, chosen) for _ in taught]
    pairs = [PreferencePair(good, bad) for good in range(0, 12, 2) for bad in range(1, 12, 2)]
    head = fit([x for x, _ in taught], targets, chosen, pairs=pairs)
    finals = np.array([head.raw(x)[-3:, 0].mean() for x, _ in lines(20, seed=3)])
    assert finals[::2].min() > np.median(finals[1::2])
    tied = fit([x for x, _ in taught], targets, chosen, pairs=[PreferencePair(0, 1, tie=True)])
    assert np.isfinite(tied.raw(taught[0][0])).all()


def test_tasks_with_opposite_directions_get_corrections() -> None:
    """Task b is task a the other way round: one line cannot serve both."""
    chosen = TeachConfig()
    taught = lines(24, noise=0.1)
    way = np.random.default_rng(99).normal(size=20)
    features = [x if number < 12 else way - x for number, (x, _) in enumerate(taught)]
    targets = [_target("curve", truth, n % 2 == 0, chosen) for n, (_, truth) in enumerate(taught)]
    tasks = ["a"] * 12 + ["b"] * 12
    head = fit(features, targets, chosen, tasks=tasks)
    assert set(head.tasks) == {"a", "b"}
    for number, task in ((0, "a"), (12, "b")):
        assert head.progress(features[number], task)[-1] > 0.7
        assert head.progress(features[number], task)[0] < 0.3
    wrong = [
        FitExample(features[i], wrong_task_targets(25, chosen), str(i), "b", wrong_task=True) for i in range(0, 12, 2)
    ]
    examples = [FitExample(x, t, str(i), k) for i, (x, t, k) in enumerate(zip(features, targets, tasks, strict=True))]
    before, after = (fit_head(those, chosen).progress(features[0], "b")[0] for those in (examples, examples + wrong))
    assert after < before - 0.05


def test_the_same_lesson_gives_the_same_head_and_order_does_not_matter_much() -> None:
    chosen = TeachConfig(kind="both")
    taught = lines(8)
    targets = [_target("curve", truth, n % 2 == 0, chosen) for n, (_, truth) in enumerate(taught)]
    one, two = (fit([x for x, _ in taught], targets, chosen) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one.arrays().values(), two.arrays().values(), strict=True))


def test_parts_count_by_weight_and_not_by_width() -> None:
    layout = FeatureLayout(("main", "wrist"), ("tower", "outputs"), (100, 3))
    scales = layout.scales({"tower": 1.0, "outputs": 2.0})
    assert layout.width == len(scales) == 206
    assert np.sum(scales[:100] ** 2) == pytest.approx(0.5)
    assert np.sum(scales[100:103] ** 2) == pytest.approx(2.0)
    assert np.array_equal(scales[:103], scales[103:])


def test_settings_are_checked() -> None:
    for wrong in ({"rows": 1}, {"grid": ()}, {"kind": "forest"}, {"cap": 2.0}, {"parts": {}}, {"folds": 1}):
        with pytest.raises(BadInput):
            TeachConfig(**wrong)
    with pytest.raises(UnknownName, match="Did you mean 'tower'"):
        TeachConfig(parts={"towr": 1.0})
    with pytest.raises(BadInput, match="at least one example"):
        fit([], [])


PLACES, WORTH = np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.2, 1.0])


def some_head(seed: int = 0) -> TaughtHead:
    rng = np.random.default_rng(seed)
    near = rng.normal(size=(3, 4))
    rbf = RbfPart(near, 0.7, rng.normal(size=(3, 2)), rng.normal(size=2))
    tasks = {"open it": LinearPart(rng.normal(size=(4, 2)), rng.normal(size=2))}
    linear = LinearPart(rng.normal(size=(4, 2)), np.ones(2))
    return TaughtHead(rng.normal(size=4), rng.uniform(1, 2, 4), linear, rbf, tasks, 9.0, 0.4, 0.3, PLACES, WORTH)


@given(hnp.arrays(np.float64, (5, 4), elements=st.floats(-3, 3)), st.integers(0, 5))
@settings(max_examples=30)
def test_a_head_by_hand(x: np.ndarray, seed: int) -> None:
    head = some_head(seed)
    assert head.linear is not None
    assert head.rbf is not None
    found = head.raw(x, "open it")
    for row, wanted in zip(x, found, strict=True):
        z = [(row[i] - head.centre[i]) * head.scale[i] for i in range(4)]
        for k in range(2):
            line = sum(z[i] * head.linear.weights[i, k] for i in range(4)) + head.linear.bias[k]
            likes = [np.exp(-0.7 * sum((z[i] - one[i]) ** 2 for i in range(4))) for one in head.rbf.near]
            curve = sum(like * w for like, w in zip(likes, head.rbf.weights[:, k], strict=True)) + head.rbf.bias[k]
            own = head.tasks["open it"]
            assert (line + curve) / 2 + sum(z[i] * own.weights[i, k] for i in range(4)) + own.bias[k] == pytest.approx(
                wanted[k], abs=1e-9
            )
    score = success_score(head.outputs(x))
    assert np.allclose(head.success(head.outputs(x)), 1 / (1 + np.exp(-9.0 * (score - 0.4))))
    assert np.allclose(np.diag(rbf_kernel(x, x, 0.5)), 1)


def test_a_head_comes_back_from_disk_and_damage_is_noticed(tmp_path: Path) -> None:
    head = some_head()
    (tmp_path / "head.npz").write_bytes(head.content())
    back = TaughtHead.load(tmp_path / "head.npz")
    x = np.random.default_rng(1).normal(size=(6, 4))
    for task in ("", "open it", "unknown"):
        assert np.array_equal(head.raw(x, task), back.raw(x, task))
    assert (back.steep, back.middle, back.blend) == (9.0, 0.4, 0.3)
    mixed = 0.7 * head.outputs(x)[:, 0] + 0.3 * head.outputs(x)[:, 1]
    assert np.allclose(back.progress(x), np.where(mixed < 0.5, 0.4 * mixed, 0.2 + 1.6 * (mixed - 0.5)))
    whole = (tmp_path / "head.npz").read_bytes()
    for number, content in enumerate((whole[: len(whole) // 2], b"", b"nonsense")):
        (tmp_path / f"{number}.npz").write_bytes(content)
        with pytest.raises(StoreError, match="damaged"):
            TaughtHead.load(tmp_path / f"{number}.npz")
    with pytest.raises(StoreError, match="missing"):
        TaughtHead.load(tmp_path / "none.npz")
    arrays = head.arrays()
    for name, wrong in (
        ("linear.weights", np.zeros((3, 2))),
        ("centre", np.full(4, np.nan)),
        ("rbf.near", np.zeros((2, 3))),
    ):
        np.savez(tmp_path / "wrong.npz", **{**arrays, name: wrong})
        with pytest.raises(StoreError, match="damaged"):
            TaughtHead.load(tmp_path / "wrong.npz")
    with pytest.raises(BadInput, match="rows of 4 numbers"):
        head.raw(np.zeros((2, 5)))


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.0, 1.0, float("nan")])), min_size=2, max_size=60))
def test_folds_never_cut_a_group(rows: list[tuple[int, float]]) -> None:
    groups = [str(group) for group, _ in rows]
    fold = assign_folds(groups, np.array([verdict for _, verdict in rows]), 5, seed=0)
    for group in set(groups):
        assert len({int(f) for f, g in zip(fold, groups, strict=True) if g == group}) == 1
    assert set(fold.tolist()) == set(range(min(5, len(set(groups)))))


def test_probabilities_follow_the_evidence() -> None:
    nothing = fit_probabilities(np.zeros(0), np.zeros(0), np.zeros(0))
    assert nothing[0] == pytest.approx(8.0, rel=0.1)
    assert nothing[1] == pytest.approx(0.6, abs=0.02)
    scores = np.concatenate([np.full(50, 0.25), np.full(50, 0.35)])
    steep, middle = fit_probabilities(scores, np.repeat([0.0, 1.0], 50), np.ones(100))
    assert middle == pytest.approx(0.3, abs=0.03)
    assert steep > 20


def test_values_are_put_back_on_the_scale_of_progress() -> None:
    """A strong penalty flattens what is fitted; the scale undoes it without touching the order."""
    rng = np.random.default_rng(3)
    truth = [np.linspace(0, end, 20) for end in (1.0, 0.9, 0.3, 1.0, 0.2, 0.6)]
    features = [np.stack([one + rng.normal(0, 0.02, 20), rng.normal(size=20)], axis=1) for one in truth]
    chosen = TeachConfig(kind="linear", grid=(5.0,), blend=0.0)
    targets = [_target("curve", one, one[-1] == 1, chosen) for one in truth]
    head = fit(features, targets, chosen)
    plain = replace(head, calibration_x=np.array([0.0, 1.0]), calibration_y=np.array([0.0, 1.0]))
    errors = [
        np.mean([np.abs(one.progress(x) - y).mean() for x, y in zip(features, truth, strict=True)])
        for one in (head, plain)
    ]
    assert errors[0] < 0.5 * errors[1]
    assert np.all(np.diff(head.calibration_y) > 0)


@given(st.integers(0, 10_000), st.integers(1, 12))
@settings(max_examples=60)
def test_growing_medians_by_brute_force(seed: int, count: int) -> None:
    """No growing step curve on the same values has a smaller absolute error."""
    rng = np.random.default_rng(seed)
    value, truth = rng.permutation(count) / count, rng.integers(0, 4, count) / 3
    weight = rng.integers(1, 3, count).astype(float)
    at, middle = monotone_medians(value, truth, weight)
    assert np.all(np.diff(at) > 0) and np.all(np.diff(middle) >= 0)
    order = np.argsort(value)
    y, w = truth[order], weight[order]
    best = np.zeros(4)  # dynamic programming over the four levels: the least error when the last one is at most k
    for one, counts in zip(y, w, strict=True):
        best = np.minimum.accumulate(best + counts * np.abs(np.arange(4) / 3 - one))
    fitted = _pool_values(value[order], w, at, middle)
    assert float((w * np.abs(fitted - y)).sum()) == pytest.approx(best[-1])


def _pool_values(value: np.ndarray, weight: np.ndarray, at: np.ndarray, middle: np.ndarray) -> np.ndarray:
    """Find which pool each value is in: pools are runs whose mean places are `at`."""
    out, start = [], 0
    for place, level in zip(at, middle, strict=True):
        for stop in range(start + 1, len(value) + 1):
            if np.isclose(np.average(value[start:stop], weights=weight[start:stop]), place):
                out += [level] * (stop - start)
                start = stop
                break
    return np.array(out)
