"""The verdict of a report: is a model better than the controls, or not, or is there no evidence yet?

The model is compared with each control on the same rows and the same resamples. It is better if it leads every one: the
interval of each difference lies above 0. Since all must, no correction for their number k is needed. It is not better
if its lead over one of them is at most `MARGIN`; any one will do, so that upper end is taken at 1 - (1 - level) / k.

The controls are models without any knowledge, and the scores that they must get are known:

    constant    the same value for every frame of every episode
    clock       t / (T - 1): counts steps, from 0 to 1
    reversed    1 - t / (T - 1): the clock that runs backwards
    random      independent noise for every frame
    always_a    a comparer that always names the first of two

If a control scores otherwise, the metric is broken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np

from demerit.data.arrays import Floats
from demerit.errors import UnknownName
from demerit.evaluate.metrics.bootstrap import FEW_TASKS, NAN, Comparison, Measure, percentiles

Control = Literal["constant", "clock", "reversed", "random", "always_a"]


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


def expectations(
    control: Control, *, success_share: float = NAN, a_share: float = NAN, tasks: int = 0, constant: float = 0.5
) -> dict[str, Expectation]:
    """Return what a control must score, by measure name.

    Ordering by sum has no entry: a positive constant adds up to a multiple of the length, so it scores what `length`
    scores, and 1/2 only where all lengths are equal.

    Args:
        control: its name.
        success_share: share of successes among the measured episodes.
        a_share: share of A among the human A and B verdicts.
        tasks: size of the confusion matrix.
        constant: the value of the constant model, read as a probability.
    """
    if control not in get_args(Control):
        raise UnknownName("control", str(control), get_args(Control))
    if control == "always_a":
        return {
            "judgement_agreement": Expectation(a_share, True, "right exactly where people said A"),
            "both_orders_agreement": Expectation(0.5, True, "right in exactly one of the two orders"),
        }
    if control == "random":
        return _random(tasks)
    table = _same_final(success_share, tasks, {"constant": constant, "clock": 1.0, "reversed": 0.0}[control])
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


def _same_final(share: float, tasks: int, final: float) -> dict[str, Expectation]:
    """Expectations for models whose final value is the same for all episodes."""
    tie = "all final values are equal: ties"
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
            1 / tasks if tasks and final else NAN, True, "equal shares: 1 / tasks; of no reward no share"
        ),
    }


def _random(tasks: int) -> dict[str, Expectation]:
    blind = "independent of what is shown"
    half = ("preference_ordering_by_final", "preference_ordering_by_mean", "judgement_agreement", "auroc")
    table = {name: Expectation(0.5, False, blind) for name in (*half, "right_instruction_accuracy")}
    zero = ["kendall_tau_a", "kendall_tau_b", "kendall_ordered", "success_failure_gap"]
    zero += [f"voc_{method}{shown}" for method in _METHODS for shown in ("", "_reversed", "_shuffled")]
    table |= {name: Expectation(0.0, False, blind) for name in zero}
    # about half of the failures lie above the median of independent successes
    table["over_reward_rate"] = Expectation(0.5, False, blind)
    table["over_reward_above_half"] = Expectation(0.5, False, blind)
    if tasks:
        table["instruction_diagonal_share"] = Expectation(1 / tasks, False, "exchangeable videos share equally")
    return table


Answer = Literal["better", "no evidence yet", "not better"]
MARGIN = 0.02
"""a lead up to this counts as none"""
POWER = 0.8
"""chance with which the named number of further episodes tells, if the difference stays as it is"""
MOST = 10_000
"""no larger number of further episodes is named"""


@dataclass(frozen=True)
class ControlVerdict:
    """Whether a model beats the controls by one measure. Differences are positive where the model is better."""

    model: str
    measure: str
    answer: Answer
    control: str
    """the control that decides: the one with the lowest end of the interval"""
    value: float
    control_value: float
    difference: float
    low: float
    """NaN if the interval is unknown"""
    high: float
    controls: int
    """number of controls it was compared with"""
    clusters: int
    resampled: str = "tasks"
    """what the clusters are: tasks, recordings or episodes"""
    tasks: int = 0
    """number of tasks behind it"""
    more: int | None = None
    """about how many more clusters would tell; None where none are needed, or no sensible number is enough"""
    by_construction: str = ""
    """a control that gets the best value by construction, left aside; then a lead says nothing by itself"""

    @property
    def is_better(self) -> bool:
        """Whether the model leads every control, none left aside."""
        return self.answer == "better" and not self.by_construction

    @property
    def lead(self) -> str:
        """The difference in words, to follow "it"."""
        low, high = (self.low, self.high) if self.difference >= 0 else (-self.high, -self.low)
        span = "interval unknown" if math.isnan(low) else f"{low:.2f} to {high:.2f}".replace("-", "−")
        verb = "leads" if self.difference >= 0 else "is behind"
        return f"{verb} the control {self.control} ({self.control_value:.2f}) by {abs(self.difference):.2f} ({span})"

    @property
    def needs(self) -> str:
        """What would tell, as a sentence; empty unless there is no evidence yet."""
        if self.answer != "no evidence yet":
            return ""
        if self.more is None:
            return f"The difference is too small to be settled by any sensible number of {self.resampled}."
        return f"About {self.more:,} more {self.resampled} would tell."

    @property
    def scope(self) -> str:
        """What it is about, where that is not tasks in general; else empty."""
        if self.resampled == "tasks":
            return ""
        which = "this task" if self.tasks == 1 else f"these {self.tasks} tasks" if self.tasks else "the same kind"
        return f"This is about more {self.resampled} of {which}, not about other tasks."

    @property
    def words(self) -> str:
        """The whole verdict as sentences, to follow the measure's name."""
        answer = f"better than all {self.controls} controls" if self.answer == "better" else self.answer
        text = f"{self.value:.3f}, {answer}; it {self.lead}. {self.needs}".rstrip()
        if self.by_construction:
            text += (
                f" The control {self.by_construction} gets the best value by construction: this says nothing by itself."
            )
        return text


