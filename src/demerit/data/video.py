"""Video files: clips decoded frame by frame on request, and writing videos.

A clip is scanned once (packets only, nothing is decoded) for the presentation time of every frame and the positions of
the key frames. Taking frames then decodes only the groups of pictures that contain them. The result is equal, pixel for
pixel, to decoding the whole file from its start.
"""

from __future__ import annotations

import io
import math
import operator
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.container import InputContainer, OutputContainer
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream

from demerit.data.arrays import Ints
from demerit.data.files import atomic_file
from demerit.data.frames import Images, Prepare, Times, file_identity, file_state, new_images, short_hash
from demerit.errors import BadInput, UnreadableVideo

DECODER_ERRORS: tuple[type[Exception], ...] = (av.error.FFmpegError, ValueError)
"""what PyAV raises on files that it cannot read"""
# Decoding through a gap of this many frames costs less than seeking over it.
SHORT_GAP = 2
# Frames by which decoding order may run ahead of presentation order in H.264, HEVC and AV1.
DEEPEST_REORDERING = 16
# Codecs in which a packet is a frame and frames are stored in presentation order.
IN_ORDER = ("av1", "vp9", "vp8", "mjpeg", "png", "ffv1")
# Fine enough for any camera clock, and divisible by the usual frame rates.
TICKS_PER_SECOND = 90_000
CONTAINERS = (
    "mov,mp4,matroska,webm,avi,mpegts,mpeg,mpegvideo,ogg,flv,asf,mxf,nut,ivf,gif,apng,mjpeg,m4v,h264,hevc,obu,wav"
)
"""formats that hold their frames themselves: playlists (concat, hls, dash, sdp) would open other files and addresses"""
MOST_FRAMES = 10_000_000
"""of a clip: a longer one is a damaged number"""


@dataclass(frozen=True)
class VideoClip:
    """The frames of a video file between two times, or all of them."""

    kind = "video"
    path: str
    start: float | None = None
    """seconds on the file's clock; None = from the first frame"""
    stop: float | None = None
    """seconds on the file's clock, exclusive; None = to the last frame"""
    length: int | None = None
    """the number of frames according to the dataset, trusted until a frame is taken; None = count them"""
    rotate: int = 0
    """degrees counter-clockwise, added to the rotation that the file asks for"""

    def __post_init__(self) -> None:
        if self.rotate % 90:
            raise BadInput("rotate", "a multiple of 90 degrees", self.rotate)
        if any(end is not None and not math.isfinite(end) for end in (self.start, self.stop)):
            raise BadInput("clip", "a start and a stop in seconds", (self.start, self.stop))
        if self.length is not None and not 0 <= operator.index(self.length) <= MOST_FRAMES:
            raise BadInput("clip", f"a length from 0 to {MOST_FRAMES} frames", self.length)

    def __len__(self) -> int:
        if self.length is not None:
            return self.length
        size, mtime = file_state(self.path)
        return count_frames(self.path, self.start, self.stop, size, mtime)

    def scan(self) -> VideoIndex:
        """Find the clip's frames in the file without decoding them; cached for the last few clips."""
        size, mtime = file_state(self.path)
        return scan_video(self.path, self.start, self.stop, size, mtime)

    def times(self) -> Times:
        """Seconds from the clip's first frame."""
        index = self.scan()
        seconds = (index.pts - index.pts[0]) * index.seconds_per_tick
        return np.asarray(seconds[: len(self)], dtype=np.float64)

    def take(self, indices: Sequence[int]) -> Images:
        """Decode the given frames, in the given order."""
        return self.take_into(indices, new_images)

    def take_into(
        self, indices: Sequence[int], allocate: Callable[[tuple[int, ...]], Images], prepare: Prepare | None = None
    ) -> Images:
        """Decode into the array `allocate(shape)`; `prepare` shrinks each image before the next is decoded.

        Indices that are not strictly increasing cost a copy.
        """
        index = self.scan()
        if not len(indices):
            return np.empty((0, 0, 0, 3), dtype=np.uint8)
        if max(indices) >= len(index.pts):
            reason = f"frame {max(indices)} was requested, and only {len(index.pts)} frames can be read"
            raise UnreadableVideo(self.path, reason)
        wanted, places = np.unique(np.asarray(indices, dtype=np.int64), return_inverse=True)
        with open_video(self.path, fresh=not index.seekable) as (container, stream):
            if index.seekable:
                frames = _decode_by_seeking(container, stream, index, wanted)
            else:
                frames = _pick_frames(_decode_all(self.path, container, stream), wanted)
            images = collect_images(self.path, rgb_images(self.path, frames, self.rotate), wanted, allocate, prepare)
        is_in_order = np.array_equal(places, np.arange(len(wanted)))
        return images if is_in_order else images[places]

    def identity(self) -> str:
        """Hash the file's content and the part of it that is visible."""
        return short_hash(file_identity(self.path).encode(), repr((self.start, self.stop, self.rotate)).encode())

    def describe(self) -> dict[str, Any]:
        """The arguments that rebuild this clip."""
        return {"path": self.path, "start": self.start, "stop": self.stop, "length": self.length, "rotate": self.rotate}


