"""Crash-safe files and folders, the write lock of a folder, JSON values, CSV, and files that anybody may have written.

Files are written next to their destination and renamed when complete, so a crash leaves the old file or the new one.
JSON and .npz files of strangers are refused with a sentence, before they can fill the memory.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import math
import os
import shutil
import socket
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn, TextIO

import numpy as np
import numpy.typing as npt

from demerit.config import check_nesting
from demerit.errors import BadInput, StoreBusy, StoreError

LARGEST_WHOLE = 2**63
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""with what a formula of a spreadsheet begins"""
PLAIN_ZIP = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""what numpy writes; others are decompressed whole before their size is known"""
UNREADABLE = (OSError, ValueError, EOFError, LookupError, RuntimeError, TypeError, MemoryError, OverflowError)
"""what damaged files raise, apart from the errors of their formats; RecursionError is a RuntimeError"""


@contextmanager
def atomic_file(path: str | Path, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to; rename it to `path` on success, delete it otherwise.

    `sync` makes the file survive a power failure; without it, it survives the death of the process.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield partial
        if sync:
            sync_path(partial)
        os.replace(partial, path)
        if sync:
            sync_path(path.parent)
    except OSError as error:
        raise StoreError(path, f"it cannot be written ({error.strerror or error})") from error
    finally:
        partial.unlink(missing_ok=True)


def write_atomic(path: str | Path, content: bytes) -> None:
    """Write a file; after a crash it is the old one or the new one."""
    with atomic_file(path) as partial:
        partial.write_bytes(content)


def write_json(path: str | Path, value: Any) -> None:
    """Write a JSON file atomically: indented, UTF-8, NaN refused."""
    write_atomic(path, (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def plain(value: Any) -> Any:
    """Turn a result into JSON values: dataclasses into objects, tuples and arrays into lists, NaN into None."""
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def write_csv(file: TextIO, rows: Iterable[Iterable[object]]) -> None:
    """Write rows of CSV. A text that a spreadsheet would run as a formula gets a `'` before it."""
    csv.writer(file).writerows([_escape_cell(cell) for cell in row] for row in rows)


def read_cell(text: str) -> str:
    """Return the text that `write_csv` wrote as this cell."""
    return text[1:] if text.startswith("'") and _escape_cell(text[1:]) == text else text


def _escape_cell(cell: object) -> object:
    if not isinstance(cell, str) or not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)  # a number is no formula
    except ValueError:
        return f"'{cell}"
    return cell


def copy_atomic(source: str | Path, target: str | Path) -> None:
    """Copy a file; the target is complete or absent."""
    with atomic_file(target) as partial:
        shutil.copyfile(source, partial)


@contextmanager
def atomic_folder(dest: str | Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder to fill; sync it and rename it to `dest` on success, delete it otherwise.

    It is `.NAME.part/tree` next to `dest`. One process at a time may write there; it deletes what a killed one left.
    Unless `overwrite`, `dest` must be absent or an empty folder (`check_free`).
    """
    dest = Path(dest)
    if not overwrite:
        check_free(dest)
    stage = make_folder(dest.with_name(f".{dest.name}.part"))
    with lock_folder(stage):
        partial = stage / "tree"
        try:
            shutil.rmtree(partial, ignore_errors=True)
            make_folder(partial)
            yield partial
            sync_tree(partial)
            if overwrite:
                shutil.rmtree(dest, ignore_errors=True)
            else:
                check_free(dest)
                if dest.exists():
                    dest.rmdir()
            partial.rename(dest)
            sync_path(dest.parent)
        except OSError as error:
            raise StoreError(dest, f"it cannot be written ({error.strerror or error})") from error
        finally:
            shutil.rmtree(stage, ignore_errors=True)


def check_free(dest: str | Path) -> None:
    """Raise unless `dest` is absent or an empty folder (a lock file does not count)."""
    dest = Path(dest)
    if dest.exists() and (not dest.is_dir() or any(path.name != ".lock" for path in dest.iterdir())):
        raise StoreError(dest, "it exists and is not an empty folder; nothing is overwritten")


