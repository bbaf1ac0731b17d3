"""The report as one HTML file, and the parts that every page of demerit shares.

Everything is inlined: a page makes no request. Templates, style sheet and scripts are in `assets/pages`; the blocks
that pages share (player, episode table, headline table) are macros in `blocks.html.j2`.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from demerit.data.episode import count_episodes
from demerit.data.files import write_atomic
from demerit.data.frames import Frames
from demerit.data.reward import Reward
from demerit.errors import BadInput
from demerit.evaluate.metrics import Category, Resampling
from demerit.evaluate.metrics.success import Reliability, reliability
from demerit.evaluate.reports.headline import (
    MeasureCell,
    Scale,
    headline,
    headline_measures,
    higher_is_better,
    is_significant,
    join_words,
    label,
    lead,
    meaning,
    measure_cell,
    models_of,
    number,
    scale_of,
)
from demerit.evaluate.reports.player import (
    LISTED,
    ExamplePick,
    ReportClip,
    make_clips,
    page_curves,
    page_data,
    pick_examples,
    script_json,
)
from demerit.evaluate.reports.report import Report, resampling_units
from demerit.models.protocol import ModelCard

COLOURS, MARKERS = 7, 6
"""numbers of colours and markers in the style sheet: 42 models look different"""
CATEGORY_PART = "category: "
CHANCE_IS_HALF = ("preference_ordering", "judgement_agreement", "both_orders_agreement", "right_instruction", "auroc")
EXAMPLES = 3
DIAGRAM_RESAMPLING = Resampling(resamples=2000, alone="rows")
SIDE, LARGEST, SMALLEST = 180.0, 9.0, 2.5
"""of a reliability diagram: its side, and the largest and smallest radius of a point"""
LEAST_P = 0.001
WRITERS = {"people": "from what people wrote", "records": "from recorded kinds of failure, as there are no remarks"}
"""sources of the failure descriptions that prompted models write into `Reward.given`"""


@dataclass(frozen=True)
class ModelStyle:
    """How a model is drawn on a page: CSS classes and the id of a marker."""

    css: str
    marker: str


def write_page(report: Report, path: str | Path, frames: Mapping[str, Frames] | None = None, embed: int = 24) -> Path:
    """Write the report as one self-contained HTML file.

    Args:
        report: the report.
        path: the file to write, atomically; its folder must exist.
        frames: videos by episode id; without them only curves are shown.
        embed: number of videos to embed.

    Returns:
        The path.
    """
    if embed < 0:
        raise BadInput("embed", "a number of videos, 0 or more", embed)
    path = Path(path)
    write_atomic(path, render_report(report, frames or {}, embed, path.with_suffix(".json").name).encode())
    return path


def render_report(report: Report, frames: Mapping[str, Frames], embed: int, json_name: str = "report.json") -> str:
    """Return the HTML text; `json_name` is the file that the page names for recomputing."""
    return render(
        "report.html.j2",
        **player_parts(report, pick_examples(report, max(embed, LISTED)), frames, embed),
        lead=lead(report),
        table=headline(report),
        chart=category_chart(report),
        diagrams=reliability_diagrams(report),
        side=SIDE,
        prompts=prompt_summaries(report),
        unscored=unscored_groups(report),
        warnings=[*report.warnings, *filter(None, [uneven_warning(report)])],
        comparisons=comparison_rows(report),
        all_lines=_all_lines(report),
        facts=report_facts(report),
        json_name=json_name,
    )


def render(template: str, *, scripts: Sequence[str] = ("tables.js",), **parts: Any) -> str:
    """Render a template with the shared style sheet, and scripts that the page's content policy allows by hash."""
    script = Markup("").join(["\n", *(asset(name) for name in scripts)])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shared = {"style": asset("style.css"), "script": script, "script_hash": f"sha256-{digest}"}
    return environment().get_template(template).render(**shared, **parts)


