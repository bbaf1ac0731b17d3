"""Answers of people, and the labels that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from demerit.data.labels import Event, Outcome, Preference
from demerit.data.taxonomy import kinds
from demerit.errors import BadInput, UnknownName

ItemKind = Literal["verify", "compare", "mark"]
LONGEST_NOTE, MOST_EVENTS, MOST_POINTS = 2000, 100, 100_000


VerifyVerdict = Literal["accept", "correct", "reject"]
CompareVerdict = Literal["left", "right", "tie", "unknown"]
VERDICTS: Mapping[str, tuple[str, ...]] = {"verify": get_args(VerifyVerdict), "compare": get_args(CompareVerdict)}


@dataclass(frozen=True)
class VerifyAnswer:
    """Whether a proposed label is right. The other fields hold the label as this person would give it."""

    verdict: VerifyVerdict
    """reject: the episode cannot be judged; then it gets no label"""
    success: bool | None = None
    grade: int | None = None
    progress: float | None = None
    kinds: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        if self.verdict == "correct" and (self.success, self.grade, self.progress) == (None, None, None):
            raise BadInput("a correction", "a success, a grade or progress", "none of them")
        if self.verdict == "reject" and not self.note.strip():
            raise BadInput("a rejection", "a reason", "none")


@dataclass(frozen=True)
class CompareAnswer:
    """Which of two episodes is better: the one shown on the left, or on the right."""

    verdict: CompareVerdict
    kinds: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class MarkAnswer:
    """Progress at some frames or at all, failure events, success."""

    success: bool | None = None
    points: tuple[tuple[int, float], ...] = ()
    """(frame, progress), by frame"""
    events: tuple[Event, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        if not self.says_something and not self.note.strip():
            raise BadInput("a mark", "a success, progress, an event, or a note that says why not", "none of them")

    @property
    def says_something(self) -> bool:
        """Whether it becomes a label."""
        return self.success is not None or bool(self.points or self.events)


Answer: TypeAlias = VerifyAnswer | CompareAnswer | MarkAnswer
ANSWERS: Mapping[str, type[VerifyAnswer] | type[CompareAnswer] | type[MarkAnswer]] = {
    "verify": VerifyAnswer,
    "compare": CompareAnswer,
    "mark": MarkAnswer,
}


def read_answer(kind: str, body: Mapping[str, Any], frames: int) -> Answer:
    """Check what a page sent about an episode of that many frames; raise BadInput if it is not an answer."""
    answer = ANSWERS[kind]
    if strange := sorted(set(body) - set(answer.__dataclass_fields__)):
        raise UnknownName(f"field of the answer to {kind}", strange[0], answer.__dataclass_fields__)
    known: dict[str, Any] = {name: value for name, value in body.items() if value is not None}
    if "verdict" in answer.__dataclass_fields__:
        allowed = VERDICTS[kind]
        _check("verdict", known.get("verdict"), lambda value: value in allowed, " or ".join(allowed))
    _check("success", known.get("success", False), lambda value: isinstance(value, bool), "true or false")
    _check("grade", known.get("grade", 1), lambda value: type(value) is int and 1 <= value <= 5, "1 to 5")  # noqa: PLR2004
    _check("progress", known.get("progress", 0), _is_share, "a number from 0 to 1")
    _check("note", known.get("note", ""), lambda value: isinstance(value, str), "a text")
    _check("note", len(known.get("note", "")), lambda value: value <= LONGEST_NOTE, f"{LONGEST_NOTE} characters")
    if "kinds" in known:
        known["kinds"] = tuple(_read_kind(name) for name in _read_list("kinds", known["kinds"]))
    if "points" in known:
        known["points"] = _read_points(_read_list("points", known["points"], MOST_POINTS), frames)
    if "events" in known:
        known["events"] = tuple(_read_event(event, frames) for event in _read_list("events", known["events"]))
    return answer(**known)


def write_answer(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON values; `read_answer` reads it back."""
    return asdict(answer)


