"""The fit: ridge against the normal equations, held-out predictions by brute force, heads on toy data."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.errors import BadInput, UnknownName
from demerit.models.taught.features import FeatureLayout
from demerit.models.taught.head import TaughtHead
from demerit.training.teach.data import FrameTargets, TeachConfig, TeachLabel, targets_of, wrong_task_targets
from demerit.training.teach.fit import (
    MISSED_SUCCESS,
    NARROWEST,
    SMOOTHING,
    FitExample,
    factor_dual,
    factor_primal,
    factor_ridge,
    find_cut,
    fit_head,
    group_rows,
    monotone_medians,
    separate_flags,
)

Problem = tuple[np.ndarray, np.ndarray, float, np.ndarray]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    rows, columns = draw(st.tuples(st.integers(2, 12), st.integers(1, 9)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x, y = rng.normal(size=(rows, columns)), rng.normal(size=(rows, 2))
    groups = np.array(draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)))
    return x, y, draw(st.floats(1e-3, 1e3)), groups


def solve_normal_equations(x: np.ndarray, y: np.ndarray, penalty: float) -> np.ndarray:
    return np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ y)


@given(problems())
def test_ridge_equals_the_normal_equations(problem: Problem) -> None:
    x, y, penalty, _ = problem
    expected = solve_normal_equations(x, y, penalty)
    for factor in (factor_primal, factor_dual, factor_ridge):
        assert np.allclose(factor(x).coefficients(y, penalty), expected, atol=1e-8)
        assert np.allclose(factor(x).predict(y, penalty), x @ expected, atol=1e-8)


@given(problems())
def test_held_out_predictions_equal_refits_without_the_group(problem: Problem) -> None:
    x, y, penalty, groups = problem
    for factor in (factor_primal, factor_dual):
        found = factor(x).held_out(y, penalty, group_rows(groups))
        for group in np.unique(groups):
            inside, held_out = groups != group, groups == group
            expected = x[held_out] @ solve_normal_equations(x[inside], y[inside], penalty)
            assert np.allclose(found[held_out], expected, atol=1e-6)


def toy_episodes(count: int, noise: float = 0.3, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Features are a direction times progress, plus noise; every second episode fails."""
    rng = np.random.default_rng(seed)
    direction = np.random.default_rng(99).normal(size=20)
    found = []
    for number in range(count):
        truth = np.linspace(0, 1, 25) if number % 2 == 0 else np.minimum(np.linspace(0, 1, 25), rng.uniform(0, 0.6))
        found.append((np.outer(truth, direction) + noise * rng.normal(size=(25, 20)), truth))
    return found


def fit(
    features: Sequence[np.ndarray], targets: Sequence[FrameTargets], config: TeachConfig | None = None
) -> TaughtHead:
    """Fit episodes that are a group each."""
    rows = enumerate(zip(features, targets, strict=True))
    return fit_head([FitExample(x, t, str(i), "") for i, (x, t) in rows], config)


def make_targets(label: str, truth: np.ndarray, success: bool, config: TeachConfig) -> FrameTargets:
    curve = truth.astype(np.float32) if label == "curve" else None
    return targets_of(TeachLabel(success=success, curve=curve), len(truth), config)


@pytest.mark.parametrize("kind", ["linear", "rbf", "both", "auto"])
@pytest.mark.parametrize("label", ["curve", "verdict"])
def test_a_head_learns_the_direction_of_progress(kind: str, label: str) -> None:
    config = TeachConfig(kind=kind)  # type: ignore[arg-type]
    taught = toy_episodes(12)
    targets = [make_targets(label, truth, number % 2 == 0, config) for number, (_, truth) in enumerate(taught)]
    head = fit([x for x, _ in taught], targets, config)
    others = toy_episodes(30, seed=7)
    finals = np.array([head.progress(x)[-1] for x, _ in others])
    good = np.arange(30) % 2 == 0
    assert finals[good].min() > np.median(finals[~good])
    error = np.mean([np.abs(head.progress(x) - truth).mean() for x, truth in others])
    assert error < (0.12 if label == "curve" else 0.2)
    probability = np.array([head.success(head.outputs(x))[-1] for x, _ in others])
    assert probability[good].mean() > probability[~good].mean() + 0.2


@pytest.mark.parametrize("kind", ["linear", "rbf"])
def test_episodes_without_a_camera_teach_the_others(kind: str) -> None:
    config = TeachConfig(kind=kind)  # type: ignore[arg-type]
    examples = []
    for number, (x, truth) in enumerate(toy_episodes(12)):
        both = np.concatenate([x, x[:, ::-1]], axis=1)
        both[:, [slice(0), slice(20), slice(20, 40)][number % 3]] = np.nan
        examples.append(FitExample(both, targets_of(TeachLabel(curve=truth), len(truth), config), str(number)))
    head = fit_head(examples, config, layout=FeatureLayout(("a", "b"), ("tower",), (20,)))
    for x, truth in toy_episodes(4, seed=1):
        unknown = np.full_like(x, np.nan)
        for views in ((x, x[:, ::-1]), (x, unknown), (unknown, x[:, ::-1])):
            assert np.abs(head.progress(np.concatenate(views, axis=1)) - truth).mean() < 0.2


