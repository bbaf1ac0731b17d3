"""TOPReward after every frame: each prefix of the video by itself, and all of them over one shared trunk.

    python benchmarks/topreward_prefixes.py            # Qwen3-VL-4B shape on a GPU, random weights, no download
    python benchmarks/topreward_prefixes.py --small    # a small network on the CPU, seconds

Three ways see the same frames and weights: transformers' full forward pass for each prefix, the same on our network,
and one trunk with a branch per frame. Resizing is inside every timing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a small network on the CPU")
    parser.add_argument("--frames", type=int, nargs="+", default=None)
    parser.add_argument("--out", type=Path)
    OPTIONS = parser.parse_args()  # before the imports that need extras: --help works without them

import numpy as np
import torch

from _vlm_networks import TASK, WordTokenizer, network_config, random_weights, time_best
from demerit.models.by_time import TimedClip
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.images import VideoBounds
from demerit.models.vlm.network import VLMNetwork, transformers_network
from demerit.models.vlm.prefix_tree import separate_tree
from demerit.models.vlm.prefixes import OPENING, PAIR, PrefixScorer, encode_pairs, frame_pairs, video_pieces
from demerit.models.vlm.prompt import TokenBlock, build_blocks, load_prompts
from fakes.vlm_reference import PrefixReference


def encoded_pairs(count: int) -> list[tuple[int, int]]:
    """List the frame pairs that the scorer encodes for a video: the complete ones, and each odd frame with itself."""
    complete = [pair for pair in frame_pairs(count) if pair[0] != pair[1]]
    return [*complete, *((at, at) for at in range(0, count, PAIR))]


def encodings_one_by_one(count: int) -> int:
    """Count the encoded pairs when every prefix is scored by itself."""
    return sum(len(frame_pairs(length)) for length in range(1, count + 1))


def score_one_by_one(scorer: PrefixScorer, clip: TimedClip) -> np.ndarray:
    """Score every prefix by itself on our network: nothing is shared."""
    backbone, size = scorer.backbone, scorer.size(clip)
    grid = backbone.shape.vision.grid(*size)
    question, answer = scorer.tokenize(TASK)
    values = []
    for length in range(1, len(clip) + 1):
        pairs = frame_pairs(length)
        pieces = [OPENING, *video_pieces(pairs, pairs, clip.seconds, grid)]
        blocks = (*build_blocks(pieces, backbone.tokens, backbone.shape), TokenBlock((*question, *answer[:-1])))
        images = encode_pairs(backbone.network, clip.frames[:length], pairs, pairs, size)
        tree = separate_tree([blocks])
        wanted = [(0, tree.tokens - len(answer) + at) for at in range(len(answer))]
        said = backbone.network.language.logits(backbone.network.states(tree, images, wanted)).log_softmax(-1)
        values.append(float(said[torch.arange(len(answer)), list(answer)].double().sum()))
    return np.array(values)


def measure(
    scorer: PrefixScorer, reference: PrefixReference, count: int, size: tuple[int, int], device: str
) -> dict[str, Any]:
    frames = np.random.default_rng(count).integers(0, 256, (count, *size, 3), dtype=np.uint8)
    clip = TimedClip(frames, np.arange(count) * 0.5)
    tree = scorer.build_prompt(clip, TASK).tree()
    ways = {
        "library": lambda: reference.log_probabilities(clip, TASK),
        "alone": lambda: score_one_by_one(scorer, clip),
        "shared": lambda: scorer.log_probabilities(clip, TASK),
    }
    took, said = {}, {}
    for name, work in ways.items():
        if device == "cuda":
            work()  # the first run compiles and chooses kernels
        took[name], said[name] = time_best(work, 2 if device == "cuda" else 1, device)
    pair, question = len(tree.segments[0].blocks[0]), len(tree.segments[-1].blocks[-1])
    apart = sum(pair * len(frame_pairs(length)) + question for length in range(1, count + 1))
    return {
        "frames": count,
        "images encoded": {"alone": encodings_one_by_one(count), "shared": len(encoded_pairs(count))},
        "tokens ratio": round(apart / tree.tokens, 2),
        "seconds": {name: round(value, 4) for name, value in took.items()},
        "times faster than library": round(took["library"] / took["shared"], 2),
        "times faster than alone": round(took["alone"] / took["shared"], 2),
        "largest difference to library": float(np.abs(said["shared"] - said["library"]).max()),
        "spread of the answers": float(np.std(said["library"])),
    }


def main(options: argparse.Namespace) -> None:
    device, dtype = ("cpu", torch.float32) if options.small else ("cuda", torch.bfloat16)
    counts = options.frames or ([4, 8] if options.small else [16, 64])
    size = (32, 64) if options.small else (240, 320)
    config = network_config(small=options.small)
    if options.small:
        torch.set_num_threads(1)
    shape = VLMShape.from_config(config)
    weights = random_weights(shape.expected_weights(read_out=True), device, dtype)
    backbone: Any = SimpleNamespace(
        tokens=WordTokenizer(shape.text.vocabulary),
        shape=shape,
        bounds=VideoBounds(),
        network=VLMNetwork(shape, weights),
    )
    scorer = PrefixScorer(backbone, load_prompts("topreward"))
    table = weights["language_model.embed_tokens.weight"]
    reference = PrefixReference(scorer, transformers_network(config, weights), table)
    rows = [measure(scorer, reference, count, size, device) for count in counts]
    for row in rows:
        print(json.dumps(row))
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main(OPTIONS)
