"""The compact network: loading a folder strictly, frames to features, features to progress, success and rank.

A network folder holds `network.json` (see `NetworkInfo`), `tower.onnx` (frames to features), `temporal.onnx` (a
recurrent network over features), `words.npz` (the text encoder), `seen.json` (the episodes it was trained on) and
`familiar.npz` (what those look like; may be absent). ONNX Runtime computes. Frames are split into chunks of 8 counted
from the first frame, and one thread computes a chunk, so results never depend on the number of threads or on which
episodes are scored together.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from demerit.data.frames import RGB, Images, Prepare, short_hash
from demerit.data.seen import SEEN, SeenEpisodes
from demerit.data.untrusted import read_json, read_npz
from demerit.errors import BadInput, WeightsMismatch
from demerit.models.compact.resize import resize_square
from demerit.models.compact.text import TextEncoder
from demerit.models.familiarity import Familiarity

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Floats = npt.NDArray[np.float32]
INFO, TOWER, TEMPORAL, WORDS = "network.json", "tower.onnx", "temporal.onnx", "words.npz"
FILES = (TOWER, TEMPORAL, WORDS)
FAMILIAR, MOST_FAMILIAR_BYTES = "familiar.npz", 16 * 1024 * 1024
FORMAT = 1
SIZES = ("size", "features", "vector", "words", "state", "hidden", "bins")
TEXTS = ("licence", "revision")
AGAIN = "copy the folder again, or reinstall demerit"
# The activations of 8 frames fit in a core's cache; larger batches were slower on every machine tried.
CHUNK = 8
# Bounds the memory of the temporal network, which may compare all pairs of frames in one call.
STEPS = 64
ERRORS_ONLY = 3
OUTPUTS = ("progress", "bins", "success", "rank", "hidden", "state_after")
Shapes = dict[str, tuple[int | None, ...]]


@dataclass(frozen=True)
class NetworkInfo:
    """The fields of network.json: sizes, licence, training data and file hashes."""

    size: int
    """frames are resized to size x size pixels"""
    features: int
    """features per frame"""
    vector: int
    """the first `vector` features are the pooled tower output; the rest is a middle layer, by image region"""
    words: int
    """length of an instruction vector"""
    state: int
    """length of the recurrent state"""
    hidden: int
    bins: int
    licence: str
    revision: str
    trained_on: tuple[str, ...]
    """training datasets, named as their licences require"""
    sha256: Mapping[str, str]
    """hash by file name"""

    @classmethod
    def read(cls, folder: Path) -> NetworkInfo:
        """Read and validate a folder's network.json."""
        path = folder / INFO
        if not path.is_file():
            found = "a folder without it" if folder.is_dir() else "no such folder"
            raise BadInput(str(folder), f"a trained network with {INFO}", found)
        return cls._parse(path, read_json(path, f"the fields of a network (JSON; {AGAIN})"))

    @classmethod
    def _parse(cls, path: Path, facts: Mapping[str, Any]) -> NetworkInfo:
        if facts.get("format") != FORMAT:
            raise BadInput(str(path), f"format {FORMAT} (another may need a newer demerit)", facts.get("format"))
        needed = {"format", *SIZES, *TEXTS, "trained_on", "sha256"}
        if set(facts) != needed:
            missing, extra = sorted(needed - set(facts)), sorted(set(facts) - needed)
            raise BadInput(str(path), f"the fields {', '.join(sorted(needed))}", f"missing: {missing}, extra: {extra}")
        for name in SIZES:
            if type(facts[name]) is not int or facts[name] < 1:
                raise BadInput(f"{path}, {name}", "a whole number, 1 or more", repr(facts[name]))
        for name in TEXTS:
            if not isinstance(facts[name], str) or not facts[name]:
                raise BadInput(f"{path}, {name}", "some text", repr(facts[name]))
        datasets, sums = facts["trained_on"], facts["sha256"]
        if not isinstance(datasets, list) or not all(isinstance(name, str) for name in datasets):
            raise BadInput(f"{path}, trained_on", "a list of texts", repr(datasets))
        if not isinstance(sums, dict) or set(sums) != set(FILES) or not all(isinstance(v, str) for v in sums.values()):
            raise BadInput(f"{path}, sha256", f"a hash for each of {', '.join(FILES)}", repr(sums))
        plain = {name: facts[name] for name in (*SIZES, *TEXTS)}
        return cls(**plain, trained_on=tuple(datasets), sha256=dict(sums))

    def check_files(self, folder: Path) -> None:
        """Raise BadInput unless every file's hash is the one in network.json."""
        for name, expected in self.sha256.items():
            path = folder / name
            try:
                found = hashlib.sha256(path.read_bytes()).hexdigest()
            except OSError as error:
                raise BadInput(str(path), f"a file of the network ({AGAIN})", error.strerror or error) from error
            if found != expected:
                raise BadInput(str(path), f"the file listed in {INFO}, sha256 {expected[:12]} ({AGAIN})", found[:12])

    def hash(self) -> str:
        """Identify the network by the contents of its files."""
        return short_hash(*(f"{name} {self.sha256[name]}".encode() for name in FILES))


