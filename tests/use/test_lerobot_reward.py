"""What LeRobot asks of a reward, without LeRobot; tests/lerobot has the rest."""

import importlib.util
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.errors import BadInput, BadReward, DemeritWarning
from demerit.models.protocol import LiveFrame, LiveReward
from demerit.use.gym import RewardEnv, Threshold
from demerit.use.lerobot_reward import LeRobotReward, make_step
from fakes.lamp_env import LampEnv, LampModel

torch = pytest.importorskip("torch")
KEY = "observation.images.front"


def answer(reward: LeRobotReward, levels: Sequence[int]) -> list[float]:
    reward.reset()
    frames = [torch.full((1, 3, 4, 4), level) / 255 for level in levels]
    return [reward.predict_reward({KEY: frame}, threshold=0.5) for frame in frames]


@given(
    st.integers(0, 5),
    st.lists(st.integers(-1, 1), min_size=1, max_size=8),
    st.sampled_from([0.6, 0.9, Threshold(0.6, "value", 0.1, None, 9, in_a_row=2)]),
)
def test_it_decides_as_reward_env_on_the_same_frames(start: int, moves: list[int], success: Any) -> None:
    lamp, levels, decided = LampEnv(start=51 * start), [51 * start], list[bool]()
    env = RewardEnv(lamp, LampModel(), "", mode="final", success=success)
    env.reset()
    for move in moves:
        info = env.step(np.array([move]))[-1]
        levels.append(lamp.bright)
        decided.append(info["demerit"]["succeeded"])
        if decided[-1]:
            break
    assert answer(LeRobotReward(LampModel(), "", success), levels)[1:] == decided


def test_a_reset_begins_a_new_episode() -> None:
    reward = LeRobotReward(LampModel(), "", Threshold(0.9, "value", 0.1, None, 9, in_a_row=2))
    assert answer(reward, [255, 255]) == [0.0, 1.0]
    assert answer(reward, [255]) == [0.0]


class JudgedLamp(LampModel):
    """It says itself what succeeds; `facts` are added to what it was given."""

    def __init__(self, **facts: Any) -> None:
        super().__init__()
        self.facts = facts

    def start(self, instruction: str) -> Any:
        live, facts = super().start(instruction), self.facts

        class Judged:
            def step(self, frame: LiveFrame) -> LiveReward:
                value = live.step(frame).value
                return LiveReward(value, given={"succeeds": value > 0.5, **facts})

        return Judged()


def test_without_a_threshold_the_verdict_counts_and_doubts_are_no_success() -> None:
    assert answer(LeRobotReward(JudgedLamp(), ""), [0, 255, 0]) == [0.0, 1.0, 0.0]
    doubtful = LeRobotReward(JudgedLamp(**{"missing cameras": ["wrist"]}), "")
    with pytest.warns(DemeritWarning, match="wrist|camera missing"):
        assert answer(doubtful, [0]) == [0.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        assert answer(doubtful, [255, 255]) == [0.0, 0.0]


def test_a_model_without_any_threshold_is_refused_and_an_unscored_frame_is_no_failure() -> None:
    with pytest.raises(BadInput, match="success"):
        answer(LeRobotReward(LampModel(), ""), [0])
    with pytest.raises(BadReward):
        answer(LeRobotReward(LampModel(nan_at=1), "", 0.5), [0, 0])


@given(st.integers(0, 255), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_the_model_sees_the_pixels_of_the_camera(level: int, dtype: Any) -> None:
    seen: list[Any] = []

    class Watcher(LampModel):
        def start(self, instruction: str) -> Any:
            live = super().start(instruction)

            class Seen:
                def step(self, frame: LiveFrame) -> LiveReward:
                    seen.append(frame)
                    return live.step(frame)

            return Seen()

    image = torch.full((3, 2, 5), level, dtype=torch.uint8)
    image[1] = 255 - level
    LeRobotReward(Watcher(), "", 0.5).predict_reward({KEY: image.to(dtype) / 255, "observation.image": image / 255})
    (frame,) = seen
    assert list(frame) == ["front", "observation.image"]
    exact = image.permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(frame["observation.image"], exact)
    assert np.abs(frame["front"].astype(int) - exact).max() <= (1 if dtype == torch.bfloat16 else 0)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, 3, 4, 4),  # two robots
        torch.zeros(4, 4, 3),
        torch.zeros(1, 3, 0, 4),
        torch.full((1, 3, 4, 4), 255.0),
        torch.full((1, 3, 4, 4), -0.5),
        torch.full((1, 3, 4, 4), float("nan")),
    ],
)
def test_what_is_no_image_of_one_robot_is_refused(tensor: Any) -> None:
    with pytest.raises(BadInput) as refused:
        LeRobotReward(LampModel(), "", 0.5).predict_reward({KEY: tensor})
    assert refused.value.what == KEY


@pytest.mark.skipif(importlib.util.find_spec("lerobot.__version__") is not None, reason="LeRobot is installed here")
def test_without_lerobot_the_step_says_what_is_missing() -> None:
    with pytest.raises(BadInput, match="lerobot"):
        make_step(LeRobotReward(LampModel(), "", 0.5))