def decide(
    model: str,
    compared: Mapping[str, tuple[Comparison, Floats]],
    *,
    higher_is_better: bool = True,
    level: float = 0.95,
    resampled: str = "tasks",
    tasks: int = 0,
    by_construction: str = "",
) -> ControlVerdict | None:
    """Decide by the paired differences to each control; None if there is no control to compare with.

    Args:
        model: name of the model.
        compared: model minus control, by control, with the resampled differences (see `pair_up`).
        higher_is_better: direction of the measure.
        level: of the intervals in `compared`.
        resampled: what the clusters are.
        tasks: number of tasks behind it.
        by_construction: a control that was left aside, since it gets the best value by construction.
    """
    sign = 1.0 if higher_is_better else -1.0
    comparisons = {name: pair for name, pair in compared.items() if pair[0].n}
    if not comparisons:
        return None
    ends = {
        name: percentiles(sign * draws, level) if len(draws) else (NAN, NAN) for name, (_, draws) in comparisons.items()
    }
    # unknown ends come first: one of them is enough for "no evidence yet"
    control = min(
        comparisons,
        key=lambda name: (not math.isnan(ends[name][0]), ends[name][0], sign * comparisons[name][0].difference),
    )
    corrected = 1 - (1 - level) / len(comparisons)
    tops = {name: percentiles(sign * draws, corrected)[1] for name, (_, draws) in comparisons.items() if len(draws)}
    beaten_by = min(tops, key=lambda name: tops[name], default=control)
    fewest = min(comparison.clusters for comparison, _ in comparisons.values())
    answer: Answer = "no evidence yet"
    if fewest >= FEW_TASKS and tops and tops[beaten_by] <= MARGIN:
        answer, control = "not better", beaten_by
    elif fewest >= FEW_TASKS and ends[control][0] > 0:
        answer = "better"
    comparison, draws = comparisons[control]
    difference = sign * comparison.difference
    more = _count_more(difference, draws, comparison.clusters, level) if answer == "no evidence yet" else None
    return ControlVerdict(
        model=model,
        measure=comparison.name,
        answer=answer,
        control=control,
        value=comparison.a,
        control_value=comparison.b,
        difference=difference,
        low=ends[control][0],
        high=ends[control][1],
        controls=len(comparisons),
        clusters=comparison.clusters,
        resampled=resampled,
        tasks=tasks,
        more=more,
        by_construction=by_construction,
    )


def _count_more(difference: float, draws: Floats, clusters: int, level: float) -> int | None:
    """Return how many more clusters settle it with a chance of `POWER`, if the difference stays as it is.

    The standard error falls with 1 / sqrt(clusters). The distance to settle is that to 0, or, if the lead is not more
    than the margin, that to the margin.
    """
    few = FEW_TASKS - clusters
    defined = draws[~np.isnan(draws)]
    if len(defined) < 2:  # noqa: PLR2004
        return max(few, 1)
    z = NormalDist().inv_cdf((1 + level) / 2) + NormalDist().inv_cdf(POWER)
    distance = difference if difference > MARGIN else MARGIN - difference
    if distance <= 0:
        return None
    needed = clusters * (z * float(defined.std()) / distance) ** 2
    if needed > MOST:
        return None
    return round_up(max(math.ceil(needed) - clusters, few, 1))


def round_up(count: int) -> int:
    """Round up to one digit or half of one: 7, 35, 350, 4000."""
    step: int = max(1, 10 ** (len(str(count)) - 1) // 2)
    return -(-count // step) * step
