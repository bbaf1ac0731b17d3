"""Clips of video files, decoded frame by frame on request.

A clip is scanned once (packets only, nothing is decoded) to learn the presentation time of every frame and where the
key frames are. Taking frames then decodes only the groups of pictures that hold them. The result is the same, pixel for
pixel, as decoding the whole file from its beginning.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from demerit.data.frames import Images, Prepare, Times, file_identity, new_images, short_hash
from demerit.data.video_index import VideoIndex, decoded, decoder_errors, opened, scanned
from demerit.errors import BadInput, UnreadableVideo

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

# Decoding on through a gap of this many frames costs less than seeking over it.
SHORT_GAP = 2


@dataclass(frozen=True)
class VideoClip:
    """The frames of a video file between two moments, or all of them."""

    path: str
    start: float | None = None
    """seconds in the file's own time; None = from its first frame"""
    stop: float | None = None
    """seconds, the first frame that is no longer part of the clip; None = to its last frame"""
    length: int | None = None
    """how many frames the dataset says there are: believed until a frame is taken, None = count them"""
    rotate: int = 0
    """degrees counter-clockwise, on top of what the file itself asks for"""

    def __post_init__(self) -> None:
        """Refuse what no video can have."""
        if self.rotate % 90:
            raise BadInput("rotate", "a multiple of 90 degrees", self.rotate)

    @property
    def kind(self) -> str:
        """The name under which the store knows video files."""
        return "video"

    def __len__(self) -> int:
        """How many frames there are: as declared, else as counted."""
        return self.length if self.length is not None else len(self.scan().pts)

    def scan(self) -> VideoIndex:
        """Find the clip's frames in the file without decoding them; remembered for the last few clips."""
        try:
            status = os.stat(self.path)
        except OSError:
            raise UnreadableVideo(self.path, "there is no such file") from None
        return scanned(self.path, self.start, self.stop, status.st_size, status.st_mtime_ns)

    def times(self) -> Times:
        """Seconds from the clip's first frame."""
        index = self.scan()
        seconds = (index.pts - index.pts[0]) * index.seconds_per_tick
        return np.asarray(seconds[: len(self)], dtype=np.float64)

    def take(self, indices: Sequence[int]) -> Images:
        """Decode the wanted frames, in the wanted order."""
        return self.take_into(indices, new_images)

    def take_into(
        self, indices: Sequence[int], allocate: Callable[[tuple[int, ...]], Images], prepare: Prepare | None = None
    ) -> Images:
        """Decode into an array that `allocate` makes for a shape; indices that do not grow cost a copy.

        `prepare` makes each picture smaller before the next is decoded.
        """
        index = self.scan()
        if not len(indices):
            return np.empty((0, 0, 0, 3), dtype=np.uint8)
        if max(indices) >= len(index.pts):
            reason = f"frame {max(indices)} was asked for, and only {len(index.pts)} frames can be read"
            raise UnreadableVideo(self.path, reason)
        wanted, places = np.unique(np.asarray(indices, dtype=np.int64), return_inverse=True)
        images = _decode(self.path, index, wanted, _Painter(self.rotate, prepare), allocate)
        is_in_order = np.array_equal(places, np.arange(len(wanted)))
        return images if is_in_order else images[places]

    def identity(self) -> str:
        """Hash the file's content and what part of it is shown."""
        return short_hash(file_identity(self.path).encode(), repr((self.start, self.stop, self.rotate)).encode())

    def describe(self) -> dict[str, Any]:
        """The arguments that rebuild this clip."""
        return {"path": self.path, "start": self.start, "stop": self.stop, "length": self.length, "rotate": self.rotate}


def _decode(
    path: str,
    index: VideoIndex,
    wanted: npt.NDArray[np.int64],
    painter: _Painter,
    allocate: Callable[[tuple[int, ...]], Images],
) -> Images:
    """Decode the wanted positions (growing, each once)."""
    out: Images | None = None
    done = 0
    with opened(path, fresh=not index.seekable) as (container, stream):
        found = _seek_frames(container, stream, index, wanted) if index.seekable else None
        frames = _numbered(decoded(path, container, stream), wanted) if found is None else found
        try:
            for position, frame in frames:
                if frame.is_corrupt:
                    raise UnreadableVideo(path, f"frame {position} is damaged")
                try:
                    image = painter.rgb(frame)
                except _SizeChanged as change:
                    raise UnreadableVideo(path, f"the picture size changes {change} at frame {position}") from None
                if out is None:
                    out = allocate((len(wanted), *image.shape))
                out[np.searchsorted(wanted, position)] = image
                done += 1
        except decoder_errors() as error:
            raise UnreadableVideo(path, f"decoding stopped: {error}") from error
    if out is None or done != len(wanted):
        raise UnreadableVideo(path, f"only {done} of {len(wanted)} wanted frames could be decoded")
    return out


