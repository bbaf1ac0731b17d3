"""Cheap quality of episodes: columns measured from actions, states and clocks alone. No frame is decoded.

None = the episode lacks what a column is measured from; it is never 0 for that reason.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from demerit.data.arrays import Floats
from demerit.data.episode import Episode, normalize_instruction
from demerit.errors import UnreadableVideo

MEASURES = {
    "jerk": "how much the actions shake: 0 = smooth, 4 = back and forth at every frame",
    "stalls": "share of the frames at which the robot stands still",
    "duration": "seconds",
    "end_pose": "distance of the last state from the usual one of the task; 1 = as far as an episode usually goes",
    "dropped_frames": "frames that are missing by the clock",
    "clock_jumps": "times that the clock goes back, stops, or leaps",
}
"""the columns and what they are"""
ACTIONS = ("action", "actions")
STATES = ("state", "qpos", "joint_position", "joint_positions", "joint_states", "robot0_joint_pos")
CLOCKS = ("timestamp", "timestamps", "time")
"""names of signals, or the last parts of their names"""
TIMED = ("video", "lerobot-images")
"""kinds of frames whose rate is known; other formats are timed at a nominal one"""
STILL_SECONDS, STILL_SHARE = 0.5, 0.01
"""a robot that goes less than this share of the episode's extent in so many seconds stands still"""
LONGEST_GAP = 10
"""steps of a clock; more is a jump"""
FEWEST_ROWS = 4
"""which have a third difference"""
FEWEST_ENDS = 3
"""episodes of a task that have a usual end"""

COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
"""comparisons in a condition such as `stalls<0.5`"""
EpisodeQuality = Mapping[str, float | None]
"""the columns of one episode, by name"""


def measure_jerk(path: Floats) -> float | None:
    """Measure how much a path of (frames, dimensions) shakes: third differences over first differences, both RMS.

    The median of the dimensions that move, so that a gripper that snaps shut does not count; None if none moves.
    """
    if len(path) < FEWEST_ROWS:
        return None
    first, third = (np.sqrt(np.mean(np.diff(path, order, axis=0) ** 2, axis=0)) for order in (1, 3))
    moving = first > 1e-9 * np.abs(path).max(initial=1.0)
    return float(np.median(third[moving] / first[moving])) if moving.any() else None


def measure_stalls(path: Floats, window: int) -> float | None:
    """Measure the share of frames within `window` steps of which a path hardly moves; None if it is shorter."""
    if len(path) <= window:
        return None
    extent = _extent(path)
    shown = np.lib.stride_tricks.sliding_window_view(path, window + 1, axis=0)
    is_still = np.linalg.norm(np.ptp(shown, axis=-1), axis=-1) <= STILL_SHARE * extent
    still = np.zeros(len(path), dtype=bool)
    for step in range(window + 1):
        still[step : step + len(is_still)] |= is_still
    return float(still.mean())


def measure_duration(times: Floats) -> float:
    """Measure the seconds from the first frame to the last."""
    return float(times[-1] - times[0])


def measure_end_poses(ends: Mapping[str, tuple[str, Floats, float]]) -> dict[str, float]:
    """Measure how far last states are from the median of their task, by episode.

    `ends` has task, last state and extent of each episode. The unit is the median extent of the task's episodes. Tasks
    with fewer than FEWEST_ENDS episodes, and states of another size than most, have no value.
    """
    tasks: dict[str, list[str]] = {}
    for id, (task, _, _) in ends.items():
        tasks.setdefault(task, []).append(id)
    distances: dict[str, float] = {}
    for group in tasks.values():
        (size, _), *_ = Counter(len(ends[id][1]) for id in group).most_common(1)
        alike = [id for id in group if len(ends[id][1]) == size]
        usual = np.median([ends[id][1] for id in alike], axis=0)
        unit = float(np.median([ends[id][2] for id in alike]))
        if len(alike) >= FEWEST_ENDS and unit > 0:
            distances |= {id: float(np.linalg.norm(ends[id][1] - usual)) / unit for id in alike}
    return distances


