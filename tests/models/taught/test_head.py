"""The head of a taught model: its formula by hand, and its file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from demerit.errors import BadInput, StoreError
from demerit.models.taught.head import LinearPart, RbfPart, TaughtHead, rbf_kernel


def make_head(seed: int = 0) -> TaughtHead:
    rng = np.random.default_rng(seed)
    rbf = RbfPart(rng.normal(size=(3, 4)), 0.7, rng.normal(size=(3, 2)), rng.normal(size=2))
    tasks = {"open it": LinearPart(rng.normal(size=(4, 2)), rng.normal(size=2))}
    linear = LinearPart(rng.normal(size=(4, 2)), np.ones(2))
    scale = (np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.2, 1.0]))
    return TaughtHead(rng.normal(size=4), rng.uniform(1, 2, 4), linear, rbf, tasks, 9.0, 0.4, 0.3, *scale)


@given(hnp.arrays(np.float64, (5, 4), elements=st.floats(-3, 3)), st.integers(0, 5))
@settings(max_examples=30)
def test_outputs_equal_the_formula_in_plain_loops(x: np.ndarray, seed: int) -> None:
    head = make_head(seed)
    assert head.linear is not None and head.rbf is not None
    own = head.tasks["open it"]
    for row, found in zip(x, head.raw(x, "open it"), strict=True):
        z = [(row[i] - head.centre[i]) * head.scale[i] for i in range(4)]
        for k in range(2):
            line = sum(z[i] * head.linear.weights[i, k] for i in range(4)) + head.linear.bias[k]
            kernel = [np.exp(-0.7 * sum((z[i] - mark[i]) ** 2 for i in range(4))) for mark in head.rbf.near]
            curve = sum(a * w for a, w in zip(kernel, head.rbf.weights[:, k], strict=True)) + head.rbf.bias[k]
            correction = sum(z[i] * own.weights[i, k] for i in range(4)) + own.bias[k]
            assert (line + curve) / 2 + correction == pytest.approx(found[k], abs=1e-9)
    score = head.score(head.outputs(x))
    assert np.allclose(head.success(head.outputs(x)), 1 / (1 + np.exp(-9.0 * (score - 0.4))))
    assert np.allclose(np.diag(rbf_kernel(x, x, 0.5)), 1)


def test_a_missing_camera_leaves_the_mean_of_those_present() -> None:
    """Sums over cameras become n / m times the sum over the m present of n; NaN in one column is no missing camera."""
    head = replace(make_head(), cameras=2)
    assert head.linear is not None and head.rbf is not None
    x = np.random.default_rng(2).normal(size=(4, 4))
    x[1, :2] = x[2, 2:] = np.nan
    x[3, 0] = np.nan
    found = head.raw(x, "open it")
    for row, present in ((0, range(4)), (1, range(2, 4)), (2, range(2))):
        z = {i: (x[row, i] - head.centre[i]) * head.scale[i] for i in present}
        factor = 4 / len(z)
        for k in range(2):
            line = factor * sum(z[i] * head.linear.weights[i, k] for i in z) + head.linear.bias[k]
            kernel = [np.exp(-0.7 * factor * sum((z[i] - mark[i]) ** 2 for i in z)) for mark in head.rbf.near]
            curve = sum(a * w for a, w in zip(kernel, head.rbf.weights[:, k], strict=True)) + head.rbf.bias[k]
            own = head.tasks["open it"]
            correction = factor * sum(z[i] * own.weights[i, k] for i in z) + own.bias[k]
            assert (line + curve) / 2 + correction == pytest.approx(found[row, k], abs=1e-9)
    assert np.isnan(found[3]).all() and np.isnan(head.raw(np.full((1, 4), np.nan))).all()
    assert np.array_equal(found[:1], replace(head, cameras=1).raw(x[:1], "open it"))


def test_a_saved_head_gives_the_same_outputs(tmp_path: Path) -> None:
    head = make_head()
    (tmp_path / "head.npz").write_bytes(head.content())
    back = TaughtHead.load(tmp_path / "head.npz")
    x = np.random.default_rng(1).normal(size=(6, 4))
    for task in ("", "open it", "unknown"):
        assert np.array_equal(head.raw(x, task), back.raw(x, task))
    assert (back.steep, back.middle, back.blend) == (9.0, 0.4, 0.3)
    mixed = 0.7 * head.outputs(x)[:, 0] + 0.3 * head.outputs(x)[:, 1]
    assert np.allclose(back.progress(x), np.where(mixed < 0.5, 0.4 * mixed, 0.2 + 1.6 * (mixed - 0.5)))
    with pytest.raises(BadInput, match="4"):
        head.raw(np.zeros((2, 5)))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    head = make_head()
    whole = head.content()
    for number, content in enumerate((whole[: len(whole) // 2], b"", b"nonsense")):
        (tmp_path / f"{number}.npz").write_bytes(content)
        with pytest.raises(StoreError, match="damaged"):
            TaughtHead.load(tmp_path / f"{number}.npz")
    with pytest.raises(StoreError, match="missing"):
        TaughtHead.load(tmp_path / "none.npz")
    wrong = {"linear.weights": np.zeros((3, 2)), "centre": np.full(4, np.nan), "rbf.near": np.zeros((2, 3))}
    for name, array in wrong.items():
        np.savez(tmp_path / "wrong.npz", **{**head.arrays(), name: array})
        with pytest.raises(StoreError, match="damaged"):
            TaughtHead.load(tmp_path / "wrong.npz")
