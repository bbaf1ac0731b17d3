"""What an RLDS folder says about itself: dataset_info.json, features.json and the names of its shards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demerit.errors import BadInput

COLOURS = (3, 4)
OBSERVATION = "steps/observation/"
STEP_SIGNALS = re.compile(r"steps/(action(/.+)?|observation/.+|reward|discount|is_first|is_last|is_terminal)")


@dataclass(frozen=True)
class Spec:
    """One leaf of features.json; a size of -1 is unknown."""

    kind: str
    """image, text or tensor"""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    plain: bool = True
    """False when the numbers are stored as encoded bytes"""

    @property
    def is_colour(self) -> bool:
        """Whether this is a camera: an 8-bit image that is not known to be depth."""
        return self.kind == "image" and self.dtype == "uint8" and (not self.shape or self.shape[-1] in (*COLOURS, -1))

    @property
    def is_numeric(self) -> bool:
        """Whether this is a tensor that a flat list of numbers fills."""
        return self.kind == "tensor" and self.plain and min(self.shape, default=1) > 0


def version_folder(path: Path) -> Path:
    """Find the folder that holds dataset_info.json: this one, or the newest version in it."""
    if (path / "dataset_info.json").is_file():
        return path
    found = [info.parent for info in path.glob("*/dataset_info.json") if re.fullmatch(r"\d+(\.\d+)*", info.parent.name)]
    if not found:
        got = "neither that nor version folders such as 1.0.0" if path.is_dir() else "no such folder"
        raise BadInput(str(path), "an RLDS folder with dataset_info.json and features.json", got)
    return max(found, key=lambda version: [int(part) for part in version.name.split(".")])


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
    """Return how many episodes every shard of every split is declared to have; an empty list is unknown."""
    try:
        found = {str(split["name"]): [int(n) for n in split.get("shardLengths") or []] for split in info["splits"]}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadInput(str(path), "splits with a name and shardLengths", info.get("splits")) from None
    if not found:
        raise BadInput(str(path), "at least one split", "none")
    return found


def features(path: Path) -> dict[str, Spec]:
    """Read features.json into its leaves, by their path in a record."""
    try:
        return dict(_leaves(json_object(path), ""))
    except (AttributeError, TypeError, ValueError):
        expected = "the features that TensorFlow Datasets writes"
        raise BadInput(str(path), expected, "something that has another shape") from None


def camera_keys(specs: Mapping[str, Spec]) -> dict[str, str]:
    """Map camera names to keys: by name, with cameras on the hand after those that see the scene."""
    keys = [key for key, spec in specs.items() if key.startswith(OBSERVATION) and spec.is_colour]
    keys.sort(key=lambda key: (bool(re.search("wrist|hand", key)), key))
    return {key.removeprefix(OBSERVATION): key for key in keys}


def signal_keys(specs: Mapping[str, Spec]) -> list[str]:
    """List the per-step numbers that are worth keeping: embeddings of the instruction are not."""
    keys = [key for key, spec in specs.items() if spec.is_numeric and STEP_SIGNALS.fullmatch(key)]
    return [key for key in keys if "embedding" not in key]


def shard_sets(folder: Path, prefix: str) -> dict[int, dict[int, Path]]:
    """Find the shards of a split: for every "of" number in a file name, the files by their own number."""
    pattern = re.compile(re.escape(prefix) + r"\.tfrecord-(\d+)-of-(\d+)")
    found: dict[int, dict[int, Path]] = {}
    for path in sorted(folder.iterdir()):
        if match := pattern.fullmatch(path.name):
            found.setdefault(int(match[2]), {})[int(match[1])] = path
    return found


def _leaves(node: Mapping[str, Any], path: str, sequences: int = 0) -> Iterator[tuple[str, Spec]]:
    """Walk features.json; a sequence inside the steps is ragged, stored another way, and left out."""
    if "featuresDict" in node:
        for name, child in node["featuresDict"].get("features", {}).items():
            yield from _leaves(child, f"{path}/{name}" if path else name, sequences)
    elif "sequence" in node and not sequences:
        yield from _leaves(node["sequence"].get("feature", {}), path, 1)
    elif "image" in node:
        yield path, Spec("image", _shape(node["image"]), node["image"].get("dtype") or "uint8")
    elif "text" in node:
        yield path, Spec("text")
    elif "tensor" in node:
        tensor = node["tensor"]
        words = tensor.get("dtype") in ("string", "object")
        plain = str(tensor.get("encoding") or "none").lower() == "none"
        yield path, Spec("text" if words else "tensor", _shape(tensor), tensor.get("dtype", ""), plain)


def _shape(leaf: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(size) for size in (leaf.get("shape") or {}).get("dimensions", []))
