"""An encoder of TFRecord files and tf.train.Example messages that shares nothing with the decoder."""

import struct

import numpy as np


def bitwise_crc32c(data: bytes) -> int:
    """CRC-32C one bit at a time, without a table."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def mask(crc: int) -> int:
    return (((crc >> 15) | (crc << 17 & 0xFFFFFFFF)) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    header, footer = (struct.pack("<I", mask(bitwise_crc32c(part))) for part in (length, payload))
    return length + header + payload + footer


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def delimited(field: int, payload: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(payload)) + payload


def feature(values: list[bytes] | np.ndarray, packed: bool = True) -> bytes:
    """Encode a list of bytes, or an array of floats or integers."""
    if isinstance(values, list):
        return delimited(1, b"".join(delimited(1, value) for value in values))
    is_float = values.dtype.kind == "f"
    numbers = [struct.pack("<f", value) if is_float else varint(value) for value in values.ravel().tolist()]
    tag = b"\x0d" if is_float else b"\x08"
    encoded = delimited(1, b"".join(numbers)) if packed else b"".join(tag + number for number in numbers)
    return delimited(2 if is_float else 3, encoded)


def example(features: dict[str, bytes]) -> bytes:
    entries = [delimited(1, delimited(1, key.encode()) + delimited(2, value)) for key, value in features.items()]
    return delimited(1, b"".join(entries))
