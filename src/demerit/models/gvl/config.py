"""Options of `gvl`, from Python, from the name (`gvl:dense,samples=3`) or from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from demerit.errors import BadInput, StoreError, UnknownName
from demerit.llm import ChatClient, Endpoint

CONTEXT_KINDS = ("none", "text", "video", "dense")
"""bad behaviour in the prompt; each kind includes the one before it"""
ENVIRONMENT = {
    "url": "DEMERIT_CHAT_URL",
    "model": "DEMERIT_CHAT_MODEL",
    "key_env": "DEMERIT_CHAT_KEY_ENV",
    "price_in": "DEMERIT_CHAT_PRICE_IN",
    "price_out": "DEMERIT_CHAT_PRICE_OUT",
    "cache": "DEMERIT_CHAT_CACHE",
    "concurrency": "DEMERIT_CHAT_CONCURRENCY",
    "budget": "DEMERIT_CHAT_BUDGET",
}
"""options that are read from a variable if not given; the key has its own variable, named by key_env"""
IDENTITY = (
    *("context", "samples", "frames", "size", "temperature", "max_tokens"),
    *("shown_examples", "example_frames", "measured", "model"),
)
"""options that change the answers; they are part of the card's hash, so their names must not change"""
TOKENS_PER_FRAME, TOKENS_BASE = 80, 1000
_MINIMUM = {"samples": 1, "frames": 2, "size": 16, "max_tokens": 0, "shown_examples": 1, "example_frames": 1}
_CLIENTS: WeakValueDictionary[tuple[Any, ...], ChatClient] = WeakValueDictionary()


@dataclass(frozen=True)
class GVLConfig:
    """Every option of a prompted model."""

    context: str = "none"
    """bad behaviour in the prompt: none, text, video or dense"""
    samples: int = 1
    """answers per episode; several give a mean and a spread"""
    frames: int = 16
    """frames of an episode, the anchor included"""
    size: int = 256
    """longer side of an image in pixels, at most"""
    temperature: float | None = 0.6
    """'none' leaves it to the server: some models accept only their own"""
    max_tokens: int = 0
    """longest answer; 0 = 1000 plus 80 per frame. Models that think before they answer need more"""
    examples: str = ""
    """a demerit folder with the episodes and preferences that examples come from"""
    shown_examples: int = 2
    """other rollouts shown as images, and as many with values"""
    example_frames: int = 4
    """images of each example"""
    measured: bool = False
    """dense only: use values per step from people or a simulator instead of self-distillation"""
    url: str = ""
    model: str = ""
    key_env: str = "OPENAI_API_KEY"
    price_in: float | None = None
    price_out: float | None = None
    schema_mode: str = "json_schema"
    send_seed: bool = True
    cache: str = ""
    """file of answers; empty = demerit/answers.sqlite in the user's cache folder, 'off' = in memory only"""
    concurrency: int = 8
    budget: float | None = None
    """dollars to spend at most; needs both prices"""
    timeout: float = 120.0
    max_retries: int = 5

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.context not in CONTEXT_KINDS:
            raise BadInput("context", f"one of {', '.join(CONTEXT_KINDS)}", repr(self.context))
        for name, least in _MINIMUM.items():
            if getattr(self, name) < least:
                raise BadInput(name, f"a number from {least} on", getattr(self, name))
        if self.temperature is not None and not self.temperature >= 0:
            raise BadInput("temperature", "0 or more", self.temperature)

    @classmethod
    def read(cls, text: str, changes: Mapping[str, Any]) -> GVLConfig:
        """Read `dense,samples=3` and Python's options; the rest comes from the environment and the defaults.

        Args:
            text: options separated by commas; a word without `=` is the context.
            changes: options by name; they take precedence over the text. None means not given.
        """
        given: dict[str, Any] = {
            name: os.environ[variable] for name, variable in ENVIRONMENT.items() if os.environ.get(variable)
        }
        for option in filter(None, (piece.strip() for piece in text.split(","))):
            name, equals, value = option.partition("=")
            given |= {name.strip(): value.strip()} if equals else {"context": name}
        given |= {name: value for name, value in changes.items() if value is not None}
        known = {field.name: str(field.type) for field in fields(cls)}
        for name in given:
            if name not in known:
                raise UnknownName("option of gvl", name, known)
        return cls(**{name: _parse_option(name, known[name], value) for name, value in given.items()})

    @property
    def answer_tokens(self) -> int:
        """The longest answer in tokens."""
        return self.max_tokens or TOKENS_BASE + TOKENS_PER_FRAME * self.frames

    @property
    def identity(self) -> dict[str, Any]:
        """The options that change the answers."""
        return {name: getattr(self, name) for name in IDENTITY}

    def endpoint(self) -> Endpoint:
        """The server and its model."""
        missing = [name for name in ("url", "model") if not getattr(self, name)]
        if missing:
            wanted = " and ".join(f"{ENVIRONMENT[name]} (or option {name})" for name in missing)
            raise BadInput(
                "chat model", f"an OpenAI-compatible server with a vision-language model: set {wanted}", "none"
            )
        prices = self.price_in, self.price_out
        return Endpoint(self.url, self.model, self.key_env, *prices, self.schema_mode, self.send_seed)

    def client(self) -> ChatClient:
        """The client; models of one process with the same server, cache and limits share one, and so one budget."""
        key = (
            *(self.endpoint(), self.cache_file()),
            *(self.concurrency, self.budget, self.timeout, self.max_retries),
        )
        client = _CLIENTS.get(key)
        if client is None or client.stopped:
            client = _CLIENTS[key] = ChatClient(*key)
        return client

    def cache_file(self) -> Path | None:
        """Where answers are stored; None for in memory."""
        if self.cache == "off":
            return None
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        path = Path(self.cache) if self.cache else Path(home) / "demerit" / "answers.sqlite"
        try:
            path = path.expanduser()
            path.parent.mkdir(parents=True, exist_ok=True)
        except (OSError, RuntimeError, ValueError) as error:  # the latter two: an unknown ~user, a NUL in the name
            why = getattr(error, "strerror", None) or str(error).rstrip(".")
            instead = "set DEMERIT_CHAT_CACHE to another file, or to 'off'"
            raise StoreError(path, f"cannot store answers there ({why}); {instead}") from error
        return path


def _parse_option(name: str, kind: str, value: Any) -> Any:
    """Convert an option's text to its type; values from Python stay as they are."""
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, str) or kind == "str":
        return value
    if kind.endswith("None") and value.lower() == "none":
        return None
    try:
        if kind.startswith("float"):
            return float(value)
        if kind == "bool":
            return {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}[value.lower()]
        return int(value)
    except (ValueError, KeyError):
        expected = {"int": "a whole number", "bool": "yes or no"}.get(kind, "a number")
        raise BadInput(f"option {name} of gvl", expected, repr(value)) from None
