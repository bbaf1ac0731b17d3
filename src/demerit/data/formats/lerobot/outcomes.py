"""Outcomes from LeRobot columns. There is no official one: everything here is a convention, and says whose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.formats.lerobot.info import whole
from demerit.data.labels import LABEL_SOURCES, LabelSource, Outcome

LABEL_COLUMNS = ("success", "vouched_by", "progress", "grade", "quality_label")
QUALITY = {"successful": True, "success": True, "failure": False, "failed": False}


@dataclass(frozen=True, eq=False)
class Verdicts:
    """The outcomes of one episode, and what could not be understood."""

    outcomes: tuple[Outcome, ...]
    complaints: tuple[tuple[str, str], ...] = ()
    """(kind, detail) of each problem"""


def verdicts(
    labels: Mapping[str, Any], success_key: str | None, frames: npt.NDArray[Any] | None, frame_key: str | None
) -> Verdicts:
    """Read episode-level columns and the per-frame success column.

    A column does not say who filled it in, so its voucher is a rule named after the column, unless a `vouched_by`
    column knows better. Where both say the same, the episode-level one is kept, as it may know its voucher.
    """
    complaints: list[tuple[str, str]] = []
    whole_episode = _of_episode(labels, success_key, complaints)
    by_frames = None if frames is None or frame_key is None else _of_frames(frames, frame_key, complaints)
    if by_frames is None or (whole_episode is not None and whole_episode.success == by_frames.success):
        return Verdicts(() if whole_episode is None else (whole_episode,), tuple(complaints))
    if whole_episode is None:
        return Verdicts((by_frames,), tuple(complaints))
    if whole_episode.success is not None:
        detail = f"{whole_episode.by or success_key} says {whole_episode.success}, {frame_key} {by_frames.success}"
        complaints.append(("outcomes disagree", detail))
    return Verdicts((whole_episode, by_frames), tuple(complaints))


def _of_episode(labels: Mapping[str, Any], key: str | None, complaints: list[tuple[str, str]]) -> Outcome | None:
    value = labels.get(key) if key is not None else None
    success, said_by = _yes_or_no(value), key
    if value is not None and not _is_missing(value) and success is None:
        complaints.append(("unclear outcome", f"{key} is {value!r}, expected true, false, 0 or 1"))
    if success is None and key is not None and labels.get("quality_label") is not None:
        success, said_by = QUALITY.get(str(labels["quality_label"]).strip().lower()), "quality_label"
    progress = _number(labels, "progress", complaints)
    grade = _number(labels, "grade", complaints)
    if success is None and progress is None and grade is None:
        return None
    if success is None:
        said_by = "progress" if progress is not None else "grade"
    voucher, by = _voucher(labels.get("vouched_by"), f"{said_by} column", complaints)
    return Outcome(voucher, success=success, progress=progress, grade=None if grade is None else int(grade), by=by)


def _of_frames(frames: npt.NDArray[Any], key: str, complaints: list[tuple[str, str]]) -> Outcome | None:
    """True on the last frame is a success; never true is a failure; anything else nobody can tell."""
    try:
        values = frames.reshape(len(frames)).astype(np.float64)
    except (ValueError, TypeError):
        complaints.append(("unclear outcome", f"{key} is not one truth value per frame"))
        return None
    if not len(values) or np.isnan(values).all():
        return None
    by = f"{key} column"
    if set(np.unique(values[~np.isnan(values)])) - {0.0, 1.0}:
        complaints.append(("unclear outcome", f"{key} has values other than true and false"))
        return None
    if values[-1] == 1:
        return Outcome("rule", success=True, by=by)
    if not values.any():  # NaN counts as true here: a frame nobody judged may have been the success
        return Outcome("rule", success=False, by=by)
    complaints.append(("unclear outcome", f"{key} is true or unknown somewhere, and not true on the last frame"))
    return None


def _yes_or_no(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    return {0: False, 1: True}.get(number) if (number := whole(value)) is not None else None


def _number(labels: Mapping[str, Any], name: str, complaints: list[tuple[str, str]]) -> float | None:
    value = labels.get(name)
    if value is None or _is_missing(value):
        return None
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if fits and (0 <= value <= 1 if name == "progress" else value in (1, 2, 3, 4, 5)):
        return float(value)
    allowed = "a number from 0 to 1" if name == "progress" else "a whole number from 1 to 5"
    complaints.append(("unclear outcome", f"{name} is {value!r}, expected {allowed}"))
    return None


def _voucher(value: object, column: str, complaints: list[tuple[str, str]]) -> tuple[LabelSource, str]:
    known = next((voucher for voucher in LABEL_SOURCES if voucher == value), None)
    if known is not None:
        return known, ""
    if value is not None:
        complaints.append(("unknown voucher", f"vouched_by is {value!r}, expected one of {', '.join(LABEL_SOURCES)}"))
    return "rule", column


def _is_missing(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
