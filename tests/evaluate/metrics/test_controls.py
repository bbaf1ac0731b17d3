"""Negative controls score what theory says."""

import math
from dataclasses import replace

import numpy as np
import pytest

from demerit.errors import UnknownName
from demerit.evaluate.metrics import Measure, Resampling
from demerit.evaluate.metrics.bootstrap import mean_tally
from demerit.evaluate.metrics.failure_moment import falls_at
from demerit.evaluate.metrics.ranking import (
    both_orders_agreement,
    diagonal_share,
    episode_returns,
    judgement_agreement,
    kendall_tau,
    preference_ordering,
    right_instruction,
    success_failure_gap,
    value_order_correlation,
)
from demerit.evaluate.metrics.success import (
    auroc,
    average_precision,
    best_f1,
    brier,
    calibration_error,
    over_reward,
    over_reward_above,
)
from demerit.evaluate.metrics.verdict import Expectation, expectations

QUICK = Resampling(resamples=300, level=0.99)
EPISODES, TASKS = 120, 12


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(11)
    success = np.arange(EPISODES) % 3 == 0
    lengths = rng.integers(8, 40, EPISODES)
    return {
        "success": success.astype(float),
        "human": np.where(success, 80, 20) + rng.integers(0, 20, EPISODES),
        "tasks": np.arange(EPISODES) // (EPISODES // TASKS),  # successes and failures in every task
        "levels": success * 2.0,
        "lengths": lengths,
        "verdicts": np.array(["a", "a", "b", "tie", "a", "b"] * (EPISODES // 6)),
        "shuffles": [rng.permutation(n) for n in lengths],
    }


def curves(control, world, seed=0):
    rng = np.random.default_rng(seed)
    make = {
        "constant": lambda n: np.full(n, 0.3),
        "clock": lambda n: np.linspace(0, 1, n),
        "reversed": lambda n: np.linspace(1, 0, n),
        "random": rng.random,
    }
    return [make[control](n) for n in world["lengths"]]


def everything(control, world):
    """All measures of one control; frames shown otherwise give the same numbers to models that do not look."""
    values = curves(control, world)
    final, mean = episode_returns(values, "final"), episode_returns(values, "mean")
    y, tasks = world["success"], world["tasks"]
    other = episode_returns(curves(control, world, 1), "final")
    matrix = np.array([episode_returns(curves(control, world, 2 + i), "final")[:TASKS] for i in range(TASKS)])
    common = {"clusters": tasks}
    falls = falls_at(values, [np.arange(len(v)) for v in values], [4] * EPISODES, window=3, delta=0.05)
    found = [
        preference_ordering(final, world["human"], tasks, how="final"),
        preference_ordering(mean, world["human"], tasks, how="mean"),
        preference_ordering(final, world["human"], tasks, how="final", ties="wrong"),
        preference_ordering(mean, world["human"], tasks, how="mean", ties="wrong"),
        judgement_agreement(final - other, world["verdicts"], **common),
        right_instruction(final, other, **common),
        success_failure_gap(final, y, **common),
        auroc(final, y, **common),
        average_precision(final, y, **common),
        best_f1(final, y, **common),
        over_reward(final, y, **common),
        replace(over_reward_above(final, y, 0.5, **common), name="over_reward_above_half"),
        calibration_error(final, y, **common),
        brier(final, y, **common),
        diagonal_share(matrix),
        mean_tally("failure_caught", "events", falls.caught, tasks),
        *(kendall_tau(final, world["levels"], tasks, variant=v) for v in ("tau_a", "tau_b", "ordered")),
    ]
    back = [np.arange(n)[::-1] for n in world["lengths"]]
    for method in ("pearson", "spearman"):
        for shown, times in (("in_order", None), ("reversed", back), ("shuffled", world["shuffles"])):
            found.append(value_order_correlation(values, times, method=method, shown=shown, **common))
    return {measure.name: measure for measure in (tally.measure(QUICK) for tally in found)}


@pytest.mark.parametrize("control", ["constant", "clock", "reversed", "random"])
def test_controls_score_what_theory_says(control, world):
    share = float(world["success"].mean())
    expected = expectations(control, success_share=share, tasks=TASKS, constant=0.3)
    found = everything(control, world)
    for name, theory in expected.items():
        assert theory.fits(found[name]), f"{control} {found[name]} but theory says {theory}"
    assert len(expected) >= 17


def test_always_a_scores_what_theory_says(world):
    said = world["verdicts"]
    expected = expectations("always_a", a_share=3 / 5)
    assert expected["judgement_agreement"].fits(judgement_agreement([1] * len(said), said).measure(QUICK))
    assert expected["both_orders_agreement"].fits(both_orders_agreement([0] * len(said), said).measure(QUICK))


def test_unknown_controls_and_undefined_expectations():
    with pytest.raises(UnknownName, match="clock"):
        expectations("clok")
    assert not Expectation(0.5, True, "").fits(Measure("m", math.nan, math.nan, math.nan, 0, 0))
    assert not Expectation(math.nan, True, "").fits(Measure("m", 0.0, math.nan, math.nan, 3, 0))
