"""The shape of a Qwen3-VL or Qwen2.5-VL network (config.json), and the names and shapes of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite, isqrt
from typing import Any, ClassVar

from demerit.errors import BadInput

WHERE = "config.json"
QWEN3, QWEN25 = "qwen3_vl", "qwen2_5_vl"
"""families, as `model_type` has them"""
PixelScale = tuple[tuple[float, float, float], tuple[float, float, float]]
"""mean and deviation of each channel, in shares of the brightest value"""
DEFAULT_SECTIONS = (24, 20, 20)
"""rotary frequencies for time, height and width when a config has none"""


@dataclass(frozen=True)
class TextShape:
    """The language model. The field names are part of every model's identity: do not rename them."""

    hidden: int
    layers: int
    heads: int
    groups: int
    """key-value heads"""
    head: int
    inner: int
    vocabulary: int
    epsilon: float
    theta: float
    sections: tuple[int, int, int]


@dataclass(frozen=True)
class VisionShape:
    """The vision tower. The field names are part of every model's identity: do not rename them."""

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
    """the learned position embeddings are a side x side grid"""
    deep: tuple[int, ...]
    """blocks whose output is also added in the first layers of the language model (deepstack)"""
    scale: ClassVar[PixelScale | None] = None
    """of the pixels; None: to -1..1"""

    @property
    def factor(self) -> int:
        """Pixels per token side; image sides must be multiples of it."""
        return self.patch * self.merge

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tokens of an image with this height and width in pixels."""
        return height // self.factor, width // self.factor

    @property
    def pixels(self) -> int:
        """Values in one patch."""
        return self.channels * self.temporal * self.patch * self.patch


@dataclass(frozen=True)
class WindowedVision:
    """The vision tower of a Qwen2.5-VL. Its repr is part of every model's identity."""

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
    deep: ClassVar[tuple[int, ...]] = ()
    scale: ClassVar[PixelScale | None] = (
        (0.48145466, 0.4578275, 0.40821073),
        (0.26862954, 0.26130258, 0.27577711),
    )
    """of the pixels"""

    @property
    def factor(self) -> int:
        """Pixels per token side; image sides must be multiples of it."""
        return self.patch * self.merge

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tokens of an image with this height and width in pixels."""
        return height // self.factor, width // self.factor


@dataclass(frozen=True)
class VLMShape:
    """A whole network, read from config.json. Its repr is part of every model's identity."""

    text: TextShape
    vision: VisionShape | WindowedVision
    image_token: int
    video_token: int
    vision_start: int
    vision_end: int
    tied: bool
    """the output matrix is the embedding table"""
    family: str = field(default=QWEN3, repr=False)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> VLMShape:
        """Read a config.json; raise BadInput for another model family or an unsupported option."""
        family = config.get("model_type")
        if family not in (QWEN3, QWEN25):
            raise BadInput(WHERE, f"a model of the Qwen3-VL family (model_type {QWEN3}, or {QWEN25})", family)
        text, vision = read_section(config, "text_config"), read_section(config, "vision_config")
        shape = cls(
            text=_text(text) if family == QWEN3 else read_qwen25_text(text),
            vision=_vision(vision) if family == QWEN3 else read_windowed_vision(vision),
            image_token=read_count(config, "image_token_id", least=0),
            video_token=read_count(config, "video_token_id", least=0),
            vision_start=read_count(config, "vision_start_token_id", least=0),
            vision_end=read_count(config, "vision_end_token_id", least=0),
            tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
            family=family,
        )
        if len(shape.vision.deep) > shape.text.layers:
            got = f"{len(shape.vision.deep)} for {shape.text.layers} layers"
            raise BadInput(WHERE, "at most one of deepstack_visual_indexes for each layer of the language model", got)
        return shape

    def expected_weights(self, *, read_out: bool) -> dict[str, tuple[int, ...]]:
        """Return every weight's shape by name; `read_out` adds `lm_head.weight` unless it is tied."""
        text = _text_weights(self.text, biased=self.family == QWEN25)
        tower = self.vision
        vision = _windowed_weights(tower) if isinstance(tower, WindowedVision) else _vision_weights(tower)
        names = {f"language_model.{k}": v for k, v in text.items()} | {f"visual.{k}": v for k, v in vision.items()}
        if read_out and not self.tied:
            names["lm_head.weight"] = (self.text.vocabulary, self.text.hidden)
        return names


