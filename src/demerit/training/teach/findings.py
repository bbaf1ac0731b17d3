"""What a lesson found: figures of left-out episodes beside controls, and what it means in words."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.files import write_atomic
from demerit.data.reward import Reward
from demerit.evaluate.benchmarks.evidence import Evidence
from demerit.evaluate.benchmarks.evidence import Settings as Measured
from demerit.evaluate.benchmarks.findings import find as measured
from demerit.evaluate.benchmarks.judging import judge, plain
from demerit.evaluate.metrics import Measure, Resampling
from demerit.evaluate.reports.report import About, Judged, Report, Shown
from demerit.models.baselines import Clock, Constant, Random
from demerit.models.protocol import ModelCard, RewardModel
from demerit.models.taught.model import TaughtModel
from demerit.models.trivial import Change, Length, Motion
from demerit.training.teach.benchmark import taught
from demerit.training.teach.calibrate import Calibration
from demerit.training.teach.crossval import CrossValidated, CurvePoint
from demerit.training.teach.cues import CUES, cue_rewards
from demerit.training.teach.gather import Gathered
from demerit.training.teach.lesson import Lesson
from demerit.training.teach.next_labels import Suggestion

UNTAUGHT = "untaught"
RESAMPLES = 2000
FEW = 10
FORMAT = 1


@dataclass(frozen=True, eq=False)
class Findings:
    """Everything that a lesson's report says."""

    report: Report
    """figures, rewards and episodes, as any benchmark has them"""
    title: str
    text: str
    advice: tuple[str, ...]
    """what to do next, most useful first"""
    notes: tuple[str, ...]
    """what a reader must know"""
    calibration: Calibration
    curve: tuple[CurvePoint, ...]
    suggestions: tuple[Suggestion, ...]
    every_labelled: bool
    """there is nothing left to label"""

    def measure(self, name: str, model: str | None = None) -> Measure | None:
        """One figure, of the taught model unless another is named."""
        return self.report.line(model or self.report.cards[0].name, name)

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values: a benchmark's report with what is particular to teaching beside it."""
        return {
            **self.report.as_dict(),
            "teaching": {
                "format": FORMAT,
                "title": self.title,
                "text": self.text,
                "advice": list(self.advice),
                "notes": list(self.notes),
                "calibration": self.calibration.as_facts(),
                "learning curve": [_plain(vars(one)) for one in self.curve],
                "label next": [one.as_facts() for one in self.suggestions],
            },
        }

    def write(self, path: Path) -> None:
        """Write the JSON file in one step."""
        write_atomic(path, (json.dumps(self.as_dict(), ensure_ascii=False, allow_nan=False) + "\n").encode())


def find(
    gathered: Gathered,
    lesson: Lesson,
    left_out: CrossValidated,
    calibration: Calibration,
    model: TaughtModel,
    curve: Sequence[CurvePoint],
    suggestions: Sequence[Suggestion],
    notes: tuple[str, ...],
) -> Findings:
    """Measure what was left out beside the controls, and say it."""
    report = _report(gathered, lesson, left_out, calibration, model)
    title, text = _said(report, lesson, calibration)
    known = (*_doubts(lesson, left_out), *notes, *report.warnings)
    advice = tuple(_advice(gathered, lesson, left_out, calibration, report))
    return Findings(
        report, title, text, advice, known, calibration, tuple(curve), tuple(suggestions), not gathered.unlabelled
    )