@dataclass(frozen=True)
class PackedClip:
    """A small video inside a file that holds many, as `encode_clip` made it; true times are kept elsewhere."""

    kind = "packed"
    path: str
    start: int
    """offset of its first byte"""
    size: int
    """in bytes"""
    length: int
    """in frames"""
    height: int
    width: int

    def __len__(self) -> int:
        return self.length

    def times(self) -> Times:
        """Seconds at the rate of the encoding."""
        return np.arange(self.length) / CLIP_FPS

    def take(self, indices: Sequence[int]) -> Images:
        """Decode the given frames, in the given order."""
        if not len(indices):
            return np.empty((0, 0, 0, 3), dtype=np.uint8)
        wanted, places = np.unique(np.asarray(indices, dtype=np.int64), return_inverse=True)
        name = f"{self.path} at byte {self.start}"
        try:
            with av.open(io.BytesIO(self._read()), "r") as container:
                stream = container.streams.video[0]
                stream.codec_context.thread_count = 1
                index = _scan_packets(container, stream, None, None)
                if index is None or len(index.pts) != self.length:
                    raise UnreadableVideo(name, f"it has not the {self.length} frames that were packed")
                frames = _decode_by_seeking(container, stream, index, wanted)
                images = collect_images(name, rgb_images(name, frames), wanted, new_images)
        except (av.error.FFmpegError, ValueError, IndexError) as error:
            raise UnreadableVideo(name, f"decoding stopped: {error}") from error
        return images[places, : self.height, : self.width]

    def identity(self) -> str:
        """Hash the encoded bytes."""
        return short_hash(self._read())

    def describe(self) -> dict[str, Any]:
        """The arguments that rebuild this clip."""
        return vars(self).copy()

    def _read(self) -> bytes:
        file_state(self.path)  # refuses what is not a regular file
        with open(self.path, "rb") as file:
            file.seek(self.start)
            return file.read(self.size)


# --- scanning


@dataclass(frozen=True, eq=False)
class VideoIndex:
    """Where a clip's frames are in its file."""

    pts: Ints
    """presentation time of every frame of the clip, increasing, in ticks"""
    keys: Ints
    """presentation times of the key frames that the clip needs, increasing"""
    key_dts: Ints
    """decoding times of the same key frames: the targets of seeks"""
    seconds_per_tick: float
    header_frames: int
    """number of frames in the whole file according to its header; 0 = unknown"""
    seekable: bool
    """False: times are frame counts, and the file is decoded from its start"""


@lru_cache(maxsize=64)
def scan_video(path: str, start: float | None, stop: float | None, size: int, _mtime_ns: int) -> VideoIndex:
    """Find a clip's frames. Size and modification time are part of the cache key: a replaced file is scanned again."""
    with open_video(path, fresh=start is None) as (container, stream):
        index = _scan_table(stream, size) if start is None and stop is None else None
        index = index or _scan_packets(container, stream, start, stop)
    if index is None:  # a container without usable times, such as AVI with B-frames
        with open_video(path, fresh=True) as (container, stream):
            index = _scan_frames(path, container, stream, start, stop)
    if not len(index.pts):
        raise UnreadableVideo(path, "it has no frame" if start is None else f"it has no frame after {start} s")
    return index


