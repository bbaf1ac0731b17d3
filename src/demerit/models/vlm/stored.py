"""Tensors in safetensors files: which file holds which name, without reading any of them yet.

Pickles are not weights here: a folder that has only those is refused, because opening one runs whatever is in it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from demerit.errors import BadInput
from demerit.models.vlm.hub import revision_of

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
NUMBERS = ("F32", "BF16", "F16")
"""kinds of number that weights may have; others are quantised, which needs more than a name to undo"""
BLOB = re.compile(r"[0-9a-f]{64}")
CHUNK = 1 << 24


@dataclass(frozen=True)
class Stored:
    """One tensor in a file."""

    file: Path
    name: str
    shape: tuple[int, ...]
    kind: str
    """as safetensors writes it: F32, BF16, F16"""


def stored_in(file: Path) -> dict[str, Stored]:
    """List the tensors of one file from its header."""
    if not file.is_file():
        raise BadInput(
            str(file), "a file of weights (a download that was cut off is finished by fetching again)", "none"
        )
    found = {}
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():
                part = opened.get_slice(name)
                found[name] = Stored(file, name, tuple(part.get_shape()), str(part.get_dtype()))
    except (SafetensorError, OSError) as error:
        raise BadInput(str(file), "a whole safetensors file; fetch or copy it again", error) from error
    odd = sorted({one.kind for one in found.values()} - set(NUMBERS))
    if odd:
        advice = "give the checkpoint from before it was quantised"
        raise BadInput(str(file), f"weights of kind {', '.join(NUMBERS)} ({advice})", ", ".join(odd))
    return found


def has_weights(folder: Path) -> bool:
    """Whether a folder holds a whole model's weights, or claims to."""
    return (folder / INDEX).is_file() or (folder / SINGLE).is_file()


def stored_model(folder: Path) -> dict[str, Stored]:
    """List the tensors of a model: one file, or the shards that its index names, each exactly as the index says."""
    if (folder / INDEX).is_file():
        return _sharded(folder)
    if (folder / SINGLE).is_file():
        return stored_in(folder / SINGLE)
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        advice = "pickles can run code and are not opened; save the model with safe_serialization=True"
        raise BadInput(str(folder), f"weights as safetensors ({advice})", f"only {', '.join(pickles[:3])}")
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    got = f"shards without their index ({', '.join(shards[:3])})" if shards else "no weights"
    if revision_of(folder) is not None:
        got += ": the download was cut off (the same command, with a connection to the hub, finishes it)"
    raise BadInput(str(folder), f"{SINGLE}, or shards with {INDEX}", got)


def _sharded(folder: Path) -> dict[str, Stored]:
    where = read_json(folder / INDEX).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(file, str) for file in where.values()):
        raise BadInput(str(folder / INDEX), "a weight_map from names to files", type(where).__name__)
    found: dict[str, Stored] = {}
    for file in sorted(set(where.values())):
        if Path(file).name != file:
            raise BadInput(str(folder / INDEX), "names of files in the same folder", repr(file))
        inside = stored_in(folder / file)
        promised = {name for name, there in where.items() if there == file}
        if promised != set(inside):
            odd = sorted(promised ^ set(inside))
            got = f"{len(odd)} names in only one of the two, such as {odd[0]}"
            raise BadInput(str(folder / file), f"the tensors that {INDEX} lists (fetch the folder again)", got)
        found |= inside
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; anything else is a sentence."""
    try:
        facts = json.loads(path.read_bytes())
    except OSError as error:
        raise BadInput(str(path), "a readable file", error.strerror or error) from error
    except ValueError as error:
        raise BadInput(str(path), "JSON", f"something else ({error})") from error
    if not isinstance(facts, dict):
        raise BadInput(str(path), "an object", f"a {type(facts).__name__}")
    return facts


def file_hash(file: Path) -> str:
    """Return the sha256 of a file; one that the hub's cache holds is named after it and is not read again."""
    blob = file.resolve()
    if blob.parent.name == "blobs" and BLOB.fullmatch(blob.name):
        return blob.name
    facts = file.stat()
    return _hash_of(blob, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=256)
def _hash_of(file: Path, size: int, changed: int) -> str:
    """Read gigabytes once, however often a checkpoint is asked who it is; another size or time is another file."""
    total = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK):
            total.update(chunk)
    return total.hexdigest()


class Reader:
    """Opened files: each is mapped once, and a tensor's bytes are read when it is asked for."""

    def __init__(self) -> None:
        """Open nothing yet."""
        self._stack = ExitStack()
        self._opened: dict[Path, Any] = {}

    def __enter__(self) -> Reader:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close every file."""
        self._stack.close()

    def tensor(self, stored: Stored) -> torch.Tensor:
        """Read one tensor into the processor's memory, as it is on disk."""
        if stored.file not in self._opened:
            self._opened[stored.file] = self._stack.enter_context(safe_open(stored.file, framework="pt"))
        read: torch.Tensor = self._opened[stored.file].get_tensor(stored.name)
        return read


def differing(some: dict[str, Stored], others: dict[str, Stored], names: Iterable[str]) -> Iterator[str]:
    """Name the tensors that two files both have and disagree about."""
    with Reader() as reader:
        for name in names:
            one, other = reader.tensor(some[name]), reader.tensor(others[name])
            if one.shape != other.shape or not torch.equal(one, other.to(one.dtype)):
                yield name
