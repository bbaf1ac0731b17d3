"""Failure events, from measured facts alone: what the arm meant to do plays no part.

Each rule looks at the facts of every step and names a kind of the failure taxonomy with its first and last frame. An
expert that drops something gets `dropped`; a behaviour called drop that did not drop anything gets nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from demerit.data.labels import Event
from demerit.negatives.sim.measure import Measured

Flags = npt.NDArray[np.bool_]

LIFTED = 0.02
"""a thing this far (m) above where it lay is lifted"""
NUDGED = 0.03
"""a thing that came this far (m) was moved"""
NEAR = 0.14
"""a hand this near (m) to an object tries to take it"""
SHUT = 0.55
"""a gripper less open than this has closed"""
BEYOND = 0.25
"""how far past the goal, as a share of the way, is too far"""
STILL = 0.0015
"""a hand slower than this (m per step) stands still"""
MORE_DONE = 0.05
"""progress that shows that the work went on"""
LONG_GRIP = 20
"""steps (1/80 s) after which a closed gripper, or a thing at rest, is no passing moment"""


def find_events(measured: Measured) -> tuple[Event, ...]:
    """Find all failure events of an episode, by their first frame."""
    found = [event for rule in RULES for event in rule(measured)]
    explained = {event.kind for event in found} & ENDS_BADLY
    if not measured.at_end and not explained:
        best = int(np.argmax(measured.progress))
        found.append(Event("incomplete", best, len(measured) - 1, f"stops at progress {measured.progress[-1]:.2f}"))
    return tuple(sorted(found, key=lambda event: (event.first, event.kind)))


ENDS_BADLY = frozenset({"dropped", "missed grasp", "not released", "undone", "wrong object", "wrong place"})
"""kinds that say by themselves why the task is not done"""


def _undone(measured: Measured) -> Iterator[Event]:
    if measured.ever and not measured.at_end:
        lost = int(np.flatnonzero(measured.success)[-1]) + 1
        yield Event("undone", lost, len(measured) - 1, "the task was done before")


def _dropped(measured: Measured) -> Iterator[Event]:
    """Held and lifted, then let go above its support, and fallen."""
    if not measured.task.grasps:
        return
    held = _column(measured, "held") > 0
    height = np.array([facts.object[2] for facts in measured.steps])
    for first, last in _runs(~held):
        if first == 0 or not held[max(0, first - 8) : first].any():
            continue
        fallen = np.flatnonzero(height[first - 1] - height[first : last + 1] > LIFTED)
        if height[first - 1] - height[0] <= LIFTED or not len(fallen):
            continue
        landed = first + int(fallen[0])
        # what falls into its goal was put there
        if not any(_is_done(measured, landed + after) for after in range(0, LONG_GRIP * 2, measured.stride)):
            yield _event(measured, "dropped", first, landed, f"from {height[first - 1]:.2f} m")
            return


def _missed_grasp(measured: Measured) -> Iterator[Event]:
    """The gripper closes near the object and the object is not between the fingers."""
    if not measured.task.grasps:
        return
    shut = _column(measured, "openness") < SHUT
    for first, last in _runs(shut):
        span = measured.steps[first : last + 1]
        near = float(np.linalg.norm(span[0].hand - span[0].object)) < NEAR
        empty = not any(facts.held or facts.spare_touched for facts in span)
        if near and empty and last - first > LONG_GRIP and not _is_done(measured, last):
            yield _event(measured, "missed grasp", first, last, "the gripper closed on nothing")
            return


def _not_released(measured: Measured) -> Iterator[Event]:
    held = _column(measured, "held")
    runs = [run for run in _runs(held) if run[1] == len(held) - 1]
    for first, last in runs:
        near = measured.steps[-1].distance < 2 * measured.task.within
        if near and not measured.ever and last - first > LONG_GRIP:
            yield _event(measured, "not released", max(first, last - LONG_GRIP), last, "still in the gripper")


def _wrong_place(measured: Measured) -> Iterator[Event]:
    """Moved, let go, at rest somewhere else than at the goal."""
    places = np.array([facts.object for facts in measured.steps])
    if measured.at_end or measured.ever or not measured.task.loose:
        return
    moved = float(np.linalg.norm(places[-1] - places[0])) > NUDGED
    left = not measured.steps[-1].held and not measured.steps[-1].touched
    if moved and left:
        away = np.linalg.norm(places - places[-1], axis=1) > 0.01  # noqa: PLR2004
        rest = int(np.flatnonzero(away)[-1]) + 1 if away.any() else 0
        if rest < len(places) - LONG_GRIP // 2:
            yield _event(measured, "wrong place", rest, len(places) - 1, f"{measured.steps[-1].distance:.2f} m off")


def _wrong_object(measured: Measured) -> Iterator[Event]:
    if measured.steps[0].spare is None:
        return
    places = np.array([facts.spare for facts in measured.steps])
    touched = _column(measured, "spare_touched")
    moved = np.linalg.norm(places - places[0], axis=1) > NUDGED
    if touched.any() and moved.any():
        first, last = int(np.flatnonzero(touched)[0]), int(np.flatnonzero(touched)[-1])
        yield _event(measured, "wrong object", first, last, "the other object was moved")


def _overshoot(measured: Measured) -> Iterator[Event]:
    """The object passes the goal: its way along the line from start to goal is longer than the line."""
    start, goal = measured.steps[0].object, measured.steps[0].target
    if not measured.task.loose or measured.task.measure != "xyz":
        return  # a mechanism has a stop, and further than asked is done
    line = goal - start
    length = float(np.linalg.norm(line))
    along = np.array([(facts.object - start) @ line for facts in measured.steps]) / max(length**2, 1e-6)
    margin = max(BEYOND, 1.5 * measured.task.within / max(length, 1e-3))
    for first, last in _runs(along > 1 + margin)[:1]:
        yield _event(measured, "overshoot", first, last, "beyond the goal")


def _too_much_force(measured: Measured) -> Iterator[Event]:
    for kind, column, limit in (
        ("excessive force", "object_force", measured.task.object_force),
        ("collision", "scene_force", measured.task.scene_force),
    ):
        forces = _column(measured, column)
        over = np.flatnonzero(forces > limit)
        if len(over):
            note = f"{forces.max():.0f} N where experts stay under {limit:.0f} N"
            yield _event(measured, kind, int(over[0]), int(over[-1]), note)


def _hesitation(measured: Measured) -> Iterator[Event]:
    """Standing still for long on the way, with the task not done and more of it done afterwards."""
    hands = np.array([facts.hand for facts in measured.steps])
    still = np.linalg.norm(np.diff(hands, axis=0), axis=1) < STILL
    for first, last in _runs(still):
        begin, end = first // measured.stride, -(-last // measured.stride)
        is_long = last - first >= measured.task.long_pause and first > LONG_GRIP
        if is_long and last < len(still) - 1 and not measured.success[begin : end + 1].any():
            goes_on = measured.progress[end:].max() > measured.progress[end] + MORE_DONE
            if goes_on:
                yield _event(measured, "hesitation", first, last, f"{(last - first) / 80:.1f} s without motion")


RULES: tuple[Callable[[Measured], Iterator[Event]], ...] = (
    _undone,
    _dropped,
    _missed_grasp,
    _not_released,
    _wrong_place,
    _wrong_object,
    _overshoot,
    _too_much_force,
    _hesitation,
)


def _column(measured: Measured, name: str) -> npt.NDArray[np.float64]:
    return np.array([getattr(facts, name) for facts in measured.steps])


def _runs(flags: Flags | npt.NDArray[np.float64]) -> list[tuple[int, int]]:
    """First and last index of every run of true values."""
    padded = np.concatenate([[0], np.asarray(flags, dtype=np.int8), [0]])
    edges = np.flatnonzero(np.diff(padded))
    return [(int(first), int(last) - 1) for first, last in edges.reshape(-1, 2)]


def _is_done(measured: Measured, step: int) -> bool:
    return bool(measured.success[min(len(measured) - 1, -(-step // measured.stride))])


def _event(measured: Measured, kind: str, first: int, last: int, note: str) -> Event:
    """Name the frames that show it: from the last frame before it to the first after."""
    most = len(measured) - 1
    return Event(kind, min(most, first // measured.stride), min(most, -(-last // measured.stride)), note)
