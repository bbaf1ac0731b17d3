"""The report as one HTML file: everything inlined, nothing fetched, usable without a network for ever."""

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
from demerit.evaluate.reports.page.clips import Clip, clips
from demerit.evaluate.reports.page.data import page_curves, page_data, script_json
from demerit.evaluate.reports.page.picks import LISTED, Pick, picks
from demerit.evaluate.reports.page.prompts import prompted
from demerit.evaluate.reports.page.reliability import SIDE, diagrams
from demerit.evaluate.reports.page.tables import (
    category_chart,
    comparisons,
    drawn,
    headline,
    scale_of,
    uneven,
    unscored,
)
from demerit.evaluate.reports.page.words import joined, label, lead, meaning, number
from demerit.evaluate.reports.report import Report

COLOURS, MARKERS = 7, 6
"""how many there are in the style sheet; a model gets one of each, so 42 models look different"""


@dataclass(frozen=True)
class Look:
    """How a model is drawn everywhere on the page: classes of the style sheet and a marker's id."""

    css: str
    marker: str


def write_page(report: Report, path: str | Path, frames: Mapping[str, Frames] | None = None, embed: int = 24) -> Path:
    """Write the report as one self-contained HTML file.

    Args:
        report: What to show.
        path: The file to write, in one step; its folder must exist.
        frames: Videos by episode id; without them the curves are shown alone.
        embed: How many of the most telling episodes get their video embedded.

    Returns:
        The path.
    """
    if embed < 0:
        raise BadInput("embed", "a number of videos, 0 or more", embed)
    path = Path(path)
    write_atomic(path, render_page(report, frames or {}, embed, path.with_suffix(".json").name).encode())
    return path


def render_page(report: Report, frames: Mapping[str, Frames], embed: int, json_name: str = "report.json") -> str:
    """Return the HTML text; `json_name` is the file that the page names for recomputing."""
    columns, rows, apart = headline(report)
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            **shared(report, picks(report, max(embed, LISTED)), frames, embed),
            lead=lead(report),
            columns=columns,
            rows=rows,
            apart=apart,
            chart=category_chart(report),
            diagrams=diagrams(report),
            side=SIDE,
            prompts=prompted(report),
            unscored=unscored(report),
            warnings=[*report.warnings, *filter(None, [uneven(report)])],
            comparisons=comparisons(report),
            all_lines=_all_lines(report),
            facts=_facts(report),
            json_name=json_name,
        )
    )


def shared(report: Report, chosen: Sequence[Pick], frames: Mapping[str, Frames], embed: int) -> dict[str, Any]:
    """Return what every page with a player and a table of episodes needs, by the names in the templates."""
    # Only episodes with frames take one of the places: a pick without a video leaves its place to the next.
    watched = [pick.episode for pick in chosen if pick.episode.id in frames][:embed]
    packed = clips(watched, frames)
    places = {episode.id: i for i, episode in enumerate(report.episodes)}
    drawn_as = looks(report)
    classes = {name: look.css for name, look in drawn_as.items()}
    script = asset_script("tables.js", "player.js", "episodes.js")
    return {
        "report": report,
        "looks": drawn_as,
        "picks": chosen,
        "clips": packed,
        "videos": {places[id]: clip for id, clip in packed.items() if clip.video},
        "data": Markup(script_json(page_data(report, packed, classes, embed))),
        "curves": Markup(script_json(page_curves(report, packed))),
        "style": asset("style.css"),
        "script": script,
        "script_hash": script_hash(script),
        "empty": Clip(),
    }


def looks(report: Report) -> dict[str, Look]:
    """Colour, dash and marker by model; controls are grey and differ by dash."""
    found, models, controls = {}, 0, 0
    for card in report.cards:
        if card.name in report.controls:
            found[card.name] = Look(f"control d{controls % MARKERS}", f"m{controls % MARKERS}")
            controls += 1
        else:
            found[card.name] = Look(f"s{models % COLOURS} d{models % MARKERS}", f"m{models % MARKERS}")
            models += 1
    return found


@cache
def environment() -> Environment:
    """The templates: everything that they print is escaped, and a misspelt name is an error."""
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
    """The text of a file in the `assets` folder; it is ours and goes into the page as it is."""
    return Markup((files("demerit") / "assets" / "pages" / name).read_text("utf-8"))


def asset_script(*names: str) -> Markup:
    """Several scripts as one."""
    return Markup("").join(["\n", *(asset(name) for name in names)])


def script_hash(script: str) -> str:
    """What the page's policy allows to run: this script and no other, whatever an instruction contains."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _facts(report: Report) -> list[str]:
    """Count what the report rests on."""
    said = Counter(episode.success for episode in report.episodes)
    counts = {"successes": said[True], "failures": said[False], "of unknown outcome": said[None]}
    parts = joined(f"{count} {word}" for word, count in counts.items() if count)
    vouched = joined(sorted({episode.vouched_by for episode in report.episodes if episode.vouched_by}))
    facts = [f"{len(report.episodes)} episodes" + (f": {parts}" if parts else "")]
    facts += [f"{len({episode.task for episode in report.episodes})} tasks"]
    by_whom = Counter(preference.source for preference in report.preferences)
    facts += [f"{count} preferences by {source}" for source, count in by_whom.most_common()]
    facts += [f"labels by {vouched}"] if vouched else []
    return facts


def _all_lines(report: Report) -> list[dict[str, Any]]:
    """Every measure of every model and part, with its own whisker."""
    scales = {}
    for name in {line.measure.name for line in report.lines}:
        measures = [line.measure for line in report.lines if line.measure.name == name]
        scales[name] = scale_of(end for one in measures for end in (one.value, one.low, one.high))
    return [
        {"model": line.model, "part": line.part, "cell": drawn(line.measure, scales[line.measure.name])}
        for line in report.lines
    ]
