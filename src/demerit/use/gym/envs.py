"""Gymnasium wrappers whose reward comes from a model that watches the frames."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial, reduce
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from demerit.data.reward import UNFAMILIAR
from demerit.errors import BadInput, DemeritWarning
from demerit.models.protocol import LiveFrame, RewardModel
from demerit.use.gym.scheme import RewardScheme
from demerit.use.gym.watch import EpisodeWatch, LiveRewards, StepReward, load, stages

INFO = "demerit"
"""the key in `info`"""
Camera = str | Mapping[str, str] | None


class RewardSource:
    """A model, what it is asked, and where its frames come from."""

    def __init__(
        self,
        model: str | RewardModel,
        instruction: str | Sequence[str],
        camera: Camera,
        delay: int,
        scheme: RewardScheme,
        render_mode: str | None,
    ) -> None:
        if camera is None and render_mode != "rgb_array":
            expected = 'render_mode="rgb_array", or camera="KEY" for images in the observation'
            raise BadInput("the environment", expected, f"render_mode={render_mode!r}")
        if delay < 0:
            raise BadInput("delay", "0 or more steps", delay)
        self.model, self.instructions, self.camera, self.scheme = load(model), stages(instruction), camera, scheme
        self.delay, self.worker = delay, ThreadPoolExecutor(1, "demerit reward") if delay else None
        scheme.check(self.model.card, len(self.instructions))
        if scheme.mode == "dense" and scheme.levels != "binary" and scheme.success is not None:
            warnings.warn(
                "mode='dense' with a success threshold: an episode that goes on collects more reward than one that "
                "succeeds, so a policy learns to stop short of success. mode='potential' does not have this problem.",
                DemeritWarning,
                stacklevel=3,
            )
        self._is_said = False

    def start(self, frame: LiveFrame) -> LiveRewards:
        """Start the rewards of an episode at the frame of its reset."""
        watch = EpisodeWatch(self.model, self.instructions, self.scheme)
        return LiveRewards(watch, frame, self.delay, self.worker)

    def frame(self, render: Callable[[], Any], observation: Any, row: int | None = None) -> LiveFrame:
        """Return the newest frame, or one per camera; `row` selects an environment of several."""
        if isinstance(self.camera, Mapping):
            return {name: take_image(observation, key, row) for name, key in self.camera.items()}
        if self.camera is not None:
            return take_image(observation, self.camera, row)
        shown = render()
        return check_image("env.render()", shown if row is None else shown[row])

    def describe(self, step: StepReward, env_reward: float) -> dict[str, Any]:
        """Return the entry of `info`; warn once when the model has not learned from anything like this."""
        look, answer = step.look, step.look.answer
        found = {
            "value": answer.value,
            "succeeded": look.succeeded,
            "failed": look.failed,
            "stage": look.stage,
            "env_reward": env_reward,
        }
        found |= {"success": answer.success} if answer.success is not None else {}
        if answer.familiarity is not None:
            found["familiarity"] = answer.familiarity
            if step.rewards and answer.familiarity < UNFAMILIAR and not self._is_said:
                self._is_said = True
                name = self.model.card.name
                sentence = f"The rewards of {name!r} are a guess: it learned from nothing like these frames. Teach it."
                warnings.warn(sentence, DemeritWarning, stacklevel=3)
        return {**found, **({"rewards": step.rewards} if step.rewards else {})}

    def close(self) -> None:
        """End the scoring thread."""
        if self.worker is not None:
            self.worker.shutdown(cancel_futures=True)


class RewardEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose reward comes from a model that watches its frames; `info["demerit"]` says more.

    Success ends an episode at a threshold (`terminated`); a time limit still ends it as `truncated`.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        model: str | RewardModel,
        instruction: str | Sequence[str],
        camera: Camera = None,
        delay: int = 0,
        **scheme: Any,
    ) -> None:
        """Wrap an environment.

        Args:
            env: the environment.
            model: a model (also a `RemoteModel`) or its name.
            instruction: one, or one per stage: success in a stage starts the next.
            camera: None = `env.render()`; a key of the observation ("pixels/top" for a nested one, "" for all of it);
                or such keys by the model's camera names.
            delay: score in another thread; the reward of step t arrives at step t + delay.
            scheme: mode, levels, success, failure, gamma, stride, add_env_reward: see `RewardScheme`.
        """
        super().__init__(env)
        self.source = RewardSource(model, instruction, camera, delay, RewardScheme(**scheme), env.render_mode)
        self._live: LiveRewards | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and show the model the first frame."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._live = self.source.start(self.source.frame(self.env.render, observation))
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step; the reward is the model's."""
        if self._live is None:
            raise BadInput("step", "reset() before the first step", "none")
        observation, given, terminated, truncated, info = self.env.step(action)
        frame = partial(self.source.frame, self.env.render, observation)
        step = self._live.step(frame, terminated, truncated, float(given))
        info = {**info, INFO: self.source.describe(step, float(given))}
        return observation, step.reward, terminated or step.is_over, truncated, info

    def close(self) -> None:
        """Close the environment and the scoring thread."""
        self.source.close()
        super().close()


