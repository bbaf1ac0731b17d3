"""TFRecord framing and tf.train.Example decoding, against an encoder written for the tests."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.data.formats.tfrecord import masked_crc32c, parse_example, read_record, record_spans, stored_checksum
from demerit.errors import UnreadableVideo
from fakes.tfrecord_writer import bitwise_crc32c, delimited, example, feature, frame, mask, varint


def test_the_checksum_is_crc32c():
    # 0xE3069283 is the check value of CRC-32C for "123456789" in catalogues of CRCs
    assert bitwise_crc32c(b"123456789") == 0xE3069283
    assert masked_crc32c(b"123456789") == mask(0xE3069283)
    assert masked_crc32c(b"") == mask(0)


features_of_examples = st.one_of(
    st.lists(st.binary(max_size=300), max_size=6),
    st.lists(st.floats(width=32), max_size=40).map(lambda values: np.array(values, np.float32)),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40).map(lambda values: np.array(values, np.int64)),
    st.lists(st.integers(0, 127), max_size=40).map(lambda values: np.array(values, np.int64)),
)
keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(max_examples=50)
@given(st.dictionaries(keys, features_of_examples, max_size=5), st.booleans())
def test_round_trip_of_examples(features, packed):
    decoded = parse_example(example({key: feature(values, packed) for key, values in features.items()}), "here")
    assert decoded.keys() == features.keys()
    for key, values in features.items():
        if isinstance(values, list):
            assert [bytes(value) for value in decoded[key]] == values
        else:
            assert decoded[key].dtype == values.dtype
            np.testing.assert_array_equal(decoded[key], values)


GOOD = example({"a": feature([b"xyz", b""]), "b": feature(np.array([1, -1, 300]))})
edits = st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=3)
damaged = st.builds(
    lambda edits, stop: bytes(dict(edits).get(at, byte) for at, byte in enumerate(GOOD))[:stop],
    edits,
    st.integers(0, len(GOOD)),
)


@settings(max_examples=300)
@given(st.binary(max_size=200) | damaged)
def test_any_bytes_are_an_example_or_a_clear_error(data):
    try:
        parse_example(data, "here")
    except UnreadableVideo as error:
        assert str(error).startswith("here: ")


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "field 1"),
        (b"\x0a", "inside a number"),
        (b"\x80" * 11, "10 bytes"),
        (b"\x02\x00", "number 0"),
        (b"\x0b", "wire type 3"),
        (b"\x09\x00\x00", "6 bytes"),
        (example({"a": delimited(2, delimited(1, b"123"))}), "multiple of 4"),
        (example({"a": delimited(3, delimited(1, b"\x01\x80"))}), "inside a number"),
        (example({"a": delimited(3, delimited(1, b"\x80" * 10 + b"\x01"))}), "11 bytes"),
        (delimited(1, delimited(1, delimited(1, b"\xff\xfe"))), "0xff"),
    ],
)
def test_malformed_examples(data, word):
    with pytest.raises(UnreadableVideo, match=word):
        parse_example(data, "here")


def test_unknown_repeated_and_mixed_fields():
    unknown = varint(9 << 3) + varint(5) + varint(9 << 3 | 1) + bytes(8) + varint(9 << 3 | 5) + bytes(4)
    both = feature([b"first"]) + feature(np.array([7])) + unknown
    mixed = delimited(3, delimited(1, varint(1) + varint(300)) + b"\x08" + varint(-2))
    got = parse_example(unknown + example({"a": both, "none": b"", "mixed": mixed}), "here")
    assert (got["a"].tolist(), got["none"], got["mixed"].tolist()) == ([7], [], [1, 300, -2])


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=100), max_size=5))
def test_record_spans(tmp_path_factory, payloads):
    path = tmp_path_factory.mktemp("records") / "x.tfrecord"
    path.write_bytes(b"".join(map(frame, payloads)))
    spans = list(record_spans(path))
    assert [read_record(path, *span) for span in spans] == payloads
    assert [length for _, length in spans] == [len(payload) for payload in payloads]


LENGTH = struct.pack("<Q", 2**62)
TWO = frame(b"first") + frame(b"second one")


@pytest.mark.parametrize(
    ("content", "first", "word"),
    [
        (TWO[:-1], [(12, 5)], "cut short"),
        (TWO[:-12], [(12, 5)], "cut short"),
        (TWO[:26], [(12, 5)], "header of record 1"),
        (TWO[:4] + b"\xff" + TWO[5:], [], "checksum"),  # a length of about a terabyte
        (LENGTH + struct.pack("<I", masked_crc32c(LENGTH)) + b"little", [], "cut short"),
        (b"\x1f\x8b" + bytes(30), [], "gzip"),
    ],
)
def test_damaged_files(tmp_path, content, first, word):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(content)
    spans = record_spans(path)
    assert [next(spans) for _ in first] == first
    with pytest.raises(UnreadableVideo, match=word):
        next(spans)


def test_one_record(tmp_path: Path):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(TWO)
    assert stored_checksum(path, 12, 5) == mask(bitwise_crc32c(b"first"))
    with pytest.raises(UnreadableVideo, match=str(2**62)):
        read_record(path, 12, 2**62)
    with pytest.raises(UnreadableVideo, match="no record"):
        stored_checksum(path, 12, -1)
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(UnreadableVideo, match="opened"):
            next(record_spans(missing))
