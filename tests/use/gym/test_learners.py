"""stable-baselines3 and loops in the style of CleanRL take the wrappers as they are."""

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import FilterObservation, FlattenObservation, TimeLimit

from demerit.use.gym import RewardEnv, RewardVectorEnv
from fakes.lamp_env import LampEnv, LampModel


def make_env(limit: int = 6) -> Any:
    env = FlattenObservation(FilterObservation(TimeLimit(LampEnv(), limit), ["level"]))
    return RewardEnv(env, LampModel(), "light it", success=0.7, mode="potential")


def test_a_vector_loop_sees_episodes_end_and_start() -> None:
    lamps = SyncVectorEnv([lambda: TimeLimit(LampEnv(), 6)] * 2)
    envs = RewardVectorEnv(lamps, LampModel(), "light it", success=0.7, mode="final")
    observations, _ = envs.reset(seed=0)
    rng, lengths, length = np.random.default_rng(0), [], np.zeros(2, int)
    for _ in range(60):
        observations, rewards, terminated, truncated, _ = envs.step(rng.uniform(0, 1, (2, 1)).astype(np.float32))
        assert np.array_equal(rewards[length < 0], np.zeros((length < 0).sum()))  # the step of a reset
        length += 1
        done = terminated | truncated
        assert (observations["level"][terminated] > 0.65).all()
        lengths += length[done].tolist()
        length[done] = -1
    assert len(lengths) > 10 and max(lengths) <= 6


@pytest.mark.slow
@pytest.mark.parametrize("processes", [False, True])
def test_sac_learns_to_light_the_lamp_and_bootstraps_at_time_limits_only(processes: bool) -> None:
    from stable_baselines3 import SAC
    from stable_baselines3.common.env_checker import check_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    check_env(make_env())
    kind = SubprocVecEnv if processes else DummyVecEnv
    envs = kind([make_env, make_env])
    small = {"net_arch": [32]}
    learner = SAC("MlpPolicy", envs, seed=0, gradient_steps=-1, learning_rate=3e-3, ent_coef=0.01, policy_kwargs=small)
    learner.learn(400)
    buffer, count = learner.replay_buffer, 200
    assert buffer is not None
    dones, timeouts = buffer.dones[:count] == 1, buffer.timeouts[:count] == 1  # type: ignore[attr-defined]
    bright = buffer.next_observations[:count, :, 0]  # type: ignore[attr-defined]
    assert (dones & timeouts).any() and (dones & ~timeouts).any()
    # ended as terminated: bright; at a time limit: not. The next observation is the last one, not that of the reset.
    assert (bright[dones & ~timeouts] > 0.69).all() and (bright[timeouts] < 0.71).all()
    sampled = buffer.sample(500)
    is_bright = sampled.next_observations[:, 0] > 0.71
    assert bool((sampled.dones[~is_bright & (sampled.next_observations[:, 0] < 0.69)] == 0).all())
    assert all(play(learner))
    envs.close()


def play(learner: Any) -> list[bool]:
    """Return whether episodes of the learned policy end with success."""
    ends, env = [], make_env()
    for seed in range(3):
        (observation, _), is_over = env.reset(seed=seed), False
        while not is_over:
            action, _ = learner.predict(observation, deterministic=True)
            observation, _, terminated, truncated, _ = env.step(action)
            is_over = terminated or truncated
        ends.append(terminated)
    return ends
