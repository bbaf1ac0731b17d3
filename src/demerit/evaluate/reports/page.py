"""The report as one HTML file, and the parts that pages about models share.

Everything is inlined: a page makes no request. The blocks that pages share (player, episode table, headline table) are
macros in `blocks.html.j2`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from demerit.data.arrays import Floats
from demerit.data.episode import count_episodes
from demerit.data.files import write_atomic
from demerit.data.frames import Frames
from demerit.data.reward import Reward
from demerit.data.splits import same_split
from demerit.errors import BadInput
from demerit.evaluate.metrics import Category, Resampling
from demerit.evaluate.metrics.grades import GRADES, fit_thresholds, grade_by_range
from demerit.evaluate.metrics.success import Reliability, reliability
from demerit.evaluate.reports.headline import (
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
from demerit.evaluate.reports.report import EpisodeLabels, Report, generations_file, resampling_units
from demerit.models.protocol import ModelCard
from demerit.web.pages import TEMPLATES, render

COLOURS, MARKERS = 7, 6
"""numbers of colours and markers in the style sheet: 42 models look different"""
CATEGORY_PART = "category: "
CHANCE_IS_HALF = ("preference_ordering", "judgement_agreement", "both_orders_agreement", "right_instruction", "auroc")
EXAMPLES = 3
TOLD = "told: "
"""start of a perturbation's name: the video was shown under these words"""
DIAGRAM_RESAMPLING = Resampling(resamples=2000, alone="rows")
SIDE, LARGEST, SMALLEST = 180.0, 9.0, 2.5
"""of a reliability diagram: its side, and the largest and smallest radius of a point"""
LEAST_P = 0.001
WRITERS = {"people": "from what people wrote", "records": "from recorded kinds of failure, as there are no remarks"}
"""sources of the failure descriptions that prompted models write into `Reward.given`"""


TEMPLATES.filters.update(label=label, meaning=meaning, number=number, join_words=join_words)


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
    names = path.with_suffix(".json").name, generations_file(path).name if generations_file(path).is_file() else ""
    write_atomic(path, render_report(report, frames or {}, embed, *names).encode())
    return path


def render_report(
    report: Report, frames: Mapping[str, Frames], embed: int, json_name: str = "report.json", answers_name: str = ""
) -> str:
    """Return the HTML text; the page names `json_name` for recomputing and links the raw answers of chat models."""
    return render(
        "report.html.j2",
        **player_parts(report, pick_examples(report, max(embed, LISTED)), frames, embed),
        lead=lead(report),
        table=headline(report),
        chart=category_chart(report),
        diagrams=reliability_diagrams(report),
        published=published_rows(report),
        grades=grade_matrices(report),
        words=instruction_matrices(report),
        side=SIDE,
        prompts=prompt_summaries(report),
        unscored=unscored_groups(report),
        warnings=[*report.warnings, *filter(None, [uneven_warning(report)])],
        comparisons=comparison_rows(report),
        all_lines=_all_lines(report),
        facts=report_facts(report),
        json_name=json_name,
        answers_name=answers_name,
    )


def player_parts(
    report: Report, picks: Sequence[ExamplePick], frames: Mapping[str, Frames], embed: int
) -> dict[str, Any]:
    """Return the template variables of a page with a player and a table of episodes."""
    # Only episodes with frames count: a pick without a video leaves its place to the next.
    watched = [pick.episode for pick in picks if pick.episode.id in frames][:embed]
    clips = make_clips(watched, frames)
    index = {episode.id: i for i, episode in enumerate(report.episodes)}
    styles = model_styles(report)
    classes = {name: style["css"] for name, style in styles.items()}
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


def model_styles(report: Report) -> dict[str, dict[str, str]]:
    """Return the looks of a report's models."""
    return style_models((card.name for card in report.cards), report.controls)


def style_models(names: Iterable[str], known_controls: Collection[str]) -> dict[str, dict[str, str]]:
    """Return CSS classes (colour, dash) and the id of a marker by model; controls are grey and differ by dash."""
    styles, models, controls = {}, 0, 0
    for name in names:
        if name in known_controls:
            styles[name] = {"css": f"control d{controls % MARKERS}", "marker": f"m{controls % MARKERS}"}
            controls += 1
        else:
            styles[name] = {"css": f"s{models % COLOURS} d{models % MARKERS}", "marker": f"m{models % MARKERS}"}
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


def _all_lines(report: Report) -> list[dict[str, Any]]:
    """Every measure of every model and part; those of one name share a scale."""
    names = {line.measure.name for line in report.lines}
    scales = {name: scale_of(line.measure for line in report.lines if line.measure.name == name) for name in names}
    return [
        {"model": line.model, "part": line.part, "cell": measure_cell(line.measure, scales[line.measure.name])}
        for line in report.lines
    ]