def player_parts(
    report: Report, picks: Sequence[ExamplePick], frames: Mapping[str, Frames], embed: int
) -> dict[str, Any]:
    """Return the template variables of a page with a player and a table of episodes."""
    # Only episodes with frames count: a pick without a video leaves its place to the next.
    watched = [pick.episode for pick in picks if pick.episode.id in frames][:embed]
    clips = make_clips(watched, frames)
    index = {episode.id: i for i, episode in enumerate(report.episodes)}
    styles = model_styles(report)
    classes = {name: style.css for name, style in styles.items()}
    return {
        "report": report,
        "styles": styles,
        "picks": picks,
        "clips": clips,
        "videos": {index[id]: clip for id, clip in clips.items() if clip.video},
        "data": Markup(script_json(page_data(report, clips, classes, embed))),
        "curves": Markup(script_json(page_curves(report, clips))),
        "scripts": ("tables.js", "player.js", "episodes.js"),
        "no_clip": ReportClip(),
    }


def model_styles(report: Report) -> dict[str, ModelStyle]:
    """Return the looks of a report's models."""
    return style_models((card.name for card in report.cards), report.controls)


def style_models(names: Iterable[str], known_controls: Collection[str]) -> dict[str, ModelStyle]:
    """Return colour, dash and marker by model; controls are grey and differ by dash."""
    styles, models, controls = {}, 0, 0
    for name in names:
        if name in known_controls:
            styles[name] = ModelStyle(f"control d{controls % MARKERS}", f"m{controls % MARKERS}")
            controls += 1
        else:
            styles[name] = ModelStyle(f"s{models % COLOURS} d{models % MARKERS}", f"m{models % MARKERS}")
            models += 1
    return styles


def report_facts(report: Report, groups: str = "tasks") -> list[str]:
    """Count the episodes, tasks, preferences and label sources of a report, as phrases."""
    outcomes = Counter(episode.success for episode in report.episodes)
    counts = {"successes": outcomes[True], "failures": outcomes[False], "of unknown outcome": outcomes[None]}
    parts = join_words(f"{count} {word}" for word, count in counts.items() if count)
    sources = join_words(sorted({episode.vouched_by for episode in report.episodes if episode.vouched_by}))
    facts = [f"{count_episodes(len(report.episodes))}" + (f": {parts}" if parts else "")]
    tasks = len({episode.task for episode in report.episodes})
    facts += [f"{tasks} {groups}" if tasks != 1 else f"1 {groups.removesuffix('s')}"]
    by_source = Counter(preference.source for preference in report.preferences)
    facts += [f"{count} preferences by {source}" for source, count in by_source.most_common()]
    return facts + ([f"labels by {sources}"] if sources else [])


@cache
def environment() -> Environment:
    """Everything that a template prints is escaped, and an undefined name is an error."""
    env = Environment(
        loader=FunctionLoader(lambda name: str(asset(name))),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(label=label, meaning=meaning, number=number, join_words=join_words, keep_options=keep_options)
    return env


def keep_options(text: str) -> Markup:
    """Escape a sentence: what stands in backticks is code, and no line ends inside an option such as `--risk 0.1`."""
    code = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"--[a-z][\w-]*(?: [\d.]*\d)?", r'<span class="option">\g<0></span>', code))


@cache
def asset(name: str) -> Markup:
    """Return the text of a file in `assets/pages`, unescaped."""
    return Markup((files("demerit") / "assets" / "pages" / name).read_text("utf-8"))


def _all_lines(report: Report) -> list[dict[str, Any]]:
    """Every measure of every model and part; those of one name share a scale."""
    names = {line.measure.name for line in report.lines}
    scales = {name: scale_of(line.measure for line in report.lines if line.measure.name == name) for name in names}
    return [
        {"model": line.model, "part": line.part, "cell": measure_cell(line.measure, scales[line.measure.name])}
        for line in report.lines
    ]


# Categories


@dataclass(frozen=True)
class CategoryRow:
    """One category: a cell per model, None where there is nothing."""

    name: str
    n: str
    cells: tuple[MeasureCell | None, ...]


@dataclass(frozen=True)
class CategoryChart:
    """One measure by category, in rising complexity."""

    measure: str
    label: str
    scale: Scale
    chance: float | None
    """position of chance, where it is 1/2"""
    rows: tuple[CategoryRow, ...]


