"""The TOPReward model: raw values at the frames it looked at."""

from pathlib import Path

import numpy as np
import pytest

from demerit.data.episode import Episode
from demerit.errors import BadInput
from demerit.models.published.topreward import TOPReward
from fakes.tiny_vlm import tiny_checkpoint


def test_values_are_raw_at_sixteen_frames(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "tiny", seed=2, tied=False)
    model = TOPReward(path=str(folder), device="cpu")
    images = np.random.default_rng(0).integers(0, 256, (50, 40, 56, 3), dtype=np.uint8)
    reward = model.score([Episode.from_array(images, "pick up the cup and put it on the plate")])[0]
    assert (len(reward.at), reward.at[-1], reward.given["frames"]) == (16, 49, 16)
    assert reward.value.max() < 0
    assert model.card.comparable
    assert (model.card.low, model.card.high) == (None, 0.0)
    assert model.card.name == "topreward-tiny"
    with pytest.raises(BadInput, match="frames"):
        TOPReward(path=str(folder), device="cpu", frames=0)
