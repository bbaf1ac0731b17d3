"""The text encoder: an instruction becomes 192 numbers, with numpy alone.

The vector has four parts (`PARTS`):

    sentence 112   what the instruction is about; follows a sentence model's geometry (compare by cosine)
    what      30   the object that is moved or handled
    where     30   the place it goes to or comes from (near zero when none is named)
    signs     20   opposites: open/close, left/right, into/out of ..., about -3 to 3

So "put the cup on the plate" and "put the plate on the cup" differ, which a mean of word vectors cannot express.

TextEncoder are split into known pieces (greedy, longest first, as BERT does), each piece has a vector, two small
convolutions mix neighbours, four attention heads pool the pieces, and a linear map gives the parts.

Distilled from sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0); most pieces are from BERT's uncased vocabulary
(Apache-2.0). The file's own `about` names them too.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.instructions import plain_words
from demerit.data.untrusted import parse_json, read_npz
from demerit.errors import BadInput

Floats = npt.NDArray[np.float32]

FORMAT = 1
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
    found: list[str] = []
    start = 0
    while start < len(word):
        mark = "##" if start else ""
        for end in range(min(len(word), start + longest), start, -1):
            piece = mark + word[start:end]
            if piece in known:
                break
        else:
            return []
        found.append(piece)
        start = end
    return found


class TextEncoder:
    """A loaded text encoder."""

    def __init__(
        self, pieces: list[str], vectors: Floats, weights: Mapping[str, Floats], about: dict[str, Any]
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

    def knows(self, word: str) -> bool:
        """Whether a lower-case word is one piece of the vocabulary."""
        return word in self._index

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

    def vector(self, instruction: str) -> Floats | None:
        """Return the instruction's vector (`WIDTH`,), or None when it is blank or has no known piece."""
        pieces = self.pieces(instruction)
        if not pieces:
            return None
        return self._encode(self._vectors[[self._index[piece] for piece in pieces]])

    def _encode(self, seen: Floats) -> Floats:
        weights, share = self._weights, np.float32(1 / len(seen))
        whole = np.add.reduce(seen) * share
        near = _convolve(seen, weights["near"]) + np.add.reduce(seen @ weights["whole"]) * share
        near += weights["near_bias"]
        far = _convolve(np.maximum(near, 0), weights["far"]) + weights["far_bias"]
        far = np.maximum(far, 0)
        picks = far @ weights["heads"]
        picks = np.exp(picks - picks.max(axis=0))
        picks /= picks.sum(axis=0)
        summary = np.concatenate([whole, (picks.T @ seen).ravel(), np.add.reduce(far) * share])
        # Two rows and two halves: products of this size stay on one thread, which is faster.
        pair, middle = np.stack([summary, summary]), PARTS["sentence"].stop
        sentence, meaning = (pair @ weights["out"][:, half] for half in (slice(0, middle), slice(middle, WIDTH)))
        found: Floats = np.concatenate([sentence[0], meaning[0]]) + weights["out_bias"]
        found[:middle] *= np.float32(np.sqrt(middle) / max(float(np.sqrt(found[:middle] @ found[:middle])), 1e-6))
        return found


def save_text_encoder(
    path: Path, pieces: list[str], vectors: Floats, weights: Mapping[str, Floats], about: dict[str, Any]
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


def _convolve(rows: Floats, weight: Floats) -> Floats:
    """Convolve rows over a window of `SPAN`, zero-padded."""
    count, width = rows.shape
    padded = np.zeros((count + SPAN - 1, width), np.float32)
    padded[SPAN // 2 : SPAN // 2 + count] = rows
    total: Floats = padded[:count] @ weight[:width]
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
