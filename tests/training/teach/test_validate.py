"""Folds and calibrated probabilities."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.decide.threshold import conformal_threshold
from demerit.training.calibration import fit_logistic
from demerit.training.teach.validate import assign_folds, default_risk


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.0, 1.0, float("nan")])), min_size=2, max_size=60))
def test_folds_never_split_a_group(rows: list[tuple[int, float]]) -> None:
    groups = [str(group) for group, _ in rows]
    fold = assign_folds(groups, np.array([verdict for _, verdict in rows]), 5, seed=0)
    for group in set(groups):
        assert len({int(f) for f, g in zip(fold, groups, strict=True) if g == group}) == 1
    assert set(fold.tolist()) == set(range(min(5, len(set(groups)))))


def test_probabilities_start_at_the_prior_and_follow_the_evidence() -> None:
    steep, middle = fit_logistic(np.zeros(0), np.zeros(0), np.zeros(0))
    assert steep == pytest.approx(8.0, rel=0.1)
    assert middle == pytest.approx(0.6, abs=0.02)
    scores = np.concatenate([np.full(50, 0.25), np.full(50, 0.35)])
    steep, middle = fit_logistic(scores, np.repeat([0.0, 1.0], 50), np.ones(100))
    assert middle == pytest.approx(0.3, abs=0.03)
    assert steep > 20


@pytest.mark.parametrize(("failures", "risk"), [(3, 0.25), (5, 0.17), (9, 0.1), (19, 0.05), (200, 0.05)])
def test_the_default_risk_is_one_that_the_failures_can_guarantee(failures: int, risk: float) -> None:
    assert default_risk(failures) == risk
    assert conformal_threshold(np.linspace(0, 1, failures), default_risk(failures)).enough


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_too_few_failures_for_a_quarter_guarantee_nothing(failures: int) -> None:
    assert not conformal_threshold(np.linspace(0, 1, failures), default_risk(failures)).enough
