"""Reward models, one module each, found by name."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from demerit.errors import BadInput, UnknownName
from demerit.model import RewardModel
from demerit.models.folder import DESCRIPTION, load_folder
from demerit.registry import Registry, load_attribute

MODELS = Registry("model", "demerit.models")


def load_model(name: str, **options: Any) -> RewardModel:
    """Load a model by name.

    Args:
        name: a registered name (`clock`), a name with its argument (`constant:0.3`), a model folder (`./my-model`),
            or the import path of a model class of yours (`my_package.rewards:MyModel`).
        **options: passed on to the model's class.
    """
    known, colon, argument = name.partition(":")
    if known in MODELS:
        factory = MODELS.factory(known)
        model = factory(argument, **options) if colon else factory(**options)
    elif (Path(known) / DESCRIPTION).is_file():
        model = load_folder(Path(known), *([argument] if colon else []), **options)
    elif colon and _is_importable(known):
        model = _made(name, _attribute(known, argument), options)
    elif Path(name).exists():
        raise BadInput(name, f"the name of a model, or its folder with {DESCRIPTION} in it", "another path")
    else:
        raise UnknownName("model", name, MODELS)
    if not isinstance(model, RewardModel):
        raise BadInput(name, "a model with `card` and `score`", f"a {type(model).__name__}")
    return model


def _made(name: str, factory: Any, options: dict[str, Any]) -> Any:
    try:
        return factory(**options)
    except TypeError as error:
        raise BadInput(name, "a model class that can be made with these options", error) from error


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _attribute(module: str, attribute: str) -> Any:
    try:
        return load_attribute(f"{module}:{attribute}", f"the model {module}:{attribute}")
    except AttributeError as error:
        raise BadInput(f"{module}:{attribute}", f"a class in {module}", f"a module without {attribute!r}") from error
