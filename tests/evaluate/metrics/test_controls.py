"""Negative controls score what theory says, and the traps of public evaluation code are not ours."""

import math

import numpy as np
import pytest

from demerit.errors import UnknownName
from demerit.evaluate.metrics import Measure, Resampling
from demerit.evaluate.metrics.bootstrap import mean_tally
from demerit.evaluate.metrics.calibration import brier, calibration_error
from demerit.evaluate.metrics.controls import ControlFacts, Expectation, expectations, shown_nothing
from demerit.evaluate.metrics.correlation import kendall_tau, success_failure_gap, value_order_correlation
from demerit.evaluate.metrics.detection import auroc, average_precision, best_f1, over_reward
from demerit.evaluate.metrics.failure_moment import falls_at
from demerit.evaluate.metrics.grades import grade_by_range, grade_error
from demerit.evaluate.metrics.ordering import (
    both_orders_agreement,
    diagonal_share,
    episode_returns,
    judgement_agreement,
    preference_ordering,
    right_instruction,
)

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
        preference_ordering(final, world["human"], tasks, how="final").measure(QUICK),
        preference_ordering(mean, world["human"], tasks, how="mean").measure(QUICK),
        judgement_agreement(final - other, world["verdicts"], **common),
        right_instruction(final, other, **common),
        success_failure_gap(final, y, **common),
        auroc(final, y, **common),
        average_precision(final, y, **common),
        best_f1(final, y, **common),
        over_reward(final, y, **common),
        calibration_error(final, y, **common),
        brier(final, y, **common),
        diagonal_share(matrix).measure(QUICK),
        mean_tally("failure_caught", "events", falls.caught, tasks),
    ]
    found += [
        kendall_tau(final, world["levels"], tasks, variant=v).measure(QUICK) for v in ("tau_a", "tau_b", "ordered")
    ]
    back = [np.arange(n)[::-1] for n in world["lengths"]]
    for method in ("pearson", "spearman"):
        for shown, times in (("in_order", None), ("reversed", back), ("shuffled", world["shuffles"])):
            found.append(value_order_correlation(values, times, method=method, shown=shown, **common))
    measures = [tally if isinstance(tally, Measure) else tally.measure(QUICK) for tally in found]
    return {measure.name: measure for measure in measures}


@pytest.mark.parametrize("control", ["constant", "clock", "reversed", "random"])
def test_controls_score_what_theory_says(control, world):
    facts = ControlFacts(success_share=float(world["success"].mean()), tasks=TASKS, constant=0.3)
    expected = expectations(control, facts)
    found = everything(control, world)
    for name, theory in expected.items():
        assert theory.fits(found[name]), f"{control} {found[name]} but theory says {theory}"
    assert len(expected) >= 17


def test_always_a_scores_what_theory_says(world):
    said = world["verdicts"]
    expected = expectations("always_a", ControlFacts(a_share=3 / 5))
    ones = np.ones(len(said))
    assert expected["judgement_agreement"].fits(judgement_agreement(ones, said).measure(QUICK))
    both = both_orders_agreement(0 * ones, said).measure(QUICK)
    assert expected["both_orders_agreement"].fits(both)


def test_trap_ties_by_list_order():
    # better first or better last: a tie is one half either way
    for human in ([3, 2, 1], [1, 2, 3]):
        assert preference_ordering([1, 1, 1], human, "ccc").measure(QUICK).value == 0.5


def test_trap_unscored_becomes_zero():
    # the unscored one is the best episode: as a zero it would cost every pair
    found = preference_ordering([math.nan, 0.6, 0.5], [9, 6, 5], "ccc").measure(QUICK)
    assert (found.value, found.n, found.unscored, found.counts["unscored episodes"]) == (1.0, 1, 2, 1)
    assert np.isnan(episode_returns([[0.9, math.nan, 0.9]], "sum")[0])
    assert auroc([math.nan, 0.2, 0.1], [1, 1, 0]).measure(QUICK).unscored == 1


def test_trap_undefined_correlation_becomes_zero():
    found = value_order_correlation([[0.4, 0.4], [0.1, 0.9]]).measure(QUICK)
    assert (found.value, found.undefined) == (pytest.approx(1.0), 1)


def test_trap_per_episode_min_max_before_ranking():
    # raw finals order the episodes; stretched to 0..1 each, all end at 1 and nothing is left to order
    raw = [np.linspace(0, top, 6) for top in (0.2, 0.5, 0.9)]
    stretched = [(v - v.min()) / np.ptp(v) for v in raw]
    by = [preference_ordering(episode_returns(v, "final"), [1, 2, 3], "ccc").measure(QUICK) for v in (raw, stretched)]
    assert (by[0].value, by[1].value, by[1].ties) == (1.0, 0.5, 3)


def test_trap_parse_failures_become_the_lowest_grade():
    assert grade_error(grade_by_range([math.nan, 1.0], 0, 1), [1, 5]).measure(QUICK).n == 1


def test_unknown_controls_and_undefined_expectations():
    with pytest.raises(UnknownName, match="clock"):
        expectations("clok")
    assert not Expectation(0.5, True, "").fits(Measure("m", math.nan, math.nan, math.nan, 0, 0))
    assert not Expectation(math.nan, True, "").fits(Measure("m", 0.0, math.nan, math.nan, 3, 0))


def test_model_that_overlaps_a_control_has_shown_nothing():
    model = Measure("auroc", 0.7, 0.6, 0.8, 50, 0)
    controls = {"constant": Measure("auroc", 0.5, 0.5, 0.5, 50, 0), "change": Measure("auroc", 0.67, 0.6, 0.7, 50, 0)}
    text = shown_nothing(model, controls)
    assert "change (0.670)" in text and "constant" not in text
    assert shown_nothing(model, {"constant": controls["constant"]}) == ""
    error = Measure("mae", 0.7, 0.6, 0.8, 50, 0)
    assert "constant" in shown_nothing(
        error, {"constant": Measure("mae", 0.75, 0.7, 0.8, 50, 0)}, higher_is_better=False
    )
    assert "unknown" in shown_nothing(Measure("auroc", 0.9, math.nan, math.nan, 5, 0), controls)
    assert "nothing was measured" in shown_nothing(Measure("auroc", math.nan, math.nan, math.nan, 0, 5), controls)