def test_only_violated_bounds_pull() -> None:
    (good, truth), (bad, _) = toy_episodes(2, noise=0.0)
    config = TeachConfig(grid=(1e-4,))
    measured, failed = make_targets("curve", truth, True, config), targets_of(TeachLabel(success=False), 25, config)
    alone = fit([good], [measured], config)
    assert np.allclose(fit([good, bad], [measured, failed], config).outputs(bad), alone.outputs(bad), atol=0.02)
    assert fit([good, good], [measured, failed], config).outputs(good)[-1, 0] < alone.outputs(good)[-1, 0] - 0.05


def test_opposite_tasks_get_corrections_of_their_own() -> None:
    config = TeachConfig()
    taught = toy_episodes(24, noise=0.1)
    direction = np.random.default_rng(99).normal(size=20)
    features = [x if number < 12 else direction - x for number, (x, _) in enumerate(taught)]
    targets = [make_targets("curve", truth, n % 2 == 0, config) for n, (_, truth) in enumerate(taught)]
    tasks = ["a"] * 12 + ["b"] * 12
    examples = [FitExample(x, t, str(i), k) for i, (x, t, k) in enumerate(zip(features, targets, tasks, strict=True))]
    head = fit_head(examples, config)
    assert set(head.tasks) == {"a", "b"}
    for number, task in ((0, "a"), (12, "b")):
        found = head.progress(features[number], task)
        assert found[-1] > 0.7 and found[0] < 0.3
    zeros = wrong_task_targets(25, config)
    wrong = [FitExample(features[i], zeros, str(i), "b", wrong_task=True) for i in range(0, 12, 2)]
    assert fit_head(examples + wrong, config).progress(features[0], "b")[0] < head.progress(features[0], "b")[0] - 0.05


@pytest.mark.parametrize(("other", "corrected"), [("direction", {"a", "b"}), ("pace", set())])
def test_with_flags_alone_a_task_is_corrected_only_where_that_tells_failures_better(
    other: str, corrected: set[str]
) -> None:
    """Residuals on the way to a success say that a task of another pace needs one; its ends do not."""
    config, direction = TeachConfig(), np.random.default_rng(99).normal(size=20)
    examples = []
    for number, (x, truth) in enumerate(toy_episodes(24, noise=0.1)):
        task, targets = "ab"[number >= 12], targets_of(TeachLabel(success=bool(truth[-1] > 0.9)), 25, config)
        if task == "b":
            x = direction - x if other == "direction" else x + np.outer(truth**2 - truth, direction)  # noqa: PLW2901
        examples.append(FitExample(x, targets, str(number), task))
    assert set(fit_head(examples, config).tasks) == corrected


def test_fitting_is_deterministic() -> None:
    config = TeachConfig(kind="both")
    taught = toy_episodes(8)
    targets = [make_targets("curve", truth, n % 2 == 0, config) for n, (_, truth) in enumerate(taught)]
    first, second = (fit([x for x, _ in taught], targets, config) for _ in range(2))
    assert first.content() == second.content()


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"rows": 1}, {"grid": ()}, {"kind": "forest"}, {"cap": 2.0}, {"parts": {}}, {"folds": 1}):
        with pytest.raises(BadInput):
            TeachConfig(**wrong)
    with pytest.raises(UnknownName, match="'tower'"):
        TeachConfig(parts={"towr": 1.0})
    with pytest.raises(BadInput):
        fit_head([])


def test_the_scale_undoes_the_penalty_and_keeps_the_order() -> None:
    rng = np.random.default_rng(3)
    truth = [np.linspace(0, end, 20) for end in (1.0, 0.9, 0.3, 1.0, 0.2, 0.6)]
    features = [np.stack([one + rng.normal(0, 0.02, 20), rng.normal(size=20)], axis=1) for one in truth]
    config = TeachConfig(kind="linear", grid=(5.0,), blend=0.0)
    head = fit(features, [make_targets("curve", one, one[-1] == 1, config) for one in truth], config)
    plain = replace(head, calibration_x=np.array([0.0, 1.0]), calibration_y=np.array([0.0, 1.0]))
    pairs = list(zip(features, truth, strict=True))
    scaled, raw = (np.mean([np.abs(one.progress(x) - y).mean() for x, y in pairs]) for one in (head, plain))
    assert scaled < 0.5 * raw
    assert np.all(np.diff(head.calibration_y) > 0)


