"""Atomic files and folders, the write lock, JSON values, and files of strangers that are refused with a sentence."""

import csv
import io
import json
import math
import os
import signal
import subprocess
import sys
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from demerit.config import parse_yaml
from demerit.data.files import (
    atomic_file,
    atomic_folder,
    check_free,
    lock_folder,
    parse_json,
    plain,
    read_cell,
    read_json,
    read_npz,
    refuse_links,
    write_csv,
    write_json,
)
from demerit.errors import BadInput, StoreBusy, StoreError


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


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_content_is_on_disk_before_its_name_appears_and_the_name_after(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dest, synced = tmp_path / "new", set[tuple[int, bool]]()
    monkeypatch.setattr("os.fsync", lambda handle: synced.add((os.fstat(handle).st_ino, dest.exists())))
    if kind == "file":
        write_json(dest, {})
    else:
        with atomic_folder(dest) as partial:
            (partial / "in").mkdir()
            (partial / "in" / "a").write_text("a")
    content = [dest, *dest.rglob("*")]
    assert synced == {(path.stat().st_ino, False) for path in content} | {(tmp_path.stat().st_ino, True)}
    assert len(content) == (1 if kind == "file" else 3)


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


@dataclass(frozen=True)
class Sample:
    name: str
    parts: tuple[object, ...]


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-x", "@SUM(A1)", "\t=1", "\r=1", "--5", "-"])
def test_a_text_that_a_spreadsheet_would_run_is_escaped_and_read_back(text: str) -> None:
    file = io.StringIO()
    write_csv(file, [[text]])
    (row,) = csv.reader(io.StringIO(file.getvalue()))
    assert row == [f"'{text}"] and read_cell(row[0]) == text


@pytest.mark.parametrize("cell", ["-0.5", "+1e-3", "-12", -0.5, None, "it's", "'tis", "a=b", ""])
def test_numbers_and_plain_texts_are_written_as_they_are(cell: object) -> None:
    file = io.StringIO()
    write_csv(file, [[cell, "x"]])
    (row,) = csv.reader(io.StringIO(file.getvalue()))
    assert row[0] == ("" if cell is None else str(cell)) == read_cell(row[0])


def test_links_that_leave_a_folder_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "hub" / "snapshots" / "main"
    (root / "meta").mkdir(parents=True)
    (tmp_path / "hub" / "blobs").mkdir()
    (tmp_path / "hub" / "blobs" / "a").touch()
    (root / "meta" / "info.json").symlink_to("../../../blobs/a")  # as a download cache has them
    (root / "again").symlink_to("meta")
    refuse_links(root)
    for target in ("/etc/passwd", "../../../../secret", "gone", "loop"):
        (link := root / "meta" / "loop").symlink_to(target)
        if target == "gone":  # inside, though nothing is there
            refuse_links(root)
        else:
            with pytest.raises(BadInput, match="link"):
                refuse_links(root)
        link.unlink()


def test_results_become_json_values_and_nan_becomes_none() -> None:
    curve = np.array([0.5, math.nan], np.float32)
    sample = Sample("a", (math.nan, Sample("b", ()), np.float64(2), np.int64(3), Counter("aab"), True, None))
    values = plain({"curve": curve, "sample": sample, "pairs": np.array([[1, 2], [3, 4]])})
    assert json.loads(json.dumps(values, allow_nan=False)) == {
        "curve": [0.5, None],
        "sample": {"name": "a", "parts": [None, {"name": "b", "parts": []}, 2.0, 3, {"a": 2, "b": 1}, True, None]},
        "pairs": [[1, 2], [3, 4]],
    }


# Files of strangers

DEEP = "[" * 100_000
NOT_OBJECTS = ("null", "[]", "3", "", "{", DEEP, '{"a": ' * 5000, "\x00", "\ud800".encode("utf-8", "surrogatepass"))
ODD_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "9" * 30, "9" * 5000)
SMALL = 1 << 20


@pytest.mark.parametrize("content", NOT_OBJECTS, ids=range(len(NOT_OBJECTS)))
def test_what_is_not_an_object_is_refused(content: str | bytes) -> None:
    with pytest.raises(BadInput) as refused:
        parse_json(content, "some.json")
    assert refused.value.what == "some.json"


def test_odd_numbers_are_refused_unless_allowed() -> None:
    for number in ODD_NUMBERS:
        with pytest.raises(BadInput):
            parse_json(f'{{"a": {number}}}', "x")
    assert parse_json('{"a": NaN}', "x", nan=True)["a"] != 0
    assert parse_json('{"a": [1, -2.5, 1e9]}', "x") == {"a": [1, -2.5, 1e9]}


def test_nesting_and_lone_surrogates_are_refused() -> None:
    nested = json.loads("[" * 90 + "]" * 90)
    assert parse_json(json.dumps({"a": nested}), "x") == {"a": nested}
    for content in (b'{"a": ' + b"[" * 110 + b"]" * 110 + b"}", rb'{"a": "\ud83d"}'):
        with pytest.raises(BadInput):
            parse_json(content, "x")
    assert parse_json(rb'{"a": "\ud83d\ude00"}', "x") == {"a": "😀"}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        read_json(tmp_path / "none.json")
    assert refused.value.what == str(tmp_path / "none.json")


@given(st.binary(max_size=200))
@example(b"\xff\xfe{\x00")
@settings(max_examples=200)
def test_no_bytes_break_the_reader(content: bytes) -> None:
    try:
        assert isinstance(parse_json(content, "x"), dict)
    except BadInput:
        pass


def test_yaml_bombs_are_refused() -> None:
    laughs = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    wide = f"a: &a [{'[], ' * 900}]\nb: &b [{'*a, ' * 900}]\nc: [{'*b, ' * 900}]"
    for text in (laughs, wide, "a: &a [*a]", "a: " + "[" * 3000, "a: 2020-99-99"):
        with pytest.raises(BadInput):
            parse_yaml(text)
    assert parse_yaml("a: &a [1]\nb: *a") == {"a": [1], "b": [1]}


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def zipped(content: bytes, kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as file:
        file.writestr("a.npy", content)
    return buffer.getvalue()


def header(shape: str, descr: str = "'<f8'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


BAD_ARRAYS = {
    "15 GiB": zipped(header("(2013265920,)")),
    "overflow": zipped(header("(9223372036854775807, 9223372036854775807)")),
    "negative": zipped(header("(-1,)")),
    "negative twice": zipped(header("(-1, -2)") + bytes(16)),
    "not a shape": zipped(header("'x'")),
    "deep header": zipped(header("(" * 400 + ")" * 400)),
    "pickle": zipped(header("(1,)", "'|O'") + bytes(8)),
    "other compression": zipped(header("(1,)") + bytes(8), zipfile.ZIP_LZMA),
    "bomb": npz(a=np.zeros(4 * SMALL, np.uint8)),
    "newer": zipped(b"\x93NUMPY\x03\x00" + header("(1,)")[8:] + bytes(8)),
    "empty": b"",
    "text": b"nothing",
}


@pytest.mark.parametrize("content", BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_arrays_that_are_not_there_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(BadInput) as refused:
        read_npz(tmp_path / "a.npz", SMALL)
    assert refused.value.what == str(tmp_path / "a.npz")


@given(st.data())
@settings(max_examples=100)
def test_damage_gives_the_arrays_or_an_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(["x", "yz"])}
    content = bytearray(npz(**arrays))
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    path.write_bytes(content)
    try:
        found = read_npz(path, SMALL)
    except BadInput:
        return
    assert all(array.nbytes <= SMALL for array in found.values())