@dataclass(frozen=True, eq=False)
class NetworkOutputs:
    """The temporal network's outputs, a row per frame."""

    progress: Floats
    """0 to 1"""
    bins: Floats
    """(frames, bins): probability of each progress bin"""
    success: Floats
    """probability of success"""
    rank: Floats
    """sigmoid(rank of a - rank of b) at their last frames is the probability that a is better"""
    hidden: Floats
    """(frames, hidden)"""
    state: Floats
    """(1, state): pass it to `follow` to continue the episode"""
    distance: npt.NDArray[np.float64] | None = None
    """log distance to the nearest frame that the network was trained on; None = unknown"""


class Engine:
    """A loaded compact network."""

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        """Use `load`."""
        self.info = NetworkInfo.read(folder)
        self.info.check_files(folder)
        self.seen = SeenEpisodes.read(folder / SEEN)
        self.familiarity = _read_familiarity(folder / FAMILIAR, self.info)
        self._text = TextEncoder.load(folder / WORDS)
        self.tower_file, temporal = folder / TOWER, folder / TEMPORAL
        self._tower = open_session(self.tower_file.read_bytes(), _tower_shapes(self.info), self.tower_file)
        self._temporal = open_session(temporal.read_bytes(), _temporal_shapes(self.info), temporal)
        self.threads = threads or count_cores()
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="demerit-engine")

    @classmethod
    def load(cls, folder: Path, threads: int | None = None) -> Engine:
        """Load a network folder strictly: every file's hash and every graph's shapes are checked.

        Args:
            folder: a folder with `network.json`.
            threads: chunks of frames computed in parallel; None = one per core.
        """
        if threads is not None and threads < 1:
            raise BadInput("threads", "a number, 1 or more", threads)
        return cls(Path(folder), threads)

    @classmethod
    def load_shipped(cls, threads: int | None = None) -> Engine:
        """Load the network that comes with demerit."""
        return cls.load(shipped_folder(), threads)

    @property
    def hash(self) -> str:
        """Hash of the weights."""
        return self.info.hash()

    @property
    def licence(self) -> str:
        """Licence of the weights."""
        return self.info.licence

    @property
    def pooled_width(self) -> int:
        """How many of a frame's features, the first, are the pooled tower output."""
        return self.info.vector

    @property
    def prepare(self) -> Prepare:
        """Resize images; run in the decoding processes."""
        return partial(resize_square, side=self.info.size)

    def has_layer(self, name: str) -> bool:
        """Whether the tower has a layer with this output."""
        return name.encode() in self.tower_file.read_bytes()

    def features(self, images: Images, first: Images) -> Floats:
        """Turn images of any size into (n, features).

        Args:
            images: (n, height, width, 3) uint8 RGB.
            first: the episode's first image (height, width, 3), which the network compares every frame with.
        """
        small = resize_square(first[None], self.info.size)
        chunks = [images[start : start + CHUNK] for start in range(0, len(images), CHUNK)]
        if not chunks:
            return np.empty((0, self.info.features), dtype=np.float32)
        work = partial(self._run_tower, first=small)
        done = map(work, chunks) if len(chunks) == 1 or self.threads == 1 else self._pool.map(work, chunks)
        return np.concatenate(list(done))

    def follow(self, features: Floats, instruction: str, state: Floats | None = None) -> NetworkOutputs:
        """Run the temporal network over frames in order; a row depends only on frames up to its own.

        Args:
            features: (frames, features).
            instruction: the task; blank when unknown.
            state: the state to continue from; None = the start of an episode.
        """
        if features.ndim != 2 or features.shape[1] != self.info.features:  # noqa: PLR2004
            raise BadInput("features", f"shape (frames, {self.info.features})", features.shape)
        vector = self.text_vector(instruction)
        given: dict[str, Any] = {
            "words": np.zeros((1, self.info.words), np.float32) if vector is None else vector[None],
            "told": np.full((1, 1), vector is not None, dtype=np.float32),
        }
        state = np.zeros((1, self.info.state), np.float32) if state is None else state
        parts: list[list[Floats]] = [_empty_outputs(self.info)]
        for start in range(0, len(features), STEPS):
            block = np.ascontiguousarray(features[start : start + STEPS], dtype=np.float32)
            *rows, state = self._temporal.run(list(OUTPUTS), {"features": block[None], "state": state, **given})
            parts.append([row[0] for row in rows])
        progress, bins, success, rank, hidden = (np.concatenate(column) for column in zip(*parts, strict=True))
        distance = None if self.familiarity is None else self.familiarity.distances(features)
        return NetworkOutputs(progress, bins, success, rank, hidden, state, distance)

    def rank_clips(self, clips: npt.NDArray[Any], instruction: str) -> Floats:
        """Return the rank at the end of each of (n, frames, vector) clips of pooled features: higher = better done."""
        words = self.text_vector(instruction)
        if words is None:
            raise BadInput("instruction", "text with a known word", repr(instruction))
        state, told = np.zeros((1, self.info.state), np.float32), np.ones((1, 1), np.float32)
        given = {"words": words[None], "told": told, "state": state}

        def rank(some: npt.NDArray[Any]) -> list[Floats]:
            features = np.zeros((len(some), 1, some.shape[1], self.info.features), np.float32)
            features[:, 0, :, : self.info.vector] = some
            return [self._temporal.run(["rank"], {"features": one, **given})[0][0, -1] for one in features]

        blocks = [clips[start : start + STEPS] for start in range(0, len(clips), STEPS)]
        return np.array([row for rows in self._pool.map(rank, blocks) for row in rows], dtype=np.float32)

    def text_vector(self, instruction: str) -> Floats | None:
        """Encode an instruction; None when it is blank or has no known word piece."""
        return self._text.vector(instruction)

    def _run_tower(self, images: Images, first: Images) -> Floats:
        small = np.ascontiguousarray(resize_square(images, self.info.size))
        features: Floats = self._tower.run(["features"], {"frames": small, "first": first})[0]
        return features


