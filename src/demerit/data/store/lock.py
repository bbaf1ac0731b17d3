"""One writer at a time. The operating system drops the lock when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demerit.errors import StoreBusy, StoreError


@contextmanager
def lock_for_writing(root: Path) -> Iterator[None]:
    """Hold the folder's write lock, or say who does."""
    path = root / ".lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreError(root, f"nothing can be written there ({error.strerror})") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreBusy(root, _holder(handle)) from None
        who = {"pid": os.getpid(), "host": socket.gethostname(), "command": " ".join(sys.argv)[:200]}
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(who).encode(), 0)
        yield
    finally:
        # A process that another thread is just starting has a copy of the handle for a moment: closing ours would leave
        # the lock with it, giving it up does not.
        fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _holder(handle: int) -> str:
    """Describe who wrote the lock file; it may be half written, which is no reason to fail."""
    try:
        who = json.loads(os.pread(handle, 4096, 0))
        return f"process {who['pid']} on {who['host']}: {who['command']}"
    except (ValueError, KeyError, TypeError):
        return "holder unknown"
