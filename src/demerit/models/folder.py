"""Models in folders: `model.json` says of what kind a folder is, and the kind's own loader reads the rest.

    {"format": 1, "kind": "compact"}

A kind is a name that an installed package registered (entry point group `demerit.model_kinds`) for a function that
takes the folder and returns a model. The file never names code: opening a stranger's folder runs nothing of theirs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from demerit.data.episode import safe_name
from demerit.errors import BadInput, UnknownName
from demerit.registry import Registry

DESCRIPTION = "model.json"
FORMAT = 1
OUTPUT = "network"
"""the folder of every compact training's result: its parent is the one that a person named"""
LOCAL = "-local"
"""stands behind the name of somebody's own model where a registered one has it too"""
KINDS = Registry(
    "kind of model",
    {
        "calibrated": "models.calibrated:Calibrated.from_folder",
        "compact": "models.compact.model:Compact.from_folder",
        "taught": "models.taught.model:TaughtModel.from_folder",
    },
)


def load_folder(folder: Path, *argument: str, **options: Any) -> Any:
    """Load the model in a folder; what comes behind the colon of `./my-model:argument` is passed on."""
    kind = read_description(folder)["kind"]
    if kind not in KINDS:
        raise UnknownName(f"kind of model (as {folder / DESCRIPTION} says)", kind, KINDS)
    loader = KINDS.factory(kind)
    try:
        return loader(folder, *argument, **options)
    except TypeError as error:
        if not argument and not options:
            raise
        raise BadInput(str(folder), f"options that a model of kind {kind!r} takes", error) from error


def read_description(folder: Path) -> dict[str, Any]:
    """Read a model folder's model.json: an object with this format's number and a kind; a kind may add its own."""
    path = folder / DESCRIPTION
    try:
        facts = json.loads(path.read_bytes())
    except OSError as error:
        raise BadInput(str(folder), f"a model folder with {DESCRIPTION} in it", error.strerror or error) from error
    except ValueError as error:
        raise BadInput(str(path), "JSON", f"something else ({error})") from error
    if not isinstance(facts, dict):
        raise BadInput(str(path), "an object", f"a {type(facts).__name__}")
    if facts.get("format") != FORMAT:
        raise BadInput(str(path), f"format {FORMAT} (another may need a newer demerit)", repr(facts.get("format")))
    if not isinstance(facts.get("kind"), str):
        raise BadInput(str(path), "a kind of model, as text", repr(facts.get("kind")))
    return facts


def checkpoint_hint(folder: Path) -> str:
    """Say how a vision-language checkpoint is asked for, if that is what a folder holds; nothing for any other."""
    for place in (folder, folder / "model"):
        config = _object_in(place / "config.json")
        if (place / "config.yaml").is_file() or "vlm_config" in config or "RFM" in str(config.get("architectures")):
            return f"a Robometer checkpoint, which is robometer:path={place}"
        if str(config.get("model_type")).startswith("qwen"):
            return f"a checkpoint of a vision-language model, which is roboreward:path={place} (or topreward, ...)"
        if (place / "adapter_config.json").is_file():
            name = "robometer" if (place / "custom_heads.safetensors").is_file() else "roboreward"
            return f"an adapter of a vision-language model, which is {name}:path={place}"
    return ""


def _object_in(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_description(folder: Path, kind: str, **more: Any) -> None:
    """Write a model folder's model.json; written last and at once, it makes the folder a model."""
    partial = folder / f".{DESCRIPTION}.part"
    partial.write_text(json.dumps({"format": FORMAT, "kind": kind, **more}, indent=2) + "\n", encoding="utf-8")
    partial.replace(folder / DESCRIPTION)


def only_these(folder: Path, facts: dict[str, Any], *names: str) -> None:
    """Refuse a model.json with fields that this kind does not know: an option that is ignored is a wrong answer."""
    extra = sorted(set(facts) - {"format", "kind", *names})
    if extra:
        raise BadInput(str(folder / DESCRIPTION), f"only the fields {['format', 'kind', *names]}", extra)


def name_of(folder: Path) -> str:
    """Name a model after its folder, so that two of them are told apart in rewards and reports.

    The folder that training writes is `network` every time: it has its parent's name, though never a registered one.
    """
    from demerit.models import MODELS  # noqa: PLC0415  which imports this module

    folder = folder.resolve()
    if folder.name != OUTPUT or not folder.parent.name:
        return safe_name(folder.name)
    name = safe_name(folder.parent.name)
    return name + LOCAL if name.lower() in {each.lower() for each in MODELS} else name
