"""The one strict loader of configuration: YAML files and NAME=VALUE pairs become a frozen dataclass.

    @dataclass(frozen=True)
    class Config:
        steps: int = 100
        shares: Mapping[str, float] = field(default_factory=dict)

    config = build_config(Config, read_yaml(Path("config.yaml")))
    config = change_config(config, parse_changes(["steps=7"]))

Unknown keys (with a did-you-mean), doubled keys, missing keys and values of another type are refused. Fields may be
dataclasses, tuples, mappings, `Literal`s of texts, `X | None` and the plain types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from itertools import islice
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from demerit.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from _typeshed import DataclassInstance

    SomeConfig = TypeVar("SomeConfig", bound=DataclassInstance)

TYPE_NAMES: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
DEEPEST = 100
"""Python itself gives up at about 1000, and some of what it can read it cannot write"""
MOST_LISTS = 100_000


def need(name: str, holds: bool, expected: str, got: object) -> None:
    """Raise `BadInput` for the named value of a recipe unless `holds`."""
    if not holds:
        raise BadInput(f"recipe, {name}", expected, got)


def parse_changes(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse NAME=VALUE pairs; a value is JSON, or a text where it is not JSON. Dashes in names become underscores."""
    changes: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise BadInput("--set", "NAME=VALUE", repr(pair))
        try:
            changes[name.replace("-", "_")] = json.loads(value)
        except (ValueError, RecursionError):
            changes[name.replace("-", "_")] = value
    return changes


def read_yaml(
    file: Path | Traversable,
    name: str = "",
    expected: str = "a recipe (YAML)",
    loader: type[yaml.SafeLoader] | None = None,
) -> dict[str, Any]:
    """Read a YAML mapping from a file. Errors call it `name` (default: its path) and name what was `expected`."""
    name = name or str(file)
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        raise BadInput(name, expected, error.strerror or error) from error
    except UnicodeDecodeError as error:
        raise BadInput(name, expected, f"a file that is not text ({error})") from error
    return parse_yaml(text, name, expected, loader)


def parse_yaml(
    text: str, name: str = "recipe", expected: str = "a recipe (YAML)", loader: type[yaml.SafeLoader] | None = None
) -> dict[str, Any]:
    """Parse a YAML mapping; doubled keys and keys that are not text are refused, unless by another `loader`."""
    try:
        found = yaml.load(text, loader or _StrictLoader)
        check_nesting(found, MOST_LISTS)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # bad dates are ValueErrors
        raise BadInput(name, expected, f"something else ({' '.join(str(error).split())})") from error
    if not isinstance(found, dict):
        raise BadInput(name, "names with a value each", type(found).__name__)
    return found


def check_nesting(value: Any, most: int | None = None) -> None:
    """Raise ValueError for lists and mappings more than 100 deep or, aliases written out, more than `most`."""
    level, count = [value], 0
    for _ in range(DEEPEST):
        inside = (
            inner
            for item in level
            for inner in (item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())
            if isinstance(inner, dict | list)
        )
        level = list(inside if most is None else islice(inside, most + 1))
        count += len(level)
        if not level:
            return
        if most is not None and count > most:
            raise ValueError(f"it has more than {most} lists and mappings")
    raise ValueError(f"it is nested more than {DEEPEST} deep")


def build_config(kind: type[SomeConfig], values: Mapping[str, Any], where: str = "recipe") -> SomeConfig:
    """Make a dataclass of a mapping, nested ones included. `where` names the mapping in errors."""
    checked = _check_values(kind, values, where)
    for known in fields(kind):
        if known.default is MISSING and known.default_factory is MISSING and known.name not in checked:
            raise BadInput(where, f"the key {known.name!r}", "none")
    return kind(**checked)


def change_config(config: SomeConfig, changes: Mapping[str, Any], where: str = "recipe") -> SomeConfig:
    """Return a copy with other values, checked like those of a file."""
    return replace(config, **_check_values(type(config), changes, where))


def _check_values(kind: type[DataclassInstance], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    known = [field.name for field in fields(kind)]
    for name in values:
        if name not in known:
            raise UnknownName(f"key in {where}", str(name), known)
    types = get_type_hints(kind)
    return {name: _check_value(types[name], value, f"{where}, {name}") for name, value in values.items()}


def _check_value(kind: Any, value: Any, where: str) -> Any:
    """Return the value as its field's type; whole numbers are numbers, nothing else is converted."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):  # only `X | None` is used
        (other,) = (argument for argument in arguments if argument is not NoneType)
        return None if value is None else _check_value(other, value, where)
    if origin is Literal:
        if value not in arguments:
            raise UnknownName(f"{where.rpartition(', ')[2]} in {where.rpartition(', ')[0]}", str(value), arguments)
        return value
    if is_dataclass(kind) and isinstance(kind, type):
        return build_config(kind, _check_mapping(value, where), where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise BadInput(where, "a list", repr(value))
        return tuple(_check_value(arguments[0], item, f"{where} {number}") for number, item in enumerate(value, 1))
    if origin is not None and issubclass(origin, Mapping):
        found = _check_mapping(value, where)
        return {name: _check_value(arguments[1], item, f"{where}, {name}") for name, item in found.items()}
    if kind is float and type(value) is not bool:
        try:  # YAML reads 6e-4 as a text
            return float(value)
        except (TypeError, ValueError):
            raise BadInput(where, TYPE_NAMES[float], repr(value)) from None
    if kind in TYPE_NAMES and type(value) is not kind:
        raise BadInput(where, TYPE_NAMES[kind], repr(value))
    return value


def _check_mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadInput(where, "names with a value each", repr(value))
    return value


class _StrictLoader(yaml.SafeLoader):
    """YAML in which every key is a text that occurs once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str) or key in seen:
                problem = "is there twice" if key in seen else "is not a text"
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} {problem}", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)
