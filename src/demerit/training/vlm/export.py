"""What comes out: a folder that loads like any published checkpoint, or an adapter for the one that it began with.

A Robometer is written as its authors write theirs (config.json, config.yaml, safetensors), with the tokenizer beside
it; a RoboReward as a plain Qwen3-VL. The folder appears when it is whole.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from demerit.errors import BadInput, WriteError
from demerit.models.vlm import adapters
from demerit.models.vlm.layouts import CONFIG, HEAD, YAML
from demerit.models.vlm.stored import INDEX, SINGLE
from demerit.training.vlm.network import ADAPTED
from demerit.training.vlm.recipe import Recipe, RobometerRecipe
from demerit.training.vlm.start import EMBEDDING, KINDS, Start

FACTS = "training.json"
SHARD = 5_000_000_000
"""bytes of a file of weights"""
BESIDE = (
    "tokenizer_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "generation_config.json",
    "chat_template.jinja",
)
"""small files that go with a model unchanged"""
LORA = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])\.default\.weight")


def export(
    trained: Mapping[str, Tensor], start: Start, recipe: Recipe, folder: Path, facts: Mapping[str, Any], *, merged: bool
) -> Path:
    """Write the folder; it replaces one that an earlier, equal run wrote.

    Args:
        trained: what learned, by name, whole.
        start: what it began with; everything else is as it was there.
        recipe: how it was trained.
        folder: where it goes.
        facts: about the run, kept as training.json.
        merged: adapters are added to the weights; otherwise they are written alone.
    """
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        if merged:
            _write_model(partial, trained, start, recipe)
        else:
            _write_adapter(partial, trained, start, recipe)
        (partial / FACTS).write_text(json.dumps(dict(facts), indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(partial, folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        kept = "What was learned is kept; with room to write, the same command writes the model."
        raise WriteError(folder, reason, kept) from error
    return folder


def check_export(start: Start, folder: Path, *, merged: bool) -> None:
    """Refuse before training what could not be written after it."""
    if folder.exists() and not (folder / FACTS).is_file():
        raise BadInput(str(folder), "no such folder yet, or a model that was trained here", "something else")
    if merged:
        return
    if start.new_tokens:
        expected = "a Robometer to begin with, as an adapter has no place for new tokens (or --save merged)"
        raise BadInput("--save adapter", expected, "a plain Qwen3-VL")
    if start.is_adapted:
        expected = "a whole model to begin with, as no adapter can lie on another (--save merged writes a whole one)"
        raise BadInput("--save adapter", expected, f"an adapter ({start.came_from})")


def merged_weights(trained: Mapping[str, Tensor], start: Start, recipe: Recipe) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight of the result: as it was, as it became, or with its adapter added in float32."""
    pairs = _pairs(trained)
    for name, before in start.weights.items():
        value = trained.get(name, before)
        module = name.removesuffix(".weight")
        if module in pairs:
            a, b = pairs[module]
            value = value.float() + (b.float() @ a.float()) * (recipe.lora_alpha / recipe.lora)
        if name == EMBEDDING and "new_tokens" in trained:
            value = value.float().clone()
            value[list(start.new_tokens)] = trained["new_tokens"].float()
        yield name, value.to("cpu", KINDS[recipe.precision]).contiguous()


def _pairs(trained: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    halves: dict[str, dict[str, Tensor]] = {}
    for name, value in trained.items():
        if match := LORA.fullmatch(name):
            halves.setdefault(match["module"], {})[match["part"]] = value
    return {module: (both["A"], both["B"]) for module, both in halves.items()}


def _write_model(folder: Path, trained: Mapping[str, Tensor], start: Start, recipe: Recipe) -> None:
    config = dict(start.config)
    if isinstance(recipe, RobometerRecipe):
        config["architectures"] = ["RFM"]
        said = {
            "model": {"base_model_id": start.base, "model_type": "default", "use_peft": False},
            "data": {"max_frames": recipe.frames, "use_multi_image": True, "use_per_frame_progress_token": True},
            "loss": {"progress_loss_type": "discrete", "progress_discrete_bins": recipe.bins},
        }
        (folder / YAML).write_text(yaml.safe_dump(said), encoding="utf-8")
    config["dtype"] = recipe.precision
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    _copy_words(folder, start)
    _write_shards(folder, merged_weights(trained, start, recipe))


def _on_disk(name: str) -> str:
    return f"model.{name}" if name.startswith(("language_model.", "visual.")) else name


def _write_shards(folder: Path, weights: Iterator[tuple[str, Tensor]]) -> None:
    """Write one file, or several with an index when they are large; one file's tensors are in memory at a time."""
    shards: list[list[str]] = []
    size = total = 0
    some: dict[str, Tensor] = {}

    def write() -> None:
        _save(some, folder / f"part-{len(shards)}.safetensors")
        shards.append(list(some))
        some.clear()

    for name, value in weights:
        nbytes = value.numel() * value.element_size()
        if some and size + nbytes > SHARD:
            write()
            size = 0
        some[_on_disk(name)] = value
        size, total = size + nbytes, total + nbytes
    write()
    if len(shards) == 1:
        (folder / "part-0.safetensors").rename(folder / SINGLE)
        return
    names = [f"model-{at + 1:05}-of-{len(shards):05}.safetensors" for at in range(len(shards))]
    for at, name in enumerate(names):
        (folder / f"part-{at}.safetensors").rename(folder / name)
    where = {tensor: name for name, inside in zip(names, shards, strict=True) for tensor in inside}
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_adapter(folder: Path, trained: Mapping[str, Tensor], start: Start, recipe: Recipe) -> None:
    """Write the factors, and whole what was trained as a whole: heads, and whatever of the vision tower learned."""
    kind = KINDS[recipe.precision]
    plain = {name: value.to("cpu", kind).contiguous() for name, value in trained.items() if not LORA.fullmatch(name)}
    factors = {
        f"base_model.model.{name.replace('.default.', '.')}": value.to("cpu", torch.float32).contiguous()
        for name, value in trained.items()
        if LORA.fullmatch(name)
    }
    heads = {name: value for name, value in plain.items() if HEAD.match(name)}
    rest = {f"base_model.model.{name}": value for name, value in plain.items() if name not in heads}
    _save({**factors, **rest}, folder / adapters.WEIGHTS)
    if heads:
        _save(heads, folder / adapters.HEADS)
    settings = {
        "peft_type": "LORA",
        "base_model_name_or_path": str(start.came_from),
        "r": recipe.lora,
        "lora_alpha": recipe.lora_alpha,
        "lora_dropout": recipe.lora_dropout,
        "target_modules": rf".*language_model{ADAPTED}",
        "bias": "none",
    }
    (folder / adapters.CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors to a file that others may read as far as the umask says; safetensors makes it ours alone."""
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(mode)


def _copy_words(folder: Path, start: Start) -> None:
    if start.tokenizer is not None:
        shutil.copyfile(start.tokenizer, folder / "tokenizer.json")
    for name in BESIDE:
        if start.settings is not None and (start.settings / name).is_file():
            shutil.copyfile(start.settings / name, folder / name)
