"""The columns of a label file: what a row says about its video."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from demerit.data.dataset import Problem
from demerit.data.formats.manifest import checked, read_fraction, read_grade, read_success, sentence, shown, text
from demerit.data.labels import LABEL_SOURCES, Event, LabelSource, Outcome
from demerit.errors import BadInput

MODEL_CURVES = {"robometer_progress": "robometer"}
"""Columns that hold a known model's progress, and the model's name."""
CURVE_SLACK = 0.02
"""How far outside 0 to 1 a curve may lie and still be clipped: numbers read off a plot miss by this much."""


class Columns:
    """The cells of one row, each taken once; names in any case."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Take a row's fields."""
        self._cells = {str(name).strip().lower(): value for name, value in fields.items()}

    def take(self, *names: str) -> Any:
        """Take the first of these columns that has something in it."""
        for name in names:
            if self._cells.get(name) not in (None, ""):
                return self._cells.pop(name)
        return None

    def cameras(self) -> dict[str, Any]:
        """Take the columns that name a video per camera."""
        marked = [name for name in self._cells if name.startswith("camera:")]
        return {name.removeprefix("camera:").strip(): value for name in marked if (value := self._cells.pop(name))}

    def tags(self) -> dict[str, str]:
        """What was not taken, as text; lists and objects are no tags."""
        return {name: words for name, value in self._cells.items() if name and (words := text(value))}


def read_outcomes(columns: Columns, episode: str, problems: list[Problem]) -> tuple[Outcome, ...]:
    """Read what a row says happened: the row's own account, and one for each curve that somebody else vouches for."""
    curves = tuple(_curves(columns, episode, problems))
    events = tuple(_events(columns.take("events"), episode, problems))
    success = checked(read_success, "success", columns.take("success", "binary_success"), episode, problems)
    progress = checked(read_fraction, "progress", columns.take("progress", "partial_success"), episode, problems)
    grade = checked(read_grade, "grade", columns.take("grade", "reward"), episode, problems)
    note = text(columns.take("note", "feedback"))
    if success is None and progress is None and grade is None and not note and not events:
        return curves
    source, by = text(columns.take("source")), text(columns.take("by", "vouched_by"))
    if not source and by in LABEL_SOURCES:
        source, by = by, ""
    voucher: LabelSource | None = checked(_read_voucher, "source", source or "human", episode, problems)
    if voucher is None:
        return curves
    account = Outcome(voucher, success=success, progress=progress, grade=grade, events=events, note=note, by=by)
    if curves and (curves[0].source, curves[0].by) == (voucher, by):
        return (replace(account, curve=curves[0].curve), *curves[1:])
    return (account, *curves)


def _events(cell: Any, episode: str, problems: list[Problem]) -> Iterator[Event]:
    listed = parsed(cell) if cell is not None else []
    for event in listed if isinstance(listed, list) else [listed]:
        try:
            yield Event(str(event["kind"]), int(event["first"]), int(event["last"]), str(event.get("note", "")))
        except BadInput as bad:
            problems.append(Problem("bad label", episode, sentence(bad), kept=True))
        except (KeyError, TypeError, ValueError, AttributeError):
            detail = f"events: expected a list of {{kind, first, last}}, got {shown(repr(event))[:60]}"
            problems.append(Problem("bad label", episode, detail, kept=True))


def _read_voucher(name: str, value: object) -> LabelSource:
    if value not in LABEL_SOURCES:
        hint = f"one of {', '.join(LABEL_SOURCES)} (rename the column if it means something else)"
        raise BadInput(f"{name} of the labels, which are left out", hint, shown(repr(value)))
    return value


def _curves(columns: Columns, episode: str, problems: list[Problem]) -> Iterator[Outcome]:
    by, source = text(columns.take("curve_by")), text(columns.take("curve_source")) or "model"
    given = [("curve", columns.take("curve", "progress_curve"), by, source)]
    given += [(name, columns.take(name), model, "model") for name, model in MODEL_CURVES.items()]
    for name, cell, who, kind in given:
        if cell is None:
            continue
        try:
            values = np.array(parsed(cell), dtype=np.float32)  # None in a list becomes NaN, which is unknown
            beyond = np.fmax(-values, values - 1)
            if np.any(beyond > 0) and not np.any(beyond > CURVE_SLACK):
                detail = f"{name} leaves 0 to 1 at {np.sum(beyond > 0)} of {values.size} frames, clipped"
                problems.append(Problem("clipped curve", episode, f"{detail} (by {np.nanmax(beyond):.3f})", kept=True))
                values = np.clip(values, 0, 1)
            yield Outcome(_read_voucher("curve_source", kind), curve=values, by=who)
        except BadInput as bad:
            problems.append(Problem("bad label", episode, sentence(bad), kept=True))
        except (ValueError, TypeError):
            detail = f"{name}: expected a list of numbers, got {shown(repr(cell))[:60]}"
            problems.append(Problem("bad label", episode, detail, kept=True))


def parsed(value: Any) -> Any:
    """Read a list or an object out of a cell; what is neither stays as it is."""
    # A cell of a CSV file can hold a list or an object only as JSON text.
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
