"""Manifests: the files beside the videos that say what each video is (CSV, JSON, JSON lines, Parquet).

Two things are the same for every manifest: a row that cannot be used is reported with its file and line and never stops
the others, and a path written in a row is followed only while it stays inside the dataset's folder.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from demerit.data.dataset import Problem
from demerit.data.episode import safe_name
from demerit.errors import BadInput, DemeritError

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