def category_chart(report: Report) -> CategoryChart | None:
    """Lay out the chart by category; None if the report has no such lines."""
    lines = [line for line in report.lines if line.part.startswith(CATEGORY_PART)]
    names = list(dict.fromkeys(line.measure.name for line in lines))
    if not names:
        return None
    name = next((measure for measure in headline_measures(report) if measure in names), names[0])
    chosen = {
        (line.part.removeprefix(CATEGORY_PART), line.model): line.measure for line in lines if line.measure.name == name
    }
    scale = scale_of(chosen.values())
    order = [*Category]
    kinds = sorted({kind for kind, _ in chosen}, key=lambda kind: order.index(kind) if kind in order else len(order))
    rows = []
    for kind in kinds:
        measures = [chosen.get((kind, card.name)) for card in report.cards]
        known = [measure for measure in measures if measure is not None and measure.known]
        most = max(known, key=lambda measure: measure.n, default=None)
        cells = tuple(measure_cell(measure, scale) if measure in known else None for measure in measures)
        rows.append(CategoryRow(kind, f"{most.n} {most.unit}" if most else "nothing to measure", cells))
    chance = scale.percent(0.5) if name.startswith(CHANCE_IS_HALF) else None
    return CategoryChart(name, label(name), scale, chance, tuple(rows))


# Reliability


@dataclass(frozen=True)
class ReliabilityPoint:
    """A bin, in the units of the diagram ((0, 0) is the upper left corner)."""

    x: float
    y: float
    low: float | None
    high: float | None
    radius: float
    text: str


@dataclass(frozen=True)
class ReliabilityDiagram:
    """One model's diagram, or the reason why there is none."""

    model: str
    control: bool
    points: tuple[ReliabilityPoint, ...] = ()
    caption: str = ""
    why_not: str = ""


def reliability_diagrams(report: Report) -> list[ReliabilityDiagram]:
    """Lay out a diagram per model; empty if no episode has a known success."""
    if all(episode.success is None for episode in report.episodes):
        return []
    return [_diagram(report, card) for card in report.cards]


def _diagram(report: Report, card: ModelCard) -> ReliabilityDiagram:
    is_control = card.name in report.controls
    rewards = report.rewards_of(card.name)
    gives_probability = any(reward.success is not None for reward in rewards.values())
    if not gives_probability and (card.low, card.high) != (0.0, 1.0):
        reason = f"its {card.quantity} is not a probability and does not run from 0 to 1"
        return ReliabilityDiagram(card.name, is_control, why_not=reason)
    labelled = [episode for episode in report.episodes if episode.success is not None]
    predicted = np.array([_probability(rewards.get(episode.id), gives_probability) for episode in labelled])
    if np.isnan(predicted).all():
        return ReliabilityDiagram(card.name, is_control, why_not="it scored no labelled episode")
    success = np.array([float(bool(episode.success)) for episode in labelled])
    bins = reliability(predicted, success, clusters=resampling_units(labelled)[0], resampling=DIAGRAM_RESAMPLING)
    known = bins.count > 0
    error = float(np.sum(bins.count[known] / bins.n * np.abs(bins.predicted[known] - bins.observed[known])))
    quantity = "final probability of success" if gives_probability else f"final {card.quantity}"
    caption = f"ECE {error:.2f}, {count_episodes(bins.n)}, by {quantity}"
    return ReliabilityDiagram(card.name, is_control, _points(bins), caption)


def _probability(reward: Reward | None, by_success: bool) -> float:
    if reward is None or not len(reward.at):
        return math.nan
    if not by_success:
        return min(1.0, max(0.0, reward.final))  # a value may exceed its card's range by rounding
    return math.nan if reward.success is None else float(reward.success[-1])


def _points(bins: Reliability) -> tuple[ReliabilityPoint, ...]:
    points = []
    for i in np.flatnonzero(bins.count):
        span = "" if math.isnan(bins.low[i]) else f" ({bins.low[i]:.2f} to {bins.high[i]:.2f})"
        text = f"given {bins.predicted[i]:.2f}, succeed {bins.observed[i]:.2f}{span}; {count_episodes(bins.count[i])}"
        low, high = (None if math.isnan(end) else _height(end) for end in (bins.low[i], bins.high[i]))
        radius = round(SMALLEST + (LARGEST - SMALLEST) * math.sqrt(float(bins.count[i]) / bins.n), 1)
        x = round(float(bins.predicted[i]) * SIDE, 1)
        points.append(ReliabilityPoint(x, _height(bins.observed[i]), low, high, radius, text))
    return tuple(points)


def _height(share: float) -> float:
    return round(SIDE * (1 - float(share)), 1)


