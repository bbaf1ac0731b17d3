"""The still parts of the report page: headline cells, accuracy by category, comparisons, what was unscored."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from demerit.evaluate.metrics import Measure
from demerit.evaluate.metrics.category_rules import Category
from demerit.evaluate.reports.page.words import (
    CHANCE_IS_HALF,
    best_of,
    digits_of,
    headline_measures,
    higher_is_better,
    is_clear,
    joined,
    label,
    meaning,
    models_of,
    number,
    span,
    told_apart,
)
from demerit.evaluate.reports.report import AS_RECORDED, Report

PART = "category: "
EXAMPLES = 3


@dataclass(frozen=True)
class Scale:
    """A horizontal axis: positions are percent of its width."""

    low: float
    high: float

    def percent(self, value: float) -> float | None:
        """Where a value stands; None for NaN."""
        if math.isnan(value):
            return None
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Five positions with their labels."""
        values = np.linspace(self.low, self.high, 5)
        return [(25.0 * i, f"{value:.3g}".replace("-", "−")) for i, value in enumerate(values)]


def scale_of(values: Iterable[float]) -> Scale:
    """0..1 or -1..1 where everything fits, so that charts of one kind look alike; else what is there, and a margin."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return Scale(0.0, 1.0)
    low, high = min(known), max(known)
    for bound in (0.0, -1.0):
        if bound <= low and high <= 1:
            return Scale(bound, 1.0)
    start = 0.0 if 0 <= low else low
    margin = 0.05 * (high - start) or 1.0
    return Scale(start - (margin if start else 0.0), high + margin)


@dataclass(frozen=True)
class Cell:
    """A measure, ready to draw: numbers as text, positions in percent."""

    measure: Measure
    value: str
    span: str
    at: float | None
    low: float | None
    high: float | None
    clear: bool
    """its whole interval is beyond every control"""
    best: bool
    details: str


@dataclass(frozen=True)
class Column:
    """A headline measure."""

    name: str
    label: str
    meaning: str
    higher: bool
    scale: Scale
    bar: float | None
    """position of the best control: what there is to clear"""


@dataclass(frozen=True)
class Row:
    """A model in the headline table; a cell is None where the report has no such measure."""

    model: str
    cells: tuple[Cell | None, ...]


def headline(report: Report) -> tuple[list[Column], list[Row], list[Row]]:
    """Lay out the headline table: columns, rows of models, rows of controls."""
    columns = [_column(report, name) for name in headline_measures(report)]
    rows = [Row(card.name, tuple(_cell(report, card.name, column) for column in columns)) for card in report.cards]
    apart = [row for row in rows if row.model in report.controls]
    return columns, [row for row in rows if row.model not in report.controls], apart


def _column(report: Report, name: str) -> Column:
    measures = [line.measure for line in report.lines if line.measure.name == name and not line.part]
    scale = scale_of(end for one in measures for end in (one.value, one.low, one.high))
    control = best_of(report, report.controls, name)
    bar = scale.percent(control[1].value) if control else None
    return Column(name, label(name), meaning(name), higher_is_better(report, name), scale, bar)


def _cell(report: Report, model: str, column: Column) -> Cell | None:
    measure = report.line(model, column.name)
    if measure is None:
        return None
    rivals = models_of(report)
    best = best_of(report, rivals, column.name)
    is_best = len(rivals) > 1 and best is not None and best[0] == model
    ours = model not in report.controls
    return drawn(measure, column.scale, clear=ours and is_clear(report, measure), best=is_best)


def drawn(measure: Measure, scale: Scale, *, clear: bool = False, best: bool = False) -> Cell:
    """Prepare a measure for drawing."""
    ends = (scale.percent(measure.value), scale.percent(measure.low), scale.percent(measure.high))
    value = number(measure.value, digits_of(measure))
    return Cell(measure, value, span(measure) if measure.known else _nothing(measure), *ends, clear, best, _n(measure))


def _nothing(measure: Measure) -> str:
    if measure.undefined:
        return "undefined"
    return "unscored" if measure.unscored else "nothing to measure"


def _n(measure: Measure) -> str:
    facts = [f"{measure.n} {measure.unit}", f"{measure.unscored} unscored"]
    facts += [f"{measure.ties} ties"] if measure.ties else []
    facts += [f"{measure.undefined} undefined"] if measure.undefined else []
    facts += [f"{measure.clusters} tasks"] if measure.clusters else []
    return ", ".join(facts + ([measure.note] if measure.note else []))


@dataclass(frozen=True)
class CategoryRow:
    """One category: a cell per model, None where there is nothing."""

    name: str
    n: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class CategoryChart:
    """Accuracy by category, in rising complexity."""

    measure: str
    label: str
    scale: Scale
    chance: float | None
    """position of the random line"""
    rows: tuple[CategoryRow, ...]


def category_chart(report: Report) -> CategoryChart | None:
    """Lay out the chart by category; None when the report has no such lines."""
    lines = [line for line in report.lines if line.part.startswith(PART)]
    names = list(dict.fromkeys(line.measure.name for line in lines))
    if not names:
        return None
    name = next((one for one in headline_measures(report) if one in names), names[0])
    chosen = {(line.part.removeprefix(PART), line.model): line.measure for line in lines if line.measure.name == name}
    scale = scale_of(end for one in chosen.values() for end in (one.value, one.low, one.high))
    order = [str(kind) for kind in Category]
    kinds = sorted({kind for kind, _ in chosen}, key=lambda kind: order.index(kind) if kind in order else len(order))
    rows = []
    for kind in kinds:
        measures = [chosen.get((kind, card.name)) for card in report.cards]
        known = [one for one in measures if one is not None and one.known]
        most = max(known, key=lambda one: one.n, default=None)
        cells = tuple(None if one is None or not one.known else drawn(one, scale) for one in measures)
        rows.append(CategoryRow(kind, f"{most.n} {most.unit}" if most else "nothing to measure", cells))
    chance = scale.percent(0.5) if name.startswith(CHANCE_IS_HALF) else None
    return CategoryChart(name, label(name), scale, chance, tuple(rows))


@dataclass(frozen=True)
class Unscored:
    """What one model did not score, for one reason."""

    model: str
    reason: str
    whole: int
    """episodes with no value at all"""
    partly: int
    examples: str


def unscored(report: Report) -> list[Unscored]:
    """Group what was not scored by model and reason, the most frequent first; a reward that is absent counts too."""
    groups: dict[tuple[str, str], list[tuple[str, bool]]] = {}
    for card in report.cards:
        rewards = report.rewards_of(card.name, AS_RECORDED)
        for episode in report.episodes:
            reward = rewards.get(episode.id)
            reason = "the report has no reward for it" if reward is None else reward.why_missing
            if reason:
                groups.setdefault((card.name, reason), []).append((episode.id, bool(reward and reward.scored)))
    found = []
    for (model, reason), cases in groups.items():
        some = ", ".join(id for id, _ in cases[:EXAMPLES]) + (" ..." if len(cases) > EXAMPLES else "")
        partly = sum(scored for _, scored in cases)
        found.append(Unscored(model, reason, len(cases) - partly, partly, some))
    return sorted(found, key=lambda one: -(one.whole + one.partly))


@dataclass(frozen=True)
class ComparisonRow:
    """A comparison of two models, with its reading in words."""

    first: str
    second: str
    measure: str
    numbers: tuple[tuple[str, float], ...]
    """difference, low, high, p, adjusted p: as text and as numbers to sort by"""
    n: int
    words: str


def comparisons(report: Report) -> list[ComparisonRow]:
    """Put the pairwise comparisons in words."""
    rows = []
    for one in report.comparisons:
        sign = 1 if higher_is_better(report, one.measure) else -1
        better = one.first if sign * one.difference > 0 else one.second
        words = f"{better} is better" if told_apart(one) else "cannot be told apart"
        texts = [number(value, 3) for value in (one.difference, one.low, one.high)] + [_p(one.p), _p(one.p_adjusted)]
        values = (one.difference, one.low, one.high, one.p, one.p_adjusted)
        numbers = tuple(zip(texts, values, strict=True))
        rows.append(ComparisonRow(one.first, one.second, label(one.measure), numbers, one.n, words))
    return rows


def _p(value: float) -> str:
    least = 0.001
    return number(value, 3) if math.isnan(value) or value >= least else "< 0.001"


def uneven(report: Report) -> str:
    """Warn where models left out different numbers of episodes: their values then rest on other episodes."""
    missing = {model: 0 for model in models_of(report)}
    for one in unscored(report):
        if one.model in missing:
            missing[one.model] += one.whole + one.partly
    if len(set(missing.values())) < 2:  # noqa: PLR2004
        return ""
    counts = joined(f"{model} {count}" for model, count in missing.items())
    return f"The models did not score the same episodes, so their numbers rest on different ones; unscored: {counts}."
