"""What is asked of a model, and of which one: `Endpoint`, `ChatImage`, `Message`, `ChatRequest`."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import json
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from demerit.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from pydantic import BaseModel

SCHEMA_MODES = ("auto", "json_schema", "json_object", "none")
KEY_FORMAT = 1
"""part of every cache key; raise it when what a key covers changes, so that no old answer is taken for a new one"""
_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
# The JPEG markers that are followed by the picture's size (baseline, progressive and their rarer relatives).
_SIZE_MARKERS = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


@dataclass(frozen=True)
class Endpoint:
    """Where a model answers. The key is never part of it: only the name of the variable that holds the key."""

    url: str
    """up to and including /v1"""
    model: str
    key_env: str = "OPENAI_API_KEY"
    """the environment variable that holds the key; empty for a server that wants none"""
    price_in: float | None = None
    """US dollars per million tokens read"""
    price_out: float | None = None
    """US dollars per million tokens written"""
    schema_mode: str = "auto"
    """how a schema is asked for: json_schema, json_object, none, or auto (the first of these that is not refused)"""

    def __post_init__(self) -> None:
        """Refuse what could not work, and an address that carries a password."""
        parts = urlsplit(self.url)
        if parts.username or parts.password or parts.query:
            # The address itself is not repeated: it holds a secret.
            raise BadInput("endpoint", "an address without a user, a password or a query", "one that has them")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadInput("endpoint", "an address such as https://host/v1", repr(self.url))
        if not self.model:
            raise BadInput("endpoint", "the name of a model", "none")
        if self.schema_mode not in SCHEMA_MODES:
            raise BadInput("schema mode", f"one of {', '.join(SCHEMA_MODES)}", repr(self.schema_mode))
        for price in (self.price_in, self.price_out):
            if price is not None and not 0 <= price < float("inf"):
                raise BadInput("price", "dollars per million tokens, 0 or more", price)

    @property
    def host(self) -> str:
        """The machine's name without the port: a server that came back on another port is still the same one."""
        return urlsplit(self.url).hostname or ""

    def key(self) -> str:
        """Read the key from the environment. A server on this machine may do without."""
        value = os.environ.get(self.key_env, "").strip() if self.key_env else ""
        if not value.isascii() or not value.isprintable():
            raise BadInput(f"the key in {self.key_env}", "printable ASCII", "something else (not shown)")
        if not value and self.key_env and self.host not in ("localhost", "127.0.0.1", "::1"):
            raise BadInput(
                f"the key for {self.host}", f"it in the environment variable {self.key_env}", "nothing there"
            )
        return value

    def cost(self, tokens_in: float, tokens_out: float) -> float | None:
        """What so many tokens cost in dollars; None without both prices."""
        if self.price_in is None or self.price_out is None:
            return None
        return (tokens_in * self.price_in + tokens_out * self.price_out) / 1e6


