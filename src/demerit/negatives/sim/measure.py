"""Progress, success and failure events, from measured facts alone.

The intended behaviour plays no part: an expert that drops something gets `dropped`; a behaviour called drop that drops
nothing does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from demerit.data.arrays import Bools, Floats, Floats32
from demerit.data.episode import Event
from demerit.negatives.sim.arena import StepFacts
from demerit.negatives.sim.tasks import Task

REACH_SHARE = 0.3
"""the share of progress for reaching the object; moving it is the rest"""
TOUCHING = 0.03
"""a hand this close (m) to an object's centre is at the object"""
UNDER_WAY = 0.1
"""an object that moved this share of the way has been reached, wherever the hand is now"""
NOT_YET = 0.95
"""the highest progress without success"""
SHORTEST_WAY = 1e-3


def progress(task: Task, first: StepFacts, now: StepFacts, success: bool) -> float:
    """Progress at a moment, 0 to 1.

    p = 0.3 reach + 0.7 done, at most 0.95, and 1 while the task is done. With d the remaining distance, d0 the distance
    at the start and w the success distance: done = 1 - max(0, d - w) / (d0 - w). reach is the same for the hand's
    distance to the object, or done / 0.1 if that is more.
    """
    if success:
        return 1.0
    share = _covered_share(now.distance, first.distance, task.within)
    if task.measure == "hand":
        return min(NOT_YET, share)
    apart, apart_first = (float(np.linalg.norm(facts.hand - facts.object)) for facts in (now, first))
    reach = max(_covered_share(apart, apart_first, TOUCHING), min(1.0, share / UNDER_WAY))
    return min(NOT_YET, REACH_SHARE * reach + (1 - REACH_SHARE) * share)


def _covered_share(left: float, at_first: float, enough: float) -> float:
    way = max(at_first - enough, SHORTEST_WAY)
    return float(np.clip(1 - max(0.0, left - enough) / way, 0, 1))


@dataclass(frozen=True, eq=False)
class Measured:
    """The measurements of an episode: values per frame, and the facts of every step."""

    task: Task
    stride: int
    """steps from one frame to the next"""
    steps: tuple[StepFacts, ...]
    """the facts before the first step and after each; step k * stride is frame k"""
    success: Bools
    """at each frame"""
    progress: Floats
    """at each frame"""

    @classmethod
    def of(cls, task: Task, stride: int, steps: Sequence[StepFacts], success: Sequence[bool]) -> Measured:
        """Measure progress at every frame."""
        frames = steps[::stride]
        curve = [progress(task, steps[0], facts, is_done) for facts, is_done in zip(frames, success, strict=True)]
        return cls(task, stride, tuple(steps), np.array(success, dtype=bool), np.array(curve))

    def __len__(self) -> int:
        return len(self.success)

    @property
    def ever(self) -> bool:
        """Whether the task was done at any frame."""
        return bool(self.success.any())

    @property
    def at_end(self) -> bool:
        """Whether the task is done at the last frame: the label."""
        return bool(self.success[-1])

    def forces(self, name: str) -> Floats32:
        """The largest `object_force` or `scene_force` since the previous frame, per frame."""
        values = np.array([getattr(facts, name) for facts in self.steps])
        padded = np.concatenate([np.zeros(self.stride - 1), values])
        return np.asarray(padded.reshape(len(self), self.stride).max(axis=1), dtype=np.float32)

    def states(self) -> Floats32:
        """Position of the hand and openness of the gripper: (frames, 4)."""
        frames = self.steps[:: self.stride]
        return np.array([[*facts.hand, facts.openness] for facts in frames], dtype=np.float32)

    def objects(self) -> Floats32:
        """Position of the object and the remaining distance: (frames, 4)."""
        frames = self.steps[:: self.stride]
        return np.array([[*facts.object, facts.distance] for facts in frames], dtype=np.float32)

    def goals(self) -> Floats32:
        """Position of the goal: (frames, 3)."""
        return np.array([facts.target for facts in self.steps[:: self.stride]], dtype=np.float32)


LIFTED = 0.02
"""an object this far (m) above its start is lifted"""
NUDGED = 0.03
"""an object this far (m) from its start was moved"""
NEAR = 0.14
"""a hand this close (m) to an object tries to grasp it"""
SHUT = 0.55
"""a gripper less open than this is closed"""
BEYOND = 0.25
"""distance past the goal, as a share of the way, that counts as overshoot"""
STILL = 0.0015
"""a hand slower than this (m per step) stands still"""
MORE_DONE = 0.05
"""an increase of progress that shows that the work continued"""
LONG_GRIP = 20
"""steps (1/80 s) after which a closed gripper or an object at rest counts"""


def find_events(measured: Measured) -> tuple[Event, ...]:
    """Find all failure events of an episode, sorted by first frame."""
    events = [event for rule in RULES for event in rule(measured)]
    explained = {event.kind for event in events} & (ENDS_BADLY | (FORCED if measured.task.gentle else set()))
    if not measured.at_end and not explained:
        best = int(np.argmax(measured.progress))
        events.append(Event("incomplete", best, len(measured) - 1, f"stops at progress {measured.progress[-1]:.2f}"))
    return tuple(sorted(events, key=lambda event: (event.first, event.kind)))


ENDS_BADLY = frozenset({"dropped", "missed grasp", "not released", "undone", "wrong object", "wrong place"})
"""kinds that explain why the task is not done"""


