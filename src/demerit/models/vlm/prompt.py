"""Prompts as blocks of tokens: text, and slots for images.

The chat template is our own, so that a library update cannot change what a checkpoint reads; tests compare it with the
tokens of the whole text. Blocks end where the caller chooses, always next to a special token, so that no word is split.

SentencePiece tokenizers (tokenizer.model) are read without the sentencepiece package: InternLM2, VLAC's language model,
is published with that file alone. It is a protocol buffer with the pieces
and their scores. BPE joins the two neighbours whose joint piece has the highest score, so the pieces in the order of
their scores are the merges.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from demerit.data.arrays import Ints
from demerit.data.files import read_json
from demerit.errors import BadInput
from demerit.models.vlm.config import VLMShape

TEMPLATE = "qwen3-vl-chat-1"
"""version of the chat template; part of every card's revision"""
IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
OPENS_SPECIAL = "<|"
"""every special token starts with this"""
ANSWER = "<|im_start|>assistant\n"
"""opens the model's turn"""


@cache
def load_prompts(model: str) -> Mapping[str, Any]:
    """Return the prompts that a published model was trained with, and their version (assets/vlm/<model>.yaml)."""
    text = files("demerit").joinpath(f"assets/vlm/{model}.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


@dataclass(frozen=True)
class ImageSlot:
    """A place for an image of rows x columns tokens."""

    key: Hashable
    """which image; equal keys mean the same pixels"""
    rows: int
    columns: int
    token: str = IMAGE


@dataclass(frozen=True)
class BlockEnd:
    """A block ends here."""


CUT = BlockEnd()
Piece = str | ImageSlot | BlockEnd


@dataclass(frozen=True)
class TokenBlock:
    """Tokens that are shared or computed together: text with at most one image."""

    ids: tuple[int, ...]
    image: ImageSlot | None = None
    at: int = 0
    """index of the image's first token"""

    def __len__(self) -> int:
        """Count the tokens."""
        return len(self.ids)

    def __hash__(self) -> int:
        """Hash once: building a tree looks up blocks thousands of times."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.ids, self.image))

    @cached_property
    def advance(self) -> int:
        """How far this block moves the position; an image counts as its longer side."""
        if self.image is None:
            return len(self.ids)
        rows, columns = self.image.rows, self.image.columns
        return len(self.ids) - rows * columns + max(rows, columns)

    @property
    def positions(self) -> Ints:
        """(3, tokens): time, height and width position of every token, relative to the block's start."""
        image = self.image
        return _positions(len(self.ids), self.at, *((image.rows, image.columns) if image else (0, 0)))

    def with_image(self, key: Hashable) -> TokenBlock:
        """Return the same block with another image of the same size."""
        if self.image is None:
            raise BadInput("block", "a block with an image", "text only")
        return replace(self, image=replace(self.image, key=key))


@cache
def _positions(length: int, at: int, rows: int, columns: int) -> Ints:
    if not rows:
        return np.tile(np.arange(length), (3, 1))
    tall, wide = (grid.ravel() for grid in np.indices((rows, columns)))
    image = np.stack([np.zeros(rows * columns, np.int64), tall, wide]) + at
    rest = np.arange(length - at - rows * columns) + at + max(rows, columns)
    return np.concatenate([np.tile(np.arange(at), (3, 1)), image, np.tile(rest, (3, 1))], axis=1)


def is_plain_text(instruction: str) -> bool:
    """Whether an instruction can stand in a prompt, i.e. contains no special token."""
    return OPENS_SPECIAL not in instruction


class PromptTokenizer:
    """Text to token ids, with special tokens by name."""

    def __init__(self, backend: Any, fingerprint: str = "") -> None:
        """Wrap a `tokenizers.Tokenizer`; `fingerprint` identifies its file and the added tokens."""
        self._backend, self.fingerprint = backend, fingerprint

    @classmethod
    def read(cls, path: Path, added: Sequence[str] = ()) -> PromptTokenizer:
        """Read tokenizer.json and add special tokens in the order given."""
        from tokenizers import AddedToken, Tokenizer  # noqa: PLC0415  part of an extra

        try:
            stored = path.read_bytes()
        except OSError as error:
            raise BadInput(str(path), "a readable file", error.strerror or error) from error
        try:
            backend = Tokenizer.from_buffer(stored)
        except Exception as error:  # the library raises nothing more specific
            got = f"something else ({error})" if stored else "an empty file"
            raise BadInput(str(path), "a complete tokenizer.json (download or copy it again)", got) from error
        backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in added])
        return cls(backend, hashlib.sha256("\0".join(added).encode() + b"\0" + stored).hexdigest())

    def __len__(self) -> int:
        """Count the tokens, including special ones."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def ids(self, text: str) -> list[int]:
        """Encode text, special tokens by their names."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def id(self, special: str) -> int:
        """Return the id of a special token."""
        number = self._backend.token_to_id(special)
        if number is None:
            raise BadInput("tokenizer.json", f"the token {special}", "a vocabulary without it")
        return int(number)

    def has_special(self, text: str) -> bool:
        """Whether a text contains a special token by its name."""
        return any(
            token.special and token.content in text for token in self._backend.get_added_tokens_decoder().values()
        )

    def text(self, ids: Iterable[int]) -> str:
        """Decode ids to text without special tokens."""
        return str(self._backend.decode(list(ids), skip_special_tokens=True))


