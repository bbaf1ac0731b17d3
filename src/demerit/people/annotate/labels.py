"""Answers of people, and the labels that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from demerit.data.episode import Event, Outcome, Preference
from demerit.data.stages import StageSpan, check_stages
from demerit.data.taxonomy import UNKNOWN, kinds
from demerit.errors import BadInput, UnknownName
from demerit.negatives.negative import DONE_GRADE

LONGEST_NOTE, LONGEST_NAME, MOST_EVENTS, MOST_POINTS = 2000, 100, 100, 100_000
ANSWER_FIELDS: Mapping[str, tuple[str, ...]] = {
    "verify": ("verdict", "success", "grade", "progress", "kinds", "note"),
    "compare": ("verdict", "kinds", "note"),
    "mark": ("success", "points", "events", "stages", "note"),
}
"""the fields of an answer, by the kind of the item"""
VERDICTS: Mapping[str, tuple[str, ...]] = {
    "verify": ("accept", "correct", "reject"),
    "compare": ("left", "right", "tie", "unknown"),
    "mark": ("",),
}


@dataclass(frozen=True)
class Answer:
    """What a person says about an item: to verify a label, to compare two episodes, or to mark moments of one."""

    kind: str
    verdict: str = ""
    """verify: `reject` = it cannot be judged and gets no label; compare: the better one, as shown"""
    success: bool | None = None
    grade: int | None = None
    progress: float | None = None
    kinds: tuple[str, ...] = ()
    points: tuple[tuple[int, float], ...] = ()
    """(frame, progress), by frame"""
    events: tuple[Event, ...] = ()
    stages: tuple[StageSpan, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        lacks_reason = not self.note.strip()
        if self.kind == "mark" and not self.says_something and lacks_reason:
            raise BadInput(
                "a mark", "a success, progress, an event, a stage, or a note that says why not", "none of them"
            )
        if self.verdict in ("accept", "correct") and (self.success, self.grade, self.progress) == (None, None, None):
            raise BadInput(f"the verdict {self.verdict}", "a success, a grade or progress", "none of them")
        if self.verdict == "reject" and lacks_reason:
            raise BadInput("a rejection", "a reason in the note", "none")
        if self.verdict == "correct" and self.success is False and self.grade == DONE_GRADE:
            raise BadInput("the answer", "a failure with grade 1 to 4, or a success", "a failure with grade 5, done")

    @property
    def says_something(self) -> bool:
        """Whether a mark becomes a label."""
        return self.success is not None or bool(self.points or self.events or self.stages)


def read_answer(kind: str, body: Mapping[str, Any], frames: int) -> Answer:
    """Check what a page sent about an episode of that many frames; raise BadInput if it is not an answer."""
    if strange := sorted(set(body) - set(ANSWER_FIELDS[kind])):
        raise UnknownName(f"field of the answer to {kind}", strange[0], ANSWER_FIELDS[kind])
    values: dict[str, Any] = {name: value for name, value in body.items() if value is not None}
    _check("verdict", values.get("verdict", ""), lambda value: value in VERDICTS[kind], " or ".join(VERDICTS[kind]))
    _check("success", values.get("success", False), lambda value: isinstance(value, bool), "true or false")
    _check("grade", values.get("grade", 1), lambda value: type(value) is int and 1 <= value <= 5, "1 to 5")  # noqa: PLR2004
    _check("progress", values.get("progress", 0), _is_share, "a number from 0 to 1")
    _check("note", values.get("note", ""), _is_note, f"a text of at most {LONGEST_NOTE} characters")
    if "kinds" in values:
        values["kinds"] = tuple(_read_kind(name) for name in _read_list("kinds", values["kinds"]))
    if "points" in values:
        values["points"] = _read_points(_read_list("points", values["points"], MOST_POINTS), frames)
    if "events" in values:
        values["events"] = tuple(_read_event(event, frames) for event in _read_list("events", values["events"]))
    if "stages" in values:
        values["stages"] = check_stages(_read_stage(stage, frames) for stage in _read_list("stages", values["stages"]))
    return Answer(kind, **values)


def write_answer(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON values; `read_answer` reads it back."""
    stages = [{"name": stage.name, "first": stage.first, "last": stage.last} for stage in answer.stages]
    facts = {**asdict(answer), "stages": stages}
    return {name: value for name, value in facts.items() if name in ANSWER_FIELDS[answer.kind]}


