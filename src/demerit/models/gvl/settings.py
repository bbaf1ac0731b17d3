"""What a prompted model can be told: from Python, from the name (`gvl:dense,samples=3`) or from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from demerit.errors import BadInput, StoreError, UnknownName
from demerit.llm import ChatClient, Endpoint
from demerit.models.gvl.context import KINDS, ContextConfig

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
"""an option that is not given is read from its variable; the key itself has a variable of its own, named by key_env"""
TOKENS_A_FRAME, TOKENS_BESIDES = 80, 1000
"""of an answer: a sentence and a number for each frame; models that think first need more (option max_tokens)"""


@dataclass(frozen=True)
class GVLConfig:
    """Everything that can be set about a prompted model."""

    context: str = "none"
    """bad behaviour in the prompt: none, text, video or dense"""
    samples: int = 1
    """answers per episode; more than one gives a mean and a spread"""
    frames: int = 16
    """frames of an episode, the anchor included"""
    size: int = 256
    """pixels of a picture's longer side, at most"""
    temperature: float | None = 0.6
    """'none' leaves it to the server: some models refuse any that is not their own"""
    max_tokens: int = 0
    """longest answer; 0 = 1000 and 80 a frame"""
    examples: str = ""
    """a demerit folder with the episodes and preferences that examples are taken from"""
    shown_examples: int = 2
    """other rollouts that are shown in pictures, and as many with values"""
    example_frames: int = 4
    measured: bool = False
    """dense only: values per step from people or a simulator instead of self-distillation"""
    url: str = ""
    model: str = ""
    key_env: str = "OPENAI_API_KEY"
    price_in: float | None = None
    price_out: float | None = None
    schema_mode: str = "auto"
    cache: str = ""
    """file of answers; empty = demerit/answers.sqlite in the user's cache folder, 'off' = none beyond this process"""
    concurrency: int = 8
    budget: float | None = None
    """dollars to spend at most; needs both prices"""
    timeout: float = 120.0
    tries: int = 6

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        if self.context not in KINDS:
            raise BadInput("context", f"one of {', '.join(KINDS)}", repr(self.context))
        least = {"samples": 1, "frames": 2, "size": 16, "max_tokens": 0, "shown_examples": 1, "example_frames": 1}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise BadInput(name, f"a number from {number} on", getattr(self, name))
        if self.temperature is not None and not self.temperature >= 0:
            raise BadInput("temperature", "0 or more", self.temperature)

    @classmethod
    def read(cls, text: str, changes: Mapping[str, Any]) -> GVLConfig:
        """Read `dense,samples=3` and Python's options; what neither says comes from the environment.

        Args:
            text: options with commas between them; a word without `=` is the context.
            changes: options by name. They win over the text.
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
        return cls(**{name: _typed(name, known[name], value) for name, value in given.items()})

    @property
    def longest(self) -> int:
        """The longest answer in tokens."""
        return self.max_tokens or TOKENS_BESIDES + TOKENS_A_FRAME * self.frames

    def recipe(self) -> ContextConfig:
        """How much bad behaviour is shown."""
        kind = next(kind for kind in KINDS if kind == self.context)
        return ContextConfig(kind, self.shown_examples, self.example_frames, self.size, not self.measured)

    def facts(self) -> dict[str, Any]:
        """What changes the answers, for a model's identity: where the model runs and what it costs does not."""
        elsewhere = {*ENVIRONMENT, "examples", "timeout", "tries", "schema_mode"} - {"model"}
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in elsewhere}

    def chat(self) -> ChatClient:
        """Make the client."""
        missing = [name for name in ("url", "model") if not getattr(self, name)]
        if missing:
            said = " and ".join(f"{ENVIRONMENT[name]} (or option {name})" for name in missing)
            raise BadInput("gvl", f"an OpenAI-compatible server with a model that sees: set {said}", "none")
        endpoint = Endpoint(self.url, self.model, self.key_env, self.price_in, self.price_out, self.schema_mode)
        return ChatClient(endpoint, self.cache_file(), self.concurrency, self.budget, self.timeout, self.tries)

    def with_context(self, context: str) -> GVLConfig:
        """Make the same with another context."""
        return replace(self, context=context)

    def cache_file(self) -> Path | None:
        """Where answers are kept; None for nowhere."""
        if self.cache == "off":
            return None
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        path = Path(self.cache) if self.cache else Path(home) / "demerit" / "answers.sqlite"
        try:
            path = path.expanduser()
            path.parent.mkdir(parents=True, exist_ok=True)
        except (OSError, RuntimeError, ValueError) as error:  # the latter two: a home of nobody, a zero in a name
            why = getattr(error, "strerror", None) or str(error).rstrip(".")
            instead = "set DEMERIT_CHAT_CACHE to another file, or to 'off'"
            raise StoreError(path, f"answers cannot be kept there ({why}); {instead}") from error
        return path


def _typed(name: str, kind: str, value: Any) -> Any:
    """Turn an option's text into what it is; what came from Python is checked by use."""
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
        what = {"int": "a whole number", "bool": "yes or no"}.get(kind, "a number")
        raise BadInput(f"option {name} of gvl", what, repr(value)) from None
