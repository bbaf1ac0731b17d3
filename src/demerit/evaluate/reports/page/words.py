"""The words of the report page: names of measures for people, numbers with fitting digits, and the conclusion."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from demerit.evaluate.benchmarks.findings import FEW_TASKS
from demerit.evaluate.metrics import Measure
from demerit.evaluate.metrics.controls import shown_nothing
from demerit.evaluate.reports.report import Report, Versus

CAPITALS = {"auroc": "AUROC", "voc": "VOC", "ece": "ECE", "mae": "MAE", "f1": "F1", "brier": "Brier"}
CHANCE_IS_HALF = ("preference_ordering", "judgement_agreement", "both_orders_agreement", "right_instruction", "auroc")
NARROW, CERTAIN = 0.02, 0.05

MEANINGS = {
    "preference_ordering": "share of pairs that the model puts in the order in which people put them; 0.5 is chance",
    "judgement_agreement": "share of human A/B verdicts that the model repeats; 0.5 is chance",
    "both_orders_agreement": "share of human A/B verdicts that a comparer repeats, asked both ways; 0.5 is chance",
    "auroc": "chance that a success is scored above a failure; 0.5 is chance",
    "over_reward_rate": "share of failures scored at or above what the median success gets",
    "false_positive_rate": "share of failures that are called a success",
    "true_positive_rate": "share of successes that are called a success at the same threshold",
    "success_failure_gap": "how much more successes get than failures",
    "average_precision": "precision over all thresholds, weighted by the gain in recall",
    "best_f1": "the largest F1 of any threshold on these very episodes: optimistic",
    "f1": "balance of precision and recall at a fixed threshold",
    "mae": "mean distance to the grade that people gave, in grades",
    "kendall": "agreement with the order failed < suboptimal < successful; 0 is chance, 1 is perfect",
    "voc": "correlation of the value with time; a clock gets 1, so read it beside the shuffled one",
    "ece": "distance between the predicted and the observed share of successes",
    "brier": "mean squared distance of the probability to what happened; a constant 1/2 gets 0.25",
    "progress_error": "mean distance to the true progress, frame by frame",
    "failure_latency": "how many frames after a labelled failure the reward falls, where it does",
    "failure_drop": "how far the reward falls at a labelled failure",
    "failure_caught_placebo": "the same share at moments without a failure: what chance catches",
    "failure_caught": "share of labelled failures at which the reward falls",
    "right_instruction": "how often the right instruction gets more than a wrong one; 0.5 is chance",
    "instruction_diagonal": "how much of the reward goes to the right instruction",
}


@dataclass(frozen=True)
class Lead:
    """The conclusion: what the first screen says."""

    title: str
    text: str
    measure: str = ""
    """the measure that it rests on"""
    trusted: str = ""
    """the model that is clear of the controls and best; empty when there is none"""


def label(measure: str) -> str:
    """Turn a measure's name into words: `voc_pearson_shuffled` becomes "VOC pearson shuffled"."""
    words = [CAPITALS.get(word, word) for word in measure.split("_")]
    text = " ".join(words).replace(" by ", ", by ")
    return text[:1].upper() + text[1:]


def meaning(measure: str) -> str:
    """Say in a clause what a measure is; empty for one that this page does not know."""
    matches = [start for start in MEANINGS if measure.startswith(start)]
    return MEANINGS[max(matches, key=len)] if matches else ""


