"""What a taught model's head sees: numbers per frame, made by a network that is not fitted.

A `FeatureMaker` is the network: a tower that looks at one picture at a time (beside the episode's first), and a
temporal part that follows an episode in order. Parts of what they give stand side by side, camera by camera:

    tower     what the tower says of the frame
    change    the same less what it said of the first frame: the scene drops out, what happened stays
    recent    the tower averaged over the last few frames, older ones fading: one hidden frame does not matter
    places    what a middle layer of the tower sees in each part of the picture: less about tasks, more about where
    moved     the same less what it was at the first frame
    hidden    the temporal part's memory: order, words and time since
    outputs   what the network itself would answer: progress, success and rank

All of them are causal: a frame's numbers never depend on later frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from demerit.data.frames import Images, Prepare
from demerit.errors import BadInput, UnknownName

Features = npt.NDArray[np.float32]
PARTS = ("tower", "change", "recent", "places", "moved", "hidden", "outputs")
FADING = 0.25
"""how much of `recent` is the newest frame"""
CALM_RANK = 4.0
"""ranks have no bounds; beyond about so much they say the same"""
CHUNK = 256
"""frames that are looked at in one go: pictures as floats never fill the memory"""


@runtime_checkable
class Followed(Protocol):
    """What the temporal part says of some frames, a row each, and the memory it ends with."""

    @property
    def progress(self) -> npt.NDArray[Any]: ...  # noqa: D102

    @property
    def success(self) -> npt.NDArray[Any]: ...  # noqa: D102

    @property
    def rank(self) -> npt.NDArray[Any]: ...  # noqa: D102

    @property
    def hidden(self) -> npt.NDArray[Any]: ...  # noqa: D102

    @property
    def state(self) -> Any: ...  # noqa: D102


@runtime_checkable
class FeatureMaker(Protocol):
    """A network that turns frames into numbers. It is never fitted while teaching."""

    @property
    def hash(self) -> str:
        """Identify the weights: what was taught on one network means nothing on another."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """Revision, licence and what it was trained on, for the card of whatever is taught on it."""
        ...

    @property
    def vector(self) -> int:
        """How many of a frame's numbers, the first, are the tower's vector; the rest is a middle layer's, by place."""
        ...

    @property
    def prepare(self) -> Prepare:
        """Make pictures as small as the tower wants them: done where they are decoded."""
        ...

    def features(self, images: Images, first: Images) -> Features:
        """Look at (n, height, width, 3) frames beside the episode's first (height, width, 3): (n, D) numbers."""
        ...

    def follow(self, features: Features, instruction: str, state: Any = None) -> Followed:
        """Follow frames in order from a memory on; None is the beginning of an episode."""
        ...


@dataclass(frozen=True)
class Layout:
    """Which numbers stand where: blocks of columns, camera by camera."""

    cameras: tuple[str, ...]
    parts: tuple[str, ...]
    widths: tuple[int, ...]
    """columns of each part, the same for every camera"""

    @property
    def width(self) -> int:
        """How many columns there are."""
        return len(self.cameras) * sum(self.widths)

    def scales(self, weights: Mapping[str, float]) -> npt.NDArray[np.float64]:
        """Weigh the columns so that a part counts by its weight and not by how many columns it has.

        Standardised columns of a part with d of them are divided by sqrt(d), so that its rows have a mean square of 1,
        and multiplied by the part's weight; the cameras share.
        """
        share = 1 / np.sqrt(len(self.cameras))
        blocks = zip(self.parts, self.widths, strict=True)
        one = [np.full(d, share * weights[part] / np.sqrt(max(d, 1))) for part, d in blocks]
        return np.tile(np.concatenate(one), len(self.cameras))


def checked_parts(parts: Sequence[str]) -> tuple[str, ...]:
    """Refuse parts that nobody makes; order them as they stand."""
    for part in parts:
        if part not in PARTS:
            raise UnknownName("part of the features", part, PARTS)
    if not parts:
        raise BadInput("parts of the features", f"at least one of {', '.join(PARTS)}", "none")
    return tuple(part for part in PARTS if part in parts)


