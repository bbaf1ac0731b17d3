"""The shape of a Qwen3-VL network, read from its config.json, and the names and shapes of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any

from demerit.errors import BadInput

DEFAULT_SECTIONS = (24, 20, 20)
"""how many frequencies turn with time, height and width when a config does not say"""


@dataclass(frozen=True)
class TextShape:
    """The language model: pre-norm layers, grouped heads, rotary positions in three directions."""

    hidden: int
    layers: int
    heads: int
    groups: int
    """heads of keys and values"""
    head: int
    inner: int
    vocabulary: int
    epsilon: float
    theta: float
    sections: tuple[int, int, int]


@dataclass(frozen=True)
class VisionShape:
    """The vision tower: patches over two frames, merged by fours before the language model sees them."""

    hidden: int
    depth: int
    heads: int
    inner: int
    out: int
    patch: int
    merge: int
    temporal: int
    channels: int
    side: int
    """the learned positions are a grid of side x side, interpolated"""
    deep: tuple[int, ...]
    """blocks whose output is also added to the first layers of the language model"""

    @property
    def factor(self) -> int:
        """Pictures have sides that are multiples of this many pixels; one token is factor x factor pixels."""
        return self.patch * self.merge

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tokens in a picture of so many pixels."""
        return height // self.factor, width // self.factor

    @property
    def pixels(self) -> int:
        """Numbers in one patch."""
        return self.channels * self.temporal * self.patch * self.patch


@dataclass(frozen=True)
class VLMShape:
    """A whole network and the tokens that stand for pictures."""

    text: TextShape
    vision: VisionShape
    image_token: int
    video_token: int
    vision_start: int
    vision_end: int
    tied: bool
    """words are read out with the matrix they are read in with"""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> VLMShape:
        """Read a config.json; one of another family, or with parts this engine has not got, is refused."""
        if config.get("model_type") != "qwen3_vl":
            raise BadInput(
                "config.json", "a model of the Qwen3-VL family (model_type qwen3_vl)", config.get("model_type")
            )
        try:
            text, vision = config["text_config"], config["vision_config"]
            tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))
            return cls(
                text=_text(text),
                vision=_vision(vision),
                image_token=int(config["image_token_id"]),
                video_token=int(config["video_token_id"]),
                vision_start=int(config["vision_start_token_id"]),
                vision_end=int(config["vision_end_token_id"]),
                tied=tied,
            )
        except KeyError as error:
            raise BadInput("config.json", f"the entry {error}", "none") from error

    def expected(self, *, read_out: bool) -> dict[str, tuple[int, ...]]:
        """Name every weight with its shape.

        Args:
            read_out: the matrix that turns states into words is wanted too (tied networks have none of their own).
        """
        names = {f"language_model.{k}": v for k, v in _text_weights(self.text).items()}
        names |= {f"visual.{k}": v for k, v in _vision_weights(self.vision).items()}
        if read_out and not self.tied:
            names["lm_head.weight"] = (self.text.vocabulary, self.text.hidden)
        return names


def _text(config: Mapping[str, Any]) -> TextShape:
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    kind = rope.get("rope_type", "default")
    if kind != "default" or config.get("hidden_act", "silu") != "silu" or config.get("attention_bias"):
        raise BadInput("config.json", "rotary positions of type default, silu, no attention bias", dict(config))
    theta = rope.get("rope_theta", config.get("rope_theta"))
    if theta is None:
        raise KeyError("rope_theta")
    t, h, w = rope.get("mrope_section", DEFAULT_SECTIONS)
    heads = int(config["num_attention_heads"])
    return TextShape(
        hidden=int(config["hidden_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        groups=int(config.get("num_key_value_heads") or heads),
        head=int(config.get("head_dim") or config["hidden_size"] // heads),
        inner=int(config["intermediate_size"]),
        vocabulary=int(config["vocab_size"]),
        epsilon=float(config.get("rms_norm_eps", 1e-6)),
        theta=float(theta),
        sections=(int(t), int(h), int(w)),
    )


def _vision(config: Mapping[str, Any]) -> VisionShape:
    if config.get("hidden_act", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise BadInput("config.json", "a vision tower with gelu_pytorch_tanh", config["hidden_act"])
    return VisionShape(
        hidden=int(config["hidden_size"]),
        depth=int(config["depth"]),
        heads=int(config["num_heads"]),
        inner=int(config["intermediate_size"]),
        out=int(config["out_hidden_size"]),
        patch=int(config["patch_size"]),
        merge=int(config["spatial_merge_size"]),
        temporal=int(config["temporal_patch_size"]),
        channels=int(config.get("in_channels", 3)),
        side=isqrt(int(config["num_position_embeddings"])),
        deep=tuple(int(each) for each in config["deepstack_visual_indexes"]),
    )


def _text_weights(text: TextShape) -> dict[str, tuple[int, ...]]:
    wide, narrow = text.heads * text.head, text.groups * text.head
    layer = {
        "input_layernorm.weight": (text.hidden,),
        "post_attention_layernorm.weight": (text.hidden,),
        "self_attn.q_proj.weight": (wide, text.hidden),
        "self_attn.k_proj.weight": (narrow, text.hidden),
        "self_attn.v_proj.weight": (narrow, text.hidden),
        "self_attn.o_proj.weight": (text.hidden, wide),
        "self_attn.q_norm.weight": (text.head,),
        "self_attn.k_norm.weight": (text.head,),
        "mlp.gate_proj.weight": (text.inner, text.hidden),
        "mlp.up_proj.weight": (text.inner, text.hidden),
        "mlp.down_proj.weight": (text.hidden, text.inner),
    }
    names: dict[str, tuple[int, ...]] = {
        f"layers.{at}.{name}": shape for at in range(text.layers) for name, shape in layer.items()
    }
    return {"embed_tokens.weight": (text.vocabulary, text.hidden), **names, "norm.weight": (text.hidden,)}


def _vision_weights(vision: VisionShape) -> dict[str, tuple[int, ...]]:
    wide = vision.hidden * vision.merge**2
    block = {
        **_affine("norm1", vision.hidden),
        **_affine("norm2", vision.hidden),
        **_linear("attn.qkv", 3 * vision.hidden, vision.hidden),
        **_linear("attn.proj", vision.hidden, vision.hidden),
        **_linear("mlp.linear_fc1", vision.inner, vision.hidden),
        **_linear("mlp.linear_fc2", vision.hidden, vision.inner),
    }
    merger = {**_linear("linear_fc1", wide, wide), **_linear("linear_fc2", vision.out, wide)}
    names: dict[str, tuple[int, ...]] = {
        "patch_embed.proj.weight": (vision.hidden, vision.channels, vision.temporal, vision.patch, vision.patch),
        "patch_embed.proj.bias": (vision.hidden,),
        "pos_embed.weight": (vision.side**2, vision.hidden),
    }
    names |= {f"blocks.{at}.{name}": shape for at in range(vision.depth) for name, shape in block.items()}
    names |= {f"merger.{k}": v for k, v in {**_affine("norm", vision.hidden), **merger}.items()}
    for at in range(len(vision.deep)):
        names |= {f"deepstack_merger_list.{at}.{k}": v for k, v in {**_affine("norm", wide), **merger}.items()}
    return names


def _linear(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def _affine(name: str, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}
