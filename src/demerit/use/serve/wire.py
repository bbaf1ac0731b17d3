"""What client and server send each other: a JSON header and raw bytes behind it.

    4 bytes    length of the header, big-endian
    header     JSON
    the rest   the arrays and videos that the header lists, one behind the other, nothing in between

The header of `/score` and `/prefer` (`/prefer` also has "pairs": [[0, 1], ...], places in "episodes"):

    {"episodes": [{"id": "a", "instruction": "push the cup", "views": [...], "signals": [...]}]}
    a view     {"camera": "front", "video": 81234}                        a video file of so many bytes
               {"camera": "front", "shape": [40, 240, 320, 3]}            uint8 RGB images; optional: "length" and "at"
                                                                          (which of so many frames they are), "times"
    a signal   {"name": "force", "dtype": "<f4", "shape": [40, 3]}

A live frame is `{"front": [240, 320, 3]}` and the pixels of each camera. Nothing here is code, a path or an address.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.frames import RGB, Frames, Images, Indices, Times, short_hash
from demerit.data.reward import Reward
from demerit.data.untrusted import parse_json
from demerit.data.video import VideoClip
from demerit.errors import BadInput, UnreadableVideo
from demerit.models.protocol import LiveFrame, LiveReward, ModelCard

PREFIX = 4
MOST_HEADER = 4 * 1024 * 1024
MOST_SIDE, MOST_DIMENSIONS, IMAGES_DIMENSIONS = 2**31, 4, 4
DTYPES = ("|b1", "|u1", "|i1", "<i2", "<i4", "<i8", "<f4", "<f8")
"""of signals; never objects"""
Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class ServeLimits:
    """What a server accepts."""

    megabytes: int = 256
    """of one request, and of the images of a decoded video"""
    frames: int = 20_000
    """of one request"""
    pixels: int = 4096 * 4096
    """of one image"""
    decode_seconds: float = 30.0
    """for one uploaded video"""
    deadline: float = 60.0
    """seconds that a request may wait and compute"""
    waiting: int = 64
    """requests waiting for a model"""
    live: int = 256
    """live episodes at once"""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise BadInput(name, "a number above 0", value)

    @property
    def bytes(self) -> int:
        """Most bytes of one request."""
        return self.megabytes * 1024 * 1024


@dataclass(frozen=True, eq=False)
class SentFrames:
    """Images that a client sent: all frames of a camera, or some of them."""

    kind = "array"
    images: Images
    at: Indices
    """the frame that each image is, increasing"""
    seconds: Times

    def __len__(self) -> int:
        return len(self.seconds)

    def times(self) -> Times:
        """Seconds from the first frame."""
        return self.seconds

    def take(self, indices: Sequence[int]) -> Images:
        """Copy the given images; raise for a frame that was not sent."""
        wanted = np.asarray(indices, dtype=np.int64)
        places = np.searchsorted(self.at, wanted)
        known = np.append(self.at, -1)[places] == wanted
        if not known.all():
            raise UnreadableVideo("the request", f"frame {wanted[~known][0]} was not sent")
        return self.images[places]

    def identity(self) -> str:
        """Hash every pixel."""
        return short_hash(repr((self.images.shape, self.at.tolist())).encode(), self.images.tobytes())

    def describe(self) -> dict[str, Any]:
        """Raise: there is no file."""
        raise BadInput("frames", "frames that live in a file", "images that a client sent")


@dataclass(frozen=True, eq=False)
class SentEpisode:
    """An episode of a request. Its videos are not decoded yet."""

    id: str
    instruction: str
    views: Mapping[str, SentFrames | memoryview]
    """images, or the bytes of a video, by camera"""
    signals: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    def as_episode(self) -> Episode:
        """Make the episode, when its videos are decoded."""
        views = {name: Frames(view) for name, view in self.views.items() if isinstance(view, SentFrames)}
        return Episode(self.id, self.instruction, views, signals=self.signals)


# Messages


def join_message(header: Mapping[str, Any], parts: Iterable[Any] = ()) -> bytes:
    """Make a message of a header and arrays or bytes."""
    return b"".join(message_parts(header, parts))


def message_parts(header: Mapping[str, Any], parts: Iterable[Any]) -> list[Buffer]:
    """Return the parts of a message, to be sent one behind the other."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return [len(text).to_bytes(PREFIX, "big"), text, *(_as_bytes(part) for part in parts)]


def split_message(message: Buffer, what: str) -> tuple[dict[str, Any], memoryview]:
    """Return the header of a message and the bytes behind it."""
    whole = memoryview(message)
    length = int.from_bytes(whole[:PREFIX], "big")
    if len(whole) < PREFIX or length > min(MOST_HEADER, len(whole) - PREFIX):
        raise BadInput(what, "4 bytes with the length of a header (big-endian), the header and data", _describe(whole))
    header = parse_json(bytes(whole[PREFIX : PREFIX + length]), f"{what}, header")
    return header, whole[PREFIX + length :]


def _as_bytes(part: Any) -> Buffer:
    return np.ascontiguousarray(part).reshape(-1).view(np.uint8).data if isinstance(part, np.ndarray) else part


