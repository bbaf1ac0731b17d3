"""Gymnasium wrappers: the reward comes from a model that watches the frames; a broken rule ends an episode."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial, reduce
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from demerit.data.reward import VerdictCounts
from demerit.errors import BadInput, BadReward, DemeritWarning
from demerit.models import load_model
from demerit.models.protocol import LiveFrame, RewardModel
from demerit.models.rule import LiveRule, Rule
from demerit.use.gym.episode import EpisodeWatch, LiveRewards, Look, RewardScheme, list_stages
from demerit.use.gym.person import PersonModel

INFO = "demerit"
"""the key in `info`"""
RULE_INFO = "demerit_rule"
"""the key in `info`: robustness, and whether the rule is broken"""
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
        self.model = load_model(model) if isinstance(model, str) else model
        self.instructions, self.camera, self.scheme = list_stages(instruction), camera, scheme
        self.delay, self.worker = delay, ThreadPoolExecutor(1, "demerit reward") if delay else None
        scheme.check(self.model.card, len(self.instructions))
        if isinstance(self.model, PersonModel) and (not scheme.is_sparse or delay):
            expected = "mode='final' without thresholds or delay: a person is asked once, when an episode ends"
            raise BadInput("a person as the reward", expected, f"mode={scheme.mode!r}, delay={delay}")
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

    def describe(self, look: Look, rewards: Sequence[float], env_reward: float) -> dict[str, Any]:
        """Return the entry of `info`; warn once when the model has not learned from anything like this."""
        answer = look.answer
        facts = {
            "value": answer.value,
            "succeeded": look.succeeded,
            "failed": look.failed,
            "stage": look.stage,
            "env_reward": env_reward,
            **answer.verdict.as_dict(),
        }
        facts |= {"success": answer.success} if answer.success is not None else {}
        if answer.familiarity is not None:
            facts["familiarity"] = answer.familiarity
        reasons = VerdictCounts.of_verdicts([answer.verdict], filter(None, [answer.caution])).warnings
        if rewards and reasons and not self._is_said:
            self._is_said = True
            warnings.warn(f"Rewards of {self.model.card.name!r}: {'; '.join(reasons)}.", DemeritWarning, stacklevel=3)
        return {**facts, **({"rewards": tuple(rewards)} if rewards else {})}

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
        observation, env_reward, terminated, truncated, info = self.env.step(action)
        frame = partial(self.source.frame, self.env.render, observation)
        reward, look, rewards = self._live.step(frame, terminated, truncated, float(env_reward))
        info = {**info, INFO: self.source.describe(look, rewards, float(env_reward))}
        return observation, reward, terminated or look.is_over, truncated, info

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
        observations, env_rewards, terminated, truncated, infos = self.env.step(actions)
        terminated, truncated, rewards = terminated.copy(), truncated.copy(), np.zeros(self.num_envs)
        fresh = self._ended & (self._mode == AutoresetMode.NEXT_STEP)
        if (late := fresh & self._ended_here).any():
            observations, new_infos = self.env.reset(options={"reset_mask": late.copy()})
            infos = self._merge_infos(infos, new_infos, late)
            terminated[late] = truncated[late] = False
        self._start(fresh, observations)
        render = cache(self.env.render)
        for i in np.flatnonzero(~fresh).tolist():
            live, env_reward = self._live[i], float(env_rewards[i])
            if live is None:
                raise BadInput("step", "reset() before the first step", "none")
            frame = partial(self.source.frame, render, observations, i)
            rewards[i], look, all_rewards = live.step(frame, bool(terminated[i]), bool(truncated[i]), env_reward)
            self._ended_here[i] = look.is_over and not (terminated[i] or truncated[i])
            terminated[i] = terminated[i] or look.is_over
            infos = self._add_info(infos, {INFO: self.source.describe(look, all_rewards, env_reward)}, i)
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


class RuleEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment watched by a rule: where the rule is broken, the episode terminates with a fixed reward."""

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        rule: str | Path | Rule,
        signals: Callable[[Any, dict[str, Any]], Mapping[str, npt.ArrayLike]],
        instruction: str = "",
        reward: float = 0.0,
        step_seconds: float | None = None,
    ) -> None:
        """Wrap an environment, outside of `RewardEnv`.

        Args:
            env: the environment.
            rule: a rule or its file, with a formula that holds from the start: `never(force > 20 N)`.
            signals: takes the observation and the info; returns the signals that the rule reads.
            instruction: the task, for a rule that is restricted to some.
            reward: of the step that breaks the rule, in place of the environment's.
            step_seconds: the duration of a step, for a formula with windows.
        """
        super().__init__(env)
        self.rule = rule if isinstance(rule, Rule) else Rule(rule)
        self.signals, self.instruction = signals, instruction
        self.reward, self.step_seconds = reward, step_seconds
        self._live: LiveRule | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset; the rule must hold at the first moment."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._live = self.rule.watch(self.instruction)
        state = self._check(self._live, observation, info)
        if state["broken"]:
            expected = f"that {self.rule.config.formula!r} holds at the start (a gate has no goals)"
            raise BadInput(self.rule.card.name, expected, f"robustness {state['robustness']:g}")
        return observation, {**info, RULE_INFO: state}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step; the episode terminates if the rule is broken."""
        if self._live is None:
            raise BadInput("step", "reset() before the first step", "none")
        observation, reward, terminated, truncated, info = self.env.step(action)
        state = self._check(self._live, observation, info)
        if state["broken"]:
            reward, terminated = self.reward, True
        return observation, float(reward), terminated, truncated, {**info, RULE_INFO: state}

    def _check(self, live: LiveRule, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        seconds = None if self.step_seconds is None else len(live.times) * self.step_seconds
        answer = live.step(self.signals(observation, info), seconds)
        if math.isnan(answer.value):
            raise BadReward(self.rule.card.name, "live", "a signal is not a number, or no window has begun")
        return {"robustness": answer.value, "broken": answer.success != 1}


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
        images = reduce(lambda value, part: value[part], filter(None, key.split("/")), observation)
    except (KeyError, IndexError, TypeError):
        keys = list(observation) if isinstance(observation, Mapping) else type(observation).__name__
        raise BadInput(f"camera {key!r}", "a key of the observation", keys) from None
    return check_image(f"camera {key!r}", images if row is None else images[row])


def check_image(name: str, image: Any) -> npt.NDArray[np.uint8]:
    """Return a copy, as environments reuse their arrays; refuse anything but a (height, width, 3) uint8 image."""
    copy = np.array(image)
    if copy.dtype != np.uint8 or copy.ndim != 3 or copy.shape[-1] != 3:  # noqa: PLR2004
        raise BadInput(name, "uint8 of shape (height, width, 3)", f"{copy.dtype} of shape {copy.shape}")
    return copy
