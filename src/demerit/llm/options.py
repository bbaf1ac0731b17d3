"""Options of everything that asks a chat model: the server, its prices, the cache and the limits.

They come from Python, from a model's name (`gvl:dense,samples=3`) or from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self
from weakref import WeakValueDictionary

from demerit.errors import BadInput, StoreError, UnknownName
from demerit.llm.client import ChatClient
from demerit.llm.request import Endpoint

FROM_ENVIRONMENT = ("url", "model", "key_env", "price_in", "price_out", "cache", "concurrency", "budget")
"""options that are read from a variable if not given; the key has its own variable, named by key_env"""
CHAT, VALIDATOR = "DEMERIT_CHAT", "DEMERIT_VALIDATOR"
"""prefixes of the variables: the chat model, and a second one that checks what the first one writes"""
_CLIENTS: WeakValueDictionary[tuple[Any, ...], ChatClient] = WeakValueDictionary()


def variable_of(option: str, prefix: str = CHAT) -> str:
    """Return the environment variable of an option."""
    return f"{prefix}_{option.upper()}"


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """The server and its model, and how it is asked."""

    WHO: ClassVar[str] = "a chat model"
    BARE: ClassVar[str] = ""
    """the option that a word without `=` sets"""

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

    @classmethod
    def read(cls, text: str, changes: Mapping[str, Any], prefix: str = CHAT) -> Self:
        """Read `dense,samples=3` and Python's options; the rest comes from the environment and the defaults.

        Args:
            text: options separated by commas; a word without `=` is the option BARE.
            changes: options by name; they take precedence over the text. None means not given.
            prefix: of the environment variables.
        """
        variables = {name: variable_of(name, prefix) for name in FROM_ENVIRONMENT}
        settings: dict[str, Any] = {
            name: os.environ[variable] for name, variable in variables.items() if os.environ.get(variable)
        }
        for option in filter(None, (piece.strip() for piece in text.split(","))):
            name, equals, value = option.partition("=")
            if not equals and not cls.BARE:
                raise BadInput(f"options of {cls.WHO}", "name=value, separated by commas", repr(option))
            settings |= {name.strip(): value.strip()} if equals else {cls.BARE: name}
        settings |= {name: value for name, value in changes.items() if value is not None}
        types = {field.name: str(field.type) for field in fields(cls)}
        for name in settings:
            if name not in types:
                raise UnknownName(f"option of {cls.WHO}", name, types)
        return cls(**{name: _parse_option(cls.WHO, name, types[name], value) for name, value in settings.items()})

    def endpoint(self) -> Endpoint:
        """The server and its model."""
        missing = [name for name in ("url", "model") if not getattr(self, name)]
        if missing:
            wanted = " and ".join(f"{variable_of(name)} (or option {name})" for name in missing)
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


def _parse_option(who: str, name: str, kind: str, value: Any) -> Any:
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
        raise BadInput(f"option {name} of {who}", expected, repr(value)) from None
