"""InternVL2 and Qwen2.5-VL: strict names, logits of a second implementation, prompts token by token, decoding."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from demerit.errors import BadInput, NonFiniteOutput, WeightsMismatch
from demerit.models.vlm.pairwise import LONGEST, PlainBackbone, PlainCritic, open_backbone
from demerit.models.vlm.prompt import load_prompts
from fakes.internvl2_reference import ReferenceInternVL2
from fakes.tiny_plain import INTERNVL2, change_weights, make_talk, tiny_internvl2, tiny_qwen25
from fakes.tiny_vlm import ID

TASK = "put the cup on the plate"
PAIR = load_prompts("vlac")


@pytest.fixture(scope="module")
def internvl2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_internvl2(tmp_path_factory.mktemp("plain") / "internvl2", seed=3)


@pytest.fixture(scope="module")
def qwen25(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen25(tmp_path_factory.mktemp("plain") / "qwen25", seed=4)


def pictures(count: int, *size: int, seed: int = 0) -> dict[Any, np.ndarray]:
    drawn = np.random.default_rng(seed).integers(0, 256, (count, *size, 3), dtype=np.uint8)
    return dict(enumerate(drawn))


def open_plain(folder: Path) -> PlainBackbone:
    opened = open_backbone(str(folder), also=json.loads((folder / "config.json").read_text())["model_type"])
    assert isinstance(opened, PlainBackbone)
    return opened


def decode_by_reference(folder: Path, ids: list[int], images: np.ndarray, most: int) -> list[int]:
    reference = ReferenceInternVL2(INTERNVL2, load_file(folder / "model.safetensors"))
    features, written = reference.see(torch.from_numpy(images)), list[int]()
    while len(written) < most:
        token = int(reference.logits([*ids, *written], features, 422)[-1].argmax())
        if token in (2, 7):
            break
        written.append(token)
    return written


def test_logits_of_a_second_internvl2(internvl2: Path) -> None:
    backbone, images = open_plain(internvl2), pictures(2, 448, 448)
    critic = PlainCritic(backbone, PAIR["prompt"], PAIR["system"])
    ids = backbone.tokens.ids(critic.spell([0, 1], TASK, images))
    shown = [images[0], images[1]]
    asked = torch.tensor([ids])
    with torch.inference_mode():
        found = backbone.network(input_ids=asked, **backbone.shape.inputs(asked, shown)).logits[0]
    reference = ReferenceInternVL2(INTERNVL2, load_file(internvl2 / "model.safetensors"))
    expected = reference.logits(ids, reference.see(torch.from_numpy(np.stack(shown))), 422)
    assert expected.std() > 0.5  # not all alike
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=1e-4)


def test_greedy_answers_are_those_of_the_reference(internvl2: Path) -> None:
    backbone, images = open_plain(internvl2), pictures(3, 448, 448)
    critic = PlainCritic(backbone, PAIR["prompt"], PAIR["system"])
    pairs = [(0, 1), (1, 2), (2, 0)]
    together = critic.answers(pairs, TASK, images)
    alone = PlainCritic(backbone, PAIR["prompt"], PAIR["system"], at_once=1)
    assert together == alone.answers(pairs, TASK, images)
    ids = backbone.tokens.ids(critic.spell(pairs[1], TASK, images))
    expected = decode_by_reference(internvl2, ids, np.stack([images[1], images[2]]), LONGEST)
    assert together[1] == backbone.tokens.text(expected)
    assert len(set(together)) > 1  # the images matter


def test_the_prompt_of_vlac(internvl2: Path) -> None:
    """As ms-swift's template internvl2 spells it: <s>, the system turn, 256 (here 16) tokens an image, a new line."""
    backbone = open_plain(internvl2)
    critic = PlainCritic(backbone, PAIR["prompt"], PAIR["system"])
    image = "<img>" + "<IMG_CONTEXT>" * 16 + "</img>\n"
    expected = (
        f"<s><|im_start|>system\n{PAIR['system']}<|im_end|>\n<|im_start|>user\n"
        f"Image-1: {image}\nImage-2: {image}\n"
        + PAIR["prompt"].partition("Image-2: <image>\n")[2].format(task=TASK)
        + "<|im_end|>\n<|im_start|>assistant\n"
    )
    spelled = critic.spell([0, 1], TASK, pictures(2, 448, 448))
    assert spelled == expected
    ids = backbone.tokens.ids(spelled)
    assert ids[:2] == [1, 8] and ids.count(420) == ids.count(421) == 2 and ids.count(422) == 32
    real = copy.deepcopy(INTERNVL2)
    real["vision_config"]["patch_size"] = 14
    assert type(backbone.shape).from_config(real).image_tokens == 256
    for task in ("put <img> down", "a </s> b"):
        with pytest.raises(BadInput, match="special tokens"):
            critic.answers([(0, 1)], task, pictures(2, 448, 448))
    with pytest.raises(BadInput, match="448 x 448"):
        critic.answers([(0, 1)], TASK, pictures(2, 448, 420))


