"""What a trained network's folder says about itself, and whether its files are the ones it speaks of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demerit.data.frames import short_hash
from demerit.errors import BadInput

INFO, TOWER, TEMPORAL, WORDS = "network.json", "tower.onnx", "temporal.onnx", "words.npz"
FILES = (TOWER, TEMPORAL, WORDS)
FORMAT = 1
SIZES = ("size", "features", "vector", "words", "state", "hidden", "bins")
TEXTS = ("licence", "revision")
AGAIN = "copy the folder again, or install demerit again"


@dataclass(frozen=True)
class NetworkInfo:
    """A network's sizes and papers."""

    size: int
    """pictures are looked at in so many pixels a side"""
    features: int
    """numbers a frame"""
    vector: int
    """how many of them, the first, are what the tower says of the frame; the rest is a middle layer's, by place"""
    words: int
    """numbers an instruction"""
    state: int
    """numbers that are remembered from frame to frame"""
    hidden: int
    bins: int
    licence: str
    revision: str
    trained_on: tuple[str, ...]
    """the datasets that it learned from, as their licences ask to be named"""
    sha256: Mapping[str, str]
    """each file's hash"""

    @classmethod
    def read(cls, folder: Path) -> NetworkInfo:
        """Read a folder's network.json strictly."""
        path = folder / INFO
        if not path.is_file():
            there = "a folder without it" if folder.is_dir() else "no such folder"
            raise BadInput(str(folder), f"a trained network, described by {INFO}", there)
        try:
            facts = json.loads(path.read_bytes())
        except ValueError as error:
            raise BadInput(str(path), f"JSON ({AGAIN})", f"something else ({error})") from error
        return cls._checked(path, facts)

    @classmethod
    def _checked(cls, path: Path, facts: Any) -> NetworkInfo:
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            found = facts.get("format") if isinstance(facts, dict) else type(facts).__name__
            raise BadInput(str(path), f"format {FORMAT} (another may need a newer demerit)", found)
        needed = {"format", *SIZES, *TEXTS, "trained_on", "sha256"}
        if set(facts) != needed:
            missing, extra = sorted(needed - set(facts)), sorted(set(facts) - needed)
            raise BadInput(str(path), f"the fields {', '.join(sorted(needed))}", f"missing: {missing}, extra: {extra}")
        for name in SIZES:
            if type(facts[name]) is not int or facts[name] < 1:
                raise BadInput(f"{path}, {name}", "a whole number from 1 on", repr(facts[name]))
        for name in TEXTS:
            if not isinstance(facts[name], str) or not facts[name]:
                raise BadInput(f"{path}, {name}", "some text", repr(facts[name]))
        named = facts["trained_on"]
        if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
            raise BadInput(f"{path}, trained_on", "a list of texts", repr(named))
        sums = facts["sha256"]
        if not isinstance(sums, dict) or set(sums) != set(FILES) or not all(isinstance(v, str) for v in sums.values()):
            raise BadInput(f"{path}, sha256", f"a hash for each of {', '.join(FILES)}", repr(sums))
        plain = {name: facts[name] for name in (*SIZES, *TEXTS)}
        return cls(**plain, trained_on=tuple(named), sha256=dict(sums))

    def check_files(self, folder: Path) -> None:
        """Refuse files that are not, to the last bit, those that were written down."""
        for name, written in self.sha256.items():
            path = folder / name
            try:
                found = hashlib.sha256(path.read_bytes()).hexdigest()
            except OSError as error:
                raise BadInput(str(path), f"a file of the network ({AGAIN})", error.strerror or error) from error
            if found != written:
                got = f"another or a damaged one (sha256 {found[:12]})"
                raise BadInput(str(path), f"the file that {INFO} speaks of, sha256 {written[:12]} ({AGAIN})", got)

    def hash(self) -> str:
        """Identify the network by the contents of its files."""
        return short_hash(*(f"{name} {self.sha256[name]}".encode() for name in FILES))
