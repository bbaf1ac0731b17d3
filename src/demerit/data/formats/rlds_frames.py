"""The images of a camera inside a TFRecord file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from demerit.data.formats.tfrecord import Example, parse_example, read_record, stored_checksum
from demerit.data.frames import Images, Times, file_identity, short_hash
from demerit.errors import BadInput, UnreadableVideo

NOMINAL_FPS = 5.0
ENCODINGS = ("JPEG", "PNG")
NOT_AN_IMAGE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


@dataclass(frozen=True)
class TfRecordFrames:
    """The images of one camera in one record; `count` spares reading the record to learn its length."""

    path: str
    offset: int
    length: int
    key: str
    fps: float = NOMINAL_FPS
    count: int | None = None

    def __post_init__(self) -> None:
        """Refuse a rate that gives no times."""
        if not self.fps > 0:
            raise BadInput("fps", "a positive number", self.fps)

    @property
    def kind(self) -> str:
        """The name under which it is rebuilt."""
        return "tfrecord"

    def __len__(self) -> int:
        """How many images there are."""
        return len(self._encoded()) if self.count is None else self.count

    def times(self) -> Times:
        """Evenly spaced seconds, at the nominal rate."""
        return np.arange(len(self)) / self.fps

    def take(self, indices: Sequence[int]) -> Images:
        """Decode the chosen images, each of them once."""
        encoded = self._encoded()
        wanted = sorted(set(indices)) or [0]
        if wanted[0] < 0 or wanted[-1] >= len(encoded):
            raise BadInput(f"frame indices of {self.key}", f"0 to {len(encoded) - 1}", f"{wanted[0]} to {wanted[-1]}")
        decoded = {index: self._decode(encoded[index], index) for index in wanted}
        sizes = {image.shape for image in decoded.values()}
        if len(sizes) > 1:
            raise UnreadableVideo(self.path, f"{self.key} has images of several sizes: {sorted(sizes)}")
        images = np.empty((len(indices), *sizes.pop()), dtype=np.uint8)
        for row, index in enumerate(indices):
            images[row] = decoded[index]
        return images

    def identity(self) -> str:
        """Hash the file's identity, the place in it, and the checksum that the file keeps of the record."""
        checksum = stored_checksum(self.path, self.offset, self.length)
        place = f"{self.offset} {self.length} {checksum}"
        return short_hash(file_identity(self.path).encode(), self.key.encode(), place.encode())

    def describe(self) -> dict[str, Any]:
        """The arguments that rebuild it."""
        return asdict(self)

    def _encoded(self) -> list[memoryview]:
        encoded = example_at(self.path, self.offset, self.length).get(self.key)
        if not isinstance(encoded, list):
            raise UnreadableVideo(self.path, f"the record at byte {self.offset} has no images under {self.key!r}")
        return encoded

    def _decode(self, encoded: memoryview, index: int) -> Images:
        try:
            with Image.open(io.BytesIO(encoded), formats=ENCODINGS) as image:
                return np.asarray(image.convert("RGB"))
        except NOT_AN_IMAGE as failure:
            raise UnreadableVideo(self.path, f"image {index} of {self.key} does not decode ({failure})") from None


def example_at(path: str, offset: int, length: int) -> Example:
    """Read and decode one record; the last two are remembered while their file stays the same."""
    try:
        status = Path(path).stat()
    except OSError:
        raise UnreadableVideo(path, "there is no such file") from None
    return _parsed(path, offset, length, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=2)
def _parsed(path: str, offset: int, length: int, _size: int, _mtime_ns: int) -> Example:
    """Keep the last records: the cameras of an episode, and repeated takes, share one parse."""
    return parse_example(read_record(path, offset, length), path)
