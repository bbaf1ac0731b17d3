"""RLDS datasets (Open X-Embodiment and others written by TensorFlow Datasets), read without TensorFlow.

    <name>/<version>/dataset_info.json                       name, version, splits and how many episodes each shard has
    <name>/<version>/features.json                           what the records hold: a tree of features
    <name>/<version>/<name>-<split>.tfrecord-00000-of-00012  one tf.train.Example per episode

An Example is flat: `steps/<path>` holds the values of all steps, one after another. RLDS records no times: episodes
are timed at a nominal 5 frames a second unless `fps` is given.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from demerit.data.dataset import NO_INSTRUCTION, Problem, Record
from demerit.data.episode import Episode, Origin, Outcome, safe_name
from demerit.data.formats.tfrecord import Example, Feature, parse_example, read_record, record_spans, stored_checksum
from demerit.data.frames import Frames, Images, Times, file_identity, short_hash
from demerit.errors import BadInput, UnknownName, UnreadableVideo

NOMINAL_FPS = 5.0
ENCODINGS = ("JPEG", "PNG")
NOT_AN_IMAGE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


@dataclass(frozen=True)
class TfRecordFrames:
    """The images of a camera in a record; `count` is their number, None = read it from the record."""

    kind = "tfrecord"
    path: str
    offset: int
    length: int
    key: str
    fps: float = NOMINAL_FPS
    count: int | None = None

    def __post_init__(self) -> None:
        if not self.fps > 0:
            raise BadInput("fps", "a positive number", self.fps)

    def __len__(self) -> int:
        return len(self._read_encoded()) if self.count is None else self.count

    def times(self) -> Times:
        """Evenly spaced seconds, at the nominal rate."""
        return np.arange(len(self)) / self.fps

    def take(self, indices: Sequence[int]) -> Images:
        """Decode the given images, each once."""
        encoded = self._read_encoded()
        wanted = sorted(set(indices)) or [0]
        if wanted[0] < 0 or wanted[-1] >= len(encoded):
            raise BadInput(f"frame indices of {self.key}", f"0 to {len(encoded) - 1}", f"{wanted[0]} to {wanted[-1]}")
        decoded = {index: self._decode(encoded[index], index) for index in wanted}
        sizes = {image.shape for image in decoded.values()}
        if len(sizes) > 1:
            raise UnreadableVideo(self.path, f"{self.key} has images of several sizes: {sorted(sizes)}")
        images = np.empty((len(indices), *sizes.pop()), dtype=np.uint8)
        for row, index in enumerate(indices):
            images[row] = decoded[index]
        return images

    def identity(self) -> str:
        """Hash the file's identity, the position of the record and its stored checksum."""
        checksum = stored_checksum(self.path, self.offset, self.length)
        place = f"{self.offset} {self.length} {checksum}"
        return short_hash(file_identity(self.path).encode(), self.key.encode(), place.encode())

    def describe(self) -> dict[str, Any]:
        """The arguments that rebuild it."""
        return asdict(self)

    def _read_encoded(self) -> list[memoryview]:
        encoded = example_at(self.path, self.offset, self.length).get(self.key)
        if not isinstance(encoded, list):
            raise UnreadableVideo(self.path, f"the record at byte {self.offset} has no images under {self.key!r}")
        return encoded

    def _decode(self, encoded: memoryview, index: int) -> Images:
        try:
            with Image.open(io.BytesIO(encoded), formats=ENCODINGS) as image:
                return np.asarray(image.convert("RGB"))
        except NOT_AN_IMAGE as failure:
            raise UnreadableVideo(self.path, f"image {index} of {self.key} does not decode ({failure})") from None


def example_at(path: str, offset: int, length: int) -> Example:
    """Read and parse a record; the last two are cached while the file is unchanged."""
    try:
        status = Path(path).stat()
    except OSError:
        raise UnreadableVideo(path, "there is no such file") from None
    return _parse_cached(path, offset, length, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=2)
def _parse_cached(path: str, offset: int, length: int, _size: int, _mtime_ns: int) -> Example:
    return parse_example(read_record(path, offset, length), path)


OBSERVATION = "steps/observation/"
METADATA = "episode_metadata/"
SUCCESS = METADATA + "success"
INSTRUCTIONS = (
    "steps/language_instruction",
    OBSERVATION + "natural_language_instruction",
    OBSERVATION + "language_instruction",
    METADATA + "language_instruction",
    METADATA + "natural_language_instruction",
)
SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG")
LONGEST_TAG = 300


