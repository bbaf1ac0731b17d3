"""What learns: the library's own layers around given weights, with adapters or without, and Robometer's heads."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from demerit.errors import MissingExtra
from demerit.models.vlm.heads import HEADS
from demerit.models.vlm.reference import transformers_network
from demerit.training.vlm.features import cut
from demerit.training.vlm.laid import Batch
from demerit.training.vlm.recipe import Recipe, RobometerRecipe
from demerit.training.vlm.start import EMBEDDING, Start, learns

ADAPTED = r".*\.(q|k|v|o|gate|up|down)_proj"
BLOCKS = ("Qwen3VLTextDecoderLayer", "Qwen3VLVisionBlock")
"""layers that are spread over machines one by one"""


class Learner(nn.Module):
    """A Qwen3-VL under training; names of its weights are ours, so that what comes out is what went in."""

    def __init__(self, start: Start, recipe: Recipe) -> None:
        """Put the library's layers around the start's weights; nothing is copied."""
        super().__init__()
        self.shape, self.recipe = start.shape, recipe
        self.visual: Any
        self.progress_head: nn.Module
        self.success_head: nn.Module
        self.preference_head: nn.Module
        self.is_robometer = isinstance(recipe, RobometerRecipe)
        network = transformers_network(start.config, start.weights)
        self.language_model: Any = network.language_model
        if recipe.train_vision:
            self.visual = network.visual
        elif recipe.train_fusion:
            self.visual = nn.Module()
            self.visual.merger = network.visual.merger
            self.visual.deepstack_merger_list = network.visual.deepstack_merger_list
        if isinstance(recipe, RobometerRecipe):
            for name in HEADS:
                self.add_module(f"{name}_head", _head(f"{name}_head", start.weights, recipe.head_dropout))
        elif not self.shape.tied:
            self.lm_head = _linear(start.weights["lm_head.weight"], None)
        if recipe.lora:
            _adapt(self.language_model, recipe)
        for name, one in self.named_parameters():
            one.requires_grad_("lora_" in name or learns(name, recipe))
        self.new_ids = start.new_tokens if recipe.lora else ()  # a table that learns as a whole has them already
        if self.new_ids:
            rows = start.weights[EMBEDDING][list(self.new_ids)].detach().float().clone()
            self.new_tokens = nn.Parameter(rows)
        if recipe.checkpointing:
            self._compute_again()

    def forward(self, batch: Batch, seen: Sequence[Tensor]) -> dict[str, Tensor]:
        """Answer a batch.

        Args:
            batch: the questions.
            seen: of every picture in order, the frozen tower's features; where the tower learns, its pixels.
        """
        rows, deep = self._pictures(seen)
        embedded = self._embedded(batch.ids).to(rows.dtype)
        where = batch.seen.unsqueeze(-1).expand_as(embedded)
        states: Tensor = self.language_model(
            inputs_embeds=embedded.masked_scatter(where, rows),
            position_ids=batch.positions,
            visual_pos_masks=batch.seen,
            deepstack_visual_embeds=deep,
            use_cache=False,
        ).last_hidden_state
        read = states[batch.wanted]
        return self._robometer(read, len(batch.ids)) if self.is_robometer else {"words": self._words(read)}

    def _embedded(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.language_model.get_input_embeddings()(ids)
        if self.new_ids:
            for at, one in enumerate(self.new_ids):
                mine = (ids == one).unsqueeze(-1)
                embedded = torch.where(mine, self.new_tokens[at].to(embedded.dtype), embedded)
        return embedded

    def _pictures(self, seen: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return what stands for pictures among the tokens, and what the first layers add to it."""
        if self.recipe.train_vision:
            return self._looked(seen)
        levels = [torch.cat(level) for level in zip(*(one.unbind(0) for one in seen), strict=True)]
        if self.recipe.train_fusion:
            mergers = [self.visual.merger, *self.visual.deepstack_merger_list]
            levels = [merge(level) for merge, level in zip(mergers, levels, strict=True)]
        return levels[0], levels[1:]

    def _looked(self, pixels: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Run the library's own tower over (frames, height, width, 3) pictures."""
        vision = self.shape.vision
        flat = [cut(one[None], vision)[0] for one in pixels]
        grids = [[1, one.shape[1] // vision.patch, one.shape[2] // vision.patch] for one in pixels]
        patches = torch.cat(flat).to(next(self.visual.parameters()).dtype)
        out = self.visual(patches, grid_thw=torch.tensor(grids, device=patches.device))
        deep = [torch.cat(list(one)) if isinstance(one, tuple | list) else one for one in out.deepstack_features]
        return out.pooler_output, deep

    def _robometer(self, read: Tensor, pairs: int) -> dict[str, Tensor]:
        """Of every pair the progress tokens of the first trajectory are read, then the token of the preference."""
        each = read.reshape(pairs, -1, read.shape[-1])
        frames, pair = each[:, :-1].flatten(0, 1), each[:, -1]
        return {
            "progress": self.progress_head(frames),
            "success": self.success_head(frames).sum(-1),  # of one number: no view, which FSDP warns of
            "preference": self.preference_head(pair).sum(-1),
        }

    def _words(self, read: Tensor) -> Tensor:
        if not self.shape.tied:
            logits: Tensor = self.lm_head(read)
            return logits
        table = self.language_model.get_input_embeddings().weight
        return nn.functional.linear(read.to(table.dtype), table)

    def _compute_again(self) -> None:
        from transformers.utils import logging as spoken  # noqa: PLC0415

        level = spoken.get_verbosity()
        spoken.set_verbosity(logging.ERROR)  # it warns that a vision tower has no table of words
        parts: list[Any] = [self.language_model, getattr(self, "visual", None)]
        for part in parts:
            if hasattr(part, "gradient_checkpointing_enable"):
                part.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        spoken.set_verbosity(level)

    def learning(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Name what changes."""
        return ((name, one) for name, one in self.named_parameters() if one.requires_grad)


def groups_of(learner: Learner, recipe: Recipe) -> list[dict[str, Any]]:
    """Sort what learns by rate and decay: matrices decay, norms, biases and new tokens do not."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, one in learner.learning():
        tower = name.startswith("visual.") and recipe.train_vision
        decays = one.ndim > 1 and name != "new_tokens"
        key = (recipe.vision_rate if tower else recipe.rate, recipe.decay if decays else 0.0)
        groups.setdefault(key, []).append(one)
    return [{"params": some, "lr": rate, "peak": rate, "weight_decay": decay} for (rate, decay), some in groups.items()]


def _adapt(language: nn.Module, recipe: Recipe) -> None:
    try:
        from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415  a part of the extra, slow to import
    except ModuleNotFoundError as missing:
        raise MissingExtra("Training adapters", "vlm-train") from missing
    torch.manual_seed(recipe.seed)  # how adapters begin is drawn here
    settings = LoraConfig(
        r=recipe.lora,
        lora_alpha=recipe.lora_alpha,
        lora_dropout=recipe.lora_dropout,
        target_modules=ADAPTED,
    )
    inject_adapter_in_model(settings, language)
    for name, one in language.named_parameters():
        if "lora_" in name:
            one.data = one.data.float()


def _head(name: str, weights: Mapping[str, Tensor], dropout: float) -> nn.Sequential:
    first, last = (_linear(weights[f"{name}.{at}.weight"], weights[f"{name}.{at}.bias"]) for at in (0, 4))
    norm = nn.LayerNorm(first.out_features)
    norm.weight, norm.bias = (nn.Parameter(weights[f"{name}.1.{part}"]) for part in ("weight", "bias"))
    return nn.Sequential(first, norm, nn.GELU(), nn.Dropout(dropout), last)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = nn.Parameter(weight)
    if bias is not None:
        layer.bias = nn.Parameter(bias)
    return layer