def number(value: float | None, digits: int = 2) -> str:
    """Write a number for people; a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.{digits}f}".replace("-", "−")


def digits_of(measure: Measure) -> int:
    """Two digits, three where the interval is so narrow that two would hide it."""
    return 3 if 0 < measure.high - measure.low < NARROW else 2


def span(measure: Measure) -> str:
    """Write the interval, or that it is unknown."""
    if math.isnan(measure.low):
        return "interval unknown"
    digits = digits_of(measure)
    return f"{number(measure.low, digits)} to {number(measure.high, digits)}"


def joined(words: Iterable[str]) -> str:
    """Join words as in a sentence: a, b and c."""
    *most, last = list(words) or [""]
    return f"{', '.join(most)} and {last}" if most else last


def higher_is_better(report: Report, measure: str) -> bool:
    """Which direction is good."""
    return measure not in report.about.lower_is_better


def headline_measures(report: Report) -> list[str]:
    """The measures to show first: those the benchmark names, else the first four of the whole report."""
    present = list(dict.fromkeys(line.measure.name for line in report.lines if not line.part))
    named = [name for name in report.about.headline if name in present]
    return named or present[:4]


def models_of(report: Report) -> list[str]:
    """Names of the models that are no controls, in the order of the report."""
    return [card.name for card in report.cards if card.name not in report.controls]


def is_clear(report: Report, measure: Measure) -> bool:
    """Whether a model's whole interval lies beyond every control."""
    others = {name: report.line(name, measure.name) for name in report.controls}
    known = {name: other for name, other in others.items() if other is not None}
    good = higher_is_better(report, measure.name)
    return not shown_nothing(measure, known, higher_is_better=good)


def best_of(report: Report, names: Iterable[str], measure: str) -> tuple[str, Measure] | None:
    """The best of some models by one measure; None when none of them has it."""
    found = [(name, report.line(name, measure)) for name in names]
    known = [(name, one) for name, one in found if one is not None and one.known]
    sign = 1 if higher_is_better(report, measure) else -1
    return max(known, key=lambda pair: sign * pair[1].value, default=None)


def lead(report: Report) -> Lead:
    """Conclude from the first headline measure: which model to trust, if any."""
    measures = headline_measures(report)
    first = measures[0] if measures else ""
    best = best_of(report, models_of(report), first)
    if not models_of(report):
        return Lead("Only controls were measured", "There is no model in this report to trust or to doubt.")
    if best is None:
        return Lead("Nothing could be measured", "No model has a number for the first measure; see what was unscored.")
    name, measure = best
    control = best_of(report, report.controls, first)
    against = f"the best control, {control[0]}, gets {number(control[1].value)}" if control else "there are no controls"
    figure = f"{label(first)}: {number(measure.value, digits_of(measure))} ({span(measure)})"
    if not control:
        return Lead(
            f"{name} scores best", f"{figure}. There are no controls beside it to show what that is worth.", first
        )
    if not is_clear(report, measure):
        title = "No model is clear of the controls"
        return Lead(title, f"The best, {name}, has shown nothing yet. {figure}; {against}.", first)
    if measure.clusters < FEW_TASKS:
        tasks = f"{measure.clusters} task{'s' * (measure.clusters != 1)}"
        title = "Too few tasks to trust a model"
        return Lead(title, f"{name} is ahead of the controls on {tasks}. {figure}; {against}.", first)
    words = f"{figure}, clear of every control; {against}."
    doubts = _doubts(report, name, measures[1:]) + _rivals(report, name, first)
    return Lead(f"Trust {name} most here", words + doubts, first, name)


def _doubts(report: Report, name: str, measures: Iterable[str]) -> str:
    """Name the other headline measures by which the best model has shown nothing."""
    found = [(one, report.line(name, one)) for one in measures]
    unclear = [label(one) for one, measure in found if measure is not None and not is_clear(report, measure)]
    return f" By {joined(unclear)} it is not clear of them." if unclear else ""


def _rivals(report: Report, name: str, measure: str) -> str:
    """Name the models that cannot be told apart from the best one."""
    others = set(models_of(report)) - {name}
    close = []
    for versus in report.comparisons:
        pair = {versus.first, versus.second}
        if versus.measure == measure and name in pair and pair - {name} <= others and not told_apart(versus):
            close.append(next(iter(pair - {name})))
    return f" Its lead over {joined(close)} is within chance." if close else ""


def told_apart(versus: Versus) -> bool:
    """Whether the sign of a difference is beyond chance, all comparisons of the report considered."""
    return versus.p_adjusted < CERTAIN