class Stream:
    """One camera of one episode, followed in order."""

    def __init__(self, maker: FeatureMaker, instruction: str, parts: Sequence[str]) -> None:
        """Begin an episode."""
        self.maker, self.instruction, self.parts = maker, instruction, checked_parts(parts)
        self._first_image: Images | None = None
        self._first: Features | None = None
        self._recent: npt.NDArray[np.float64] | None = None
        self._state: Any = None

    def look(self, images: Images) -> Features:
        """Turn frames into the tower's numbers; the first frame ever seen is the one that the others stand beside."""
        if self._first_image is None:
            self._first_image = np.array(images[0])
        parts = [
            self.maker.features(images[start : start + CHUNK], self._first_image)
            for start in range(0, len(images), CHUNK)
        ]
        return np.concatenate(parts)

    def follow(self, tower: Features) -> Features:
        """Take the next frames' tower numbers; return all parts, a row a frame."""
        rows, self._recent, self._state = self._rows(tower)
        return rows

    def peek(self, tower: Features) -> Features:
        """The same for frames that are looked at out of turn: nothing is remembered of them."""
        return self._rows(tower)[0]

    def _rows(self, tower: Features) -> tuple[Features, npt.NDArray[np.float64] | None, Any]:
        tower = np.asarray(tower, dtype=np.float32)
        if self._first is None:
            self._first = tower[:1].copy()
        recent, state = self._recent, self._state
        cut = self.maker.vector
        change = tower - self._first
        made: dict[str, npt.NDArray[Any]] = {
            "tower": tower[:, :cut],
            "change": change[:, :cut],
            "places": tower[:, cut:],
            "moved": change[:, cut:],
        }
        if "recent" in self.parts:
            made["recent"], recent = _faded(tower[:, :cut], recent)
        if {"hidden", "outputs"} & set(self.parts):
            followed = self.maker.follow(tower, self.instruction, state)
            made["hidden"], state = np.asarray(followed.hidden), followed.state
            made["outputs"] = outputs(followed)
        return np.concatenate([made[part] for part in self.parts], axis=1).astype(np.float32), recent, state


def outputs(followed: Followed) -> npt.NDArray[np.float64]:
    """Progress, success and rank side by side, each within a few units."""
    rank = np.tanh(np.asarray(followed.rank, dtype=np.float64) / CALM_RANK)
    columns = [np.asarray(followed.progress, np.float64), np.asarray(followed.success, np.float64), rank]
    return np.stack([column.reshape(-1) for column in columns], axis=1)


def widths_of(parts: Sequence[str], vector: int, places: int, hidden: int) -> tuple[int, ...]:
    """How many columns each part has."""
    by_place = dict.fromkeys(("places", "moved"), places)
    known = {**dict.fromkeys(("tower", "change", "recent"), vector), **by_place, "hidden": hidden, "outputs": 3}
    return tuple(known[part] for part in checked_parts(parts))


def beats(length: int, stride: int) -> npt.NDArray[np.int32]:
    """Frames that a model with this stride looks at: 0, s, 2s ... and always the last, perhaps out of turn."""
    on = np.arange(0, length, stride, dtype=np.int32)
    return on if not length or on[-1] == length - 1 else np.append(on, np.int32(length - 1))


def followed_rows(stream: Stream, tower: Features, length: int, stride: int) -> Features:
    """All parts at the frames of `beats`: the last one is only peeked at where it is out of turn."""
    in_turn = len(range(0, length, stride))
    rows = stream.follow(tower[:in_turn])
    return rows if in_turn == len(tower) else np.concatenate([rows, stream.peek(tower[in_turn:])])


def _faded(
    tower: Features, before: npt.NDArray[np.float64] | None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Average by r_t = (1 - f) r_(t-1) + f x_t, from r_0 = x_0 on."""
    out = np.empty(tower.shape, dtype=np.float64)
    last = tower[0].astype(np.float64) if before is None else before
    for i, row in enumerate(tower):
        last = (1 - FADING) * last + FADING * row
        out[i] = last
    return out, last
