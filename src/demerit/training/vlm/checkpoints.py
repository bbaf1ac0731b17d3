"""Checkpoints at both ends of a run: the weights it starts with, and the folder it writes.

A trained Robometer has its authors' layout (config.json, config.yaml, safetensors) with the tokenizer next to it; a
RoboReward is a plain Qwen3-VL or Qwen2.5-VL. Both load like any published checkpoint.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from demerit.data.splits import SEEN, SeenEpisodes
from demerit.errors import BadInput
from demerit.models.vlm.checkpoint import (
    ADAPTER_CONFIG,
    ADAPTER_HEADS,
    ADAPTER_WEIGHTS,
    CONFIG,
    HEAD,
    TRAINING,
    YAML,
    Checkpoint,
    read_checkpoint,
    tokenizer_path,
)
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.prompt import PromptTokenizer, load_prompts
from demerit.models.vlm.robometer import expected_heads
from demerit.training.loop import write_folder
from demerit.training.vlm.config import RobometerTrainConfig, VLMTrainConfig

EMBEDDING = "language_model.embed_tokens.weight"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FUSION = ("visual.merger.", "visual.deepstack_merger_list.")
SHARD = 5_000_000_000
"""bytes in a file of weights"""
COPIED = (
    "tokenizer_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "generation_config.json",
    "chat_template.jinja",
)
"""small files that are copied unchanged"""
PROGRESS_TYPES = {"clip": "absolute_first_frame", "episode": "absolute_wrt_total_frames"}
"""the authors' names of `zero_at`"""
LORA = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])\.default\.weight")
TARGETS = r".*language_model.*\.(q|k|v|o|gate|up|down)_proj"


@dataclass(frozen=True, eq=False)
class VLMStart:
    """A network before training."""

    config: Mapping[str, Any]
    weights: dict[str, Tensor]
    """what is trained is float32"""
    tokens: PromptTokenizer
    tokenizer: Path | None
    """its file, which is copied; its folder has the other small files"""
    base: str
    """hub id or folder of the backbone"""
    name: str
    """hub id or folder of the checkpoint itself"""
    fingerprint: str
    new_tokens: tuple[int, ...] = ()
    """tokens whose embeddings start here"""
    is_adapter: bool = False
    """the checkpoint is an adapter, on which no other adapter can be put"""

    @property
    def shape(self) -> VLMShape:
        """The network's shape."""
        return VLMShape.from_config(self.config)


def is_trained(name: str, config: VLMTrainConfig) -> bool:
    """Whether a weight itself is changed (adapters aside)."""
    if name.startswith("visual."):
        return config.train_vision or (config.train_fusion and name.startswith(FUSION))
    if name.startswith(("language_model.", "lm_head.")):
        return config.lora == 0
    return not name.startswith("frame_pool_attn.")


def choose_dtype(name: str, config: VLMTrainConfig) -> torch.dtype:
    """Return the type a weight is kept in while training."""
    return torch.float32 if is_trained(name, config) else DTYPES[config.precision]


def load_start(name: str, config: VLMTrainConfig) -> VLMStart:
    """Read the checkpoint that a run starts with: a folder or a hub id."""
    checkpoint = read_checkpoint(name, None)
    if isinstance(config, RobometerTrainConfig):
        return _start_robometer(name, checkpoint, config)
    if checkpoint.facts is not None:
        raise BadInput(name, "a Qwen3-VL that answers with text (such as RoboReward)", "a Robometer, which has heads")
    shape = VLMShape.from_config(checkpoint.config)
    weights = _read_weights(checkpoint, shape.expected_weights(read_out=True), config)
    return _make_start(name, checkpoint, weights, PromptTokenizer.read(tokenizer_path(checkpoint)))


