"""The features of a taught model: numbers per frame, computed by a fixed network.

A `FeatureNetwork` has a tower that turns a frame and the episode's first frame into features, and a recurrent part that
follows an episode. The parts below are concatenated, camera by camera; the columns of a missing camera are NaN:

    tower     the tower's pooled vector
    change    the same minus its value at the first frame: removes the scene, keeps what happened
    recent    exponential moving average of the tower vector: robust to a single hidden frame
    places    a middle layer of the tower, by image region: less about tasks, more about positions
    moved     the same minus its value at the first frame
    hidden    the recurrent state: order, instruction and time
    outputs   the network's own progress, success and rank

All parts are causal: a frame's features never depend on later frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from demerit.data.frames import Images, Prepare
from demerit.errors import BadInput, UnknownName
from demerit.models.compact.engine import Engine, NetworkOutputs
from demerit.models.taught.reader import OUTPUTS as READ_OUTPUTS
from demerit.models.taught.reader import Reader

Features = npt.NDArray[np.float32]
PARTS = ("tower", "change", "recent", "places", "moved", "hidden", "outputs")
LOOKS = ("tower", "places")
"""the parts that say what a frame looks like; the others are about what happened"""
FADING = 0.25
"""weight of the newest frame in `recent`"""
RANK_SCALE = 4.0
"""ranks are unbounded; tanh(rank / 4) keeps them in -1..1"""
CHUNK = 256
"""frames passed to the tower at once: bounds the memory for float images"""


@runtime_checkable
class FeatureNetwork(Protocol):
    """A network that turns frames into features. Teaching never changes its weights. `Engine` is one."""

    @property
    def hash(self) -> str:
        """Hash of the weights: a head fits one network only."""
        ...

    @property
    def licence(self) -> str:
        """Licence of the weights."""
        ...

    @property
    def pooled_width(self) -> int:
        """How many of a frame's features, the first, are the pooled vector; the rest is the middle layer."""
        ...

    @property
    def prepare(self) -> Prepare:
        """Resize images; run in the decoding processes."""
        ...

    def features(self, images: Images, first: Images) -> Features:
        """Turn (n, height, width, 3) frames and the episode's first (height, width, 3) into (n, D)."""
        ...

    def follow(self, features: Features, instruction: str, state: Any = None) -> NetworkOutputs:
        """Run the recurrent part over frames in order; `state` None = the start of an episode."""
        ...


def load_network(network: FeatureNetwork | str | Path | None) -> FeatureNetwork:
    """Return a network: as given, from a folder, or (None) the one that comes with demerit."""
    if network is None:
        return Engine.load_shipped()
    return Engine.load(Path(network)) if isinstance(network, str | Path) else network


@dataclass(frozen=True)
class FeatureLayout:
    """Which columns are which part of which camera."""

    cameras: tuple[str, ...]
    parts: tuple[str, ...]
    widths: tuple[int, ...]
    """columns per part, the same for every camera"""

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.cameras) * sum(self.widths)

    def columns_of(self, parts: Sequence[str]) -> npt.NDArray[np.int32]:
        """Return the columns of some parts, of every camera."""
        chosen = np.repeat([part in parts for part in self.parts], self.widths)
        return np.flatnonzero(np.tile(chosen, len(self.cameras))).astype(np.int32)

    def scales(self, weights: Mapping[str, float]) -> npt.NDArray[np.float64]:
        """Scale columns so that a part counts by its weight and not by its width.

        The d standardised columns of a part are divided by sqrt(d), so their mean square per row is 1, and multiplied
        by the part's weight; cameras share.
        """
        share = 1 / np.sqrt(len(self.cameras))
        blocks = zip(self.parts, self.widths, strict=True)
        camera = [np.full(d, share * weights[part] / np.sqrt(max(d, 1))) for part, d in blocks]
        return np.tile(np.concatenate(camera), len(self.cameras))


def validate_parts(parts: Sequence[str]) -> tuple[str, ...]:
    """Refuse unknown parts; return the others in the order of PARTS."""
    for part in parts:
        if part not in PARTS:
            raise UnknownName("part of the features", part, PARTS)
    if not parts:
        raise BadInput("parts of the features", f"at least one of {', '.join(PARTS)}", "none")
    return tuple(part for part in PARTS if part in parts)


def part_widths(parts: Sequence[str], pooled: int, places: int, hidden: int) -> tuple[int, ...]:
    """Return the number of columns of each part."""
    widths = {**dict.fromkeys(("tower", "change", "recent"), pooled), **dict.fromkeys(("places", "moved"), places)}
    return tuple({**widths, "hidden": hidden, "outputs": 3}[part] for part in validate_parts(parts))