def _report(
    gathered: Gathered, lesson: Lesson, left_out: CrossValidated, calibration: Calibration, model: TaughtModel
) -> Report:
    benchmark = taught()
    controls: list[RewardModel] = [Constant(), Clock(), Random(), Change(), Motion(), Length()]
    settings = Measured(Resampling(resamples=RESAMPLES, alone="rows"))
    rewards = [*_left_out_rewards(lesson, left_out, model), *_untaught_rewards(lesson)]
    cue_card, cues = cue_rewards(lesson, left_out)
    rewards += cues
    for control in controls:
        known = {one.id: one.controls for one in lesson.seen}
        for seen in lesson.seen:
            kept = next((one for one in known[seen.id] if one.model == control.card.name), None)
            rewards.append(kept if kept is not None else control.score([seen.episode])[0])
    cards = [model.card, _untaught_card(model), cue_card, *(one.card for one in controls)]
    names = (CUES, *(one.card.name for one in controls))
    ids = {one.id for one in lesson.seen}
    report = Report(
        about=About(benchmark.name, benchmark.claim, gathered.address),
        cards=tuple(cards),
        controls=names,
        episodes=tuple(_judged(lesson, place) for place in range(len(lesson))),
        preferences=tuple(one for one in gathered.preferences if {one.a, one.b} <= ids),
        rewards=tuple(Shown(one) for one in rewards),
        environment=_environment(lesson, settings),
    )
    found = measured(benchmark, Evidence.of(report, settings), names)
    lower = tuple(one.name for one in benchmark.questions if one.lower_is_better)
    about = replace(report.about, headline=found.headline, lower_is_better=lower)
    return replace(
        report,
        about=about,
        lines=found.lines,
        comparisons=found.comparisons,
        verdicts=found.verdicts,
        warnings=tuple(one for one in found.warnings if not _said_elsewhere(one)),
    )


def _said_elsewhere(warning: str) -> bool:
    """What labels cannot answer is no news here, and how few recordings there are is said in our own words."""
    return " not measured: " in warning or warning.startswith("Intervals rest on ")


def _judged(lesson: Lesson, place: int) -> Judged:
    """An episode as a row: intervals are clustered by what was recorded together, ranked is one instruction."""
    seen, label = lesson.seen[place], lesson.labels[place]
    judged = judge(seen.episode)
    context = plain(seen.episode.instruction) or "all"
    return replace(judged, task=lesson.groups[place], context=context, success=label.verdict, frames=seen.length)


def _left_out_rewards(lesson: Lesson, left_out: CrossValidated, model: TaughtModel) -> Iterator[Reward]:
    name = model.card.name
    for place, seen in enumerate(lesson.seen):
        if place not in left_out.outputs:
            yield Reward.unscored(name, seen.id, "it was not left out: the lesson was too small or was interrupted")
            continue
        outputs = left_out.outputs[place]
        given = {"left out in fold": int(left_out.fold[place]), "frames": len(seen.at)}
        success = model.head.success(outputs).astype(np.float32)
        yield Reward(name, seen.id, seen.at, model.head.value(outputs).astype(np.float32), success, given=given)


def _untaught_rewards(lesson: Lesson) -> Iterator[Reward]:
    """What the network says by itself, the mean over the cameras."""
    maker = lesson.room.maker
    for seen in lesson.seen:
        followed = [
            maker.follow(np.asarray(tower, np.float32), seen.episode.instruction) for tower in seen.tower.values()
        ]
        value = np.mean([np.asarray(one.progress) for one in followed], axis=0)
        success = np.mean([np.asarray(one.success) for one in followed], axis=0)
        yield Reward(UNTAUGHT, seen.id, seen.at, np.clip(value, 0, 1), np.clip(success, 0, 1))


def _untaught_card(model: TaughtModel) -> ModelCard:
    about = "The network that the model was taught on, as it ships: what teaching starts from."
    return replace(model.card, name=UNTAUGHT, revision=model.recipe.network[:12], weights_hash=model.recipe.network,
                   about=about)  # fmt: skip


