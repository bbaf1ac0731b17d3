"""TFRecord files and the tf.train.Example messages in them, read without TensorFlow.

A TFRecord file is a run of records, all numbers little-endian:

    uint64 length | uint32 checksum of the length | `length` bytes | uint32 checksum of the bytes

A checksum is CRC-32C, rotated and shifted ("masked"). A record of an RLDS dataset is a protocol-buffer message:

    Example { 1: Features { 1: repeated entry { 1: name, 2: Feature } } }
    Feature { 1: BytesList | 2: FloatList | 3: Int64List }, each list { 1: repeated value }

The checksum of every length is verified, so a damaged file is noticed before a wrong length is used. The checksum of
the bytes is not: in pure Python that would take longer than everything else.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np

from demerit.data.arrays import Floats32, Ints
from demerit.errors import UnreadableVideo

Feature: TypeAlias = list[memoryview] | Floats32 | Ints
"""the values of a name: byte strings, floats or integers; empty list = no values"""

Example: TypeAlias = Mapping[str, Feature]

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3
LONGEST_VARINT = 10
FIELD_NAME, FIELD_VALUE = 1, 2
FLOAT_BYTES = 4

CASTAGNOLI = 0x82F63B78
MASK_DELTA = 0xA282EAD8
GZIP_MAGIC = b"\x1f\x8b"


def masked_crc32c(data: bytes) -> int:
    """The masked CRC-32C that TFRecord stores; slow, for a few bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + MASK_DELTA) & 0xFFFFFFFF


def record_spans(path: str | Path) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of every record; raise UnreadableVideo where the file is truncated or damaged."""
    with _open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        at, number = 0, 0
        while at < size:
            file.seek(at)
            header = file.read(HEADER.size)
            if len(header) < HEADER.size:
                raise UnreadableVideo(path, f"the file ends inside the header of record {number} at byte {at}")
            length, checksum = HEADER.unpack(header)
            if masked_crc32c(header[:8]) != checksum:
                raise UnreadableVideo(path, _damage(header, number, at))
            end = at + HEADER.size + length + FOOTER.size
            if end > size:
                raise UnreadableVideo(
                    path, f"record {number} at byte {at} ends at {end}, the file at {size}: cut short"
                )
            yield at + HEADER.size, length
            at, number = end, number + 1


def read_record(path: str | Path, offset: int, length: int) -> bytes:
    """Read the bytes of a record found by `record_spans`."""
    with _open_file(path) as file:
        _check_span(path, file, offset, length)
        file.seek(offset)
        return file.read(length)


def stored_checksum(path: str | Path, offset: int, length: int) -> int:
    """The stored checksum of a record: a fingerprint in four bytes."""
    with _open_file(path) as file:
        _check_span(path, file, offset, length)
        file.seek(offset + length)
        return int(FOOTER.unpack(file.read(FOOTER.size))[0])


def parse_example(data: bytes, where: str | Path) -> Example:
    """Decode a tf.train.Example; errors name the file `where`.

    Byte strings are views of `data`. Unknown fields are skipped.
    """
    example: dict[str, Feature] = {}
    try:
        for features in _delimited_fields(memoryview(data), FIELD_NAME):
            for entry in _delimited_fields(features, 1):
                name, feature = _entry(entry)
                example[name] = feature
    except ValueError as broken:
        raise UnreadableVideo(where, f"a record is not a tf.train.Example: {broken}") from None
    return example


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (CASTAGNOLI if value & 1 else 0)  # noqa: PLW2901  # eight shifts of the same byte
        table.append(value)
    return table


_CRC_TABLE = _crc_table()


def _open_file(path: str | Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as failure:
        raise UnreadableVideo(path, f"cannot be opened ({failure.strerror or failure})") from None


def _damage(header: bytes, number: int, at: int) -> str:
    if at == 0 and header.startswith(GZIP_MAGIC):
        return "this is a gzip file; expected a plain TFRecord file (gunzip it first)"
    return f"the length of record {number} at byte {at} fails its checksum: damaged, or not a TFRecord file"


def _check_span(path: str | Path, file: BinaryIO, offset: int, length: int) -> None:
    size = os.fstat(file.fileno()).st_size
    # Checked before reading: a wrong length must not allocate memory.
    if offset < HEADER.size or length < 0 or offset + length + FOOTER.size > size:
        raise UnreadableVideo(path, f"there is no record of {length} bytes at byte {offset}: the file has {size}")


def _entry(entry: memoryview) -> tuple[str, Feature]:
    name, feature = "", memoryview(b"")
    for field, wire, value in _fields(entry):
        if field == FIELD_NAME and wire == DELIMITED:
            name = str(value, "utf-8")
        elif field == FIELD_VALUE and wire == DELIMITED:
            feature = value
    return name, _feature(feature)


def _feature(feature: memoryview) -> Feature:
    decoded: Feature = []
    for field, wire, value in _fields(feature):
        if wire != DELIMITED:
            continue
        if field == BYTES_LIST:
            decoded = list(_delimited_fields(value, 1))
        elif field == FLOAT_LIST:
            decoded = _floats(_values(value, FIXED32))
        elif field == INT64_LIST:
            decoded = varints(_values(value, VARINT))
    return decoded


def _values(numbers: memoryview, alone: int) -> bytes:
    """Join the values of a list of numbers: packed and single values have the same bytes."""
    return b"".join(value for field, wire, value in _fields(numbers) if field == 1 and wire in (DELIMITED, alone))


def _floats(data: bytes) -> Floats32:
    if len(data) % FLOAT_BYTES:
        raise ValueError(f"a list of floats has {len(data)} bytes, not a multiple of {FLOAT_BYTES}")
    return np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)


def varints(data: bytes) -> Ints:
    """Decode a run of base-128 varints to signed 64-bit integers, all at once."""
    if not data:
        return np.zeros(0, dtype=np.int64)
    groups = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(groups < 0x80)  # noqa: PLR2004  # the high bit marks that more follows
    if len(ends) == len(groups):
        return groups.astype(np.int64)
    if not len(ends) or ends[-1] != len(groups) - 1:
        raise ValueError("a list of integers ends inside a number")
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > LONGEST_VARINT:
        raise ValueError(f"an integer of {lengths.max()} bytes; {LONGEST_VARINT} is the most")
    place = np.arange(len(groups)) - np.repeat(starts, lengths)
    parts = (groups & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.add.reduceat(parts, starts).view(np.int64)


def _delimited_fields(message: memoryview, number: int) -> Iterator[memoryview]:
    return (value for field, wire, value in _fields(message) if field == number and wire == DELIMITED)


def _fields(message: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Yield (field number, wire type, bytes of the value) of a message."""
    at, size = 0, len(message)
    while at < size:
        tag, at = _varint(message, at)
        field, wire = tag >> 3, tag & 7
        if field == 0:
            raise ValueError("a field has number 0")
        if wire == VARINT:
            _, end = _varint(message, at)
        elif wire == DELIMITED:
            length, at = _varint(message, at)
            end = at + length
        elif wire in (FIXED32, FIXED64):
            end = at + (4 if wire == FIXED32 else 8)
        else:
            raise ValueError(f"field {field} has the unknown wire type {wire}")
        if end > size:
            raise ValueError(f"field {field} ends {end - size} bytes after its message")
        yield field, wire, message[at:end]
        at = end


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * LONGEST_VARINT, 7):
        if at >= len(message):
            raise ValueError("the message ends inside a number")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004  # the high bit marks that more follows
            return value, at
    raise ValueError(f"a number of more than {LONGEST_VARINT} bytes")
