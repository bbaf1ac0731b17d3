"""From evidence to what a report says: lines, comparisons, verdicts in words, and warnings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from demerit.errors import BadInput, NotApplicable
from demerit.evaluate.benchmarks.benchmark import Benchmark
from demerit.evaluate.benchmarks.controls import ALWAYS_A, CONTROLS, unmet_expectations
from demerit.evaluate.benchmarks.evidence import Evidence
from demerit.evaluate.benchmarks.question import Question, Refused, answers
from demerit.evaluate.metrics import Comparison, Measure, compare, holm
from demerit.evaluate.metrics.controls import shown_nothing
from demerit.evaluate.reports.report import Line, Versus

FEW_TASKS = 10
"""with fewer clusters a bootstrap interval is too narrow to be believed"""


@dataclass(frozen=True)
class Findings:
    """Everything that follows from the evidence alone."""

    lines: tuple[Line, ...]
    comparisons: tuple[Versus, ...]
    verdicts: dict[str, tuple[str, ...]]
    headline: tuple[str, ...]
    """the headline measures that could be measured; if none could, the first that was"""
    warnings: tuple[str, ...] = field(default=())


def find(benchmark: Benchmark, evidence: Evidence, controls: Sequence[str]) -> Findings:
    """Ask every question of every model, compare the models, and say what it means."""
    lines: list[Line] = []
    refused: list[Refused] = []
    absent: list[Question] = []
    too_few: dict[str, list[str]] = {}
    for question in benchmark.questions:
        if question.lacking is not None and (reason := question.lacking(evidence)):
            too_few.setdefault(reason, []).append(question.name)
            continue
        models = _answering(question, evidence)
        found = list(answers(question, evidence, models))
        new = [one for one in found if isinstance(one, Line)]
        turned_away = [one for one in found if isinstance(one, Refused)]
        lines += new
        refused += turned_away
        absent += [] if new or len(turned_away) == len(models) else [question]
    measured = list(dict.fromkeys(line.measure.name for line in lines))
    headline = tuple(name for name in benchmark.headline if name in measured) or tuple(measured[:1])
    models = [name for name in evidence.cards if name not in controls]
    comparisons = _comparisons(benchmark, evidence, lines, headline, models)
    verdicts = {name: tuple(_verdicts(benchmark, lines, headline, name)) for name in models}
    # What makes numbers doubtful comes before what is merely missing: readers stop early.
    warnings = (
        *unmet_expectations(evidence, lines),
        *_doubts(evidence, lines),
        *_refusals(refused, controls),
        *(f"{_are(names)} not measured: {reason}." for reason, names in too_few.items()),
        *_absent(absent),
    )
    return Findings(tuple(lines), comparisons, verdicts, headline, warnings)


def _answering(question: Question, evidence: Evidence) -> list[str]:
    models = [name for name in evidence.cards if question.asks_comparers or name != ALWAYS_A]
    return [name for name in models if question.only is None or question.only(evidence, name)]


def _measures(lines: Sequence[Line], name: str) -> dict[str, Measure]:
    return {line.model: line.measure for line in lines if line.measure.name == name and not line.part}


def _rivals(question: Question, found: dict[str, Measure], model: str) -> dict[str, Measure]:
    """The controls that a model has to beat, also those that were asked for as models."""
    names = set(CONTROLS) - set(question.beaten_by) - {model}
    return {name: measure for name, measure in found.items() if name in names and measure.known}


def _best(question: Question, found: dict[str, Measure]) -> str | None:
    sign = -1.0 if question.lower_is_better else 1.0
    return max(found, key=lambda name: sign * found[name].value, default=None)


def _comparisons(
    benchmark: Benchmark, evidence: Evidence, lines: Sequence[Line], headline: Sequence[str], models: Sequence[str]
) -> tuple[Versus, ...]:
    """Compare every two models, and every model with the best control, by each headline measure."""
    found: list[tuple[str, str, str, Comparison]] = []
    for measure in headline:
        question = benchmark.question(measure)
        values = _measures(lines, measure)
        pairs = [pair for pair in combinations(models, 2) if set(pair) <= set(values)]
        for model in (name for name in models if name in values):
            best = _best(question, _rivals(question, values, model))
            pairs += [(model, best)] if best is not None and (best, model) not in pairs else []
        for first, second in dict.fromkeys(pairs):
            compared = _compared(question, evidence, first, second)
            found += [(first, second, measure, compared)] if compared is not None else []
    adjusted = holm({str(i): one.p for i, (*_, one) in enumerate(found)})
    return tuple(
        Versus(first, second, measure, one.difference, one.low, one.high, one.p, adjusted[str(i)], one.n)
        for i, (first, second, measure, one) in enumerate(found)
    )


def _compared(question: Question, evidence: Evidence, first: str, second: str) -> Comparison | None:
    about = question.about(evidence)
    try:
        ours, theirs = (question.numbers(about, name) for name in (first, second))
        return compare(lambda numbers: question.counting(about, numbers), ours, theirs, about.settings.resampling)
    except (BadInput, NotApplicable):
        return None  # the measure is defined on other rows for the two: there is no paired difference


def _verdicts(benchmark: Benchmark, lines: Sequence[Line], headline: Sequence[str], model: str) -> Iterator[str]:
    for name in headline:
        question, found = benchmark.question(name), _measures(lines, name)
        if model not in found:
            yield f"{name}: not measured for this model."
            continue
        rivals = _rivals(question, found, model)
        if not rivals:
            yield f"{name}: no control was scored, so that nothing can be said against chance."
            continue
        if model in question.beaten_by:
            yield f"{name}: {found[model].value:.3f} by construction, counting frames; it has shown nothing here."
            continue
        said = shown_nothing(found[model], rivals, higher_is_better=not question.lower_is_better)
        yield said or _beats(question, found[model], rivals)
        for control in (one for one in question.beaten_by if one in found and found[one].known):
            yield (
                f"{name}: the control {control} ({found[control].value:.3f}) is left aside, since counting frames "
                "alone gives it the top; so the figure says nothing by itself, only beside that of shuffled frames."
            )


def _beats(question: Question, measure: Measure, rivals: dict[str, Measure]) -> str:
    best = _best(question, rivals)
    span = f"{measure.value:.3f} ({measure.low:.3f} to {measure.high:.3f})"
    nearest = f"{best} ({rivals[best].value:.3f})" if best is not None else "none"
    return f"{measure.name}: {span} is clear of all {len(rivals)} controls, of which the best is {nearest}."


def _absent(questions: Sequence[Question]) -> Iterator[str]:
    by_need: dict[str, list[str]] = {}
    for question in questions:
        by_need.setdefault(question.needs, []).append(question.name)
    for needs, names in by_need.items():
        noun = "it needs" if len(names) == 1 else "they need"
        yield f"{_are(names)} not measured: {noun} {needs}, and this data has none."


def _are(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def _refusals(refused: Sequence[Refused], controls: Sequence[str]) -> Iterator[str]:
    """Say what could not be asked of a model; of a control nobody expects it."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for one in (one for one in refused if one.model not in controls):
        by_reason.setdefault((one.model, one.reason), []).append(one.question)
    for (model, reason), names in by_reason.items():
        yield f"{model}: {reason}; refused: {', '.join(names)}."


