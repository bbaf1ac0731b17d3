"""Recipes as YAML files, read strictly: an unknown or doubled key is refused, with the one that was perhaps meant."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import yaml

from demerit.data.episode import safe_name
from demerit.errors import BadInput, UnknownName
from demerit.training.corpus.recipe import Counterfactuals, HeldOut, Negatives, Recipe, Score, Source, Splits

SHIPPED = files("demerit") / "assets" / "corpora"
Section = TypeVar("Section")
WORDS = {
    "str": "a text",
    "int": "a whole number",
    "int | None": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "bool | None": "true or false",
    "tuple[int, ...]": "a list of whole numbers",
}


class _Strict(yaml.SafeLoader):
    """YAML without doubled keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse the second of two keys instead of forgetting the first."""
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str) or key in seen:
                what = "is there twice" if key in seen else "is no text"
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} {what}", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def shipped() -> list[str]:
    """Names of the recipes inside the package."""
    return sorted(path.name.removesuffix(".yaml") for path in SHIPPED.iterdir() if path.name.endswith(".yaml"))


def load_recipe(path: str | Path) -> Recipe:
    """Read a recipe: a file, or the name of one that ships. Folders in it are relative to the file."""
    place = Path(path).expanduser()
    if str(path) in shipped() and not place.exists():
        place = Path(str(SHIPPED)) / f"{path}.yaml"
    if not place.is_file():
        raise BadInput(str(path), f"a recipe (YAML), or one that ships ({', '.join(shipped())})", "no such file")
    try:
        return read_recipe(place.read_text("utf-8"), place.resolve().parent)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(str(path), "a recipe (YAML)", f"a file that cannot be read ({error})") from error


def read_recipe(text: str, home: Path) -> Recipe:
    """Read a recipe's text; `home` is what its folders are relative to."""
    try:
        told = yaml.load(text, _Strict)
    except yaml.YAMLError as error:
        raise BadInput("recipe", "YAML", f"something else ({' '.join(str(error).split())})") from error
    told = _mapping("recipe", told)
    given: dict[str, Any] = dict(told)
    given["sources"] = _several("sources", told.get("sources"))
    given["held_out"] = tuple(
        _placed(_section(HeldOut, f"held_out {number}", one), home)
        for number, one in enumerate(_several("held_out", told.get("held_out")), 1)
    )
    sources = [_source(number, one, home) for number, one in enumerate(given["sources"], 1)]
    given["sources"] = tuple(source for several in sources for source in several)
    for name, kind in (("negatives", Negatives), ("counterfactuals", Counterfactuals), ("splits", Splits)):
        if name in told:
            given[name] = _section(kind, name, told[name] if told[name] is not None else {})
    if "chat" in told:
        given["chat"] = _mapping("chat", told["chat"])
    return _made(Recipe, "recipe", given)


def written(recipe: Recipe) -> str:
    """Write a recipe as `read_recipe` reads it, with whole paths; where a model answers is no part of it."""
    facts = _plain(asdict(recipe))
    del facts["chat"]
    return yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)


def _plain(value: Any) -> Any:
    """What YAML can hold; what was not said stays unsaid."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items() if one is not None}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _source(number: int, told: Any, home: Path) -> list[Source]:
    """Read one entry; with a `*` in its folder it stands for several sources."""
    where = f"sources {number}"
    facts = dict(_mapping(where, told))
    if "score" in facts:
        facts["score"] = _section(Score, f"{where}, score", facts["score"])
    source = _made(Source, where, facts)
    if "*" not in source.folder:
        return [_named(_placed(source, home))]
    pattern = str(home / Path(source.folder).expanduser())
    found = sorted(path for path in glob.glob(pattern) if Path(path).is_dir())
    if not found:
        raise BadInput(f"recipe, {where}", "folders that exist", f"nothing at {pattern}")
    if source.name:
        raise BadInput(f"recipe, {where}", "no name, where `*` stands for several folders", repr(source.name))
    return [_named(replace(source, folder=str(Path(path).resolve()))) for path in found]


def _placed(one: Any, home: Path) -> Any:
    """Find a folder beside the recipe."""
    return replace(one, folder=str((home / Path(one.folder).expanduser()).resolve()))


def _named(source: Source) -> Source:
    return source if source.name else replace(source, name=safe_name(Path(source.folder).name))


def _section(kind: type[Section], where: str, told: Any) -> Section:
    return _made(kind, where, dict(_mapping(where, told)))


def _made(kind: type[Section], where: str, given: Mapping[str, Any]) -> Section:
    """Make a section of its keys, each of the kind that its field has."""
    place = where if where == "recipe" else f"recipe, {where}"
    known = {one.name: one for one in fields(kind)}  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise UnknownName(f"key in {place}", str(name), known)
    needed = [one.name for one in known.values() if one.default is MISSING and one.default_factory is MISSING]
    for name in needed:
        if name not in given:
            raise BadInput(place, f"the key {name!r}", "none")
    checked = {name: _checked(f"{place}, {name}", str(known[name].type), value) for name, value in given.items()}
    return kind(**checked)


def _checked(place: str, kind: str, value: Any) -> Any:
    """Return a value of its field's kind; nothing is guessed from another kind."""
    if kind not in WORDS:
        if kind.startswith("Mapping") and not isinstance(value, Mapping):
            raise BadInput(place, "names with a value each", repr(value))
        return value
    if kind == "tuple[int, ...]" and isinstance(value, list):
        return tuple(_checked(place, "int", one) for one in value)
    if kind == "float" and type(value) in (int, float):
        return float(value)
    if type(value).__name__ != kind.removesuffix(" | None"):
        raise BadInput(place, WORDS[kind], repr(value))
    return value


def _mapping(where: str, told: Any) -> dict[str, Any]:
    if not isinstance(told, dict):
        raise BadInput(f"recipe, {where}" if where != "recipe" else where, "names with a value each", repr(told))
    return told


def _several(where: str, told: Any) -> list[Any]:
    if told is None:
        return []
    if not isinstance(told, list):
        raise BadInput(f"recipe, {where}", "a list", type(told).__name__)
    return told