class RldsReader:
    """An RLDS dataset: `<name>/<version>`, or `<name>` with version folders, of which the newest is read."""

    def __init__(self, path: str | Path, *, split: str | None = None, fps: float = NOMINAL_FPS) -> None:
        """`split` reads one split instead of all; `fps` replaces the nominal rate."""
        self.folder = version_folder(Path(path).resolve())
        info = json_object(self.folder / "dataset_info.json")
        self._title = str(info.get("name") or self.folder.parent.name)
        self._name = safe_name(self._title)
        self._revision = str(info.get("version") or self.folder.name)
        self._lengths = shard_lengths(info, self.folder / "dataset_info.json")
        if split is not None and split not in self._lengths:
            raise UnknownName(f"split in dataset {self._title!r}", split, self._lengths)
        self._splits = list(self._lengths) if split is None else [split]
        self._specs = read_features(self.folder / "features.json")
        self._cameras = camera_keys(self._specs)
        if not self._cameras:
            raise BadInput(str(self.folder), "a colour image under steps/observation in features.json", "none")
        self._fps = fps

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self._name

    def expected(self) -> int | None:
        """The number of episodes declared in dataset_info.json."""
        lengths = [self._lengths[split] for split in self._splits]
        return sum(map(sum, lengths)) if all(lengths) else None

    def records(self) -> Iterator[Record]:
        """Stream the episodes of every shard in order."""
        for split in self._splits:
            yield from self._read_split(split)

    def _read_split(self, split: str) -> Iterator[Record]:
        place, lengths = f"{self.name}/{split}", self._lengths[split]
        sets = shard_sets(self.folder, f"{self._title}-{split}")
        if not sets:
            yield Problem(
                "missing split",
                place,
                f"{sum(lengths)} episodes are declared and no shard is there",
                False,
                sum(lengths),
            )
            return
        total = len(lengths) if len(lengths) in sets else max(sets)
        if lengths and total != len(lengths):
            detail = f"{len(lengths)} are declared, the files are of a set of {total}: read without checking lengths"
            yield Problem("wrong number of shards", place, detail, kept=True)
            lengths = []
        for other in sorted(sets.keys() - {total}):
            detail = f"{len(sets[other])} of a set of {other} next to the set of {total}"
            yield Problem("stray shards", place, detail, kept=False)
        shards = sets[total]
        if len(shards) < total:
            episodes = sum(length for index, length in enumerate(lengths) if index not in shards)
            detail = f"{total - len(shards)} of {total}" + (f", with {episodes} declared episodes" if lengths else "")
            yield Problem("missing shards", place, detail, kept=False)
        for index, path in sorted(shards.items()):
            declared = lengths[index] if index < len(lengths) else None
            yield from self._read_shard(split, f"{place}/{index:05d}", path, declared)

    def _read_shard(self, split: str, place: str, path: Path, declared: int | None) -> Iterator[Record]:
        count = 0
        try:
            for offset, length in record_spans(path):
                yield from self._read_record(
                    f"{place}/{count:06d}", split, TfRecordFrames(str(path), offset, length, "")
                )
                count += 1
        except UnreadableVideo as damage:
            of = "" if declared is None else f" of {declared}"
            yield Problem("unreadable shard", place, f"{damage.reason}; {count}{of} episodes were read", False)
            return
        if declared is not None and count != declared:
            detail = f"{declared} episodes are declared and {count} are there"
            yield Problem("wrong number of episodes", place, detail, kept=count > declared)

    def _read_record(self, episode: str, split: str, at: TfRecordFrames) -> Iterator[Record]:
        try:
            example = example_at(at.path, at.offset, at.length)
        except UnreadableVideo as damage:
            yield Problem("unreadable record", episode, damage.reason, kept=False)
            return
        steps = _step_count(example, self._cameras)
        if not steps:
            yield Problem("no steps", episode, "the record has no step", kept=False)
            return
        faults = {name: _camera_fault(example.get(key), steps) for name, key in self._cameras.items()}
        good = {name: key for name, key in self._cameras.items() if faults[name] is None}
        if not good:
            details = "; ".join(f"{name}: {fault[1]}" for name, fault in faults.items() if fault)
            yield Problem("no usable camera", episode, details, kept=False)
            return
        yield from (Problem(fault[0], episode, f"{name}: {fault[1]}", True) for name, fault in faults.items() if fault)
        texts = _instructions(example)
        if not texts:
            yield Problem(NO_INSTRUCTION, episode, f"none of {', '.join(INSTRUCTIONS)} has text", kept=True)
        elif len(texts) > 1:
            yield Problem(
                "several instructions", episode, f"the first of {len(texts)} is used: {texts[0]!r}", kept=True
            )
        signals, misfits = _signals(example, self._specs, steps)
        yield from (Problem("misshapen signal", episode, misfit, kept=True) for misfit in misfits)
        yield Episode(
            episode,
            texts[0] if texts else "",
            {n: Frames(TfRecordFrames(at.path, at.offset, at.length, k, self._fps, steps)) for n, k in good.items()},
            _outcomes(example, self._specs),
            self._origin(example, split),
            signals,
        )

    def _origin(self, example: Example, split: str) -> Origin:
        keys = [key for key in self._specs if key.startswith(METADATA) and key not in (SUCCESS, *INSTRUCTIONS)]
        tags = {key.removeprefix(METADATA): text for key in keys if (text := _tag(example.get(key)))}
        # Bridge and others keep the recordings of a session in one file: they are a group.
        return Origin(self.name, self._revision, split=split, group=tags.get("file_path", ""), tags=tags)


