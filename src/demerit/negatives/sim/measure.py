"""Progress and success, measured at every frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demerit.data.labels import Event
from demerit.negatives.sim.arena import Facts
from demerit.negatives.sim.tasks import Task

Floats = npt.NDArray[np.float64]

REACH_SHARE = 0.3
"""getting to the object is worth this much, moving it where it should be the rest"""
TOUCHING = 0.03
"""a hand this near (m) to an object's middle is at the object"""
UNDER_WAY = 0.1
"""once this share of the way is done, the object was reached, wherever the hand is now"""
NOT_YET = 0.95
"""the most that anything short of success is worth"""
SHORTEST_WAY = 1e-3


def progress(task: Task, first: Facts, now: Facts, success: bool) -> float:
    """Measure how much of the task is done at a moment, 0 to 1.

    p = 0.3 reach + 0.7 done, at most 0.95, and 1 while the task is done. With d the distance that is left, d0 the one
    at the start and w what is near enough: done = 1 - max(0, d - w) / (d0 - w). reach is the same of the hand's
    distance to the object, or done / 0.1 where that is more: who let go of an object half-way has still reached it.
    """
    if success:
        return 1.0
    done = _covered(now.distance, first.distance, task.within)
    if task.measure == "hand":
        return min(NOT_YET, done)
    apart, apart_first = (float(np.linalg.norm(facts.hand - facts.object)) for facts in (now, first))
    reach = max(_covered(apart, apart_first, TOUCHING), min(1.0, done / UNDER_WAY))
    return min(NOT_YET, REACH_SHARE * reach + (1 - REACH_SHARE) * done)


def _covered(left: float, at_first: float, enough: float) -> float:
    way = max(at_first - enough, SHORTEST_WAY)
    return float(np.clip(1 - max(0.0, left - enough) / way, 0, 1))


@dataclass(frozen=True, eq=False)
class Measured:
    """Everything that was measured in one episode: a value per frame, and the facts of every step between them."""

    task: Task
    stride: int
    """steps from one frame to the next"""
    steps: tuple[Facts, ...]
    """the facts before the first step, then after each: step k * stride is frame k"""
    success: npt.NDArray[np.bool_]
    """at each frame"""
    progress: Floats
    """at each frame"""

    @classmethod
    def of(cls, task: Task, stride: int, steps: Sequence[Facts], success: Sequence[bool]) -> Measured:
        """Measure progress at every frame."""
        frames = steps[::stride]
        curve = [progress(task, steps[0], facts, done) for facts, done in zip(frames, success, strict=True)]
        return cls(task, stride, tuple(steps), np.array(success, dtype=bool), np.array(curve))

    def __len__(self) -> int:
        """How many frames there are."""
        return len(self.success)

    @property
    def ever(self) -> bool:
        """Whether the task was done at some frame."""
        return bool(self.success.any())

    @property
    def at_end(self) -> bool:
        """Whether the task is done at the last frame: the label."""
        return bool(self.success[-1])

    def forces(self, name: str) -> npt.NDArray[np.float32]:
        """Return `object_force` or `scene_force`: at each frame the largest since the frame before."""
        values = np.array([getattr(facts, name) for facts in self.steps])
        padded = np.concatenate([np.zeros(self.stride - 1), values])
        return np.asarray(padded.reshape(len(self), self.stride).max(axis=1), dtype=np.float32)

    def states(self) -> npt.NDArray[np.float32]:
        """Return the hand's position and the gripper's openness at each frame: (frames, 4)."""
        frames = self.steps[:: self.stride]
        return np.array([[*facts.hand, facts.openness] for facts in frames], dtype=np.float32)

    def objects(self) -> npt.NDArray[np.float32]:
        """Return the position of the thing to move at each frame, and the distance that is left: (frames, 4)."""
        frames = self.steps[:: self.stride]
        return np.array([[*facts.object, facts.distance] for facts in frames], dtype=np.float32)


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
