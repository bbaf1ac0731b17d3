"""Verdicts: paired differences to every control, three answers, and how many more episodes would tell."""

import math

import numpy as np
import pytest

from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.bootstrap import compare, pair_up
from demerit.evaluate.metrics.success import auroc
from demerit.evaluate.metrics.verdict import MARGIN, ControlVerdict, decide, round_up

HOW = Resampling(resamples=400)


def judge(model: np.ndarray, controls: dict[str, np.ndarray], success: np.ndarray) -> ControlVerdict:
    compared = {name: pair_up(lambda v: auroc(v, success), model, values, HOW) for name, values in controls.items()}
    verdict = decide("mine", compared, resampled="episodes", tasks=1)
    assert verdict is not None
    return verdict


def world(n: int, signal: float, seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    success = np.arange(n) % 2
    model = rng.normal(size=n) + signal * success
    controls = {"noise": rng.normal(size=n), "cue": rng.normal(size=n) + 0.5 * success, "constant": np.zeros(n)}
    return model, controls, success.astype(float)


def area(scores: np.ndarray, success: np.ndarray) -> float:
    good, bad = scores[success == 1], scores[success == 0]
    return float(np.mean([(a > b) + (a == b) / 2 for a in good for b in bad]))


def test_the_difference_and_its_interval_in_a_loop() -> None:
    model, controls, success = world(24, 1.5)
    draws: dict[str, list[float]] = {name: [] for name in controls}
    rng = np.random.default_rng(5)
    for _ in range(1000):
        rows = rng.integers(0, 24, 24)
        if 0 < success[rows].sum() < 24:
            for name, values in controls.items():
                draws[name].append(area(model[rows], success[rows]) - area(values[rows], success[rows]))
    ends = {name: np.quantile(values, [0.025, 0.975]) for name, values in draws.items()}
    found = judge(model, controls, success)
    assert found.control == min(ends, key=lambda name: ends[name][0])
    assert found.difference == pytest.approx(area(model, success) - area(controls[found.control], success))
    assert (found.low, found.high) == pytest.approx(ends[found.control], abs=0.04)
    assert (found.value, found.controls, found.clusters) == (pytest.approx(area(model, success)), 3, 24)


@pytest.mark.parametrize(
    ("n", "signal", "answer"), [(200, 3.0, "better"), (24, 1.0, "no evidence yet"), (400, -1.0, "not better")]
)
def test_three_answers(n: int, signal: float, answer: str) -> None:
    found = judge(*world(n, signal))
    assert found.answer == answer and found.is_better == (answer == "better")
    assert (found.more is not None) == (answer == "no evidence yet")
    assert found == judge(*world(n, signal))  # seeded


def test_overlapping_intervals_do_not_hide_a_paired_lead() -> None:
    # both follow the same hard and easy episodes, the model a little better: the difference is sure, the values are not
    rng = np.random.default_rng(3)
    success = np.arange(60) % 2
    common = rng.normal(size=60) + 0.8 * success
    control, model = common + 0.05 * rng.normal(size=60), common + 0.9 * success
    ours, theirs = (auroc(v, success).measure(HOW) for v in (model, control))
    assert ours.low < theirs.high
    assert judge(model, {"cue": control}, success.astype(float)).answer == "better"


def test_a_lead_must_hold_against_every_control() -> None:
    model, controls, success = world(200, 3.0)
    assert judge(model, {**controls, "twin": model}, success).answer == "not better"
    assert judge(model, {**controls, "twin": model}, success).control == "twin"
    weak = {"cue": controls["cue"]}
    assert judge(model, weak, success).low >= judge(model, controls, success).low


def test_a_model_without_knowledge_is_never_better() -> None:
    model, controls, success = world(60, 2.0)
    assert judge(np.zeros(60), controls, success).answer == "not better"  # a constant against a constant
    rng = np.random.default_rng(1)
    answers = [judge(model, controls, rng.permutation(success)).answer for _ in range(60)]
    assert answers.count("better") <= 2


def test_few_episodes_prove_nothing() -> None:
    success = np.array([1.0, 1, 0, 0])
    found = judge(success, {"constant": np.zeros(4)}, success)
    assert (found.difference, found.answer) == (0.5, "no evidence yet")
    assert found.more is not None and found.more + 4 >= 10
    one = decide("mine", {"constant": pair_up(lambda v: auroc(v, success, clusters="tttt"), success, np.zeros(4), HOW)})
    assert one is not None and math.isnan(one.low) and one.answer == "no evidence yet"
    assert decide("mine", {}) is None


def test_that_many_more_episodes_tell() -> None:
    model, controls, success = world(24, 1.0, seed=2)
    found = judge(model, {"cue": controls["cue"]}, success)
    assert found.answer == "no evidence yet" and found.more is not None
    # the standard error, another way: of the difference of two areas over resampled rows
    compared, draws = pair_up(lambda v: auroc(v, success), model, controls["cue"], HOW)
    needed = 24 * ((1.959964 + 0.841621) * np.nanstd(draws) / compared.difference) ** 2
    assert found.more == round_up(math.ceil(needed) - 24)
    times = -(-(24 + found.more) // 24)
    again = judge(np.tile(model, times), {"cue": np.tile(controls["cue"], times)}, np.tile(success, times))
    assert again.answer == "better"
    assert [round_up(n) for n in (1, 7, 19, 21, 34, 341)] == [1, 7, 20, 25, 35, 350]


def test_lower_is_better_turns_the_sign() -> None:
    model, controls, success = world(200, 3.0)
    compared = {"cue": pair_up(lambda v: auroc(v, success), -model, -controls["cue"], HOW)}
    plain = compare(lambda v: auroc(v, success), -model, -controls["cue"], HOW)
    found = decide("mine", compared, higher_is_better=False)
    assert found is not None and found.answer == "better"
    assert (found.difference, found.low, found.high) == pytest.approx((-plain.difference, -plain.high, -plain.low))
    assert found.high > MARGIN
