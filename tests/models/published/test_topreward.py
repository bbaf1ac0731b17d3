"""The TOPReward model: raw values at the frames it looked at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from demerit.data.episode import Episode
from demerit.errors import BadInput
from demerit.models.check import check_model
from demerit.models.published.scoring import NON_FINITE
from demerit.models.published.topreward import TOPReward
from demerit.models.vlm.network import VLMNetwork
from fakes.tiny_vlm import tiny_checkpoint

TASK = "pick up the cup and put it on the plate"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("topreward") / "tiny", seed=2, tied=False)


@pytest.fixture(scope="module")
def model(folder: Path) -> TOPReward:
    return TOPReward(path=str(folder), device="cpu")


def episode(count: int) -> Episode:
    images = np.random.default_rng(0).integers(0, 256, (count, 40, 56, 3), dtype=np.uint8)
    return Episode.from_array(images, TASK)


def test_values_are_raw_at_sixteen_frames(model: TOPReward) -> None:
    reward = model.score([episode(50)])[0]
    assert (len(reward.at), reward.at[-1], reward.given["frames"]) == (16, 49, 16)
    assert reward.value.max() < 0
    assert model.card.comparable
    assert (model.card.low, model.card.high) == (None, 0.0)
    assert model.card.name == "topreward-tiny"


def test_the_contract_holds(folder: Path) -> None:
    report = check_model(TOPReward(path=str(folder), device="cpu", frames=6))
    assert not report.broken, report.broken


def test_running_out_of_memory_leaves_the_episode_unscored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(VLMNetwork, "encode", full)
    reward = TOPReward(path=str(folder), device="cpu").score([episode(5)])[0]
    assert "Tried to allocate 2.00 GiB" in reward.why_missing


def test_a_nan_network_is_unscored(tmp_path: Path) -> None:
    nothing = {"model.language_model.norm.weight": torch.full((64,), float("nan"))}
    reward = TOPReward(path=str(tiny_checkpoint(tmp_path / "it", extra=nothing)), device="cpu").score([episode(5)])[0]
    assert (reward.scored, reward.why_missing) == (False, NON_FINITE)


def test_zero_frames_are_refused(folder: Path) -> None:
    with pytest.raises(BadInput, match="frames"):
        TOPReward(path=str(folder), device="cpu", frames=0)