@pytest.mark.parametrize(
    ("change", "missing", "unexpected"),
    [
        ({"mlp1.3.bias": None}, ["mlp1.3.bias"], []),
        ({"language_model.model.layers.1.attention.wqkv.weight": None}, ["wqkv"], []),
        ({"vision_model.encoder.layers.0.attn.q_norm.weight": torch.ones(16)}, [], ["q_norm"]),
        ({"lm_head.weight": torch.ones(429, 32)}, [], ["lm_head"]),
        ({"language_model.model.layers.0.attention.wqkv.weight": torch.ones(32, 64)}, [], ["(32, 64)"]),
    ],
)
def test_every_tensor_of_internvl2_is_used_once(
    tmp_path: Path, change: dict[str, torch.Tensor | None], missing: list[str], unexpected: list[str]
) -> None:
    change_weights(tiny_internvl2(tmp_path / "m"), change)
    with pytest.raises(WeightsMismatch) as refused:
        open_plain(tmp_path / "m")
    for found, expected in ((refused.value.missing, missing), (refused.value.unexpected, unexpected)):
        assert len(found) == len(expected) and all(part in name for part, name in zip(expected, found, strict=True))


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("", "ps_version", "v1"),
        ("", "select_layer", -4),
        ("", "force_image_size", 224),
        ("vision_config", "qk_normalization", True),
        ("vision_config", "image_size", 224),
        ("llm_config", "model_type", "phi3"),
        ("llm_config", "model_type", None),
        ("llm_config", "bias", True),
        ("llm_config", "rope_scaling", {"type": "linear", "factor": 2.0}),
        ("llm_config", "num_key_value_heads", 3),
    ],
)
def test_other_variants_are_refused_by_name(tmp_path: Path, part: str, name: str, value: Any) -> None:
    config = copy.deepcopy(INTERNVL2)
    (config[part] if part else config)[name] = value
    tiny_internvl2(tmp_path / "m", **config)
    with pytest.raises(BadInput, match=r"config\.json"):
        open_plain(tmp_path / "m")


