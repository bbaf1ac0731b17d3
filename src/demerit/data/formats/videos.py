"""A folder of videos, with or without a file that says what they show."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import numpy as np

from demerit.data.dataset import Problem, Record
from demerit.data.episode import Episode, Origin, safe_name
from demerit.data.frames import Frames
from demerit.data.labels import LABEL_SOURCES, Event, LabelSource, Outcome
from demerit.data.video import VideoClip
from demerit.errors import BadEpisode, BadInput, DemeritError

LABEL_FILES = (
    "labels.csv",
    "labels.jsonl",
    "labels.json",
    "metadata.csv",
    "metadata.jsonl",
    "episodes.jsonl",
    "index.json",
)
FILE = ("file", "file_name", "path", "video", "id")
INSTRUCTION = ("instruction", "task", "language_instruction", "prompt")
GROUP = ("group", "session", "scene")
SPLIT_WORDS = frozenset({"train", "training", "val", "valid", "validation", "test"})


@dataclass(frozen=True)
class VideosReader:
    """Reads every video under a folder; a label file adds what people know about them.

    `labels` is a CSV, JSON or JSON lines file; without it the first of LABEL_FILES in the folder is taken. A row names
    its video in `file` (also file_name, path, video or id; the extension may be missing), or several cameras at once in
    `videos`, a mapping from camera to file, or in columns called `camera:NAME`. The other columns, all optional:

        instruction (task, language_instruction, prompt)
        success (binary_success)      true or false
        progress (partial_success)    0 to 1; 0 to 100 is refused rather than guessed
        grade (reward)                1 to 5
        note (feedback)               why
        by (vouched_by)               who judged, by name
        source                        human, simulator, rule, edit, model; absent: human, as a person wrote the file
        curve (progress_curve)        progress at every frame, by `curve_by`; `curve_source` is model when absent
        events                        failures in time: [{"kind": "dropped", "first": 12, "last": 14}, ...]
        split, group (session, scene), site (location), licence (license), embodiment (robot)

    Whatever else is in a row becomes a tag. Rows come first, in their order, then the videos that no row names, by
    path. Nothing is taken from file names: a video without an instruction has the empty one, and is counted. Files and
    folders whose names begin with a dot are not looked at.
    """

    path: str | Path
    labels: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse a folder or a label file that is not there."""
        if not self.root.is_dir() or (self.labels is not None and not self._label_files):
            known = ", ".join(LABEL_FILES)
            raise BadInput("labels", f"a file, or nothing to look for {known}", repr(self.labels))

    @cached_property
    def root(self) -> Path:
        """The dataset's folder."""
        return dataset_folder(self.path, "videos")

    @property
    def name(self) -> str:
        """The folder's name."""
        return dataset_name(self.root, "videos")

    def expected(self) -> int:
        """As many episodes as the label file has rows; without one, as there are videos."""
        return count_rows(self._label_files[0]) if self._label_files else sum(1 for _ in videos_under(self.root))

    def records(self) -> Iterator[Record]:
        """Stream the rows, then the videos without one."""
        used: dict[Path, str] = {}
        for extra in self._label_files[1:]:
            detail = f"not read, because {self._label_files[0].name} is there; choose with labels="
            yield Problem("second label file", extra.name, detail, kept=True)
        for row in read_rows(self._label_files[0]) if self._label_files else ():
            if isinstance(row, Problem):
                yield row
            else:
                yield from self._labelled(row, used)
        for path in videos_under(self.root):
            if path not in used:
                yield from self._unlabelled(path)

    @cached_property
    def _label_files(self) -> list[Path]:
        if self.labels is not None:
            places = [Path(self.labels).absolute(), self.root / self.labels]
            return [place for place in places if place.is_file()][:1]
        return [self.root / name for name in LABEL_FILES if (self.root / name).is_file()]

    def _unlabelled(self, path: Path) -> Iterator[Record]:
        episode = video_id(self.root, path)
        video = find_video(self.root, path.relative_to(self.root).as_posix(), shown(episode))
        if isinstance(video, Problem):
            yield video
            return
        if self._label_files:
            detail = f"no row of {self._label_files[0].name} names it: instruction and outcome are unknown"
            yield Problem("video without a row", shown(episode), detail, kept=True)
        else:
            yield Problem("empty instruction", shown(episode), "there is no label file", kept=True)
        yield from _built(episode, "", {"main": video}, (), Origin(dataset=self.name))

    def _labelled(self, row: Row, used: dict[Path, str]) -> Iterator[Record]:
        columns = Columns(row.fields)
        problems: list[Problem] = []
        named, cameras = _cameras(columns)
        videos: dict[str, Path] = {}
        for camera, given in cameras.items():
            video = find_video(self.root, given, shown(named or text(given) or row.where))
            if isinstance(video, Path):
                videos[camera] = video
            else:
                problems.append(video)
        if not videos:
            yield problems[0]
            return
        first = next(iter(videos.values()))
        episode = named or video_id(self.root, first)
        problems = [Problem(problem.kind, shown(episode), problem.detail, kept=True) for problem in problems]
        if first in used:
            detail = f"{row.where} names the video of {used[first]} again and is left out"
            yield Problem("second row for a video", shown(episode), detail, kept=False)
            return
        used.update(dict.fromkeys(videos.values(), row.where))
        instruction = text(columns.take(*INSTRUCTION))
        if not instruction:
            problems.append(Problem("empty instruction", shown(episode), f"{row.where} gives none", kept=True))
        outcomes = read_outcomes(columns, shown(episode), problems)
        yield from problems
        yield from _built(episode, instruction, videos, outcomes, _origin(self.name, columns))