def shipped_folder() -> Path:
    """Return the folder of the network that comes with demerit."""
    folder = Path(str(files("demerit"))) / "assets" / "compact"
    if not (folder / INFO).is_file():
        expected = "the weights that come with a release of demerit (install it again)"
        raise BadInput("the default model", expected, f"an installation without {folder / INFO}")
    return folder


def _read_familiarity(path: Path, info: NetworkInfo) -> Familiarity | None:
    """Read the optional file; refuse that of another network. It changes no reward, so the network's hash omits it."""
    if not path.is_file():
        return None
    found = read_npz(path, MOST_FAMILIAR_BYTES, f"arrays of frames ({AGAIN})")
    try:
        network = str(found.pop("network")[0])
        familiarity = Familiarity.from_arrays(found)
        familiarity.distances(np.zeros((1, info.features)))  # the shapes fit
    except (BadInput, LookupError, TypeError, ValueError) as error:
        raise BadInput(str(path), f"the frames that a network was trained on ({AGAIN})", error) from error
    if network != info.hash():
        raise BadInput(str(path), f"frames of this network, {info.hash()[:12]} ({AGAIN})", network[:12])
    return familiarity


def _tower_shapes(info: NetworkInfo) -> tuple[Shapes, Shapes]:
    image = (info.size, info.size, RGB)
    return {"frames": (None, *image), "first": (1, *image)}, {"features": (None, info.features)}


def _temporal_shapes(info: NetworkInfo) -> tuple[Shapes, Shapes]:
    inputs: Shapes = {
        "features": (1, None, info.features),
        "words": (1, info.words),
        "told": (1, 1),
        "state": (1, info.state),
    }
    rows: list[tuple[int | None, ...]] = [(1, None), (1, None, info.bins), (1, None), (1, None), (1, None, info.hidden)]
    return inputs, dict(zip(OUTPUTS, [*rows, (1, info.state)], strict=True))


def open_session(content: bytes, shapes: tuple[Shapes, Shapes], path: Path) -> InferenceSession:
    """Open a single-threaded session of a graph; refuse other inputs, outputs or shapes. `path` is for messages."""
    import onnxruntime  # noqa: PLC0415  # takes 0.1 s

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise BadInput(str(path), f"an ONNX graph ({AGAIN})", f"a file that does not load ({error})") from error
    for nodes, expected in zip((session.get_inputs(), session.get_outputs()), shapes, strict=True):
        _check_nodes(path, nodes, expected)
    return session


def _check_nodes(path: Path, nodes: Sequence[Any], expected: Shapes) -> None:
    found = {node.name: node for node in nodes}
    missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing or extra:
        raise WeightsMismatch([f"{path.name} {name}" for name in missing], [f"{path.name} {name}" for name in extra])
    for name, shape in expected.items():
        kind = "tensor(uint8)" if name in ("frames", "first") else "tensor(float)"
        actual = found[name].shape
        # A dynamic axis is a text or None in the graph. A size may not be dynamic: it would change the rewards, and
        # the network's hash does not cover network.json.
        fits = len(actual) == len(shape) and all(
            size == want if isinstance(size, int) else want is None for size, want in zip(actual, shape, strict=True)
        )
        if not fits or found[name].type != kind:
            wanted = [size if size is not None else "any" for size in shape]
            got = f"{found[name].type} {actual}"
            raise BadInput(f"{path}, {name}", f"{kind} of shape {wanted}, as {INFO} says", got)


def _empty_outputs(info: NetworkInfo) -> list[Floats]:
    shapes: list[tuple[int, ...]] = [(0,), (0, info.bins), (0,), (0,), (0, info.hidden)]
    return [np.empty(shape, dtype=np.float32) for shape in shapes]


def count_cores() -> int:
    """Count the cores this process may use (a container's share, not the machine's)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
