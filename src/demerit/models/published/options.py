"""Options and names of the models that run on the Qwen3-VL engine.

    roboreward:4b,path=./my-checkpoint,device=cuda:1,dtype=bfloat16

Rewards are stored under the name of the checkpoint that was asked for:

    robometer                              robometer              a published checkpoint: its published name
    robometer:path=runs/ra/model           ra                     a folder: its own name, or its parent's
    robometer:path=someone/Robometer-ft    someone-Robometer-ft   another one on the hub
    roboreward:8b,adapter=runs/mine/model  roboreward-8b+mine     with an adapter
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from demerit.data.episode import safe_name
from demerit.errors import BadInput, MissingExtra, UnknownName
from demerit.models import MODELS
from demerit.models.loading import LOCAL
from demerit.models.vlm.hub import hub_id
from demerit.registry import load_attribute

PLACEMENT: Mapping[str, Callable[[str], Any]] = {"revision": str, "adapter": str, "device": str, "dtype": str}
"""which weights, and where they run"""
SHARED: Mapping[str, Callable[[str], Any]] = {"path": str, **PLACEMENT, "at_once": int}
NEEDED = ("torch", "transformers", "safetensors", "tokenizers")
OUTPUT = "model"
"""the folder that every training writes; its parent has the name that the user chose"""
GENERIC = re.compile(r"(checkpoint|step|epoch)s?[-_]?\d*|ckpt|best|last|latest|final|merged|adapter|weights")
"""generic folder names; the parent's name is put first"""


def load_engine(model: str, attribute: str) -> Any:
    """Import `module:attribute` of demerit.models.vlm; raise MissingExtra if the extra is not installed."""
    try:
        for module in NEEDED:
            load_attribute(f"{module}:__name__", f"the model {model!r}")
        return load_attribute(f"demerit.models.vlm.{attribute}", f"the model {model!r}")
    except (ModuleNotFoundError, MissingExtra) as missing:
        raise MissingExtra(f"The model {model!r}", "vlm") from missing


def read_options(
    model: str, text: str, changes: Mapping[str, Any], own: Mapping[str, Callable[[str], Any]], word: str
) -> dict[str, Any]:
    """Read a model's options.

    Args:
        model: the model's name, for errors.
        text: what stands after the colon: `4b,device=cpu`.
        changes: options by name; they override the text.
        own: the model's own options and how to parse each.
        word: the option that a word without = sets.
    """
    kinds = {**SHARED, **own}
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
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
            raise BadInput(f"{model}:{name}", f"a value of type {kinds[name].__name__}", repr(value)) from error
    unknown = sorted(set(changes) - set(kinds))
    if unknown:
        raise UnknownName(f"option of {model}", unknown[0], kinds)
    found |= {name: value for name, value in changes.items() if value is not None}
    if "at_once" in found:
        check_at_least("at_once", found["at_once"], 1)
    return found


def placement(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that choose the weights and the device."""
    return {name: given.get(name) for name in PLACEMENT}


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return the value if it is allowed."""
    if value not in allowed:
        raise BadInput(name, f"one of {', '.join(allowed)}", repr(value))
    return value


def check_at_least(name: str, value: int, least: int) -> int:
    """Return the number if it is large enough."""
    if value < least:
        raise BadInput(name, f"a number >= {least}", value)
    return value


def reward_name(place: str, adapter: str | None, published: Mapping[str, str], prefix: str = "") -> str:
    """Return the name to store rewards under.

    Args:
        place: a folder or a hub id.
        adapter: a folder or a hub id.
        published: names of published checkpoints by their hub ids.
        prefix: put before the name of any other checkpoint.
    """
    known = _hub_id(place)
    if known is not None and known in published:
        name = published[known]
    else:
        name = prefix + _checkpoint_name(place)
        if name.lower() in {taken.lower() for taken in (*published.values(), *MODELS)}:
            name += LOCAL
    return name if not adapter else f"{name}+{_checkpoint_name(adapter)}"


def _checkpoint_name(place: str) -> str:
    known = _hub_id(place)
    if known:
        owner, _, name = known.partition("/")
        return safe_name(name if name.lower().startswith(owner.lower()) else f"{owner}-{name}")
    folder = Path(os.path.abspath(Path(place).expanduser()))
    if folder.name == OUTPUT and folder.parent.name:
        return safe_name(folder.parent.name)
    if GENERIC.fullmatch(folder.name) and folder.parent.name:
        return safe_name(f"{folder.parent.name}-{folder.name}")
    return safe_name(folder.name)


def _hub_id(place: str) -> str | None:
    """Return the hub id, also of a folder in the hub's cache; None for any other folder."""
    folder = Path(place).expanduser()
    return hub_id(folder) if folder.is_dir() else place