@given(st.integers(0, 10_000), st.integers(1, 12))
@settings(max_examples=50)
def test_monotone_medians_have_the_least_absolute_error(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    value, truth = rng.permutation(count) / count, rng.integers(0, 4, count) / 3
    weight = rng.integers(1, 3, count).astype(float)
    at, median = monotone_medians(value, truth, weight)
    assert np.all(np.diff(at) > 0) and np.all(np.diff(median) >= 0)
    order = np.argsort(value)
    y, w = truth[order], weight[order]
    best = np.zeros(4)  # dynamic programming over the four levels: the least error with the last level at most k
    for level, counts in zip(y, w, strict=True):
        best = np.minimum.accumulate(best + counts * np.abs(np.arange(4) / 3 - level))
    fitted = _pool_values(value[order], w, at, median)
    assert float((w * np.abs(fitted - y)).sum()) == pytest.approx(best[-1])


def _pool_values(value: np.ndarray, weight: np.ndarray, at: np.ndarray, median: np.ndarray) -> np.ndarray:
    """Find the pool of each value: pools are runs whose weighted means are `at`."""
    out, start = [], 0
    for mean, level in zip(at, median, strict=True):
        for stop in range(start + 1, len(value) + 1):
            if np.isclose(np.average(value[start:stop], weights=weight[start:stop]), mean):
                out += [level] * (stop - start)
                start = stop
                break
    return np.array(out)


# Flags alone: a half separates failures from successes


def flagged_example(success: bool, seed: int, frames: int = 24) -> FitExample:
    """An episode whose failures move as far as its successes and differ in one noisy column near the end."""
    rng = np.random.default_rng([seed, success])
    time = np.linspace(0, 1, frames)
    outcome = time**2 * (1 if success else 0.55)
    noise = rng.normal(0, 0.3, (1, 20)) + rng.normal(0, 0.1, (frames, 20))
    x = np.concatenate([time[:, None], outcome[:, None] + rng.normal(0, 0.05, (frames, 1)), noise], axis=1)
    return FitExample(x, targets_of(TeachLabel(success=success), frames), f"{success}{seed}")


@pytest.mark.parametrize("each", [5, 20])
def test_with_flags_alone_failures_end_below_a_half_and_successes_above(each: int) -> None:
    head = fit_head([flagged_example(good, seed) for seed in range(each) for good in (True, False)])
    failures, successes = (
        np.array([head.progress(flagged_example(good, seed).x)[-1] for seed in range(100, 150)])
        for good in (False, True)
    )
    assert (failures < 0.5).mean() >= 0.8
    assert (successes > 0.5).mean() >= 0.8


def test_measured_failures_keep_the_scale_of_progress() -> None:
    def examples(curves: bool) -> list[FitExample]:
        found = []
        for seed in range(6):
            for good in (True, False):
                example = flagged_example(good, seed)
                curve = np.linspace(0, 1 if good else 0.8, len(example.x), dtype=np.float32)
                label = TeachLabel(success=good, curve=curve if curves else None)
                found.append(replace(example, targets=targets_of(label, len(example.x))))
        return found

    measured, flagged = (fit_head(examples(curves)) for curves in (True, False))
    failure = flagged_example(False, 99).x
    assert measured.progress(failure)[-1] > 0.6  # its progress is 0.8, failure or not
    assert flagged.progress(failure)[-1] < 0.5


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=20),
    st.lists(st.floats(0, 1), min_size=1, max_size=20),
)
def test_the_cut_balances_the_errors_like_a_search_over_a_grid(bad: list[float], good: list[float]) -> None:
    failures, successes = np.array(bad), np.array(good)
    both = np.concatenate([failures, successes])
    width = max(NARROWEST, SMOOTHING * both.std() * len(both) ** -0.2)
    grid = np.linspace(0, 1, 2001)
    above = (1 / (1 + np.exp(-(failures[:, None] - grid) / width))).mean(0)
    below = (1 / (1 + np.exp((successes[:, None] - grid) / width))).mean(0)
    excess = above - MISSED_SUCCESS * below  # falls with the cut
    expected = 0.0 if excess[0] <= 0 else 1.0 if excess[-1] > 0 else grid[np.argmax(excess <= 0)]
    assert find_cut(failures, successes) == pytest.approx(expected, abs=1e-3)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=20),
    st.lists(st.floats(0, 1), min_size=1, max_size=20),
)
def test_the_scale_for_flags_increases_from_0_to_1(bad: list[float], good: list[float]) -> None:
    x, y = separate_flags(np.array(bad), np.array(good))
    assert (np.diff(x) > 0).all()
    assert (np.diff(y) > 0).all()
    assert (x[0], x[-1], y[0], y[-1]) == (0, 1, 0, 1)
