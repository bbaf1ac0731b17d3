"""Configurations of vision-language training."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demerit.errors import BadInput, DemeritError
from demerit.training.vlm.config import RobometerTrainConfig, RoboRewardTrainConfig, default_start, load_vlm_config
from demerit.training.vlm.fit import learning_rate_factor


def test_the_shipped_configurations_are_the_defaults_and_the_public_numbers() -> None:
    robometer, four = load_vlm_config("robometer"), load_vlm_config("roboreward")
    assert robometer == RobometerTrainConfig()
    assert four == RoboRewardTrainConfig()
    assert load_vlm_config("roboreward", "roboreward_8b") == RoboRewardTrainConfig(rate=5e-6)
    assert (robometer.rate, robometer.warm_up, robometer.decay, robometer.clip) == (2e-5, 0.1, 0.01, 10.0)
    assert default_start("robometer") == default_start("roboreward") == "Qwen/Qwen3-VL-4B-Instruct"
    assert default_start("roboreward", Path("roboreward_8b")) == "Qwen/Qwen3-VL-8B-Instruct"
    assert (four.rate, four.epochs, four.batch, four.warm_up, four.decay, four.clip) == (3e-6, 3, 32, 0.05, 0.05, 1.0)
    assert (four.train_vision, four.train_fusion) == (False, True)
    adapters = robometer.change({"lora": 32})
    assert adapters.lora_alpha / adapters.lora == 2


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"steps": 0}, "epochs"),
        ({"batch": 6}, "part"),
        ({"rate": "fast"}, "rate"),
        ({"rate": 0}, "rate"),
        ({"clip": float("inf")}, "finite"),
        ({"seed": -1}, "seed"),
        ({"frames": 1}, "frames"),
        ({"precision": "float16"}, "bfloat16"),
        ({"strategies": {"rewnd": 1}}, "rewind"),
        ({"strategies": {"rewind": 0}}, "strategies"),
        ({"train_vision": "no"}, "train_vision"),
        ({"fewest_frames": 2}, "fewest_frames"),
        ({"preference": 0, "progress": 0, "success": 0}, "loss"),
        ({"stesp": 2}, "steps"),
    ],
)
def test_bad_numbers_are_refused(change: dict[str, Any], found: str) -> None:
    with pytest.raises(DemeritError, match=found):
        RobometerTrainConfig().change(change)


def test_the_fewest_frames_depend_on_the_model() -> None:
    assert RoboRewardTrainConfig(fewest_frames=1, most_frames=2).most_frames == 2  # a rewind needs three, a grade one
    for change in ({"fewest_frames": 0}, {"most_frames": 1}):
        with pytest.raises(BadInput, match=next(iter(change))):
            RoboRewardTrainConfig().change(change)


def test_a_file_changes_some_numbers(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("rate: 1e-4\nlora: 8\n")
    mine = load_vlm_config("robometer", tmp_path / "mine.yaml")
    assert (mine.rate, mine.lora) == (1e-4, 8)
    shares = json.dumps(mine.change({"strategies": {"rewind": 1}}).as_dict()["strategies"])
    assert shares == '{"rewind": 1.0}'  # equal to 1.0: the identity of a run is made from this text
    with pytest.raises(BadInput, match="roboreward_8b"):
        load_vlm_config("roboreward", tmp_path / "absent.yaml")


def test_the_rate_warms_up_and_falls_along_half_a_cosine() -> None:
    rates = [learning_rate_factor(step, 100, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx(np.arange(1, 11) / 10)
    assert rates[10:] == pytest.approx(0.5 * (1 + np.cos(np.pi * np.arange(90) / 90)))
    assert learning_rate_factor(0, 5, 0.0) == 1.0
