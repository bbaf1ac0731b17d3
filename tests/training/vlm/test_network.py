"""The network under training: its outputs equal those of scoring, and what is frozen stays frozen."""

from typing import Any

import numpy as np
import pytest
import torch

from demerit.models.vlm.network import VLMNetwork, transformers_network
from demerit.models.vlm.prompt import ImageSlot
from demerit.models.vlm.robometer import RobometerEngine, RobometerHead, RobometerProtocol
from demerit.training.prepared import PreparedCorpus
from demerit.training.vlm.config import RobometerTrainConfig
from demerit.training.vlm.fit import make_encoder
from demerit.training.vlm.network import VLMLearner, parameter_groups
from demerit.training.vlm.objectives import ExampleBatch, PairsObjective, TrainingExample
from fakes.tiny_vlm import head_shapes
from fakes.toy_trajectories import WordTokens, tiny_start, vlm_corpus
from fakes.vlm_reference import RobometerReference


def outputs_of(learner: VLMLearner, examples: list[TrainingExample], corpus: PreparedCorpus) -> dict[str, torch.Tensor]:
    cpu = torch.device("cpu")
    images = [image for example in examples for image in example.images]
    encoder = make_encoder(corpus, learner.config, tiny_start(), cpu)
    inputs = encoder.encode(images, encoder.load_pixels(images))
    with torch.no_grad():
        outputs: dict[str, torch.Tensor] = learner.eval()(ExampleBatch.collate(examples, cpu), inputs)
    return outputs


@pytest.mark.parametrize("change", [{}, {"train_vision": True}, {"train_fusion": True}, {"lora": 4}])
def test_training_outputs_equal_those_of_scoring(change: dict[str, Any]) -> None:
    """Against other code: the engine's preference, and transformers' hidden states of the whole prompt."""
    corpus = vlm_corpus((8, 9))
    config = RobometerTrainConfig(frames=4, precision="float32").change(change)
    start = tiny_start()
    objective = PairsObjective(corpus, config, start.tokens, start.shape)
    rng = np.random.default_rng(0)
    samples = [objective.sampler.sample(rng) for _ in range(3)]
    examples = [objective.example(sample) for sample in samples]
    outputs = outputs_of(VLMLearner(start, config), examples, corpus)

    heads = {name: value for name, value in tiny_start().weights.items() if name in head_shapes()}
    backbone = {name: value for name, value in tiny_start().weights.items() if name not in heads}
    tokens: Any = WordTokens()
    engine = RobometerEngine(VLMNetwork(start.shape, backbone), heads, tokens, RobometerProtocol(frames=4))
    reference = RobometerReference(
        start.shape, transformers_network(start.config, backbone), heads, tokens, RobometerProtocol(frames=4)
    )
    for at, sample in enumerate(samples):
        clips = [
            np.stack([corpus.frame(side.row, int(frame)) for frame in side.frames])
            for side in (sample.first, sample.second)
        ]
        found = float(outputs["preference"][at].sigmoid())
        assert found == pytest.approx(engine.compare(*clips, sample.instruction), abs=1e-5)
        assert found == pytest.approx(reference.compare(*clips, sample.instruction), abs=1e-5)
        places = [[ImageSlot(number, 2, 2) for number in range(4)] for _ in clips]
        pieces = RobometerProtocol(frames=4).preference_pieces(sample.instruction, *places)
        with torch.no_grad():
            ids, states = reference._forward([pieces], [clips])
        read = states[0, (ids[0] == tokens.id("<|prog_token|>")).nonzero()[:4, 0]]  # of the first trajectory alone
        for name, shape in (("progress", (4, 10)), ("success", (4, 1))):
            read_out = outputs[name].reshape(3, *shape)[at]
            assert torch.allclose(read_out, RobometerHead.from_weights(name, heads)(read), atol=1e-5), name


def trained_names(**changes: Any) -> set[str]:
    config = RobometerTrainConfig(precision="bfloat16").change(changes)
    return {name for name, _ in VLMLearner(tiny_start(), config).trained_parameters()}


def test_what_is_frozen_stays_frozen() -> None:
    everything = trained_names()
    assert not any(name.startswith("visual.") for name in everything)
    assert "language_model.layers.0.self_attn.q_proj.weight" in everything
    assert any(name.startswith("visual.blocks") for name in trained_names(train_vision=True))
    fusion = {name for name in trained_names(train_fusion=True) if name.startswith("visual.")}
    assert fusion
    assert all("merger" in name for name in fusion)
    adapters = trained_names(lora=4)
    assert {name for name in adapters if "lora_" not in name} == {name for name in everything if "_head" in name}
    assert len([name for name in adapters if "lora_" in name]) == 2 * 2 * 7


def test_norms_and_biases_do_not_decay_and_the_tower_has_its_own_rate() -> None:
    config = RobometerTrainConfig(train_vision=True)
    learner = VLMLearner(tiny_start(), config)
    names = {id(parameter): name for name, parameter in learner.named_parameters()}
    for group in parameter_groups(learner, config):
        for parameter in group["params"]:
            assert group["weight_decay"] == (config.decay if parameter.ndim > 1 else 0.0), names[id(parameter)]
            assert group["lr"] == (config.vision_rate if names[id(parameter)].startswith("visual.") else config.rate)