def videos_under(root: Path) -> Iterator[Path]:
    """Walk over the video files under a folder, by path; links to folders are not followed."""
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(VIDEO_SUFFIXES) and not name.startswith("."):
                yield Path(folder, name)


def _built(
    episode: str, instruction: str, videos: Mapping[str, Path], outcomes: tuple[Outcome, ...], origin: Origin
) -> Iterator[Record]:
    try:
        views = {camera: Frames(VideoClip(str(path))) for camera, path in videos.items()}
        yield Episode(episode, instruction, views, outcomes, origin)
    except BadEpisode as bad:
        yield Problem("unusable id", shown(episode), sentence(bad), kept=False)


def _cameras(columns: Columns) -> tuple[str, dict[str, Any]]:
    """Return the row's own id, which counts only where several videos make one episode, and the video per camera."""
    several = parsed(columns.take("videos"))
    cameras = {str(camera): path for camera, path in several.items()} if isinstance(several, dict) else {}
    cameras |= columns.cameras()
    if cameras:
        return text(columns.take("id")), cameras
    return "", {"main": columns.take(*FILE)}


def _origin(dataset: str, columns: Columns) -> Origin:
    split, group = text(columns.take("split")), text(columns.take(*GROUP))
    if not split and group.lower() in SPLIT_WORDS:
        # Nothing was recorded together under the name "test": whoever wrote this meant the split.
        split, group = group, ""
    return Origin(
        dataset=dataset,
        licence=text(columns.take("licence", "license")),
        embodiment=text(columns.take("embodiment", "robot")),
        site=text(columns.take("site", "location")),
        split=split,
        group=group,
        tags=columns.tags(),
    )


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


VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm", ".mov", ".avi")
MANIFEST_SUFFIXES = (".csv", ".jsonl", ".json", ".parquet")

TRUE_WORDS = frozenset({"true", "yes", "1", "1.0", "success", "successful"})
FALSE_WORDS = frozenset({"false", "no", "0", "0.0", "failure", "failed", "fail"})
UNKNOWN_WORDS = frozenset({"", "nan", "none", "null", "unknown", "n/a", "na"})
HIGHEST_GRADE = 5

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One row of a manifest and where it stands, for messages."""

    where: str
    """file name and line, or file name and the row's number where lines mean nothing"""
    fields: Mapping[str, Any]


def dataset_folder(path: str | Path, kind: str) -> Path:
    """Return the dataset's folder as an absolute path; anything but a folder is refused."""
    folder = Path(path)
    if not folder.is_dir():
        hint = " (that is a file: was the folder around it meant?)" if folder.is_file() else ""
        raise BadInput(f"the {kind} dataset", "a folder that exists", f"{str(path)!r}{hint}")
    return folder.resolve()


def dataset_name(folder: Path, default: str) -> str:
    """Name a dataset after its folder; `default` where no character of the folder's name can be kept."""
    try:
        return safe_name(folder.name)
    except BadInput:
        return default


