"""The demo's report as one HTML file, in the look of the benchmarks' reports and from their parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup

from demerit.bench.page import asset, asset_script, environment, looks, script_hash
from demerit.bench.page.clips import Clip, clips
from demerit.bench.page.data import page_curves, page_data, script_json
from demerit.bench.page.picks import LISTED, picks
from demerit.bench.page.tables import headline as table
from demerit.bench.report import Report
from demerit.demo.strips import DRAWN, HEIGHT, MARGIN, PICTURES, WIDTH, strips
from demerit.demo.words import TAUGHT, headline
from demerit.frames import Frames
from demerit.store.parts import write_durably

TEMPLATE = "demo.html.j2"


def write_page(report: Report, lesson: Report, path: str | Path, frames: Mapping[str, Frames]) -> Path:
    """Write the page, in one step.

    Args:
        report: about the episodes that were scored.
        lesson: about those that were taught.
        path: the file to write; its folder must exist.
        frames: the scored episodes' videos.
    """
    path = Path(path)
    home = path.resolve().parent.parent.name
    write_durably(path, render_page(report, lesson, frames, home).encode())
    return path


def render_page(report: Report, lesson: Report, frames: Mapping[str, Frames], home: str = "demo") -> str:
    """Return the HTML text; `home` is the demo's folder in the commands that it shows."""
    chosen = picks(report, LISTED)
    packed = clips([pick.episode for pick in chosen], frames)
    places = {episode.id: i for i, episode in enumerate(report.episodes)}
    script = asset_script("tables.js", "player.js", "episodes.js")
    columns, rows, apart = table(report)
    drawn_as = looks(report)
    classes = {name: look.css for name, look in drawn_as.items()}
    return (
        _templates()
        .get_template(TEMPLATE)
        .render(
            report=report,
            lead=headline(report, lesson),
            facts=_facts(report, lesson),
            columns=columns,
            rows=rows,
            apart=apart,
            looks=drawn_as,
            strips=strips(report, frames),
            drawn=[name for name in reversed(DRAWN) if name in drawn_as],
            size=(WIDTH, HEIGHT, MARGIN, PICTURES),
            home=home,
            lesson_page=f"../{TAUGHT}/report.html",
            picks=chosen,
            clips=packed,
            videos={places[id]: clip for id, clip in packed.items() if clip.video},
            data=Markup(script_json(page_data(report, packed, classes, len(packed)))),
            curves=Markup(script_json(page_curves(report, packed))),
            style=asset("style.css"),
            script=script,
            script_hash=script_hash(script),
            empty=Clip(),
        )
    )


def _facts(report: Report, lesson: Report) -> list[str]:
    said = Counter(one.success for one in report.episodes)
    return [
        f"{len(lesson.episodes)} episodes taught",
        f"{len(report.episodes)} others scored: {said[True]} successes, {said[False]} failures",
        "labels measured by the simulator",
        "a task that the untaught network was not trained on",
    ]


@cache
def _templates() -> Environment:
    """Our template first, then the benchmarks' own: tables and marks are theirs."""
    return environment().overlay(loader=FunctionLoader(_template))


def _template(name: str) -> str:
    mine = files("demerit.demo") / "assets" / name
    return mine.read_text("utf-8") if mine.is_file() else str(asset(name))
