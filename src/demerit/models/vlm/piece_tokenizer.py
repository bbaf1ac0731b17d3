"""Read a SentencePiece tokenizer (tokenizer.model) without the sentencepiece package.

InternLM2, VLAC's language model, is published with tokenizer.model alone. The file is a protocol buffer with the pieces
and their scores. BPE joins the two neighbours whose joint piece has the highest score, so the pieces in the order of
their scores are the merges.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from demerit.data.untrusted import read_json
from demerit.errors import BadInput
from demerit.models.vlm.prompt import PromptTokenizer

PIECES, TOKENIZER_CONFIG = "tokenizer.model", "tokenizer_config.json"
SPACE = "\u2581"
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""kinds of pieces"""
BPE = 2
"""kind of model"""
VARINT, EIGHT_BYTES, TEXT, FOUR_BYTES = 0, 1, 2, 5
"""kinds of fields"""


@dataclass(frozen=True)
class PieceTable:
    """The contents of tokenizer.model."""

    pieces: tuple[tuple[str, float, int], ...]
    """text, score and kind, by id"""
    prefix: bool
    """a space is put before the text"""
    characters: bytes
    """compiled normalisation of characters; empty: none"""

    @classmethod
    def from_bytes(cls, stored: bytes) -> PieceTable:
        """Parse the file; raise ValueError if it is something else or is not BPE that keeps white space."""
        pieces, trainer, normalizer = [], {}, {}
        for number, value in _fields(stored):
            if number == 1:
                piece = {3: NORMAL, **dict(_fields(_as_bytes(value)))}
                (score,) = struct.unpack("<f", _as_bytes(piece.get(2, b"\0\0\0\0")))
                pieces.append((_as_bytes(piece[1]).decode(), score, int(piece[3])))
            elif number == 2:  # noqa: PLR2004
                trainer = dict(_fields(_as_bytes(value)))
            elif number == 3:  # noqa: PLR2004
                normalizer = dict(_fields(_as_bytes(value)))
        if trainer.get(3, 1) != BPE or normalizer.get(4, 1):
            raise ValueError("not a BPE model that keeps white space as it is")
        return cls(tuple(pieces), bool(normalizer.get(3, 1)), _as_bytes(normalizer.get(2, b"")))

    def rename(self, added: Mapping[int, str]) -> PieceTable:
        """Put added tokens in the places of unused pieces; those after the last piece have no place."""
        pieces = [(added[at], 0.0, CONTROL) if at in added else piece for at, piece in enumerate(self.pieces)]
        return replace(self, pieces=tuple(pieces))

    def merges(self) -> list[tuple[str, str]]:
        """List the pairs to join, first ones first."""
        known = {text: place for place, (text, _, kind) in enumerate(self.pieces) if kind == NORMAL}
        found = []
        for text, score, kind in self.pieces:
            if kind == NORMAL:
                pairs = ((text[:at], text[at:]) for at in range(1, len(text)))
                places = sorted((known[a], known[b]) for a, b in pairs if a in known and b in known)
                found += [(-score, (self.pieces[a][0], self.pieces[b][0])) for a, b in places]
        found.sort(key=lambda item: item[0])
        return [pair for _, pair in found]


def read_piece_tokenizer(folder: Path) -> PromptTokenizer:
    """Read tokenizer.model and the added tokens of tokenizer_config.json, which may rename unused pieces."""
    path = folder / PIECES
    try:
        stored = path.read_bytes()
        table = PieceTable.from_bytes(stored)
    except OSError as error:
        raise BadInput(str(path), "a readable file", error.strerror or error) from error
    except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
        raise BadInput(str(path), "a SentencePiece model of kind BPE (download or copy it again)", error) from error
    where = folder / TOKENIZER_CONFIG
    added = _read_added_tokens(read_json(where), str(where))
    backend = _build(table.rename(added), added)
    for at, text in added.items():
        if backend.token_to_id(text) != at:
            raise BadInput(str(where), f"{text} as one token, {at}", backend.token_to_id(text))
    said = json.dumps(added, sort_keys=True).encode()
    return PromptTokenizer(backend, hashlib.sha256(said + b"\0" + stored).hexdigest())


def _read_added_tokens(config: dict[str, Any], where: str) -> dict[int, str]:
    said = config.get("added_tokens_decoder")
    try:
        return {int(at): str(token["content"]) for at, token in said.items()}  # type: ignore[union-attr]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(where, "added_tokens_decoder, from ids to tokens", repr(said)[:80]) from error


def _build(table: PieceTable, added: dict[int, str]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers  # noqa: PLC0415  part of an extra

    texts = dict(enumerate(text for text, _, _ in table.pieces)) | added
    vocabulary = {text: at for at, text in texts.items()}
    model = models.BPE(vocabulary, table.merges(), fuse_unk=True, byte_fallback=True, unk_token=table.pieces[0][0])
    backend = Tokenizer(model)
    steps: list[Any] = [normalizers.Precompiled(table.characters)] if table.characters else []
    steps += [normalizers.Prepend(SPACE)] if table.prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    whole = [text for text, _, kind in table.pieces if kind == USER_DEFINED]
    backend.add_tokens([AddedToken(text, normalized=False) for text in whole])
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in added.values()])
    return backend


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of every field of a protocol buffer message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        size = {EIGHT_BYTES: 8, FOUR_BYTES: 4}.get(key & 7, 0)
        if key & 7 == VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if key & 7 == TEXT:
            size, at = _varint(data, at)
        elif not size:
            raise ValueError(f"a field of the unknown kind {key & 7}")
        if at + size > len(data):
            raise ValueError("the file ends too early")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if shift > 63:  # noqa: PLR2004
            raise ValueError("a number of more than 64 bits")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:  # noqa: PLR2004
            return value, at


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where bytes belong")
    return value