def make_folder(folder: str | Path) -> Path:
    """Create a folder and its parents unless it exists."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(folder, f"the folder cannot be created ({error.strerror})") from error
    return folder


def sync_tree(folder: Path) -> None:
    """Make every file and folder in a folder durable."""
    for path in [*folder.rglob("*"), folder]:
        sync_path(path)


def sync_path(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def path_inside(root: Path, relative: str) -> Path | None:
    """Join a relative path to a folder; None if it leaves the folder."""
    pure = PurePosixPath(relative.replace("\\", "/"))  # manifests written on Windows
    if pure.is_absolute() or ".." in pure.parts:
        return None
    joined = root.joinpath(*pure.parts)
    try:
        resolved = joined.resolve()
    except (OSError, RuntimeError, ValueError):  # loops of links, null bytes
        return None
    return joined if any(resolved.is_relative_to(home) for home in _homes(root)) else None


def refuse_links(root: Path) -> None:
    """Raise BadInput if a link below a folder leaves it: what it points to would be written as if it were there."""
    home = root.resolve()
    for folder, folders, names in os.walk(home):
        for name in (*folders, *names):
            path = Path(folder, name)
            if path.is_symlink() and path_inside(home, path.relative_to(home).as_posix()) is None:
                raise BadInput(str(path), "a file of the dataset", "a link that leaves its folder; copy the file there")


@lru_cache(maxsize=64)
def _homes(root: Path) -> tuple[Path, ...]:
    # The Hugging Face cache keeps files in blobs/ and links to them from snapshots/<revision>/.
    blobs = [place.parent.parent / "blobs" for place in (root, *root.parents) if place.parent.name == "snapshots"]
    return (root, *blobs[:1])


def is_file(path: Path) -> bool:
    """Whether a path is a file; False for names that the file system cannot have."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, a null byte
        return False


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the folder's write lock; raise StoreBusy with its holder if it is taken.

    The operating system releases the lock when the holder dies.
    """
    try:
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreError(folder, f"nothing can be written there ({error.strerror})") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreBusy(folder, _lock_holder(handle)) from None
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "command": " ".join(sys.argv)[:200]}
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(holder).encode(), 0)
        yield
    finally:
        # A child that another thread is starting briefly holds a copy of the handle: unlock, do not just close.
        fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _lock_holder(handle: int) -> str:
    try:
        holder = json.loads(os.pread(handle, 4096, 0))
        return f"process {holder['pid']} on {holder['host']}: {holder['command']}"
    except (ValueError, KeyError, TypeError):  # half written
        return "holder unknown"


# Files that anybody may have written


def read_json(path: Path, expected: str = "an object (JSON)", nan: bool = False) -> dict[str, Any]:
    """Read a JSON object from a file; raises BadInput."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(str(path), expected, error.strerror or error) from error
    return parse_json(content, str(path), expected, nan)


def parse_json(
    content: bytes | str, name: str, expected: str = "an object (JSON)", nan: bool = False
) -> dict[str, Any]:
    """Parse a JSON object: not too deep, no lone surrogates and, unless `nan`, finite numbers only; raises BadInput."""
    numbers: dict[str, Any] = {} if nan else {"parse_constant": _refuse, "parse_float": _finite, "parse_int": _whole}
    try:
        facts = json.loads(content, **numbers)
        check_nesting(facts)
        if (b"\\u" if isinstance(content, bytes) else "\\u") in content:  # type: ignore[operator]
            json.dumps(facts, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadInput(name, expected, f"something else ({error})") from error
    if not isinstance(facts, dict):
        raise BadInput(name, expected, f"a {type(facts).__name__}")
    return facts


def read_npz(path: Path, most: int, what: str = "arrays (.npz)") -> dict[str, npt.NDArray[Any]]:
    """Read an .npz file of at most `most` bytes, without pickles; sizes are checked first. Raises BadInput."""
    try:
        # from memory: a damaged file would be left open
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as file:
            members = file.infolist()
            size = sum(member.file_size for member in members)
            if size > most:
                raise ValueError(f"it holds {size} bytes, more than the {most} that are possible")
            if any(member.compress_type not in PLAIN_ZIP for member in members):
                raise ValueError("it is compressed in a way that numpy does not write")
            return {member.filename.removesuffix(".npy"): _read_array(file, member) for member in members}
    except FileNotFoundError as error:
        raise BadInput(str(path), what, "no such file") from error
    except (*UNREADABLE, zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError) as error:
        raise BadInput(str(path), what, f"a file that cannot be read ({str(error).rstrip('.')})") from error


def _read_array(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    """Read one array; refuse a header that declares more than there is, which numpy would allocate."""
    with file.open(member) as stream:
        # a number of bytes, because without one zipfile decompresses everything first
        content = io.BytesIO(stream.read(member.file_size))
    version = np.lib.format.read_magic(content)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{member.filename} has version {version} of the format")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, kind = read_header(content)
    declared, size = math.prod(shape) * kind.itemsize, member.file_size - content.tell()
    if declared != size or min(shape, default=0) < 0:
        raise ValueError(f"{member.filename} declares {declared} bytes and has {size}")
    content.seek(0)
    array: npt.NDArray[Any] = np.lib.format.read_array(content, allow_pickle=False)
    return array


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    return number if math.isfinite(number := float(text)) else _refuse(text)


def _whole(text: str) -> int:
    return number if abs(number := int(text)) < LARGEST_WHOLE else _refuse(text)
