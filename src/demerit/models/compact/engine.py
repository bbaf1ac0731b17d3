"""A trained network at work: pictures in, features out; features in, progress, success and rank out.

ONNX Runtime computes. Each chunk of frames is one thread's, from end to end, and chunks are counted from an episode's
first frame on: how many threads there are and which episodes are scored together never changes a number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from demerit.data.frames import RGB, Images
from demerit.errors import BadInput, WeightsMismatch
from demerit.models.compact.info import AGAIN, INFO, TEMPORAL, TOWER, WORDS, NetworkInfo
from demerit.models.compact.resize import resized
from demerit.models.compact.words import Words

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Floats = npt.NDArray[np.float32]
# Eight small pictures' activations stay in a core's cache; larger batches were slower on every machine tried.
CHUNK = 8
# The remembering part may compare all pairs of frames that it is given at once.
STEPS = 64
ERRORS_ONLY = 3


@dataclass(frozen=True, eq=False)
class Followed:
    """What the network says while it follows an episode, a row per frame."""

    progress: Floats
    """0 to 1"""
    bins: Floats
    """(frames, bins): how likely each step of progress is"""
    success: Floats
    """probability"""
    rank: Floats
    """sigmoid(rank of a - rank of b) at their last frames is the probability that a is the better one"""
    hidden: Floats
    """(frames, hidden)"""
    state: Floats
    """(1, state): give it back to go on from here"""


class Engine:
    """A network that is loaded, checked and ready."""

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        """Use `load`."""
        self.info = NetworkInfo.read(folder)
        self.info.check_files(folder)
        self._words = Words.load(folder / WORDS)
        self._tower = _session(folder / TOWER, _tower_shapes(self.info))
        self._temporal = _session(folder / TEMPORAL, _temporal_shapes(self.info))
        self.threads = threads or _cores()
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="demerit-engine")

    @classmethod
    def load(cls, folder: Path, threads: int | None = None) -> Engine:
        """Load a trained network's folder strictly: every file's hash and every graph's shapes are checked.

        Args:
            folder: what `demerit.models.compact.info` describes.
            threads: how many frames are looked at side by side; None = one a core.
        """
        if threads is not None and threads < 1:
            raise BadInput("threads", "a number from 1 on", threads)
        return cls(Path(folder), threads)

    @classmethod
    def shipped(cls, threads: int | None = None) -> Engine:
        """Load the network that comes with demerit."""
        return cls.load(shipped_folder(), threads)

    def features(self, images: Images, first: Images) -> Floats:
        """Turn pictures of any size into (n, features).

        Args:
            images: (n, height, width, 3) uint8 RGB.
            first: the episode's first picture, (height, width, 3), which every other is seen beside.
        """
        begun = resized(first[None], self.info.size)
        chunks = [images[start : start + CHUNK] for start in range(0, len(images), CHUNK)]
        if not chunks:
            return np.empty((0, self.info.features), dtype=np.float32)
        work = partial(self._chunk, first=begun)
        done = map(work, chunks) if len(chunks) == 1 or self.threads == 1 else self._pool.map(work, chunks)
        return np.concatenate(list(done))

    def follow(self, features: Floats, instruction: str, state: Floats | None = None) -> Followed:
        """Follow an episode, or go on with one: a frame's row depends on what came before it alone.

        Args:
            features: (frames, features), in order.
            instruction: what the robot was told; blank when nobody wrote it down.
            state: where to go on, None at the beginning.
        """
        if features.ndim != 2 or features.shape[1] != self.info.features:  # noqa: PLR2004
            raise BadInput("features", f"shape (frames, {self.info.features})", features.shape)
        words = self.vector(instruction)
        told: dict[str, Any] = {
            "words": np.zeros((1, self.info.words), np.float32) if words is None else words[None],
            "told": np.full((1, 1), words is not None, dtype=np.float32),
        }
        state = np.zeros((1, self.info.state), np.float32) if state is None else state
        parts: list[list[Floats]] = [_nothing(self.info)]
        for some in _pieces(features, STEPS):
            *rows, state = self._temporal.run(list(_OUTPUTS), {"features": some[None], "state": state, **told})
            parts.append([one[0] for one in rows])
        progress, bins, success, rank, hidden = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Followed(progress, bins, success, rank, hidden, state)

    def vector(self, instruction: str) -> Floats | None:
        """Return the words' vector; None where there is no instruction, or none in words that the network knows."""
        return self._words.vector(instruction)

    def _chunk(self, images: Images, first: Images) -> Floats:
        small = np.ascontiguousarray(resized(images, self.info.size))
        features: Floats = self._tower.run(["features"], {"frames": small, "first": first})[0]
        return features


