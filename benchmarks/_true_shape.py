"""The true shape of Qwen3-VL-4B with random weights, for measuring speed; a toy of it for trying a script out."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

TRUE: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "vocab_size": 151936, "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20]},
    },
    "vision_config": {
        "hidden_size": 1024, "intermediate_size": 4096, "depth": 24, "num_heads": 16, "out_hidden_size": 2560,
        "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3,
        "num_position_embeddings": 2304, "deepstack_visual_indexes": [5, 11, 17], "hidden_act": "gelu_pytorch_tanh",
    },
    "image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652,
    "vision_end_token_id": 151653, "tie_word_embeddings": True,
}  # fmt: skip


class WordTokens:
    """Words as tokens, cut where Qwen's tokenizer cuts them: no vocabulary is needed to measure speed."""

    SPECIAL = {  # noqa: RUF012
        "<|im_start|>": 151644, "<|im_end|>": 151645, "<|vision_start|>": 151652, "<|vision_end|>": 151653,
        "<|image_pad|>": 151655, "<|video_pad|>": 151656, "<|split_token|>": 151669, "<|pref_token|>": 151671,
        "<|prog_token|>": 151673,
    }  # fmt: skip

    def ids(self, text: str) -> list[int]:
        parts = re.findall(r"<\|\w+\|>| ?[A-Za-z]+|\d| ?[^\sA-Za-z\d<]+|\s|<", text)
        return [self.SPECIAL.get(part, sum(map(ord, part)) % 100_000) for part in parts]

    def id(self, special: str) -> int:
        return self.SPECIAL[special]


def small() -> dict[str, Any]:
    text = {**TRUE["text_config"], "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128}  # fmt: skip
    vision = {**TRUE["vision_config"], "hidden_size": 64, "intermediate_size": 128, "depth": 4, "num_heads": 2,
              "out_hidden_size": 128, "deepstack_visual_indexes": [0, 1, 2]}  # fmt: skip
    return {**TRUE, "text_config": text, "vision_config": vision}


def random_weights(shapes: dict[str, tuple[int, ...]], device: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Draw weights that keep numbers of a size from layer to layer, and logits of a size of one."""
    torch.manual_seed(0)
    weights = {}
    for name, shape in shapes.items():
        middle = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0
        spread = 0.1 if len(shape) == 1 else float(np.prod(shape[1:])) ** -0.5
        weights[name] = torch.empty(shape, device=device, dtype=dtype).normal_(middle, spread)
    return weights


def seconds(work: Callable[[], Any], times: int, device: str) -> tuple[float, Any]:
    """Time the fastest of some runs, the device's queue empty before and after."""
    best, answer = float("inf"), None
    for _ in range(times):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        answer = work()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best, answer
