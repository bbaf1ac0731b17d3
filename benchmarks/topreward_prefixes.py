"""TOPReward after every frame: each beginning of the video by itself, and all of them over one shared beginning.

    python benchmarks/topreward_prefixes.py                   # Qwen3-VL-4B shape on a GPU, random weights
    python benchmarks/topreward_prefixes.py --tiny            # a toy on the CPU: the ratios of work hold there too

Three ways see the same frames and weights in one run: the library's whole forward pass for each beginning (as others
do it), the same on our network, and one stem with a branch a frame. Resizing is inside every timing.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from demerit.vlm.words import words
from demerit.vlm.config import VLMShape
from demerit.vlm.network import Network
from demerit.vlm.prefix_reference import PrefixReference
from demerit.vlm.prefixes import OPENING, Prefixes, Question, answer_tokens, encodings_alone, pictures
from demerit.vlm.prompt import Block, laid_out
from demerit.vlm.reference import transformers_network
from demerit.vlm.tree import separate
from demerit.vlm.video import Bounds, Clip, look_at_pairs, pairs_of, video_pieces

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
TINY_TEXT = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 160_000,
}  # fmt: skip
TINY_VISION = {
    "hidden_size": 128, "intermediate_size": 256, "depth": 4, "num_heads": 2, "out_hidden_size": 256,
    "deepstack_visual_indexes": [0, 1, 2],
}  # fmt: skip
TASK = "pick up the red mug and put it on the plate next to the sink"


class WordTokens:
    """Words as tokens, cut where Qwen's tokenizer cuts them: no vocabulary is needed to measure speed."""

    SPECIAL = {  # noqa: RUF012
        "<|im_start|>": 151644, "<|im_end|>": 151645, "<|vision_start|>": 151652, "<|vision_end|>": 151653,
        "<|image_pad|>": 151655, "<|video_pad|>": 151656,
    }  # fmt: skip

    def ids(self, text: str) -> list[int]:
        parts = re.findall(r"<\|\w+\|>| ?[A-Za-z]+|\d| ?[^\sA-Za-z\d<]+|\s|<", text)
        return [self.SPECIAL.get(part, sum(map(ord, part)) % 100_000) for part in parts]


def config_of(tiny: bool) -> dict[str, Any]:
    if not tiny:
        return TRUE
    return {
        **TRUE,
        "text_config": {**TRUE["text_config"], **TINY_TEXT},
        "vision_config": {**TRUE["vision_config"], **TINY_VISION},
    }


def random_weights(shapes: dict[str, tuple[int, ...]], device: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    weights = {}
    for name, shape in shapes.items():
        middle = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0
        spread = 0.1 if len(shape) == 1 else 1.0 if "embed_tokens" in name else float(np.prod(shape[1:])) ** -0.5
        weights[name] = torch.empty(shape, device=device, dtype=dtype).normal_(middle, spread)
    return weights


def seconds(work: Callable[[], Any], times: int, device: str) -> tuple[float, Any]:
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


def alone(engine: Prefixes, clip: Clip) -> np.ndarray:
    """Every beginning by itself, on our network: no shared stem, no shared pictures."""
    backbone, size = engine.backbone, engine.size(clip)
    grid = backbone.shape.vision.grid(*size)
    question, answer = answer_tokens(backbone, engine.question, TASK)
    values = []
    for length in range(1, len(clip) + 1):
        pairs = pairs_of(length)
        pieces = [OPENING, *video_pieces(pairs, pairs, clip.seconds, grid)]
        blocks = (*laid_out(pieces, backbone.tokens, backbone.shape), Block((*question, *answer[:-1])))
        seen = look_at_pairs(backbone.network, clip.frames[:length], pairs, pairs, size)
        total = sum(map(len, blocks))
        wanted = [(0, total - len(answer) + at) for at in range(len(answer))]
        states = backbone.network.states(separate([blocks]), seen, wanted)
        said = backbone.network.language.words(states).log_softmax(-1)
        values.append(float(said[torch.arange(len(answer)), list(answer)].double().sum()))
    return np.array(values)


def measured(engine: Prefixes, reference: PrefixReference, count: int, device: str, times: int) -> dict[str, Any]:
    frames = np.random.default_rng(count).integers(0, 256, (count, 240, 320, 3), dtype=np.uint8)
    clip = Clip(frames, np.arange(count) * 0.5)
    tree = engine.asked(clip, TASK).tree
    ways = {
        "library": lambda: reference.likely(clip, TASK),
        "alone": lambda: alone(engine, clip),
        "shared": lambda: engine.likely(clip, TASK),
    }
    took, said = {}, {}
    for name, work in ways.items():
        if name == "shared" or device == "cuda":
            work()  # kernels are made and chosen in the first run
        took[name], said[name] = seconds(work, times, device)
    tokens = tree.tokens
    stem = len(tree.segments[0].blocks[0])
    apart = sum(stem * len(pairs_of(n)) + len(tree.segments[-1].blocks[-1]) for n in range(1, count + 1))
    return {
        "frames": count,
        "pictures encoded": {"alone": encodings_alone(count), "shared": len(pictures(count))},
        "encodings ratio": round(encodings_alone(count) / count, 2),
        "tokens ratio": round(apart / tokens, 2),
        "seconds": {name: round(value, 4) for name, value in took.items()},
        "times faster than library": round(took["library"] / took["shared"], 2),
        "times faster than alone": round(took["alone"] / took["shared"], 2),
        "largest difference to library": float(np.abs(said["shared"] - said["library"]).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a toy on the CPU")
    parser.add_argument("--frames", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of the CPU; more only where nothing else runs")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    device = "cpu" if given.tiny else "cuda"
    dtype = torch.float32 if given.tiny else torch.bfloat16
    if given.tiny:
        torch.set_num_threads(given.threads)
    config = config_of(given.tiny)
    shape = VLMShape.from_config(config)
    weights = random_weights(shape.expected(read_out=True), device, dtype)
    network = Network(shape, weights)
    backbone: Any = SimpleNamespace(
        tokens=WordTokens(), shape=shape, bounds=Bounds(), network=network, device=torch.device(device)
    )
    said = words("topreward")
    question = Question(said["statement"], said["question"], said["answer"])
    table = weights["language_model.embed_tokens.weight"]
    reference = PrefixReference(backbone, question, transformers_network(config, weights), table)
    rows = [measured(Prefixes(backbone, question), reference, n, device, given.times) for n in given.frames]
    for row in rows:
        print(json.dumps(row))
    if given.out:
        given.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
