"""What is sent to a model, and to which one: `Endpoint`, `ChatImage`, `Message`, `ChatRequest`.

Tokens are estimated on the high side, because a budget relies on the estimate:

- text: one token per 3 bytes of UTF-8 (English is nearer 4), plus 4 per message;
- image: the larger of two public rules: tiles (scale to fit 2048 x 2048, then the short side to 768; 85 tokens plus 170
  per 512 x 512 tile) and patches (one token per 28 x 28 pixels);
- schema: its JSON twice, as the response format and in the prompt.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import json
import math
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import numpy as np
from PIL import Image, UnidentifiedImageError

from demerit.errors import BadInput

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pydantic import BaseModel

SCHEMA_MODES = ("json_schema", "json_object", "none")
KEY_FORMAT = 1
"""part of every cache key; raise it when the key covers something else, so that old answers are not reused"""
SCHEMA_PROMPT = "Answer with one JSON object and nothing else. It must fit this JSON Schema:"
JPEG_QUALITY = 90
BYTES_PER_TOKEN, TOKENS_PER_MESSAGE = 3, 4
_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
_RGB = 3
# These refuse `max_tokens` for their newer models; most other servers know nothing else.
_COMPLETION_TOKENS_HOSTS = ("api.openai.com", ".openai.azure.com")


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server and one of its models. Holds the name of the key's variable, never the key."""

    url: str
    """up to and including /v1"""
    model: str
    key_env: str = "OPENAI_API_KEY"
    """the environment variable that holds the key; empty for a server without keys"""
    price_in: float | None = None
    """US dollars per million input tokens"""
    price_out: float | None = None
    """US dollars per million output tokens"""
    schema_mode: str = "json_schema"
    """how the server is made to answer in JSON: json_schema, json_object, or none (only asked for in the prompt)"""
    send_seed: bool = True
    """send the sample number as `seed`; some servers refuse it"""

    def __post_init__(self) -> None:
        """Check the address, the mode and the prices."""
        parts = urlsplit(self.url)
        if parts.username or parts.password or parts.query:
            # Do not repeat the address: it holds a secret.
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
        """The host without the port: a local server that moved to another port is still the same one."""
        return urlsplit(self.url).hostname or ""

    def key(self) -> str:
        """Read the key from the environment; empty only for local servers and with an empty `key_env`."""
        value = os.environ.get(self.key_env, "").strip() if self.key_env else ""
        if not value.isascii() or not value.isprintable():
            raise BadInput(f"the key in {self.key_env}", "printable ASCII", "something else (not shown)")
        if not value and self.key_env and self.host not in ("localhost", "127.0.0.1", "::1"):
            raise BadInput(f"the key for {self.host}", f"the environment variable {self.key_env}", "nothing there")
        return value

    def cost(self, tokens_in: float, tokens_out: float) -> float | None:
        """Return the price of these tokens in dollars; None unless both prices are set."""
        if self.price_in is None or self.price_out is None:
            return None
        return (tokens_in * self.price_in + tokens_out * self.price_out) / 1e6


@dataclass(frozen=True)
class ChatImage:
    """An image in a message: the bytes of a PNG or JPEG file."""

    data: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Accept only PNG and JPEG."""
        if not self.data.startswith((_PNG, _JPEG)):
            raise BadInput("image", "the bytes of a PNG or JPEG file", f"{self.data[:8]!r}...")

    @property
    def kind(self) -> str:
        """Either png or jpeg."""
        return "png" if self.data.startswith(_PNG) else "jpeg"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, read from the header."""
        try:
            with Image.open(io.BytesIO(self.data)) as image:
                return image.size
        except (UnidentifiedImageError, OSError, SyntaxError):
            expected = f"a complete {self.kind.upper()} file"
            raise BadInput("image", expected, f"{len(self.data)} unreadable bytes") from None

    @classmethod
    def encode(cls, pixels: NDArray[np.uint8], max_side: int | None = None) -> ChatImage:
        """Encode (height, width, 3) uint8 RGB pixels as a JPEG with full-resolution colour.

        Args:
            pixels: the image.
            max_side: shrink images whose longer side exceeds this many pixels; None keeps the size.
        """
        if pixels.ndim != _RGB or pixels.shape[-1] != _RGB or pixels.dtype != np.uint8:
            raise BadInput("image", "uint8 of shape (height, width, 3)", f"{pixels.dtype} of shape {pixels.shape}")
        image = Image.fromarray(np.ascontiguousarray(pixels))
        if max_side is not None:
            image.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        # No chroma subsampling: a small red cube is only a few pixels.
        image.save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
        return cls(buffer.getvalue())


