"""The report as one HTML file, and the parts that every page of demerit shares.

Everything is inlined: a page makes no request. Templates, style sheet and scripts are in `assets/pages`; the blocks
that pages share (player, episode table, headline table) are macros in `blocks.html.j2`.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from demerit.data.files import write_atomic
from demerit.data.frames import Frames
from demerit.errors import BadInput
from demerit.evaluate.reports.headline import headline, joined, label, lead, meaning, measure_cell, number, scale_of
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
from demerit.evaluate.reports.report import Report
from demerit.evaluate.reports.sections import (
    SIDE,
    category_chart,
    comparison_rows,
    prompt_summaries,
    reliability_diagrams,
    uneven_warning,
    unscored_groups,
)

COLOURS, MARKERS = 7, 6
"""numbers of colours and markers in the style sheet: 42 models look different"""


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
    """Return colour, dash and marker by model; controls are grey and differ by dash."""
    styles, models, controls = {}, 0, 0
    for card in report.cards:
        if card.name in report.controls:
            styles[card.name] = ModelStyle(f"control d{controls % MARKERS}", f"m{controls % MARKERS}")
            controls += 1
        else:
            styles[card.name] = ModelStyle(f"s{models % COLOURS} d{models % MARKERS}", f"m{models % MARKERS}")
            models += 1
    return styles


def report_facts(report: Report, groups: str = "tasks") -> list[str]:
    """Count the episodes, tasks, preferences and label sources of a report, as phrases."""
    outcomes = Counter(episode.success for episode in report.episodes)
    counts = {"successes": outcomes[True], "failures": outcomes[False], "of unknown outcome": outcomes[None]}
    parts = joined(f"{count} {word}" for word, count in counts.items() if count)
    sources = joined(sorted({episode.vouched_by for episode in report.episodes if episode.vouched_by}))
    facts = [f"{len(report.episodes)} episodes" + (f": {parts}" if parts else "")]
    facts += [f"{len({episode.task for episode in report.episodes})} {groups}"]
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
    env.filters.update(label=label, meaning=meaning, number=number, joined=joined)
    return env


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
