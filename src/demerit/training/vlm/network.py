"""The network under training: transformers' layers around given weights, with or without adapters, and heads.

Pixels of the images of a corpus, and features of a frozen vision tower, kept in memory until the run ends.

If the layers behind the tower are trained, the features are the tower's patch states; otherwise they are the tokens
that the language model reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from transformers.utils import logging as transformers_logging

from demerit.data.frames import Frames, Images
from demerit.models.vlm.config import QWEN3, QWEN25, VisionShape, WindowedVision
from demerit.models.vlm.images import How, cut_image_patches, cut_pair_patches, resize_frames
from demerit.models.vlm.layers import Vision, choose_ops
from demerit.models.vlm.network import transformers_network
from demerit.models.vlm.qwen25 import WindowedTower
from demerit.models.vlm.robometer import HEADS
from demerit.training.prepared import PreparedCorpus
from demerit.training.vlm.checkpoints import EMBEDDING, VLMStart, is_trained
from demerit.training.vlm.config import RobometerTrainConfig, VLMTrainConfig
from demerit.training.vlm.objectives import ExampleBatch, ImageInput

ADAPTED = r".*\.(q|k|v|o|gate|up|down)_proj"
NEW_TOKENS = "new_tokens"
LAYERS = {
    QWEN3: ("Qwen3VLTextDecoderLayer", "Qwen3VLVisionBlock"),
    QWEN25: ("Qwen2_5_VLDecoderLayer", "Qwen2_5_VLVisionBlock"),
}
"""classes of the layers of the language model and the vision tower"""


class VLMLearner(nn.Module):
    """A Qwen3-VL or Qwen2.5-VL under training. Its weights have the names of `VLMStart.weights`."""

    def __init__(self, start: VLMStart, config: VLMTrainConfig) -> None:
        """Build the layers around the weights of `start`; nothing is copied."""
        super().__init__()
        self.shape, self.config = start.shape, config
        # the layers that accelerate wraps one by one with FSDP
        layer, block = LAYERS[start.shape.family]
        self._no_split_modules = [layer, *([block] if config.train_vision else [])]
        self.visual: Any
        self.progress_head: nn.Module
        self.success_head: nn.Module
        self.preference_head: nn.Module
        self.is_robometer = isinstance(config, RobometerTrainConfig)
        network = transformers_network(start.config, start.weights)
        self.language_model: Any = network.language_model
        if config.train_vision:
            self.visual = network.visual
        elif config.train_fusion:
            self.visual = nn.Module()
            self.visual.merger = network.visual.merger
            self.visual.deepstack_merger_list = getattr(network.visual, "deepstack_merger_list", nn.ModuleList())
        if isinstance(config, RobometerTrainConfig):
            for name in HEADS:
                self.add_module(f"{name}_head", _make_head(f"{name}_head", start.weights, config.head_dropout))
        elif not self.shape.tied:
            self.lm_head = _make_linear(start.weights["lm_head.weight"], None)
        if config.lora:
            _add_adapters(self.language_model, config)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("lora_" in name or is_trained(name, config))
        self.new_ids = start.new_tokens if config.lora else ()  # without adapters the whole table is trained
        if self.new_ids:
            self.new_tokens = nn.Parameter(start.weights[EMBEDDING][list(self.new_ids)].detach().float().clone())
        if config.checkpointing:
            self._enable_checkpointing()

    def forward(self, batch: ExampleBatch, images: Sequence[Tensor]) -> dict[str, Tensor]:
        """Compute the outputs that the objective reads.

        Args:
            batch: The prompts.
            images: Of every image in order, the frozen tower's features, or its pixels if the tower is trained.
        """
        rows, deep = self._image_tokens(images)
        embedded = self._embed(batch.ids).to(rows.dtype)
        mask = batch.is_image.unsqueeze(-1).expand_as(embedded)
        added = {"visual_pos_masks": batch.is_image, "deepstack_visual_embeds": deep} if deep else {}
        states: Tensor = self.language_model(
            inputs_embeds=embedded.masked_scatter(mask, rows), position_ids=batch.positions, use_cache=False, **added
        ).last_hidden_state
        read = states[batch.wanted]
        return self._apply_heads(read, len(batch.ids)) if self.is_robometer else {"words": self._word_logits(read)}

    def _embed(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.language_model.get_input_embeddings()(ids)
        for number, id in enumerate(self.new_ids):
            mask = (ids == id).unsqueeze(-1)
            embedded = torch.where(mask, self.new_tokens[number].to(embedded.dtype), embedded)
        return embedded

    def _image_tokens(self, images: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the image tokens, and what is added to them after the first layers."""
        if self.config.train_vision:
            return self._run_tower(images)
        levels = [torch.cat(level) for level in zip(*(features.unbind(0) for features in images), strict=True)]
        if self.config.train_fusion:
            mergers = [self.visual.merger, *self.visual.deepstack_merger_list]
            levels = [merge(level) for merge, level in zip(mergers, levels, strict=True)]
        return levels[0], levels[1:]

    def _run_tower(self, pixels: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Run transformers' vision tower over (frames, height, width, 3) images."""
        vision = self.shape.vision
        flat = [cut_patches(image[None], vision)[0] for image in pixels]
        grids = [[1, image.shape[1] // vision.patch, image.shape[2] // vision.patch] for image in pixels]
        patches = torch.cat(flat).to(next(self.visual.parameters()).dtype)
        out = self.visual(patches, grid_thw=torch.tensor(grids, device=patches.device))
        deep = [
            torch.cat(list(level)) if isinstance(level, tuple | list) else level
            for level in getattr(out, "deepstack_features", ())
        ]
        return out.pooler_output, deep

    def _apply_heads(self, read: Tensor, pairs: int) -> dict[str, Tensor]:
        """Each pair has the progress tokens of its first trajectory, then its preference token."""
        by_pair = read.reshape(pairs, -1, read.shape[-1])
        frames, preference = by_pair[:, :-1].flatten(0, 1), by_pair[:, -1]
        return {
            "progress": self.progress_head(frames),
            "success": self.success_head(frames).sum(-1),  # of one number; FSDP warns of a view
            "preference": self.preference_head(preference).sum(-1),
        }

    def _word_logits(self, read: Tensor) -> Tensor:
        if not self.shape.tied:
            logits: Tensor = self.lm_head(read)
            return logits
        table = self.language_model.get_input_embeddings().weight
        return nn.functional.linear(read.to(table.dtype), table)

    def _enable_checkpointing(self) -> None:
        level = transformers_logging.get_verbosity()
        transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # it warns that a vision tower has no embeddings
        parts: list[Any] = [self.language_model, getattr(self, "visual", None)]
        for part in parts:
            if hasattr(part, "gradient_checkpointing_enable"):
                part.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        transformers_logging.set_verbosity(level)

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return the parameters that change, by name."""
        return ((name, parameter) for name, parameter in self.named_parameters() if parameter.requires_grad)


def parameter_groups(learner: VLMLearner, config: VLMTrainConfig) -> list[dict[str, Any]]:
    """Group what is trained by rate and decay: matrices decay; norms, biases and new tokens do not."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in learner.trained_parameters():
        in_tower = name.startswith("visual.") and config.train_vision
        decays = parameter.ndim > 1 and name != NEW_TOKENS
        key = (config.vision_rate if in_tower else config.rate, config.decay if decays else 0.0)
        groups.setdefault(key, []).append(parameter)
    return [
        {"params": parameters, "lr": rate, "peak": rate, "weight_decay": decay}
        for (rate, decay), parameters in groups.items()
    ]


def _add_adapters(language_model: nn.Module, config: VLMTrainConfig) -> None:
    torch.manual_seed(config.seed)  # the adapters' initial weights are random
    rules = LoraConfig(
        r=config.lora,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=ADAPTED,
    )
    inject_adapter_in_model(rules, language_model)
    for name, parameter in language_model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()


def _make_head(name: str, weights: Mapping[str, Tensor], dropout: float) -> nn.Sequential:
    first, last = (_make_linear(weights[f"{name}.{at}.weight"], weights[f"{name}.{at}.bias"]) for at in (0, 4))
    norm = nn.LayerNorm(first.out_features)
    norm.weight, norm.bias = (nn.Parameter(weights[f"{name}.1.{part}"]) for part in ("weight", "bias"))
    return nn.Sequential(first, norm, nn.GELU(), nn.Dropout(dropout), last)


def _make_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = nn.Parameter(weight)
    if bias is not None:
        layer.bias = nn.Parameter(bias)
    return layer


GIB = 1 << 30
ENCODED_TOGETHER = {"cpu": 1, "cuda": 64}
"""on a CPU one at a time, so that a result never depends on the batch"""
Pixels = dict[ImageInput, Images]
ImagesByRow = dict[int, list[ImageInput]]


class FrozenTower(Vision):
    """A vision tower that can stop before the layers that merge patches into tokens."""

    def __init__(self, shape: VisionShape, weights: Mapping[str, Tensor], *, merged: bool) -> None:
        """Take weights by their names within `visual.`; `merged` includes the merging layers."""
        super().__init__(shape, weights, choose_ops(weights["pos_embed.weight"].device))
        self.merges = merged

    def _merge_patches(self, x: Tensor, name: str, *, norm_after: bool) -> Tensor:
        if self.merges:
            return super()._merge_patches(x, name, norm_after=norm_after)
        return x.reshape(-1, self.shape.hidden).clone()  # x is added to in place


class ImageEncoder:
    """A frozen tower that remembers the features of images it has encoded. Without a tower it returns pixels."""

    def __init__(
        self,
        tower: FrozenTower | WindowedTower | None,
        corpus: PreparedCorpus,
        device: torch.device,
        cache_bytes: float = 0.0,
    ) -> None:
        """Encode images of a corpus; keep features until `cache_bytes` are used."""
        self.tower, self.corpus, self.device, self.cache_bytes = tower, corpus, device, cache_bytes
        self.used_bytes = 0
        self._kept: dict[ImageInput, Tensor] = {}

    def load_pixels(self, images: Sequence[ImageInput]) -> Pixels:
        """Read the images whose features are not kept."""
        wanted = self.find_new(images)
        return cut_pixels(wanted, [frames.all() for frames in view_rows(self.corpus, wanted)])

    def find_new(self, images: Sequence[ImageInput]) -> ImagesByRow:
        """Return the images whose features are not kept, by their row in the corpus. Any thread may call this."""
        by_row: ImagesByRow = {}
        for image in dict.fromkeys(images):
            if image not in self._kept:
                by_row.setdefault(image.row, []).append(image)
        return by_row

    def encode(self, images: Sequence[ImageInput], pixels: Pixels) -> list[Tensor]:
        """Return the (1 + deep, rows, width) features of each image on the device, or its pixels."""
        if self.tower is None:
            return [torch.from_numpy(pixels[image]).to(self.device) for image in images]
        new = self._encode_new(self.tower, [image for image in dict.fromkeys(images) if image in pixels], pixels)
        for image, features in new.items():
            self._keep(image, features)
        return [
            new[image] if image in new else self._kept[image].to(self.device, non_blocking=True) for image in images
        ]

    def _keep(self, image: ImageInput, features: Tensor) -> None:
        size = features.numel() * features.element_size()
        if image in self._kept or self.used_bytes + size > self.cache_bytes:
            return  # nothing is evicted: every image is needed equally often
        self.used_bytes += size
        # pinned memory is copied to a GPU while that computes
        self._kept[image] = features.cpu().pin_memory() if features.is_cuda else features

    @torch.no_grad()
    def _encode_new(
        self, tower: FrozenTower | WindowedTower, images: Sequence[ImageInput], pixels: Pixels
    ) -> dict[ImageInput, Tensor]:
        by_size: dict[tuple[int, int, int], list[ImageInput]] = {}
        for image in images:
            by_size.setdefault((image.height, image.width, len(image.frames)), []).append(image)
        encoded: dict[ImageInput, Tensor] = {}
        count = ENCODED_TOGETHER[self.device.type]
        for group in by_size.values():
            for start in range(0, len(group), count):
                batch = group[start : start + count]
                stacked = torch.from_numpy(np.stack([pixels[image] for image in batch])).to(self.device)
                encoded |= dict(zip(batch, encode_batch(tower, stacked), strict=True))
        return encoded


def encode_batch(tower: FrozenTower | WindowedTower, images: Tensor) -> list[Tensor]:
    """Encode (images, frames, height, width, 3)."""
    features = tower.features(cut_patches(images, tower.shape), *tower.shape.grid(*images.shape[2:4]))
    levels = torch.stack([features.rows, *features.deep])
    return list(levels.reshape(len(levels), len(images), -1, levels.shape[-1]).unbind(1))


def view_rows(corpus: PreparedCorpus, images: ImagesByRow) -> list[Frames]:
    """Return the frames of each row that its images need, in order; nothing is read yet."""
    return [corpus.frames(row).select(_frame_numbers(group)) for row, group in images.items()]


def cut_pixels(images: ImagesByRow, read: Sequence[Images]) -> Pixels:
    """Return the resized (frames, height, width, 3) pixels of each image, from what `view_rows` names."""
    pixels: Pixels = {}
    for group, frames in zip(images.values(), read, strict=True):
        place = {number: at for at, number in enumerate(_frame_numbers(group))}
        resized: dict[tuple[int, int, How], Images] = {}
        for image in group:
            size = (image.height, image.width, image.how)
            if size not in resized:
                resized[size] = resize_frames(frames, size[:2], image.how)
            pixels[image] = resized[size][[place[number] for number in image.frames]]
    return pixels


def _frame_numbers(images: Sequence[ImageInput]) -> list[int]:
    return sorted({number for image in images for number in image.frames})


def cut_patches(images: Tensor, shape: VisionShape | WindowedVision) -> Tensor:
    """Cut (images, frames, height, width, 3) into patches; one or two frames per image."""
    cut: dict[str, Any] = {"patch": shape.patch, "merge": shape.merge, "scale": shape.scale}
    if images.shape[1] == 1:
        return cut_image_patches(images[:, 0], temporal=shape.temporal, **cut)
    return cut_pair_patches(*images.unbind(1), **cut)
