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

A `Reader` is a small network on larger images, trained by `demerit teach` and run without torch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from demerit.data.frames import IMAGES_DIMENSIONS, RGB, Images, Prepare, short_hash
from demerit.errors import BadInput, UnknownName
from demerit.models.compact.engine import (
    CHUNK,
    Engine,
    NetworkOutputs,
    Shapes,
    count_cores,
    load_session,
    open_session,
    resize_square,
)
from demerit.models.loading import read_listed

Features = npt.NDArray[np.float32]
PARTS = ("tower", "change", "recent", "places", "moved", "hidden", "outputs")
SIGNALS = "signals"
"""a further part, in every camera's block so that cameras share its weight: see `demerit.models.signals`"""
LOOKS = ("tower", "places")
"""the parts that say what a frame looks like; the others are about what happened"""
FADING = 0.25
"""weight of the newest frame in `recent`"""
RANK_SCALE = 4.0
"""ranks are unbounded; tanh(rank / 4) keeps them in -1..1"""
SHIPPED_TOWER, NO_TOWER = "droid", "none"
"""the second tower that comes with demerit, trained on real demonstrations; and no second tower"""
MEAN, DEVIATION = (np.array(channels, np.float32) for channels in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
"""ImageNet's, which other encoders expect"""
MATRIX, TOKENS, REGIONS = 2, 3, 4


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


def load_network(network: FeatureNetwork | str | Path | None, tower: Tower | None = None) -> FeatureNetwork:
    """Return a network: as given, from a folder, or (None) the one that comes with demerit; with a second tower."""
    if network is not None and not isinstance(network, str | Path):
        return network
    engine = Engine.load_shipped() if network is None else Engine.load(Path(network))
    return engine if tower is None else PairedNetwork(engine, tower)


class Tower:
    """A second tower: an ONNX graph from one image to features, whatever it was trained on.

    Its own format has the input `frames`, (n, side, side, 3) uint8, the output `features`, (n, D), and says in its
    metadata how many of them are the pooled vector. Any other encoder needs one input of (n, 3, side, side) floats,
    ImageNet's way; its first output is a vector (n, D), tokens (n, t, D) or a map (n, D, h, w) or (n, h, w, D).
    """

    def __init__(self, content: bytes, path: Path) -> None:
        """Open a graph; `path` is where it comes from, for messages."""
        self.content = content
        self._session = load_session(content, path)
        inputs, self._name = self._session.get_inputs(), self._session.get_outputs()[0].name
        facts = self._session.get_modelmeta().custom_metadata_map
        self.licence = facts.get("licence", "unknown")
        shape = inputs[0].shape if len(inputs) == 1 and len(inputs[0].shape) == IMAGES_DIMENSIONS else [0] * 4
        self._is_own = bool(inputs) and inputs[0].type == "tensor(uint8)"
        count, high, wide, colours = shape if self._is_own else (shape[0], *shape[2:], shape[1])
        if isinstance(count, int) or high != wide or not isinstance(high, int) or colours != RGB:
            listing = ", ".join(f"{node.name} {node.type} {node.shape}" for node in inputs)
            raise BadInput(str(path), "one input of any number of square RGB images, (n, 3, side, side)", listing)
        self._input, self.side = inputs[0].name, high
        try:
            vector, places = self._split(self._run(np.zeros((1, high, wide, RGB), np.uint8)))
            self.pooled = int(facts.get("pooled", vector.shape[1])) if self._is_own else vector.shape[1]
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            raise BadInput(str(path), "an encoder of images: a vector, tokens or a map of each", error) from error
        self.width = vector.shape[1] + places.shape[1]

    @property
    def sha256(self) -> str:
        """Hash of the graph."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def is_shipped(self) -> bool:
        """Whether it is the one that comes with demerit, which models need not carry."""
        return self.content == shipped_tower().read_bytes()

    @classmethod
    def load(cls, name: str | Path, sha256: str = "") -> Tower | None:
        """Return the tower that comes with demerit (`droid`), none (`none`), or that of a file, of this hash if any."""
        if name == NO_TOWER:
            return None
        path = shipped_tower() if name == SHIPPED_TOWER else Path(name)
        if not path.is_file():
            raise BadInput("tower", f"{SHIPPED_TOWER}, {NO_TOWER}, an ONNX file or a model's folder", repr(str(name)))
        return cls(read_listed(path, sha256) if sha256 else path.read_bytes(), path)

    def __call__(self, images: Images) -> Features:
        """Turn (n, height, width, 3) images into (n, width): the pooled vector, then places."""
        if not len(images):
            return np.empty((0, self.width), np.float32)
        return np.concatenate(self._split(self._run(images)), axis=1)

    def _run(self, images: Images) -> npt.NDArray[np.float32]:
        small = np.ascontiguousarray(resize_square(images, self.side))
        pixels = small if self._is_own else ((small / np.float32(255) - MEAN) / DEVIATION).transpose(0, 3, 1, 2)
        return np.asarray(self._session.run([self._name], {self._input: pixels})[0], dtype=np.float32)

    def _split(self, output: npt.NDArray[np.float32]) -> tuple[Features, Features]:
        """Return the pooled vector, and the mean of each of 4 x 4 regions where the graph gives more than a vector."""
        empty = np.empty((len(output), 0), np.float32)
        if output.ndim == MATRIX:
            return output, empty
        if output.ndim == IMAGES_DIMENSIONS:
            square = output.shape[1] == output.shape[2]
            grid = output if square else output.transpose(0, 2, 3, 1)
        elif output.ndim == TOKENS:
            side = math.isqrt(output.shape[1])
            grid = output[:, output.shape[1] - side * side :].reshape(len(output), side, side, -1)
        else:
            raise ValueError(f"shape {output.shape}")
        if grid.shape[1] < REGIONS or grid.shape[2] < REGIONS:
            return grid.mean(axis=(1, 2)), empty
        rows = [part.mean(axis=1) for part in np.array_split(grid, REGIONS, axis=1)]
        cells = [part.mean(axis=1) for row in rows for part in np.array_split(row, REGIONS, axis=1)]
        return grid.mean(axis=(1, 2)), np.concatenate(cells, axis=1)


class PairedNetwork:
    """The network with a second tower beside its own: pooled vectors together, then places together."""

    def __init__(self, engine: Engine, tower: Tower) -> None:
        """Combine both."""
        self.engine, self.tower, self.seen = engine, tower, engine.seen
        cut, pooled, whole = engine.pooled_width, tower.pooled, engine.info.features
        self.own = np.array([*range(cut), *range(cut + pooled, whole + pooled)])
        """the columns of the engine's own tower"""
        self._pool = ThreadPoolExecutor(count_cores(), thread_name_prefix="demerit-towers")

    @property
    def hash(self) -> str:
        """Hash of the weights of both."""
        return short_hash(self.engine.hash.encode(), self.tower.sha256.encode())

    @property
    def licence(self) -> str:
        """Licences of both."""
        return " and ".join(dict.fromkeys((self.engine.licence, self.tower.licence)))

    @property
    def pooled_width(self) -> int:
        """How many of a frame's features, the first, are pooled vectors."""
        return self.engine.pooled_width + self.tower.pooled

    @property
    def prepare(self) -> Prepare:
        """Resize images to the larger of the two sizes; run in the decoding processes."""
        return partial(resize_square, side=max(self.engine.info.size, self.tower.side))

    def features(self, images: Images, first: Images) -> Features:
        """Turn (n, height, width, 3) frames and the episode's first (height, width, 3) into (n, D)."""
        small = resize_square(first[None], self.engine.info.size)[0]
        cut, pooled = self.engine.pooled_width, self.tower.pooled

        def run(chunk: Images) -> Features:
            if self.tower.side == len(small):
                chunk = resize_square(chunk, len(small))  # once for both
            own, other = self.engine.features(chunk, small), self.tower(chunk)
            return np.concatenate([own[:, :cut], other[:, :pooled], own[:, cut:], other[:, pooled:]], axis=1)

        chunks = [images[start : start + CHUNK] for start in range(0, len(images), CHUNK)]
        none = np.empty((0, len(self.own) + self.tower.width), np.float32)
        return np.concatenate([none, *self._pool.map(run, chunks)])

    def follow(self, features: Features, instruction: str, state: Any = None) -> NetworkOutputs:
        """Run the engine's recurrent part on the features of its own tower."""
        return self.engine.follow(features[:, self.own], instruction, state)


def find_engine(network: FeatureNetwork) -> Engine | None:
    """Return the compact network inside; None where there is none."""
    engine = network.engine if isinstance(network, PairedNetwork) else network
    return engine if isinstance(engine, Engine) else None


def shipped_tower() -> Path:
    """Return the file of the second tower that comes with demerit."""
    return Path(str(files("demerit"))) / "assets" / "towers" / f"{SHIPPED_TOWER}.onnx"


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
        """Scale columns so that a part counts by its weight (1 if none is given) and not by its width.

        The d standardised columns of a part are divided by sqrt(d), so their mean square per row is 1, and multiplied
        by the part's weight; cameras share.
        """
        share = 1 / np.sqrt(len(self.cameras))
        blocks = zip(self.parts, self.widths, strict=True)
        camera = [np.full(d, share * weights.get(part, 1.0) / np.sqrt(max(d, 1))) for part, d in blocks]
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
        features = self.network.features(images, self._first_image)
        return features, None if self.reader is None else self._read(self.reader, images)

    def _read(self, reader: Reader, images: Images) -> npt.NDArray[np.float64]:
        assert self._first_image is not None
        due = (self._images + np.arange(len(images))) % self._every == 0
        outputs = np.concatenate([self._said, reader(images[due], self._first_image)]) if due.any() else self._said
        self._images, self._said = self._images + len(images), outputs[-1:]
        return np.asarray(outputs[np.cumsum(due)])

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
    columns = [x for x in rows if x is not None]
    joined = np.concatenate([np.full_like(columns[0], np.nan) if x is None else x for x in rows], axis=1)
    joined[np.any([np.isnan(x).any(axis=1) for x in columns], axis=0)] = np.nan
    return joined


def mean_read(seen: Iterable[tuple[Features, npt.NDArray[np.float64] | None]]) -> npt.NDArray[np.float64] | None:
    """Return the mean over cameras of what the reader says; None when there is no reader."""
    outputs = [read for _, read in seen if read is not None]
    return np.mean(outputs, axis=0) if outputs else None


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


SIDE = 192
"""pixels of the images that a reader sees"""
LAYERS = "/blocks.4/Add_output_0", "/blocks.10/Add_output_0"
"""the tower's layers below a reader: the last of the third and of the fifth stage, an eighth and a sixteenth of the
image's side"""
READ = "outputs"
READ_OUTPUTS = 2
READER_CHUNK = 2
"""frames that one thread computes; fixed, so results do not depend on the number of threads. On these larger images, 8
take 1.2 times as long for each"""


class Reader:
    """Progress and `done` of frames, from images of SIDE x SIDE pixels and the episode's first."""

    def __init__(self, content: bytes, path: Path) -> None:
        """Open an ONNX graph; `path` is where it comes from, for messages."""
        self.content = content
        image = (SIDE, SIDE, RGB)
        inputs: Shapes = {"frames": (None, *image), "first": (1, *image)}
        self._session = open_session(content, (inputs, {READ: (None, READ_OUTPUTS)}), path)
        self._pool = ThreadPoolExecutor(count_cores(), thread_name_prefix="demerit-reader")

    @property
    def sha256(self) -> str:
        """Hash of the graph."""
        return hashlib.sha256(self.content).hexdigest()

    @classmethod
    def load(cls, path: Path, sha256: str) -> Reader:
        """Read a reader's file; refuse another than the one that was written."""
        return cls(read_listed(path, sha256), path)

    def __call__(self, images: Images, first: Images) -> npt.NDArray[np.float64]:
        """Return progress and `done`, 0 to 1: (frames, 2)."""
        before = resize_square(first[None], SIDE)

        def run(chunk: Images) -> npt.NDArray[np.float32]:
            frames = np.ascontiguousarray(resize_square(chunk, SIDE))
            return np.asarray(self._session.run([READ], {"frames": frames, "first": before})[0])

        chunks = [images[start : start + READER_CHUNK] for start in range(0, len(images), READER_CHUNK)]
        return np.concatenate(list(self._pool.map(run, chunks))).astype(np.float64)


def prepare_large() -> Prepare:
    """Return the function that resizes images for a reader; run in the decoding processes."""
    return partial(resize_square, side=SIDE)