def _start_robometer(name: str, checkpoint: Checkpoint, config: RobometerTrainConfig) -> VLMStart:
    """Start from a Robometer, or from a plain Qwen3-VL with new tokens and heads."""
    tokens = PromptTokenizer.read(tokenizer_path(checkpoint), load_prompts("robometer")["added_tokens"])
    shape = VLMShape.from_config(checkpoint.config)
    heads = expected_heads(shape.text.hidden, config.bins)
    facts = checkpoint.facts
    if facts is not None:
        if (facts.bins, facts.frames) != (config.bins, config.frames):
            expected = f"the {facts.bins} bins and {facts.frames} frames that {name} was trained with"
            raise BadInput("configuration", expected, f"{config.bins} bins and {config.frames} frames")
        expected_weights = {**shape.expected_weights(read_out=False), **heads}
        weights = _read_weights(checkpoint, expected_weights, config, gaps=("frame_pool_attn.weight",))
        return _make_start(name, checkpoint, weights, tokens, base=facts.base)
    weights = _read_weights(checkpoint, shape.expected_weights(read_out=False), config)
    added = [tokens.id(token) for token in load_prompts("robometer")["added_tokens"]]
    weights[EMBEDDING] = add_token_rows(weights[EMBEDDING], added, config.seed)
    weights |= make_heads(heads, config)
    start = _make_start(name, checkpoint, weights, tokens, new_tokens=tuple(added))
    return replace(start, config=resize_vocabulary(checkpoint.config, max(added) + 1))


def _make_start(
    name: str,
    checkpoint: Checkpoint,
    weights: dict[str, Tensor],
    tokens: PromptTokenizer,
    base: str | None = None,
    **more: Any,
) -> VLMStart:
    folder = Path(name).expanduser()
    full = str(folder.resolve()) if folder.is_dir() else name
    return VLMStart(
        checkpoint.config,
        weights,
        tokens,
        tokenizer_path(checkpoint),
        base=base or full,
        name=full,
        fingerprint=checkpoint.fingerprint(),
        is_adapter=any(folder != checkpoint.folder for folder in checkpoint.adapters),
        **more,
    )


def add_token_rows(table: Tensor, added: list[int], seed: int) -> Tensor:
    """Cut a table of embeddings behind the added tokens, and start theirs near the mean of the others."""
    rows = max(added) + 1
    if table.shape[0] < min(added):
        raise BadInput("tokenizer.json", f"at most {table.shape[0]} tokens, as the model has", f"{min(added)}")
    others = table[: min(added)].float()
    rng = torch.Generator().manual_seed(seed)
    fresh = others.mean(0) + 0.1 * others.std(0) * torch.randn(rows - len(others), table.shape[1], generator=rng)
    return torch.cat([others, fresh]).to(table.dtype)


def make_heads(shapes: Mapping[str, tuple[int, ...]], config: VLMTrainConfig) -> dict[str, Tensor]:
    """Initialise heads as torch initialises linear layers and norms."""
    rng = torch.Generator().manual_seed(config.seed)
    heads = {}
    for name, shape in shapes.items():
        if ".1." in name:  # the norm
            value = torch.ones(shape) if name.endswith("weight") else torch.zeros(shape)
        else:
            inputs = shapes[name.replace("bias", "weight")][-1]
            value = (2 * torch.rand(shape, generator=rng) - 1) / np.sqrt(inputs)
        heads[name] = value.to(choose_dtype(name, config))
    return heads


