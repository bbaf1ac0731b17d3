"""Where a video's frames are: opened files, and indexes made by reading packet headers, without decoding."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from demerit.errors import UnreadableVideo

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

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
