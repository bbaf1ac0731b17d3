"""Label files: their columns, rows and values. docs/labels.md is the page for users."""

from __future__ import annotations

import csv
import difflib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demerit.data.arrays import Floats32
from demerit.data.dataset import Problem
from demerit.data.episode import LABEL_SOURCES, Event, LabelSource, Outcome
from demerit.data.frames import Frames
from demerit.data.stages import StageSpan
from demerit.errors import BadInput, DemeritError, UnreadableVideo

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "file": ("filename", "file_name", "filepath", "file_path", "path", "video", "video_file", "video_path"),
    "id": (),
    "videos": (),
    "instruction": ("task", "language_instruction", "prompt"),
    "success": (
        "is_success",
        "success_label",
        "binary_success",
        "successful",
        "succeeded",
        "label",
        "outcome",
        "result",
    ),
    "progress": ("partial_success",),
    "grade": ("reward", "rating"),
    "curve": ("progress_curve", "moments"),
    "curve_source": (),
    "curve_by": (),
    "events": (),
    "stages": (),
    "note": ("notes", "comment", "comments", "feedback"),
    "by": ("labeler", "labeller", "annotator", "evaluator", "vouched_by"),
    "source": ("label_source",),
    "split": (),
    "group": ("session", "scene"),
    "site": ("location",),
    "licence": ("license",),
    "embodiment": ("robot",),
}
"""the columns of a label file and their other names; docs/labels.md explains them"""
LABELS = ("success", "progress", "grade", "curve", "events", "stages")
"""the columns that say how an episode went"""
CAMERA_COLUMN = re.compile(r"camera:(.+)|(.+)_(?:view|camera|cam)|(?:view|camera|cam)_(.+)")
STAGE = re.compile(r"([^\s:][^:]*?)\s*:\s*(-?[\d.]+s?)\s*-\s*(-?[\d.]+s?)(?:[\s,;]+|$)")
NEAR = 0.8
"""how similar an unknown column must be to a known one to be mentioned"""
MODEL_CURVES = {"robometer_progress": "robometer"}
"""columns with the progress of a known model, and the model's name"""
CURVE_SLACK = 0.02
"""how far outside 0 to 1 a curve may be and still be clipped, for values read off a plot"""


class LabelCells:
    """The cells of a row, each taken once; column names are case-insensitive."""

    def __init__(self, row: LabelRow) -> None:
        self.where = row.where
        self._cells = {str(name).strip().lower(): value for name, value in row.fields.items()}

    def take(self, name: str) -> Any:
        """Take a column of COLUMNS: the first of its names that is not empty."""
        return self.take_named(name)[1]

    def take_named(self, name: str) -> tuple[str, Any]:
        """Take a column; return also its place, for messages."""
        for column in (name, *COLUMNS[name]):
            if self._cells.get(column) not in (None, ""):
                return f"{self.where}, column {column!r}", self._cells.pop(column)
        return f"{self.where}, column {name!r}", None

    def take_model_curve(self, name: str) -> Any:
        """Take a column of MODEL_CURVES."""
        return self._cells.pop(name, None)

    def cameras(self) -> dict[str, Any]:
        """Take the columns with the videos of further cameras."""
        videos = {}
        for name, value in list(self._cells.items()):
            match = CAMERA_COLUMN.fullmatch(name)
            is_marked = name.startswith("camera:") and bool(value)
            if match and (is_marked or str(value).strip().lower().endswith(VIDEO_SUFFIXES)):
                videos[next(filter(None, match.groups())).strip()] = self._cells.pop(name)
        return videos

    def misspelt(self, seen: set[str]) -> Iterator[Problem]:
        """Report the unknown columns that resemble one which the row lacks, or a label in a row without one.

        Columns in `seen` were reported before.
        """
        columns = [(name, *others) for name, others in COLUMNS.items()]
        lacking = [name for names in columns if self._cells.keys().isdisjoint(names) for name in names]
        vocabulary = {*chain.from_iterable(columns), *MODEL_CURVES}
        unlabelled = self._cells.keys().isdisjoint(name for label in LABELS for name in (label, *COLUMNS[label]))
        hints = []
        for name in sorted(self._cells.keys() - vocabulary - seen):
            near = difflib.get_close_matches(name, lacking, n=1, cutoff=NEAR)
            if near and not CAMERA_COLUMN.fullmatch(name):
                hints.append(f"{printable(repr(name))} (did you mean {near[0]!r}?)")
            elif unlabelled and str(self._cells[name]).strip().lower() in TRUE_WORDS | FALSE_WORDS:
                hints.append(f"{printable(repr(name))} (no label is given; a verdict is called 'success')")
        if hints:
            detail = f"unknown columns become tags: {', '.join(hints)}"
            yield Problem("unknown column", self.where, detail, kept=True)
        seen.update(self._cells)

    def tags(self) -> dict[str, str]:
        """The remaining cells as text, without lists and objects."""
        return {name: words for name, value in self._cells.items() if name and (words := text(value))}


