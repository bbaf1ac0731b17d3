"""The demo's report: a headline, film strips with rewards drawn under the frames, and the page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from demerit.data.files import write_atomic
from demerit.data.frames import Frames
from demerit.data.labels import Event
from demerit.evaluate.metrics import Measure
from demerit.evaluate.reports.headline import Lead, headline, lead
from demerit.evaluate.reports.page import model_styles, player_parts, render
from demerit.evaluate.reports.player import LISTED, make_film, pick_examples
from demerit.evaluate.reports.report import EpisodeLabels, Report

TAUGHT, UNTAUGHT = "taught", "default"
CUE = "change"
"""the control named in the headline: it sees the images but does not know the task"""
DRAWN = (CUE, "clock", UNTAUGHT, TAUGHT)
"""models drawn under a strip, back to front"""
TEMPLATE = "demo.html.j2"
FRAMES_SHOWN = 12
SIDE = 96
"""pixels of one frame in a strip"""
WIDTH, HEIGHT, MARGIN = 1200, 150, 8
"""of the drawing, in its own units"""
NARROWEST = 0.5
"""least width of a mark, in percent"""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class StripCurve:
    """One model's rewards in drawing coordinates."""

    model: str
    points: str
    final: float


@dataclass(frozen=True)
class StripMark:
    """A failure event, in percent of the width."""

    left: float
    width: float
    kind: str


@dataclass(frozen=True, eq=False)
class FilmStrip:
    """One episode, ready to draw."""

    title: str
    episode: EpisodeLabels
    film: str
    """the frames as one JPEG, base64"""
    curves: tuple[StripCurve, ...]
    truth: str
    """points of the measured progress; empty when it was not measured"""
    marks: tuple[StripMark, ...]

    @property
    def finals(self) -> dict[str, float]:
        """The final value of each drawn model."""
        return {curve.model: curve.final for curve in self.curves}


def write_demo_page(report: Report, taught: Report, path: Path, frames: Mapping[str, Frames]) -> None:
    """Write the page atomically.

    Args:
        report: about the scored episodes.
        taught: about the taught episodes.
        path: the file; its folder must exist.
        frames: the scored episodes' videos.
    """
    styles = model_styles(report)
    outcomes = Counter(episode.success for episode in report.episodes)
    facts = [
        f"{len(taught.episodes)} episodes taught",
        f"{len(report.episodes)} others scored: {outcomes[True]} successes, {outcomes[False]} failures",
        "labels measured by the simulator",
        "a task that the untaught network was not trained on",
    ]
    page = render(
        TEMPLATE,
        **player_parts(report, pick_examples(report, LISTED), frames, LISTED),
        lead=describe_demo(report, taught),
        facts=facts,
        table=headline(report),
        strips=make_strips(report, frames),
        drawn=[name for name in reversed(DRAWN) if name in styles],
        size=(WIDTH, HEIGHT, MARGIN, FRAMES_SHOWN),
        home=path.resolve().parent.parent.name,
        taught_page=f"../{TAUGHT}/report.html",
    )
    write_atomic(path, page.encode())


def describe_demo(report: Report, taught: Report) -> Lead:
    """Describe what teaching changed and which model to trust."""
    found = lead(report)
    ours, before, cue = (report.line(name, "auroc") for name in (TAUGHT, UNTAUGHT, CUE))
    if ours is None or not ours.known:
        return found
    labels, outcomes = (Counter(episode.success for episode in part.episodes) for part in (taught, report))
    text = (
        f"Taught with {labels[True]} successes and {labels[False]} failures, it scored {len(report.episodes)} episodes "
        f"that it had never seen. Of a success and a failure it ranks the success higher in {_percent(ours)} of "
        f"{outcomes[True] * outcomes[False]} pairs. The same network untaught: {_percent(before)}. How much the image "
        f"changed: {_percent(cue)}. A coin: 50%."
    )
    title = found.title
    if found.trusted == TAUGHT and before is not None and ours.value > before.value:
        title = f"{len(taught.episodes)} examples took it from {_percent(before)} to {_percent(ours)} of pairs right"
    return Lead(title, text, found.measure, found.trusted)


