"""Where a run begins: a checkpoint, brought to what is to be trained, each weight in its right kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from demerit.errors import BadInput
from demerit.models.vlm.checkpoint import Checkpoint, read_checkpoint, tokenizer_path
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.heads import expected_heads
from demerit.models.vlm.prompt import Tokens
from demerit.models.vlm.words import words
from demerit.training.vlm.recipe import Recipe, RobometerRecipe

EMBEDDING = "language_model.embed_tokens.weight"
KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FUSION = ("visual.merger.", "visual.deepstack_merger_list.")


@dataclass(frozen=True, eq=False)
class Start:
    """A network before training."""

    config: Mapping[str, Any]
    weights: dict[str, Tensor]
    """by our names; what learns is float32"""
    tokens: Tokens
    tokenizer: Path | None
    """its file, to be copied beside the trained weights"""
    base: str
    """hub id or folder of the backbone, for whoever loads the result"""
    came_from: str
    """hub id or folder of the checkpoint itself: what an adapter is for"""
    fingerprint: str
    new_tokens: tuple[int, ...] = ()
    """tokens whose embeddings are begun here, so that they must be learned"""
    settings: Path | None = None
    """the folder with the processor's settings"""
    is_adapted: bool = False
    """the checkpoint is an adapter with the model that it names, which no other adapter can lie on"""

    @property
    def shape(self) -> VLMShape:
        """The network's shape."""
        return VLMShape.from_config(self.config)


def learns(name: str, recipe: Recipe) -> bool:
    """Whether a weight itself is changed (adapters aside)."""
    if name.startswith("visual."):
        return recipe.train_vision or (recipe.train_fusion and name.startswith(FUSION))
    if name.startswith(("language_model.", "lm_head.")):
        return recipe.lora == 0
    return not name.startswith("frame_pool_attn.")


def kind_of(name: str, recipe: Recipe) -> torch.dtype:
    """Return the kind a weight is kept in."""
    return torch.float32 if learns(name, recipe) else KINDS[recipe.precision]


def start_robometer(name: str, recipe: RobometerRecipe, revision: str | None = None) -> Start:
    """Begin a Robometer: from one, or from a plain Qwen3-VL with new tokens and heads."""
    checkpoint = read_checkpoint(name, revision)
    path = tokenizer_path(checkpoint)
    tokens = Tokens.read(path, words("robometer")["added_tokens"])
    shape = VLMShape.from_config(checkpoint.config)
    heads = expected_heads(shape.text.hidden, recipe.bins)
    if checkpoint.facts is not None:
        said = checkpoint.facts
        if (said.bins, said.frames) != (recipe.bins, recipe.frames):
            got = f"{recipe.bins} bins and {recipe.frames} frames"
            raise BadInput("recipe", f"the {said.bins} bins and {said.frames} frames that {name} was trained with", got)
        weights = _read(
            checkpoint, {**shape.expected(read_out=False), **heads}, recipe, gaps=("frame_pool_attn.weight",)
        )
        return Start(
            checkpoint.config,
            weights,
            tokens,
            path,
            base=said.base,
            came_from=_full(name),
            fingerprint=checkpoint.fingerprint(),
            settings=path.parent,
            is_adapted=is_adapted(checkpoint),
        )
    weights = _read(checkpoint, shape.expected(read_out=False), recipe)
    added = [tokens.id(token) for token in words("robometer")["added_tokens"]]
    weights[EMBEDDING] = with_tokens(weights[EMBEDDING], added, recipe.seed)
    weights |= new_heads(heads, recipe)
    config = resized_config(checkpoint.config, max(added) + 1)
    base = _full(name)
    return Start(config, weights, tokens, path, base, base, checkpoint.fingerprint(), tuple(added), path.parent)


def start_plain(name: str, recipe: Recipe, revision: str | None = None) -> Start:
    """Begin with a Qwen3-VL as it is."""
    checkpoint = read_checkpoint(name, revision)
    if checkpoint.facts is not None:
        raise BadInput(name, "a Qwen3-VL that answers in words (such as RoboReward)", "a Robometer, which has heads")
    path = tokenizer_path(checkpoint)
    shape = VLMShape.from_config(checkpoint.config)
    weights = _read(checkpoint, shape.expected(read_out=True), recipe)
    base = _full(name)
    return Start(
        checkpoint.config,
        weights,
        Tokens.read(path),
        path,
        base=base,
        came_from=base,
        fingerprint=checkpoint.fingerprint(),
        settings=path.parent,
        is_adapted=is_adapted(checkpoint),
    )


def is_adapted(checkpoint: Checkpoint) -> bool:
    """Whether it is an adapter in a folder of its own; one within a whole model's files is a part of that."""
    return any(folder != checkpoint.folder for folder in checkpoint.adapters)


def with_tokens(table: Tensor, added: list[int], seed: int) -> Tensor:
    """Cut a table of embeddings behind the added tokens, and begin theirs near the mean of all others."""
    rows = max(added) + 1
    if table.shape[0] < min(added):
        raise BadInput("tokenizer.json", f"at most {table.shape[0]} tokens, as the model has", f"{min(added)}")
    known = table[: min(added)].float()
    rng = torch.Generator().manual_seed(seed)
    fresh = known.mean(0) + 0.1 * known.std(0) * torch.randn(rows - len(known), table.shape[1], generator=rng)
    return torch.cat([known, fresh]).to(table.dtype)


def new_heads(shapes: Mapping[str, tuple[int, ...]], recipe: Recipe) -> dict[str, Tensor]:
    """Begin heads as linear layers and norms begin."""
    rng = torch.Generator().manual_seed(recipe.seed)
    made = {}
    for name, shape in shapes.items():
        if ".1." in name:  # the norm
            value = torch.ones(shape) if name.endswith("weight") else torch.zeros(shape)
        else:
            into = shapes[name.replace("bias", "weight")][-1]
            value = (2 * torch.rand(shape, generator=rng) - 1) / np.sqrt(into)
        made[name] = value.to(kind_of(name, recipe))
    return made


def resized_config(config: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return the config of a network whose table of embeddings has so many rows."""
    return {**config, "text_config": {**config["text_config"], "vocab_size": rows}}


def _full(name: str) -> str:
    """Write a folder so that it is found from anywhere; a hub id stays as it is."""
    folder = Path(name).expanduser()
    return str(folder.resolve()) if folder.is_dir() else name


def _read(
    checkpoint: Checkpoint, expected: Mapping[str, tuple[int, ...]], recipe: Recipe, gaps: tuple[str, ...] = ()
) -> dict[str, Tensor]:
    """Read weights into the processor's memory, strictly."""
    read = checkpoint.tensors("cpu", torch.float32, expected, gaps=gaps)
    return {name: value.to(kind_of(name, recipe)) for name, value in read}
