"""Greedy decoding of several prompts at once, against transformers' generate."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from demerit.models.vlm.backbone import Backbone
from demerit.models.vlm.images import cut_image_patches
from demerit.models.vlm.network import DecodedAnswer, ImageFeatures, decode_greedily
from demerit.models.vlm.prefix_tree import PrefixTree, separate_tree, shared_tree, trunk_tree
from demerit.models.vlm.prompt import ANSWER, CUT, ImageSlot, TokenBlock, build_blocks, user_turn
from fakes.tiny_vlm import ID, tiny_checkpoint, tiny_config, tiny_weights

TASKS = ["push the box", "pick up the cup and put it on the plate", "close it"]
SIZES = [(64, 96), (32, 64), (64, 96)]
MOST = 12


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    folder = tiny_checkpoint(tmp_path_factory.mktemp("decode") / "tiny", seed=3, tied=False)
    return Backbone.open(str(folder), device="cpu")


@pytest.fixture(scope="module")
def theirs() -> Any:
    network = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**tiny_config(tied=False))).eval()
    weights = tiny_weights(seed=3, tied=False)
    renamed = {name if name == "lm_head.weight" else f"model.{name}": value for name, value in weights.items()}
    network.load_state_dict(renamed, strict=True)
    return network


def frame(at: int) -> np.ndarray:
    return np.random.default_rng(at).integers(0, 256, (*SIZES[at], 3), dtype=np.uint8)


def prompt(backbone: Backbone, at: int) -> tuple[TokenBlock, ...]:
    picture = ImageSlot(at, SIZES[at][0] // 32, SIZES[at][1] // 32)
    return build_blocks(user_turn("look: ", picture, CUT, TASKS[at], then=ANSWER), backbone.tokens, backbone.shape)


def encode(backbone: Backbone) -> ImageFeatures:
    each = [backbone.network.encode([torch.from_numpy(frame(at)[None])], [at]) for at in range(3)]
    return each[0].append(each[1]).append(each[2])


def generated(
    theirs: Any, blocks: tuple[TokenBlock, ...], at: int, stops: set[int], most: int
) -> tuple[list[int], list[float]]:
    """Return the tokens and the log-probability of each."""
    ids = torch.tensor([[id for block in blocks for id in block.ids]])
    flat = cut_image_patches(torch.from_numpy(frame(at)[None]), patch=16, merge=2, temporal=2)
    height, width = SIZES[at]
    with torch.inference_mode():
        out = theirs.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=flat.flatten(0, 1),
            image_grid_thw=torch.tensor([[1, height // 16, width // 16]]),
            mm_token_type_ids=(ids == ID["<|image_pad|>"]).int(),
            do_sample=False,
            max_new_tokens=most,
            eos_token_id=sorted(stops),
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    logs = [float(step.double().log_softmax(-1).max()) for step in out.logits]
    return list(out.sequences[0, ids.shape[1] :].tolist()), logs


def test_tokens_equal_those_of_generate_and_each_answer_stops_by_itself(backbone: Backbone, theirs: Any) -> None:
    prompts = [prompt(backbone, at) for at in range(3)]
    free = decode_greedily(backbone.network, separate_tree(prompts), encode(backbone), stops=(), most=MOST)
    for at, (answer, blocks) in enumerate(zip(free, prompts, strict=True)):
        said, logs = generated(theirs, blocks, at, {383}, MOST)
        assert answer == DecodedAnswer(tuple(said), finished=False)
        assert answer.least == pytest.approx(min(logs), abs=1e-4) and answer.least < 0
    # tokens that end the answers at different places, one of them at once
    stops = {free[0].ids[0], next(id for id in free[1].ids[3:] if id not in free[1].ids[:3])}
    answers = decode_greedily(backbone.network, separate_tree(prompts), encode(backbone), stops=stops, most=MOST)
    for at, (answer, blocks) in enumerate(zip(answers, prompts, strict=True)):
        said, logs = generated(theirs, blocks, at, stops, MOST)
        assert answer == DecodedAnswer(tuple(id for id in said if id not in stops), finished=said[-1] in stops)
        before = [
            log for id, log in zip(said, logs, strict=True) if id not in stops
        ]  # the end is no word of the answer
        assert answer.least == pytest.approx(min(before, default=0.0), abs=1e-4)
    assert answers[0] == DecodedAnswer((), finished=True)
    assert len({len(answer.ids) for answer in answers}) > 1


@pytest.mark.parametrize("how", ["shared", "trunk"])
def test_shared_prefixes_change_nothing(backbone: Backbone, how: str) -> None:
    parts = [
        build_blocks(user_turn("look: ", ImageSlot(at, 2, 3), CUT, task, then=ANSWER), backbone.tokens, backbone.shape)
        for at, task in ((0, TASKS[0]), (0, TASKS[1]), (0, TASKS[2]))
    ]
    alone = [
        decode_greedily(backbone.network, separate_tree([blocks]), encode(backbone), stops=(), most=6)[0]
        for blocks in parts
    ]
    tree: PrefixTree = (
        shared_tree(parts) if how == "shared" else trunk_tree(parts[0][:1], [(1, blocks[1:]) for blocks in parts])
    )
    assert decode_greedily(backbone.network, tree, encode(backbone), stops=(), most=6) == alone
