"""JSON, YAML and .npz files of strangers: refused with a sentence, and before they fill the memory."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from demerit.config import parse_yaml
from demerit.data.untrusted import parse_json, read_json, read_npz
from demerit.errors import BadInput

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