# Categories


def category_chart(report: Report) -> dict[str, Any] | None:
    """Lay out one measure by category, in rising complexity: a cell per model; None if the report has no such lines."""
    lines = [line for line in report.lines if line.part.startswith(CATEGORY_PART)]
    names = list(dict.fromkeys(line.measure.name for line in lines))
    if not names:
        return None
    name = next((measure for measure in headline_measures(report) if measure in names), names[0])
    by_category = {
        (line.part.removeprefix(CATEGORY_PART), line.model): line.measure for line in lines if line.measure.name == name
    }
    scale = scale_of(by_category.values())
    order = [*Category]
    kinds = sorted(
        {kind for kind, _ in by_category}, key=lambda kind: order.index(kind) if kind in order else len(order)
    )
    rows = []
    for kind in kinds:
        measures = [by_category.get((kind, card.name)) for card in report.cards]
        known_measures = [measure for measure in measures if measure is not None and measure.known]
        most = max(known_measures, key=lambda measure: measure.n, default=None)
        cells = tuple(measure_cell(measure, scale) if measure in known_measures else None for measure in measures)
        rows.append({"name": kind, "n": f"{most.n} {most.unit}" if most else "nothing to measure", "cells": cells})
    chance = scale.percent(0.5) if name.startswith(CHANCE_IS_HALF) else None
    return {"measure": name, "label": label(name), "scale": scale, "chance": chance, "rows": rows}


# Published figures


def published_rows(report: Report) -> list[dict[str, Any]]:
    """Lay out each printed figure beside the measured one."""
    rows = []
    for figure in report.published:
        measure = report.line(figure.model, figure.measure, figure.part)
        if measure is not None:
            more = number(measure.value - figure.value, 3) if figure.value is not None and measure.known else ""
            rows.append({"figure": figure, "cell": measure_cell(measure, scale_of([measure])), "difference": more})
    return rows


# Matrices


def grade_matrices(report: Report) -> list[dict[str, Any]]:
    """Lay out how often each model gives each grade (columns) where people gave each (rows); empty without grades.

    Values become grades as in the mean absolute error: by the card's range, or by cuts fitted on the calibration split.
    """
    split = report.environment.get("calibrated on split", "")
    graded = [row for row in report.episodes if row.grade is not None]
    fitted = [row for row in graded if split and same_split(row.split, split)]
    rows = [row for row in graded if not split or not same_split(row.split, split)]
    measured = [card for card in report.cards if (line := report.line(card.name, "mae")) is not None and line.known]
    return [_grade_matrix(report, card, rows, fitted) for card in measured]


def _grade_matrix(
    report: Report, card: ModelCard, rows: Sequence[EpisodeLabels], fitted: Sequence[EpisodeLabels]
) -> dict[str, Any]:
    rewards = report.rewards_of(card.name)

    def finals(episodes: Sequence[EpisodeLabels]) -> Floats:
        return np.array([rewards[row.id].final if row.id in rewards else math.nan for row in episodes])

    if fitted:
        people = [float(row.grade or math.nan) for row in fitted]
        grades = fit_thresholds(finals(fitted), people, [row.subset for row in fitted]).grade(finals(rows))
    else:
        grades = grade_by_range(finals(rows), card.low, card.high)
    counts = np.zeros((GRADES, GRADES))
    for row, grade in zip(rows, grades, strict=True):
        if row.grade is not None and not math.isnan(grade):
            counts[row.grade - 1, int(grade) - 1] += 1
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    caption = f"{np.trace(counts) / max(counts.sum(), 1):.0%} of {count_episodes(int(counts.sum()))} graded as labelled"
    names = [str(grade) for grade in range(1, GRADES + 1)]
    texts = [[f"{count:.0f}" if count else "" for count in line] for line in counts]
    return _matrix(report, card.name, names, shares, texts, caption)


def instruction_matrices(report: Report) -> list[dict[str, Any]]:
    """Lay out the final value of each video (rows) under each video's words (columns), per model that is no control.

    Rows are the videos that were shown under each other's instructions; empty if none was.
    """
    answers = {
        (scored.reward.model, scored.reward.episode, scored.perturbation.removeprefix(TOLD)): scored.reward.final
        for scored in report.rewards
        if scored.perturbation.startswith(TOLD)
    }
    shown = {episode for _, episode, _ in answers}
    videos = [row for row in report.episodes if row.id in shown]
    return [
        _instruction_matrix(report, card, videos, answers) for card in report.cards if _is_asked(report, card, answers)
    ]