def _percent(measure: Measure | None) -> str:
    unknown = measure is None or not measure.known or math.isnan(measure.value)
    return "unknown" if measure is None or unknown else f"{measure.value:.0%}"


def make_strips(report: Report, frames: Mapping[str, Frames]) -> list[FilmStrip]:
    """Choose the episodes to show and draw them."""
    return [
        _make_strip(report, title, episode, frames[episode.id])
        for title, episode in choose_episodes(report)
        if episode.id in frames
    ]


def choose_episodes(report: Report) -> list[tuple[str, EpisodeLabels]]:
    """Choose four: a success, one that was undone, one that achieved nothing, and the worst prediction."""
    known = {
        episode.id: episode.curve for episode in report.episodes if episode.curve is not None and len(episode.curve)
    }
    rewards = report.rewards_of(TAUGHT)
    rated = [
        episode
        for episode in report.episodes
        if episode.id in known and episode.id in rewards and rewards[episode.id].scored
    ]
    good = [episode for episode in rated if episode.success]
    bad = [episode for episode in rated if episode.success is False]
    picked: list[tuple[str, EpisodeLabels]] = []
    if good:
        plain = min(good, key=lambda episode: (len(episode.events), _mean_error(report, episode)))
        picked.append(("Done: the reward climbs", plain))
    if bad:
        undone = max(bad, key=lambda episode: float(np.nanmax(known[episode.id]) - known[episode.id][-1]))
        picked.append(("Done, then undone: it climbs and falls", undone))
        idle = min(
            (episode for episode in bad if episode is not undone),
            key=lambda episode: np.nanmax(known[episode.id]),
            default=None,
        )
        picked += [("Nothing achieved: it stays low", idle)] if idle is not None else []
    rest = [episode for episode in rated if all(episode is not other for _, other in picked)]
    if rest:
        picked.append(("Where it is furthest off", max(rest, key=lambda episode: _mean_error(report, episode))))
    return picked


def _mean_error(report: Report, episode: EpisodeLabels) -> float:
    """Mean distance of the taught model's rewards from the measured progress."""
    reward = report.rewards_of(TAUGHT)[episode.id]
    assert episode.curve is not None
    return float(np.nanmean(np.abs(reward.value - episode.curve[reward.at])))


def _make_strip(report: Report, title: str, episode: EpisodeLabels, frames: Frames) -> FilmStrip:
    length = len(frames)
    curves = []
    for model in DRAWN:
        reward = report.rewards_of(model).get(episode.id)
        if reward is not None and reward.scored:
            curves.append(StripCurve(model, _points(reward.at, reward.value, length), float(reward.final)))
    truth = "" if episode.curve is None else _points(np.arange(len(episode.curve)), episode.curve, length)
    marks = [_mark(event, length) for event in episode.events if event.first is not None and event.last is not None]
    film = make_film(frames, FRAMES_SHOWN, SIDE)
    return FilmStrip(title, episode, film, tuple(curves), truth, tuple(marks))


def _mark(event: Event, length: int) -> StripMark:
    left, right = (100 * _x(frame, length) / WIDTH for frame in (event.first, event.last))
    return StripMark(round(left, 2), round(max(NARROWEST, right - left), 2), event.kind)


def _x(frame: float, length: int) -> float:
    """Place a frame under the centre of its image in the strip."""
    share = frame / (length - 1) if length > 1 else 0.5
    return round(WIDTH * (share * (FRAMES_SHOWN - 1) + 0.5) / FRAMES_SHOWN, 1)


def _points(at: Sequence[int] | npt.NDArray[np.integer], values: Floats, length: int) -> str:
    height = HEIGHT - 2 * MARGIN
    return " ".join(
        f"{_x(int(frame), length)},{round(HEIGHT - MARGIN - height * float(np.clip(value, 0, 1)), 1)}"
        for frame, value in zip(at, values, strict=True)
        if not np.isnan(value)
    )