class FeatureStream:
    """Features of one camera of one episode, frame by frame."""

    def __init__(
        self,
        network: FeatureNetwork,
        instruction: str,
        parts: Sequence[str],
        reader: Reader | None = None,
        read_every: int = 1,
    ) -> None:
        """Start an episode; the reader reads every `read_every`-th frame, and what it said holds until the next."""
        self.network, self.instruction, self.parts = network, instruction, validate_parts(parts)
        self.reader, self._every = reader, read_every
        self._images, self._said = 0, np.zeros((1, READ_OUTPUTS))
        self._first_image: Images | None = None
        self._first: Features | None = None
        self._recent: npt.NDArray[np.float64] | None = None
        self._state: Any = None

    def embed(self, images: Images) -> Features:
        """Run the tower; the first image ever passed is the episode's first."""
        return self.embed_and_read(images)[0]

    def embed_and_read(self, images: Images) -> tuple[Features, npt.NDArray[np.float64] | None]:
        """Run the tower and, if there is one, the reader."""
        if self._first_image is None:
            self._first_image = np.array(images[0])
        parts = [
            self.network.features(images[start : start + CHUNK], self._first_image)
            for start in range(0, len(images), CHUNK)
        ]
        return np.concatenate(parts), None if self.reader is None else self._read(self.reader, images)

    def _read(self, reader: Reader, images: Images) -> npt.NDArray[np.float64]:
        assert self._first_image is not None
        due = (self._images + np.arange(len(images))) % self._every == 0
        said = np.concatenate([self._said, reader(images[due], self._first_image)]) if due.any() else self._said
        self._images, self._said = self._images + len(images), said[-1:]
        return np.asarray(said[np.cumsum(due)])

    def follow(self, tower: Features) -> Features:
        """Take the next frames' tower outputs; return all parts, a row per frame."""
        rows, self._recent, self._state = self._rows(tower)
        return rows

    def peek(self, tower: Features) -> Features:
        """Like `follow`, without changing the stream's state."""
        return self._rows(tower)[0]

    def _rows(self, tower: Features) -> tuple[Features, npt.NDArray[np.float64] | None, Any]:
        tower = np.asarray(tower, dtype=np.float32)
        if self._first is None:
            self._first = tower[:1].copy()
        recent, state = self._recent, self._state
        cut = self.network.pooled_width
        change = tower - self._first
        columns: dict[str, npt.NDArray[Any]] = {
            "tower": tower[:, :cut],
            "change": change[:, :cut],
            "places": tower[:, cut:],
            "moved": change[:, cut:],
        }
        if "recent" in self.parts:
            columns["recent"], recent = _moving_average(tower[:, :cut], recent)
        if {"hidden", "outputs"} & set(self.parts):
            outputs = self.network.follow(tower, self.instruction, state)
            columns["hidden"], state = np.asarray(outputs.hidden), outputs.state
            columns["outputs"] = _output_columns(outputs)
        return np.concatenate([columns[part] for part in self.parts], axis=1).astype(np.float32), recent, state


def stride_indices(length: int, stride: int) -> npt.NDArray[np.int32]:
    """Return the frames a model with this stride uses: 0, s, 2s ... and always the last."""
    indices = np.arange(0, length, stride, dtype=np.int32)
    return indices if not length or indices[-1] == length - 1 else np.append(indices, np.int32(length - 1))


def stream_features(stream: FeatureStream, tower: Features, at: npt.NDArray[np.int32], stride: int) -> Features:
    """Return all parts at the next frames `at`; a last frame off the stride does not change the state."""
    on_stride = int(np.count_nonzero(at % stride == 0))
    parts = [stream.follow(tower[:on_stride])] if on_stride else []
    return np.concatenate([*parts, stream.peek(tower[on_stride:])] if on_stride < len(at) else parts)


def join_cameras(rows: Sequence[Features | None]) -> Features:
    """Concatenate the features of all cameras, None = missing: NaN there.

    A frame for which the network gave no number is NaN in all cameras: it is not scored from the others.
    """
    known = [x for x in rows if x is not None]
    joined = np.concatenate([np.full_like(known[0], np.nan) if x is None else x for x in rows], axis=1)
    joined[np.any([np.isnan(x).any(axis=1) for x in known], axis=0)] = np.nan
    return joined


def mean_read(seen: Iterable[tuple[Features, npt.NDArray[np.float64] | None]]) -> npt.NDArray[np.float64] | None:
    """Return the mean over cameras of what the reader says; None when there is no reader."""
    found = [read for _, read in seen if read is not None]
    return np.mean(found, axis=0) if found else None


def _output_columns(outputs: NetworkOutputs) -> npt.NDArray[np.float64]:
    rank = np.tanh(np.asarray(outputs.rank, dtype=np.float64) / RANK_SCALE)
    columns = [np.asarray(outputs.progress, np.float64), np.asarray(outputs.success, np.float64), rank]
    return np.stack([column.reshape(-1) for column in columns], axis=1)


def _moving_average(
    tower: Features, before: npt.NDArray[np.float64] | None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """r_t = (1 - f) r_(t-1) + f x_t, starting from r_0 = x_0."""
    out = np.empty(tower.shape, dtype=np.float64)
    last = tower[0].astype(np.float64) if before is None else before
    for i, row in enumerate(tower):
        last = (1 - FADING) * last + FADING * row
        out[i] = last
    return out, last