def _is_asked(report: Report, card: ModelCard, asked: Mapping[tuple[str, str, str], float]) -> bool:
    return card.name not in report.controls and any(model == card.name for model, _, _ in asked)


def _instruction_matrix(
    report: Report, card: ModelCard, videos: Sequence[EpisodeLabels], asked: Mapping[tuple[str, str, str], float]
) -> dict[str, Any]:
    own = report.rewards_of(card.name)
    values = np.array(
        [
            [
                (own[video.id].final if video.id in own else math.nan)
                if video is words
                else asked.get((card.name, video.id, words.instruction), math.nan)
                for words in videos
            ]
            for video in videos
        ]
    )
    numbers = values[~np.isnan(values)]
    low = card.low if card.low is not None else float(numbers.min(initial=0.0))
    high = card.high if card.high is not None else float(numbers.max(initial=low + 1))
    shares = np.nan_to_num((values - low) / max(high - low, 1e-9))
    share = report.line(card.name, "instruction_diagonal_share")
    caption = "" if share is None or not share.known else f"{number(share.value)} of the reward is for the right words"
    texts = [[number(value, 1) for value in line] for line in values.tolist()]
    matrix = _matrix(report, card.name, [str(place) for place in range(1, len(videos) + 1)], shares, texts, caption)
    return {**matrix, "videos": [video.instruction for video in videos]}


def _matrix(
    report: Report, model: str, names: Sequence[str], shares: Floats, texts: Sequence[Sequence[str]], caption: str
) -> dict[str, Any]:
    """Lay out a square matrix of `SIDE`; `shares` from 0 to 1 are how dark the cells are."""
    step = SIDE / max(len(names), 1)
    cells = [
        {
            "x": round(column * step, 1),
            "y": round(row * step, 1),
            "share": round(min(1.0, max(0.0, float(shares[row, column]))), 3),
            "text": texts[row][column],
            "same": row == column,
        }
        for row in range(len(names))
        for column in range(len(names))
    ]
    facts = {"model": model, "control": model in report.controls, "caption": caption}
    return {**facts, "names": names, "step": round(step, 1), "cells": cells}


# Reliability


def reliability_diagrams(report: Report) -> list[dict[str, Any]]:
    """Lay out a diagram per model, or the reason why there is none; empty if no episode has a known success."""
    if all(episode.success is None for episode in report.episodes):
        return []
    return [_diagram(report, card) for card in report.cards]


def _diagram(report: Report, card: ModelCard) -> dict[str, Any]:
    head = {"model": card.name, "control": card.name in report.controls}
    rewards = report.rewards_of(card.name)
    gives_probability = any(reward.success is not None for reward in rewards.values())
    if not gives_probability and (card.low, card.high) != (0.0, 1.0):
        reason = f"its {card.quantity} is not a probability and does not run from 0 to 1"
        return {**head, "why_not": reason}
    labelled = [episode for episode in report.episodes if episode.success is not None]
    predicted = np.array([_probability(rewards.get(episode.id), gives_probability) for episode in labelled])
    if np.isnan(predicted).all():
        return {**head, "why_not": "it scored no labelled episode"}
    success = np.array([float(bool(episode.success)) for episode in labelled])
    bins = reliability(predicted, success, clusters=resampling_units(labelled)[0], resampling=DIAGRAM_RESAMPLING)
    is_filled = bins.count > 0
    error = float(np.sum(bins.count[is_filled] / bins.n * np.abs(bins.predicted[is_filled] - bins.observed[is_filled])))
    quantity = "final probability of success" if gives_probability else f"final {card.quantity}"
    caption = f"ECE {error:.2f}, {count_episodes(bins.n)}, by {quantity}"
    return {**head, "points": _points(bins), "caption": caption, "why_not": ""}


def _probability(reward: Reward | None, by_success: bool) -> float:
    if reward is None or not len(reward.at):
        return math.nan
    if not by_success:
        return min(1.0, max(0.0, reward.final))  # a value may exceed its card's range by rounding
    return math.nan if reward.success is None else float(reward.success[-1])


