"""Prompts as blocks of tokens: text as it is, pictures as the room they take.

The chat template is ours, so that an update of a library cannot change what a checkpoint reads; it is compared with
the tokens of the whole text in tests. Blocks end where the caller says, always beside a special token, so that no word
is ever cut in two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput
from demerit.models.vlm.config import VLMShape

TEMPLATE = "qwen3-vl-chat-1"
"""the version of everything around a prompt's words; stored with what was scored"""
IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
BEFORE_PICTURE, AFTER_PICTURE = "<|vision_start|>", "<|vision_end|>"
OPENS_SPECIAL = "<|"
"""every special token begins so"""
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Picture:
    """A place for a picture of rows x columns tokens."""

    key: Hashable
    """which picture it is: equal keys are the same pixels"""
    rows: int
    columns: int
    token: str = IMAGE


@dataclass(frozen=True)
class Cut:
    """A block ends here."""


CUT = Cut()
Piece = str | Picture | Cut


@dataclass(frozen=True)
class Block:
    """Tokens that stand or fall together: words, at most one picture among them."""

    ids: tuple[int, ...]
    picture: Picture | None = None
    at: int = 0
    """the picture's first token within the block"""

    def __len__(self) -> int:
        """Count the tokens."""
        return len(self.ids)

    def __hash__(self) -> int:
        """Hash once: blocks are looked up thousands of times while a tree is made."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.ids, self.picture))

    @cached_property
    def advance(self) -> int:
        """How far positions have moved on after this block: a picture takes its longer side."""
        if self.picture is None:
            return len(self.ids)
        rows, columns = self.picture.rows, self.picture.columns
        return len(self.ids) - rows * columns + max(rows, columns)

    @property
    def positions(self) -> Ints:
        """(3, tokens): time, height and width of every token, counted from the block's beginning."""
        picture = self.picture
        return _positions(len(self.ids), self.at, *((picture.rows, picture.columns) if picture else (0, 0)))

    def showing(self, key: Hashable) -> Block:
        """Return the same block with another picture of the same size in it."""
        if self.picture is None:
            raise BadInput("block", "a block with a picture", "words alone")
        return replace(self, picture=replace(self.picture, key=key))


@cache
def _positions(length: int, at: int, rows: int, columns: int) -> Ints:
    """Positions of a block with a picture of rows x columns at a token, or with none."""
    if not rows:
        return np.tile(np.arange(length), (3, 1))
    tall, wide = (grid.ravel() for grid in np.indices((rows, columns)))
    seen = np.stack([np.zeros(rows * columns, np.int64), tall, wide]) + at
    rest = np.arange(length - at - rows * columns) + at + max(rows, columns)
    return np.concatenate([np.tile(np.arange(at), (3, 1)), seen, np.tile(rest, (3, 1))], axis=1)


def is_words_alone(instruction: str) -> bool:
    """Whether an instruction can stand in a prompt: a special token in it would be read as one."""
    return OPENS_SPECIAL not in instruction


class Tokens:
    """A tokenizer: words to numbers, special tokens by name."""

    def __init__(self, backend: Any, fingerprint: str = "") -> None:
        """Wrap a `tokenizers.Tokenizer`; the fingerprint is that of the file it came from and of what was added."""
        self._backend, self.fingerprint = backend, fingerprint

    @classmethod
    def read(cls, path: Path, added: Sequence[str] = ()) -> Tokens:
        """Read tokenizer.json; special tokens a checkpoint was trained with are added in the order given."""
        from tokenizers import AddedToken, Tokenizer  # noqa: PLC0415  a part of the extra

        try:
            stored = path.read_bytes()
        except OSError as error:
            raise BadInput(str(path), "a readable file", error.strerror or error) from error
        try:
            backend = Tokenizer.from_buffer(stored)
        except Exception as error:  # the library raises nothing more particular
            got = f"something else ({error})" if stored else "an empty file"
            raise BadInput(str(path), "a whole tokenizer.json (fetch or copy it again)", got) from error
        backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in added])
        return cls(backend, hashlib.sha256("\0".join(added).encode() + b"\0" + stored).hexdigest())

    def __len__(self) -> int:
        """Count the tokens, special ones among them."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def ids(self, text: str) -> list[int]:
        """Turn text, special tokens by their names, into numbers."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def id(self, special: str) -> int:
        """Return the number of one special token."""
        found = self._backend.token_to_id(special)
        if found is None:
            raise BadInput("tokenizer.json", f"the token {special}", "a vocabulary without it")
        return int(found)

    def text(self, ids: Iterable[int]) -> str:
        """Turn numbers into text again, without special tokens."""
        return str(self._backend.decode(list(ids), skip_special_tokens=True))