def test_pickles_adapters_and_foreign_tokenizers_are_refused(tmp_path: Path) -> None:
    folder = tiny_internvl2(tmp_path / "m")
    with pytest.raises(BadInput, match="merge_and_unload"):
        open_backbone(str(folder), also="internvl_chat", adapter="some/adapter")
    facts = json.loads((folder / "tokenizer_config.json").read_text())
    facts["added_tokens_decoder"]["429"] = {"content": "<more>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    with pytest.raises(BadInput, match="at most 429 tokens"):
        open_plain(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(BadInput, match=r"pickles.*pytorch_model\.bin"):
        open_plain(folder)


def test_nan_is_no_answer(tmp_path: Path) -> None:
    folder = tiny_internvl2(tmp_path / "m")
    change_weights(folder, {"mlp1.3.bias": torch.full((32,), torch.nan)})
    critic = PlainCritic(open_plain(folder), PAIR["prompt"], PAIR["system"])
    with pytest.raises(NonFiniteOutput):
        critic.answers([(0, 1)], TASK, pictures(2, 448, 448))


def test_the_answer_ends_where_the_model_ends_it(tmp_path: Path) -> None:
    backbone = open_plain(make_talk(tiny_internvl2(tmp_path / "m"), "+25"))
    critic = PlainCritic(backbone, PAIR["prompt"], PAIR["system"])
    assert critic.answers([(0, 1), (1, 0)], TASK, pictures(2, 448, 448)) == ["+25", "+25"]


def test_fewer_prompts_at_a_time_when_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    critic = PlainCritic(open_plain(make_talk(tiny_internvl2(tmp_path / "m"), "+25")), PAIR["prompt"], PAIR["system"])
    honest, tried = PlainCritic._decode, []

    def small_machine(self: PlainCritic, prompts: Any, images: Any) -> list[str]:
        tried.append(len(prompts))
        if len(prompts) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return honest(self, prompts, images)

    monkeypatch.setattr(PlainCritic, "_decode", small_machine)
    assert critic.answers([(0, 1), (1, 0), (1, 1)], TASK, pictures(2, 448, 448)) == ["+25"] * 3
    assert tried[0] == 3 and tried.count(1) == 3


def test_identity_follows_the_weights_and_the_tokenizer(internvl2: Path, tmp_path: Path) -> None:
    same = tiny_internvl2(tmp_path / "same", seed=3)
    other = tiny_internvl2(tmp_path / "other", seed=5)
    first = open_plain(internvl2)
    assert first.identity() == open_plain(same).identity() != open_plain(other).identity()
    assert first.revision == "local internvl2-chat-1"
    facts = json.loads((same / "tokenizer_config.json").read_text())
    del facts["added_tokens_decoder"]["428"]
    (same / "tokenizer_config.json").write_text(json.dumps(facts))
    assert first.identity() != open_plain(same).identity()


# --- Qwen2.5-VL ---------------------------------------------------------------------------------------------------


def test_logits_of_transformers_own_loading(qwen25: Path, tmp_path: Path) -> None:
    """Old names with tied weights, new names with an output matrix; images of two sizes."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    new = tiny_qwen25(tmp_path / "new", seed=6, new_names=True, tie_word_embeddings=False)
    images = [pictures(1, 56, 84)[0], pictures(1, 112, 140, seed=1)[0]]
    for folder in (qwen25, new):
        backbone = open_plain(folder)
        critic = PlainCritic(backbone, "<image> and <image> {task}")
        ids = torch.tensor([backbone.tokens.ids(critic.spell([0, 1], TASK, dict(enumerate(images))))])
        given = backbone.shape.inputs(ids, images)
        reference = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.inference_mode():
            expected = reference(input_ids=ids, **given).logits
            found = backbone.network(input_ids=ids, **given).logits
        assert expected.std() > 0.3
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_patches_of_qwens_own_processor(qwen25: Path) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    image = pictures(1, 56, 84)[0]
    made = Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=200 * 200)(images=[image], return_tensors="pt")
    ours = open_plain(qwen25).shape.inputs(torch.zeros((1, 4), dtype=torch.long), [image])
    torch.testing.assert_close(ours["pixel_values"], made["pixel_values"], atol=2e-6, rtol=1e-5)
    assert ours["image_grid_thw"].tolist() == made["image_grid_thw"].tolist() == [[1, 4, 6]]


def test_the_prompt_of_qwen25(qwen25: Path) -> None:
    critic = PlainCritic(open_plain(qwen25), "\nlook: <image> {task}\n")
    spelled = critic.spell(["a"], TASK, {"a": pictures(1, 56, 84)[0]})
    image = "<|vision_start|>" + "<|image_pad|>" * 6 + "<|vision_end|>"
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    turn = f"<|im_start|>user\n\nlook: {image} {TASK}\n<|im_end|>\n"
    assert spelled == f"{system}{turn}<|im_start|>assistant\n"
    assert critic.backbone.tokens.ids(spelled).count(ID["<|image_pad|>"]) == 6


def test_prompts_of_different_lengths_keep_their_order(qwen25: Path) -> None:
    backbone = open_plain(qwen25)
    critic = PlainCritic(backbone, "<image> {task}")
    images = {0: pictures(1, 56, 84)[0], 1: pictures(1, 84, 112)[0], 2: pictures(1, 56, 84, seed=2)[0]}
    asked = [(0,), (1,), (2,), (1,)]
    alone = [critic.answers([keys], TASK, images)[0] for keys in asked]
    assert critic.answers(asked, TASK, images) == alone
    assert len(set(alone)) > 1 and alone[1] == alone[3]


@pytest.mark.parametrize(
    ("change", "missing", "unexpected"),
    [
        ({"visual.merger.mlp.0.bias": None}, ["merger.mlp.0.bias"], []),
        ({"model.layers.0.self_attn.q_norm.weight": torch.ones(16)}, [], ["q_norm"]),
        ({"model.norm.weight": torch.ones(31)}, [], ["(31,)"]),
        ({"frame_pool_attn.weight": torch.ones(1, 32)}, [], ["frame_pool_attn"]),
    ],
)
def test_every_tensor_of_qwen25_is_used_once(
    tmp_path: Path, change: dict[str, torch.Tensor | None], missing: list[str], unexpected: list[str]
) -> None:
    change_weights(tiny_qwen25(tmp_path / "m"), change)
    with pytest.raises(WeightsMismatch) as refused:
        open_plain(tmp_path / "m")
    for found, expected in ((refused.value.missing, missing), (refused.value.unexpected, unexpected)):
        assert len(found) == len(expected) and all(part in name for part, name in zip(expected, found, strict=True))


def test_one_weight_under_two_names_is_refused(tmp_path: Path) -> None:
    folder = tiny_qwen25(tmp_path / "m")
    change_weights(folder, {"model.language_model.norm.weight": torch.ones(32)})
    with pytest.raises(BadInput, match="one tensor for each weight"):
        open_plain(folder)