def read_outcomes(cells: LabelCells, frames: Frames, episode: str, problems: list[Problem]) -> tuple[Outcome, ...]:
    """Read the outcomes of a row: its own, and one for each curve of another source.

    `frames` are needed only to place marked moments.
    """

    def read(reader: Callable[[str, object], T | None], name: str) -> T | None:
        return check_label(reader, *cells.take_named(name), episode, problems)

    curves = [
        Outcome("model", curve=values, by=model)
        for name, model in MODEL_CURVES.items()
        if (values := _curve(cells.where, cells.take_model_curve(name), frames, episode, problems)) is not None
    ]
    curve = _curve(*cells.take_named("curve"), frames, episode, problems)
    events = tuple(_events(*cells.take_named("events"), episode, problems))
    stages = _stages(*cells.take_named("stages"), frames, episode, problems)
    success, progress, grade = read(read_success, "success"), read(read_fraction, "progress"), read(read_grade, "grade")
    note = text(cells.take("note"))
    has_labels = success is not None or progress is not None or grade is not None or bool(note or events or stages)
    if not has_labels and curve is None:
        return tuple(curves)
    (place, source), by = cells.take_named("source"), text(cells.take("by"))
    if source is None and by in LABEL_SOURCES:
        source, by = by, ""
    label_source: LabelSource | None = check_label(_read_source, place, source or "human", episode, problems)
    # without a source of its own, a curve is by whoever gave the other labels
    curve_source, curve_by = label_source, text(cells.take("curve_by"))
    place, source = cells.take_named("curve_source")
    if source is not None:
        curve_source = check_label(_read_source, place, source, episode, problems)
    elif not curve_by:
        curve_by = by
    if curve is not None and (curve_source, curve_by) != (label_source, by):
        curves[:0] = [] if curve_source is None else [Outcome(curve_source, curve=curve, by=curve_by)]
        curve = None
    if label_source is None or (curve is None and not has_labels):
        return tuple(curves)
    return (Outcome(label_source, success, progress, grade, curve, events, note, by, stages), *curves)


def _events(place: str, cell: Any, episode: str, problems: list[Problem]) -> Iterator[Event]:
    events = parse_cell(cell) if cell is not None else []
    for event in events if isinstance(events, list) else [events]:
        try:
            yield Event(str(event["kind"]), int(event["first"]), int(event["last"]), str(event.get("note", "")))
        except BadInput as bad:
            problems.append(Problem("bad label", episode, f"{place}: {detail_of(bad)}", kept=True))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            detail = f"{place}: expected a list of {{kind, first, last}}, got {printable(repr(event))[:60]}"
            problems.append(Problem("bad label", episode, detail, kept=True))