def shown(text: object) -> str:
    """Make text from a file safe to print: control characters and broken encodings are escaped."""
    plain = str(text)
    return plain if plain.isprintable() else ascii(plain)


def sentence(error: DemeritError) -> str:
    """Write an error as a problem's detail, which has no full stop."""
    return str(error).removesuffix(".")


def read_rows(path: Path, columns: tuple[str, ...] | None = None) -> Iterator[Row | Problem]:
    """Stream a manifest's rows; `columns` spares reading the others where the format allows it.

    A broken line is a `Problem`. A file that is broken as a whole raises `BadInput`: there is nothing left to stream.
    """
    readers: dict[str, Callable[[], Iterator[Row | Problem]]] = {
        ".jsonl": lambda: _json_lines(path),
        ".json": lambda: _json_document(path),
        ".csv": lambda: _csv_rows(path),
        ".parquet": lambda: _parquet_rows(path, columns),
    }
    if path.suffix.lower() not in readers:
        raise BadInput(f"the manifest {path.name!r}", f"a file ending in {', '.join(MANIFEST_SUFFIXES)}", path.suffix)
    return readers[path.suffix.lower()]()


def count_rows(path: Path) -> int:
    """Count a manifest's rows, the broken ones too."""
    if path.suffix.lower() == ".parquet":
        return int(_parquet_file(path).metadata.num_rows)
    return sum(1 for _ in read_rows(path))


def find_video(root: Path, given: object, episode: str) -> Path | Problem:
    """Find the video that a row names, with or without its extension; a problem when it cannot be used.

    The path is relative to `root`. Absolute paths, '..' and links that lead out of the folder are refused: a dataset
    from the internet must not choose which of the user's files are read.
    """
    if not isinstance(given, str) or not given.strip():
        got = "nothing" if given is None or given == "" else shown(repr(given))[:60]
        return Problem("missing video", episode, f"the row should name a video file and has {got}", kept=False)
    wanted, other = given.strip(), ""
    for suffix in ("", *VIDEO_SUFFIXES):
        found = inside(root, wanted + suffix)
        if found is None:
            detail = (
                f"{wanted!r} is not a path inside the dataset folder (no '..', no absolute path, no link out of it)"
            )
            return Problem("path leaves the folder", episode, detail, kept=False)
        if not _is_file(found):
            continue
        if found.suffix.lower() not in VIDEO_SUFFIXES:
            other = f"; the file of that name is no video ({', '.join(VIDEO_SUFFIXES)})"
        elif found.stat().st_size == 0:
            return Problem("empty video", episode, f"{wanted!r} has 0 bytes", kept=False)
        else:
            return found
    return Problem("missing video", episode, f"there is no video {wanted!r} in the dataset folder{other}", kept=False)


def inside(root: Path, relative: str) -> Path | None:
    """Join a path from a file to the folder (absolute already); None when it would leave the folder."""
    pure = PurePosixPath(relative.replace("\\", "/"))  # manifests written on Windows
    if pure.is_absolute() or ".." in pure.parts:
        return None
    joined = root.joinpath(*pure.parts)
    try:
        resolved = joined.resolve()
    except (OSError, RuntimeError, ValueError):  # loops of links, null bytes
        return None
    return joined if any(resolved.is_relative_to(home) for home in _homes(root)) else None


def video_id(root: Path, path: Path) -> str:
    """Name a video: its path inside the folder, without the extension."""
    return path.relative_to(root).with_suffix("").as_posix()


def checked(
    read: Callable[[str, object], T | None], name: str, value: object, episode: str, problems: list[Problem]
) -> T | None:
    """Read one label; a value that cannot be used becomes a problem and an unknown, never a guess."""
    try:
        return read(name, value)
    except BadInput as bad:
        problems.append(Problem("bad label", episode, sentence(bad), kept=True))
        return None


def read_success(name: str, value: object) -> bool | None:
    """Read yes or no in the ways people write it; None when unknown."""
    word = str(value).strip().lower()
    if value is None or word in UNKNOWN_WORDS:
        return None
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise BadInput(name, "true or false (also yes/no, 1/0, success/failure)", shown(repr(value)))