# Prompts


@dataclass(frozen=True)
class PromptSummary:
    """What one model's prompts showed of bad behaviour, over all episodes."""

    model: str
    context: str
    episodes: int
    descriptions: tuple[tuple[str, str, int], ...]
    """each sentence, its source, and the number of prompts with it; the most frequent first"""
    failures: int
    """number of episodes whose failure frames were shown"""
    references: int
    """number of episodes that were shown with a value per step"""
    lacking: tuple[tuple[str, int], ...]
    """what was not available, and in how many prompts"""


def prompt_summaries(report: Report) -> list[PromptSummary]:
    """Summarise the prompts of each model; models whose prompts hold no examples are skipped."""
    found = []
    for card in report.cards:
        given = [reward.given for reward in report.rewards_of(card.name).values()]
        prompts = [entry for entry in given if entry.get("context") not in (None, "none")]
        if prompts:
            found.append(_prompt_summary(card.name, prompts))
    return found


def _prompt_summary(model: str, prompts: list[Any]) -> PromptSummary:
    sentences = Counter(
        (text, WRITERS.get(prompt.get("described by", ""), ""))
        for prompt in prompts
        for text in prompt.get("failure descriptions", ())
    )
    return PromptSummary(
        model=model,
        context=str(prompts[0]["context"]),
        episodes=len(prompts),
        descriptions=tuple((text, source, count) for (text, source), count in sentences.most_common()),
        failures=len({name for prompt in prompts for name in prompt.get("failures shown", ())}),
        references=len({shown["episode"] for prompt in prompts for shown in prompt.get("references", ())}),
        lacking=tuple(Counter(what for prompt in prompts for what in prompt.get("lacking", ())).most_common()),
    )


# Unscored episodes


@dataclass(frozen=True)
class UnscoredGroup:
    """What one model did not score, for one reason."""

    model: str
    reason: str
    whole: int
    """episodes with no value at all"""
    partly: int
    examples: str


def unscored_groups(report: Report) -> list[UnscoredGroup]:
    """Group unscored episodes by model and reason, the most frequent first; an absent reward counts too."""
    groups: dict[tuple[str, str], list[tuple[str, bool]]] = {}
    for card in report.cards:
        rewards = report.rewards_of(card.name)
        for episode in report.episodes:
            reward = rewards.get(episode.id)
            reason = "the report has no reward for it" if reward is None else reward.why_missing
            if reason:
                groups.setdefault((card.name, reason), []).append((episode.id, bool(reward and reward.scored)))
    found = []
    for (model, reason), cases in groups.items():
        examples = ", ".join(id for id, _ in cases[:EXAMPLES]) + (" ..." if len(cases) > EXAMPLES else "")
        partly = sum(scored for _, scored in cases)
        found.append(UnscoredGroup(model, reason, len(cases) - partly, partly, examples))
    return sorted(found, key=lambda group: -(group.whole + group.partly))


def uneven_warning(report: Report) -> str:
    """Warn if the models left different numbers of episodes unscored; empty if they did not."""
    missing = {model: 0 for model in models_of(report)}
    for group in unscored_groups(report):
        if group.model in missing:
            missing[group.model] += group.whole + group.partly
    if len(set(missing.values())) <= 1:
        return ""
    counts = join_words(f"{model} {count}" for model, count in missing.items())
    return f"The models did not score the same episodes, so their numbers rest on different ones; unscored: {counts}."


# Comparisons


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


def comparison_rows(report: Report) -> list[ComparisonRow]:
    """Lay out the pairwise comparisons."""
    rows = []
    for versus in report.comparisons:
        sign = 1 if higher_is_better(report, versus.measure) else -1
        better = versus.first if sign * versus.difference > 0 else versus.second
        words = f"{better} is better" if is_significant(versus) else "no significant difference"
        values = (versus.difference, versus.low, versus.high, versus.p, versus.p_adjusted)
        texts = [number(value, 3) for value in values[:3]] + [_p(value) for value in values[3:]]
        numbers = tuple(zip(texts, values, strict=True))
        rows.append(ComparisonRow(versus.first, versus.second, label(versus.measure), numbers, versus.n, words))
    return rows


def _p(value: float) -> str:
    return "< 0.001" if value < LEAST_P else number(value, 3)