def _step_count(example: Example, cameras: Mapping[str, str]) -> int:
    for key in ("steps/is_first", "steps/is_last"):
        if key in example:
            return len(example[key])
    return max(len(example.get(key, [])) for key in cameras.values())


def _camera_fault(images: Feature | None, steps: int) -> tuple[str, str] | None:
    """The problem of a camera as (kind, detail), by image headers; None if it is fine."""
    if not isinstance(images, list) or not images:
        return "missing camera", "the record has no images of it"
    if len(images) != steps:
        return "camera of another length", f"{len(images)} images for {steps} steps"
    for index, image in enumerate(images):
        if not bytes(image[:4]).startswith(SIGNATURES):
            return "undecodable image", f"image {index} of {steps} is neither JPEG nor PNG"
    try:
        with Image.open(io.BytesIO(images[0]), formats=ENCODINGS) as first:
            # Converters fill a missing camera with flat images, and the has_image flags are not reliable.
            if steps > 1 and all(image == images[0] for image in images) and _is_flat(first):
                return "placeholder camera", "every image is the same flat colour"
    except NOT_AN_IMAGE as failure:
        return "undecodable image", f"image 0 of {steps}: {failure}"
    return None


def _is_flat(image: Image.Image) -> bool:
    return all(low == high for low, high in np.reshape(image.convert("RGB").getextrema(), (-1, 2)))


def _words(feature: Feature | None) -> list[str]:
    values = feature if isinstance(feature, list) else []
    return [text for value in values if (text := bytes(value).decode("utf-8", errors="replace").strip())]


def _instructions(example: Example) -> list[str]:
    for key in INSTRUCTIONS:
        if words := _words(example.get(key)):
            return list(dict.fromkeys(words))
    return []


def _tag(feature: Feature | None) -> str:
    if isinstance(feature, np.ndarray):
        return str(feature[0]) if len(feature) == 1 else ""
    return " ".join(_words(feature))[:LONGEST_TAG]


def _signals(
    example: Example, specs: Mapping[str, RldsFeature], steps: int
) -> tuple[dict[str, npt.NDArray[Any]], list[str]]:
    """Shape the signals by features.json; return those that fit, and a message for each other."""
    signals: dict[str, npt.NDArray[Any]] = {}
    misfits = []
    for key in signal_keys(specs):
        spec, values = specs[key], example.get(key)
        if values is None:
            continue
        if not isinstance(values, np.ndarray) or values.size != steps * prod(spec.shape):
            misfits.append(f"{key}: {len(values)} values for {steps} steps of shape {spec.shape}")
            continue
        short = key.removeprefix("steps/").removeprefix("observation/")
        shaped = values.reshape(steps, *spec.shape)
        signals[short if short not in signals else key] = shaped.astype(bool) if spec.dtype == "bool" else shaped
    return signals, misfits


def _outcomes(example: Example, specs: Mapping[str, RldsFeature]) -> tuple[Outcome, ...]:
    value = example.get(SUCCESS)
    if SUCCESS not in specs or specs[SUCCESS].dtype != "bool" or not isinstance(value, np.ndarray) or len(value) != 1:
        return ()
    return (Outcome("rule", success=bool(value[0]), by=SUCCESS),)


COLOURS = (3, 4)
STEP_SIGNALS = re.compile(r"steps/(action(/.+)?|observation/.+|reward|discount|is_first|is_last|is_terminal)")


