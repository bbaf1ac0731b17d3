"""JSON and .npz files that anybody may have written: refused with a sentence, before they can fill the memory."""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from demerit.config import check_nesting
from demerit.errors import BadInput

LARGEST_WHOLE = 2**63
PLAIN_ZIP = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""what numpy writes; others are decompressed whole before their size is known"""
UNREADABLE = (OSError, ValueError, EOFError, LookupError, RuntimeError, TypeError, MemoryError, OverflowError)
"""what damaged files raise, apart from the errors of their formats; RecursionError is a RuntimeError"""


def read_json(path: Path, expected: str = "an object (JSON)", nan: bool = False) -> dict[str, Any]:
    """Read a JSON object from a file; raises BadInput."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(str(path), expected, error.strerror or error) from error
    return parse_json(content, str(path), expected, nan)


def parse_json(
    content: bytes | str, name: str, expected: str = "an object (JSON)", nan: bool = False
) -> dict[str, Any]:
    """Parse a JSON object: not too deep, no lone surrogates and, unless `nan`, finite numbers only; raises BadInput."""
    numbers: dict[str, Any] = {} if nan else {"parse_constant": _refuse, "parse_float": _finite, "parse_int": _whole}
    try:
        facts = json.loads(content, **numbers)
        check_nesting(facts)
        if (b"\\u" if isinstance(content, bytes) else "\\u") in content:  # type: ignore[operator]
            json.dumps(facts, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadInput(name, expected, f"something else ({error})") from error
    if not isinstance(facts, dict):
        raise BadInput(name, expected, f"a {type(facts).__name__}")
    return facts


def read_npz(path: Path, most: int, what: str = "arrays (.npz)") -> dict[str, npt.NDArray[Any]]:
    """Read an .npz file of at most `most` bytes, without pickles; sizes are checked first. Raises BadInput."""
    try:
        # from memory: a damaged file would be left open
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as file:
            members = file.infolist()
            size = sum(member.file_size for member in members)
            if size > most:
                raise ValueError(f"it holds {size} bytes, more than the {most} that are possible")
            if any(member.compress_type not in PLAIN_ZIP for member in members):
                raise ValueError("it is compressed in a way that numpy does not write")
            return {member.filename.removesuffix(".npy"): _read_array(file, member) for member in members}
    except FileNotFoundError as error:
        raise BadInput(str(path), what, "no such file") from error
    except (*UNREADABLE, zipfile.BadZipFile, zlib.error, struct.error) as error:
        raise BadInput(str(path), what, f"a file that cannot be read ({str(error).rstrip('.')})") from error


def _read_array(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    """Read one array; refuse a header that declares more than there is, which numpy would allocate."""
    with file.open(member) as stream:
        # a number of bytes, because without one zipfile decompresses everything first
        content = io.BytesIO(stream.read(member.file_size))
    version = np.lib.format.read_magic(content)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{member.filename} has version {version} of the format")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, kind = read_header(content)
    declared, there = math.prod(shape) * kind.itemsize, member.file_size - content.tell()
    if declared != there or min(shape, default=0) < 0:
        raise ValueError(f"{member.filename} declares {declared} bytes and has {there}")
    content.seek(0)
    array: npt.NDArray[Any] = np.lib.format.read_array(content, allow_pickle=False)
    return array


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    return number if math.isfinite(number := float(text)) else _refuse(text)


def _whole(text: str) -> int:
    return number if abs(number := int(text)) < LARGEST_WHOLE else _refuse(text)
