"""Episodes as film strips: pictures in a row, and under them, moment by moment, what each model makes of them."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demerit.cli.demo.words import CUE, TAUGHT, UNTAUGHT
from demerit.data.frames import Frames, Images, spread
from demerit.data.labels import Event
from demerit.evaluate.reports.report import EpisodeLabels, Report

PICTURES = 12
SIDE = 96
"""pixels of one picture"""
WIDTH, HEIGHT, MARGIN = 1200, 150, 8
"""of the drawing, in its own units"""
NARROWEST = 0.5
"""percent of the width that a mark takes at least"""
DRAWN = (CUE, "clock", UNTAUGHT, TAUGHT)
"""from the back to the front"""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Curve:
    """One model's rewards, ready to draw."""

    model: str
    points: str
    final: float


@dataclass(frozen=True)
class Mark:
    """A stretch of the episode in which something went wrong."""

    left: float
    """in percent of the drawing, as is the width"""
    width: float
    kind: str


@dataclass(frozen=True, eq=False)
class Strip:
    """One episode, ready to draw."""

    title: str
    episode: EpisodeLabels
    film: str
    """the pictures as one JPEG, in base64"""
    curves: tuple[Curve, ...]
    truth: str
    """points of the measured progress; empty when nobody measured it"""
    marks: tuple[Mark, ...]

    @property
    def finals(self) -> dict[str, float]:
        """What each drawn model gives at the end."""
        return {curve.model: curve.final for curve in self.curves}


def strips(report: Report, frames: Mapping[str, Frames]) -> list[Strip]:
    """Choose the episodes that tell most, and draw them."""
    return [_strip(report, title, one, frames[one.id]) for title, one in chosen(report) if one.id in frames]


def chosen(report: Report) -> list[tuple[str, EpisodeLabels]]:
    """Choose: done; done and undone; never begun; and the one that the taught model follows worst, whatever it is."""
    known = {one.id: one.curve for one in report.episodes if one.curve is not None and len(one.curve)}
    rewards = report.rewards_of(TAUGHT)
    rated = [one for one in report.episodes if one.id in known and one.id in rewards and rewards[one.id].scored]
    good = [one for one in rated if one.success]
    bad = [one for one in rated if one.success is False]
    picked: list[tuple[str, EpisodeLabels]] = []
    if good:
        plain = min(good, key=lambda one: (len(one.events), _distance(report, one)))
        picked.append(("Done: the reward climbs", plain))
    if bad:
        undone = max(bad, key=lambda one: float(np.nanmax(known[one.id]) - known[one.id][-1]))
        picked.append(("Done, then undone: it climbs and falls", undone))
        idle = min((one for one in bad if one is not undone), key=lambda one: np.nanmax(known[one.id]), default=None)
        picked += [("Nothing achieved: it stays low", idle)] if idle is not None else []
    rest = [one for one in rated if all(one is not other for _, other in picked)]
    if rest:
        picked.append(("Where it is furthest off", max(rest, key=lambda one: _distance(report, one))))
    return picked


def _distance(report: Report, episode: EpisodeLabels) -> float:
    """How far the taught model's curve lies from what was measured, on average."""
    reward = report.rewards_of(TAUGHT)[episode.id]
    assert episode.curve is not None  # chosen above
    return float(np.nanmean(np.abs(reward.value - episode.curve[reward.at])))


def _strip(report: Report, title: str, episode: EpisodeLabels, frames: Frames) -> Strip:
    length = len(frames)
    curves = []
    for model in DRAWN:
        reward = report.rewards_of(model).get(episode.id)
        if reward is not None and reward.scored:
            curves.append(Curve(model, _points(reward.at, reward.value, length), float(reward.final)))
    truth = "" if episode.curve is None else _points(np.arange(len(episode.curve)), episode.curve, length)
    marks = [_mark(event, length) for event in episode.events if event.first is not None and event.last is not None]
    return Strip(title, episode, _film(frames.take(spread(length, PICTURES))), tuple(curves), truth, tuple(marks))


def _mark(event: Event, length: int) -> Mark:
    left, right = (100 * _x(frame, length) / WIDTH for frame in (event.first, event.last))
    return Mark(round(left, 2), round(max(NARROWEST, right - left), 2), event.kind)


def _x(frame: float, length: int) -> float:
    """Where a frame stands: under the middle of its picture, if it is one of those shown."""
    share = frame / (length - 1) if length > 1 else 0.5
    return round(WIDTH * (share * (PICTURES - 1) + 0.5) / PICTURES, 1)


def _points(at: Sequence[int] | npt.NDArray[np.integer], value: Floats, length: int) -> str:
    room = HEIGHT - 2 * MARGIN
    return " ".join(
        f"{_x(int(frame), length)},{round(HEIGHT - MARGIN - room * float(np.clip(one, 0, 1)), 1)}"
        for frame, one in zip(at, value, strict=True)
        if not np.isnan(one)
    )


def _film(images: Images) -> str:
    from PIL import Image  # noqa: PLC0415

    film = Image.new("RGB", (SIDE * len(images), SIDE))
    for place, image in enumerate(images):
        film.paste(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.LANCZOS), (SIDE * place, 0))
    buffer = io.BytesIO()
    film.save(buffer, "JPEG", quality=82)
    return base64.b64encode(buffer.getvalue()).decode("ascii")
