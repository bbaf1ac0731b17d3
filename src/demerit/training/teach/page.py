"""A lesson's report as one HTML file, in the look of the benchmarks' reports and from their parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from demerit.data.files import write_atomic
from demerit.data.frames import Frames
from demerit.errors import BadInput
from demerit.evaluate.reports.page import environment, shared
from demerit.evaluate.reports.page.picks import LISTED, picks
from demerit.evaluate.reports.page.tables import headline
from demerit.evaluate.reports.page.words import Lead, joined, number
from demerit.training.teach.crossval import CurvePoint
from demerit.training.teach.findings import UNTAUGHT, Findings

TEMPLATE = "teaching.html.j2"
WIDTH, HEIGHT, PAD = 420, 150, 28


@dataclass(frozen=True)
class Point:
    """A point of the learning curve, ready to draw."""

    x: float
    y: float
    groups: int
    text: str


def write_page(
    findings: Findings, path: str | Path, frames: Mapping[str, Frames] | None = None, embed: int = 8
) -> Path:
    """Write the report as one self-contained HTML file, in one step.

    Args:
        findings: What to show.
        path: The file to write; its folder must exist.
        frames: Videos by episode id; without them the curves are shown alone.
        embed: How many of the wrongest episodes get their video embedded.
    """
    if embed < 0:
        raise BadInput("embed", "a number of videos, 0 or more", embed)
    path = Path(path)
    write_atomic(path, render_page(findings, frames or {}, embed).encode())
    return path


def render_page(findings: Findings, frames: Mapping[str, Frames], embed: int) -> str:
    """Return the HTML text."""
    report = findings.report
    chosen = picks(replace(report, controls=(*report.controls, UNTAUGHT)), max(embed, LISTED))
    columns, rows, apart = headline(report)
    return (
        environment()
        .get_template(TEMPLATE)
        .render(
            **shared(report, chosen, frames, embed),
            findings=findings,
            card=report.cards[0],
            lead=Lead(findings.title, findings.text),
            facts=_facts(findings),
            columns=columns,
            rows=rows,
            apart=apart,
            points=learning_points(findings.curve),
            size=(WIDTH, HEIGHT, PAD),
        )
    )


def learning_points(curve: tuple[CurvePoint, ...]) -> list[Point]:
    """Place the points of the learning curve: groups to the right, doubling by doubling, AUROC upwards from 1/2."""
    known = [one for one in curve if one.auroc == one.auroc]
    if len(known) < 2:  # noqa: PLR2004
        return []
    step = (WIDTH - 2 * PAD) / (len(known) - 1)
    return [
        Point(
            round(PAD + i * step, 1),
            round(HEIGHT - PAD - (HEIGHT - 2 * PAD) * max(0.0, (one.auroc - 0.5) * 2), 1),
            one.groups,
            f"taught on {one.groups}: AUROC {number(one.auroc)}, final progress {number(one.error)} off",
        )
        for i, one in enumerate(known)
    ]


def _facts(findings: Findings) -> list[str]:
    report = findings.report
    said = Counter(one.success for one in report.episodes)
    counts = {"successes": said[True], "failures": said[False], "of unknown outcome": said[None]}
    parts = joined(f"{count} {word}" for word, count in counts.items() if count)
    vouched = joined(sorted({one.vouched_by for one in report.episodes if one.vouched_by}))
    facts = [f"{len(report.episodes)} episodes" + (f": {parts}" if parts else "")]
    facts += [f"{len({one.task for one in report.episodes})} independent recordings"]
    facts += [f"{len(report.preferences)} comparisons"] if report.preferences else []
    return [*facts, *([f"labels by {vouched}"] if vouched else [])]
