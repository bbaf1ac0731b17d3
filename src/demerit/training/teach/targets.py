"""From what is known about an episode to a target and a weight per frame.

Only what somebody said gets full weight; what is made up to fill a gap is marked so and gets little:

    measured   a curve with a value at every frame: taken as it is
    marked     a curve with values at a few frames: those count; between them straight lines, made up
    end        a verdict, a grade or a final progress: the last few frames
    capped     "it failed" and nothing else: the last frames are worth *at most* `cap`, and so is what follows a failure
               event. That is a bound and not a value: how much it is really worth, the fitted head says itself
    start      the first frame is worth nothing yet
    made up    the way between start and end, straight in time

Every frame with a weight also has a target for `done`: whether the task is done at that frame.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demerit.data.frames import spread
from demerit.errors import NotApplicable
from demerit.training.teach.labels import DONE, Label
from demerit.training.teach.settings import Settings, Weights

Floats = npt.NDArray[np.float64]
PARTS = ("measured", "marked", "between", "end", "start", "made_up", "capped", "event", "words")
"""where a frame's target comes from; names of `Weights`"""
REAL = frozenset({"measured", "marked", "end", "capped", "event"})
_CODE = {name: code for code, name in enumerate(PARTS, start=1)}


@dataclass(frozen=True, eq=False)
class Target:
    """What the frames of one episode are worth, as far as anybody knows."""

    value: Floats
    """progress at each frame; NaN where nothing is known; a bound where `capped`"""
    done: Floats
    """1, 0 or NaN: whether the task is done there"""
    capped: npt.NDArray[np.bool_]
    """where `value` is only an upper bound"""
    part: npt.NDArray[np.int8]
    """where each value comes from: 0 nowhere, else a place in PARTS + 1"""
    weights: Weights
    share: float = 1.0
    """all weights are multiplied by it"""
    success: bool | None = None

    def __len__(self) -> int:
        """How many frames there are."""
        return len(self.value)

    @property
    def parts(self) -> tuple[str, ...]:
        """Where its values come from."""
        return tuple(name for name in PARTS if bool((self.part == _CODE[name]).any()))

    @property
    def highest(self) -> float:
        """The most that any frame is known to be worth; NaN when nothing is known."""
        known = self.value[(self.part > 0) & ~self.capped]
        return float(known.max()) if len(known) else float("nan")

    def rows(self, count: int, last: int) -> tuple[npt.NDArray[np.int64], Floats]:
        """Choose frames to fit, and weigh them: each part's weight is shared by its chosen frames.

        Spread evenly, with the first, the last few and every marked frame always among them.
        """
        length = len(self)
        chosen = np.zeros(length, dtype=bool)
        chosen[spread(length, count)] = True
        chosen[max(0, length - last) :] = True
        chosen[self.part == _CODE["marked"]] = True
        chosen[self.part == _CODE["start"]] = True
        at = np.flatnonzero(chosen & (self.part > 0))
        weight = np.zeros(len(at))
        for name in self.parts:
            mine = self.part[at] == _CODE[name]
            if mine.any():
                weight[mine] = self.share * getattr(self.weights, name) / mine.sum()
        return at, weight

    def at(self, frames: npt.NDArray[np.integer]) -> Target:
        """Keep some frames, in any order, repeats allowed."""
        return Target(
            self.value[frames],
            self.done[frames],
            self.capped[frames],
            self.part[frames],
            self.weights,
            self.share,
            self.success,
        )


