"""TOPReward after every frame: each beginning of the video by itself, and all of them over one shared beginning.

    python benchmarks/topreward_prefixes.py                   # Qwen3-VL-4B shape on a GPU, random weights
    python benchmarks/topreward_prefixes.py --tiny            # a toy on the CPU: the ratios of work hold there too

Three ways see the same frames and weights in one run: the library's whole forward pass for each beginning (as others
do it), the same on our network, and one stem with a branch a frame. Resizing is inside every timing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from _true_shape import TRUE, WordTokens, random_weights, seconds, small
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.network import Network
from demerit.models.vlm.prefix_reference import PrefixReference
from demerit.models.vlm.prefixes import OPENING, Prefixes, Question, answer_tokens, encodings_alone, pictures
from demerit.models.vlm.prompt import Block, laid_out
from demerit.models.vlm.reference import transformers_network
from demerit.models.vlm.tree import separate
from demerit.models.vlm.video import Bounds, Clip, look_at_pairs, pairs_of, video_pieces
from demerit.models.vlm.words import words

TASK = "pick up the red mug and put it on the plate next to the sink"


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
    tree = engine.asked(clip, TASK).tree()
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
        "spread of the answers": float(np.std(said["library"])),
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
    config = small() if given.tiny else TRUE
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