@dataclass(frozen=True)
class RldsFeature:
    """A leaf of features.json; size -1 = unknown."""

    kind: str
    """image, text or tensor"""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    plain: bool = True
    """False if the numbers are stored as encoded bytes"""

    @property
    def is_colour(self) -> bool:
        """Whether this is a camera: an 8-bit image that is not depth."""
        return self.kind == "image" and self.dtype == "uint8" and (not self.shape or self.shape[-1] in (*COLOURS, -1))

    @property
    def is_numeric(self) -> bool:
        """Whether this is a tensor stored as a flat list of numbers."""
        return self.kind == "tensor" and self.plain and min(self.shape, default=1) > 0


def version_folder(path: Path) -> Path:
    """Find the folder with dataset_info.json: this one, or the newest version in it."""
    if (path / "dataset_info.json").is_file():
        return path
    versions = [
        info.parent for info in path.glob("*/dataset_info.json") if re.fullmatch(r"\d+(\.\d+)*", info.parent.name)
    ]
    if not versions:
        got = "neither that nor version folders such as 1.0.0" if path.is_dir() else "no such folder"
        raise BadInput(str(path), "an RLDS folder with dataset_info.json and features.json", got)
    return max(versions, key=lambda version: [int(part) for part in version.name.split(".")])


def json_object(path: Path) -> dict[str, Any]:
    """Load a JSON object."""
    try:
        loaded = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as failure:
        raise BadInput(str(path), "a readable JSON file", failure) from None
    if not isinstance(loaded, dict):
        raise BadInput(str(path), "a JSON object", type(loaded).__name__)
    return loaded


def shard_lengths(info: Mapping[str, Any], path: Path) -> dict[str, list[int]]:
    """Declared episodes per shard, by split; an empty list = unknown."""
    try:
        lengths = {str(split["name"]): [int(n) for n in split.get("shardLengths") or []] for split in info["splits"]}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadInput(str(path), "splits with a name and shardLengths", info.get("splits")) from None
    if not lengths:
        raise BadInput(str(path), "at least one split", "none")
    return lengths


def read_features(path: Path) -> dict[str, RldsFeature]:
    """Read the leaves of features.json by their path in a record."""
    try:
        return dict(_leaves(json_object(path), ""))
    except (AttributeError, TypeError, ValueError):
        expected = "the features that TensorFlow Datasets writes"
        raise BadInput(str(path), expected, "something that has another shape") from None


def camera_keys(specs: Mapping[str, RldsFeature]) -> dict[str, str]:
    """Map camera names to keys, sorted, with cameras on the hand last."""
    keys = [key for key, spec in specs.items() if key.startswith(OBSERVATION) and spec.is_colour]
    keys.sort(key=lambda key: (bool(re.search("wrist|hand", key)), key))
    return {key.removeprefix(OBSERVATION): key for key in keys}


def signal_keys(specs: Mapping[str, RldsFeature]) -> list[str]:
    """List the per-step signals, without instruction embeddings."""
    keys = [key for key, spec in specs.items() if spec.is_numeric and STEP_SIGNALS.fullmatch(key)]
    return [key for key in keys if "embedding" not in key]


def shard_sets(folder: Path, prefix: str) -> dict[int, dict[int, Path]]:
    """Find the shards of a split: {total number in the file name: {shard number: path}}."""
    pattern = re.compile(re.escape(prefix) + r"\.tfrecord-(\d+)-of-(\d+)")
    shards: dict[int, dict[int, Path]] = {}
    for path in sorted(folder.iterdir()):
        if match := pattern.fullmatch(path.name):
            shards.setdefault(int(match[2]), {})[int(match[1])] = path
    return shards


def _leaves(node: Mapping[str, Any], path: str, sequences: int = 0) -> Iterator[tuple[str, RldsFeature]]:
    """Walk features.json; sequences inside the steps are ragged and skipped."""
    if "featuresDict" in node:
        for name, child in node["featuresDict"].get("features", {}).items():
            yield from _leaves(child, f"{path}/{name}" if path else name, sequences)
    elif "sequence" in node and not sequences:
        yield from _leaves(node["sequence"].get("feature", {}), path, 1)
    elif "image" in node:
        yield path, RldsFeature("image", _shape(node["image"]), node["image"].get("dtype") or "uint8")
    elif "text" in node:
        yield path, RldsFeature("text")
    elif "tensor" in node:
        tensor = node["tensor"]
        words = tensor.get("dtype") in ("string", "object")
        plain = str(tensor.get("encoding") or "none").lower() == "none"
        yield path, RldsFeature("text" if words else "tensor", _shape(tensor), tensor.get("dtype", ""), plain)


def _shape(leaf: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(size) for size in (leaf.get("shape") or {}).get("dimensions", []))
