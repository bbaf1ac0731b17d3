"""Writing videos: small ones for people, exact ones for data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from demerit.data.files import atomic_file
from demerit.data.frames import Images
from demerit.errors import BadInput

if TYPE_CHECKING:
    from av.video.stream import VideoStream

# Fine enough for any camera clock, and divisible by the usual frame rates.
TICKS_PER_SECOND = 90_000


@dataclass(frozen=True)
class Encoding:
    """How pictures become a video."""

    codec: str = "libx264"
    pixel_format: str = "yuv420p"
    gop: int = 10
    """a key frame every so many frames: small numbers make random access cheap and files larger"""
    options: Mapping[str, str] = field(default_factory=lambda: {"crf": "23", "preset": "veryfast"})


SMALL = Encoding()
EXACT = Encoding("libx264rgb", "rgb24", 10, {"crf": "0", "preset": "veryfast"})
"""Lossless: decodes to the very pixels that went in."""


def write_video(
    path: str | Path,
    images: Iterable[Images],
    fps: float = 10.0,
    encoding: Encoding = SMALL,
    times: Sequence[float] | None = None,
) -> int:
    """Write (height, width, 3) uint8 RGB images as an mp4, atomically; return how many there were.

    `times` gives each frame its own moment in seconds instead of a fixed rate.
    """
    import av  # noqa: PLC0415

    path = Path(path)
    count = 0
    with atomic_file(path, sync=False) as partial, av.open(str(partial), "w", format="mp4") as container:
        stream: VideoStream | None = None
        for image in images:
            if stream is None:
                stream = _add_stream(container, image, fps, encoding)
            _check_size(path, stream, image)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            moment = count / fps if times is None else times[count]
            frame.pts, frame.time_base = round(moment * TICKS_PER_SECOND), Fraction(1, TICKS_PER_SECOND)
            container.mux(stream.encode(frame))
            count += 1
        if stream is None:
            raise BadInput(str(path), "at least one image", "none")
        container.mux(stream.encode(None))
    return count


def _add_stream(container: object, image: Images, fps: float, encoding: Encoding) -> VideoStream:
    height, width = image.shape[:2]
    if encoding.pixel_format == "yuv420p" and (height % 2 or width % 2):
        raise BadInput("image size", "even numbers (yuv420p halves the colours)", f"{width}x{height}")
    stream: VideoStream = container.add_stream(  # type: ignore[attr-defined]
        encoding.codec, rate=Fraction(fps).limit_denominator(100_000), options=dict(encoding.options)
    )
    stream.width, stream.height, stream.pix_fmt = width, height, encoding.pixel_format
    stream.codec_context.gop_size = encoding.gop
    stream.codec_context.time_base = Fraction(1, TICKS_PER_SECOND)
    stream.time_base = Fraction(1, TICKS_PER_SECOND)
    return stream


def _check_size(path: Path, stream: VideoStream, image: Images) -> None:
    if image.shape[:2] != (stream.height, stream.width):
        got = f"{image.shape[1]}x{image.shape[0]}"
        raise BadInput(str(path), f"images of one size ({stream.width}x{stream.height})", got)
