"""What a run starts with and what comes out: models that load like published ones."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from demerit.data.splits import SEEN, SeenEpisodes
from demerit.errors import BadInput, WriteError
from demerit.models.vlm.backbone import Backbone
from demerit.models.vlm.checkpoint import read_checkpoint
from demerit.models.vlm.robometer import RobometerCheckpoint
from demerit.training.prepared import PreparedCorpus
from demerit.training.vlm import checkpoints
from demerit.training.vlm.checkpoints import export_vlm, load_start
from demerit.training.vlm.config import RobometerTrainConfig, RoboRewardTrainConfig, VLMTrainConfig
from demerit.training.vlm.fit import VLMProgress, train_vlm
from fakes.tiny_vlm import tiny_checkpoint
from fakes.toy_trajectories import tiny_start, vlm_corpus

SMALL = {"batch": 4, "part": 2, "frames": 4, "precision": "float32", "rate": 1e-2, "lora": 4, "steps": 2}


def small_config(**changes: Any) -> RobometerTrainConfig:
    return RobometerTrainConfig().change({**SMALL, **changes})


def train(out: Path, config: VLMTrainConfig, start: Path, save: str = "merged") -> Path:
    return train_vlm(vlm_corpus((8, 9)), out, config, load_start(str(start), config), device="cpu", save=save)


def test_a_plain_model_becomes_a_robometer_that_loads(tmp_path: Path) -> None:
    start, config = tiny_checkpoint(tmp_path / "qwen"), small_config(steps=1)
    model = train(tmp_path / "out", config, start)
    opened = RobometerCheckpoint.open(str(model), device="cpu", dtype="float32")
    assert opened.protocol.frames == 4
    assert opened.shape.text.vocabulary == 351
    corpus = vlm_corpus((8,))
    video = np.stack([corpus.frame(0, frame) for frame in range(8)])
    assert np.isfinite(opened.engine().dense(video, "press the red button").progress).all()
    after = {name.removeprefix("model."): value for name, value in load_file(model / "model.safetensors").items()}
    before = load_start(str(start), config).weights
    table = "language_model.embed_tokens.weight"
    assert torch.equal(after[table][:346], before[table][:346])
    assert not torch.equal(after[table][346:], before[table][346:])  # new tokens are trained though the table is frozen
    adapted = "language_model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(after[adapted], before[adapted])
    (tmp_path / "mine" / "model").mkdir(parents=True)
    with pytest.raises(BadInput, match="another folder"):
        train(tmp_path / "mine", config, start)
    with pytest.raises(BadInput, match="new tokens"):
        train(tmp_path / "no", config, start, save="adapter")


def test_an_adapter_equals_the_merged_model(tmp_path: Path) -> None:
    start = tiny_checkpoint(tmp_path / "robometer", "robometer", frames=4)
    for save in ("merged", "adapter"):
        train(tmp_path / save, small_config(), start, save)
    merged, alone = (read_checkpoint(str(tmp_path / save / "model")) for save in ("merged", "adapter"))
    assert alone.adapters
    assert alone.facts is not None
    one, other = (dict(checkpoint.tensors("cpu", torch.float32)) for checkpoint in (merged, alone))
    assert one.keys() == other.keys()
    assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)
    head = "progress_head.0.weight"
    assert not torch.equal(other[head], load_start(str(start), small_config()).weights[head])
    with pytest.raises(BadInput, match="an adapter"):  # an adapter cannot be put on an adapter
        train(tmp_path / "further", small_config(), tmp_path / "adapter" / "model", save="adapter")
    assert not (tmp_path / "further").exists()
    with pytest.raises(BadInput, match="lora"):
        train(tmp_path / "x", small_config(lora=0), start, save="adapter")
    with pytest.raises(BadInput, match="10 bins and 4 frames"):
        load_start(str(start), small_config(frames=8))


def test_grades_are_learned_and_the_best_weights_exported(tmp_path: Path) -> None:
    start = tiny_checkpoint(tmp_path / "qwen", text={"num_hidden_layers": 3})
    corpus = vlm_corpus((5, 6))
    rows = [replace(row, split="held-out") if row.frames == 6 else row for row in corpus.rows]
    changes = {"batch": 4, "part": 2, "precision": "float32", "rate": 2e-3, "steps": 6, "validate_every": 2}
    config = RoboRewardTrainConfig().change(changes)
    told: list[VLMProgress] = []
    begun = load_start(str(start), config)
    graded = PreparedCorpus(tuple(rows), corpus.pixels)
    model = train_vlm(graded, tmp_path / "out", config, begun, told.append, device="cpu")
    errors = {progress.step: progress.held_out_error for progress in told if progress.held_out_error is not None}
    assert sorted(errors) == [2, 4, 6]
    assert told[-1].loss < 0.3 * told[0].loss
    assert (model / SEEN).is_file()
    best = json.loads((model / "training.json").read_text())["best"]
    assert best["held-out error"] == min(errors.values()) == errors[best["update"]]
    exported = dict(Backbone.open(str(model), device="cpu", dtype="float32").checkpoint.tensors("cpu", torch.float32))
    for name, value in load_file(tmp_path / "out" / "run" / "best" / "trained.safetensors").items():
        assert torch.equal(exported[name], value)
    before = load_start(str(start), config).weights
    assert all(torch.equal(exported[name], before[name]) for name in exported if name.startswith("visual.blocks"))
    assert not torch.equal(exported["visual.merger.linear_fc1.weight"], before["visual.merger.linear_fc1.weight"])
    with pytest.raises(BadInput, match="Robometer"):
        load_start(str(tiny_checkpoint(tmp_path / "r", "robometer")), config)


def test_large_models_are_written_in_several_files(tmp_path: Path, monkeypatch: Any) -> None:
    start = tiny_start()
    whole = export_vlm({}, start, small_config(), tmp_path / "whole", {}, SeenEpisodes(), merged=True)
    monkeypatch.setattr(checkpoints, "SHARD", 200_000)
    split = export_vlm({}, start, small_config(), tmp_path / "split", {}, SeenEpisodes(), merged=True)
    index = json.loads((split / "model.safetensors.index.json").read_text())["weight_map"]
    expected = load_file(whole / "model.safetensors")
    assert index.keys() == expected.keys()
    assert len(set(index.values())) > 1
    found = {name: value for file in set(index.values()) for name, value in load_file(split / file).items()}
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("merged", [True, False])
def test_a_full_disk_leaves_nothing(tmp_path: Path, merged: bool, monkeypatch: Any) -> None:
    heads = {"progress_head.0.weight": torch.zeros(32, 64)}

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "save_file" if not merged else "save_torch_state_dict", fail)
    with pytest.raises(WriteError, match="No space"):
        export_vlm(heads, tiny_start(), small_config(), tmp_path / "full", {}, SeenEpisodes(), merged=merged)
    assert not any(tmp_path.iterdir())