def _points(bins: Reliability) -> list[dict[str, Any]]:
    """Lay out the bins, in the units of the diagram ((0, 0) is the upper left corner)."""
    points = []
    for i in np.flatnonzero(bins.count):
        span = "" if math.isnan(bins.low[i]) else f" ({bins.low[i]:.2f} to {bins.high[i]:.2f})"
        text = f"given {bins.predicted[i]:.2f}, succeed {bins.observed[i]:.2f}{span}; {count_episodes(bins.count[i])}"
        low, high = (None if math.isnan(end) else _height(end) for end in (bins.low[i], bins.high[i]))
        radius = round(SMALLEST + (LARGEST - SMALLEST) * math.sqrt(float(bins.count[i]) / bins.n), 1)
        x = round(float(bins.predicted[i]) * SIDE, 1)
        y = _height(bins.observed[i])
        points.append({"x": x, "y": y, "low": low, "high": high, "radius": radius, "text": text})
    return points


def _height(share: float) -> float:
    return round(SIDE * (1 - float(share)), 1)


# Prompts


def prompt_summaries(report: Report) -> list[dict[str, Any]]:
    """Summarise what each model's prompts showed of bad behaviour; models whose prompts hold no examples are skipped.

    `descriptions` are sentences with source and number of prompts, the most frequent first; `failures` and `references`
    count the episodes that were shown; `lacking` is what was not available, with the number of prompts.
    """
    summaries = []
    for card in report.cards:
        contexts = [reward.given for reward in report.rewards_of(card.name).values()]
        prompts = [entry for entry in contexts if entry.get("context") not in (None, "none")]
        if prompts:
            summaries.append({"model": card.name, "episodes": len(prompts), **_summarise_prompts(prompts)})
    return summaries


def _summarise_prompts(prompts: list[Any]) -> dict[str, Any]:
    sentences = Counter(
        (text, WRITERS.get(prompt.get("described by", ""), ""))
        for prompt in prompts
        for text in prompt.get("failure descriptions", ())
    )
    return {
        "descriptions": [(text, source, count) for (text, source), count in sentences.most_common()],
        "failures": len({name for prompt in prompts for name in prompt.get("failures shown", ())}),
        "references": len({shown["episode"] for prompt in prompts for shown in prompt.get("references", ())}),
        "lacking": Counter(what for prompt in prompts for what in prompt.get("lacking", ())).most_common(),
    }


# Unscored episodes


def unscored_groups(report: Report) -> list[dict[str, Any]]:
    """Group unscored episodes by model and reason, the most frequent first; an absent reward counts too.

    `whole` counts the episodes with no value at all, `partly` the others.
    """
    groups: dict[tuple[str, str], list[tuple[str, bool]]] = {}
    for card in report.cards:
        rewards = report.rewards_of(card.name)
        for episode in report.episodes:
            reward = rewards.get(episode.id)
            reason = "the report has no reward for it" if reward is None else reward.why_missing
            if reason:
                groups.setdefault((card.name, reason), []).append((episode.id, bool(reward and reward.scored)))
    rows: list[dict[str, Any]] = []
    for (model, reason), cases in groups.items():
        examples = ", ".join(id for id, _ in cases[:EXAMPLES]) + (" ..." if len(cases) > EXAMPLES else "")
        partly = sum(scored for _, scored in cases)
        counts = {"whole": len(cases) - partly, "partly": partly}
        rows.append({"model": model, "reason": reason, **counts, "examples": examples})
    return sorted(rows, key=lambda row: -(row["whole"] + row["partly"]))


def uneven_warning(report: Report) -> str:
    """Warn if the models left different numbers of episodes unscored; empty if they did not."""
    missing = {model: 0 for model in models_of(report)}
    for group in unscored_groups(report):
        if group["model"] in missing:
            missing[group["model"]] += group["whole"] + group["partly"]
    if len(set(missing.values())) <= 1:
        return ""
    counts = join_words(f"{model} {count}" for model, count in missing.items())
    return f"The models did not score the same episodes, so their numbers rest on different ones; unscored: {counts}."


# Comparisons


def comparison_rows(report: Report) -> list[dict[str, Any]]:
    """Lay out the pairwise comparisons: numbers as text and as numbers to sort by, and a reading in words."""
    rows = []
    for versus in report.comparisons:
        sign = 1 if higher_is_better(report, versus.measure) else -1
        better = versus.first if sign * versus.difference > 0 else versus.second
        words = f"{better} is better" if is_significant(versus) else "no significant difference"
        values = (versus.difference, versus.low, versus.high, versus.p, versus.p_adjusted)
        texts = [number(value, 3) for value in values[:3]] + [_p(value) for value in values[3:]]
        numbers = tuple(zip(texts, values, strict=True))
        facts = {"first": versus.first, "second": versus.second, "measure": label(versus.measure)}
        rows.append({**facts, "numbers": numbers, "n": versus.n, "words": words})
    return rows


def _p(value: float) -> str:
    return "< 0.001" if value < LEAST_P else number(value, 3)
