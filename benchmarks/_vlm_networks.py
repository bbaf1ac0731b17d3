"""Random networks of Qwen3-VL-4B's shape, and small ones, for measuring speed without any download."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # for fakes.vlm_reference

TASK = "pick up the red mug and put it on the plate next to the sink"
SPECIAL = (
    "<|im_start|> <|im_end|> <|vision_start|> <|vision_end|> <|image_pad|> <|video_pad|> "
    "<|split_token|> <|pref_token|> <|prog_token|>"
).split()


def network_config(*, small: bool) -> dict[str, Any]:
    """Return config.json of Qwen3-VL-4B, or of a small network of the same kind."""
    text = {
        "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "vocab_size": 151936, "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20]},
    }  # fmt: skip
    vision = {
        "hidden_size": 1024, "intermediate_size": 4096, "depth": 24, "num_heads": 16, "out_hidden_size": 2560,
        "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3,
        "num_position_embeddings": 2304, "deepstack_visual_indexes": [5, 11, 17], "hidden_act": "gelu_pytorch_tanh",
    }  # fmt: skip
    if small:
        text |= {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 2}
        text |= {"num_key_value_heads": 1, "vocab_size": 2048}
        vision |= {"hidden_size": 64, "intermediate_size": 128, "depth": 3, "num_heads": 2, "out_hidden_size": 128}
        vision |= {"deepstack_visual_indexes": [0, 1]}
    tokens = WordTokenizer(text["vocab_size"])
    ids = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    ids |= {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}
    ids = {name: tokens.id(token) for name, token in ids.items()}
    parts = {"text_config": text, "vision_config": vision}
    return {"model_type": "qwen3_vl", "tie_word_embeddings": True, **parts, **ids}


class WordTokenizer:
    """Words as tokens, split where Qwen's tokenizer splits them; special tokens are the last rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows - len(SPECIAL)

    def ids(self, text: str) -> list[int]:
        parts = re.findall(r"<\|\w+\|>| ?[A-Za-z]+|\d| ?[^\sA-Za-z\d<]+|\s|<", text)
        return [self.id(part) if part in SPECIAL else sum(map(ord, part)) % self.rows for part in parts]

    def id(self, special: str) -> int:
        return self.rows + SPECIAL.index(special)


def random_weights(shapes: dict[str, tuple[int, ...]], device: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Draw weights that keep activations and logits near size one."""
    torch.manual_seed(0)
    weights = {}
    for name, shape in shapes.items():
        mean = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0
        spread = 0.1 if len(shape) == 1 else float(np.prod(shape[1:])) ** -0.5
        weights[name] = torch.empty(shape, device=device, dtype=dtype).normal_(mean, spread)
    return weights


def time_best(work: Callable[[], Any], times: int, device: str) -> tuple[float, Any]:
    """Return the fastest of some runs in seconds, and the last result; waits for the device before and after."""
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