def _describe(whole: memoryview) -> str:
    return f"{len(whole)} bytes that begin with {bytes(whole[:PREFIX]).hex() or 'nothing'}"


class _ByteReader:
    """Takes arrays from the front of a message's data."""

    def __init__(self, data: memoryview, limits: ServeLimits) -> None:
        self.data, self.limits, self.frames = data, limits, 0

    def take(self, size: int, what: str) -> memoryview:
        if size > len(self.data):
            raise BadInput(what, f"{size} bytes, as the header says", f"{len(self.data)} bytes")
        found, self.data = self.data[:size], self.data[size:]
        return found

    def take_array(self, shape: Any, dtype: str, what: str) -> npt.NDArray[Any]:
        if not _is_shape(shape) or dtype not in DTYPES:
            raise BadInput(what, f"a shape and one of the dtypes {', '.join(DTYPES)}", f"{shape!r}, {dtype!r}")
        size = math.prod(shape) * np.dtype(dtype).itemsize
        return np.frombuffer(self.take(size, what), dtype).reshape(shape)

    def take_images(self, shape: Any, what: str) -> Images:
        fits = _is_shape(shape) and len(shape) == IMAGES_DIMENSIONS and shape[-1] == RGB
        if not fits or not 0 < math.prod(shape[1:3]) <= self.limits.pixels:
            expected = f"a shape [n, height, width, 3] of at most {self.limits.pixels} pixels"
            raise BadInput(what, expected, repr(shape))
        return self.take_array(shape, "|u1", what)

    def count(self, frames: int) -> None:
        self.frames += frames
        if self.frames > self.limits.frames:
            raise BadInput("request", f"at most {self.limits.frames} frames", self.frames)

    def end(self) -> None:
        if len(self.data):
            raise BadInput("request", "the bytes that the header lists", f"{len(self.data)} bytes more")


def _is_shape(shape: Any) -> bool:
    sizes = isinstance(shape, list) and len(shape) <= MOST_DIMENSIONS and all(type(side) is int for side in shape)
    return sizes and all(0 <= side < MOST_SIDE for side in shape)


# Episodes


def encode_episode(episode: Episode, card: ModelCard, largest_file: int) -> tuple[dict[str, Any], list[Any]]:
    """Describe an episode for a request: a video file as it is, other frames as the images that the model wants."""
    views: list[dict[str, Any]] = []
    parts: list[Any] = []
    for camera, frames in episode.views.items():
        view: dict[str, Any] = {"camera": camera}
        content: Any = _whole_file(frames, largest_file) if card.sees_pixels else None
        if content is not None:
            view["video"] = len(content)
        else:
            at = card.wanted(len(frames))
            content = frames.take(at) if len(at) else np.empty((0, 1, 1, RGB), np.uint8)
            view |= {"shape": list(content.shape), "length": len(frames), "times": frames.times().tolist()}
            view |= {"at": at.tolist()} if len(at) < len(frames) else {}
        views.append(view)
        parts.append(content)
    signals = []
    for name, values in episode.signals.items():
        dtype = np.asarray(values).dtype.newbyteorder("<").str
        if dtype in DTYPES and np.ndim(values) <= MOST_DIMENSIONS:
            signals.append({"name": name, "dtype": dtype, "shape": list(np.shape(values))})
            parts.append(np.asarray(values, dtype))
    return {"id": episode.id, "instruction": episode.instruction, "views": views, "signals": signals}, parts


def _whole_file(frames: Frames, largest: int) -> bytes | None:
    clip = frames.source
    if frames.indices is not None or not isinstance(clip, VideoClip) or clip != VideoClip(clip.path):
        return None
    try:
        with open(clip.path, "rb") as file:
            content = file.read(largest + 1)
    except OSError as error:
        raise UnreadableVideo(clip.path, error.strerror or str(error)) from error
    return content if len(content) <= largest else None


def read_episodes(body: Buffer, limits: ServeLimits) -> tuple[dict[str, Any], list[SentEpisode]]:
    """Read a request; raises BadInput for anything else. Images are not copied."""
    header, data = split_message(body, "request")
    reader = _ByteReader(data, limits)
    listed = _take_list(header, "episodes", "request")
    episodes = [_read_episode(facts, reader, f"episode {place}") for place, facts in enumerate(listed)]
    reader.end()
    return header, episodes


def _read_episode(facts: Any, reader: _ByteReader, what: str) -> SentEpisode:
    if not isinstance(facts, dict):
        raise BadInput(what, "an object", repr(facts))
    id, instruction = facts.get("id", "episode"), facts.get("instruction", "")
    if not isinstance(id, str) or not id.isprintable() or not id or not isinstance(instruction, str):
        raise BadInput(what, "a printable id and an instruction", f"{id!r}, {instruction!r}")
    views: dict[str, SentFrames | memoryview] = {}
    for view in _take_list(facts, "views", what):
        camera = _take_name(view, "camera", views, what)
        views[camera] = _read_view(view, reader, f"{what}, camera {camera!r}")
    signals: dict[str, npt.NDArray[Any]] = {}
    for signal in facts.get("signals", []) and _take_list(facts, "signals", what):
        name = _take_name(signal, "name", signals, what)
        signals[name] = reader.take_array(signal.get("shape"), signal.get("dtype"), f"{what}, signal {name!r}")
    return SentEpisode(id, instruction, views, signals)


