"""The conclusion of a report in words, and its headline table; names and numbers as pages print them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from demerit.evaluate.metrics import Measure
from demerit.evaluate.metrics.verdict import ControlVerdict
from demerit.evaluate.reports.report import Report, Versus

CAPITALS = {"auroc": "AUROC", "voc": "VOC", "ece": "ECE", "mae": "MAE", "f1": "F1", "brier": "Brier"}
NARROW, SIGNIFICANT = 0.02, 0.05

LABELS = {
    "strict_preference_ordering_by_sum": "Preference ordering, a tie is wrong, by sum",
    "over_reward_rate": "Over-reward, relative to the median success",
    "over_reward_above_half": "Over-reward: failures above 0.5",
    "over_reward_above_threshold": "Over-reward: failures called a success",
}
"""where the name alone is misread"""
MEANINGS = {
    "preference_ordering": "share of pairs that the model orders as people do; 0.5 is chance",
    "strict_preference_ordering": "share of pairs that the model orders as people do, a tie counting as wrong (as "
    "in the position paper); 0.5 is chance for models that never tie, 0 for a constant",
    "judgement_agreement": "share of human A/B verdicts that the model repeats; 0.5 is chance",
    "both_orders_agreement": "share of human A/B verdicts that a comparer repeats, asked in both orders; 0.5 is chance",
    "auroc": "share of pairs of a success and a failure in which the success is scored higher; 0.5 is chance",
    "over_reward_rate": "share of failures that end at or above the median success; low also if all end high",
    "over_reward_above_half": "share of failures whose final value is above 0.5",
    "over_reward_above_threshold": "share of failures that the model calls a success, by its own threshold",
    "false_positive_rate": "share of failures that are called a success",
    "true_positive_rate": "share of successes that are called a success at the same threshold",
    "success_failure_gap": "mean value of successes minus mean value of failures",
    "average_precision": "precision over all thresholds, weighted by the gain in recall",
    "best_f1": "the largest F1 of any threshold on the same episodes: optimistic",
    "f1": "balance of precision and recall at a fixed threshold",
    "mae": "mean distance to the human grade, in grades",
    "kendall": "agreement with the order failed < suboptimal < successful; 0 is chance, 1 is perfect",
    "voc": "correlation of the value with time; a clock scores 1, so compare with the shuffled figure",
    "ece": "distance between the predicted and the observed share of successes",
    "brier": "mean squared distance of the probability to the outcome; a constant 1/2 scores 0.25",
    "progress_error": "mean distance to the true progress, frame by frame",
    "failure_latency": "frames between a labelled failure and the fall of the reward, where it falls",
    "failure_drop": "how far the reward falls at a labelled failure",
    "failure_caught_placebo": "the same share at moments without a failure: what chance catches",
    "failure_caught": "share of labelled failures at which the reward falls",
    "right_instruction": "how often the right instruction gets more reward than a wrong one; 0.5 is chance",
    "instruction_diagonal": "share of the reward that goes to the right instruction",
}


# Words and numbers


def label(measure: str) -> str:
    """Return a measure's name in words: `voc_pearson_shuffled` becomes "VOC pearson shuffled"."""
    if measure in LABELS:
        return LABELS[measure]
    text = " ".join(CAPITALS.get(word, word) for word in measure.split("_")).replace(" by ", ", by ")
    return text[:1].upper() + text[1:]


def meaning(measure: str) -> str:
    """Return what a measure is, as a clause; empty if unknown."""
    matches = [start for start in MEANINGS if measure.startswith(start)]
    return MEANINGS[max(matches, key=len)] if matches else ""