def outcome_of(name: str, answers: Sequence[Answer], frames: int) -> Outcome | None:
    """Return one person's label of an episode of so many frames, from their answers, oldest first.

    The newest answer that states a field gives it. A grade alone says whether it succeeded: 5 is done, less is not.
    """
    facts: dict[str, Any] = {}
    curve = np.full(frames, np.nan, np.float32)
    is_rejected = False
    for answer in answers:
        if answer.kind == "verify":
            is_rejected = answer.verdict == "reject"
            if not is_rejected:
                implied = None if answer.grade is None else answer.grade == DONE_GRADE
                success = implied if answer.success is None else answer.success
                facts |= {"success": success, "grade": answer.grade, "progress": answer.progress}
            facts["note"] = "; ".join(filter(None, [*answer.kinds, answer.note.strip()]))
        elif answer.says_something:
            facts |= {"events": answer.events, "stages": answer.stages} | (
                {} if answer.success is None else {"success": answer.success}
            )
            curve[:] = np.nan
            for frame, progress in answer.points:
                curve[frame] = progress
            facts["note"] = answer.note.strip() or facts.get("note", "")
    if is_rejected or not facts:
        return None
    return Outcome("human", **facts, curve=None if np.isnan(curve).all() else curve, by=name)


def preference_of(name: str, answer: Answer, a: str, b: str, swapped: bool) -> Preference | None:
    """Return one person's choice between two episodes; None if they could not tell. `swapped`: b was on the left."""
    if answer.verdict == "unknown":
        return None
    better: Literal["a", "b"] = "a" if (answer.verdict == "left") != swapped else "b"
    verdict = "tie" if answer.verdict == "tie" else better
    return Preference(a, b, verdict, "human", "; ".join(filter(None, [*answer.kinds, answer.note.strip()])), name)


def _check(what: str, value: Any, is_right: Any, expected: str) -> None:
    if not is_right(value):
        raise BadInput(what, expected, repr(value))


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_note(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_NOTE


def _read_list(what: str, value: Any, most: int = MOST_EVENTS) -> list[Any]:
    if not isinstance(value, list | tuple) or len(value) > most:
        raise BadInput(what, f"a list of at most {most}", repr(value)[:80])
    return list(value)


def _read_kind(name: Any) -> str:
    names = {kind.name for kind in kinds()}
    if not isinstance(name, str) or name not in names:
        raise UnknownName("kind of failure", str(name), names)
    return name


def _is_frame(value: Any, frames: int) -> bool:
    return type(value) is int and 0 <= value < frames


def _read_points(points: list[Any], frames: int) -> tuple[tuple[int, float], ...]:
    progress: dict[int, float] = {}
    for point in points:
        is_pair = isinstance(point, list | tuple) and len(point) == 2  # noqa: PLR2004
        if not is_pair or not _is_frame(point[0], frames) or not _is_share(point[1]):
            raise BadInput("points", f"pairs of a frame (0 to {frames - 1}) and progress (0 to 1)", repr(point))
        progress[point[0]] = float(point[1])
    return tuple(sorted(progress.items()))


def _read_event(event: Any, frames: int) -> Event:
    names = {"kind", "first", "last"}
    is_event = isinstance(event, Mapping) and names <= set(event) <= {*names, "note"}
    if not is_event or not all(_is_frame(event[end], frames) for end in ("first", "last")):
        raise BadInput("events", f"kind, first and last (frames from 0 to {frames - 1})", repr(event))
    note = event.get("note", "")
    _check("note", note, _is_note, "a short text")
    kind = event["kind"] if event["kind"] == UNKNOWN else _read_kind(event["kind"])
    return Event(kind, event["first"], event["last"], note)


def _read_stage(stage: Any, frames: int) -> StageSpan:
    is_stage = isinstance(stage, Mapping) and set(stage) == {"name", "first", "last"}
    if not is_stage or not all(_is_frame(stage[end], frames) for end in ("first", "last")):
        raise BadInput("stages", f"name, first and last (frames from 0 to {frames - 1})", repr(stage)[:80])
    if not isinstance(stage["name"], str) or len(stage["name"]) > LONGEST_NAME:
        raise BadInput("a stage's name", f"a text of at most {LONGEST_NAME} characters", repr(stage["name"])[:80])
    return StageSpan(stage["name"].strip(), stage["first"], stage["last"])