@lru_cache(maxsize=65_536)
def count_frames(path: str, start: float | None, stop: float | None, size: int, mtime_ns: int) -> int:
    """Count a clip's frames. Numbers are small: those of a whole dataset are kept, unlike the times of its frames."""
    return len(scan_video(path, start, stop, size, mtime_ns).pts)


def _scan_table(stream: VideoStream, size: int) -> VideoIndex | None:
    """Read the container's frame table, if it has one and decoding order is presentation order."""
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
    """Read packet headers; None if they do not give every frame its own time."""
    tick = float(stream.time_base or 0)
    # Datasets round cut points: a frame belongs to the side that it is nearer to.
    half_step = 0.5 / float(stream.average_rate or stream.guessed_rate or 30)
    first = -np.inf if start is None else (start - half_step) / tick
    last = np.inf if stop is None else (stop - half_step) / tick
    if start is not None:
        # Seeks use decoding time, which runs ahead of presentation by up to 16 frames: seek that much earlier.
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
        return None  # frames before the first key frame: only a decoder knows what happens to them
    return VideoIndex(times, key_times[:, 0], key_times[:, 1], tick, int(stream.frames), seekable=True)


def _scan_frames(
    path: str, container: InputContainer, stream: VideoStream, start: float | None, stop: float | None
) -> VideoIndex:
    """Count frames by decoding them all. The last resort: clips of such files are refused."""
    if start is not None or stop is not None:
        raise UnreadableVideo(path, "its frames have no times, so a part of it cannot be found (re-encode it as mp4)")
    count = sum(1 for _ in _decode_all(path, container, stream))
    rate = float(stream.average_rate or stream.guessed_rate or 30)
    none = np.empty(0, dtype=np.int64)
    return VideoIndex(np.arange(count), none, none, 1 / rate, int(stream.frames), seekable=False)


_last_opened = threading.local()
"""the file that this thread used last, still open: frames are counted before they are taken, and datasets keep many
episodes in one large file, so opening it for each would take longer than decoding"""


@contextmanager
def open_video(path: str, fresh: bool) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a file's first video stream for decoding on one thread.

    A container that is not `fresh` may be at any position: seek before reading.
    """
    key = (path, *file_state(path))
    container: InputContainer | None = getattr(_last_opened, "container", None)
    _last_opened.container = None
    if container is not None and (fresh or _last_opened.key != key):
        container.close()
        container = None
    container = container or _open_container(path)
    try:
        yield container, container.streams.video[0]
    except BaseException:
        container.close()
        raise
    _last_opened.key, _last_opened.container = key, container


def _open_container(path: str) -> InputContainer:
    try:
        container = av.open(path, options={"format_whitelist": CONTAINERS})
    except DECODER_ERRORS as error:
        reason = str(getattr(error, "strerror", None) or error)
        raise UnreadableVideo(path, f"it cannot be opened as a video ({reason})") from error
    if not container.streams.video:
        container.close()
        raise UnreadableVideo(path, "it has no video stream")
    if container.streams.video[0].codec_context is None:
        container.close()
        raise UnreadableVideo(path, "there is no decoder for its video")
    # Clips are decoded in parallel processes: more threads per clip only add waiting.
    container.streams.video[0].codec_context.thread_count = 1
    return container


# --- decoding


def collect_images(
    path: str,
    images: Iterator[tuple[int, Images]],
    wanted: Ints,
    allocate: Callable[[tuple[int, ...]], Images],
    prepare: Prepare | None = None,
) -> Images:
    """Put the images at the wanted positions (increasing, unique) into one array, or say why that fails."""
    out: Images | None = None
    size: tuple[int, ...] = ()
    count = 0
    try:
        for position, image in images:
            size = size or image.shape
            if image.shape != size:
                change = f"from {size[1]}x{size[0]} to {image.shape[1]}x{image.shape[0]}"
                raise UnreadableVideo(path, f"the image size changes {change} at frame {position}")
            prepared = image if prepare is None else prepare(image[None])[0]
            if out is None:
                out = allocate((len(wanted), *prepared.shape))
            out[np.searchsorted(wanted, position)] = prepared
            count += 1
    except DECODER_ERRORS as error:
        raise UnreadableVideo(path, f"decoding stopped: {error}") from error
    if out is None or count != len(wanted):
        raise UnreadableVideo(path, f"only {count} of {len(wanted)} requested frames could be decoded")
    return out


def rgb_images(path: str, frames: Iterator[tuple[int, VideoFrame]], rotate: int = 0) -> Iterator[tuple[int, Images]]:
    """Convert decoded frames to RGB."""
    reformatter = VideoReformatter()
    for position, frame in frames:
        if frame.is_corrupt:
            raise UnreadableVideo(path, f"frame {position} is damaged")
        yield position, _to_rgb(reformatter, frame, rotate)


def _decode_by_seeking(
    container: InputContainer, stream: VideoStream, index: VideoIndex, wanted: Ints
) -> Iterator[tuple[int, VideoFrame]]:
    """Decode run by run: seek to the run's key frame, feed packets up to its last wanted frame, drain the decoder."""
    wanted_pts = index.pts[wanted]
    key_of = np.searchsorted(index.keys, wanted_pts, side="right") - 1
    position_of = dict(zip(wanted_pts.tolist(), wanted.tolist(), strict=True))
    key_position = np.searchsorted(index.pts, index.keys)
    starts_run = np.ones(len(wanted), dtype=bool)
    starts_run[1:] = (np.diff(key_of) > 0) & (key_position[key_of[1:]] - wanted[:-1] > SHORT_GAP)
    context = stream.codec_context
    # Unwanted frames that no other frame refers to can be skipped; dav1d and libvpx have no such option.
    may_skip = context.name in ("h264", "hevc")
    for run in np.split(np.arange(len(wanted)), np.flatnonzero(starts_run)[1:]):
        unfed = set(wanted_pts[run].tolist())
        key = int(key_of[run[0]])
        container.seek(int(index.key_dts[key]), stream=stream)
        fed = False
        for packet in container.demux(stream):
            if not fed and packet.pts is not None and packet.pts > index.keys[key]:
                # The container's seek table points behind the key frame: start again from the beginning.
                yield from _decode_from_start(container, stream, index, wanted[run])
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