def number(value: float | None, digits: int = 2) -> str:
    """Format a number; a dash for None and NaN."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.{digits}f}".replace("-", "−")


def digits_of(measure: Measure) -> int:
    """Return 2, or 3 where the interval is too narrow for two digits."""
    return 3 if 0 < measure.high - measure.low < NARROW else 2


def span(measure: Measure) -> str:
    """Format the interval."""
    if math.isnan(measure.low):
        return "interval unknown"
    digits = digits_of(measure)
    return f"{number(measure.low, digits)} to {number(measure.high, digits)}"


def join_words(words: Iterable[str]) -> str:
    """Join words as in a sentence: a, b and c."""
    *most, last = list(words) or [""]
    return f"{', '.join(most)} and {last}" if most else last


# The conclusion


@dataclass(frozen=True)
class Lead:
    """The conclusion on the first screen."""

    title: str
    text: str
    measure: str = ""
    """the measure behind it"""
    trusted: str = ""
    """the best model, if it is better than the controls and episodes are labelled; else empty"""
    answer: str = ""
    """the verdict behind it: better, no evidence yet, not better; empty where nothing was compared"""


def lead(report: Report) -> Lead:
    """Conclude from the first headline measure that can tell which model to trust, if any."""
    if report.seen.unfair:
        return Lead(
            "Not a fair measurement", "Models are measured on episodes that they learned from; nothing follows."
        )
    models, measures = models_of(report), headline_measures(report)
    if not models:
        return Lead("Only controls were measured", "There is no model in this report to trust or to doubt.")
    first = next((name for name in measures if not _topped(report, name)), measures[0] if measures else "")
    best = best_of(report, models, first)
    if best is None:
        return Lead("Nothing could be measured", "No model has a number for the first measure; see what was unscored.")
    name, measure = best
    figure = f"{label(first)}: {number(measure.value, digits_of(measure))} ({span(measure)})"
    if first == "auroc":
        figure += f": it ranks a random success above a random failure in {measure.value:.0%} of pairs"
    verdict = report.verdict(name, first)
    if verdict is None:
        return Lead(f"{name} scores best", f"{figure}. There is no control to compare it with.", first)
    text = " ".join(filter(None, [f"{figure}. It {verdict.lead}.", verdict.needs, verdict.scope]))
    if not _is_labelled(report):
        text += " No episode is labelled, so nothing here says whether a model tells success from failure."
        return Lead(f"{conclude(verdict)}, by {label(first)}", text, first, answer=verdict.answer)
    if verdict.is_better and report.judged_by_models:
        text += " Labels are those of models: this is agreement with them, not trust."
        return Lead(f"{name} agrees most with the models that labelled", text, first, answer=verdict.answer)
    if verdict.is_better:
        text += _doubts(report, name, measures) + _rivals(report, name, first)
        if not report.warnings_of(name):
            return Lead(f"Trust {name} most here", text, first, name, verdict.answer)
    return Lead(conclude(verdict), text, first, answer=verdict.answer)


def conclude(verdict: ControlVerdict, model: str = "") -> str:
    """Return the conclusion of a verdict as a title; `model` is what to call the model."""
    model = model or verdict.model
    if verdict.by_construction:
        return f"This cannot tell {model} from the control {verdict.by_construction}"
    return {
        "better": f"{model} is better than every control",
        "no evidence yet": f"No evidence yet that {model} is better than the control {verdict.control}",
        "not better": f"{model[:1].upper()}{model[1:]} is not better than the control {verdict.control}",
    }[verdict.answer]


def _is_labelled(report: Report) -> bool:
    """Whether anything is known about how episodes went."""
    rows = report.episodes
    return bool(report.preferences) or any(
        label is not None for row in rows for label in (row.success, row.progress, row.grade, row.curve)
    )


def _topped(report: Report, measure: str) -> bool:
    """Whether a control has the best value of a measure by construction."""
    verdicts = [report.verdict(name, measure) for name in models_of(report)]
    return any(verdict is not None and verdict.by_construction for verdict in verdicts)


def headline_measures(report: Report) -> list[str]:
    """Return the measures to show first: those the benchmark names, else the first four."""
    present = list(dict.fromkeys(line.measure.name for line in report.lines if not line.part))
    return [name for name in report.about.headline if name in present] or present[:4]


def higher_is_better(report: Report, measure: str) -> bool:
    """Return the direction of a measure."""
    return measure not in report.about.lower_is_better


def models_of(report: Report) -> list[str]:
    """Return the names of the models that are not controls, in report order."""
    return [card.name for card in report.cards if card.name not in report.controls]


def best_of(report: Report, names: Iterable[str], measure: str) -> tuple[str, Measure] | None:
    """Return the best of some models by one measure; None if none of them has it."""
    lines = [(name, report.line(name, measure)) for name in names]
    measured = [(name, line) for name, line in lines if line is not None and line.known]
    sign = 1 if higher_is_better(report, measure) else -1
    return max(measured, key=lambda pair: sign * pair[1].value, default=None)


def is_significant(versus: Versus) -> bool:
    """Return whether a difference is beyond chance, after the correction for all comparisons."""
    return versus.p_adjusted < SIGNIFICANT


def _doubts(report: Report, name: str, measures: Iterable[str]) -> str:
    """Name the headline measures by which the best model is not shown to beat the controls."""
    verdicts = [verdict for measure in measures if (verdict := report.verdict(name, measure)) is not None]
    unclear = [label(verdict.measure) for verdict in verdicts if verdict.answer != "better"]
    return f" It is not shown to beat them by: {'; '.join(unclear)}." if unclear else ""


def _rivals(report: Report, name: str, measure: str) -> str:
    """Name the models that do not differ significantly from the best one."""
    others = set(models_of(report)) - {name}
    close = []
    for versus in report.comparisons:
        pair = {versus.first, versus.second}
        if versus.measure == measure and name in pair and pair - {name} <= others and not is_significant(versus):
            close.append(next(iter(pair - {name})))
    return f" Its lead over {join_words(close)} is within chance." if close else ""


# The table


@dataclass(frozen=True)
class Scale:
    """A horizontal axis: positions are percent of its width."""

    low: float
    high: float

    def percent(self, value: float) -> float | None:
        """Return the position of a value; None for NaN."""
        if math.isnan(value):
            return None
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Return five positions with their labels."""
        values = np.linspace(self.low, self.high, 5)
        return [(25.0 * i, f"{value:.3g}".replace("-", "−")) for i, value in enumerate(values)]


