"""The cameras of a bag: frames decoded on request from the messages of a topic.

    sensor_msgs Image                          rgb8 bgr8 rgba8 bgra8 mono8
    sensor_msgs or foxglove CompressedImage    JPEG, PNG, WebP
    foxglove CompressedVideo                   h264 h265 vp9 av1, a frame per message

A camera beside the main one shows, at each frame of the main camera, its own frame that is nearest in time: all cameras
of an episode have the same length and times.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

from demerit.data.arrays import Ints
from demerit.data.formats.bag_file import BagError, BagFile, bag_state, open_bag
from demerit.data.frames import Images, Prepare, Times, file_identity, new_images, short_hash
from demerit.data.video import SHORT_GAP, collect_images, rgb_images
from demerit.errors import UnreadableVideo

CAMERA_TYPES = {
    "sensor_msgs/msg/Image": "raw",
    "sensor_msgs/msg/CompressedImage": "picture",
    "foxglove_msgs/msg/CompressedImage": "picture",
    "foxglove.CompressedImage": "picture",
    "foxglove_msgs/msg/CompressedVideo": "video",
    "foxglove.CompressedVideo": "video",
}
"""message types that are cameras, and how their images are stored"""
CHANNELS = {"rgb8": (0, 1, 2), "bgr8": (2, 1, 0), "rgba8": (0, 1, 2), "bgra8": (2, 1, 0), "mono8": (0, 0, 0)}
"""encodings of raw images: where red, green and blue are"""
PICTURES = ("JPEG", "PNG", "WEBP")
CODECS = {"h264": "h264", "h265": "hevc", "hevc": "hevc", "vp9": "vp9", "av1": "libdav1d"}
KEY_UNITS = {
    "h264": re.compile(rb"\x00\x00\x01[\x05\x25\x45\x65]"),
    "hevc": re.compile(rb"\x00\x00\x01[\x20-\x2b]"),
}
"""the start of a picture that needs no other, in codecs of NAL units"""
MICROSECOND = 1e-6


@dataclass(frozen=True, eq=False)
class CameraTrack:
    """The messages of a camera, oldest first."""

    received: Ints
    """nanoseconds, increasing"""
    stamps: Ints
    """nanoseconds by the headers"""
    keys: npt.NDArray[np.bool_]
    """whether the image needs no other: true but for most frames of a video"""

    def clock(self, name: str) -> Ints:
        """The times of a clock: header or receive."""
        return self.stamps if name == "header" else self.received

    def cut(self, first: int, last: int) -> CameraTrack:
        """Return the messages received from `first` to `last`."""
        kept = (self.received >= first) & (self.received <= last)
        return CameraTrack(self.received[kept], self.stamps[kept], self.keys[kept])

    def key_before(self, at: int) -> int:
        """The receive time of the last image that needs no other, up to a time; else of the first one after it."""
        keys = self.received[self.keys]
        return int(keys[max(0, int(np.searchsorted(keys, at, side="right")) - 1)])


@dataclass(frozen=True, eq=False)
class BagIndex:
    """Where the frames of a camera are."""

    track: CameraTrack
    at: Ints
    """the message of each frame"""
    times: Times
    """seconds from the first frame"""


def index_frames(track: CameraTrack, main: CameraTrack, first: int, last: int, clock: str) -> BagIndex:
    """Find a camera's frames at those that the main camera received from `first` to `last`."""
    shown = np.flatnonzero((main.received >= first) & (main.received <= last))
    moments = main.clock(clock)[shown]
    steps = np.arange(len(shown)) * MICROSECOND
    times = np.maximum.accumulate((moments - moments[:1]) / 1e9 - steps) + steps  # equal stamps become increasing
    if track is main:
        return BagIndex(track, shown, times)
    order = np.argsort(track.clock(clock), kind="stable")
    own = track.clock(clock)[order]
    after = np.clip(np.searchsorted(own, moments), 1, max(1, len(own) - 1))
    is_before = np.abs(moments - own[after - 1]) <= np.abs(own[np.minimum(after, len(own) - 1)] - moments)
    return BagIndex(track, order[np.minimum(after - is_before, len(own) - 1)], times)


