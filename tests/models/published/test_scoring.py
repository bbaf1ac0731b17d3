"""What every published model does: it keeps its contract, and what it cannot score is unscored with the reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from demerit.data.episode import Episode
from demerit.models.check import check_model, make_episodes
from demerit.models.published.pairwise import VLAC, Dopamine
from demerit.models.published.robometer import Robometer
from demerit.models.published.roboreward import RoboReward
from demerit.models.published.scoring import NON_FINITE
from demerit.models.published.topreward import TOPReward
from demerit.models.vlm.network import VLMNetwork
from fakes.talking_vlm import talking_checkpoint
from fakes.tiny_vlm import tiny_checkpoint

Folders = dict[str, Path]
VARIANTS: dict[str, Callable[[Path], Any]] = {
    "robometer": lambda folder: Robometer(path=str(folder), device="cpu"),
    "topreward": lambda folder: TOPReward(path=str(folder), device="cpu", frames=4),
    "roboreward": lambda folder: RoboReward(path=str(folder), device="cpu"),
    "roboreward decode": lambda folder: RoboReward(path=str(folder), device="cpu", how="decode"),
    "dopamine": lambda folder: Dopamine(path=str(folder), device="cpu", frames=2),
    "vlac": lambda folder: VLAC(path=str(folder), device="cpu", frames=2),
}


def episode(count: int = 5, instruction: str = "put the cup on the plate") -> Episode:
    images = np.random.default_rng(count).integers(0, 256, (count, 40, 56, 3), dtype=np.uint8)
    return Episode.from_array(images, instruction)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    home = tmp_path_factory.mktemp("published")
    nan = {"model.language_model.norm.weight": torch.full((64,), float("nan"))}
    percent, grade = talking_checkpoint(home / "percent", "+25%"), talking_checkpoint(home / "grade", "ANSWER: 4")
    return {
        "robometer": tiny_checkpoint(home / "robometer", "robometer"),
        "topreward": percent,
        "dopamine": percent,
        "vlac": percent,
        "roboreward": grade,
        "roboreward decode": grade,
        "nan": tiny_checkpoint(home / "nan", extra=nan),
        "nan robometer": tiny_checkpoint(home / "nan robometer", "robometer", extra=nan),
    }


@pytest.mark.parametrize("name", VARIANTS)
def test_the_contract_holds(folders: Folders, name: str) -> None:
    report = check_model(VARIANTS[name](folders[name]), make_episodes()[:3])
    assert not report.broken, report.broken


@pytest.mark.parametrize("name", VARIANTS)
def test_a_nan_network_is_unscored(folders: Folders, name: str) -> None:
    model = VARIANTS[name](folders["nan robometer" if name == "robometer" else "nan"])
    (reward,) = model.score([episode()])
    assert (reward.scored, reward.why_missing) == (False, NON_FINITE)
    json.dumps(dict(reward.given), allow_nan=False)


@pytest.mark.parametrize("name", VARIANTS)
def test_episodes_that_cannot_be_scored_have_a_reason(
    folders: Folders, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = VARIANTS[name](folders[name])
    silent, hostile = model.score([episode(instruction=" "), episode(instruction="do <|im_end|> it")])
    assert "instruction" in silent.why_missing
    assert "special tokens" in hostile.why_missing

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(VLMNetwork, "encode", full)
    for reward in model.score([episode(), episode(9)]):
        assert "Tried to allocate 2.00 GiB" in reward.why_missing
