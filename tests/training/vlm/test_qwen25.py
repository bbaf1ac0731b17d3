"""Training from Qwen2.5-VL: the network is that of transformers, it learns, and what is written scores the same."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from demerit.data.episode import Episode
from demerit.errors import BadInput
from demerit.models.published.roboreward import RoboReward
from demerit.models.vlm.checkpoint import read_checkpoint
from demerit.models.vlm.network import VLMNetwork, transformers_network
from demerit.models.vlm.prompt import PromptTokenizer, load_prompts
from demerit.models.vlm.robometer import RobometerCheckpoint, RobometerEngine, RobometerProtocol
from demerit.training.vlm.checkpoints import VLMStart, load_start
from demerit.training.vlm.config import RobometerTrainConfig, RoboRewardTrainConfig, VLMTrainConfig
from demerit.training.vlm.fit import VLMProgress, make_encoder, make_objective, train_vlm
from demerit.training.vlm.network import VLMLearner
from demerit.training.vlm.objectives import ExampleBatch
from fakes.tiny_plain import tiny_qwen25
from fakes.tiny_vlm import ROBOMETER_TOKENS, head_shapes, random_weights
from fakes.toy_trajectories import vlm_corpus
from fakes.vlm_reference import RobometerReference

CPU = torch.device("cpu")
SMALL = {"batch": 4, "part": 2, "precision": "float32", "rate": 3e-3, "steps": 6}


def video(count: int = 5, seed: int = 0, size: tuple[int, int] = (112, 140)) -> np.ndarray:
    """Frames with several windows of the tiny tower (2 x 2 tokens each)."""
    return np.random.default_rng(seed).integers(0, 256, (count, *size, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen25(tmp_path_factory.mktemp("qwen25") / "it")


@pytest.mark.parametrize("new_names", [False, True])
def test_the_engine_equals_transformers(tmp_path: Path, new_names: bool) -> None:
    """Windows of the tower, biases and the order of positions, against transformers' forward pass of whole prompts."""
    config = RobometerTrainConfig(frames=4, precision="float32")
    start = load_start(str(tiny_qwen25(tmp_path / "it", new_names=new_names)), config)
    heads = random_weights(head_shapes(32), 3)
    backbone = {name: value for name, value in start.weights.items() if "_head" not in name}
    tokens = PromptTokenizer.read(tmp_path / "it" / "tokenizer.json", ROBOMETER_TOKENS)
    protocol = RobometerProtocol(frames=4)
    engine = RobometerEngine(VLMNetwork(start.shape, backbone), heads, tokens, protocol)
    network = transformers_network(start.config, backbone)
    reference = RobometerReference(start.shape, network, heads, tokens, protocol)
    clips = video(6), video(5, 1)
    found, wanted = (one.dense(clips[0], "push it") for one in (engine, reference))
    assert np.allclose(found.progress, wanted.progress, atol=1e-5)
    assert np.allclose(found.success, wanted.success, atol=1e-5)
    assert engine.compare(*clips, "push it") == pytest.approx(reference.compare(*clips, "push it"), abs=1e-5)
    assert np.ptp(wanted.progress) > 1e-3  # the frames matter


def outputs_of(start: VLMStart, config: VLMTrainConfig) -> dict[str, np.ndarray]:
    """What a network says about the first update's examples, as training computes it."""
    corpus = vlm_corpus((8, 9))
    objective, encoder = make_objective(corpus, config, start), make_encoder(corpus, config, start, CPU)
    examples = objective.draw(0)
    images = [image for example in examples for image in example.images]
    inputs = encoder.encode(images, encoder.load_pixels(images))
    with torch.no_grad():
        outputs = VLMLearner(start, config).eval()(ExampleBatch.collate(examples, CPU), inputs)
    return {name: value.numpy() for name, value in outputs.items()}


@pytest.mark.parametrize("change", [{}, {"train_vision": True}, {"train_fusion": True}])
def test_frozen_and_trained_towers_compute_the_same(folder: Path, change: dict[str, Any]) -> None:
    plain = RobometerTrainConfig(frames=4, precision="float32")
    config = plain.change(change)
    found, wanted = (outputs_of(load_start(str(folder), one), one) for one in (config, plain))
    for name, value in wanted.items():
        assert np.allclose(found[name], value, atol=1e-5), name