class _Draft:
    """A target in the making; what is set first stays."""

    def __init__(self, length: int) -> None:
        self.value, self.done = np.full(length, np.nan), np.full(length, np.nan)
        self.capped, self.part = np.zeros(length, dtype=bool), np.zeros(length, dtype=np.int8)

    def set(
        self, frames: npt.NDArray[np.integer] | slice, value: npt.ArrayLike, part: str, capped: bool = False
    ) -> None:
        at = np.arange(len(self.value))[frames]
        free = self.part[at] == 0
        values = np.broadcast_to(np.asarray(value, dtype=np.float64), at.shape)
        self.value[at[free]] = values[free]
        self.capped[at[free]] = capped
        self.part[at[free]] = _CODE[part]

    def finish(self, settings: Settings, label: Label) -> Target:
        known = self.part > 0
        # A success is done where it is as far as it is at the end; anything else only where progress is complete.
        level = min(DONE, float(self.value[-1])) if label.verdict and known[-1] else DONE
        self.done[known] = (self.value[known] >= level) & ~self.capped[known]
        return Target(self.value, self.done, self.capped, self.part, settings.weights, success=label.verdict)


def target_of(label: Label, length: int, settings: Settings | None = None) -> Target:
    """Make the targets of an episode of so many frames.

    Raises:
        NotApplicable: nothing is known about it, or its curve is not as long as the video.
    """
    settings = settings or Settings()
    if length < 1:
        raise NotApplicable("it has no frames")
    if not label.known:
        raise NotApplicable("nobody says how it went")
    draft = _Draft(length)
    if label.curve is not None:
        if len(label.curve) != length:
            raise NotApplicable(f"its curve has {len(label.curve)} values and its video {length} frames")
        _from_curve(draft, label, settings)
    else:
        _from_end(draft, label, settings)
    return draft.finish(settings, label)


def begun(length: int, settings: Settings) -> Target:
    """The targets of an episode of which nothing is known but that it began: it was compared with others."""
    draft = _Draft(length)
    draft.set(slice(0, 1), 0.0, "start")
    return draft.finish(settings, Label())


def wrong_words(length: int, settings: Settings) -> Target:
    """The targets of a success that is judged by another task's words: nothing of that was done."""
    draft = _Draft(length)
    draft.set(slice(None), 0.0, "words")
    return draft.finish(settings, Label(success=False))


def _from_curve(draft: _Draft, label: Label, settings: Settings) -> None:
    curve = np.asarray(label.curve, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(curve))
    if len(known) == len(curve):
        draft.set(slice(None), curve, "measured")
        return
    draft.set(known, curve[known], "marked")
    points = dict(zip(known.tolist(), curve[known].tolist(), strict=True))
    points.setdefault(0, 0.0)
    if label.end is not None:
        points.setdefault(len(curve) - 1, label.end)
    _straight(draft, points, "between")


def _from_end(draft: _Draft, label: Label, settings: Settings) -> None:
    length, end = len(draft.value), label.end
    last = slice(max(1, length - settings.ending(length)), length) if length > 1 else slice(0, 1)
    events = [one for one in label.events if one.first < length]
    if end is not None:
        # The verdict is about how it ended: the last few frames, and more than the last one so that noise averages.
        draft.set(last, end, "end")
        draft.set(slice(0, 1), 0.0, "start")
        _straight(draft, {0: 0.0, **_turns(events, end, length), length - 1: end}, "made_up")
        return
    if label.verdict is False:
        draft.set(last, settings.cap, "capped", capped=True)
    elif events:
        after = min(max(one.last for one in events), length - 1)
        draft.set(slice(after, length), settings.cap, "event", capped=True)
    if events and label.verdict is False:
        draft.set(slice(min(one.first for one in events), length), settings.cap, "event", capped=True)
    draft.set(slice(0, 1), 0.0, "start")


def _turns(events: Iterable[object], end: float, length: int) -> dict[int, float]:
    """Where a failure that ended low turned: nothing is known but that it got no further after the event."""
    firsts = [int(one.first) for one in events]  # type: ignore[attr-defined]
    return {min(firsts): end} if firsts and end < DONE and 0 < min(firsts) < length - 1 else {}


def _straight(draft: _Draft, points: dict[int, float], part: str) -> None:
    at = sorted(points)
    inside = np.arange(at[0], at[-1] + 1)
    draft.set(inside, np.interp(inside, at, [points[i] for i in at]), part)
