"""Crash-safe files and folders, paths that stay inside a folder, and the write lock of a folder.

Files are written next to their destination and renamed when complete, so a crash leaves the old file or the new one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from demerit.errors import StoreBusy, StoreError


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
