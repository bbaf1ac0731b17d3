"""Pairwise critics: prompt tokens, shared prefixes, portions, and what is kept in memory."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.errors import BadInput
from demerit.models.vlm.backbone import Backbone
from demerit.models.vlm.network import decode_greedily
from demerit.models.vlm.pairwise import LONGEST, PairwiseCritic
from demerit.models.vlm.prefix_tree import separate_tree
from demerit.models.vlm.prompt import load_prompts
from fakes.talking_vlm import talking_checkpoint
from fakes.tiny_vlm import tiny_checkpoint

TASK = "put the cup on the plate"


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    folder: Path = tiny_checkpoint(tmp_path_factory.mktemp("critic") / "tiny", seed=5, tied=False)
    return Backbone.open(str(folder), device="cpu")


def noise(count: int, side: int = 64) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def test_prompts_have_the_tokens_of_the_published_text(backbone: Backbone) -> None:
    prompt = load_prompts("dopamine")["prompt"]
    assert prompt.count("<image>") == 8
    assert prompt.startswith("\nYou are a rigorous")
    assert prompt.endswith("<score>0%</score>\n")
    keys = list(range(8))
    grids = dict.fromkeys(keys, (2, 3))
    blocks = PairwiseCritic(backbone, prompt).blocks(keys, TASK, grids)
    pad = f"<|vision_start|>{'<|image_pad|>' * 6}<|vision_end|>"
    text = f"<|im_start|>user\n{prompt.replace('<image>', pad).format(task=TASK)}<|im_end|>\n<|im_start|>assistant\n"
    assert [token for block in blocks for token in block.ids] == backbone.tokens.ids(text)
    assert [block.image.key for block in blocks if block.image] == keys

    pair = load_prompts("vlac")
    blocks = PairwiseCritic(backbone, pair["prompt"], pair["system"]).blocks([0, 1], TASK, grids)
    text = pair["prompt"].replace("<image>", pad).format(task=TASK)
    whole = f"<|im_start|>system\n{pair['system']}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n"
    assert [token for block in blocks for token in block.ids] == backbone.tokens.ids(whole + "<|im_start|>assistant\n")


def test_answers_with_shared_prefixes_equal_single_answers(backbone: Backbone) -> None:
    critic = PairwiseCritic(backbone, "a <image> b <image> then {task}")
    small = noise(4)
    shown = {0: small[0], 1: small[1], 2: small[2], 3: small[3][:, :32]}  # two sizes
    asked = [(0, 1), (0, 2), (0, 3), (1, 0)]
    together = critic.answers(asked, TASK, shown)
    images, grids = critic.encode(shown), critic.grids(shown)
    for keys, text in zip(asked, together, strict=True):
        tree = separate_tree([critic.blocks(keys, TASK, grids)])
        alone = decode_greedily(backbone.network, tree, images, stops=backbone.stops, most=LONGEST)
        assert backbone.tokens.text(alone[0].ids) == text
    assert len(set(together)) > 1, "negative control: the answers differ"
    with pytest.raises(BadInput, match="2 images"):
        critic.blocks([0], TASK, grids)


@settings(max_examples=5)
@given(st.integers(1, 400), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6))
def test_portions_change_no_answer(backbone: Backbone, tokens: int, asked: list[tuple[int, int]]) -> None:
    prompt = "a <image> b <image> then {task}"
    shown = {at: image[: 32 + 32 * (at % 2)] for at, image in enumerate(noise(5))}
    together = PairwiseCritic(backbone, prompt).answers(asked, TASK, shown)
    assert PairwiseCritic(backbone, prompt, at_once=tokens).answers(asked, TASK, shown) == together


def test_a_long_chain_of_hops_keeps_few_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each image is encoded once, and 120 hops keep no more of them than 30."""
    backbone = Backbone.open(str(talking_checkpoint(tmp_path / "sure", "+25%")), device="cpu")
    network, most = backbone.network, []
    honest, vision = network.states_and_keys, network.vision.features
    rows: list[int] = []
    encoded: list[int] = []
    monkeypatch.setattr(
        network,
        "states_and_keys",
        lambda tree, images, *rest: rows.append(len(images.features)) or honest(tree, images, *rest),
    )
    monkeypatch.setattr(network.vision, "features", lambda cut, *grid: encoded.append(len(cut)) or vision(cut, *grid))
    critic = PairwiseCritic(backbone, "start <image> before <image> after <image> {task}", at_once=300)
    for count in (30, 120):
        rows.clear()
        encoded.clear()
        shown = {at: np.full((32, 32, 3), at, np.uint8) for at in range(count + 1)}
        asked = [(0, at - 1, at) for at in range(1, count + 1)]
        assert critic.answers(asked, TASK, shown) == ["+25%"] * count
        assert sum(encoded) == count + 1
        most.append(max(rows))
    assert most[0] == most[1] < 30