def count_dropped_frames(clock: Floats) -> int:
    """Count the frames that are missing in gaps of a clock of up to LONGEST_GAP steps."""
    steps = _steps(clock)
    return int((np.rint(steps[(steps > 1) & (steps <= LONGEST_GAP)]) - 1).sum())


def count_clock_jumps(clock: Floats) -> int:
    """Count the steps of a clock that go back, stand still, or are longer than LONGEST_GAP usual ones."""
    steps = _steps(clock)
    return int(((steps <= 0) | (steps > LONGEST_GAP)).sum())


def measure_quality(
    episodes: Iterable[Episode], on_progress: Callable[[int], None] = lambda seen: None
) -> Mapping[str, EpisodeQuality]:
    """Measure every column of every episode, by id. Episodes are compared with others only in `end_pose`."""
    rows: dict[str, dict[str, float | None]] = {}
    ends: dict[str, tuple[str, Floats, float]] = {}
    for episode in episodes:
        rows[episode.id], state = _measure_alone(episode)
        if state is not None:
            ends[episode.id] = normalize_instruction(episode.instruction), state[-1], _extent(state)
        on_progress(len(rows))
    for id, far in measure_end_poses(ends).items():
        rows[id]["end_pose"] = far
    return rows


def _measure_alone(episode: Episode) -> tuple[dict[str, float | None], Floats | None]:
    """Measure what one episode tells; return also its states."""
    row: dict[str, float | None] = dict.fromkeys(MEASURES)
    state, action = _find_signal(episode, STATES), _find_signal(episode, ACTIONS)
    path = state if action is None else action
    row["jerk"] = None if path is None else measure_jerk(path)
    try:
        times = np.asarray(episode.main.times(), dtype=np.float64)
    except UnreadableVideo:
        times = np.empty(0)
    if state is not None and len(times) > 1:
        step = float(np.median(np.diff(times)))
        row["stalls"] = measure_stalls(state, max(1, round(STILL_SECONDS / step))) if step > 0 else None
    kind, is_edited = getattr(episode.main.source, "kind", ""), episode.main.indices is not None
    if len(times) > 1 and kind in TIMED:
        row["duration"] = measure_duration(times)
    clock = _find_signal(episode, CLOCKS)
    clock_times = clock[:, 0] if clock is not None else times if kind == "video" and not is_edited else times[:0]
    if len(clock_times) >= FEWEST_ROWS:
        row["dropped_frames"], row["clock_jumps"] = count_dropped_frames(clock_times), count_clock_jumps(clock_times)
    return row, state


def _find_signal(episode: Episode, names: tuple[str, ...]) -> Floats | None:
    """Find the first of some signals, as (frames, dimensions) without frames that are not numbers; None = absent."""
    by_end = {end: name for name in episode.signals for end in (re.split(r"[./]", name)[-1], name)}
    name = next((by_end[end] for end in names if end in by_end), None)
    values = np.empty(0) if name is None else np.asarray(episode.signals[name])
    if not values.size or values.dtype.kind not in "iuf":
        return None
    numbers = values.reshape(len(values), -1).astype(np.float64)
    numbers = numbers[np.isfinite(numbers).all(axis=1)]
    return numbers if len(numbers) else None


def _extent(path: Floats) -> float:
    """The diagonal of the box that a path stays in."""
    return float(np.linalg.norm(np.ptp(path, axis=0)))


def _steps(clock: Floats) -> Floats:
    """The steps of a clock, in usual ones."""
    steps = np.diff(clock)
    forward = steps[steps > 0]
    return np.asarray(steps / np.median(forward)) if len(forward) else np.zeros_like(steps)


def summarise_quality(rows: Mapping[str, EpisodeQuality]) -> dict[str, dict[str, Any]]:
    """Summarise the columns that some episode has: how many have it, lowest, median, highest, and whose that is."""
    summary: dict[str, dict[str, Any]] = {}
    for name in MEASURES:
        numbers = {id: value for id, row in rows.items() if (value := row[name]) is not None}
        if numbers:
            values, highest = list(numbers.values()), max(numbers, key=lambda id: numbers[id])
            range_ = {"lowest": min(values), "median": float(np.median(values)), "highest": numbers[highest]}
            summary[name] = {"episodes": len(numbers), **range_, "highest_episode": highest}
    return summary
