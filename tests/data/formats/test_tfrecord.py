"""TFRecord framing and tf.train.Example decoding, against an encoder written for the test."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.data.formats.tfrecord import masked_crc32c, parse_example, read_record, record_spans, stored_checksum
from demerit.errors import UnreadableVideo


def bitwise_crc32c(data: bytes) -> int:
    """CRC-32C a bit at a time: slower than the table, and nothing shared with it."""
    crc = 0xFFFFFFFF
    for byte in data:
        for bit in range(8):
            low = (crc ^ (byte >> bit)) & 1
            crc = (crc >> 1) ^ (0x82F63B78 if low else 0)
    return crc ^ 0xFFFFFFFF


def mask(crc: int) -> int:
    return (((crc >> 15) | (crc << 17 & 0xFFFFFFFF)) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    footer = struct.pack("<I", mask(bitwise_crc32c(payload)))
    return length + struct.pack("<I", mask(bitwise_crc32c(length))) + payload + footer


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def delimited(field: int, payload: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(payload)) + payload


def feature(values: list, kind: str, packed: bool = True) -> bytes:
    if kind == "bytes":
        return delimited(1, b"".join(delimited(1, value) for value in values))
    if kind == "float":
        each = [struct.pack("<f", value) for value in values]
        return delimited(2, delimited(1, b"".join(each)) if packed else b"".join(b"\x0d" + one for one in each))
    each = [varint(value) for value in values]
    return delimited(3, delimited(1, b"".join(each)) if packed else b"".join(b"\x08" + one for one in each))


def example(features: dict[str, bytes]) -> bytes:
    entries = [delimited(1, delimited(1, key.encode()) + delimited(2, value)) for key, value in features.items()]
    return delimited(1, b"".join(entries))


def test_the_checksum_is_crc32c():
    # 0xE3069283 is the check value of CRC-32C for "123456789" in every catalogue of CRCs
    assert bitwise_crc32c(b"123456789") == 0xE3069283
    assert masked_crc32c(b"123456789") == mask(0xE3069283)
    assert masked_crc32c(b"") == mask(0)


lists = st.one_of(
    st.tuples(st.just("bytes"), st.lists(st.binary(max_size=300), max_size=6)),
    st.tuples(st.just("float"), st.lists(st.floats(width=32), max_size=40)),
    st.tuples(st.just("int"), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40)),
    st.tuples(st.just("int"), st.lists(st.integers(0, 127), max_size=40)),
)


@settings(max_examples=150)
@given(
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), lists, max_size=5), st.booleans()
)
def test_round_trip_of_examples(features, packed):
    encoded = example({key: feature(values, kind, packed) for key, (kind, values) in features.items()})
    decoded = parse_example(encoded, "here")
    assert decoded.keys() == features.keys()
    for key, (kind, values) in features.items():
        got = decoded[key]
        if kind == "bytes":
            assert [bytes(value) for value in got] == values
        else:
            expected = np.array(values, dtype=np.float32 if kind == "float" else np.int64)
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_an_example_or_a_clear_error(data):
    try:
        parse_example(data, "here")
    except UnreadableVideo as error:
        assert str(error).startswith("here: a record is not a tf.train.Example")


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_example_never_crashes(data):
    good = bytearray(example({"a": feature([b"xyz", b""], "bytes"), "b": feature([1, -1, 300], "int")}))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        parse_example(bytes(good[: data.draw(st.integers(0, len(good)))]), "here")
    except UnreadableVideo:
        pass


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "field 1 ends"),
        (b"\x0a", "the message ends inside a number"),
        (b"\x80" * 11, "a number of more than 10 bytes"),
        (b"\x02\x00", "a field has number 0"),
        (b"\x0b", "unknown wire type 3"),
        (b"\x09\x00\x00", "field 1 ends 6 bytes after its message"),
        (example({"a": delimited(2, delimited(1, b"123"))}), "a list of floats has 3 bytes, not a multiple of 4"),
        (example({"a": delimited(3, delimited(1, b"\x01\x80"))}), "a list of integers ends inside a number"),
        (example({"a": delimited(3, delimited(1, b"\x80" * 10 + b"\x01"))}), "an integer of 11 bytes"),
        (delimited(1, delimited(1, delimited(1, b"\xff\xfe"))), "can't decode byte 0xff"),
    ],
)
def test_malformed_examples(data, reason):
    with pytest.raises(UnreadableVideo, match=r"^here: a record is not a tf\.train\.Example: ") as caught:
        parse_example(data, "here")
    assert reason in str(caught.value)


def test_unknown_and_repeated_fields():
    unknown = varint(9 << 3) + varint(5) + varint(9 << 3 | 1) + bytes(8) + varint(9 << 3 | 5) + bytes(4)
    both = feature([b"first"], "bytes") + feature([7], "int") + unknown
    got = parse_example(unknown + example({"a": both, "none": b""}), "here")
    assert got["a"].tolist() == [7]
    assert got["none"] == []


def test_packed_and_single_values():
    mixed = delimited(3, delimited(1, varint(1) + varint(300)) + b"\x08" + varint(-2))
    assert parse_example(example({"a": mixed}), "here")["a"].tolist() == [1, 300, -2]


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=100), max_size=5))
def test_record_spans(tmp_path_factory, payloads):
    path = tmp_path_factory.mktemp("records") / "x.tfrecord"
    path.write_bytes(b"".join(map(frame, payloads)))
    spans = list(record_spans(path))
    assert [read_record(path, *span) for span in spans] == payloads
    assert [length for _, length in spans] == [len(payload) for payload in payloads]


@pytest.fixture
def two_records(tmp_path: Path) -> Path:
    path = tmp_path / "x.tfrecord"
    path.write_bytes(frame(b"first") + frame(b"second one"))
    return path


@pytest.mark.parametrize(
    ("keep", "reason"), [(-1, "cut short"), (-12, "cut short"), (26, "inside the header of record 1")]
)
def test_a_truncated_file(two_records, keep, reason):
    two_records.write_bytes(two_records.read_bytes()[:keep])
    spans = record_spans(two_records)
    assert next(spans) == (12, 5)
    with pytest.raises(UnreadableVideo, match=reason):
        next(spans)


def test_a_damaged_length(two_records):
    damaged = bytearray(two_records.read_bytes())
    damaged[4] = 0xFF  # a length of about a terabyte
    two_records.write_bytes(damaged)
    with pytest.raises(UnreadableVideo, match="checksum"):
        next(record_spans(two_records))


def test_a_huge_length(tmp_path):
    length = struct.pack("<Q", 2**62)
    path = tmp_path / "x.tfrecord"
    path.write_bytes(length + struct.pack("<I", masked_crc32c(length)) + b"little")
    with pytest.raises(UnreadableVideo, match="cut short"):
        next(record_spans(path))
    with pytest.raises(UnreadableVideo, match="4611686018427387904"):
        read_record(path, 12, 2**62)
    with pytest.raises(UnreadableVideo, match="there is no record"):
        stored_checksum(path, 12, -1)


def test_a_gzip_file(tmp_path):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(b"\x1f\x8b" + bytes(30))
    with pytest.raises(UnreadableVideo, match="gzip"):
        next(record_spans(path))


def test_the_stored_checksum_is_read_not_computed(two_records):
    assert stored_checksum(two_records, 12, 5) == mask(bitwise_crc32c(b"first"))


def test_a_missing_file_and_a_folder(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UnreadableVideo, match="cannot be opened"):
            next(record_spans(path))


def test_an_empty_file_has_no_records(tmp_path):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(b"")
    assert list(record_spans(path)) == []
