"""A film strip, with curves and marks drawn under the frames that they are about. The macro `reel` shows it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Event
from demerit.data.frames import Frames
from demerit.errors import DemeritError
from demerit.evaluate.reports.player import make_film

WIDTH, HEIGHT, MARGIN = 1200, 150, 8
"""of the drawing, in its own units"""
TALL, FEWEST, MOST = 100, 6, 12
"""height of the strip in units of the drawing, which decides how many frames fit; at least and at most so many do"""
NARROWEST, LATE = 0.5, 75.0
"""least width of a mark, and where its name begins to stand to its left, in percent"""

ReelCurve = tuple[npt.ArrayLike, npt.ArrayLike]
"""frames of the episode, and values from 0 to 1; NaN is a gap"""


@dataclass(frozen=True)
class FilmReel:
    """What is drawn of one episode."""

    film: str
    """frames side by side: one JPEG, base64; empty = the video cannot be shown"""
    shown: int
    """number of frames in it"""
    curves: Mapping[str, str] = field(default_factory=dict)
    """SVG paths in units of the drawing, by name"""
    marks: Sequence[Mapping[str, Any]] = ()
    """left and width in percent, kind, look, and whether it is late"""
    size = (WIDTH, HEIGHT, MARGIN)

    @classmethod
    def draw(
        cls,
        frames: Frames,
        curves: Mapping[str, ReelCurve],
        events: Sequence[Event] = (),
        alarms: Sequence[Event] = (),
    ) -> FilmReel:
        """Draw an episode; one whose video cannot be read has no film and no curves."""
        try:
            length, (height, width) = len(frames), frames.take([0]).shape[1:3]
            shown = min(max(round(WIDTH * height / (TALL * width)), FEWEST), MOST, length)
            film = make_film(frames, shown, round(WIDTH / shown * height / width))
        except DemeritError:
            return cls("", 0)
        paths = {name: _draw_path(at, values, length, shown) for name, (at, values) in curves.items()}
        looks = [*((event, "alarm") for event in alarms), *((event, "") for event in events)]
        return cls(film, shown, paths, [_place_mark(event, look, length, shown) for event, look in looks])


def _place_mark(event: Event, look: str, length: int, shown: int) -> dict[str, Any]:
    left, right = (100 * _place_frame(frame, length, shown) / WIDTH for frame in (event.first, event.last))
    width = round(max(NARROWEST, right - left), 2)
    return {"left": round(left, 2), "width": width, "kind": event.kind, "look": look, "is_late": left > LATE}


def _place_frame(frame: float, length: int, shown: int) -> float:
    """Place a frame under the centre of its image in the strip."""
    share = frame / (length - 1) if length > 1 else 0.5
    return round(WIDTH * (share * (shown - 1) + 0.5) / shown, 1)


def _draw_path(at: npt.ArrayLike, values: npt.ArrayLike, length: int, shown: int) -> str:
    path, pen = "", "M"
    for frame, value in zip(np.asarray(at).tolist(), np.clip(values, 0, 1).tolist(), strict=True):
        if math.isnan(value):
            pen = "M"
            continue
        y = round(HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * value, 1)
        path += f"{pen}{_place_frame(frame, length, shown)},{y}"
        pen = "L"
    return path
