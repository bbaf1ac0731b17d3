"""InternVL2 as its authors publish it (model_type internvl_chat): the backbone of VLAC.

    vision_model.*           InternViT; q, k and v of a layer are one matrix, attn.qkv
    mlp1.0, mlp1.1, mlp1.3   the projector: LayerNorm, Linear, GELU, Linear
    language_model.*         InternLM2; attention.wqkv has, for each key head, its query heads, the key and the value

Names and shapes are checked strictly, then renamed for transformers' InternVL, which has a Llama for InternLM2: the
two compute the same. Sources: modeling_internvl_chat.py and modeling_internlm2.py of the public InternVL2-2B; the chat
template `internvl2` of ms-swift 3.3, which VLAC was trained and is run with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from demerit.data.frames import Images
from demerit.errors import BadInput
from demerit.models.vlm.checkpoint import CONFIG, Layout
from demerit.models.vlm.config import read_count, read_positive, read_section
from demerit.models.vlm.layers import assign_weights
from demerit.models.vlm.prompt import ANSWER, PromptTokenizer

TILE = 448
"""side of a tile; a square image of this size is one tile, and VLAC shows no other"""
SHRINK = 2
"""patches per token along each side"""
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGE_START, IMAGE, IMAGE_END = "<img>", "<IMG_CONTEXT>", "</img>"
START = "<s>"
LAYER = re.compile(r"(vision_model\.encoder|language_model\.model)\.layers\.(\d+)\.(.+)\.(weight|bias)")
SCALE = re.compile(r"vision_model\.encoder\.layers\.(\d+)\.ls([12])")
RENAMED = {
    "vision_model.embeddings.class_embedding": "model.vision_tower.embeddings.cls_token",
    "vision_model.embeddings.position_embedding": "model.vision_tower.embeddings.position_embeddings",
    "vision_model.embeddings.patch_embedding": "model.vision_tower.embeddings.patch_embeddings.projection",
    "mlp1.0": "model.multi_modal_projector.layer_norm",
    "mlp1.1": "model.multi_modal_projector.linear_1",
    "mlp1.3": "model.multi_modal_projector.linear_2",
    "language_model.model.tok_embeddings": "model.language_model.embed_tokens",
    "language_model.model.norm": "model.language_model.norm",
    "language_model.output": "lm_head",
}
IN_LAYERS = {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "attn.proj": "attention.projection_layer",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
}
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "": {
        "select_layer": -1,
        "downsample_ratio": 0.5,
        "ps_version": "v2",
        "force_image_size": TILE,
        "use_backbone_lora": 0,
        "use_llm_lora": 0,
    },
    "vision_config": {
        "hidden_act": "gelu",
        "norm_type": "layer_norm",
        "qk_normalization": False,
        "qkv_bias": True,
        "num_channels": 3,
        "image_size": TILE,
    },
    "llm_config": {"model_type": "internlm2", "hidden_act": "silu", "bias": False, "tie_word_embeddings": False},
}
"""settings of InternVL2-2B and 8B; with others the network computes something else"""


@dataclass(frozen=True)
class InternVL2Shape:
    """An InternVL2 with InternLM2. Its repr is part of every model's identity."""

    layout: ClassVar[Layout] = "internvl2"
    template: ClassVar[str] = "internvl2-chat-1"
    system: ClassVar[str] = ""
    stops: ClassVar[tuple[str, ...]] = ("<|im_end|>", "</s>")

    patch: int
    wide: int
    """vision tower"""
    depth: int
    wide_heads: int
    wide_inner: int
    wide_epsilon: float
    hidden: int
    """language model"""
    layers: int
    heads: int
    groups: int
    inner: int
    vocabulary: int
    epsilon: float
    theta: float
    longest: int
    """positions; up to here InternLM2's dynamic scaling of positions changes nothing"""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> InternVL2Shape:
        """Read config.json; raise BadInput for another language model or an unsupported option."""
        vision, text = read_section(config, "vision_config"), read_section(config, "llm_config")
        for name, needed in NEEDED.items():
            part = config if not name else read_section(config, name)
            for key, value in needed.items():
                fact = part.get(key)
                if fact != value and (fact is not None or key == "model_type"):  # null counts as absent
                    where = f"{name}.{key}".lstrip(".")
                    raise BadInput(CONFIG, f"{where} = {value!r}, as in InternVL2-2B and 8B", repr(fact))
        scaling = read_section(text, "rope_scaling", {})
        if scaling and scaling.get("type", scaling.get("rope_type")) not in ("dynamic", "default"):
            raise BadInput(CONFIG, "llm_config.rope_scaling of type dynamic, or none", dict(scaling))
        heads = read_count(text, "num_attention_heads")
        shape = cls(
            patch=read_count(vision, "patch_size"),
            wide=read_count(vision, "hidden_size"),
            depth=read_count(vision, "num_hidden_layers"),
            wide_heads=read_count(vision, "num_attention_heads"),
            wide_inner=read_count(vision, "intermediate_size"),
            wide_epsilon=read_positive(vision, "layer_norm_eps", 1e-6),
            hidden=read_count(text, "hidden_size"),
            layers=read_count(text, "num_hidden_layers"),
            heads=heads,
            groups=read_count(text, "num_key_value_heads", heads),
            inner=read_count(text, "intermediate_size"),
            vocabulary=read_count(text, "vocab_size"),
            epsilon=read_positive(text, "rms_norm_eps"),
            theta=read_positive(text, "rope_theta"),
            longest=read_count(text, "max_position_embeddings"),
        )
        for whole, share in ((TILE // SHRINK, shape.patch), (shape.hidden, heads), (heads, shape.groups)):
            if whole % share:
                raise BadInput(CONFIG, "patches that fill a tile, and heads of equal size", f"{whole} / {share}")
        return shape

    @property
    def factor(self) -> int:
        """Image sides must be multiples of it."""
        return TILE

    @property
    def head(self) -> int:
        """Size of a head of the language model."""
        return self.hidden // self.heads

    @property
    def image_tokens(self) -> int:
        """Tokens of an image: 256 for patches of 14 pixels."""
        return (TILE // self.patch // SHRINK) ** 2

    @staticmethod
    def rename(name: str) -> str:
        """Return the name on disk; there is only one layout."""
        return name

    def expected_weights(self) -> dict[str, tuple[int, ...]]:
        """Return every weight's shape by its name on disk."""
        wide, hidden, joined = self.wide, self.hidden, self.wide * SHRINK**2
        shapes: dict[str, tuple[int, ...]] = {
            "vision_model.embeddings.class_embedding": (1, 1, wide),
            "vision_model.embeddings.position_embedding": (1, (TILE // self.patch) ** 2 + 1, wide),
            "vision_model.embeddings.patch_embedding.weight": (wide, 3, self.patch, self.patch),
            "vision_model.embeddings.patch_embedding.bias": (wide,),
            "language_model.model.tok_embeddings.weight": (self.vocabulary, hidden),
            "language_model.model.norm.weight": (hidden,),
            "language_model.output.weight": (self.vocabulary, hidden),
        }
        layer: dict[str, tuple[int, ...]] = {
            "ls1": (wide,),
            "ls2": (wide,),
            **_with_bias("norm1", wide),
            **_with_bias("norm2", wide),
            **_with_bias("attn.qkv", 3 * wide, wide),
            **_with_bias("attn.proj", wide, wide),
            **_with_bias("mlp.fc1", self.wide_inner, wide),
            **_with_bias("mlp.fc2", wide, self.wide_inner),
        }
        shapes |= {f"vision_model.encoder.layers.{at}.{k}": v for at in range(self.depth) for k, v in layer.items()}
        shapes |= _with_bias("mlp1.0", joined) | _with_bias("mlp1.1", hidden, joined)
        shapes |= _with_bias("mlp1.3", hidden, hidden)
        layer = {
            "attention.wqkv.weight": ((self.heads + 2 * self.groups) * self.head, hidden),
            "attention.wo.weight": (hidden, hidden),
            "feed_forward.w1.weight": (self.inner, hidden),
            "feed_forward.w2.weight": (hidden, self.inner),
            "feed_forward.w3.weight": (self.inner, hidden),
            "attention_norm.weight": (hidden,),
            "ffn_norm.weight": (hidden,),
        }
        shapes |= {f"language_model.model.layers.{at}.{k}": v for at in range(self.layers) for k, v in layer.items()}
        return shapes

    def check_tokenizer(self, tokens: PromptTokenizer, where: str) -> None:
        """Raise BadInput if the tokenizer does not belong to the network."""
        highest = max(tokens.id(name) for name in (IMAGE_START, IMAGE, IMAGE_END, START, *self.stops))
        if max(highest + 1, len(tokens)) > self.vocabulary:
            got = max(highest + 1, len(tokens))
            raise BadInput(f"tokenizer of {where}", f"at most {self.vocabulary} tokens, as in {CONFIG}", got)

    def build(self, weights: Mapping[str, Tensor], tokens: PromptTokenizer) -> Any:
        """Return transformers' InternVL with these weights (names as on disk)."""
        from transformers import InternVLConfig, InternVLForConditionalGeneration  # noqa: PLC0415  slow to import

        text = {
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.groups,
            "vocab_size": self.vocabulary,
            "rms_norm_eps": self.epsilon,
            "max_position_embeddings": self.longest,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.theta},
            "tie_word_embeddings": False,
        }
        vision = {
            "hidden_size": self.wide,
            "intermediate_size": self.wide_inner,
            "num_hidden_layers": self.depth,
            "num_attention_heads": self.wide_heads,
            "layer_norm_eps": self.wide_epsilon,
            "image_size": [TILE, TILE],
            "patch_size": [self.patch, self.patch],
            "attention_bias": True,
        }
        config = InternVLConfig(
            text_config=text, vision_config=vision, image_token_id=tokens.id(IMAGE), tie_word_embeddings=False
        )
        with torch.device("meta"):
            network = InternVLForConditionalGeneration(config)
        return assign_weights(network, dict(self._convert(weights)))

    def _convert(self, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights by transformers' names; fused matrices are split."""
        for name, weight in weights.items():
            module, _, kind = name.rpartition(".")
            if name in RENAMED:
                yield RENAMED[name], weight
            elif module in RENAMED:
                yield f"{RENAMED[module]}.{kind}", weight
            elif match := SCALE.fullmatch(name):
                yield f"model.vision_tower.encoder.layer.{match[1]}.lambda_{match[2]}", weight
            elif match := LAYER.fullmatch(name):
                vision = match[1].startswith("vision")
                layer = f"model.{'vision_tower.encoder.layer' if vision else 'language_model.layers'}.{match[2]}"
                if match[3] == "attn.qkv":
                    for part, piece in zip("qkv", weight.chunk(3), strict=True):
                        yield f"{layer}.attention.{part}_proj.{kind}", piece
                elif match[3] == "attention.wqkv":
                    for part, piece in zip("qkv", self._split(weight), strict=True):
                        yield f"{layer}.self_attn.{part}_proj.{kind}", piece
                else:
                    yield f"{layer}.{IN_LAYERS[match[3]]}.{kind}", weight

    def _split(self, fused: Tensor) -> tuple[Tensor, ...]:
        """Split wqkv: each key head's rows are those of its query heads, of the key, of the value."""
        queries = self.heads // self.groups
        rows = fused.view(self.groups, queries + 2, self.head, self.hidden)
        parts = rows[:, :queries], rows[:, queries], rows[:, queries + 1]
        return tuple(part.reshape(-1, self.hidden) for part in parts)

    def spell_image(self, height: int, width: int) -> str:
        """Return the text that stands for an image; ms-swift's template adds the new line."""
        if (height, width) != (TILE, TILE):
            raise BadInput("image", f"{TILE} x {TILE} pixels", f"{height} x {width}")
        return f"{IMAGE_START}{IMAGE * self.image_tokens}{IMAGE_END}\n"

    def spell_prompt(self, system: str, text: str) -> str:
        """Return the whole prompt."""
        turn = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
        return f"{START}{turn}<|im_start|>user\n{text}<|im_end|>\n{ANSWER}"

    def inputs(self, ids: Tensor, images: Sequence[Images]) -> dict[str, Tensor]:
        """Return what the network takes beside the tokens: one normalised tile per image, prompt by prompt."""
        pixels = torch.from_numpy(np.stack(images)).to(ids.device).permute(0, 3, 1, 2).float() / 255
        mean, deviation = (torch.tensor(part, device=ids.device)[:, None, None] for part in (MEAN, DEVIATION))
        return {"pixel_values": (pixels - mean) / deviation}


def _with_bias(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