def read_fraction(name: str, value: object) -> float | None:
    """Read a number from 0 to 1; None when unknown. A percentage is refused: 1 could mean 1 % or all of it."""
    number = _number(name, value, "a number from 0 to 1")
    if number is None or 0 <= number <= 1:
        return number
    hint = " (a percentage? divide by 100 in the file, nothing is rescaled here)" if 1 < number <= 100 else ""  # noqa: PLR2004
    raise BadInput(name, "a number from 0 to 1", f"{number:g}{hint}")


def read_grade(name: str, value: object) -> int | None:
    """Read a grade, 1 to 5; None when unknown."""
    allowed = "a whole number from 1 to 5"
    number = _number(name, value, allowed)
    if number is None:
        return None
    if number not in range(1, HIGHEST_GRADE + 1):
        raise BadInput(name, allowed, f"{number:g}")
    return int(number)


def text(value: object) -> str:
    """Read a scalar as text; nothing, lists and objects are the empty string."""
    if value is None or isinstance(value, (list, dict)) or (isinstance(value, float) and math.isnan(value)):
        return ""
    # JSON may hold halves of a character, which no file or request can be written with.
    return str(value).encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()


def _number(name: str, value: object, allowed: str) -> float | None:
    if value is None or str(value).strip().lower() in UNKNOWN_WORDS:
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        return float(value)
    except (ValueError, OverflowError):
        raise BadInput(name, allowed, shown(repr(value))) from None


@lru_cache(maxsize=64)
def _homes(root: Path) -> tuple[Path, ...]:
    # The Hugging Face cache keeps a dataset's files in blobs/ and fills snapshots/<revision>/ with links to them.
    blobs = [place.parent.parent / "blobs" for place in (root, *root.parents) if place.parent.name == "snapshots"]
    return (root, *blobs[:1])


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long for the file system
        return False


def _json_lines(path: Path) -> Iterator[Row | Problem]:
    with path.open("rb") as file:  # bytes: one line in a broken encoding must not cost the rest
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path.name}:{number}"
            try:
                value = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                yield Problem("malformed line", where, f"not JSON ({shown(error)})", kept=False)
                continue
            yield _row(where, value)


def _json_document(path: Path) -> Iterator[Row | Problem]:
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the manifest {path.name!r}", "JSON", f"{shown(error)}") from None
    if isinstance(document, dict) and document and all(isinstance(value, dict) for value in document.values()):
        document = [{"id": key, **value} for key, value in document.items()]
    if not isinstance(document, list):
        got = f"a JSON {type(document).__name__}"
        raise BadInput(f"the manifest {path.name!r}", "a list of objects, or an object of objects by id", got)
    for number, value in enumerate(document, start=1):
        yield _row(f"{path.name} row {number}", value)


def _row(where: str, value: object) -> Row | Problem:
    if isinstance(value, dict):
        return Row(where, value)
    return Problem("malformed line", where, f"expected a JSON object, got {shown(repr(value))[:60]}", kept=False)


def _csv_rows(path: Path) -> Iterator[Row | Problem]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            file.seek(0)
            # Spreadsheets in half of the world separate with semicolons.
            delimiter = max(",;\t", key=header.count)
            table = csv.DictReader(file, delimiter=delimiter, strict=True)
            for fields in table:
                where = f"{path.name}:{table.line_num}"
                if None in fields:
                    detail = f"more values than the {len(table.fieldnames or ())} columns of the first line"
                    yield Problem("malformed line", where, detail, kept=False)
                else:
                    yield Row(where, fields)
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"the manifest {path.name!r}", "CSV in UTF-8", shown(error)) from None


def _parquet_file(path: Path) -> Any:
    import pyarrow as pa  # noqa: PLC0415  # slow to import, and most manifests are text
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        return pq.ParquetFile(path)
    except pa.ArrowException as error:
        raise BadInput(f"the manifest {path.name!r}", "Parquet", shown(str(error).splitlines()[0])) from None


def _parquet_rows(path: Path, columns: tuple[str, ...] | None) -> Iterator[Row | Problem]:
    with _parquet_file(path) as table:
        wanted = None if columns is None else [name for name in columns if name in table.schema_arrow.names]
        number = 0
        for batch in table.iter_batches(batch_size=1024, columns=wanted):
            for fields in batch.to_pylist():
                number += 1
                yield Row(f"{path.name} row {number}", fields)
