"""Failure moments: does the reward fall where a person marked a failure?

For an event that starts at frame f and a window of w frames: peak = largest value at the scored frames up to and
including f; drop = peak minus the smallest value at the scored frames from f to f + w. The event is caught if the drop
is at least delta; its latency is (the first such frame) - f.

A curve that falls everywhere catches every event. So the same test runs at every other frame of the same episode
(placebo), and events whose value was already down before they began are marked as early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Bools, Floats
from demerit.errors import BadInput
from demerit.evaluate.metrics.bootstrap import numbers


@dataclass(frozen=True, eq=False)
class Falls:
    """Drop and latency of the value at each event, one entry per event."""

    drop: Floats
    """NaN if a frame that it needs is unscored, or if no frame inside the window was scored"""
    latency: Floats
    """frames from the start to the first value at least delta below the peak; NaN if not caught"""
    early: Bools
    """already delta below its peak at the last scored frame before the event"""
    unseen: Bools
    """no scored frame up to the start, or none in the window"""
    placebo: Floats
    """share caught at the other frames of the same episode; NaN if there are none"""
    delta: float

    @property
    def caught(self) -> Floats:
        """1 caught, 0 missed, NaN unknown."""
        return np.where(np.isnan(self.drop), np.nan, (~np.isnan(self.latency)).astype(np.float64))


def falls_at(
    values: Sequence[npt.ArrayLike],
    at: Sequence[npt.ArrayLike],
    starts: Sequence[int],
    *,
    window: int,
    delta: float,
) -> Falls:
    """Compute drop, latency and placebo of each event.

    Args:
        values: the curve of the event's episode, per event; NaN = unscored.
        at: the frame index of each value, increasing.
        starts: the first frame of each event.
        window: number of frames after the start that count.
        delta: the smallest fall that counts, in the unit of the model.
    """
    if window < 0 or not delta > 0:
        raise BadInput("failure moment", "window >= 0 and delta > 0", (window, delta))
    if not len(values) == len(at) == len(starts):
        lengths = (len(values), len(at), len(starts))
        raise BadInput("failure moment", "a curve, its frames and a start per event", lengths)
    looks = [_look(values[i], at[i], int(starts[i]), window, delta) for i in range(len(starts))]
    table = np.array(looks, dtype=np.float64).reshape(len(looks), 5)
    return Falls(table[:, 0], table[:, 1], table[:, 2] == 1, table[:, 3] == 1, table[:, 4], delta)


def _look(
    values: npt.ArrayLike, at: npt.ArrayLike, start: int, window: int, delta: float
) -> tuple[float, float, float, float, float]:
    """Return drop, latency, early, unseen and placebo of one event."""
    frames = numbers("frames", at)
    curve = numbers("values", values, len(frames))
    if np.isnan(frames).any() or np.any(np.diff(frames) <= 0) or start < 0:
        raise BadInput("failure moment", "growing frame indices and a start from 0 on", "others")
    drop, latency = _fall(curve, frames, start, window, delta)
    unseen = not np.any(frames <= start) or not np.any((frames >= start) & (frames <= start + window))
    before = curve[frames < start]
    early = len(before) > 0 and bool(np.max(before) - before[-1] >= delta)
    if np.isnan(drop):
        return np.nan, np.nan, float(early), float(unseen), np.nan
    # the same window as the event, and no overlap with the event's own window
    others = [
        float(not np.isnan(_fall(curve, frames, int(f), window, delta)[1]))
        for f in frames
        if abs(f - start) > window and f + window <= frames[-1] and not np.isnan(curve[frames <= f + window]).any()
    ]
    return drop, latency, float(early), float(unseen), float(np.mean(others)) if others else np.nan


def _fall(curve: Floats, frames: Floats, start: int, window: int, delta: float) -> tuple[float, float]:
    upto, inside = frames <= start, (frames >= start) & (frames <= start + window)
    needed = curve[upto | inside]
    if not upto.any() or not inside.any() or np.isnan(needed).any():
        return np.nan, np.nan
    fallen = curve[upto].max() - curve[inside]
    down = np.flatnonzero(fallen >= delta)
    latency = float(frames[inside][down[0]] - start) if len(down) else np.nan
    return float(fallen.max()), latency
