"""The compact network: loading a folder strictly, frames to features, features to progress, success and rank.

A network folder holds `network.json` (see `NetworkInfo`), `tower.onnx` (frames to features), `temporal.onnx` (a
recurrent network over features), `words.npz` (the text encoder), `seen.json` (the episodes it was trained on) and
`familiar.npz` (what those look like; may be absent). ONNX Runtime computes. Frames are split into chunks of 8 counted
from the first frame, and one thread computes a chunk, so results never depend on the number of threads or on which
episodes are scored together.

The text encoder: an instruction becomes 192 numbers, with numpy alone.

The vector has four parts (`PARTS`):

    sentence 112   what the instruction is about; follows a sentence model's geometry (compare by cosine)
    what      30   the object that is moved or handled
    where     30   the place it goes to or comes from (near zero when none is named)
    signs     20   opposites: open/close, left/right, into/out of ..., about -3 to 3

So "put the cup on the plate" and "put the plate on the cup" differ, which a mean of word vectors cannot express.

Words are split into known pieces (greedy, longest first, as BERT does), each piece has a vector, two small
convolutions mix neighbours, four attention heads pool the pieces, and a linear map gives the parts.

Distilled from sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0); most pieces are from BERT's uncased vocabulary
(Apache-2.0). The file's own `about` names them too.

`resize_square` makes any image a small square, with the same pixels on every machine, in training and in use.

Each axis is resized separately: by area averages where it shrinks, by linear interpolation where it grows. All
arithmetic is on integers with one rounded division at the end, so no processor or library version changes a pixel.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.resources import files
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Floats, Floats32
from demerit.data.episode import plain_words
from demerit.data.files import parse_json, read_json, read_npz
from demerit.data.frames import IMAGES_DIMENSIONS, RGB, Images, Prepare, short_hash
from demerit.data.splits import SEEN, SeenEpisodes
from demerit.errors import BadInput, WeightsMismatch
from demerit.models.familiarity import Familiarity

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

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
            finding = "a folder without it" if folder.is_dir() else "no such folder"
            raise BadInput(str(folder), f"a trained network with {INFO}", finding)
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
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
            except OSError as error:
                raise BadInput(str(path), f"a file of the network ({AGAIN})", error.strerror or error) from error
            if digest != expected:
                raise BadInput(str(path), f"the file listed in {INFO}, sha256 {expected[:12]} ({AGAIN})", digest[:12])

    def hash(self) -> str:
        """Identify the network by the contents of its files."""
        return short_hash(*(f"{name} {self.sha256[name]}".encode() for name in FILES))


@dataclass(frozen=True, eq=False)
class NetworkOutputs:
    """The temporal network's outputs, a row per frame."""

    progress: Floats32
    """0 to 1"""
    bins: Floats32
    """(frames, bins): probability of each progress bin"""
    success: Floats32
    """probability of success"""
    rank: Floats32
    """sigmoid(rank of a - rank of b) at their last frames is the probability that a is better"""
    hidden: Floats32
    """(frames, hidden)"""
    state: Floats32
    """(1, state): pass it to `follow` to continue the episode"""
    distance: Floats | None = None
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

    def features(self, images: Images, first: Images) -> Floats32:
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

    def follow(self, features: Floats32, instruction: str, state: Floats32 | None = None) -> NetworkOutputs:
        """Run the temporal network over frames in order; a row depends only on frames up to its own.

        Args:
            features: (frames, features).
            instruction: the task; blank when unknown.
            state: the state to continue from; None = the start of an episode.
        """
        if features.ndim != 2 or features.shape[1] != self.info.features:  # noqa: PLR2004
            raise BadInput("features", f"shape (frames, {self.info.features})", features.shape)
        vector = self.text_vector(instruction)
        inputs: dict[str, Any] = {
            "words": np.zeros((1, self.info.words), np.float32) if vector is None else vector[None],
            "told": np.full((1, 1), vector is not None, dtype=np.float32),
        }
        state = np.zeros((1, self.info.state), np.float32) if state is None else state
        parts: list[list[Floats32]] = [_empty_outputs(self.info)]
        for start in range(0, len(features), STEPS):
            block = np.ascontiguousarray(features[start : start + STEPS], dtype=np.float32)
            *rows, state = self._temporal.run(list(OUTPUTS), {"features": block[None], "state": state, **inputs})
            parts.append([row[0] for row in rows])
        progress, bins, success, rank, hidden = (np.concatenate(column) for column in zip(*parts, strict=True))
        distance = None if self.familiarity is None else self.familiarity.distances(features)
        return NetworkOutputs(progress, bins, success, rank, hidden, state, distance)

    def rank_clips(self, clips: npt.NDArray[Any], instruction: str) -> Floats32:
        """Return the rank at the end of each of (n, frames, vector) clips of pooled features: higher = better done."""
        words = self.text_vector(instruction)
        if words is None:
            raise BadInput("instruction", "text with a known word", repr(instruction))
        state, told = np.zeros((1, self.info.state), np.float32), np.ones((1, 1), np.float32)
        inputs = {"words": words[None], "told": told, "state": state}

        def rank(some: npt.NDArray[Any]) -> list[Floats32]:
            features = np.zeros((len(some), 1, some.shape[1], self.info.features), np.float32)
            features[:, 0, :, : self.info.vector] = some
            return [self._temporal.run(["rank"], {"features": feature, **inputs})[0][0, -1] for feature in features]

        blocks = [clips[start : start + STEPS] for start in range(0, len(clips), STEPS)]
        return np.array([row for rows in self._pool.map(rank, blocks) for row in rows], dtype=np.float32)

    def text_vector(self, instruction: str) -> Floats32 | None:
        """Encode an instruction; None when it is blank or has no known word piece."""
        return self._text.vector(instruction)

    def _run_tower(self, images: Images, first: Images) -> Floats32:
        small = np.ascontiguousarray(resize_square(images, self.info.size))
        features: Floats32 = self._tower.run(["features"], {"frames": small, "first": first})[0]
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
    arrays = read_npz(path, MOST_FAMILIAR_BYTES, f"arrays of frames ({AGAIN})")
    try:
        network = str(arrays.pop("network")[0])
        familiarity = Familiarity.from_arrays(arrays)
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
    session = load_session(content, path)
    for nodes, expected in zip((session.get_inputs(), session.get_outputs()), shapes, strict=True):
        _check_nodes(path, nodes, expected)
    return session


