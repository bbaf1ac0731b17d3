"""The public layouts of Qwen3-VL checkpoints, brought to one set of names.

    qwen               model.language_model.*        model.visual.*        lm_head.weight (or tied)
    robometer          model.language_model.*        model.visual.*        heads; config.yaml; shape perhaps in the base
    robometer-lerobot  model.model.language_model.*  model.model.visual.*  model.lm_head.weight; heads; vlm_config
    ours               language_model.*              visual.*              lm_head.weight; heads

A network that peft has wrapped carries `base_model.model.` and `.base_layer` in its names; those go too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from demerit.errors import BadInput
from demerit.models.vlm.stored import read_json

Layout = Literal["qwen", "robometer", "robometer-lerobot"]

CONFIG, YAML = "config.json", "config.yaml"
PREFIXES = ("", "model.", "model.model.")
PARTS = ("language_model.", "visual.")
READ_OUT = "lm_head.weight"
EMBEDDING = "language_model.embed_tokens.weight"
WRAPPER = "base_model.model."
HEAD = re.compile(r"(progress_head|success_head|preference_head|frame_pool_attn)\.")
UNUSED_HEAD = "frame_pool_attn.weight"
"""stored with every Robometer and read by none: only for pooling that the published one does without"""


@dataclass(frozen=True)
class RobometerFacts:
    """What a Robometer checkpoint says about itself beyond the backbone."""

    base: str
    """hub id or folder of the backbone it was trained from: its tokenizer, and perhaps its shape"""
    bins: int
    frames: int
    """frames in a window"""
    adapter: Mapping[str, Any] | None
    """rank and alpha of the adapters, where config.yaml has them"""
    also_progress: bool = True
    """pairs were asked for the progress of the first as well, as in the published recipe"""


def canonical(names: Iterable[str], where: str) -> dict[str, str]:
    """Map the names on disk to ours; names of no known part stay as they are, for the strict check to report."""
    bare = {name: name.replace(WRAPPER, "").replace(".base_layer.", ".") for name in names}
    prefixes = {name[: name.index(PARTS[0])] for name in bare.values() if PARTS[0] in name}
    if len(prefixes) != 1 or not prefixes <= set(PREFIXES):
        got = f"names such as {', '.join(list(bare)[:3]) or 'none'}"
        raise BadInput(where, "a Qwen3-VL checkpoint (weights named model.language_model.* and model.visual.*)", got)
    prefix = prefixes.pop()
    read_out = prefix.removesuffix("model.") + READ_OUT
    mapped: dict[str, str] = {}
    for name, plain in bare.items():
        ours = plain
        if plain.startswith(tuple(prefix + part for part in PARTS)):
            ours = plain.removeprefix(prefix)
        elif plain == read_out:
            ours = READ_OUT
        mapped[name] = ours
    if len(set(mapped.values())) != len(mapped):
        twice = sorted(name for name in mapped if list(mapped.values()).count(mapped[name]) > 1)
        raise BadInput(where, "one tensor for each weight", f"several, such as {', '.join(twice[:2])}")
    return mapped


def read_config(folder: Path) -> tuple[Layout, dict[str, Any] | None, RobometerFacts | None]:
    """Tell the layout, the backbone's config (None: it is the base model's) and Robometer's facts."""
    config = read_json(folder / CONFIG)
    if config.get("quantization_config"):
        raise BadInput(str(folder), "a checkpoint that is not quantised", config["quantization_config"])
    if "vlm_config" in config:
        return (
            "robometer-lerobot",
            _backbone(config["vlm_config"]),
            _facts(folder / CONFIG, config, config, config, None),
        )
    if "RFM" in _listed(config, "architectures") or (folder / YAML).is_file():
        said = _read_yaml(folder / YAML)
        model, loss, data = (_section(said, name) for name in ("model", "loss", "data"))
        facts = _facts(folder / YAML, model, loss, data, said.get("peft"))
        also = _section(said, "training").get("predict_pref_progress", True) is not False
        return "robometer", _backbone(config), replace(facts, also_progress=also)
    if _backbone(config) is None:
        got = f"config.json for {config.get('model_type') or config.get('architectures') or 'nothing in particular'}"
        raise BadInput(str(folder), "config.json with text_config and vision_config, as Qwen3-VL has", got)
    return "qwen", config, None


def is_tied(config: Mapping[str, Any]) -> bool:
    """Whether words are read out with the embedding table."""
    return bool(config.get("tie_word_embeddings", config.get("text_config", {}).get("tie_word_embeddings", False)))


def _backbone(config: Any) -> dict[str, Any] | None:
    """Return a config that tells a network's shape, also one that was written as text; None if it does not."""
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError:
            return None
    whole = isinstance(config, dict) and isinstance(config.get("text_config"), dict) and config.get("vision_config")
    return config if whole else None


def _facts(
    source: Path, model: dict[str, Any], loss: dict[str, Any], data: dict[str, Any], adapter: Any
) -> RobometerFacts:
    """Read the facts, and refuse variants of Robometer that are read out in another way than the published one."""
    for section, name, needed in (
        (loss, "progress_loss_type", "discrete"),
        (data, "use_multi_image", True),
        (data, "use_per_frame_progress_token", True),
    ):
        said = section.get(name, needed)
        if said != needed and not str(said).startswith("${"):  # a reference to another section, read there
            raise BadInput(str(source), f"{name} = {needed}, as the published Robometer has it", repr(said))
    base = model.get("base_model_id")
    if not isinstance(base, str) or not base:
        raise BadInput(str(source), "base_model_id, the model that this one was trained from", repr(base))
    numbers = []
    for section, name in ((loss, "progress_discrete_bins"), (data, "max_frames")):
        value = section.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadInput(str(source), f"{name}, a whole number of at least 1", repr(value))
        numbers.append(value)
    return RobometerFacts(base, numbers[0], numbers[1], adapter if isinstance(adapter, dict) else None)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        said = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(str(path), "config.yaml, which a Robometer checkpoint has", error.strerror or error) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(str(path), "plain YAML", f"something else ({str(error).partition(chr(10))[0]})") from error
    if not isinstance(said, dict):
        raise BadInput(str(path), "sections model, loss and data", type(said).__name__)
    return said


def _listed(config: dict[str, Any], name: str) -> list[Any]:
    said = config.get(name)
    return said if isinstance(said, list) else []


def _section(said: dict[str, Any], name: str) -> dict[str, Any]:
    section = said.get(name)
    return section if isinstance(section, dict) else {}