def _said(report: Report, lesson: Lesson, calibration: Calibration) -> tuple[str, str]:
    """Say the most important thing first: can it tell success from failure?"""
    name = report.cards[0].name
    area, error = report.line(name, "auroc"), report.line(name, "progress_error")
    agree = report.line(name, "judgement_agreement")
    parts = []
    if area is not None and area.known:
        shown = area.low > 1 / 2  # also false where the interval is unknown
        title = f"It tells success from failure {area.value:.0%} of the time"
        title = title if shown else "It has not shown that it tells success from failure"
        if shown and (rival := _rival(report)):
            title = f"It does no better than {rival}"
        parts.append(f"Of a success and a failure that it had not seen, it ranks the success higher {area.value:.0%} "
                     f"of the time{_span(area)}; chance is 50%.")  # fmt: skip
    elif agree is not None and agree.known:
        title = f"It agrees with {agree.value:.0%} of the choices"
        parts.append(f"Of two left-out episodes it prefers the one that people preferred {agree.value:.0%} of the time"
                     f"{_span(agree)}; chance is 50%.")  # fmt: skip
    else:
        title = "Taught, and not yet tested"
        missing = "failure" if (lesson.success == 1).any() else "verdict"
        parts.append(f"No {missing} is labelled, so that nobody knows whether it tells successes from failures.")
    if error is not None and error.known:
        parts.append(f"Its progress is {error.value:.2f} off on average{_span(error)}.")
    if calibration.threshold is not None and not math.isnan(calibration.caught):
        parts.append(f"At a promised false-positive risk of {calibration.risk:g} it recognises "
                     f"{calibration.caught:.0%} of the successes.")  # fmt: skip
    return title, " ".join(parts)


def _span(measure: Measure) -> str:
    if math.isnan(measure.low):
        return ""
    if measure.low == measure.high:  # every resample says the same: that is what few episodes do, not certainty
        return " (too few episodes to say how sure that is)"
    style = ".2f" if measure.name == "progress_error" else ".0%"
    return f" ({measure.level:.0%} interval {measure.low:{style}} to {measure.high:{style}})"


def _doubts(lesson: Lesson, left_out: CrossValidated) -> Iterator[str]:
    groups = len(set(lesson.groups))
    if left_out.by_episode:
        yield "All episodes were recorded together, so that single episodes were left out: another day may look worse."
    elif groups < FEW:
        yield f"Only {groups} independent recordings: every figure here is rough."
    unmeasured = sum("measured" not in one.parts for one in lesson.targets)
    if unmeasured:
        yield (
            f"{unmeasured} of {len(lesson)} episodes have no measured curve: between what was labelled, progress is "
            "made up (a straight line to success, unknown on the way to failure) and counts little."
        )
    if lesson.room.stride > 1:
        yield f"To end in time every {lesson.room.stride}th frame was looked at; so does the model."


def _advice(
    gathered: Gathered, lesson: Lesson, left_out: CrossValidated, calibration: Calibration, report: Report
) -> Iterator[str]:
    failures, successes = int((lesson.success == 0).sum()), int((lesson.success == 1).sum())
    if not failures:
        yield (
            "Label failures: none is labelled. With successes alone a model learns how success looks and not what to "
            "reject; at an equal number of labels, failures lower the share of failures that are rewarded, and "
            f"without {calibration.needed} of them no false-positive risk of {calibration.risk:g} can be promised."
        )
    elif calibration.threshold is None:
        yield calibration.note
    elif failures < successes / 2:
        yield f"Label more failures ({failures} beside {successes} successes): fewer failures are then rewarded."
    if successes == 0:
        yield "Label a success or two: the level of a finished task is not known, only the order."
    if not any(label.curve is not None for label in lesson.labels):
        yield (
            "Mark a few moments in each episode (grasped, lifted, placed: progress at those frames). Labels of "
            "progress teach more than verdicts about the end alone."
        )
    rival = _rival(report)
    if rival:
        yield f"Do not use it yet: {rival} does as well without looking at the task. Harder failures would tell."
    if gathered.left_out:
        yield f"Look at the {len(gathered.left_out)} contradictory labels."


def _rival(report: Report) -> str:
    """Name the best control that is not clearly behind in AUROC; empty when all are, or nothing was measured."""
    name = report.cards[0].name
    mine = report.line(name, "auroc")
    if mine is None or not mine.known or math.isnan(mine.low):
        return ""
    rivals = {one: line.value for one in report.controls if (line := report.line(one, "auroc")) and line.known}
    best = max(rivals, key=lambda one: rivals[one], default="")
    return f"the control {best}" if best and rivals[best] >= mine.low else ""


def _environment(lesson: Lesson, settings: Measured) -> dict[str, str]:
    return {
        "demerit": version("demerit"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "numpy": np.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "frames": "all" if lesson.room.stride == 1 else f"every {lesson.room.stride}th",
        "network": lesson.room.maker.hash,
        **settings.as_facts(),
    }


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in facts.items()}
