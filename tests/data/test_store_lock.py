"""The write lock is given up at once, whatever other threads are starting meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from demerit.data.files import lock_folder
from demerit.errors import StoreBusy


def test_a_copy_of_the_handle_does_not_keep_the_lock(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        held = [int(name) for name in os.listdir("/proc/self/fd") if _is_lock(name)]
        copies = [os.dup(handle) for handle in held]  # as a process has that was forked by another thread
        with pytest.raises(StoreBusy), lock_folder(tmp_path):
            pass
    assert copies
    with lock_folder(tmp_path):
        pass
    for copy in copies:
        os.close(copy)


def _is_lock(name: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{name}").endswith(".lock")
    except OSError:
        return False