def _seek_frames(
    container: InputContainer, stream: VideoStream, index: VideoIndex, wanted: npt.NDArray[np.int64]
) -> Iterator[tuple[int, VideoFrame]]:
    """Decode run by run: seek to a run's key frame, feed packets up to its last wanted frame, drain, go on."""
    wanted_pts = index.pts[wanted]
    key_of = np.searchsorted(index.keys, wanted_pts, side="right") - 1
    position_of = dict(zip(wanted_pts.tolist(), wanted.tolist(), strict=True))
    key_position = np.searchsorted(index.pts, index.keys)
    starts_run = np.ones(len(wanted), dtype=bool)
    starts_run[1:] = (np.diff(key_of) > 0) & (key_position[key_of[1:]] - wanted[:-1] > SHORT_GAP)
    context = stream.codec_context
    # Frames that nobody refers to and nobody wants need not be decoded at all; dav1d and libvpx cannot be told so.
    may_skip = context.name in ("h264", "hevc")
    for run in np.split(np.arange(len(wanted)), np.flatnonzero(starts_run)[1:]):
        unfed = set(wanted_pts[run].tolist())
        key = int(key_of[run[0]])
        container.seek(int(index.key_dts[key]), stream=stream)
        fed = False
        for packet in container.demux(stream):
            if not fed and packet.pts is not None and packet.pts > index.keys[key]:
                # The container's own seek table aims later than the key frame: start over from an earlier one.
                yield from _from_earlier(container, stream, index, key, wanted[run])
                break
            fed = fed or packet.pts == index.keys[key]
            if not fed:
                continue
            if may_skip:
                context.skip_frame = "DEFAULT" if packet.pts in unfed else "NONREF"
            unfed.discard(packet.pts)
            for frame in context.decode(packet):
                if frame.pts in position_of:
                    yield position_of.pop(frame.pts), frame
            if not unfed:
                for frame in context.decode(None):
                    if frame.pts in position_of:
                        yield position_of.pop(frame.pts), frame
                break


def _from_earlier(
    container: InputContainer, stream: VideoStream, index: VideoIndex, key: int, wanted: npt.NDArray[np.int64]
) -> Iterator[tuple[int, VideoFrame]]:
    """Decode linearly from the file's first packet; slow, and only for containers whose seeks cannot be trusted."""
    container.seek(int(index.key_dts[0]) - 1, stream=stream)
    stream.codec_context.skip_frame = "DEFAULT"
    missing = dict(zip(index.pts[wanted].tolist(), wanted.tolist(), strict=True))
    for packet in container.demux(stream):
        for frame in stream.codec_context.decode(packet if packet.size else None):
            if frame.pts in missing:
                yield missing.pop(frame.pts), frame
        if not missing:
            break


def _numbered(frames: Iterator[VideoFrame], wanted: npt.NDArray[np.int64]) -> Iterator[tuple[int, VideoFrame]]:
    chosen = set(wanted.tolist())
    for position, frame in enumerate(frames):
        if position in chosen:
            yield position, frame
        if position >= int(wanted[-1]):
            return


class _SizeChanged(Exception):
    """A picture that is not as large as the first one."""


class _Painter:
    """Turns decoded pictures into RGB arrays with one conversion context for all of them."""

    def __init__(self, rotate: int, prepare: Prepare | None) -> None:
        from av.video.reformatter import VideoReformatter  # noqa: PLC0415

        self._reformatter = VideoReformatter()
        self._rotate, self._prepare = rotate, prepare
        self._size: tuple[int, ...] = ()

    def rgb(self, frame: VideoFrame) -> Images:
        """Convert, turn as the file and the dataset ask, and prepare."""
        picture = self._reformatter.reformat(frame, format="rgb24", threads=1)
        plane = picture.planes[0]
        rows = np.frombuffer(memoryview(plane), dtype=np.uint8).reshape(picture.height, plane.line_size)
        image = rows[:, : picture.width * 3].reshape(picture.height, picture.width, 3)
        quarter_turns = round((frame.rotation + self._rotate) / 90) % 4
        image = np.rot90(image, quarter_turns) if quarter_turns else image
        self._size = self._size or image.shape
        if image.shape != self._size:
            raise _SizeChanged(f"from {self._size[1]}x{self._size[0]} to {image.shape[1]}x{image.shape[0]}")
        return image if self._prepare is None else self._prepare(image[None])[0]