def load_session(content: bytes, path: Path) -> InferenceSession:
    """Open a single-threaded session of any graph; `path` is for messages."""
    import onnxruntime  # noqa: PLC0415  # takes 0.1 s

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise BadInput(str(path), f"an ONNX graph ({AGAIN})", f"a file that does not load ({error})") from error


def _check_nodes(path: Path, nodes: Sequence[Any], expected: Shapes) -> None:
    by_name = {node.name: node for node in nodes}
    missing, extra = sorted(set(expected) - set(by_name)), sorted(set(by_name) - set(expected))
    if missing or extra:
        raise WeightsMismatch([f"{path.name} {name}" for name in missing], [f"{path.name} {name}" for name in extra])
    for name, shape in expected.items():
        kind = "tensor(uint8)" if name in ("frames", "first") else "tensor(float)"
        actual = by_name[name].shape
        # A dynamic axis is a text or None in the graph. A size may not be dynamic: it would change the rewards, and
        # the network's hash does not cover network.json.
        fits = len(actual) == len(shape) and all(
            size == want if isinstance(size, int) else want is None for size, want in zip(actual, shape, strict=True)
        )
        if not fits or by_name[name].type != kind:
            wanted = [size if size is not None else "any" for size in shape]
            got = f"{by_name[name].type} {actual}"
            raise BadInput(f"{path}, {name}", f"{kind} of shape {wanted}, as {INFO} says", got)


def _empty_outputs(info: NetworkInfo) -> list[Floats32]:
    shapes: list[tuple[int, ...]] = [(0,), (0, info.bins), (0,), (0,), (0, info.hidden)]
    return [np.empty(shape, dtype=np.float32) for shape in shapes]


