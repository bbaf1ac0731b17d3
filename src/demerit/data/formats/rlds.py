"""RLDS datasets (Open X-Embodiment and everything else that TensorFlow Datasets wrote), read without TensorFlow.

    <name>/<version>/dataset_info.json                       name, version, splits and how many episodes each shard has
    <name>/<version>/features.json                           what the records hold: a tree of features
    <name>/<version>/<name>-<split>.tfrecord-00000-of-00012  one tf.train.Example per episode

An Example is flat: `steps/<path>` holds the values of all steps, one after another. RLDS records no times: episodes
are timed at a nominal 5 frames a second unless `fps` says otherwise.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from demerit.data.dataset import Problem, Record
from demerit.data.episode import Episode, Origin, safe_name
from demerit.data.formats.rlds_frames import ENCODINGS, NOMINAL_FPS, NOT_AN_IMAGE, TfRecordFrames, example_at
from demerit.data.formats.rlds_layout import (
    OBSERVATION,
    Spec,
    camera_keys,
    features,
    json_object,
    shard_lengths,
    shard_sets,
    signal_keys,
    version_folder,
)
from demerit.data.formats.tfrecord import Example, Feature, record_spans
from demerit.data.frames import Frames
from demerit.data.labels import Outcome
from demerit.errors import BadInput, UnknownName, UnreadableVideo

__all__ = ["RldsReader", "TfRecordFrames"]

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
    """An RLDS dataset: `<name>/<version>`, or `<name>` with version folders in it, of which the newest is read."""

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
        self._specs = features(self.folder / "features.json")
        self._cameras = camera_keys(self._specs)
        if not self._cameras:
            raise BadInput(str(self.folder), "a colour image under steps/observation in features.json", "none")
        self._fps = fps

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self._name

    def expected(self) -> int | None:
        """How many episodes dataset_info.json declares, on disk or not."""
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
            detail = f"{len(sets[other])} of a set of {other} beside the set of {total}"
            yield Problem("stray shards", place, detail, kept=False)
        shards = sets[total]
        if len(shards) < total:
            gone = sum(length for index, length in enumerate(lengths) if index not in shards)
            detail = f"{total - len(shards)} of {total}" + (f", with {gone} declared episodes" if lengths else "")
            yield Problem("missing shards", place, detail, kept=False)
        for index, path in sorted(shards.items()):
            declared = lengths[index] if index < len(lengths) else None
            yield from self._read_shard(split, f"{place}/{index:05d}", path, declared)

    def _read_shard(self, split: str, place: str, path: Path, declared: int | None) -> Iterator[Record]:
        found = 0
        try:
            for offset, length in record_spans(path):
                yield from self._read_record(
                    f"{place}/{found:06d}", split, TfRecordFrames(str(path), offset, length, "")
                )
                found += 1
        except UnreadableVideo as damage:
            of = "" if declared is None else f" of {declared}"
            yield Problem("unreadable shard", place, f"{damage.reason}; {found}{of} episodes were read", False)
            return
        if declared is not None and found != declared:
            detail = f"{declared} episodes are declared and {found} are there"
            yield Problem("wrong number of episodes", place, detail, kept=found > declared)

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
            told = "; ".join(f"{name}: {fault[1]}" for name, fault in faults.items() if fault)
            yield Problem("no usable camera", episode, told, kept=False)
            return
        yield from (Problem(fault[0], episode, f"{name}: {fault[1]}", True) for name, fault in faults.items() if fault)
        texts = _instructions(example)
        if not texts:
            yield Problem("empty instruction", episode, f"none of {', '.join(INSTRUCTIONS)} has words", kept=True)
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
        # Bridge and others keep the recordings of one session in one file: splits should not cut through it.
        return Origin(self.name, self._revision, split=split, group=tags.get("file_path", ""), tags=tags)


def _step_count(example: Example, cameras: Mapping[str, str]) -> int:
    for key in ("steps/is_first", "steps/is_last"):
        if key in example:
            return len(example[key])
    return max(len(example.get(key, [])) for key in cameras.values())


def _camera_fault(images: Feature | None, steps: int) -> tuple[str, str] | None:
    """Say what is wrong with a camera as (kind, detail); headers are looked at, pixels are not decoded."""
    if not isinstance(images, list) or not images:
        return "missing camera", "the record has no images of it"
    if len(images) != steps:
        return "camera of another length", f"{len(images)} images for {steps} steps"
    for index, image in enumerate(images):
        if not bytes(image[:4]).startswith(SIGNATURES):
            return "undecodable image", f"image {index} of {steps} is neither JPEG nor PNG"
    try:
        with Image.open(io.BytesIO(images[0]), formats=ENCODINGS) as first:
            # Converters fill an absent camera with one flat picture; the has_image flags beside it are not reliable.
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


def _signals(example: Example, specs: Mapping[str, Spec], steps: int) -> tuple[dict[str, npt.NDArray[Any]], list[str]]:
    """Shape the numbers by features.json; return those that fit and a sentence for each that does not."""
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


def _outcomes(example: Example, specs: Mapping[str, Spec]) -> tuple[Outcome, ...]:
    value = example.get(SUCCESS)
    if SUCCESS not in specs or specs[SUCCESS].dtype != "bool" or not isinstance(value, np.ndarray) or len(value) != 1:
        return ()
    return (Outcome("rule", success=bool(value[0]), by=SUCCESS),)