class RewardVectorEnv(gymnasium.vector.VectorWrapper):
    """The same for a vector environment: one model for all of them."""

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv[Any, Any, Any],
        model: str | RewardModel,
        instruction: str | Sequence[str],
        camera: Camera = None,
        delay: int = 0,
        **scheme: Any,
    ) -> None:
        """Wrap a vector environment that resets by itself at the next step, or not at all; as `RewardEnv`."""
        super().__init__(env)
        self._mode = env.metadata.get("autoreset_mode")
        if self._mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED):
            raise BadInput("autoreset_mode", "NEXT_STEP or DISABLED: the last frame must be seen", self._mode)
        self.source = RewardSource(model, instruction, camera, delay, RewardScheme(**scheme), env.render_mode)
        self._live: list[LiveRewards | None] = [None] * self.num_envs
        self._ended = np.zeros(self.num_envs, np.bool_)
        """finished at the last step, by the environment or the model"""
        self._ended_here = np.zeros(self.num_envs, np.bool_)
        """by the model alone: the environment does not know"""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of `options["reset_mask"]`."""
        mask = np.array((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_)))
        observations, infos = self.env.reset(seed=seed, options=options)
        self._start(mask, observations)
        return observations, infos

    def step(
        self, actions: Any
    ) -> tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]:
        """Step all; one that finished at the last step is reset instead, with a reward of 0."""
        observations, given, terminated, truncated, infos = self.env.step(actions)
        terminated, truncated, rewards = terminated.copy(), truncated.copy(), np.zeros(self.num_envs)
        fresh = self._ended & (self._mode == AutoresetMode.NEXT_STEP)
        if (late := fresh & self._ended_here).any():
            observations, new_infos = self.env.reset(options={"reset_mask": late.copy()})
            infos = self._merge_infos(infos, new_infos, late)
            terminated[late] = truncated[late] = False
        self._start(fresh, observations)
        render = cache(self.env.render)
        for i in np.flatnonzero(~fresh).tolist():
            live, env_reward = self._live[i], float(given[i])
            if live is None:
                raise BadInput("step", "reset() before the first step", "none")
            frame = partial(self.source.frame, render, observations, i)
            step = live.step(frame, bool(terminated[i]), bool(truncated[i]), env_reward)
            self._ended_here[i] = step.is_over and not (terminated[i] or truncated[i])
            rewards[i], terminated[i] = step.reward, terminated[i] or step.is_over
            infos = self._add_info(infos, {INFO: self.source.describe(step, env_reward)}, i)
        self._ended = terminated | truncated
        return observations, rewards, terminated, truncated, infos

    def close(self, **kwargs: Any) -> None:
        """Close the environments and the scoring thread."""
        self.source.close()
        super().close(**kwargs)

    def _start(self, mask: npt.NDArray[np.bool_], observations: Any) -> None:
        render = cache(self.env.render)
        for i in np.flatnonzero(mask).tolist():
            self._live[i] = self.source.start(self.source.frame(render, observations, i))
            self._ended[i] = self._ended_here[i] = False

    def _merge_infos(self, infos: dict[str, Any], new: dict[str, Any], mask: npt.NDArray[np.bool_]) -> dict[str, Any]:
        """Take the rows of `mask` from `new`, the others from `infos`."""
        merged: dict[str, Any] = {}
        for i in range(self.num_envs):
            merged = self._add_info(merged, info_row(new if mask[i] else infos, i), i)
        return merged


def info_row(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the info of one environment of several."""
    return {
        name: info_row(values, row) if isinstance(values, dict) else values[row]
        for name, values in infos.items()
        if not name.startswith("_") and infos[f"_{name}"][row]
    }


def take_image(observation: Any, key: str, row: int | None) -> npt.NDArray[np.uint8]:
    """Return the image under a key such as "pixels/top"."""
    try:
        found = reduce(lambda value, part: value[part], filter(None, key.split("/")), observation)
    except (KeyError, IndexError, TypeError):
        known = list(observation) if isinstance(observation, Mapping) else type(observation).__name__
        raise BadInput(f"camera {key!r}", "a key of the observation", known) from None
    return check_image(f"camera {key!r}", found if row is None else found[row])


def check_image(name: str, image: Any) -> npt.NDArray[np.uint8]:
    """Return a copy, as environments reuse their arrays; refuse anything but a (height, width, 3) uint8 image."""
    found = np.array(image)
    if found.dtype != np.uint8 or found.ndim != 3 or found.shape[-1] != 3:  # noqa: PLR2004
        raise BadInput(name, "uint8 of shape (height, width, 3)", f"{found.dtype} of shape {found.shape}")
    return found