FORCED = frozenset({"excessive force", "collision"})
"""kinds that explain it in a gentle task"""


def _undo(measured: Measured) -> Iterator[Event]:
    if measured.ever and not _is_in_place(measured, len(measured.steps) - 1):
        lost = int(np.flatnonzero(measured.success)[-1]) + 1
        yield Event("undone", lost, len(measured) - 1, "the task was done before")


def _drop(measured: Measured) -> Iterator[Event]:
    """Held and lifted, then released and fallen."""
    if not measured.task.grasps:
        return
    is_held = _column(measured, "held") > 0
    height = np.array([facts.object[2] for facts in measured.steps])
    for first, last in _runs(~is_held):
        if first == 0 or not is_held[max(0, first - 8) : first].any():
            continue
        fallen = np.flatnonzero(height[first - 1] - height[first : last + 1] > LIFTED)
        if height[first - 1] - height[0] <= LIFTED or not len(fallen):
            continue
        landed = first + int(fallen[0])
        # falling into the goal is not a drop
        if not any(_is_in_place(measured, landed + after) for after in range(0, LONG_GRIP * 2, measured.stride)):
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
        if near and empty and last - first > LONG_GRIP and not _is_in_place(measured, last):
            yield _event(measured, "missed grasp", first, last, "the gripper closed on nothing")
            return


def _not_released(measured: Measured) -> Iterator[Event]:
    is_held = _column(measured, "held")
    runs = [run for run in _runs(is_held) if run[1] == len(is_held) - 1]
    for first, last in runs:
        near = measured.steps[-1].distance < 2 * measured.task.within and not _is_in_place(measured, last)
        if near and not measured.ever and last - first > LONG_GRIP:
            yield _event(measured, "not released", max(first, last - LONG_GRIP), last, "still in the gripper")


def _wrong_place(measured: Measured) -> Iterator[Event]:
    """Moved, released, and at rest away from the goal."""
    places = np.array([facts.object for facts in measured.steps])
    if _is_in_place(measured, len(measured.steps) - 1) or measured.ever or not measured.task.loose:
        return
    is_moved = float(np.linalg.norm(places[-1] - places[0])) > NUDGED
    is_released = not measured.steps[-1].held and not measured.steps[-1].touched
    if is_moved and is_released:
        away = np.linalg.norm(places - places[-1], axis=1) > 0.01  # noqa: PLR2004
        rest = int(np.flatnonzero(away)[-1]) + 1 if away.any() else 0
        if rest < len(places) - LONG_GRIP // 2:
            yield _event(measured, "wrong place", rest, len(places) - 1, f"{measured.steps[-1].distance:.2f} m off")


def _wrong_object(measured: Measured) -> Iterator[Event]:
    if measured.steps[0].spare is None:
        return
    places = np.array([facts.spare for facts in measured.steps])
    touched = _column(measured, "spare_touched")
    is_moved = np.linalg.norm(places - places[0], axis=1) > NUDGED
    if touched.any() and is_moved.any():
        first, last = int(np.flatnonzero(touched)[0]), int(np.flatnonzero(touched)[-1])
        yield _event(measured, "wrong object", first, last, "the other object was moved")


def _overshoot(measured: Measured) -> Iterator[Event]:
    """The object goes past the goal along the line from start to goal."""
    start, goal = measured.steps[0].object, measured.steps[0].target
    if not measured.task.loose or measured.task.measure != "xyz":
        return  # a mechanism has a stop
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
    """A long pause before the task is done, with progress afterwards."""
    hands = np.array([facts.hand for facts in measured.steps])
    still = np.linalg.norm(np.diff(hands, axis=0), axis=1) < STILL
    for first, last in _runs(still):
        begin, end = first // measured.stride, -(-last // measured.stride)
        is_long = last - first >= measured.task.long_pause and first > LONG_GRIP
        if is_long and last < len(still) - 1 and not measured.success[begin : end + 1].any():
            continues = measured.progress[end:].max() > measured.progress[end] + MORE_DONE
            if continues:
                yield _event(measured, "hesitation", first, last, f"{(last - first) / 80:.1f} s without motion")


RULES: tuple[Callable[[Measured], Iterator[Event]], ...] = (
    _undo,
    _drop,
    _missed_grasp,
    _not_released,
    _wrong_place,
    _wrong_object,
    _overshoot,
    _too_much_force,
    _hesitation,
)


def _column(measured: Measured, name: str) -> Floats:
    return np.array([getattr(facts, name) for facts in measured.steps])


def _runs(flags: Bools | Floats) -> list[tuple[int, int]]:
    """First and last index of every run of true values."""
    padded = np.concatenate([[0], np.asarray(flags, dtype=np.int8), [0]])
    edges = np.flatnonzero(np.diff(padded))
    return [(int(first), int(last) - 1) for first, last in edges.reshape(-1, 2)]


def _is_in_place(measured: Measured, step: int) -> bool:
    """Whether the task is done then, or only force has spoiled it."""
    is_there = measured.steps[min(len(measured.steps) - 1, step)].distance < measured.task.within
    is_done = bool(measured.success[min(len(measured) - 1, -(-step // measured.stride))])
    return is_done or (measured.task.gentle and is_there)


def _event(measured: Measured, kind: str, first: int, last: int, note: str) -> Event:
    """Make an event from the last frame before the first step to the first frame after the last step."""
    most = len(measured) - 1
    return Event(kind, min(most, first // measured.stride), min(most, -(-last // measured.stride)), note)
