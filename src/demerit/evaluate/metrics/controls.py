"""Negative controls: the scores that models without any knowledge must get.

    constant    the same value for every frame of every episode
    clock       t / (T - 1): counts steps, from 0 to 1
    reversed    1 - t / (T - 1): the clock that runs backwards
    random      independent noise for every frame
    always_a    a comparer that always names the first of two

If a control scores otherwise, the metric is broken. Whether a model beats the controls: see `verdict`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from demerit.errors import UnknownName
from demerit.evaluate.metrics.bootstrap import NAN, Measure

Control = Literal["constant", "clock", "reversed", "random", "always_a"]


@dataclass(frozen=True)
class ControlFacts:
    """Properties of the measured episodes that the expectations depend on."""

    success_share: float = NAN
    """share of successes"""
    a_share: float = NAN
    """share of A among the human A and B verdicts"""
    tasks: int = 0
    """size of the confusion matrix"""
    constant: float = 0.5
    """the value of the constant model, read as a probability"""


@dataclass(frozen=True)
class Expectation:
    """What a control must score."""

    value: float
    """NaN: the measure must be undefined"""
    exact: bool
    """exact, or only in the mean over many episodes"""
    why: str

    def fits(self, measure: Measure, tolerance: float = 1e-9) -> bool:
        """Return whether a measure meets the expectation; if not exact, its interval must contain the value."""
        if math.isnan(self.value):
            return not measure.known
        if self.exact:
            return measure.known and abs(measure.value - self.value) <= tolerance
        return measure.known and not math.isnan(measure.low) and measure.low <= self.value <= measure.high


def expectations(control: Control, facts: ControlFacts | None = None) -> dict[str, Expectation]:
    """Return what a control must score, by measure name.

    Ordering by sum has no entry: a positive constant adds up to a multiple of the length, so it scores what `length`
    scores, and 1/2 only where all lengths are equal.
    """
    known = facts or ControlFacts()
    if control not in get_args(Control):
        raise UnknownName("control", str(control), get_args(Control))
    if control == "always_a":
        return {
            "judgement_agreement": Expectation(known.a_share, True, "right exactly where people said A"),
            "both_orders_agreement": Expectation(0.5, True, "right in exactly one of the two orders"),
        }
    if control == "random":
        return _random(known)
    table = _same_final(known, {"constant": known.constant, "clock": 1.0, "reversed": 0.0}[control])
    if control == "constant":
        undefined = Expectation(NAN, True, "a constant has no correlation")
        table |= {f"voc_{method}{shown}": undefined for method in _METHODS for shown in ("", "_reversed", "_shuffled")}
        table["preference_ordering_by_mean"] = Expectation(0.5, True, "all means are equal: ties")
        table["strict_preference_ordering_by_mean"] = Expectation(0.0, True, "all means are equal: ties")
        table["failure_caught"] = Expectation(0.0, True, "it never falls")
        return table
    sign = 1.0 if control == "clock" else -1.0
    for method in _METHODS:
        table[f"voc_{method}"] = Expectation(sign, True, "it counts the presented frames")
        table[f"voc_{method}_reversed"] = Expectation(-sign, True, "it counts the presented frames, whatever they show")
        table[f"voc_{method}_shuffled"] = Expectation(0.0, False, "order and images are independent")
    if control == "clock":
        table["failure_caught"] = Expectation(0.0, True, "it never falls")
    return table


_METHODS = ("pearson", "spearman")


def _same_final(known: ControlFacts, final: float) -> dict[str, Expectation]:
    """Expectations for models whose final value is the same for all episodes."""
    share, tie = known.success_share, "all final values are equal: ties"
    return {
        "preference_ordering_by_final": Expectation(0.5, True, tie),
        "strict_preference_ordering_by_final": Expectation(0.0, True, tie),
        "judgement_agreement": Expectation(0.5, True, tie),
        "right_instruction_accuracy": Expectation(0.5, True, "it does not read the instruction: ties"),
        "kendall_tau_a": Expectation(0.0, True, tie),
        "kendall_ordered": Expectation(0.0, True, tie),
        "kendall_tau_b": Expectation(NAN, True, "no pair is untied: 0 / 0"),
        "success_failure_gap": Expectation(0.0, True, tie),
        "auroc": Expectation(0.5, True, tie),
        "average_precision_of_success": Expectation(share, True, "one threshold, precision = share of successes"),
        "best_f1_of_success": Expectation(2 * share / (1 + share), True, "everything is called a success"),
        "over_reward_rate": Expectation(1.0, True, "every failure gets what the median success gets"),
        "over_reward_above_half": Expectation(float(final > 1 / 2), True, "all failures get the same"),
        "ece_equal_width": Expectation(abs(final - share), True, "one bin: |c - share of successes|"),
        "brier": Expectation((final - share) ** 2 + share * (1 - share), True, "bias squared plus variance"),
        "instruction_diagonal_share": Expectation(
            1 / known.tasks if known.tasks and final else NAN, True, "equal shares: 1 / tasks; of no reward no share"
        ),
    }


def _random(known: ControlFacts) -> dict[str, Expectation]:
    blind = "independent of what is shown"
    half = ("preference_ordering_by_final", "preference_ordering_by_mean", "judgement_agreement", "auroc")
    table = {name: Expectation(0.5, False, blind) for name in (*half, "right_instruction_accuracy")}
    zero = ["kendall_tau_a", "kendall_tau_b", "kendall_ordered", "success_failure_gap"]
    zero += [f"voc_{method}{shown}" for method in _METHODS for shown in ("", "_reversed", "_shuffled")]
    table |= {name: Expectation(0.0, False, blind) for name in zero}
    # about half of the failures lie above the median of independent successes
    table["over_reward_rate"] = Expectation(0.5, False, blind)
    table["over_reward_above_half"] = Expectation(0.5, False, blind)
    if known.tasks:
        table["instruction_diagonal_share"] = Expectation(1 / known.tasks, False, "exchangeable videos share equally")
    return table