def _read_view(view: dict[str, Any], reader: _ByteReader, what: str) -> SentFrames | memoryview:
    if "video" in view:
        if type(view["video"]) is not int or view["video"] < 1:
            raise BadInput(what, "a video of a number of bytes", repr(view["video"]))
        return reader.take(view["video"], what)
    images = reader.take_images(view.get("shape"), what)
    length = view.get("length", len(images))
    if type(length) is not int or length < 1:
        raise BadInput(f"{what}, length", "a number of frames, 1 or more", repr(length))
    reader.count(length)
    at = _read_numbers(view.get("at", range(len(images))), len(images), int, f"{what}, at")
    if len(at) and not (at[0] >= 0 and at[-1] < length and np.all(np.diff(at) > 0)):
        raise BadInput(f"{what}, at", f"increasing frame numbers below {length}", view.get("at"))
    times = _read_numbers(view.get("times", range(length)), length, float, f"{what}, times")
    if np.any(np.diff(times) < 0):
        raise BadInput(f"{what}, times", "seconds that do not go back", "others")
    return SentFrames(images, at.astype(np.int32), times if "times" in view else times / 10)


def _read_numbers(found: Any, count: int, kind: type[int] | type[float], what: str) -> npt.NDArray[Any]:
    is_list = isinstance(found, list | range) and len(found) == count
    if not is_list or not all(type(number) in (int, kind) for number in found):
        raise BadInput(what, f"a list of {count} numbers", "something else")
    return np.array(found, np.int64 if kind is int else np.float64)


def _take_list(facts: Mapping[str, Any], name: str, what: str) -> list[Any]:
    found = facts.get(name)
    if not isinstance(found, list) or not found:
        raise BadInput(f"{what}, {name}", "a list that is not empty", repr(found))
    return found


def _take_name(facts: Any, key: str, known: Mapping[str, Any], what: str) -> str:
    name = facts.get(key) if isinstance(facts, dict) else None
    if not isinstance(name, str) or not name or name in known:
        raise BadInput(f"{what}, {key}", "a name, each once", repr(name))
    return name


# Live frames


def encode_frame(frame: LiveFrame) -> bytes:
    """Make a message of a live frame; a single image is that of the camera with the empty name."""
    images = frame if isinstance(frame, Mapping) else {"": frame}
    for image in images.values():
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != RGB or not image.size:
            got = f"{getattr(image, 'dtype', type(image).__name__)} of shape {np.shape(image)}"
            raise BadInput("frame", "uint8 of shape (height, width, 3)", got)
    return join_message({name: list(image.shape) for name, image in images.items()}, images.values())


def read_frame(message: Buffer, limits: ServeLimits) -> LiveFrame:
    """Read a live frame; raises BadInput for anything else."""
    header, data = split_message(message, "frame")
    reader = _ByteReader(data, limits)
    shapes = {name: [1, *shape] if isinstance(shape, list) else shape for name, shape in header.items()}
    images = {name: reader.take_images(shape, f"frame, camera {name!r}")[0] for name, shape in shapes.items()}
    reader.end()
    if not images:
        raise BadInput("frame", "an image of at least one camera", "none")
    return images[""] if list(images) == [""] else images


# Answers


def encode_reward(reward: Reward) -> dict[str, Any]:
    """Return a reward as JSON values; NaN is null."""
    return {
        "model": reward.model,
        "episode": reward.episode,
        "at": reward.at.tolist(),
        "value": no_nan(reward.value),
        "success": None if reward.success is None else no_nan(reward.success),
        "why_missing": reward.why_missing,
        "given": json.loads(json.dumps(dict(reward.given), default=str), parse_constant=lambda _: None),
    }


def read_reward(facts: Mapping[str, Any]) -> Reward:
    """Read what `encode_reward` returned."""
    success = facts["success"]
    return Reward(
        facts["model"],
        facts["episode"],
        np.array(facts["at"], np.int32),
        np.array(facts["value"], np.float32),
        None if success is None else np.array(success, np.float32),
        facts["why_missing"],
        facts["given"],
    )


def encode_live(reward: LiveReward) -> dict[str, float | None]:
    """Return a live reward as JSON values; NaN is null."""
    return {name: None if value is None or math.isnan(value) else float(value) for name, value in vars(reward).items()}


def read_live(facts: Mapping[str, Any]) -> LiveReward:
    """Read what `encode_live` returned."""
    value = math.nan if facts["value"] is None else float(facts["value"])
    return LiveReward(value, facts["success"], facts["familiarity"])


def no_nan(values: Iterable[float]) -> list[float | None]:
    """Return numbers as JSON values; NaN is null."""
    return [None if math.isnan(value) else value for value in map(float, values)]