def resize_vocabulary(config: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return the config of a network with `rows` embeddings."""
    return {**config, "text_config": {**config["text_config"], "vocab_size": rows}}


def _read_weights(
    checkpoint: Checkpoint, expected: Mapping[str, tuple[int, ...]], config: VLMTrainConfig, gaps: tuple[str, ...] = ()
) -> dict[str, Tensor]:
    """Read weights into main memory, strictly."""
    read = checkpoint.tensors("cpu", torch.float32, expected, gaps=gaps)
    return {name: value.to(choose_dtype(name, config)) for name, value in read}


# Writing the trained model


def check_export(start: VLMStart, folder: Path, *, merged: bool) -> None:
    """Refuse before training what could not be written after it."""
    if folder.exists() and not (folder / TRAINING).is_file():
        raise BadInput(str(folder), "no such folder yet, or a model that was trained here", "another folder")
    if merged:
        return
    if start.new_tokens:
        expected = "a run that starts with a Robometer, because an adapter cannot hold new tokens (or --save merged)"
        raise BadInput("--save adapter", expected, "a plain Qwen3-VL")
    if start.is_adapter:
        raise BadInput("--save adapter", "a whole model to start with (or --save merged)", f"an adapter ({start.name})")


def export_vlm(
    trained: Mapping[str, Tensor],
    start: VLMStart,
    config: VLMTrainConfig,
    folder: Path,
    facts: Mapping[str, Any],
    seen: SeenEpisodes,
    *,
    merged: bool,
) -> Path:
    """Write the model's folder; it replaces one that the same run wrote before.

    Args:
        trained: What was trained, by name. Everything else is as in `start`.
        start: What the run started with.
        config: How it was trained.
        folder: Where the model goes.
        facts: About the run, for training.json.
        seen: The episodes that it was trained on; those of `start` are added.
        merged: Add adapters to the weights; otherwise write the adapters alone.
    """
    with write_folder(folder, "The last checkpoint is kept: rerun to write the model.") as partial:
        if merged:
            _write_model(partial, trained, start, config)
        else:
            _write_adapter(partial, trained, start, config)
        (partial / SEEN).write_bytes((seen | SeenEpisodes.read(Path(start.name) / SEEN)).content())
        (partial / TRAINING).write_text(json.dumps(dict(facts), indent=2) + "\n", encoding="utf-8")
        for path in partial.glob("*.safetensors"):  # safetensors lets the owner alone read them
            path.chmod((partial / TRAINING).stat().st_mode)
    return folder


def merge_weights(
    trained: Mapping[str, Tensor], start: VLMStart, config: VLMTrainConfig
) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight of the trained model; adapters are added in float32."""
    halves: dict[str, dict[str, Tensor]] = {}
    for name, value in trained.items():
        if match := LORA.fullmatch(name):
            halves.setdefault(match["module"], {})[match["part"]] = value
    for name, before in start.weights.items():
        value = trained.get(name, before)
        if pair := halves.get(name.removesuffix(".weight")):
            value = value.float() + (pair["B"].float() @ pair["A"].float()) * (config.lora_alpha / config.lora)
        if name == EMBEDDING and "new_tokens" in trained:
            value = value.float().clone()
            value[list(start.new_tokens)] = trained["new_tokens"].float()
        yield name, value.to("cpu", DTYPES[config.precision]).contiguous()


def _write_model(folder: Path, trained: Mapping[str, Tensor], start: VLMStart, config: VLMTrainConfig) -> None:
    model_config = {**start.config, "dtype": config.precision}
    if isinstance(config, RobometerTrainConfig):
        model_config["architectures"] = ["RFM"]
        facts = {
            "model": {"base_model_id": start.base, "model_type": "default", "use_peft": False},
            "data": {
                "max_frames": config.frames,
                "use_multi_image": True,
                "use_per_frame_progress_token": True,
                "progress_pred_type": PROGRESS_TYPES[config.zero_at],
            },
            "loss": {"progress_loss_type": "discrete", "progress_discrete_bins": config.bins},
        }
        (folder / YAML).write_text(yaml.safe_dump(facts), encoding="utf-8")
    (folder / CONFIG).write_text(json.dumps(model_config, indent=2) + "\n", encoding="utf-8")
    if start.tokenizer is not None:
        shutil.copyfile(start.tokenizer, folder / "tokenizer.json")
        for file in (start.tokenizer.parent / name for name in COPIED):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)
    weights = {
        f"model.{name}" if name.startswith(("language_model.", "visual.")) else name: value
        for name, value in merge_weights(trained, start, config)
    }
    save_torch_state_dict(weights, folder, filename_pattern="model{suffix}.safetensors", max_shard_size=SHARD)


def _write_adapter(folder: Path, trained: Mapping[str, Tensor], start: VLMStart, config: VLMTrainConfig) -> None:
    """Write the adapters, and everything that was trained in full: heads and parts of the vision tower."""
    tensors, heads = {}, {}
    for name, value in trained.items():
        if LORA.fullmatch(name):
            tensors[f"base_model.model.{name.replace('.default.', '.')}"] = value.to("cpu", torch.float32).contiguous()
        elif HEAD.match(name):
            heads[name] = value.to("cpu", DTYPES[config.precision]).contiguous()
        else:
            tensors[f"base_model.model.{name}"] = value.to("cpu", DTYPES[config.precision]).contiguous()
    save_weights(tensors, folder / ADAPTER_WEIGHTS)
    if heads:
        save_weights(heads, folder / ADAPTER_HEADS)
    rules = {
        "peft_type": "LORA",
        "base_model_name_or_path": str(start.name),
        "r": config.lora,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": config.lora_dropout,
        "target_modules": TARGETS,
        "bias": "none",
    }
    (folder / ADAPTER_CONFIG).write_text(json.dumps(rules, indent=2) + "\n", encoding="utf-8")


def save_weights(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file."""
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from error
