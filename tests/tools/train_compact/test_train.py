"""Training and export from end to end, and what it costs those who do not train."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import demerit
from demerit.data.episode import Episode
from demerit.data.splits import SeenEpisodes
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.models.compact.engine import Engine, TextEncoder
from fakes.tiny_network import make_network
from fakes.toy_corpus import INSTRUCTIONS, SIZE, compact_corpus, draw_bar, small_config
from train_compact.__main__ import main
from train_compact.network import CompactNetwork, CompactShape, progress
from train_compact.train import SHIPPED_WORDS, export_compact, train_compact

ROOT = Path(demerit.__file__).parent


@pytest.fixture(scope="module")
def words() -> TextEncoder:
    return TextEncoder.load(SHIPPED_WORDS)


def test_the_exported_network_equals_the_trained_one(tmp_path: Path, words: TextEncoder) -> None:
    torch.manual_seed(3)
    network = CompactNetwork(CompactShape(size=SIZE)).eval()
    for module in network.modules():  # initial statistics and FiLM weights would hide mistakes
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    torch.nn.init.normal_(network.head.film.weight, std=0.1)
    engine = Engine.load(export_compact(network, tmp_path / "net", SHIPPED_WORDS, "r1", ["nothing"], SeenEpisodes()))
    images = np.stack([draw_bar(done) for done in np.linspace(0, 1, 11)])
    features = engine.features(images, images[0])
    pixels = (torch.from_numpy(images).permute(0, 3, 1, 2).float() - 127) / 128
    with torch.no_grad():
        vector, middle = network.tower.features_and_map(pixels, pixels[:1].expand_as(pixels))
        np.testing.assert_allclose(features, torch.cat([vector, middle], dim=1).numpy(), atol=1e-4)
        for instruction in ("press the button", ""):
            followed = engine.follow(features, instruction)
            meaning = words.vector(instruction)
            given_ = torch.zeros(1, 192) if meaning is None else torch.from_numpy(meaning)[None]
            instructed = torch.tensor([[float(meaning is not None)]])
            answer = network.head(vector[None], given_, instructed, torch.zeros(1, 128))
            np.testing.assert_allclose(followed.progress, progress(answer.bins)[0].numpy(), atol=1e-4)
            np.testing.assert_allclose(followed.success, answer.success.sigmoid()[0].numpy(), atol=1e-4)
            np.testing.assert_allclose(followed.rank, answer.rank[0].numpy(), atol=1e-4)
            np.testing.assert_allclose(followed.hidden, answer.hidden[0].numpy(), atol=1e-4)
    assert next(network.parameters()).requires_grad


def test_a_size_that_cannot_be_exported_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="64"):
        train_compact(compact_corpus(), tmp_path, small_config(size=96))
    assert not any(tmp_path.iterdir())
    with pytest.raises(BadInput, match="64 pixels"):
        train_compact(compact_corpus(), tmp_path, small_config(size=128))


def test_trained_networks_have_names_of_their_own(tmp_path: Path) -> None:
    folders = [make_network(tmp_path / name / "network") for name in ("mine", "other", "default")]
    assert [load_model(str(folder)).card.name for folder in folders] == ["mine", "other", "default-local"]


SMALL = ["--set", "steps=1", "--set", "size=64", "--set", "groups=1", "--set", "clips=2", "--set", "frames=4"]


def run_command(*options: Any) -> int:
    return main(list(map(str, options)))


@pytest.mark.slow
def test_the_command_makes_a_model_and_prepares_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = ROOT / "assets" / "sample"
    common = ["-o", tmp_path / "out", *SMALL, "--device", "cpu", "--workers", 0]
    assert run_command(*common, "--data", f"sample={sample}", "--prepare-only") == 0
    frames = tmp_path / "out" / "corpus" / "frames.raw"
    before = frames.stat().st_mtime_ns
    assert run_command(*common, "--data", f"sample={sample}") == run_command(*common, "--prepared", frames.parent) == 0
    assert "--model" in capsys.readouterr().out
    assert frames.stat().st_mtime_ns == before
    model = load_model(str(tmp_path / "out" / "network"))
    assert model.card.name == "out"
    images = np.stack([draw_bar(done) for done in (0, 0.5, 1)])
    reward = model.score([Episode.from_array(images, INSTRUCTIONS["press"])])[0]
    assert reward.value.shape == (3,) and np.isfinite(reward.value).all()
    for options, words in (
        (["--data", "sample"], "NAME=DATASET"),
        ([], "--prepared"),
        (["--data", f"other={sample}", "--prepared", frames.parent], "parts"),
        (["--data", "a=nowhere", "--device", "gpu"], "gpu"),  # before the dataset is opened
        (["--data", "a=nowhere", "--imagenet", tmp_path / "absent"], "EfficientNet"),
    ):
        assert run_command("-o", tmp_path / "elsewhere", *SMALL, "--workers", 0, *options) == 1
        assert words in capsys.readouterr().err
    assert not (tmp_path / "elsewhere").exists()
