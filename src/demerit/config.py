"""Reading and changing recipes, the numbers of a training run: every one is checked, and a wrong one is a sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from demerit.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from _typeshed import DataclassInstance

    SomeRecipe = TypeVar("SomeRecipe", bound=DataclassInstance)


def need(name: str, holds: bool, expected: str, got: object) -> None:
    """Refuse a number of a recipe unless something holds."""
    if not holds:
        raise BadInput(f"recipe, {name}", expected, got)


def read_changes(pairs: Sequence[str]) -> dict[str, Any]:
    """Turn NAME=VALUE pairs into changes of a recipe; values are JSON, and texts where they are none."""
    changes: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise BadInput("--set", "NAME=VALUE", repr(pair))
        try:
            changes[name.replace("-", "_")] = json.loads(value)
        except ValueError:
            changes[name.replace("-", "_")] = value
    return changes


def read_numbers(file: Path | Traversable, name: str, expected: str = "a recipe (YAML)") -> dict[str, Any]:
    """Read a recipe's file; errors call it by name, and say what was expected where there is no such file."""
    import yaml  # noqa: PLC0415 - not before a file is read: commands that read none begin at once

    try:
        told = yaml.safe_load(file.read_text("utf-8"))
    except OSError as error:
        raise BadInput(name, expected, error.strerror or error) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(name, "a recipe (YAML)", f"something else ({' '.join(str(error).split())})") from error
    if not isinstance(told, dict):
        raise BadInput(name, "names and numbers", type(told).__name__)
    return told


def changed(recipe: SomeRecipe, changes: Mapping[str, Any]) -> SomeRecipe:
    """Return a recipe with other numbers, each of the kind that stands there now; an unknown name is refused."""
    known = {one.name: one for one in fields(recipe)}
    told: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in known:
            raise UnknownName("number in a recipe", str(name), known)
        told[name] = _as_before(known[name], getattr(recipe, name), value)
    return replace(recipe, **told)


def _as_before(known: Field[Any], old: Any, value: Any) -> Any:
    """Return a value of the kind that stands there now: a number for a number, names for names."""
    if known.default is None and value is None:
        return None
    if isinstance(old, bool):
        need(known.name, isinstance(value, bool), "true or false", repr(value))
    elif isinstance(old, float):
        try:  # YAML reads 6e-4 as a text
            return float(value)
        except (TypeError, ValueError):
            raise BadInput(f"recipe, {known.name}", "a number", repr(value)) from None
    elif isinstance(old, Mapping):
        need(known.name, isinstance(value, Mapping), "names with a number each", repr(value))
    elif isinstance(old, tuple):
        need(known.name, isinstance(value, list | tuple), "a list of names", repr(value))
        return tuple(value)
    elif not isinstance(old, str):  # a whole number, or one that was left open; texts have names that the recipe checks
        need(known.name, type(value) is int, "a whole number", repr(value))
    return value