def shipped_folder() -> Path:
    """Where the network that comes with demerit lies; its absence is said in a sentence."""
    folder = Path(str(files("demerit"))) / "assets" / "compact"
    if not (folder / INFO).is_file():
        expected = "the weights that come with a release of demerit (install it again)"
        raise BadInput("the default model", expected, f"an installation without {folder / INFO}")
    return folder


Shapes = dict[str, tuple[int | None, ...]]
_OUTPUTS = ("progress", "bins", "success", "rank", "hidden", "state_after")


def _tower_shapes(info: NetworkInfo) -> tuple[Shapes, Shapes]:
    picture = (info.size, info.size, RGB)
    return {"frames": (None, *picture), "first": (1, *picture)}, {"features": (None, info.features)}


def _temporal_shapes(info: NetworkInfo) -> tuple[Shapes, Shapes]:
    given: Shapes = {
        "features": (1, None, info.features),
        "words": (1, info.words),
        "told": (1, 1),
        "state": (1, info.state),
    }
    rows: list[tuple[int | None, ...]] = [(1, None), (1, None, info.bins), (1, None), (1, None), (1, None, info.hidden)]
    return given, dict(zip(_OUTPUTS, [*rows, (1, info.state)], strict=True))


def _session(path: Path, shapes: tuple[Shapes, Shapes]) -> InferenceSession:
    """Open a graph with one thread of its own, and refuse one whose names or shapes are not those wanted."""
    import onnxruntime  # noqa: PLC0415  # a tenth of a second that only those pay who score

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's own exceptions have no common root
        raise BadInput(str(path), f"an ONNX graph ({AGAIN})", f"something that does not load ({error})") from error
    for nodes, wanted in zip((session.get_inputs(), session.get_outputs()), shapes, strict=True):
        _check_nodes(path, nodes, wanted)
    return session


def _check_nodes(path: Path, nodes: Sequence[Any], wanted: Shapes) -> None:
    found = {node.name: node for node in nodes}
    missing, unexpected = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or unexpected:
        raise WeightsMismatch([f"{path.name} {one}" for one in missing], [f"{path.name} {one}" for one in unexpected])
    for name, shape in wanted.items():
        kind = "tensor(uint8)" if name in ("frames", "first") else "tensor(float)"
        real = found[name].shape
        # a size that the graph leaves open is a text or None there
        fits = len(real) == len(shape) and all(
            not isinstance(size, int) or size == want for size, want in zip(real, shape, strict=True)
        )
        if not fits or found[name].type != kind:
            written = [size if size is not None else "any" for size in shape]
            raise BadInput(
                f"{path}, {name}", f"{kind} of shape {written}, as {INFO} says", f"{found[name].type} {real}"
            )


def _nothing(info: NetworkInfo) -> list[Floats]:
    """No rows of each output, so that an episode without frames has a shape too."""
    shapes: list[tuple[int, ...]] = [(0,), (0, info.bins), (0,), (0,), (0, info.hidden)]
    return [np.empty(shape, dtype=np.float32) for shape in shapes]


def _pieces(rows: Floats, most: int) -> Iterator[Floats]:
    for start in range(0, len(rows), most):
        yield np.ascontiguousarray(rows[start : start + most], dtype=np.float32)


def _cores() -> int:
    """How many cores this process may use (a container's share, not the machine's)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