def count_cores() -> int:
    """Count the cores this process may use (a container's share, not the machine's)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


PIECE, HIDDEN, HEADS, SPAN = 128, 96, 4, 5
PARTS = {"sentence": slice(0, 112), "what": slice(112, 142), "where": slice(142, 172), "signs": slice(172, 192)}
WIDTH = 192
MOST_PIECES = 128  # longer instructions are truncated
READ_OUT = PIECE + HEADS * PIECE + HIDDEN

# Every array of the file and its shape, except the three of the vocabulary.
WEIGHTS: dict[str, tuple[int, ...]] = {
    "near": (SPAN * PIECE, HIDDEN),
    "whole": (PIECE, HIDDEN),
    "near_bias": (HIDDEN,),
    "far": (SPAN * HIDDEN, HIDDEN),
    "far_bias": (HIDDEN,),
    "heads": (HIDDEN, HEADS),
    "out": (READ_OUT, WIDTH),
    "out_bias": (WIDTH,),
}
_NAMES = {"about", "pieces", "vectors", "scales", *WEIGHTS}
UNDAMAGED = "an undamaged text encoder (reinstall demerit, or copy words.npz again)"
MOST_BYTES = 64 * 1024 * 1024


def split_word(word: str, known: Container[str], longest: int) -> list[str]:
    """Split a word into known pieces, longest first; empty when a part of it is unknown.

    Pieces after the first start with "##", as in BERT's vocabulary. `longest` is in letters.
    """
    pieces: list[str] = []
    start = 0
    while start < len(word):
        mark = "##" if start else ""
        for end in range(min(len(word), start + longest), start, -1):
            piece = mark + word[start:end]
            if piece in known:
                break
        else:
            return []
        pieces.append(piece)
        start = end
    return pieces


class TextEncoder:
    """A loaded text encoder."""

    def __init__(
        self, pieces: list[str], vectors: Floats32, weights: Mapping[str, Floats32], about: dict[str, Any]
    ) -> None:
        """Take a vocabulary, a vector per piece and the weights by name (see `WEIGHTS`)."""
        self.about = about
        self._index = {piece: i for i, piece in enumerate(pieces)}
        self._longest = max((len(piece.removeprefix("##")) for piece in pieces), default=0)
        self._vectors, self._weights = vectors, dict(weights)

    @classmethod
    def load(cls, path: str | Path) -> TextEncoder:
        """Read a file; refuse missing or extra arrays and other shapes."""
        arrays = _read_arrays(Path(path))
        try:
            about = parse_json(arrays.pop("about").tobytes(), str(path), UNDAMAGED)
            pieces = arrays.pop("pieces").tobytes().decode("ascii").split("\n")
        except ValueError as error:
            raise _damage_error(path, f"text that cannot be read ({error})") from error
        if about.get("format") != FORMAT:
            raise _damage_error(path, f"format {about.get('format')}, not {FORMAT}")
        if len(set(pieces)) != len(pieces):
            raise _damage_error(path, "a piece that is listed twice")
        wanted = {"vectors": (len(pieces), PIECE), "scales": (len(pieces),), **WEIGHTS}
        for name, shape in wanted.items():
            kind = np.int8 if name == "vectors" else np.float16
            if arrays[name].shape != shape or arrays[name].dtype != kind:
                raise _damage_error(path, f"{name} of shape {arrays[name].shape} and type {arrays[name].dtype}")
        floats = {name: array.astype(np.float32) for name, array in arrays.items()}
        bad = [name for name, array in floats.items() if not np.isfinite(array).all()]
        if bad:
            raise _damage_error(path, f"numbers that are not finite in {', '.join(bad)}")
        vectors = floats.pop("vectors") * floats.pop("scales")[:, None]
        return cls(pieces, vectors, floats, about)

    def pieces(self, instruction: str) -> list[str]:
        """Return the known pieces of an instruction in order; words with unknown letters are skipped."""
        pieces: list[str] = []
        for word in plain_words(instruction):
            if word in self._index:
                pieces.append(word)
            else:
                pieces += split_word(word, self._index, self._longest)
            if len(pieces) >= MOST_PIECES:
                break
        return pieces[:MOST_PIECES]

    def vector(self, instruction: str) -> Floats32 | None:
        """Return the instruction's vector (`WIDTH`,), or None when it is blank or has no known piece."""
        pieces = self.pieces(instruction)
        if not pieces:
            return None
        return self._encode(self._vectors[[self._index[piece] for piece in pieces]])

    def _encode(self, vectors: Floats32) -> Floats32:
        weights, share = self._weights, np.float32(1 / len(vectors))
        whole = np.add.reduce(vectors) * share
        near = _convolve(vectors, weights["near"]) + np.add.reduce(vectors @ weights["whole"]) * share
        near += weights["near_bias"]
        far = _convolve(np.maximum(near, 0), weights["far"]) + weights["far_bias"]
        far = np.maximum(far, 0)
        picks = far @ weights["heads"]
        picks = np.exp(picks - picks.max(axis=0))
        picks /= picks.sum(axis=0)
        summary = np.concatenate([whole, (picks.T @ vectors).ravel(), np.add.reduce(far) * share])
        # Two rows and two halves: products of this size stay on one thread, which is faster.
        pair, middle = np.stack([summary, summary]), PARTS["sentence"].stop
        sentence, meaning = (pair @ weights["out"][:, half] for half in (slice(0, middle), slice(middle, WIDTH)))
        vector: Floats32 = np.concatenate([sentence[0], meaning[0]]) + weights["out_bias"]
        vector[:middle] *= np.float32(np.sqrt(middle) / max(float(np.sqrt(vector[:middle] @ vector[:middle])), 1e-6))
        return vector


