"""The failure moment: where a person marked a failure, does the reward fall?

For an event that starts at frame f, with w frames of patience: peak = the largest value at the scored frames up to and
including f; the drop is peak minus the least value at the scored frames from f to f + w; the event is caught when
the drop is at least delta, and its latency is (the first such frame) - f.

A curve that falls everywhere catches every event. So the same question is asked at every other frame of the same
episode (placebo), and events that were already down before they began are counted as early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput
from demerit.evaluate.metrics.bootstrap import DEFAULT, Resampling, mean_tally
from demerit.evaluate.metrics.columns import Floats, Labels, numbers, pick
from demerit.evaluate.metrics.measure import Measure


@dataclass(frozen=True, eq=False)
class Falls:
    """What the value does at each event, an entry per event."""

    drop: Floats
    """NaN when a frame that it needs is unscored, or when no frame inside the window was looked at"""
    latency: Floats
    """frames from the start to the first value at least delta below the peak; NaN when not caught"""
    early: npt.NDArray[np.bool_]
    """already delta below its peak at the last look before the event"""
    unseen: npt.NDArray[np.bool_]
    """no scored frame up to the start, or none in the window: the formula has nothing to look at"""
    placebo: Floats
    """share caught at the other frames of the same episode; NaN when there are none"""
    delta: float

    @property
    def caught(self) -> Floats:
        """1 caught, 0 missed, NaN unknown."""
        return np.where(np.isnan(self.drop), np.nan, (~np.isnan(self.latency)).astype(np.float64))


@dataclass(frozen=True)
class FailureMoment:
    """The measures of the failure moment, which belong together."""

    caught: Measure
    placebo: Measure
    """what the same curve "catches" where nothing happened: chance for this model"""
    drop: Measure
    latency: Measure


def falls_at(
    values: Sequence[npt.ArrayLike],
    at: Sequence[npt.ArrayLike],
    starts: Sequence[int],
    *,
    window: int,
    delta: float,
) -> Falls:
    """Look at each event by itself.

    Args:
        values: the curve of the event's episode, per event; NaN = unscored.
        at: the frame index of each value, growing.
        starts: the first frame of each event.
        window: how many frames after the start count.
        delta: how far the value must fall, in the unit of the model.
    """
    if window < 0 or not delta > 0:
        raise BadInput("failure moment", "window >= 0 and delta > 0", (window, delta))
    if not len(values) == len(at) == len(starts):
        lengths = (len(values), len(at), len(starts))
        raise BadInput("failure moment", "a curve, its frames and a start per event", lengths)
    found = [_look(values[i], at[i], int(starts[i]), window, delta) for i in range(len(starts))]
    table = np.array(found, dtype=np.float64).reshape(len(found), 5)
    return Falls(table[:, 0], table[:, 1], table[:, 2] == 1, table[:, 3] == 1, table[:, 4], delta)


def failure_moment(
    values: Sequence[npt.ArrayLike],
    at: Sequence[npt.ArrayLike],
    starts: Sequence[int],
    *,
    window: int,
    delta: float,
    clusters: Labels | None = None,
    resampling: Resampling = DEFAULT,
) -> FailureMoment:
    """Measure share caught, its placebo, mean drop and mean latency of the caught (see the top of this module)."""
    found = falls_at(values, at, starts, window=window, delta=delta)
    known = ~np.isnan(found.drop)
    unseen = int(found.unseen.sum())
    missing = int((~known).sum()) - unseen
    note = f"falls by {delta:g} within {window} frames"
    facts = {"unscored": missing, "undefined": unseen}
    counts = {"early": int((found.early & known).sum()), "caught": int(np.nansum(found.caught)) if len(known) else 0}
    there = pick(clusters, known)

    def mean(name: str, unit: str, column: Floats, labels: Labels | None, **more: int) -> Measure:
        return mean_tally(name, unit, column, labels, counts=counts, note=note, **more).measure(resampling)

    caught = mean("failure_caught", "events", found.caught[known], there, **facts)
    drop = mean("failure_drop", "events", found.drop[known], there, **facts)
    held = known & ~np.isnan(found.latency)
    late, whose = found.latency[held], pick(clusters, held)
    latency = mean("failure_latency_frames", "caught events", late, whose, unscored=missing)
    other = known & ~np.isnan(found.placebo)
    empty = {"unscored": missing, "undefined": int((known & ~other).sum())}
    placebo = mean("failure_caught_placebo", "events", found.placebo[other], pick(clusters, other), **empty)
    return FailureMoment(caught, placebo, drop, latency)


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
    # as much patience as the event had, and no look that overlaps with the event's own window
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
