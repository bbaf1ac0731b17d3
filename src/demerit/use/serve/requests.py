"""What clients sent, read by the server: episodes and live frames within its limits, anything else is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from demerit.data.episode import Episode
from demerit.data.frames import Frames, Images
from demerit.errors import BadInput
from demerit.models.protocol import LiveFrame
from demerit.use.serve.wire import Buffer, split_message
from demerit.web.uploads import SentFrames, ServeLimits

MOST_SIDE = 2**31
Name = Annotated[str, StringConstraints(min_length=1)]
Side = Annotated[int, Field(ge=0, lt=MOST_SIDE)]
Length = Annotated[int, Field(ge=1, lt=MOST_SIDE)]


class _Facts(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class ViewFacts(_Facts):
    """A camera of an episode in a request's header."""

    camera: Name
    video: PositiveInt | None = None
    shape: tuple[Side, Length, Length, Literal[3]] | None = None
    length: Length | None = None
    at: list[Side] | None = None
    times: list[float] | None = None


class SignalFacts(_Facts):
    """A signal of an episode in a request's header."""

    name: Name
    dtype: Literal["|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8"]
    shape: Annotated[list[Side], Field(max_length=4)]


class EpisodeFacts(_Facts):
    """An episode in a request's header."""

    id: Name = "episode"
    instruction: str = ""
    views: Annotated[list[ViewFacts], Field(min_length=1)]
    signals: list[SignalFacts] = []


class RequestFacts(_Facts):
    """A request's header."""

    episodes: Annotated[list[EpisodeFacts], Field(min_length=1)]
    pairs: list[tuple[NonNegativeInt, NonNegativeInt]] = []


FrameFacts = Annotated[dict[str, tuple[Length, Length, Literal[3]]], Field(min_length=1)]
"""a live frame's header"""
REQUEST, FRAME = TypeAdapter(RequestFacts), TypeAdapter[dict[str, tuple[int, int, Literal[3]]]](FrameFacts)
FactsT = TypeVar("FactsT")


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


def read_episodes(body: Buffer, limits: ServeLimits) -> tuple[list[SentEpisode], list[tuple[int, int]]]:
    """Return the episodes and the pairs of a request; images are not copied. Raises BadInput."""
    header, data = split_message(body, "request")
    facts, reader = _validate(REQUEST, header, "request"), _DataReader(data, limits)
    episodes = [reader.take_episode(episode) for episode in facts.episodes]
    reader.end()
    if any(place >= len(episodes) for pair in facts.pairs for place in pair):
        raise BadInput("request, pairs", f"places below {len(episodes)}", facts.pairs)
    return episodes, facts.pairs


def read_frame(message: Buffer, limits: ServeLimits) -> LiveFrame:
    """Return a live frame. Raises BadInput."""
    header, data = split_message(message, "frame")
    shapes, reader = _validate(FRAME, header, "frame"), _DataReader(data, limits)
    images = {name: reader.take_images((1, *shape))[0] for name, shape in shapes.items()}
    reader.end()
    return images[""] if list(images) == [""] else images


def _validate(kind: TypeAdapter[FactsT], header: bytes, what: str) -> FactsT:
    try:
        return kind.validate_json(header, strict=True)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, fault['loc'])) or 'header'}: {fault['msg']}" for fault in error.errors()[:3]]
        raise BadInput(what, "a header as docs/serve.md describes it", "; ".join(wrong)) from None


class _DataReader:
    """Takes what a header lists from the front of the data."""

    def __init__(self, data: memoryview, limits: ServeLimits) -> None:
        self._data, self._limits, self._frames, self._videos = data, limits, 0, 0

    def take(self, size: int) -> memoryview:
        if size > len(self._data):
            raise BadInput("data", f"{size} bytes more, as the header says", f"{len(self._data)} bytes")
        front, self._data = self._data[:size], self._data[size:]
        return front

    def take_array(self, shape: Sequence[int], dtype: str) -> npt.NDArray[Any]:
        data = np.frombuffer(self.take(math.prod(shape) * np.dtype(dtype).itemsize), dtype)
        try:
            return data.reshape(shape)
        except ValueError:  # empty, and the other sides are too long for an array
            raise BadInput("data", "the shape of an array", shape) from None

    def take_images(self, shape: tuple[int, int, int, int]) -> Images:
        if shape[1] * shape[2] > self._limits.pixels:
            raise BadInput("images", f"at most {self._limits.pixels} pixels each", shape)
        return self.take_array(shape, "|u1")

    def take_episode(self, facts: EpisodeFacts) -> SentEpisode:
        views = {view.camera: self._take_view(view) for view in facts.views}
        signals = {signal.name: self.take_array(signal.shape, signal.dtype) for signal in facts.signals}
        if len(views) < len(facts.views) or len(signals) < len(facts.signals):
            raise BadInput("episode", "each camera and signal once", facts.id)
        return SentEpisode(facts.id, facts.instruction, views, signals)

    def _take_view(self, view: ViewFacts) -> SentFrames | memoryview:
        if view.video is not None:
            self._videos += 1
            if self._videos > self._limits.videos:
                raise BadInput("request", f"at most {self._limits.videos} videos", "more")
            return self.take(view.video)
        if view.shape is None:
            raise BadInput(f"camera {view.camera!r}", "a video or the shape of images", "neither")
        images = self.take_images(view.shape)
        length = len(images) if view.length is None else view.length
        self._frames += length
        if not 0 < self._frames <= self._limits.frames:
            raise BadInput("request", f"1 to {self._limits.frames} frames", self._frames)
        at = np.arange(len(images)) if view.at is None else np.array(view.at, np.int64)
        if len(at) != len(images) or bool(np.any(np.diff(at) <= 0)) or bool(np.any(at >= length)):
            raise BadInput(f"camera {view.camera!r}, at", f"{len(images)} increasing numbers below {length}", view.at)
        times = np.arange(length) / 10 if view.times is None else np.array(view.times, np.float64)
        if len(times) != length or bool(np.any(np.diff(times) < 0)):
            raise BadInput(f"camera {view.camera!r}, times", f"{length} seconds that do not go back", len(times))
        return SentFrames(images, at.astype(np.int32), times)

    def end(self) -> None:
        if len(self._data):
            raise BadInput("data", "the bytes that the header lists", f"{len(self._data)} bytes more")