def _decode_from_start(
    container: InputContainer, stream: VideoStream, index: VideoIndex, wanted: Ints
) -> Iterator[tuple[int, VideoFrame]]:
    """Decode linearly from the first packet: slow, only for containers whose seeks cannot be trusted."""
    container.seek(int(index.key_dts[0]) - 1, stream=stream)
    stream.codec_context.skip_frame = "DEFAULT"
    missing = dict(zip(index.pts[wanted].tolist(), wanted.tolist(), strict=True))
    for packet in container.demux(stream):
        for frame in stream.codec_context.decode(packet if packet.size else None):
            if frame.pts in missing:
                yield missing.pop(frame.pts), frame
        if not missing:
            break


def _decode_all(path: str, container: InputContainer, stream: VideoStream) -> Iterator[VideoFrame]:
    try:
        yield from container.decode(stream)
    except DECODER_ERRORS as error:
        raise UnreadableVideo(path, f"decoding stopped: {error}") from error


def _pick_frames(frames: Iterator[VideoFrame], wanted: Ints) -> Iterator[tuple[int, VideoFrame]]:
    positions = set(wanted.tolist())
    for position, frame in enumerate(frames):
        if position in positions:
            yield position, frame
        if position >= int(wanted[-1]):
            return


# Several threads would take cores from the other decoders. Older PyAV, which LeRobot asks for, has no such option.
ONE_THREAD: dict[str, Any] = {"threads": 1} if "threads" in (VideoReformatter.reformat.__doc__ or "") else {}


def _to_rgb(reformatter: VideoReformatter, frame: VideoFrame, rotate: int) -> Images:
    """Convert a decoded frame to RGB, rotated as the file and the dataset ask."""
    rgb = reformatter.reformat(frame, format="rgb24", **ONE_THREAD)
    plane = rgb.planes[0]
    rows = np.frombuffer(memoryview(plane), dtype=np.uint8).reshape(rgb.height, plane.line_size)
    image = rows[:, : rgb.width * 3].reshape(rgb.height, rgb.width, 3)
    quarter_turns = round((frame.rotation + rotate) / 90) % 4
    return np.rot90(image, quarter_turns) if quarter_turns else image


# --- writing


