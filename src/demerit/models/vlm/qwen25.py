"""Qwen2.5-VL (model_type qwen2_5_vl), through transformers: the first Robo-Dopamine models, and what is trained on it.

older checkpoints   model.layers.*                  visual.*         lm_head.weight (or tied)
newer checkpoints   model.language_model.layers.*   model.visual.*   lm_head.weight (or tied)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from demerit.data.frames import Images
from demerit.errors import BadInput
from demerit.models.vlm.checkpoint import CONFIG, READ_OUT, Layout, name_in_newer_qwen25
from demerit.models.vlm.config import (
    TextShape,
    WindowedVision,
    read_count,
    read_qwen25_text,
    read_section,
    read_windowed_vision,
)
from demerit.models.vlm.images import cut_image_patches
from demerit.models.vlm.layers import VisionFeatures, assign_weights
from demerit.models.vlm.prompt import ANSWER, IMAGE, VISION_END, VISION_START, PromptTokenizer

EMBEDDING = "model.language_model.embed_tokens.weight"


@dataclass(frozen=True)
class Qwen25Shape:
    """A whole Qwen2.5-VL. Its repr is part of every model's identity."""

    layout: ClassVar[Layout] = "qwen2.5"
    template: ClassVar[str] = "qwen2.5-vl-chat-1"
    system: ClassVar[str] = "You are a helpful assistant."
    """what the model's own chat template puts first"""
    stops: ClassVar[tuple[str, ...]] = ("<|im_end|>", "<|endoftext|>")

    text: TextShape
    vision: WindowedVision
    image_token: int
    longest: int
    """positions"""
    tied: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Qwen25Shape:
        """Read config.json, the language model's settings in text_config or at the top; refuse other options."""
        text = read_section(config, "text_config", dict(config))
        vision = read_section(config, "vision_config")
        return cls(
            text=read_qwen25_text(text),
            vision=read_windowed_vision(vision),
            image_token=read_count(config, "image_token_id", least=0),
            longest=read_count(text, "max_position_embeddings"),
            tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        )

    @property
    def factor(self) -> int:
        """Image sides must be multiples of it."""
        return self.vision.factor

    rename = staticmethod(name_in_newer_qwen25)

    def expected_weights(self) -> dict[str, tuple[int, ...]]:
        """Return every weight's shape by transformers' name."""
        names = {name: tuple(weight.shape) for name, weight in empty_network(self).state_dict().items()}
        return {name: shape for name, shape in names.items() if name != READ_OUT or not self.tied}

    def check_tokenizer(self, tokens: PromptTokenizer, where: str) -> None:
        """Raise BadInput if the tokenizer does not belong to the network."""
        if tokens.id(IMAGE) != self.image_token:
            raise BadInput(f"tokenizer of {where}", f"{IMAGE} as token {self.image_token}", tokens.id(IMAGE))
        if len(tokens) > self.text.vocabulary:
            expected = f"at most {self.text.vocabulary} tokens, as in {CONFIG}"
            raise BadInput(f"tokenizer of {where}", expected, len(tokens))

    def build(self, weights: Mapping[str, Tensor], _tokens: PromptTokenizer) -> Any:
        """Return transformers' Qwen2.5-VL with these weights."""
        tied = {READ_OUT: weights[EMBEDDING]} if self.tied else {}
        return assign_weights(empty_network(self), {**weights, **tied})

    def spell_image(self, height: int, width: int) -> str:
        """Return the text that stands for an image."""
        factor = self.vision.factor
        return f"{VISION_START}{IMAGE * (height // factor * (width // factor))}{VISION_END}"

    def spell_prompt(self, system: str, text: str) -> str:
        """Return the whole prompt."""
        return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n{ANSWER}"

    def inputs(self, ids: Tensor, images: Sequence[Images]) -> dict[str, Tensor]:
        """Return what the network takes beside the tokens: patches, grids, and which tokens are images."""
        vision = self.vision
        rows = [
            cut_image_patches(
                torch.from_numpy(image[None]).to(ids.device),
                patch=vision.patch,
                merge=vision.merge,
                temporal=vision.temporal,
                scale=vision.scale,
            )[0]
            for image in images
        ]
        grids = [(1, image.shape[0] // vision.patch, image.shape[1] // vision.patch) for image in images]
        return {
            "pixel_values": torch.cat(rows),
            "image_grid_thw": torch.tensor(grids, device=ids.device),
            "mm_token_type_ids": (ids == self.image_token).int(),
        }


class WindowedTower:
    """The vision tower of a Qwen2.5-VL, transformers' own; it encodes as `Vision` does."""

    def __init__(self, shape: WindowedVision, weights: Mapping[str, Tensor], *, merged: bool = True) -> None:
        """Take weights by their names below `visual.`, all on one device; not `merged` stops before the last layers."""
        from transformers.models.qwen2_5_vl import configuration_qwen2_5_vl, modeling_qwen2_5_vl  # noqa: PLC0415  slow

        config = configuration_qwen2_5_vl.Qwen2_5_VLVisionConfig(**_vision_settings(shape))
        with torch.device("meta"):
            tower = modeling_qwen2_5_vl.Qwen2_5_VisionTransformerPretrainedModel(config)
        self.shape, self._dtype = shape, weights["patch_embed.proj.weight"].dtype
        self._width = shape.out if merged else shape.hidden
        self._tower = assign_weights(tower, weights)
        if not merged:
            self._tower.merger = nn.Sequential(nn.Unflatten(0, (-1, shape.merge**2)), nn.Flatten(1))

    def features(self, patches: Tensor, rows: int, columns: int) -> VisionFeatures:
        """Encode images; arguments and result as in `Vision.features`."""
        merge = self.shape.merge
        grids = torch.tensor([[1, rows * merge, columns * merge]] * len(patches), device=patches.device)
        features = self._tower(patches.flatten(0, 1).to(self._dtype), grid_thw=grids).pooler_output
        return VisionFeatures(features.reshape(-1, self._width), ())


def _vision_settings(vision: WindowedVision) -> dict[str, Any]:
    return {
        "hidden_size": vision.hidden,
        "depth": vision.depth,
        "num_heads": vision.heads,
        "intermediate_size": vision.inner,
        "out_hidden_size": vision.out,
        "patch_size": vision.patch,
        "spatial_merge_size": vision.merge,
        "temporal_patch_size": vision.temporal,
        "window_size": vision.window,
        "fullatt_block_indexes": list(vision.whole),
    }


def empty_network(shape: Qwen25Shape) -> Any:
    """Build transformers' network without weights."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration  # noqa: PLC0415  slow to import

    text = shape.text
    config = Qwen2_5_VLConfig(
        text_config={
            "hidden_size": text.hidden,
            "intermediate_size": text.inner,
            "num_hidden_layers": text.layers,
            "num_attention_heads": text.heads,
            "num_key_value_heads": text.groups,
            "vocab_size": text.vocabulary,
            "rms_norm_eps": text.epsilon,
            "max_position_embeddings": shape.longest,
            "use_sliding_window": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": text.theta,
                "mrope_section": list(text.sections),
            },
        },
        vision_config=_vision_settings(shape.vision),
        image_token_id=shape.image_token,
        tie_word_embeddings=shape.tied,
    )
    with torch.device("meta"):
        return Qwen2_5_VLForConditionalGeneration(config)  # type: ignore[no-untyped-call]