@dataclass(frozen=True)
class BagFrames:
    """The images of a topic while the main camera received frames from `first` to `last`."""

    kind = "bag"
    path: str
    topic: str
    first: int
    """receive time, nanoseconds"""
    last: int
    key: int
    """receive time of the message from which the first frame can be decoded"""
    clock: str = "header"
    main: str = ""
    """the main camera's topic; empty = this one"""
    index: BagIndex | None = field(default=None, compare=False, repr=False)
    """found by whoever read the bag; None = read that part of the bag again"""

    def __len__(self) -> int:
        return len(self.scan().at)

    @property
    def files(self) -> list[str]:
        """The files of the bag."""
        try:
            return [file for file, _, _ in bag_state(self.path)]
        except BagError as error:
            raise UnreadableVideo(self.path, str(error)) from error

    def scan(self) -> BagIndex:
        """Find the frames without decoding them; cached for the last few clips."""
        if self.index is not None:
            return self.index
        try:
            span = (self.first, self.last, self.key)
            return _scan_clip(self.path, self.topic, self.main or self.topic, span, self.clock, bag_state(self.path))
        except BagError as error:
            raise UnreadableVideo(self.path, str(error)) from error

    def times(self) -> Times:
        """Seconds from the first frame."""
        return self.scan().times

    def take(self, indices: Sequence[int]) -> Images:
        """Decode the given frames, in the given order."""
        return self.take_into(indices, new_images)

    def take_into(
        self, indices: Sequence[int], allocate: Callable[[tuple[int, ...]], Images], prepare: Prepare | None = None
    ) -> Images:
        """Decode into the array `allocate(shape)`; `prepare` shrinks each image before the next is decoded."""
        index = self.scan()
        if not len(indices):
            return new_images((0, 0, 0, 3))
        if max(indices) >= len(index.at):
            reason = f"frame {max(indices)} was requested, and only {len(index.at)} frames are there"
            raise UnreadableVideo(self.path, reason)
        wanted, places = np.unique(index.at[np.asarray(indices, dtype=np.int64)], return_inverse=True)
        try:
            with open_bag(self.path) as bag:
                images = collect_images(
                    self.path, _decode_messages(bag, self.topic, index.track, wanted), wanted, allocate, prepare
                )
        except (BagError, OSError, SyntaxError, AttributeError, TypeError) as error:
            raise UnreadableVideo(self.path, f"{self.topic}: {error}") from error
        return images if np.array_equal(places, np.arange(len(wanted))) else images[places]

    def identity(self) -> str:
        """Hash the identities of the files and the part of the topic that is visible."""
        span = repr((self.topic, self.first, self.last, self.clock, self.main))
        return short_hash(*(file_identity(file).encode() for file in self.files), span.encode())

    def describe(self) -> dict[str, Any]:
        """The arguments that rebuild these frames."""
        return {name: value for name, value in vars(self).items() if name != "index"}


@lru_cache(maxsize=64)
def _scan_clip(
    path: str, topic: str, main: str, span: tuple[int, int, int], clock: str, _state: tuple[Any, ...]
) -> BagIndex:
    first, last, key = span
    builders = {name: TrackBuilder() for name in (topic, main)}
    with open_bag(path) as bag:
        if missing := [name for name in builders if name not in bag.topics]:
            raise BagError(f"it has no topic {missing[0]}")
        for at, name, data in bag.messages(list(builders), min(first, key), last + 1):
            if at >= (key if name == topic else first):
                builders[name].add(at, bag.decode(name, data), CAMERA_TYPES.get(bag.topics[name].type, ""))
    tracks = {name: builder.build() for name, builder in builders.items()}
    if not all(len(track.received) for track in tracks.values()):
        raise BagError(f"it has no image of {topic} there")
    return index_frames(tracks[topic], tracks[main], first, last, clock)


class TrackBuilder:
    """Collects the messages of a camera."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, bool]] = []
        self.refused: dict[str, int] = {}
        """images that cannot be decoded, by what is wrong with them"""

    def add(self, at: int, message: Any, stored: str) -> None:
        """Add a message; `stored` is a value of CAMERA_TYPES."""
        reason, is_key = "", True
        if stored == "raw":
            reason = "" if message.encoding in CHANNELS else f"encoding {message.encoding!r}"
        elif stored == "video":
            reason = "" if message.format in CODECS else f"format {message.format!r}"
            is_key = not reason and _is_key(CODECS[message.format], _bytes(message.data))
            if not reason and not is_key and not self._rows:
                reason = "before the first key frame"
        elif "compressedDepth" in message.format:
            reason = "format compressedDepth"
        if reason:
            self.refused[reason] = self.refused.get(reason, 0) + 1
        else:
            stamp = read_stamp(message)
            self._rows.append((at, at if stamp is None else stamp, is_key))

    def build(self) -> CameraTrack:
        """Return the track."""
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, 3)
        return CameraTrack(rows[:, 0], rows[:, 1], rows[:, 2].astype(bool))


def read_stamp(message: Any) -> int | None:
    """Read the time in a message's header, in nanoseconds; None = it has none."""
    stamp = getattr(getattr(message, "header", None), "stamp", None) or getattr(message, "timestamp", None)
    if stamp is None:
        return None
    return int(stamp.sec) * 10**9 + int(stamp.nanosec if hasattr(stamp, "nanosec") else stamp.nsec)