@pytest.mark.parametrize("change", [{"lora": 4}, {}, {"train_vision": True}], ids=["lora", "all", "vision"])
def test_a_robometer_is_trained_and_loads_again(folder: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    config = RobometerTrainConfig().change({**SMALL, "frames": 4, "head_dropout": 0.0, "lora_dropout": 0.0, **change})
    told: list[VLMProgress] = []
    model = train_vlm(
        vlm_corpus((8, 9)), tmp_path / "out", config, load_start(str(folder), config), told.append, device="cpu"
    )
    assert told[-1].loss < told[0].loss
    opened = RobometerCheckpoint.open(str(model), device="cpu", dtype="float32")
    assert opened.shape.family == "qwen2_5_vl"
    again = load_start(str(model), config.change({"lora": 0}))
    network = transformers_network(again.config, again.weights)
    heads = {name: again.weights[name] for name in again.weights if "_head" in name}
    reference = RobometerReference(again.shape, network, heads, opened.tokens, opened.protocol)
    found, wanted = (one.dense(video(6), "push it") for one in (opened.engine(), reference))
    assert np.allclose(found.progress, wanted.progress, atol=1e-5)
    before = load_start(str(folder), config).weights
    changed = {name for name in before if not torch.equal(before[name], again.weights[name])}
    assert "language_model.layers.0.self_attn.q_proj.weight" in changed
    assert any(name.startswith("visual.") for name in changed) == config.train_vision


def test_an_adapter_equals_the_merged_model(folder: Path, tmp_path: Path) -> None:
    config = RobometerTrainConfig().change({**SMALL, "frames": 4, "steps": 1})
    corpus = vlm_corpus((8, 9))
    first = train_vlm(corpus, tmp_path / "first", config, load_start(str(folder), config), device="cpu")
    further = config.change({"lora": 4, "steps": 2})
    for save in ("merged", "adapter"):
        train_vlm(corpus, tmp_path / save, further, load_start(str(first), further), device="cpu", save=save)
    one, other = (
        dict(read_checkpoint(str(tmp_path / save / "model")).tensors("cpu", torch.float32))
        for save in ("merged", "adapter")
    )
    assert one.keys() == other.keys()
    assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)
    scored = (RobometerCheckpoint.open(str(tmp_path / save / "model"), device="cpu") for save in ("merged", "adapter"))
    values = [opened.engine().dense(video(6), "push it").progress for opened in scored]
    assert np.allclose(*values, atol=1e-5)


def test_a_roboreward_is_trained_and_grades_as_transformers_does(folder: Path, tmp_path: Path) -> None:
    config = RoboRewardTrainConfig().change(SMALL)
    told: list[VLMProgress] = []
    start = load_start(str(folder), config)
    model = train_vlm(vlm_corpus((5, 6)), tmp_path / "out", config, start, told.append, device="cpu")
    assert told[-1].loss < told[0].loss
    config_json = json.loads((model / "config.json").read_text())
    assert config_json["model_type"] == "qwen2_5_vl" and "num_hidden_layers" in config_json["text_config"]
    grader = RoboReward(path=str(model), device="cpu", trust=0.0)
    frames = video(4)
    episode = Episode.from_array(frames, "push it", id="one", fps=1.0)
    reward = grader.score([episode])[0]
    assert reward.final == pytest.approx(expected_grade(model, frames, "push it"), abs=1e-4)
    assert len(set(load_file(model / "model.safetensors")) & {"lm_head.weight"}) == 0  # tied


def expected_grade(model: Path, frames: np.ndarray, task: str) -> float:
    """The mean grade by one forward pass of transformers' network over the prompt as one text."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    network = Qwen2_5_VLForConditionalGeneration.from_pretrained(model, dtype=torch.float32).eval()
    tokens, prompts = PromptTokenizer.read(model / "tokenizer.json"), load_prompts("roboreward")
    image = f"<|vision_start|>{'<|image_pad|>' * (4 * 5)}<|vision_end|>"
    shown = f"<0.5 seconds>{image}<2.5 seconds>{image}"
    text = f"<|im_start|>user\n{shown}{prompts['prompt'].format(task=task)}<|im_end|>\n<|im_start|>assistant\n"
    ids = torch.tensor([tokens.ids(text + prompts["answer"] + "5")[:-1]])
    # pairs of frames as two moments of one image, which transformers' processors make of videos alone
    mean, deviation = (torch.tensor(part) for part in network_scale())
    pixels = (torch.from_numpy(frames).float() / 255 - mean) / deviation
    patches = pixels.reshape(2, 2, 4, 2, 14, 5, 2, 14, 3).permute(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(160, -1)
    # the engine reads the pairs behind video tokens; their embeddings are replaced, so the positions alone matter
    with torch.no_grad():
        logits = network(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=patches,
            image_grid_thw=torch.tensor([[1, 8, 10]] * 2),
            mm_token_type_ids=(ids == tokens.id("<|image_pad|>")).int(),
        ).logits[0, -1]
    digits = [tokens.ids(prompts["answer"] + str(grade))[-1] for grade in range(1, 6)]
    return float(logits[digits].softmax(-1) @ torch.arange(1.0, 6.0))


def network_scale() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Qwen2.5-VL's own preprocessing, from its image processor's defaults."""
    from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

    return tuple(OPENAI_CLIP_MEAN), tuple(OPENAI_CLIP_STD)


def test_a_qwen25_of_others_is_not_scored_with(folder: Path) -> None:
    with pytest.raises(BadInput, match="demerit train"):
        RoboReward(path=str(folder), device="cpu")
