"""A model of demerit as the reward of LeRobot's HIL-SERL loop, after every frame. Tested with LeRobot 0.4.4.

    reward = LeRobotReward("./my-model", "put the cup on the plate", success=threshold)
    env_processor.steps.append(make_step(reward))     # a pipeline of your own
    put_reward(lerobot.rl.actor, reward)              # LeRobot's own loop, before it starts

LeRobot's loop loads its own class `Classifier` from a path and nothing else. Its step, `RewardClassifierProcessorStep`,
takes any object with `predict_reward`; `put_reward` adds that step to the processors that the loop makes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from demerit.data.formats.lerobot.metadata import IMAGES_PREFIX
from demerit.data.frames import RGB, Images
from demerit.data.reward import VerdictCounts
from demerit.decide.threshold import Threshold
from demerit.errors import BadInput, DemeritWarning
from demerit.models import load_model
from demerit.models.protocol import RewardModel
from demerit.use.gym.episode import EpisodeWatch, RewardScheme, list_stages


class LeRobotReward:
    """Whether the running episode has succeeded: what LeRobot asks of a reward classifier, frame after frame."""

    def __init__(
        self, model: str | RewardModel, instruction: str | Sequence[str], success: Threshold | float | None = None
    ) -> None:
        """Choose the model and what counts as success.

        Args:
            model: a model or its name.
            instruction: the task in the words that were taught; or one per stage, as in `RewardEnv`.
            success: as in `RewardEnv`: see `find_success_threshold`. None = the model's verdict about the episode so
                far; its promise is about the last frame of an episode, and an episode has many frames.
        """
        self.model = load_model(model) if isinstance(model, str) else model
        self.instructions, self.scheme = list_stages(instruction), RewardScheme(success=success)
        self._is_said = False
        self.reset()

    def reset(self) -> None:
        """Begin a new episode."""
        self._watch = EpisodeWatch(self.model, self.instructions, self.scheme)

    def predict_reward(self, images: Mapping[str, Any], threshold: float | None = None) -> float:
        """Take the next frame; return 1.0 where the episode has succeeded, else 0.0.

        Args:
            images: tensors by LeRobot's keys: floats from 0 to 1, (3, height, width), or a batch of one of them.
            threshold: LeRobot's own, which promises nothing and is not used.
        """
        look = self._watch.look({key.removeprefix(IMAGES_PREFIX): _as_image(key, images[key]) for key in images})
        verdict = look.answer.verdict
        doubts = VerdictCounts.of_verdicts([verdict], [look.answer.caution]).warnings
        if doubts and not self._is_said:
            self._is_said = True
            warnings.warn(f"Rewards of {self.model.card.name!r}: {'; '.join(doubts)}.", DemeritWarning, stacklevel=2)
        if self.scheme.success is not None:
            return float(look.succeeded)
        if verdict.reason == "no threshold":
            raise BadInput(self.model.card.name, "a model with a success threshold, or success=", "none of both")
        return float(verdict.success is True)


def make_step(reward: LeRobotReward, success_reward: float = 1.0, terminate_on_success: bool = True) -> Any:
    """Make LeRobot's own `RewardClassifierProcessorStep` with this reward in the place of its classifier."""
    try:
        from lerobot.processor import RewardClassifierProcessorStep  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        got = f"no module {missing.name}"
        raise BadInput("HIL-SERL", "LeRobot 0.4.4 in this environment (docs/hil_serl.md)", got) from missing
    step = RewardClassifierProcessorStep(
        reward_classifier=reward, success_reward=success_reward, terminate_on_success=terminate_on_success
    )
    step.reset = reward.reset  # LeRobot's does nothing, because its classifier sees one frame at a time
    return step


def put_reward(loop: ModuleType, reward: LeRobotReward) -> None:
    """Let LeRobot's loop use the reward: the module's `make_processors` is replaced by one that also adds the step.

    Args:
        loop: `lerobot.rl.actor`, or `lerobot.rl.gym_manipulator` to record with the reward.
        reward: what it asks after every frame. Success pressed by a person counts as before.
    """
    make = loop.make_processors

    def make_processors(env: Any, teleop_device: Any, cfg: Any, device: str = "cpu") -> tuple[Any, Any]:
        own, reset = cfg.processor.reward_classifier, cfg.processor.reset
        if own is not None and own.pretrained_path is not None:
            raise BadInput("reward_classifier.pretrained_path", "null, as the reward is demerit's", own.pretrained_path)
        env_processor, action_processor = make(env, teleop_device, cfg, device)
        value, ends = 1.0 if own is None else own.success_reward, reset is None or reset.terminate_on_success
        env_processor.steps = [*env_processor.steps, make_step(reward, value, ends)]
        return env_processor, action_processor

    loop.make_processors = make_processors  # type: ignore[attr-defined]


def _as_image(key: str, tensor: Any) -> Images:
    """Return the uint8 image of a tensor of LeRobot's."""
    pixels = np.asarray(tensor.detach().cpu().float())
    pixels = pixels[0] if pixels.ndim == RGB + 1 and len(pixels) == 1 else pixels
    is_image = pixels.ndim == RGB and len(pixels) == RGB and pixels.size > 0
    if not is_image or not (pixels.min() >= 0 and pixels.max() <= 1):
        numbers = f", {pixels.min():g} to {pixels.max():g}" if pixels.size else ""
        got = f"shape {tuple(tensor.shape)}{numbers}"
        raise BadInput(key, "one image of shape (3, height, width) with numbers from 0 to 1", got)
    image: Images = np.round(pixels.transpose(1, 2, 0) * 255).astype(np.uint8)
    return image