def save_text_encoder(
    path: Path, pieces: list[str], vectors: Floats32, weights: Mapping[str, Floats32], about: dict[str, Any]
) -> None:
    """Write the file that `TextEncoder.load` reads: vectors as int8 with a scale each, weights as float16."""
    scales = (np.abs(vectors).max(axis=1) / 127).astype(np.float16)
    scales = np.maximum(scales, np.float16(1e-6))
    whole = np.clip(np.rint(vectors / scales.astype(np.float32)[:, None]), -127, 127).astype(np.int8)
    texts = {"about": json.dumps({"format": FORMAT, **about}, indent=1), "pieces": "\n".join(pieces)}
    arrays: dict[str, Any] = {name: np.frombuffer(text.encode("ascii"), np.uint8) for name, text in texts.items()}
    arrays |= {"vectors": whole, "scales": scales}
    arrays |= {name: weights[name].reshape(shape).astype(np.float16) for name, shape in WEIGHTS.items()}
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _convolve(rows: Floats32, weight: Floats32) -> Floats32:
    """Convolve rows over a window of `SPAN`, zero-padded."""
    count, width = rows.shape
    padded = np.zeros((count + SPAN - 1, width), np.float32)
    padded[SPAN // 2 : SPAN // 2 + count] = rows
    total: Floats32 = padded[:count] @ weight[:width]
    for i in range(1, SPAN):
        total += padded[i : i + count] @ weight[i * width : (i + 1) * width]
    return total


def _read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    arrays = read_npz(path, MOST_BYTES, UNDAMAGED)
    if set(arrays) != _NAMES:
        raise _damage_error(path, f"other arrays (missing or extra: {', '.join(sorted(set(arrays) ^ _NAMES))})")
    return arrays


def _damage_error(path: str | Path, got: str) -> BadInput:
    return BadInput(str(path), UNDAMAGED, got)


BRIGHTEST = 255
IntArray = npt.NDArray[Any]


def resize_square(images: Images, side: int) -> Images:
    """Resize (n, height, width, 3) uint8 images to (n, side, side, 3); images of that size are returned as they are."""
    good = images.ndim == IMAGES_DIMENSIONS and images.shape[-1] == RGB and images.dtype == np.uint8
    if not good or 0 in images.shape[1:]:
        got = f"{images.dtype} of shape {images.shape}"
        raise BadInput("images", "uint8 of shape (n, height, width, 3), none of them empty", got)
    if images.shape[1:3] == (side, side):
        return images
    rows, columns = _resampling(images.shape[1], side), _resampling(images.shape[2], side)
    out = np.empty((len(images), side, side, RGB), dtype=np.uint8)
    for image, small in zip(images, out, strict=True):
        _resize_one(image, small, rows, columns)
    return out


_AxisResampling = tuple[tuple[tuple[npt.NDArray[np.intp], npt.NDArray[np.uint32]], ...], int]
"""how new pixels of one axis are sums of old ones: old index and weight of every new pixel, per tap; and the sum of the
weights of each new pixel"""


@lru_cache(maxsize=64)
def _resampling(old: int, new: int) -> _AxisResampling:
    indices, weights = _area_weights(old, new) if old > new else _linear_weights(old, new)
    weights //= int(np.gcd.reduce(weights, axis=None))
    used = [tap for tap in range(weights.shape[1]) if weights[:, tap].any()]
    taps = tuple((indices[:, tap].astype(np.intp), weights[:, tap].astype(np.uint32)) for tap in used)
    return taps, int(weights[0].sum())


def _area_weights(old: int, new: int) -> tuple[IntArray, IntArray]:
    """New pixel i covers old/new * [i, i + 1]; weights are overlaps in units of 1/new."""
    step = gcd(old, new)
    wide, narrow = old // step, new // step
    i = np.arange(new)[:, None]
    indices = i * wide // narrow + np.arange(-(-wide // narrow) + 1)
    overlap = np.minimum((indices + 1) * narrow, (i + 1) * wide) - np.maximum(indices * narrow, i * wide)
    return np.minimum(indices, old - 1), np.maximum(overlap, 0)


def _linear_weights(old: int, new: int) -> tuple[IntArray, IntArray]:
    """New pixel i is centred at (i + 1/2) old/new, between two old centres; weights in units of 1/(2 new)."""
    centre = (2 * np.arange(new) + 1) * old - new
    left, part = np.divmod(centre, 2 * new)
    indices = np.clip(np.stack([left, left + 1], axis=1), 0, old - 1)
    return indices, np.stack([2 * new - part, part], axis=1)


_scratch = threading.local()
"""work arrays, reused from image to image: allocating them would take most of the time"""


def _borrow(name: str, shape: tuple[int, int], kind: np.dtype[Any]) -> IntArray:
    """Return this thread's work array of a name."""
    array: IntArray | None = getattr(_scratch, name, None)
    if array is None or array.shape != shape or array.dtype != kind:
        array = np.empty(shape, dtype=kind)
        setattr(_scratch, name, array)
    return array


def _resize_one(image: Images, small: Images, rows: _AxisResampling, columns: _AxisResampling) -> None:
    height, width, _ = image.shape
    side, total = len(small), rows[1] * columns[1]
    # the smallest type that holds the largest possible sum is the fastest
    kind = np.promote_types(np.min_scalar_type(BRIGHTEST * total + total // 2), np.uint16)
    tall = _resample("rows", image.reshape(height, width * RGB), rows, kind)
    across = _borrow("across", (width, RGB * side), kind)
    across.reshape(width, RGB, side)[...] = tall.reshape(side, width, RGB).transpose(1, 2, 0)
    sums = _resample("columns", across, columns, kind)
    sums += kind.type(total // 2)
    sums //= kind.type(total)
    small[...] = sums.reshape(side, RGB, side).transpose(2, 0, 1)


def _resample(name: str, lines: IntArray, axis: _AxisResampling, kind: np.dtype[Any]) -> IntArray:
    """Return the weighted sums, not divided; the array is reused for the next image."""
    taps, _ = axis
    shape = (len(taps[0][0]), lines.shape[1])
    taken = _borrow(f"{name} taken", shape, lines.dtype)
    part, total = (_borrow(f"{name} {what}", shape, kind) for what in ("part", "total"))
    for number, (indices, weights) in enumerate(taps):
        np.take(lines, indices, axis=0, out=taken, mode="clip")
        np.multiply(taken, weights.astype(kind)[:, None], out=part if number else total)
        if number:
            total += part
    return total
