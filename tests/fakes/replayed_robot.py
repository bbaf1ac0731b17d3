"""A robot that replays recorded episodes, and a person at its gamepad, as LeRobot's HIL-SERL loop sees them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np

from demerit.data.frames import Images

MOTORS = ("shoulder", "elbow", "gripper")
FPS = 200
"""a fast robot, so that tests do not wait for it; LeRobot's video encoder takes at most 240"""


class ReplayedRobot(gymnasium.Env[Any, Any]):
    """Its camera `front` shows the frames of one episode after the other; actions do nothing."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, episodes: Sequence[Images]) -> None:
        self.episodes, self.place, self.t = episodes, -1, 0
        self.robot = SimpleNamespace(bus=SimpleNamespace(motors=dict.fromkeys(MOTORS)))
        self.action_space = gymnasium.spaces.Box(-1, 1, (len(MOTORS),), np.float32)
        self.observation_space = gymnasium.spaces.Dict({})

    @property
    def is_at_end(self) -> bool:
        """Whether the newest frame is the last but one, so that the next step ends the episode."""
        return self.t == len(self.episodes[self.place]) - 2

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.place, self.t = (self.place + 1) % len(self.episodes), 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        truncated = self.is_at_end
        self.t += 1
        return self._observe(), 0.0, False, truncated, {}

    def render(self) -> Any:
        return self.episodes[self.place][self.t]

    def get_raw_joint_positions(self) -> dict[str, float]:
        return dict.fromkeys(MOTORS, 0.0)

    def _observe(self) -> dict[str, Any]:
        return {"agent_pos": np.zeros(len(MOTORS), np.float32), "pixels": {"front": self.render()}}


class Gamepad:
    """A person who never moves the robot, and presses the success button when a function says so."""

    action_features = {"dtype": "float32", "shape": (4,), "names": None}  # noqa: RUF012

    def __init__(self, presses: Callable[[], bool] = lambda: False) -> None:
        self.presses = presses

    def get_action(self) -> Any:
        return np.zeros(4, np.float32)

    def get_teleop_events(self) -> dict[Any, bool]:
        from lerobot.teleoperators.utils import TeleopEvents

        return {TeleopEvents.SUCCESS: self.presses(), TeleopEvents.IS_INTERVENTION: False}


def configure_robot(size: tuple[int, int], classifier: str | None = None, terminate_on_success: bool = True) -> Any:
    """Return LeRobot's configuration of a real robot with one camera."""
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.envs.configs import (
        HILSerlProcessorConfig,
        HILSerlRobotEnvConfig,
        ResetConfig,
        RewardClassifierConfig,
    )

    features = {
        "observation.images.front": PolicyFeature(FeatureType.VISUAL, (3, *size)),
        "observation.state": PolicyFeature(FeatureType.STATE, (len(MOTORS),)),
        "action": PolicyFeature(FeatureType.ACTION, (4,)),
    }
    processor = HILSerlProcessorConfig(
        gripper=None,
        reset=ResetConfig(control_time_s=10, terminate_on_success=terminate_on_success),
        reward_classifier=RewardClassifierConfig(classifier, success_reward=2.0),
    )
    names = {name: name for name in features}
    return HILSerlRobotEnvConfig(fps=FPS, features=features, features_map=names, processor=processor)


def record_episodes(episodes: Sequence[Images], succeeded: Sequence[bool], task: str, root: Path) -> None:
    """Let LeRobot's own loop record the episodes; the person presses success at the end of those that succeeded."""
    from lerobot.rl import gym_manipulator as loop

    robot, config = ReplayedRobot(episodes), configure_robot(episodes[0].shape[1:3])
    gamepad = Gamepad(lambda: robot.is_at_end and succeeded[robot.place])
    dataset = loop.DatasetConfig("local/recorded", task, str(root), len(episodes))
    processors = loop.make_processors(robot, gamepad, config)
    whole = loop.GymManipulatorConfig(config, dataset, mode="record")
    loop.control_loop(robot, *processors, gamepad, whole)


def act(loop: Any, episodes: Sequence[Images], steps: int, **options: Any) -> list[list[tuple[float, bool, bool]]]:
    """Let LeRobot's own actor act; return reward, done and truncated of each step that it sends to the learner."""
    from lerobot.configs.train import TrainRLServerPipelineConfig
    from lerobot.policies.sac.configuration_sac import ConcurrencyConfig, SACConfig
    from lerobot.transport.utils import bytes_to_transitions

    env = configure_robot(episodes[0].shape[1:3], **options)
    policy = SACConfig(
        device="cpu",
        online_steps=steps,
        push_to_hub=False,
        input_features={name: one for name, one in env.features.items() if name != "action"},
        output_features={"action": env.features["action"]},
        dataset_stats=None,
        latent_dim=8,
        state_encoder_hidden_dim=8,
        concurrency=ConcurrencyConfig("threads", "threads"),
    )
    loop.make_robot_env = lambda cfg: (ReplayedRobot(episodes), Gamepad())
    parameters, transitions, figures = queue.Queue[Any](), queue.Queue[Any](), queue.Queue[Any]()
    config = TrainRLServerPipelineConfig(env=env, policy=policy)
    loop.act_with_policy(config, threading.Event(), parameters, transitions, figures)
    sent = [bytes_to_transitions(transitions.get_nowait()) for _ in range(transitions.qsize())]
    return [[(float(one["reward"]), bool(one["done"]), bool(one["truncated"])) for one in episode] for episode in sent]