@dataclass(frozen=True)
class Encoding:
    """How images are encoded as a video."""

    codec: str = "libx264"
    pixel_format: str = "yuv420p"
    gop: int = 10
    """frames per key frame: small numbers make random access cheap and files larger"""
    options: Mapping[str, str] = field(default_factory=lambda: {"crf": "23", "preset": "veryfast"})


SMALL = Encoding()
EXACT = Encoding("libx264rgb", "rgb24", 10, {"crf": "0", "preset": "veryfast"})
"""lossless"""
CLIP_FPS = 10.0
"""x264 spends more on frames that are shown longer: at one frame per second a clip is twice as large"""
CLIP = Encoding(
    gop=4,
    options={"crf": "18", "preset": "veryfast", "bf": "0", "sc_threshold": "0", "rc-lookahead": "0", "threads": "1"},
)
"""for frames that are read at random many times: 2.5 frames decoded for one, about 42 dB. No lookahead: with it, one
small clip in a hundred is encoded differently the next time"""


def write_video(
    path: str | Path,
    images: Iterable[Images],
    fps: float = 10.0,
    encoding: Encoding = SMALL,
    times: Sequence[float] | None = None,
) -> int:
    """Write (height, width, 3) uint8 RGB images as an mp4, atomically; return their number.

    `times` gives each frame's time in seconds instead of a fixed rate.
    """
    with atomic_file(path, sync=False) as partial, av.open(str(partial), "w", format="mp4") as container:
        return _write_frames(container, str(path), images, fps, encoding, times)


def encode_clip(images: Images, encoding: Encoding = CLIP) -> bytes:
    """Encode (n, height, width, 3) uint8 RGB images as a small mp4 in memory; `PackedClip` decodes it.

    Sides of odd length are padded by a line.
    """
    odd = [(0, side % 2) for side in images.shape[1:3]]
    even = np.pad(images, ((0, 0), *odd, (0, 0)), mode="edge")
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        _write_frames(container, "clip", even, CLIP_FPS, encoding, None)
    return file.getvalue()


def _write_frames(
    container: OutputContainer,
    name: str,
    images: Iterable[Images],
    fps: float,
    encoding: Encoding,
    times: Sequence[float] | None,
) -> int:
    count = 0
    stream: VideoStream | None = None
    for image in images:
        if stream is None:
            stream = _add_stream(container, image, fps, encoding)
        if image.shape[:2] != (stream.height, stream.width):
            expected = f"images of one size ({stream.width}x{stream.height})"
            raise BadInput(name, expected, f"{image.shape[1]}x{image.shape[0]}")
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        seconds = count / fps if times is None else times[count]
        frame.pts, frame.time_base = round(seconds * TICKS_PER_SECOND), Fraction(1, TICKS_PER_SECOND)
        container.mux(stream.encode(frame))
        count += 1
    if stream is None:
        raise BadInput(name, "at least one image", "none")
    container.mux(stream.encode(None))
    return count


def _add_stream(container: OutputContainer, image: Images, fps: float, encoding: Encoding) -> VideoStream:
    height, width = image.shape[:2]
    if encoding.pixel_format == "yuv420p" and (height % 2 or width % 2):
        raise BadInput("image size", "even numbers (yuv420p halves the colours)", f"{width}x{height}")
    rate = Fraction(fps).limit_denominator(100_000)
    stream: Any = container.add_stream(encoding.codec, rate=rate, options=dict(encoding.options))
    stream.width, stream.height, stream.pix_fmt = width, height, encoding.pixel_format
    stream.codec_context.gop_size = encoding.gop
    stream.codec_context.time_base = Fraction(1, TICKS_PER_SECOND)
    stream.time_base = Fraction(1, TICKS_PER_SECOND)
    open_encoder(stream.codec_context)
    return stream  # type: ignore[no-any-return]


def open_encoder(encoder: VideoCodecContext) -> None:
    """Open an encoder and leave this process in the schedule that it had.

    As root, SVT-AV1 gives its threads and the calling one real-time priority. Everything else on the machine would
    wait for them, and processes started later would inherit it.
    """
    if not hasattr(os, "sched_setscheduler"):  # not Linux
        encoder.open()
        return
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    encoder.open()
    if os.sched_getscheduler(0) != policy:
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # it ended
                os.sched_setscheduler(int(thread), policy, priority)