def check_tokens(tokens: Tokens, shape: VLMShape, where: str) -> None:
    """Refuse a tokenizer that is not the network's: its numbers would be other words' rows."""
    for name, row in (
        (IMAGE, shape.image_token),
        (VIDEO, shape.video_token),
        (BEFORE_PICTURE, shape.vision_start),
        (AFTER_PICTURE, shape.vision_end),
    ):
        if tokens.id(name) != row:
            raise BadInput(f"The tokenizer of {where}", f"{name} as token {row}, as config.json says", tokens.id(name))
    if len(tokens) > shape.text.vocabulary:
        rows = shape.text.vocabulary
        raise BadInput(f"The tokenizer of {where}", f"at most {rows} tokens, as the network has rows", len(tokens))


def check_added_tokens(tokens: Tokens, added: Sequence[str], shape: VLMShape, where: str) -> None:
    """Refuse a tokenizer that does not put the added tokens where their rows were trained: the table's last ones."""
    rows = list(range(shape.text.vocabulary - len(added), shape.text.vocabulary))
    found = [tokens.id(name) for name in added]
    if found != rows:
        expected = f"{', '.join(added)} as the last rows of the embedding table, {rows[0]} to {rows[-1]}"
        raise BadInput(f"The tokenizer of {where}", f"{expected} (this is another model's tokenizer)", found)


def user_turn(*pieces: Piece, then: str = "") -> list[Piece]:
    """Wrap pieces as the one turn of a user; `then` is what follows (the opening of the answer, or nothing)."""
    return ["<|im_start|>user\n", *pieces, "<|im_end|>\n", *([then] if then else [])]


ANSWER = "<|im_start|>assistant\n"
"""opens the model's turn"""


def laid_out(pieces: Sequence[Piece], tokens: Tokens, shape: VLMShape) -> tuple[Block, ...]:
    """Turn pieces into blocks of tokens."""
    blocks, some = [], []
    for piece in [*pieces, CUT]:
        if not isinstance(piece, Cut):
            some.append(piece)
        elif some:
            blocks.append(_block(some, tokens, shape))
            some = []
    return tuple(blocks)


def _block(pieces: Sequence[str | Picture], tokens: Tokens, shape: VLMShape) -> Block:
    """Tokens of one block; the words before and after its picture are read apart, as special tokens part them."""
    pictures = [each for each in pieces if isinstance(each, Picture)]
    if len(pictures) > 1:
        raise BadInput("block", "at most one picture between two cuts", f"{len(pictures)}")
    text = "".join(_written(each) for each in pieces)
    if not pictures:
        return Block(tuple(tokens.ids(text)))
    picture = pictures[0]
    before, after = (tokens.ids(part) for part in text.split(picture.token))
    fill = shape.image_token if picture.token == IMAGE else shape.video_token
    ids = (*before, *[fill] * (picture.rows * picture.columns), *after)
    return Block(ids, picture, len(before))


def _written(piece: str | Picture) -> str:
    return piece if isinstance(piece, str) else f"{BEFORE_PICTURE}{piece.token}{AFTER_PICTURE}"
