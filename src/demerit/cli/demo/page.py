"""The demo's report as one HTML file, in the look of the benchmarks' reports and from their parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from demerit.cli.demo.strips import DRAWN, HEIGHT, MARGIN, PICTURES, WIDTH, strips
from demerit.cli.demo.words import TAUGHT, headline
from demerit.data.files import write_atomic
from demerit.data.frames import Frames
from demerit.evaluate.reports.headline import headline as table
from demerit.evaluate.reports.page import model_styles, player_parts, render
from demerit.evaluate.reports.player import LISTED, pick_examples
from demerit.evaluate.reports.report import Report

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
    write_atomic(path, render_page(report, lesson, frames, home).encode())
    return path


def render_page(report: Report, lesson: Report, frames: Mapping[str, Frames], home: str = "demo") -> str:
    """Return the HTML text; `home` is the demo's folder in the commands that it shows."""
    styles = model_styles(report)
    return render(
        TEMPLATE,
        **player_parts(report, pick_examples(report, LISTED), frames, LISTED),
        lead=headline(report, lesson),
        facts=_facts(report, lesson),
        table=table(report),
        strips=strips(report, frames),
        drawn=[name for name in reversed(DRAWN) if name in styles],
        size=(WIDTH, HEIGHT, MARGIN, PICTURES),
        home=home,
        lesson_page=f"../{TAUGHT}/report.html",
    )


def _facts(report: Report, lesson: Report) -> list[str]:
    said = Counter(one.success for one in report.episodes)
    return [
        f"{len(lesson.episodes)} episodes taught",
        f"{len(report.episodes)} others scored: {said[True]} successes, {said[False]} failures",
        "labels measured by the simulator",
        "a task that the untaught network was not trained on",
    ]