def _doubts(evidence: Evidence, lines: Sequence[Line]) -> Iterator[str]:
    """Say what makes the intervals or the labels doubtful."""
    tasks = len(set(evidence.tasks))
    if tasks < FEW_TASKS:
        noun = "task" if tasks == 1 else "tasks"
        yield f"Intervals rest on {tasks} {noun}: too few to be believed; they are rather wider than shown."
    length = next(
        (one.measure for one in lines if (one.model, one.measure.name, one.part) == ("length", "auroc", "")), None
    )
    if length is not None and length.known and not math.isnan(length.low) and not length.low <= 1 / 2 <= length.high:
        yield (
            f"The length of an episode alone tells success from failure (auroc {length.value:.3f}, "
            f"{length.low:.3f} to {length.high:.3f}): a model can win here by counting frames."
        )
    judged = [one for one in evidence.episodes if one.success is not None or one.progress is not None]
    by_people = [one for one in judged if one.vouched_by.startswith(("human", "simulator"))]
    if judged and not by_people:
        whose = ", ".join(sorted({one.vouched_by for one in judged}))
        yield f"No person and no simulator vouches for the labels; they come from: {whose}."
    unreadable = int(np.sum([one.frames == 0 for one in evidence.episodes]))
    if unreadable:
        yield f"{unreadable} of {len(evidence.episodes)} videos cannot be read."