def _stages(place: str, cell: Any, frames: Frames, episode: str, problems: list[Problem]) -> tuple[StageSpan, ...]:
    """Read stages, reach:0-12 grasp:13-30 or a JSON list; () = none or a problem."""
    if cell is None or cell == "":
        return ()
    try:
        rows = parse_cell(cell)
        if isinstance(rows, str):
            names, spans = [], rows.strip()
            while spans and (match := STAGE.match(spans)):
                names.append({"name": match[1], "first": match[2], "last": match[3]})
                spans = spans[match.end() :]
            rows = None if spans else names
        if not isinstance(rows, list):
            raise ValueError
        ends = [{end: _frame_at(place, str(row[end]), frames) for end in ("first", "last")} for row in rows]
        return Outcome(
            "human", stages=tuple(StageSpan(**{**row, **span}) for row, span in zip(rows, ends, strict=True))
        ).stages
    except UnreadableVideo:
        return ()  # reported when the video is used
    except BadInput as bad:
        detail = detail_of(bad)
        problems.append(Problem("bad label", episode, detail if place in detail else f"{place}: {detail}", kept=True))
    except (KeyError, ValueError, TypeError, OverflowError):
        detail = f"{place}: expected stages like reach:0-12 grasp:13-30, got {printable(repr(cell))[:60]}"
        problems.append(Problem("bad label", episode, detail, kept=True))
    return ()


def _read_source(place: str, value: object) -> LabelSource:
    if value not in LABEL_SOURCES:
        hint = f"one of {', '.join(LABEL_SOURCES)} (rename the column if it means something else)"
        raise BadInput(f"{place}, the labels of which are skipped", hint, printable(repr(value)))
    return value


def _curve(place: str, cell: Any, frames: Frames, episode: str, problems: list[Problem]) -> Floats32 | None:
    """Read progress at every frame, or at a few marked moments; None = unknown or a problem."""
    if cell is None or cell == "":
        return None
    try:
        moments = _moments(cell)
        numbers = parse_cell(cell) if moments is None else _place_moments(place, moments, frames)
        values = np.array(numbers, dtype=np.float32)  # None becomes NaN
        beyond = np.fmax(-values, values - 1)
        if np.any(beyond > 0) and not np.any(beyond > CURVE_SLACK):
            detail = f"{place}: outside 0 to 1 at {np.sum(beyond > 0)} of {values.size} frames, clipped"
            problems.append(Problem("clipped curve", episode, f"{detail} (by {np.nanmax(beyond):.3f})", kept=True))
            values = np.clip(values, 0, 1)
        return Outcome("human", curve=values).curve  # checks it
    except UnreadableVideo:
        return None  # reported when the video is used
    except BadInput as bad:
        detail = detail_of(bad)
        problems.append(Problem("bad label", episode, detail if place in detail else f"{place}: {detail}", kept=True))
    except (ValueError, TypeError, OverflowError):
        detail = (
            f"{place}: expected a list of numbers, or moments like 0:0 40:0.5 -1:1, got {printable(repr(cell))[:60]}"
        )
        problems.append(Problem("bad label", episode, detail, kept=True))
    return None


def _moments(cell: Any) -> list[tuple[str, Any]] | None:
    """Read marked moments, {"40": 0.5} or 40:0.5, as (frame, progress); None if the cell is something else."""
    parsed = parse_cell(cell)
    if isinstance(parsed, dict):
        return [(str(moment), value) for moment, value in parsed.items()]
    if isinstance(parsed, str) and ":" in parsed:
        return [
            (moment, value)
            for moment, _, value in (pair.partition(":") for pair in re.split(r"[\s,;]+", parsed.strip()))
        ]
    return None


def _place_moments(place: str, moments: list[tuple[str, Any]], frames: Frames) -> Floats32:
    """Make a curve of marked moments: a frame (-1 is the last), or seconds (2.5s)."""
    values = np.full(len(frames), np.nan, dtype=np.float32)
    for moment, value in moments:
        values[_frame_at(place, moment, frames)] = float(value)
    return values