def outcome_of(name: str, answers: Sequence[Answer], proposed: Outcome | None, frames: int) -> Outcome | None:
    """Return one person's label of an episode; of several answers, the newest that states a field gives it.

    Args:
        name: the person's pseudonym.
        answers: this person's, oldest first.
        proposed: the label that was to be verified.
        frames: the length of the episode.
    """
    facts: dict[str, Any] = {}
    curve = np.full(frames, np.nan, np.float32)
    is_rejected = False
    for answer in answers:
        if isinstance(answer, VerifyAnswer):
            is_rejected = answer.verdict == "reject"
            if answer.verdict == "accept" and proposed is not None:
                facts |= {"success": proposed.success, "grade": proposed.grade, "progress": proposed.progress}
            elif answer.verdict == "correct":
                facts |= {"success": answer.success, "grade": answer.grade, "progress": answer.progress}
            facts["note"] = "; ".join(filter(None, [*answer.kinds, answer.note.strip()]))
        elif isinstance(answer, MarkAnswer) and answer.says_something:
            facts |= {"events": answer.events} | ({} if answer.success is None else {"success": answer.success})
            curve[:] = np.nan
            for frame, progress in answer.points:
                curve[frame] = progress
            facts["note"] = answer.note.strip() or facts.get("note", "")
    if is_rejected or not facts:
        return None
    return Outcome("human", **facts, curve=None if np.isnan(curve).all() else curve, by=name)


def preference_of(name: str, answer: CompareAnswer, a: str, b: str, swapped: bool) -> Preference | None:
    """Return one person's choice between two episodes; None if they could not tell. `swapped`: b was on the left."""
    if answer.verdict == "unknown":
        return None
    if answer.verdict == "tie":
        verdict: Literal["a", "b", "tie"] = "tie"
    else:
        verdict = "a" if (answer.verdict == "left") != swapped else "b"
    return Preference(a, b, verdict, "human", "; ".join(filter(None, [*answer.kinds, answer.note.strip()])), name)


def _check(what: str, value: Any, is_right: Any, expected: str) -> None:
    if not is_right(value):
        raise BadInput(what, expected, repr(value))


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _read_list(what: str, value: Any, most: int = MOST_EVENTS) -> list[Any]:
    _check(
        what, value, lambda found: isinstance(found, list | tuple) and len(found) <= most, f"a list of at most {most}"
    )
    return list(value)


def _read_kind(name: Any) -> str:
    known = {kind.name for kind in kinds()}
    if not isinstance(name, str) or name not in known:
        raise UnknownName("kind of failure", str(name), known)
    return name


def _is_frame(value: Any, frames: int) -> bool:
    return type(value) is int and 0 <= value < frames


def _read_points(points: list[Any], frames: int) -> tuple[tuple[int, float], ...]:
    found: dict[int, float] = {}
    for point in points:
        is_pair = isinstance(point, list | tuple) and len(point) == 2  # noqa: PLR2004
        if not is_pair or not _is_frame(point[0], frames) or not _is_share(point[1]):
            raise BadInput("points", f"pairs of a frame (0 to {frames - 1}) and progress (0 to 1)", repr(point))
        found[point[0]] = float(point[1])
    return tuple(sorted(found.items()))


def _read_event(event: Any, frames: int) -> Event:
    is_event = isinstance(event, Mapping) and {"kind", "first", "last"} <= set(event) <= {
        "kind",
        "first",
        "last",
        "note",
    }
    if not is_event or not all(_is_frame(event[end], frames) for end in ("first", "last")):
        raise BadInput("events", f"kind, first and last (frames from 0 to {frames - 1})", repr(event))
    note = event.get("note", "")
    _check("note", note, lambda value: isinstance(value, str) and len(value) <= LONGEST_NOTE, "a short text")
    return Event(_read_kind(event["kind"]), event["first"], event["last"], note)