@dataclass(frozen=True)
class Message:
    """One message: a role, and text and images in the order in which the model sees them."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[str | ChatImage, ...]

    @classmethod
    def system(cls, *parts: str | ChatImage) -> Message:
        """Make a system message."""
        return cls("system", parts)

    @classmethod
    def user(cls, *parts: str | ChatImage) -> Message:
        """Make a user message."""
        return cls("user", parts)

    def as_dict(self) -> dict[str, Any]:
        """Write it as the protocol wants it; text alone stays a string, because some servers accept nothing else."""
        if all(isinstance(part, str) for part in self.parts):
            return {"role": self.role, "content": "\n".join(str(part) for part in self.parts)}
        content: list[dict[str, Any]] = []
        for part in self.parts:
            if isinstance(part, str):
                content.append({"type": "text", "text": part})
            else:
                data = base64.b64encode(part.data).decode("ascii")
                content.append({"type": "image_url", "image_url": {"url": f"data:image/{part.kind};base64,{data}"}})
        return {"role": self.role, "content": content}


@dataclass(frozen=True)
class ChatRequest:
    """One question to a model. Equal requests share one answer; another `sample` makes another request."""

    messages: tuple[Message, ...]
    schema: type[BaseModel] | None = None
    """the pydantic class of the answer; None for free text"""
    temperature: float | None = 0.0
    """None leaves it to the server (some models accept only their own)"""
    sample: int = 0
    """which of several answers to the same question; also sent as the seed"""
    max_tokens: int = 1024
    """longest answer"""
    tag: str = ""
    """stored with the answer; not part of the cache key"""

    def __post_init__(self) -> None:
        """Check that there is a question and room for an answer."""
        object.__setattr__(self, "messages", tuple(self.messages))
        if not self.messages:
            raise BadInput("chat request", "at least one message", "none")
        if self.max_tokens < 1:
            raise BadInput("chat request", "max_tokens of at least 1", self.max_tokens)

    @property
    def images(self) -> list[ChatImage]:
        """All images, in order."""
        return [part for message in self.messages for part in message.parts if isinstance(part, ChatImage)]

    def key(self, endpoint: Endpoint) -> str:
        """Hash everything that can change the answer: host, model, text, image bytes, schema and sampling."""
        digest = hashlib.sha256()
        schema = json_schema(self.schema) if self.schema else None
        facts = [KEY_FORMAT, endpoint.host, endpoint.model, schema, self.temperature, self.sample, self.max_tokens]
        pieces = [json.dumps(facts, sort_keys=True).encode()]
        for message in self.messages:
            pieces.append(b"role " + message.role.encode())
            for part in message.parts:
                pieces.append(b"text " + part.encode() if isinstance(part, str) else b"image " + part.data)
        for piece in pieces:
            # The length before each piece keeps ("ab", "c") and ("a", "bc") apart.
            digest.update(len(piece).to_bytes(8, "little"))
            digest.update(piece)
        return digest.hexdigest()

    def count_tokens(self) -> int:
        """Estimate the input tokens, see the top of this file."""
        total = 2 * count_text_tokens(json.dumps(json_schema(self.schema))) if self.schema else 0
        for message in self.messages:
            total += TOKENS_PER_MESSAGE + sum(
                count_text_tokens(part) for part in message.parts if isinstance(part, str)
            )
        return total + sum(count_image_tokens(*image.size) for image in self.images)

    def body(self, endpoint: Endpoint) -> dict[str, Any]:
        """Write the body of the HTTP request. The schema is always in the prompt too: servers may ignore the mode."""
        messages = [message.as_dict() for message in self.messages]
        completion_tokens = endpoint.host.endswith(_COMPLETION_TOKENS_HOSTS)
        limit = "max_completion_tokens" if completion_tokens else "max_tokens"
        body: dict[str, Any] = {"model": endpoint.model, "messages": messages, limit: self.max_tokens}
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if endpoint.send_seed:
            body["seed"] = self.sample
        if self.schema is not None:
            rules = json.dumps(json_schema(self.schema))
            messages.append({"role": "user", "content": f"{SCHEMA_PROMPT}\n{rules}"})
            if endpoint.schema_mode == "json_object":
                body["response_format"] = {"type": "json_object"}
            elif endpoint.schema_mode == "json_schema":
                body["response_format"] = _strict_format(self.schema)
        return body


@functools.lru_cache(maxsize=64)
def json_schema(schema: type[BaseModel]) -> dict[str, Any]:
    """Write a schema as JSON Schema, cached; do not modify the result."""
    return schema.model_json_schema()


def count_text_tokens(text: str) -> int:
    """Estimate the tokens of a text."""
    return math.ceil(len(text.encode()) / BYTES_PER_TOKEN)


def count_image_tokens(width: int, height: int) -> int:
    """Estimate the tokens of an image of this size in pixels."""
    patches = math.ceil(width / 28) * math.ceil(height / 28)
    scale = min(1.0, 2048 / max(width, height), 768 / min(width, height))
    tiles = math.ceil(round(width * scale) / 512) * math.ceil(round(height * scale) / 512)
    return max(85 + 170 * tiles, patches)


@functools.lru_cache(maxsize=64)
def _strict_format(schema: type[BaseModel]) -> dict[str, Any]:
    from openai import pydantic_function_tool  # noqa: PLC0415

    strict = pydantic_function_tool(schema)["function"]["parameters"]
    return {"type": "json_schema", "json_schema": {"name": schema.__name__, "strict": True, "schema": strict}}