def _decode_messages(bag: BagFile, topic: str, track: CameraTrack, wanted: Ints) -> Iterator[tuple[int, Images]]:
    """Decode run by run: from the key frame of a run's first wanted frame to its last one."""
    is_video = CAMERA_TYPES.get(bag.topics[topic].type) == "video"
    starts = np.maximum.accumulate(np.where(track.keys, np.arange(len(track.keys)), 0))[wanted]
    breaks = np.flatnonzero(starts[1:] - wanted[:-1] > SHORT_GAP) + 1
    for run, run_starts in zip(np.split(wanted, breaks), np.split(starts, breaks), strict=True):
        messages = _read_run(bag, topic, track.received, int(run_starts[0]), int(run[-1]))
        places = set(run.tolist())
        if is_video:
            yield from rgb_images(topic, _decode_video(messages, places))
        else:
            yield from ((place, decode_image(message)) for place, message in messages if place in places)


def _read_run(bag: BagFile, topic: str, received: Ints, start: int, stop: int) -> Iterator[tuple[int, Any]]:
    """Stream the messages from place `start` to `stop`; several may have been received at the same nanosecond."""
    place = int(np.searchsorted(received, received[start]))
    for at, _, data in bag.messages([topic], int(received[start]), int(received[stop]) + 1):
        if place > stop:
            return
        if at != received[place]:
            raise BagError("its messages have changed since they were indexed")
        if place >= start:
            yield place, bag.decode(topic, data)
        place += 1


def _decode_video(messages: Iterator[tuple[int, Any]], chosen: set[int]) -> Iterator[tuple[int, Any]]:
    context: Any = None
    for place, message in messages:
        if context is None:
            context = av.CodecContext.create(CODECS[message.format], "r")
            context.thread_count = 1  # clips are decoded in parallel processes
        if context.name in KEY_UNITS:  # frames that no other refers to can be skipped
            context.skip_frame = "DEFAULT" if place in chosen else "NONREF"
        packet = av.Packet(_bytes(message.data))
        packet.pts = place
        yield from ((frame.pts, frame) for frame in context.decode(packet) if frame.pts in chosen)
    if context is not None:
        yield from ((frame.pts, frame) for frame in context.decode(None) if frame.pts in chosen)


def decode_image(message: Any) -> Images:
    """Decode a raw or compressed image: (height, width, 3) uint8 RGB."""
    if not hasattr(message, "encoding"):
        with Image.open(io.BytesIO(_bytes(message.data)), formats=PICTURES) as image:
            return np.asarray(image.convert("RGB"))
    if message.encoding not in CHANNELS:
        raise ValueError(f"an image has the encoding {message.encoding!r}")
    depth = {"mono8": 1, "rgba8": 4, "bgra8": 4}.get(message.encoding, 3)
    rows = np.frombuffer(_bytes(message.data), np.uint8)[: message.height * message.step]
    pixels = rows.reshape(message.height, message.step)[:, : message.width * depth]
    return pixels.reshape(message.height, message.width, depth)[..., CHANNELS[message.encoding]]


def _is_key(codec: str, data: bytes) -> bool:
    """Whether a frame of a video can be decoded without others."""
    if codec in KEY_UNITS:
        return KEY_UNITS[codec].search(data) is not None
    if codec == "vp9":  # frame marker 2 bits, profile 2 bits, existing frame shown, not a key frame
        return len(data) > 0 and data[0] & 0b1100 == 0
    rest = data[2:] if data[:1] == b"\x12" else data  # AV1: a temporal delimiter may come first
    return len(rest) > 0 and rest[0] >> 3 & 15 == 1  # a sequence header


def _bytes(data: Any) -> bytes:
    return base64.b64decode(data) if isinstance(data, str) else bytes(data)