def check_tokenizer(tokens: PromptTokenizer, shape: VLMShape, where: str) -> None:
    """Raise BadInput if the tokenizer does not belong to the network."""
    for name, row in (
        (IMAGE, shape.image_token),
        (VIDEO, shape.video_token),
        (VISION_START, shape.vision_start),
        (VISION_END, shape.vision_end),
    ):
        if tokens.id(name) != row:
            raise BadInput(f"tokenizer of {where}", f"{name} as token {row}, as in config.json", tokens.id(name))
    if len(tokens) > shape.text.vocabulary:
        rows = shape.text.vocabulary
        raise BadInput(f"tokenizer of {where}", f"at most {rows} tokens, the rows of the embedding", len(tokens))


def check_added_tokens(tokens: PromptTokenizer, added: Sequence[str], shape: VLMShape, where: str) -> None:
    """Raise BadInput unless the added tokens are the last rows of the embedding table, where they were trained."""
    rows = list(range(shape.text.vocabulary - len(added), shape.text.vocabulary))
    ids = [tokens.id(name) for name in added]
    if ids != rows:
        expected = f"{', '.join(added)} as the last rows of the embedding table, {rows[0]} to {rows[-1]}"
        raise BadInput(f"tokenizer of {where}", f"{expected} (this tokenizer belongs to another model)", ids)


def user_turn(*pieces: Piece, then: str = "") -> list[Piece]:
    """Wrap pieces as a user's turn; `then` follows it (the opening of the answer, or nothing)."""
    return ["<|im_start|>user\n", *pieces, "<|im_end|>\n", *([then] if then else [])]


def build_blocks(pieces: Sequence[Piece], tokens: PromptTokenizer, shape: VLMShape) -> tuple[TokenBlock, ...]:
    """Tokenize pieces into blocks."""
    blocks, some = [], []
    for piece in [*pieces, CUT]:
        if not isinstance(piece, BlockEnd):
            some.append(piece)
        elif some:
            blocks.append(_build_block(some, tokens, shape))
            some = []
    return tuple(blocks)


def _build_block(pieces: Sequence[str | ImageSlot], tokens: PromptTokenizer, shape: VLMShape) -> TokenBlock:
    """Tokenize one block; special tokens separate the text before and after its image."""
    images = [piece for piece in pieces if isinstance(piece, ImageSlot)]
    if len(images) > 1:
        raise BadInput("block", "at most one image", f"{len(images)}")
    text = "".join(piece if isinstance(piece, str) else _spell_image(piece) for piece in pieces)
    if not images:
        return TokenBlock(tuple(tokens.ids(text)))
    image = images[0]
    before, after = (tokens.ids(part) for part in text.split(image.token))
    fill = shape.image_token if image.token == IMAGE else shape.video_token
    ids = (*before, *[fill] * (image.rows * image.columns), *after)
    return TokenBlock(ids, image, len(before))


def _spell_image(image: ImageSlot) -> str:
    return f"{VISION_START}{image.token}{VISION_END}"


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
        ranks = {text: place for place, (text, _, kind) in enumerate(self.pieces) if kind == NORMAL}
        merges = []
        for text, score, kind in self.pieces:
            if kind == NORMAL:
                pairs = ((text[:at], text[at:]) for at in range(1, len(text)))
                places = sorted((ranks[a], ranks[b]) for a, b in pairs if a in ranks and b in ranks)
                merges += [(-score, (self.pieces[a][0], self.pieces[b][0])) for a, b in places]
        merges.sort(key=lambda item: item[0])
        return [pair for _, pair in merges]


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
    content = json.dumps(added, sort_keys=True).encode()
    return PromptTokenizer(backend, hashlib.sha256(content + b"\0" + stored).hexdigest())


def _read_added_tokens(config: dict[str, Any], where: str) -> dict[int, str]:
    tokens = config.get("added_tokens_decoder")
    try:
        return {int(at): str(token["content"]) for at, token in tokens.items()}  # type: ignore[union-attr]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(where, "added_tokens_decoder, from ids to tokens", repr(tokens)[:80]) from error


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
