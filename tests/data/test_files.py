"""Atomic files and folders, and the write lock."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from demerit.data.files import atomic_file, atomic_folder, check_free, lock_folder, write_json
from demerit.errors import StoreBusy, StoreError


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(RuntimeError), atomic_file(path) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert path.read_text() == '{\n "a": 1\n}\n'
    assert [found.name for found in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    dest = tmp_path / "out"
    with pytest.raises(RuntimeError), atomic_folder(dest) as partial:
        (partial / "a").touch()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    for content in "ab":
        with atomic_folder(dest, overwrite=True) as partial:
            (partial / "a").write_text(content)
            assert not dest.exists() or (dest / "a").read_text() == "a"
    assert (dest / "a").read_text() == "b"
    with pytest.raises(StoreError):
        check_free(dest)
    with pytest.raises(StoreError), atomic_folder(dest):
        pass


LEFT = """
import os, signal, sys
from demerit.data.files import atomic_folder
with atomic_folder(sys.argv[1]) as partial:
    (partial / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    dest = tmp_path / "out"
    assert subprocess.run([sys.executable, "-c", LEFT, dest], check=False).returncode == -signal.SIGKILL
    assert not dest.exists() and len(list(tmp_path.rglob("half"))) == 1
    with atomic_folder(dest) as partial:
        (partial / "whole").touch()
        with pytest.raises(StoreBusy), atomic_folder(dest):
            pass
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == ["out", "out/whole"]


def test_a_copy_of_the_handle_does_not_keep_the_lock(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        held = [int(name) for name in os.listdir("/proc/self/fd") if _is_lock(name)]
        copies = [os.dup(handle) for handle in held]  # as in a process forked by another thread
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
