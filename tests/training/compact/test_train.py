"""Training and export from end to end, and what it costs those who do not train."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import demerit
from demerit.cli import app
from demerit.data.episode import Episode
from demerit.data.seen import SeenEpisodes
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.models.compact.engine import Engine
from demerit.models.compact.text import TextEncoder
from demerit.training.compact.network import CompactNetwork, CompactShape, progress
from demerit.training.compact.train import export_compact, list_credits, shipped_words, train_compact
from fakes.tiny_network import make_network
from fakes.toy_corpus import INSTRUCTIONS, SIZE, compact_corpus, draw_bar, small_config

ROOT = Path(demerit.__file__).parent


@pytest.fixture(scope="module")
def words() -> TextEncoder:
    return TextEncoder.load(shipped_words())


def test_the_exported_network_equals_the_trained_one(tmp_path: Path, words: TextEncoder) -> None:
    torch.manual_seed(3)
    network = CompactNetwork(CompactShape(size=SIZE)).eval()
    for module in network.modules():  # initial statistics and FiLM weights would hide mistakes
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    torch.nn.init.normal_(network.head.film.weight, std=0.1)
    engine = Engine.load(export_compact(network, tmp_path / "net", shipped_words(), "r1", ["nothing"], SeenEpisodes()))
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


def test_credits_name_the_datasets() -> None:
    sources = {"press": "droid", "lift": "mine"}
    rows = [replace(row, source=sources.get(row.task, "metaworld")) for row in compact_corpus().rows]
    credits = list_credits(rows)
    assert (
        credits[0].startswith("DROID (CC-BY-4.0)") and credits[1].startswith("Meta-World") and credits[2:] == ["mine"]
    )


def test_trained_networks_have_names_of_their_own(tmp_path: Path) -> None:
    folders = [make_network(tmp_path / name / "network") for name in ("mine", "other", "default")]
    assert [load_model(str(folder)).card.name for folder in folders] == ["mine", "other", "default-local"]


SMALL = ["--set", "steps=1", "--set", "size=64", "--set", "groups=1", "--set", "clips=2", "--set", "frames=4"]


def run_command(*options: Any) -> Any:
    return CliRunner().invoke(app, ["train", "compact", *map(str, options)])


@pytest.mark.slow
def test_the_command_makes_a_model_and_prepares_once(tmp_path: Path) -> None:
    sample = ROOT / "assets" / "sample"
    common = ["-o", tmp_path / "out", *SMALL, "--device", "cpu", "--workers", 0]
    prepared = run_command(*common, "--data", f"sample={sample}", "--prepare-only")
    assert prepared.exit_code == 0, prepared.output
    frames = tmp_path / "out" / "corpus" / "frames.raw"
    before = frames.stat().st_mtime_ns
    assert run_command(*common, "--data", f"sample={sample}").exit_code == 0
    done = run_command(*common, "--corpus", frames.parent)
    assert "--model" in done.output
    assert frames.stat().st_mtime_ns == before
    model = load_model(str(tmp_path / "out" / "network"))
    assert model.card.name == "out"
    images = np.stack([draw_bar(done) for done in (0, 0.5, 1)])
    reward = model.score([Episode.from_array(images, INSTRUCTIONS["press"])])[0]
    assert reward.value.shape == (3,) and np.isfinite(reward.value).all()
    for options, found in (
        (["--data", "sample"], "NAME=DATASET"),
        ([], "--corpus"),
        (["--data", f"other={sample}", "--corpus", frames.parent], "parts"),
        (["--data", "a=nowhere", "--device", "gpu"], "gpu"),  # before the dataset is opened
        (["--data", "a=nowhere", "--imagenet", tmp_path / "absent"], "EfficientNet"),
    ):
        refused = run_command("-o", tmp_path / "elsewhere", *SMALL, "--workers", 0, *options)
        assert refused.exit_code == 1
        assert found in refused.output
    assert not (tmp_path / "elsewhere").exists()


SCORING = """
import numpy as np
from demerit import Episode, load_model
load_model("default").score([Episode.from_array(np.zeros((3, 32, 32, 3), np.uint8), "press the button")])
"""
HELP = """
from demerit.cli import app
app(["train", "compact", "--help"], standalone_mode=False)
app(["train", "robometer", "--help"], standalone_mode=False)
"""


@pytest.mark.parametrize("code", [HELP, SCORING], ids=["help", "scoring"])
def test_only_training_loads_torch(code: str) -> None:
    check = f"import sys\n{code}\nassert 'torch' not in sys.modules and 'onnx' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)


def test_without_torch_the_extra_is_named_first(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from demerit.cli import main; main()"
    command = [sys.executable, "-c", code, "train", "compact", "-o", str(tmp_path / "out"), "--data", "a=nowhere"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "demerit[train]" in run.stderr
    assert not (tmp_path / "out").exists()
