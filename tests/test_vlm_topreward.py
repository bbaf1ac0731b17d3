"""TOPReward on one shared beginning, against a whole forward pass of the library for every beginning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.check import check_model
from demerit.episode import Episode
from demerit.errors import BadInput
from demerit.models.topreward import TOPReward
from demerit.vlm.prefix_reference import PrefixReference
from demerit.vlm.prefixes import encodings_alone, pictures
from demerit.vlm.reference import transformers_network
from demerit.vlm.video import Clip
from tiny_vlm import tiny_checkpoint, tiny_config, tiny_weights

TASK = "pick up the cup and put it on the plate"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("topreward") / "tiny", seed=2, tied=False)


@pytest.fixture(scope="module")
def model(folder: Path) -> TOPReward:
    return TOPReward(path=str(folder), device="cpu")


@pytest.fixture(scope="module")
def straightforward(model: TOPReward) -> PrefixReference:
    weights = tiny_weights(seed=2, tied=False)
    network = transformers_network(tiny_config(tied=False), weights)
    return PrefixReference(model.backbone, model.engine.question, network, weights["lm_head.weight"])


def clip(count: int, height: int = 40, width: int = 70) -> Clip:
    frames = np.random.default_rng(count).integers(0, 256, (count, height, width, 3), dtype=np.uint8)
    return Clip(frames, np.arange(count) * 0.37)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 11])
def test_parity_with_every_beginning_by_itself(model: TOPReward, straightforward: PrefixReference, count: int) -> None:
    ours, theirs = model.engine.likely(clip(count), TASK), straightforward.likely(clip(count), TASK)
    assert ours.shape == (count,)
    assert np.abs(ours - theirs).max() <= 1e-5 * max(1.0, np.abs(theirs).max())
    assert count == 1 or np.ptp(theirs) > 1e-3, "the beginnings must differ to test anything"


@settings(deadline=None)
@given(st.integers(1, 60))
def test_so_many_encodings_as_frames(count: int) -> None:
    assert len(pictures(count)) == len(set(pictures(count))) == count
    assert encodings_alone(count) == sum((length + 1) // 2 for length in range(1, count + 1))


def test_the_tower_sees_each_picture_once(model: TOPReward, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    vision = model.backbone.network.vision
    honest = vision.features

    def counting(patches: Any, rows: int, columns: int) -> Any:
        looked.append(len(patches))
        return honest(patches, rows, columns)

    monkeypatch.setattr(vision, "features", counting)
    model.engine.likely(clip(16), TASK)
    assert sum(looked) == 16
    assert encodings_alone(16) == 72


def test_values_are_raw_and_the_frames_are_said(model: TOPReward) -> None:
    images = np.random.default_rng(0).integers(0, 256, (50, 40, 56, 3), dtype=np.uint8)
    reward = model.score([Episode.from_array(images, TASK)])[0]
    assert len(reward.at) == 16
    assert reward.at[-1] == 49
    assert reward.value.max() < 0
    assert reward.given["frames"] == 16
    assert model.card.comparable
    assert (model.card.low, model.card.high) == (None, 0.0)
    assert model.card.name == "topreward-tiny"


def test_keeps_its_contract(folder: Path) -> None:
    report = check_model(TOPReward(path=str(folder), device="cpu", frames=6))
    assert not report.broken, report.broken


def test_no_frames_is_a_sentence(folder: Path) -> None:
    with pytest.raises(BadInput, match="a number from 1 on"):
        TOPReward(path=str(folder), device="cpu", frames=0)
