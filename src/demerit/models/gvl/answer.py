"""Reading what a model said of each picture, by the picture's number and never by its place in the list.

A server that keeps to the schema gives clean numbers. One that does not may leave pictures out, name one twice, write
"45%" or break off half-way: what can be read for certain is read, the rest is unscored with its reason.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, WithJsonSchema, model_validator

from demerit.llm import ChatResponse

HIGHEST = 100.0
NUMBER_NAMES = ("frame", "frame_number", "number", "picture", "index")
PERCENT_NAMES = ("percent", "percentage", "task_reward", "reward", "progress", "task_progress", "task_completion")
READ_ANYWAY = ("unreadable", "cut off")
"""kinds of failed answers whose text may still hold whole entries"""

MISSING = "missing from the answer"


class FrameAnswer(BaseModel):
    """One picture's entry. The schema that is sent is strict; what comes back is checked entry by entry, here."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={"required": ["frame", "description", "percent"], "additionalProperties": False},
    )

    frame: Annotated[Any, WithJsonSchema({"type": "integer"})] = None
    description: Annotated[Any, WithJsonSchema({"type": "string"})] = None
    percent: Annotated[Any, WithJsonSchema({"type": "number"})] = None

    @model_validator(mode="before")
    @classmethod
    def _other_names(cls, given: Any) -> Any:
        """Accept the names that models use when they know a similar format better than they read ours."""
        if not isinstance(given, Mapping):
            return {}
        return {
            "frame": _first(given, NUMBER_NAMES),
            "description": given.get("description"),
            "percent": _first(given, PERCENT_NAMES),
        }


class FrameAnswers(BaseModel):
    """The whole answer."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"required": ["frames"], "additionalProperties": False})

    frames: list[FrameAnswer]

    @model_validator(mode="before")
    @classmethod
    def _bare_list(cls, given: Any) -> Any:
        """Accept the list without the object around it."""
        return {"frames": given} if isinstance(given, list) else given

    @model_validator(mode="after")
    def _names_frames(self) -> FrameAnswers:
        """Refuse a list of something else, such as a bracket in the middle of a sentence."""
        if self.frames and all(one.frame is None for one in self.frames):
            raise ValueError("no entry names a frame")
        return self


@dataclass(frozen=True, eq=False)
class Reading:
    """What one answer says of each picture, in the order of their numbers."""

    value: npt.NDArray[np.float64]
    """0 to 1, NaN = unscored; picture number n is value[n - 1]"""
    why: Mapping[int, str] = field(default_factory=dict)
    """the reason for each unscored picture, by its number"""
    ignored: int = 0
    """entries for pictures that were never shown"""

    @property
    def complete(self) -> bool:
        """Whether every picture has a value."""
        return not self.why

    @classmethod
    def nothing(cls, count: int, reason: str) -> Reading:
        """No picture could be read, for one reason."""
        return cls(np.full(count, np.nan), dict.fromkeys(range(1, count + 1), reason))


def read(said: ChatResponse, count: int) -> Reading:
    """Align an answer with the `count` pictures that were shown, numbered from 1 on."""
    if isinstance(said.parsed, FrameAnswers):
        return align(((one.frame, one.percent) for one in said.parsed.frames), count)
    if said.text and said.kind in READ_ANYWAY:
        found = scan(said.text)
        if found:
            return align(found, count, f"{MISSING} ({said.why_not})")
    return Reading.nothing(count, said.why_not or "the answer has no frames in it")


def align(entries: Iterable[tuple[Any, Any]], count: int, missing: str = MISSING) -> Reading:
    """Sort (number, percentage) entries by picture; whatever is not certain is unscored.

    Args:
        entries: as the model gave them, unread.
        count: pictures shown, numbered from 1 on.
        missing: the reason for a picture without an entry.
    """
    listed = [(_whole(number), percent) for number, percent in entries]
    times = Counter(number for number, _ in listed)
    doubt = _doubt(times, [percent for _, percent in listed], count)
    if doubt:
        return Reading.nothing(count, doubt)
    value, why = np.full(count, np.nan), dict.fromkeys(range(1, count + 1), missing)
    for number, given in listed:
        if number is None or not 1 <= number <= count:
            continue
        if times[number] > 1:
            why[number] = f"answered {times[number]} times"
            continue
        percent = percentage(given)
        if percent is None:
            why[number] = f"no percentage can be read from {_shown(given)}"
        elif not 0 <= percent <= HIGHEST:
            why[number] = f"{percent:g} is outside 0 to 100"
        else:
            value[number - 1] = percent / HIGHEST
            del why[number]
    # Some models repeat the anchor as number 0; that is no mistake.
    strange = sum(1 for number, _ in listed if number is None or not 0 <= number <= count)
    return Reading(value, why, strange)


def percentage(given: Any) -> float | None:
    """Read 45, 45.5, "45", "45 %" or "45/100"; None for anything else, NaN and infinity included."""
    if isinstance(given, str):
        match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*(?:%|percent|/\s*100)?\s*", given)
        return float(match[1]) if match else None
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        return None
    return float(given)


def scan(text: str) -> list[tuple[Any, Any]]:
    """Find entries in text that is no JSON: whole objects of a broken list, or lines such as `Frame 3: ... 45%`."""
    found: list[tuple[Any, Any]] = []
    for entry in re.findall(r"\{[^{}]*\}", text):
        number, percent = _field(entry, NUMBER_NAMES), _field(entry, PERCENT_NAMES)
        if number is not None:
            found.append((number, percent))
    if found:
        return found
    for number, rest in re.findall(r"(?im)^\W*(?:frame|picture)\s*(?:number\s*)?(\d+)\b(.*)$", text):
        percents = re.findall(r"(-?\d+(?:\.\d+)?)\s*%", rest)
        found.append((number, percents[0] if len(percents) == 1 else rest.strip()))
    return found


def _doubt(times: Counter[int | None], percents: list[Any], count: int) -> str:
    """Say why the answer as a whole cannot be trusted; empty when it can."""
    if times[0] and not times[count] and sum(times.values()) == count:
        return f"the answer counts from 0 to {count - 1} where 1 to {count} were shown: what belongs to what is unsure"
    known = [value for value in map(percentage, percents) if value is not None]
    if known and max(known) <= 1 and min(known) >= 0 and any(value % 1 for value in known):
        return "every value is between 0 and 1: whether these are percentages or fractions is unsure"
    return ""


def _whole(number: Any) -> int | None:
    if isinstance(number, str):
        match = re.fullmatch(r"\s*(?:frame|picture)?\s*#?\s*(\d+)\s*:?\s*", number, re.IGNORECASE)
        return int(match[1]) if match else None
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    return int(number) if math.isfinite(number) and number == int(number) else None


def _first(given: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((given[name] for name in names if name in given), None)


def _field(entry: str, names: Iterable[str]) -> str | None:
    for name in names:
        match = re.search(rf"""["']?\b{name}["']?\s*[:=]\s*(?:"([^"]*)"|'([^']*)'|([^\s,}}"']+))""", entry)
        if match is not None:
            return next(group for group in match.groups() if group is not None)
    return None


def _shown(given: Any, most: int = 40) -> str:
    if given is None:
        return "an entry without one"
    text = repr(given)
    return text if len(text) <= most else f"{text[:most]}..."
