"""Qwen2.5-VL (model_type qwen2_5_vl): the backbone of the first Robo-Dopamine models, through transformers.

older checkpoints   model.layers.*                  visual.*         lm_head.weight (or tied)
newer checkpoints   model.language_model.layers.*   model.visual.*   lm_head.weight (or tied)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from demerit.data.frames import Images
from demerit.errors import BadInput
from demerit.models.vlm.checkpoint import CONFIG, READ_OUT, Layout
from demerit.models.vlm.config import TextShape, read_count, read_positive, read_section
from demerit.models.vlm.images import cut_image_patches
from demerit.models.vlm.network import assign_weights
from demerit.models.vlm.prompt import ANSWER, IMAGE, VISION_END, VISION_START, PromptTokenizer

MEAN = (0.48145466, 0.4578275, 0.40821073)
DEVIATION = (0.26862954, 0.26130258, 0.27577711)
BYTE = 255.0
EMBEDDING = "model.language_model.embed_tokens.weight"
THREE = 3


@dataclass(frozen=True)
class WindowedVision:
    """The vision tower. Its repr is part of every model's identity."""

    hidden: int
    depth: int
    heads: int
    inner: int
    out: int
    patch: int
    merge: int
    temporal: int
    window: int
    whole: tuple[int, ...]
    """blocks that see the whole image; the others see windows"""

    @property
    def factor(self) -> int:
        """Pixels per token side; image sides must be multiples of it."""
        return self.patch * self.merge


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
        if text.get("hidden_act", "silu") != "silu" or vision.get("hidden_act", "silu") != "silu":
            raise BadInput(CONFIG, "hidden_act = silu in both parts (Qwen2.5-VL)", text.get("hidden_act"))
        if text.get("use_sliding_window"):
            raise BadInput(CONFIG, "use_sliding_window = false", True)
        return cls(
            text=_text(text),
            vision=_vision(vision),
            image_token=read_count(config, "image_token_id", least=0),
            longest=read_count(text, "max_position_embeddings"),
            tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        )

    @property
    def factor(self) -> int:
        """Image sides must be multiples of it."""
        return self.vision.factor

    @staticmethod
    def rename(name: str) -> str:
        """Return transformers' name of a name on disk."""
        if name.startswith("visual."):
            return f"model.{name}"
        if name.startswith("model.") and not name.startswith(("model.visual.", "model.language_model.")):
            return name.replace("model.", "model.language_model.", 1)
        return name

    def expected_weights(self) -> dict[str, tuple[int, ...]]:
        """Return every weight's shape by transformers' name."""
        names = {name: tuple(weight.shape) for name, weight in _empty_network(self).state_dict().items()}
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
        return assign_weights(_empty_network(self), {**weights, **tied})

    def spell_image(self, height: int, width: int) -> str:
        """Return the text that stands for an image."""
        factor = self.vision.factor
        return f"{VISION_START}{IMAGE * (height // factor * (width // factor))}{VISION_END}"

    def spell_prompt(self, system: str, text: str) -> str:
        """Return the whole prompt."""
        return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n{ANSWER}"

    def inputs(self, ids: Tensor, images: Sequence[Images]) -> dict[str, Tensor]:
        """Return what the network takes beside the tokens: patches, grids, and which tokens are images."""
        vision, scale = self.vision, tuple(torch.tensor(part) * BYTE for part in (MEAN, DEVIATION))
        rows = [
            cut_image_patches(
                torch.from_numpy(image[None]).to(ids.device),
                patch=vision.patch,
                merge=vision.merge,
                temporal=vision.temporal,
                scale=(scale[0], scale[1]),
            )[0]
            for image in images
        ]
        grids = [(1, image.shape[0] // vision.patch, image.shape[1] // vision.patch) for image in images]
        return {
            "pixel_values": torch.cat(rows),
            "image_grid_thw": torch.tensor(grids, device=ids.device),
            "mm_token_type_ids": (ids == self.image_token).int(),
        }


def _text(config: Mapping[str, Any]) -> TextShape:
    rope = {**read_section(config, "rope_scaling", {}), **read_section(config, "rope_parameters", {})}
    kinds = {rope.get("rope_type", "default"), rope.get("type", "default")}
    if not kinds <= {"default", "mrope"}:
        raise BadInput(CONFIG, "rope_scaling of type mrope (Qwen2.5-VL)", dict(rope))
    hidden, heads = read_count(config, "hidden_size"), read_count(config, "num_attention_heads")
    sections = rope.get("mrope_section")
    head = hidden // heads
    if not isinstance(sections, list) or len(sections) != THREE or 2 * sum(sections) != head:
        raise BadInput(CONFIG, f"mrope_section, three counts with a sum of {head} / 2", repr(sections))
    return TextShape(
        hidden=hidden,
        layers=read_count(config, "num_hidden_layers"),
        heads=heads,
        groups=read_count(config, "num_key_value_heads", heads),
        head=head,
        inner=read_count(config, "intermediate_size"),
        vocabulary=read_count(config, "vocab_size"),
        epsilon=read_positive(config, "rms_norm_eps"),
        theta=read_positive({**config, **rope}, "rope_theta"),
        sections=(sections[0], sections[1], sections[2]),
    )


def _vision(config: Mapping[str, Any]) -> WindowedVision:
    whole = config.get("fullatt_block_indexes")
    if not isinstance(whole, list) or not all(isinstance(block, int) for block in whole):
        raise BadInput(CONFIG, "vision_config.fullatt_block_indexes, a list of blocks", repr(whole))
    return WindowedVision(
        hidden=read_count(config, "hidden_size"),
        depth=read_count(config, "depth"),
        heads=read_count(config, "num_heads"),
        inner=read_count(config, "intermediate_size"),
        out=read_count(config, "out_hidden_size"),
        patch=read_count(config, "patch_size"),
        merge=read_count(config, "spatial_merge_size"),
        temporal=read_count(config, "temporal_patch_size"),
        window=read_count(config, "window_size"),
        whole=tuple(whole),
    )


def _empty_network(shape: Qwen25Shape) -> Any:
    """Build transformers' network without weights."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration  # noqa: PLC0415  slow to import

    text, vision = shape.text, shape.vision
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
        vision_config={
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
        },
        image_token_id=shape.image_token,
        tie_word_embeddings=shape.tied,
    )
    with torch.device("meta"):
        return Qwen2_5_VLForConditionalGeneration(config)  # type: ignore[no-untyped-call]