@dataclass(frozen=True)
class ChatImage:
    """One picture of a message: the bytes of a PNG or JPEG file."""

    data: bytes

    def __post_init__(self) -> None:
        """Refuse anything that no server could show to a model."""
        if not self.data.startswith((_PNG, _JPEG)):
            raise BadInput("image", "the bytes of a PNG or a JPEG file", f"{self.data[:8]!r}...")

    def __repr__(self) -> str:
        """Name the kind and the size; a log must not be filled with pixels."""
        return f"ChatImage({self.kind}, {len(self.data)} bytes)"

    @property
    def kind(self) -> str:
        """Either png or jpeg."""
        return "png" if self.data.startswith(_PNG) else "jpeg"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, read from the header alone."""
        try:
            return _png_size(self.data) if self.kind == "png" else _jpeg_size(self.data)
        except (struct.error, IndexError):
            raise BadInput("image", f"a whole {self.kind.upper()} file", f"{len(self.data)} bytes of one") from None

    @classmethod
    def of(cls, pixels: NDArray[np.uint8], kind: Literal["png", "jpeg"] = "jpeg", quality: int = 90) -> ChatImage:
        """Encode height x width x 3 RGB pixels."""
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype.name != "uint8":  # noqa: PLR2004
            raise BadInput("image", "uint8 pixels of shape height x width x 3, RGB", f"{pixels.dtype} {pixels.shape}")
        from PIL import Image as Picture  # noqa: PLC0415

        buffer = io.BytesIO()
        options: dict[str, Any] = {"quality": quality} if kind == "jpeg" else {"compress_level": 3}
        Picture.fromarray(pixels).save(buffer, kind.upper(), **options)
        return cls(buffer.getvalue())


@dataclass(frozen=True)
class Message:
    """Who says what: text and images in the order in which the model sees them."""

    role: str
    parts: tuple[str | ChatImage, ...]

    def __post_init__(self) -> None:
        """Refuse unknown roles."""
        if self.role not in ("system", "user", "assistant"):
            raise BadInput("message", "the role system, user or assistant", repr(self.role))

    @classmethod
    def system(cls, *parts: str | ChatImage) -> Message:
        """Make what the model is told before everything else."""
        return cls("system", parts)

    @classmethod
    def user(cls, *parts: str | ChatImage) -> Message:
        """Make what the model is asked."""
        return cls("user", parts)

    @classmethod
    def assistant(cls, *parts: str | ChatImage) -> Message:
        """Make what the model is said to have answered before."""
        return cls("assistant", parts)

    def wire(self) -> dict[str, Any]:
        """Write it as the protocol wants it. Text alone stays a string: some servers know nothing else."""
        if all(isinstance(part, str) for part in self.parts):
            return {"role": self.role, "content": "\n".join(str(part) for part in self.parts)}
        return {"role": self.role, "content": [_part(part) for part in self.parts]}


@dataclass(frozen=True)
class ChatRequest:
    """One question to a model. Two equal asks have one answer; another sample number makes another ask."""

    messages: tuple[Message, ...]
    schema: type[BaseModel] | None = None
    """what the answer must be; None for free text"""
    temperature: float | None = 0.0
    """None leaves it to the server (some models refuse any other)"""
    sample: int = 0
    """which of several answers to the same question this is; also sent as the seed"""
    max_tokens: int = 1024
    tag: str = ""
    """what the money is booked under; no part of the cache key"""

    def __post_init__(self) -> None:
        """Refuse an empty question."""
        object.__setattr__(self, "messages", tuple(self.messages))
        if not self.messages:
            raise BadInput("ask", "at least one message", "none")
        if self.max_tokens < 1:
            raise BadInput("ask", "max_tokens of at least 1", self.max_tokens)

    def key(self, endpoint: Endpoint) -> str:
        """Name the answer by everything that can change it: host, model, words, image bytes, schema and sampling."""
        digest = hashlib.sha256()
        schema = rules_of(self.schema) if self.schema else None
        facts = [KEY_FORMAT, endpoint.host, endpoint.model, schema, self.temperature, self.sample, self.max_tokens]
        for piece in (json.dumps(facts, sort_keys=True).encode(), *self._pieces()):
            # The length before each piece keeps ("ab", "c") and ("a", "bc") apart.
            digest.update(len(piece).to_bytes(8, "little"))
            digest.update(piece)
        return digest.hexdigest()

    def _pieces(self) -> list[bytes]:
        pieces = []
        for message in self.messages:
            pieces.append(b"role " + message.role.encode())
            for part in message.parts:
                pieces.append(b"text " + part.encode() if isinstance(part, str) else b"image " + part.data)
        return pieces


@functools.lru_cache(maxsize=64)
def rules_of(schema: type[BaseModel]) -> dict[str, Any]:
    """Write a schema as JSON Schema, once; do not change what comes back."""
    return schema.model_json_schema()


def _part(part: str | ChatImage) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    data = base64.b64encode(part.data).decode("ascii")
    return {"type": "image_url", "image_url": {"url": f"data:image/{part.kind};base64,{data}"}}


def _png_size(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def _jpeg_size(data: bytes) -> tuple[int, int]:
    at = 2
    while data[at + 1] not in _SIZE_MARKERS:
        at += 2 + int(struct.unpack(">H", data[at + 2 : at + 4])[0])
    height, width = struct.unpack(">HH", data[at + 5 : at + 9])
    return width, height
