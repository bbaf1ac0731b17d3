"""What came out of the demo, in a headline and a few sentences; every number is taken from the reports."""

from __future__ import annotations

import math
from collections import Counter

from demerit.evaluate.metrics import Measure
from demerit.evaluate.reports.headline import Lead, lead
from demerit.evaluate.reports.report import Report

TAUGHT, UNTAUGHT = "taught", "default"
CUE = "change"
"""the control that is named in the headline: it sees the pictures and understands nothing"""


def headline(report: Report, lesson: Report) -> Lead:
    """Say what teaching changed, and which model to trust."""
    found = lead(report)
    ours, before, cue = (report.line(name, "auroc") for name in (TAUGHT, UNTAUGHT, CUE))
    if ours is None or not ours.known:
        return found
    said = Counter(one.success for one in lesson.episodes)
    text = (
        f"Taught with {said[True]} successes and {said[False]} failures, it scored {len(report.episodes)} episodes "
        f"that it had never seen. Of a success and a failure it ranks the success higher in {percent(ours)} of "
        f"{_pairs(report)} pairs. The same network untaught: {percent(before)}. How much the picture changed: "
        f"{percent(cue)}. A coin: 50%."
    )
    if found.trusted != TAUGHT or before is None or not ours.value > before.value:
        return Lead(found.title, text, found.measure, found.trusted)
    title = f"{len(lesson.episodes)} examples took it from {percent(before)} right to {percent(ours)}"
    return Lead(title, text, found.measure, found.trusted)


def doubts(report: Report) -> tuple[str, ...]:
    """Say how little so few episodes prove, and how the task came to be here."""
    return (
        f"{len(report.episodes)} episodes are few: intervals are wide, and where every pair is right an interval has "
        "no width, which is no certainty. Simulated, one task, one camera: a first impression, no proof.",
        "The task was chosen, of five that were tried, because the untaught network cannot judge it and teaching helps "
        "most: expect less elsewhere.",
    )


def percent(measure: Measure | None) -> str:
    """Write a share for people."""
    if measure is None or not measure.known or math.isnan(measure.value):
        return "unknown"
    return f"{measure.value:.0%}"


def _pairs(report: Report) -> int:
    said = Counter(one.success for one in report.episodes)
    return said[True] * said[False]