def _text(config: Mapping[str, Any]) -> TextShape:
    rope = {**read_section(config, "rope_scaling", {}), **read_section(config, "rope_parameters", {})}
    if rope.get("rope_type", "default") != "default" or rope.get("mrope_interleaved", True) is not True:
        raise BadInput(WHERE, "rope_type = default and mrope_interleaved = true (Qwen3-VL)", dict(rope))
    if config.get("hidden_act", "silu") != "silu" or config.get("attention_bias"):
        raise BadInput(WHERE, "hidden_act = silu and no attention_bias (Qwen3-VL)", dict(config))
    hidden, heads = read_count(config, "hidden_size"), read_count(config, "num_attention_heads")
    groups = read_count(config, "num_key_value_heads", heads)
    if heads % groups:
        raise BadInput(WHERE, "num_attention_heads, a multiple of num_key_value_heads", f"{heads} and {groups}")
    head = read_count(config, "head_dim", hidden // heads)
    sections = rope.get("mrope_section", DEFAULT_SECTIONS)
    whole = isinstance(sections, list | tuple) and all(_is_whole(count, 0) for count in sections)
    if not whole or len(sections) != len(DEFAULT_SECTIONS) or 2 * sum(sections) != head:
        raise BadInput(WHERE, f"mrope_section, three counts with a sum of {head} / 2 (head_dim)", repr(sections))
    time, height, width = sections
    return TextShape(
        hidden=hidden,
        layers=read_count(config, "num_hidden_layers"),
        heads=heads,
        groups=groups,
        head=head,
        inner=read_count(config, "intermediate_size"),
        vocabulary=read_count(config, "vocab_size"),
        epsilon=read_positive(config, "rms_norm_eps", 1e-6),
        theta=read_positive({**config, **rope}, "rope_theta"),
        sections=(time, height, width),
    )


def _vision(config: Mapping[str, Any]) -> VisionShape:
    if config.get("hidden_act", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise BadInput(WHERE, "a vision tower with gelu_pytorch_tanh", config["hidden_act"])
    hidden, depth, heads = (read_count(config, name) for name in ("hidden_size", "depth", "num_heads"))
    if hidden % heads:
        raise BadInput(WHERE, "the tower's hidden_size, a multiple of its num_heads", f"{hidden} and {heads}")
    places = read_count(config, "num_position_embeddings")
    if isqrt(places) ** 2 != places:
        raise BadInput(WHERE, "num_position_embeddings, a square number", places)
    deep = config.get("deepstack_visual_indexes")
    if not isinstance(deep, list | tuple) or not all(_is_whole(block, 0) and block < depth for block in deep):
        raise BadInput(WHERE, f"deepstack_visual_indexes, a list of blocks from 0 to {depth - 1}", repr(deep))
    return VisionShape(
        hidden=hidden,
        depth=depth,
        heads=heads,
        inner=read_count(config, "intermediate_size"),
        out=read_count(config, "out_hidden_size"),
        patch=read_count(config, "patch_size"),
        merge=read_count(config, "spatial_merge_size"),
        temporal=read_count(config, "temporal_patch_size"),
        channels=read_count(config, "in_channels", 3),
        side=isqrt(places),
        deep=tuple(deep),
    )


def read_qwen25_text(config: Mapping[str, Any]) -> TextShape:
    """Read the language model of a Qwen2.5-VL; raise BadInput for unsupported options."""
    if config.get("hidden_act", "silu") != "silu" or config.get("use_sliding_window"):
        raise BadInput(WHERE, "hidden_act = silu and use_sliding_window = false (Qwen2.5-VL)", dict(config))
    rope = {**read_section(config, "rope_scaling", {}), **read_section(config, "rope_parameters", {})}
    kinds = {rope.get("rope_type", "default"), rope.get("type", "default")}
    if not kinds <= {"default", "mrope"}:
        raise BadInput(WHERE, "rope_scaling of type mrope (Qwen2.5-VL)", dict(rope))
    hidden, heads = read_count(config, "hidden_size"), read_count(config, "num_attention_heads")
    sections = rope.get("mrope_section")
    head = hidden // heads
    if not isinstance(sections, list) or len(sections) != len(DEFAULT_SECTIONS) or 2 * sum(sections) != head:
        raise BadInput(WHERE, f"mrope_section, three counts with a sum of {head} / 2", repr(sections))
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


def read_windowed_vision(config: Mapping[str, Any]) -> WindowedVision:
    """Read the vision tower of a Qwen2.5-VL; raise BadInput for unsupported options."""
    if config.get("hidden_act", "silu") != "silu":
        raise BadInput(WHERE, "a vision tower with hidden_act = silu (Qwen2.5-VL)", config["hidden_act"])
    whole = config.get("fullatt_block_indexes")
    if not isinstance(whole, list) or not all(isinstance(block, int) for block in whole):
        raise BadInput(WHERE, "vision_config.fullatt_block_indexes, a list of blocks", repr(whole))
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


def _get(config: Mapping[str, Any], name: str, default: Any) -> Any:
    value = config.get(name)
    return default if value is None else value  # null counts as absent


def read_section(config: Mapping[str, Any], name: str, default: Any = None) -> Mapping[str, Any]:
    """Return an object inside a config; raise BadInput for anything else."""
    section = _get(config, name, default)
    if not isinstance(section, dict):
        raise BadInput(WHERE, f"{name}, an object", repr(section))
    return section


def read_count(config: Mapping[str, Any], name: str, default: int | None = None, *, least: int = 1) -> int:
    """Return a whole number of a config; raise BadInput for anything else."""
    count = _get(config, name, default)
    if not _is_whole(count, least):
        raise BadInput(WHERE, f"{name}, a whole number >= {least}", repr(count))
    return int(count)


def read_positive(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """Return a positive number of a config; raise BadInput for anything else."""
    number = _get(config, name, default)
    if isinstance(number, bool) or not isinstance(number, int | float) or not isfinite(number) or number <= 0:
        raise BadInput(WHERE, f"{name}, a positive number", repr(number))
    return float(number)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _text_weights(text: TextShape, *, biased: bool) -> dict[str, tuple[int, ...]]:
    """Qwen3-VL norms queries and keys; Qwen2.5-VL has biases (`biased`) instead."""
    wide, narrow = text.heads * text.head, text.groups * text.head
    attention: dict[str, tuple[int, ...]] = {f"self_attn.{name}_norm.weight": (text.head,) for name in "qk"}
    if biased:
        attention = {f"self_attn.{name}_proj.bias": (wide if name == "q" else narrow,) for name in "qkv"}
    layer = {
        "input_layernorm.weight": (text.hidden,),
        "post_attention_layernorm.weight": (text.hidden,),
        "self_attn.q_proj.weight": (wide, text.hidden),
        "self_attn.k_proj.weight": (narrow, text.hidden),
        "self_attn.v_proj.weight": (narrow, text.hidden),
        "self_attn.o_proj.weight": (text.hidden, wide),
        **attention,
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


def _windowed_weights(vision: WindowedVision) -> dict[str, tuple[int, ...]]:
    wide = vision.hidden * vision.merge**2
    block = {
        "norm1.weight": (vision.hidden,),
        "norm2.weight": (vision.hidden,),
        **_linear("attn.qkv", 3 * vision.hidden, vision.hidden),
        **_linear("attn.proj", vision.hidden, vision.hidden),
        **_linear("mlp.gate_proj", vision.inner, vision.hidden),
        **_linear("mlp.up_proj", vision.inner, vision.hidden),
        **_linear("mlp.down_proj", vision.hidden, vision.inner),
    }
    names: dict[str, tuple[int, ...]] = {
        "patch_embed.proj.weight": (vision.hidden, 3, vision.temporal, vision.patch, vision.patch),
        "merger.ln_q.weight": (vision.hidden,),
        **_linear("merger.mlp.0", wide, wide),
        **_linear("merger.mlp.2", vision.out, wide),
    }
    return names | {f"blocks.{at}.{name}": shape for at in range(vision.depth) for name, shape in block.items()}


def _linear(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def _affine(name: str, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}
