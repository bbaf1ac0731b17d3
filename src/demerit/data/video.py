"""Clips of video files, decoded frame by frame on request.

A clip is scanned once (packets only, nothing is decoded) to learn the presentation time of every frame and where the
key frames are. Taking frames then decodes only the groups of pictures that hold them. The result is the same, pixel for
pixel, as decoding the whole file from its beginning.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from demerit.data.files import atomic_file
from demerit.data.frames import Images, Prepare, Times, file_identity, new_images, short_hash
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


# Frames by which decoding order may run ahead of presentation order in H.264, HEVC and AV1.
DEEPEST_REORDERING = 16
# Codecs in which a packet is a frame and frames are stored in the order in which they are shown.
IN_ORDER = ("av1", "vp9", "vp8", "mjpeg", "png", "ffv1")


@dataclass(frozen=True, eq=False)
class VideoIndex:
    """Where a clip's frames are in its file."""

    pts: npt.NDArray[np.int64]
    """presentation time of every frame of the clip, growing, in ticks"""
    keys: npt.NDArray[np.int64]
    """presentation times of the key frames that the clip needs, growing"""
    key_dts: npt.NDArray[np.int64]
    """decoding times of the same key frames: what a seek is aimed at"""
    seconds_per_tick: float
    header_frames: int
    """how many frames the file's header promises for the whole file; 0 = it does not say"""
    seekable: bool
    """false: times are frame counts, and the file is decoded from its beginning"""


@lru_cache(maxsize=64)
def scanned(path: str, start: float | None, stop: float | None, size: int, _mtime_ns: int) -> VideoIndex:
    """Find a clip's frames; size and time of change are part of the key, so a replaced file is scanned anew."""
    with opened(path, fresh=start is None) as (container, stream):
        index = _scan_table(stream, size) if start is None and stop is None else None
        index = index or _scan_packets(container, stream, start, stop)
    if index is None:  # a container without usable times, such as AVI with B-frames
        with opened(path, fresh=True) as (container, stream):
            index = _scan_frames(path, container, stream, start, stop)
    if not len(index.pts):
        raise UnreadableVideo(path, "it holds no frame" if start is None else f"it holds no frame from {start} s on")
    return index


def _scan_table(stream: VideoStream, size: int) -> VideoIndex | None:
    """Read the container's own table of frames, where there is one and decoding order is presentation order."""
    if stream.codec_context.codec.canonical_name not in IN_ORDER or not stream.frames:
        return None
    entries = [entry for entry in stream.index_entries if not entry.is_discard and entry.pos + entry.size <= size]
    times = np.array([entry.timestamp for entry in entries], dtype=np.int64)
    keys = np.array([entry.timestamp for entry in entries if entry.is_keyframe], dtype=np.int64)
    if len(stream.index_entries) != stream.frames or not len(keys) or keys[0] > times[0]:
        return None
    return VideoIndex(times, keys, keys, float(stream.time_base or 0), int(stream.frames), seekable=True)


def _scan_packets(
    container: InputContainer, stream: VideoStream, start: float | None, stop: float | None
) -> VideoIndex | None:
    """Read packet headers; None when they do not give every frame a time of its own."""
    tick = float(stream.time_base or 0)
    # Datasets give cut points rounded to some decimals: a frame belongs to the side that it is nearer to.
    half_step = 0.5 / float(stream.average_rate or stream.guessed_rate or 30)
    first = -np.inf if start is None else (start - half_step) / tick
    last = np.inf if stop is None else (stop - half_step) / tick
    if start is not None:
        # Seeks go by decoding time, which runs ahead of presentation by up to 16 frames: aim that much earlier.
        container.seek(max(0, int(first - DEEPEST_REORDERING * 2 * half_step / tick)), stream=stream)
    pts: list[int] = []
    keys: list[tuple[int, int]] = []
    for packet in container.demux(stream):
        if not packet.size:
            continue
        if packet.pts is None:
            return None
        if packet.is_keyframe:
            keys.append((packet.pts, packet.pts if packet.dts is None else packet.dts))
        if first <= packet.pts < last and not packet.is_discard:
            pts.append(packet.pts)
        if packet.dts is not None and packet.dts >= last:
            break
    if len(set(pts)) != len(pts):
        return None
    times = np.sort(np.array(pts, dtype=np.int64))
    key_times = np.array(sorted(keys), dtype=np.int64).reshape(-1, 2)
    if len(times) and (not len(key_times) or key_times[0, 0] > times[0]):
        return None  # frames before the first key frame: only a decoder knows what becomes of them
    return VideoIndex(times, key_times[:, 0], key_times[:, 1], tick, int(stream.frames), seekable=True)


def _scan_frames(
    path: str, container: InputContainer, stream: VideoStream, start: float | None, stop: float | None
) -> VideoIndex:
    """Count frames by decoding them all; the last resort, so clips of such files are refused."""
    if start is not None or stop is not None:
        raise UnreadableVideo(path, "its frames carry no times, so a part of it cannot be found (re-encode it as mp4)")
    count = sum(1 for _ in decoded(path, container, stream))
    rate = float(stream.average_rate or stream.guessed_rate or 30)
    none = np.empty(0, dtype=np.int64)
    return VideoIndex(np.arange(count), none, none, 1 / rate, int(stream.frames), seekable=False)


def decoded(path: str, container: InputContainer, stream: VideoStream) -> Iterator[VideoFrame]:
    """Decode from where the container stands to the end."""
    try:
        yield from container.decode(stream)
    except decoder_errors() as error:
        raise UnreadableVideo(path, f"decoding stopped: {error}") from error


class _Held(threading.local):
    """The file that this thread used last, still open.

    Frames are counted before they are taken, and datasets keep many episodes in one large file: opening it anew for
    each would cost more than the decoding.
    """

    key: tuple[str, int, int] | None = None
    container: InputContainer | None = None


_held = _Held()


@contextmanager
def opened(path: str, fresh: bool) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a file's first video stream for decoding on one thread; complaints become one sentence.

    A container that is not `fresh` may stand anywhere in the file: seek before reading.
    """
    try:
        status = os.stat(path)
    except OSError:
        raise UnreadableVideo(path, "there is no such file") from None
    key = (path, status.st_size, status.st_mtime_ns)
    container, _held.container = _held.container, None
    if container is not None and (fresh or _held.key != key):
        container.close()
        container = None
    container = container or _open(path)
    try:
        yield container, container.streams.video[0]
    except BaseException:
        container.close()
        raise
    _held.key, _held.container = key, container


def _open(path: str) -> InputContainer:
    import av  # noqa: PLC0415  # 0.1 s that `demerit --help` does not need

    try:
        container = av.open(path)
    except decoder_errors() as error:
        raise UnreadableVideo(path, f"it cannot be opened as a video ({_plain(error)})") from error
    if not container.streams.video:
        container.close()
        raise UnreadableVideo(path, "it has no video in it")
    # Clips are decoded side by side in processes of their own: more threads for one clip only add waiting.
    container.streams.video[0].codec_context.thread_count = 1
    return container


def decoder_errors() -> tuple[type[Exception], ...]:
    """What PyAV raises on files that it cannot read."""
    import av  # noqa: PLC0415

    return (av.error.FFmpegError, ValueError)


def _plain(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


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
