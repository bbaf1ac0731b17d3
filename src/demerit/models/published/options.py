"""Options of the models that run on the vision-language engine.

roboreward:4b,path=./my-checkpoint,device=cuda:1,dtype=bfloat16
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from demerit.errors import BadInput, MissingExtra, UnknownName
from demerit.registry import load_attribute

PLACED: Mapping[str, Callable[[str], Any]] = {"revision": str, "adapter": str, "device": str, "dtype": str}
"""which weights are meant and where they run"""
COMMON: Mapping[str, Callable[[str], Any]] = {"path": str, **PLACED, "at_once": int}
"""every such model has these; at_once: tokens computed together, less memory and a little slower"""
NEEDED = ("torch", "transformers", "safetensors", "tokenizers")


def read_options(
    model: str, text: str, changes: Mapping[str, Any], own: Mapping[str, Callable[[str], Any]], word: str
) -> dict[str, Any]:
    """Read what stands behind a model's colon, and what was given by name.

    Args:
        model: the model's name, for errors.
        text: `4b,device=cpu`.
        changes: options by name; they win.
        own: the model's own options and how to read each.
        word: the option that a word without = sets.
    """
    kinds = {**COMMON, **own}
    found: dict[str, Any] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            name, value = word, part
        if name not in kinds:
            raise UnknownName(f"option of {model}", name, kinds)
        if name in found:
            raise BadInput(f"{model}:{name}", "one value", f"two ({found[name]!r} and {value!r})")
        try:
            found[name] = kinds[name](value)
        except ValueError as error:
            raise BadInput(f"{model}:{name}", f"something of kind {kinds[name].__name__}", repr(value)) from error
    unknown = sorted(set(changes) - set(kinds))
    if unknown:
        raise UnknownName(f"option of {model}", unknown[0], kinds)
    return {**found, **{name: value for name, value in changes.items() if value is not None}}


def placed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that say which weights are meant and where they run, for whoever opens them."""
    return {name: given.get(name) for name in PLACED}


def together(given: Mapping[str, Any]) -> int | None:
    """Return how many tokens are computed together; None where memory decides."""
    return at_least("at_once", given["at_once"], 1) if "at_once" in given else None


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return the value if it is allowed."""
    if value not in allowed:
        raise BadInput(name, f"one of {', '.join(allowed)}", repr(value))
    return value


def at_least(name: str, value: int, least: int) -> int:
    """Return the number if it is large enough."""
    if value < least:
        raise BadInput(name, f"a number from {least} on", value)
    return value


def need_extra(model: str) -> None:
    """Refuse, with the install line, to go on without the extra `vlm`."""
    for module in NEEDED:
        try:
            load_attribute(f"{module}:__name__", f"the model {model!r}")
        except (ModuleNotFoundError, MissingExtra) as missing:
            raise MissingExtra(f"The model {model!r}", "vlm") from missing