def scale_of(measures: Iterable[Measure]) -> Scale:
    """Return 0..1 or -1..1 where all values and intervals fit, else their range with a margin."""
    ends = (end for measure in measures for end in (measure.value, measure.low, measure.high))
    numbers = [end for end in ends if not math.isnan(end)]
    if not numbers:
        return Scale(0.0, 1.0)
    low, high = min(numbers), max(numbers)
    for bound in (0.0, -1.0):
        if bound <= low and high <= 1:
            return Scale(bound, 1.0)
    start = 0.0 if low >= 0 else low
    margin = 0.05 * (high - start) or 1.0
    return Scale(start - (margin if start else 0.0), high + margin)


def headline(report: Report) -> dict[str, Any]:
    """Lay out the headline table: columns, rows of the models, and apart from them those of the controls.

    A cell is None where the report has no such measure; `bar` of a column is the position of the best control.
    """
    columns = [_column(report, name) for name in headline_measures(report)]
    rows = [
        {"model": card.name, "cells": [_cell(report, card.name, column) for column in columns]} for card in report.cards
    ]
    models, controls = ([row for row in rows if (row["model"] in report.controls) == own] for own in (False, True))
    return {"columns": columns, "rows": models, "controls": controls}


def measure_cell(measure: Measure, scale: Scale, *, answer: str = "", best: bool = False) -> dict[str, Any]:
    """Prepare a measure for drawing: numbers as text, positions in percent.

    `answer` says whether it beats the controls (better, no evidence yet, not better), or is a note where it is not
    compared.
    """
    nothing = "undefined" if measure.undefined else "unscored" if measure.unscored else "nothing to measure"
    details = [f"{measure.n} {measure.unit}", f"{measure.unscored} unscored"]
    details += [f"{measure.ties} ties"] if measure.ties else []
    details += [f"{measure.undefined} undefined"] if measure.undefined else []
    details += [f"{measure.clusters} {measure.resampled} resampled"] if measure.clusters else []
    details += [measure.note] if measure.note else []
    return {
        "measure": measure,
        "value": number(measure.value, digits_of(measure)),
        "span": span(measure) if measure.known else nothing,
        "at": scale.percent(measure.value),
        "low": scale.percent(measure.low),
        "high": scale.percent(measure.high),
        "answer": answer,
        "best": best,
        "details": ", ".join(details),
    }


def _column(report: Report, name: str) -> dict[str, Any]:
    scale = scale_of(line.measure for line in report.lines if line.measure.name == name and not line.part)
    control = best_of(report, report.controls, name)
    is_compared = any(report.verdict(model, name) for model in models_of(report))
    bar = scale.percent(control[1].value) if control and is_compared else None
    facts = {"name": name, "label": label(name), "meaning": meaning(name), "higher": higher_is_better(report, name)}
    return {**facts, "scale": scale, "bar": bar}


def _cell(report: Report, model: str, column: dict[str, Any]) -> dict[str, Any] | None:
    name = column["name"]
    measure = report.line(model, name)
    if measure is None:
        return None
    models = models_of(report)
    best = best_of(report, models, name)
    is_best = len(models) > 1 and best is not None and best[0] == model
    verdict = report.verdict(model, name)
    answer = "" if model in report.controls else verdict.answer if verdict else measure.note
    cell = measure_cell(measure, column["scale"], answer=answer, best=is_best)
    return {**cell, "published": [figure.printed for figure in report.figures(model, name)]}