def _frame_at(place: str, moment: str, frames: Frames) -> int:
    """Return the frame of a moment: a frame (-1 is the last), or seconds (2.5s)."""
    length = len(frames)
    frame = int(np.argmin(np.abs(frames.times() - float(moment[:-1])))) if moment.endswith("s") else int(moment)
    if not -length <= frame < length:
        raise BadInput(place, f"a frame from 0 to {length - 1}", frame)
    return frame % length


def parse_cell(value: Any) -> Any:
    """Parse a cell that holds JSON text (lists and objects in CSV files); return others unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm", ".mov", ".avi")
MANIFEST_SUFFIXES = (".csv", ".jsonl", ".json", ".parquet")

TRUE_WORDS = frozenset("true t yes y 1 1.0 success successful succeeded pass passed".split())
FALSE_WORDS = frozenset("false f no n 0 0.0 failure failed fail unsuccessful".split())
UNKNOWN_WORDS = frozenset({"", "nan", "none", "null", "unknown", "n/a", "na"})
HIGHEST_GRADE = 5
LONGEST_CELL = 100_000_000
_LIMIT_LOCK = Lock()

T = TypeVar("T")


@dataclass(frozen=True)
class LabelRow:
    """A row of a label file and its position."""

    where: str
    """file name and line or row number"""
    fields: Mapping[str, Any]


def printable(text: object) -> str:
    """Escape control characters and broken encodings."""
    plain = str(text)
    return plain if plain.isprintable() else ascii(plain)


def detail_of(error: DemeritError) -> str:
    """An error as the detail of a problem, without a full stop."""
    return str(error).removesuffix(".")


def read_rows(path: Path, columns: tuple[str, ...] | None = None) -> Iterator[LabelRow | Problem]:
    """Stream the rows of a label file, only the given `columns` if it is Parquet.

    A broken line is a `Problem`; a broken file raises `BadInput`.
    """
    readers: dict[str, Callable[[], Iterator[LabelRow | Problem]]] = {
        ".jsonl": lambda: _json_lines(path),
        ".json": lambda: _json_document(path),
        ".csv": lambda: _csv_rows(path),
        ".parquet": lambda: _parquet_rows(path, columns),
    }
    if path.suffix.lower() not in readers:
        raise BadInput(f"the label file {path.name!r}", f"a file ending in {', '.join(MANIFEST_SUFFIXES)}", path.suffix)
    return readers[path.suffix.lower()]()


def count_rows(path: Path) -> int:
    """Count the rows, broken ones included."""
    if path.suffix.lower() == ".parquet":
        return int(_parquet_file(path).metadata.num_rows)
    return sum(1 for _ in read_rows(path))


def check_label(
    read: Callable[[str, object], T | None], name: str, value: object, episode: str, problems: list[Problem]
) -> T | None:
    """Read a label; a bad value becomes a problem and None."""
    try:
        return read(name, value)
    except BadInput as bad:
        problems.append(Problem("bad label", episode, detail_of(bad), kept=True))
        return None


def read_success(name: str, value: object) -> bool | None:
    """Read a truth value in its usual spellings; None = unknown."""
    word = str(value).strip().lower()
    if value is None or word in UNKNOWN_WORDS:
        return None
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise BadInput(name, "true or false (also yes/no, 1/0, success/failure)", printable(repr(value)))


def read_fraction(name: str, value: object) -> float | None:
    """Read a number from 0 to 1; None = unknown. Percentages are refused: 1 would be ambiguous."""
    number = _number(name, value, "a number from 0 to 1")
    if number is None or 0 <= number <= 1:
        return number
    hint = " (if it is a percentage, divide by 100 in the file)" if 1 < number <= 100 else ""  # noqa: PLR2004
    raise BadInput(name, "a number from 0 to 1", f"{number:g}{hint}")


def read_grade(name: str, value: object) -> int | None:
    """Read a grade from 1 to 5; None = unknown."""
    allowed = "a whole number from 1 to 5"
    number = _number(name, value, allowed)
    if number is None:
        return None
    if number not in range(1, HIGHEST_GRADE + 1):
        raise BadInput(name, allowed, f"{number:g}")
    return int(number)


def text(value: object) -> str:
    """Read a scalar as text; None, NaN, lists and objects give the empty string."""
    if value is None or isinstance(value, (list, dict)) or (isinstance(value, float) and math.isnan(value)):
        return ""
    # JSON may contain lone surrogates, which cannot be encoded.
    return str(value).encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()


def _number(name: str, value: object, allowed: str) -> float | None:
    if value is None or str(value).strip().lower() in UNKNOWN_WORDS:
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        return float(value)
    except (ValueError, OverflowError):
        raise BadInput(name, allowed, printable(repr(value))) from None


def _json_lines(path: Path) -> Iterator[LabelRow | Problem]:
    with path.open("rb") as file:  # bytes: a line in a broken encoding must not stop the rest
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path.name}:{number}"
            try:
                value = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                yield Problem("malformed line", where, f"not JSON ({printable(error)})", kept=False)
                continue
            yield _row(where, value)


def _json_document(path: Path) -> Iterator[LabelRow | Problem]:
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the label file {path.name!r}", "JSON", f"{printable(error)}") from None
    if isinstance(document, dict) and document and all(isinstance(value, dict) for value in document.values()):
        document = [{"id": key, **value} for key, value in document.items()]
    if not isinstance(document, list):
        got = f"a JSON {type(document).__name__}"
        raise BadInput(f"the label file {path.name!r}", "a list of objects, or an object of objects by id", got)
    for number, value in enumerate(document, start=1):
        yield _row(f"{path.name} row {number}", value)


def _row(where: str, value: object) -> LabelRow | Problem:
    if isinstance(value, dict):
        return LabelRow(where, value)
    return Problem("malformed line", where, f"expected a JSON object, got {printable(repr(value))[:60]}", kept=False)


def _csv_rows(path: Path) -> Iterator[LabelRow | Problem]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            file.seek(0)
            # many spreadsheets separate with semicolons
            delimiter = max(",;\t", key=header.count)
            table = csv.DictReader(file, delimiter=delimiter, strict=True)
            while (fields := _next_row(table)) is not None:
                where = f"{path.name}:{table.line_num}"
                if None in fields:
                    detail = f"more values than the {len(table.fieldnames or ())} columns of the first line"
                    yield Problem("malformed line", where, detail, kept=False)
                else:
                    yield LabelRow(where, fields)
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"the label file {path.name!r}", "CSV in UTF-8", printable(error)) from None


def _next_row(table: csv.DictReader[str]) -> dict[str, Any] | None:
    """Read a row with cells longer than the csv module's limit, which holds for the whole process."""
    with _LIMIT_LOCK:
        limit = csv.field_size_limit(LONGEST_CELL)
        try:
            return next(table, None)
        finally:
            csv.field_size_limit(limit)


def _parquet_file(path: Path) -> Any:
    try:
        return pq.ParquetFile(path)
    except pa.ArrowException as error:
        raise BadInput(f"the label file {path.name!r}", "Parquet", printable(str(error).splitlines()[0])) from None


def _parquet_rows(path: Path, columns: tuple[str, ...] | None) -> Iterator[LabelRow | Problem]:
    with _parquet_file(path) as table:
        wanted = None if columns is None else [name for name in columns if name in table.schema_arrow.names]
        number = 0
        for batch in table.iter_batches(batch_size=1024, columns=wanted):
            for fields in batch.to_pylist():
                number += 1
                yield LabelRow(f"{path.name} row {number}", fields)
