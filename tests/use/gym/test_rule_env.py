"""The safety gate: a broken rule ends an episode."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from demerit.errors import BadInput, BadReward
from demerit.models.rule import Rule, RuleConfig
from demerit.use.gym import RewardEnv, RuleEnv


class ForceEnv(gymnasium.Env[Any, Any]):
    """The action is the force of the next step; every step is worth 1."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (1,))
    action_space = gymnasium.spaces.Box(-1e9, 1e9, (1,))
    render_mode = "rgb_array"

    def __init__(self, first: float = 0.0) -> None:
        self.first = first

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return np.array([0.0]), {"force": self.first}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.array([0.0]), 1.0, False, False, {"force": float(action)}

    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)


def guard(env: gymnasium.Env[Any, Any], formula: str = "never(force > 20 N)", **options: Any) -> RuleEnv:
    return RuleEnv(env, Rule(RuleConfig(formula)), lambda observation, info: {"force": info["force"]}, **options)


def test_a_broken_rule_terminates_with_the_given_reward() -> None:
    env = guard(ForceEnv(), reward=-5.0)
    _, info = env.reset()
    assert info["demerit_rule"] == {"robustness": 20.0, "broken": False}
    _, reward, terminated, _, info = env.step(15.0)
    assert (reward, terminated, info["demerit_rule"]) == (1.0, False, {"robustness": 5.0, "broken": False})
    _, reward, terminated, _, info = env.step(25.0)
    assert (reward, terminated, info["demerit_rule"]) == (-5.0, True, {"robustness": -5.0, "broken": True})
    assert env.reset()[1]["demerit_rule"]["robustness"] == 20.0


def test_it_stands_around_an_environment_with_learned_rewards() -> None:
    env = guard(RewardEnv(ForceEnv(), "constant:0.25", "push"))
    env.reset()
    assert env.step(1.0)[1:3] == (0.25, False)
    assert env.step(99.0)[1:3] == (0.0, True)


def test_windows_count_the_seconds_of_steps() -> None:
    env = guard(ForceEnv(), "never[0,0.25](force > 20 N)", step_seconds=0.1)
    env.reset()
    assert [env.step(force)[2] for force in (1.0, 1.0, 99.0)] == [False, False, False]  # 0.3 s is after the window
    env.reset()
    assert env.step(99.0)[2]


def test_a_goal_a_missing_number_and_no_reset_are_refused() -> None:
    with pytest.raises(BadInput):
        guard(ForceEnv(), "eventually(force > 20 N)").reset()
    with pytest.raises(BadReward):
        guard(ForceEnv(np.nan)).reset()
    with pytest.raises(BadInput):
        guard(ForceEnv()).step(1.0)
