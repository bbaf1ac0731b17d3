"""From scores to the results of a report: lines, comparisons, verdicts in words, and warnings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import get_args

import numpy as np

from demerit.data.arrays import Floats
from demerit.errors import BadInput, NotApplicable
from demerit.evaluate.benchmarks.benchmark import Benchmark
from demerit.evaluate.benchmarks.metric_specs import risk_expectations
from demerit.evaluate.benchmarks.scores import ALWAYS_A, CONTROLS, MetricSpec, Scores, instruction_probes
from demerit.evaluate.metrics import Comparison, Measure, holm
from demerit.evaluate.metrics.bootstrap import FEW_TASKS, pair_up
from demerit.evaluate.metrics.verdict import Control, ControlVerdict, Expectation, decide, expectations
from demerit.evaluate.reports.headline import label
from demerit.evaluate.reports.report import MeasureLine, Versus


@dataclass(frozen=True)
class BenchmarkResults:
    """Everything that follows from the scores alone."""

    lines: tuple[MeasureLine, ...]
    comparisons: tuple[Versus, ...]
    verdicts: dict[str, tuple[str, ...]]
    decisions: tuple[ControlVerdict, ...]
    headline: tuple[str, ...]
    """the headline metrics that could be measured; if none could, the first that was and that no control tops"""
    warnings: tuple[str, ...] = ()


Refusal = tuple[str, str, str]
"""a metric that cannot be computed for a model: metric, model and why"""


def compute_results(benchmark: Benchmark, scores: Scores, controls: Sequence[str]) -> BenchmarkResults:
    """Compute every metric of every model, compare the models, and put it in words."""
    lines: list[MeasureLine] = []
    refused: list[Refusal] = []
    absent: list[MetricSpec] = []
    too_few: dict[str, list[str]] = {}
    for metric in benchmark.metrics:
        if metric.lacking is not None and (reason := metric.lacking(scores)):
            too_few.setdefault(reason, []).append(metric.name)
            continue
        models = [name for name in scores.cards if _applies(metric, scores, name)]
        measured, refusals = _measure_models(metric, scores, models)
        lines += measured
        refused += refusals
        absent += [] if measured or len(refusals) == len(models) else [metric]
    names = list(dict.fromkeys(line.measure.name for line in lines))
    headline = tuple(name for name in benchmark.headline if name in names)
    if not headline:
        open_to_all = [name for name in names if not benchmark.metric(name).top_by_construction]
        headline = tuple((open_to_all or names)[:1])
    models = [name for name in scores.cards if name not in controls]
    # What makes numbers doubtful comes before what is merely missing.
    warnings = (
        *_unmet_expectations(scores, lines),
        *_doubts(scores, lines),
        *_refusal_warnings(refused, controls),
        *(f"{_are(names)} not measured: {reason}." for reason, names in too_few.items()),
        *_absent_warnings(absent),
    )
    comparisons = _comparisons(benchmark, scores, lines, headline, models)
    decisions = tuple(_decide(benchmark, scores, lines, headline, controls))
    verdicts = {name: tuple(_put_in_words(benchmark, lines, headline, decisions, name)) for name in models}
    return BenchmarkResults(tuple(lines), comparisons, verdicts, decisions, headline, warnings)


def _applies(metric: MetricSpec, scores: Scores, model: str) -> bool:
    if model == ALWAYS_A and not metric.asks_comparers:
        return False
    return metric.applies_to is None or metric.applies_to(scores, model)


def _measure_models(
    metric: MetricSpec, scores: Scores, models: Sequence[str]
) -> tuple[list[MeasureLine], list[Refusal]]:
    lines: list[MeasureLine] = []
    refused: list[Refusal] = []
    for model in models:
        if metric.across and not scores.cards[model].comparable:
            refused.append((metric.name, model, "its values cannot be compared between episodes"))
            continue
        try:
            lines += list(metric.lines(scores, model))
        except NotApplicable as refusal:
            refused.append((metric.name, model, refusal.reason))
    return lines, refused


# Comparisons and verdicts


def _by_model(lines: Sequence[MeasureLine], name: str) -> dict[str, Measure]:
    return {line.model: line.measure for line in lines if line.measure.name == name and not line.part}


def _rivals(metric: MetricSpec, measures: dict[str, Measure], model: str) -> dict[str, Measure]:
    """The controls that a model has to beat, including those that were given as models."""
    names = set(CONTROLS) - set(metric.top_by_construction) - {model}
    return {name: measure for name, measure in measures.items() if name in names and measure.known}


def _best(metric: MetricSpec, measures: dict[str, Measure]) -> str | None:
    sign = -1.0 if metric.lower_is_better else 1.0
    return max(measures, key=lambda name: sign * measures[name].value, default=None)


def _comparisons(
    benchmark: Benchmark, scores: Scores, lines: Sequence[MeasureLine], headline: Sequence[str], models: Sequence[str]
) -> tuple[Versus, ...]:
    """Compare every two models, and every model with the best control, by each headline metric."""
    comparisons: list[tuple[str, str, str, Comparison]] = []
    for name in headline:
        metric, measures = benchmark.metric(name), _by_model(lines, name)
        pairs = [pair for pair in combinations(models, 2) if set(pair) <= set(measures)]
        for model in (model for model in models if model in measures):
            best = _best(metric, _rivals(metric, measures, model)) if metric.has_controls else None
            pairs += [(model, best)] if best is not None and (best, model) not in pairs else []
        for first, second in dict.fromkeys(pairs):
            compared = _compare(metric, scores, first, second)
            comparisons += [(first, second, name, compared[0])] if compared is not None else []
    adjusted = holm({str(i): compared.p for i, (*_, compared) in enumerate(comparisons)})
    return tuple(
        Versus(first, second, name, result.difference, result.low, result.high, result.p, adjusted[str(i)], result.n)
        for i, (first, second, name, result) in enumerate(comparisons)
    )


def _compare(metric: MetricSpec, scores: Scores, first: str, second: str) -> tuple[Comparison, Floats] | None:
    key = ("compared", metric.name, first, second, scores.ids)
    return scores.compute_once(key, lambda: _compare_once(metric, scores, first, second))


def _compare_once(metric: MetricSpec, scores: Scores, first: str, second: str) -> tuple[Comparison, Floats] | None:
    selected = metric.select(scores)
    try:
        ours, theirs = (metric.numbers(selected, name) for name in (first, second))
        return pair_up(lambda numbers: metric.tally_of(selected, numbers), ours, theirs, selected.settings.resampling)
    except (BadInput, NotApplicable):
        return None  # the metric is defined on different rows for the two: there is no paired difference


def _decide(
    benchmark: Benchmark, scores: Scores, lines: Sequence[MeasureLine], headline: Sequence[str], controls: Sequence[str]
) -> Iterator[ControlVerdict]:
    """Decide by each headline measure whether each model beats the controls, those given as models included."""
    all_controls = {*CONTROLS, *controls}
    for model in (name for name in scores.cards if name not in controls):
        for metric in (benchmark.metric(name) for name in headline):
            measures = _by_model(lines, metric.name)
            if not metric.has_controls or model not in measures or not measures[model].known:
                continue
            rivals = [name for name in measures if name in all_controls - {model} and measures[name].known]
            topped = [name for name in rivals if name in metric.top_by_construction]
            comparisons = {name: _compare(metric, scores, model, name) for name in rivals if name not in topped}
            selected = metric.select(scores)
            verdict = decide(
                model,
                {name: pair for name, pair in comparisons.items() if pair is not None},
                higher_is_better=not metric.lower_is_better,
                level=scores.settings.resampling.level,
                resampled=measures[model].resampled,
                tasks=0 if selected.clusters == selected.tasks else len(set(selected.tasks)),
                by_construction=", ".join([*topped, *([model] if model in metric.top_by_construction else [])]),
            )
            if verdict is not None:
                yield replace(verdict, measure=metric.name)


def _put_in_words(
    benchmark: Benchmark,
    lines: Sequence[MeasureLine],
    headline: Sequence[str],
    decisions: Sequence[ControlVerdict],
    model: str,
) -> Iterator[str]:
    decided = {verdict.measure: verdict for verdict in decisions if verdict.model == model}
    for name in headline:
        measure = _by_model(lines, name).get(model)
        if measure is None or not measure.known:
            yield f"{label(name)}: not measured for this model."
        elif name in decided:
            yield f"{label(name)}: {decided[name].words}"
        elif benchmark.metric(name).has_controls:
            yield f"{label(name)}: {measure.value:.3f}; no control was scored to compare with."
        else:
            count = measure.value * measure.n
            is_share = 0 <= measure.value <= 1 and math.isclose(count, round(count), abs_tol=1e-6)
            value = str(round(count)) if is_share else f"{measure.value:.3f}, mean"
            yield f"{label(name)}: {value} of {measure.n} {measure.unit}; {measure.note}."


# Warnings


def _unmet_expectations(scores: Scores, lines: list[MeasureLine]) -> Iterator[str]:
    """Warn if a control does not score exactly what it must: then a metric or the data is broken.

    Expectations that hold only in the mean are not checked: of many intervals, some miss.
    """
    for name in (*CONTROLS, ALWAYS_A):
        if name not in scores.cards or name.replace("-", "_") not in get_args(Control):
            continue
        table = _expectations(scores, name)
        for line in lines:
            expected = table.get(line.measure.name)
            if line.model != name or line.part or expected is None or not expected.exact:
                continue
            if not expected.fits(line.measure):
                actual, want = f"{line.measure.value:.3f}", f"{expected.value:.3f}"
                yield (
                    f"The control {name} scores {actual} in {label(line.measure.name)} where theory says {want} "
                    f"({expected.why}): do not trust this measure on this data."
                )


def _expectations(scores: Scores, name: str) -> dict[str, Expectation]:
    scored = np.zeros(len(scores.episodes), bool) if name == ALWAYS_A else ~np.isnan(scores.finals(name))
    labelled = scores.success[scored & ~np.isnan(scores.success)]
    verdicts = [pair.verdict for pair in scores.preferences if pair.verdict != "tie"]
    control: Control = name.replace("-", "_")  # type: ignore[assignment]
    table = expectations(
        control,
        success_share=float(labelled.mean()) if len(labelled) else float("nan"),
        a_share=verdicts.count("a") / len(verdicts) if verdicts else float("nan"),
        tasks=len(instruction_probes(scores.episodes)),
    )
    table |= risk_expectations(scores, name)
    if name in ("constant", "clock"):
        table["failure_latency"] = Expectation(float("nan"), True, "it never falls, so that it is never late")
    return table


def _doubts(scores: Scores, lines: Sequence[MeasureLine]) -> Iterator[str]:
    """Warn about what makes intervals or labels doubtful."""
    clusters, noun = scores.units
    tasks, count = len(set(scores.tasks)), len(set(clusters))
    if noun != "tasks" and clusters != scores.tasks:
        yield (
            f"There {'is one task' if tasks == 1 else f'are {tasks} tasks'}, so intervals resample {count} {noun}: "
            f"they are about more {noun} of the same, not about other tasks."
        )
    if count < FEW_TASKS:
        yield f"Intervals rest on {count} {noun}: too few to be trusted; the true intervals are wider."
    length = _by_model(lines, "auroc").get("length")
    if length is not None and length.known and not math.isnan(length.low) and not length.low <= 1 / 2 <= length.high:
        yield (
            f"The length of an episode alone tells success from failure (AUROC {length.value:.3f}, "
            f"{length.low:.3f} to {length.high:.3f}): a model can win here by counting frames."
        )
    labelled = [row for row in scores.episodes if row.success is not None or row.progress is not None]
    if labelled and not any(row.vouched_by.startswith(("human", "simulator")) for row in labelled):
        sources = ", ".join(sorted({row.vouched_by for row in labelled}))
        yield f"No label comes from a person or a simulator; label sources: {sources}."
    unreadable = sum(row.frames == 0 for row in scores.episodes)
    if unreadable:
        yield f"{unreadable} of {len(scores.episodes)} videos cannot be read."


def _refusal_warnings(refused: Sequence[Refusal], controls: Sequence[str]) -> Iterator[str]:
    """Warn about metrics that could not be computed for a model; for controls that is expected."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for metric, model, reason in refused:
        if model not in controls:
            by_reason.setdefault((model, reason), []).append(metric)
    for (model, reason), names in by_reason.items():
        yield f"{model}: {reason}; refused: {'; '.join(map(label, names))}."


def _absent_warnings(metrics: Sequence[MetricSpec]) -> Iterator[str]:
    by_need: dict[str, list[str]] = {}
    for metric in metrics:
        by_need.setdefault(metric.needs, []).append(metric.name)
    for needs, names in by_need.items():
        noun = "it needs" if len(names) == 1 else "they need"
        yield f"{_are(names)} not measured: {noun} {needs}, and this data has none."


def _are(names: Sequence[str]) -> str:
    return f"{'; '.join(map(label, names))} {'is' if len(names) == 1 else 'are'}"
