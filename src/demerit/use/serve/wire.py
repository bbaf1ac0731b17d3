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
The server reads it in `requests`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import RGB, Frames
from demerit.data.reward import Reward
from demerit.data.video import VideoClip
from demerit.errors import BadInput, UnreadableVideo
from demerit.models.protocol import LiveFrame, LiveReward, ModelCard

PREFIX = 4
MOST_HEADER = 4 * 1024 * 1024
NUMBERS = "biuf"
"""kinds of arrays that are sent as signals; texts and objects are not"""
Buffer = bytes | bytearray | memoryview


# Messages


def join_message(header: Mapping[str, Any], parts: Iterable[Any] = ()) -> bytes:
    """Make a message of a header and arrays or bytes."""
    return b"".join(message_parts(header, parts))


def message_parts(header: Mapping[str, Any], parts: Iterable[Any]) -> list[Buffer]:
    """Return the parts of a message, to be sent one behind the other."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return [len(text).to_bytes(PREFIX, "big"), text, *(_as_bytes(part) for part in parts)]


def split_message(message: Buffer, what: str) -> tuple[bytes, memoryview]:
    """Return the header of a message, as JSON, and the bytes behind it."""
    whole = memoryview(message)
    length = int.from_bytes(whole[:PREFIX], "big")
    if len(whole) < PREFIX or length > min(MOST_HEADER, len(whole) - PREFIX):
        got = f"{len(whole)} bytes that begin with {bytes(whole[:PREFIX]).hex() or 'nothing'}"
        raise BadInput(what, "4 bytes with the length of a header (big-endian), the header and data", got)
    return bytes(whole[PREFIX : PREFIX + length]), whole[PREFIX + length :]


def _as_bytes(part: Any) -> Buffer:
    return np.ascontiguousarray(part).reshape(-1).view(np.uint8).data if isinstance(part, np.ndarray) else part


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
    arrays = {name: np.asarray(values) for name, values in episode.signals.items()}
    arrays = {
        name: array.astype(array.dtype.newbyteorder("<"))
        for name, array in arrays.items()
        if array.dtype.kind in NUMBERS
    }
    signals = [{"name": name, "dtype": array.dtype.str, "shape": list(array.shape)} for name, array in arrays.items()]
    facts = {"id": episode.id, "instruction": episode.instruction, "views": views, "signals": signals}
    return facts, [*parts, *arrays.values()]


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


# Live frames


def encode_frame(frame: LiveFrame) -> bytes:
    """Make a message of a live frame; a single image is that of the camera with the empty name."""
    images = frame if isinstance(frame, Mapping) else {"": frame}
    for image in images.values():
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != RGB or not image.size:
            got = f"{getattr(image, 'dtype', type(image).__name__)} of shape {np.shape(image)}"
            raise BadInput("frame", "uint8 of shape (height, width, 3)", got)
    return join_message({name: list(image.shape) for name, image in images.items()}, images.values())


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
        **reward.verdict.as_dict(),
        "given": encode_given(reward.given),
    }


def encode_given(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a model noted down about an episode as JSON values; NaN is null."""
    facts: dict[str, Any] = json.loads(json.dumps(dict(given), default=str), parse_constant=lambda _: None)
    return facts


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


def encode_live(reward: LiveReward) -> dict[str, Any]:
    """Return a live reward as JSON values; NaN is null."""
    numbers = {"value": reward.value, "success": reward.success, "familiarity": reward.familiarity}
    fields = {name: None if value is None or math.isnan(value) else float(value) for name, value in numbers.items()}
    return {**fields, **reward.verdict.as_dict(), "given": encode_given(reward.given)}


def read_live(facts: Mapping[str, Any]) -> LiveReward:
    """Read what `encode_live` returned."""
    value = math.nan if facts["value"] is None else float(facts["value"])
    return LiveReward(value, facts["success"], facts["familiarity"], facts.get("given", {}))


def no_nan(values: Iterable[float]) -> list[float | None]:
    """Return numbers as JSON values; NaN is null."""
    return [None if math.isnan(value) else value for value in map(float, values)]
