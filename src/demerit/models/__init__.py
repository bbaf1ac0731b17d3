"""Reward models, one module each, found by name."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from demerit.errors import BadInput, UnknownName
from demerit.models.folder import DESCRIPTION, checkpoint_hint, load_folder
from demerit.models.protocol import RewardModel
from demerit.registry import Registry, load_attribute

MODELS = Registry(
    "model",
    {
        "default": "models.compact.model:Compact",
        "clock": "models.baselines:Clock",
        "constant": "models.baselines:Constant",
        "random": "models.baselines:Noise",
        "change": "models.baselines:Change",
        "motion": "models.baselines:Motion",
        "length": "models.baselines:Length",
        "gvl": "models.gvl.model:GVL",
        "robometer": "models.published.robometer:Robometer",
        "roboreward": "models.published.roboreward:RoboReward",
        "topreward": "models.published.topreward:TOPReward",
        "dopamine": "models.published.dopamine:Dopamine",
        "vlac": "models.published.vlac:VLAC",
        "ensemble": "models.ensemble:Ensemble",
        "calibrated": "models.calibrated:calibrated",
    },
    "demerit.models",
)


def load_model(name: str, **options: Any) -> RewardModel:
    """Load a model by name.

    Args:
        name: a registered name (`default`), a name with its argument (`constant:0.3`), a model folder (`./my-model`),
            or the import path of a model class of yours (`my_package.rewards:MyModel`).
        **options: passed on to the model's class.
    """
    model = find_model(name)(**options)
    if not isinstance(model, RewardModel):
        raise BadInput(name, "a model with `card` and `score`", f"a {type(model).__name__}")
    return model


def find_model(name: str) -> Callable[..., Any]:
    """Find what a name stands for and return what makes it: a wrong name is found before anything is loaded."""
    known, colon, argument = name.partition(":")
    arguments = [argument] if colon else []
    if known in MODELS:
        return partial(MODELS.factory(known), *arguments)
    if (Path(known) / DESCRIPTION).is_file():
        return partial(load_folder, Path(known), *arguments)
    if colon and _is_importable(known):
        return partial(_made, name, _attribute(known, argument))
    if Path(name).exists():
        got = checkpoint_hint(Path(name)) or "another path"
        raise BadInput(name, f"the name of a model, or its folder with {DESCRIPTION} in it", got)
    raise UnknownName("model", name, MODELS)


def _made(name: str, factory: Any, **options: Any) -> Any:
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
