"""An episode seen by a model: its answers, its rewards, whether it is over. Stored frames are relabelled alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.frames import Frames, Images
from demerit.errors import BadInput, BadReward
from demerit.models import load_model
from demerit.models.protocol import LiveEpisode, LiveFrame, LiveReward, Online, RewardModel
from demerit.use.detect import Detector
from demerit.use.gym.scheme import EpisodeThreshold, RewardScheme, reaches


@dataclass(frozen=True)
class Look:
    """What a model says about one frame, and what it means for the episode."""

    answer: LiveReward
    level: float
    """the number that rewards are made of; NaN where no reward needs it"""
    stage: int
    succeeded: bool
    """in the last stage"""
    failed: bool


class RescoredEpisode:
    """A live episode of a model that cannot score live: every step scores all frames so far again."""

    def __init__(self, model: RewardModel, instruction: str) -> None:
        self.model, self.instruction = model, instruction
        self.frames: list[Mapping[str, Images]] = []

    def add(self, frame: LiveFrame) -> None:
        """Keep a frame without scoring it."""
        self.frames.append(frame if isinstance(frame, Mapping) else {"main": frame})

    def step(self, frame: LiveFrame) -> LiveReward:
        """Take the next frame; return the value and success at the end of the episode so far."""
        self.add(frame)
        views = {name: Frames.from_array(np.stack([one[name] for one in self.frames])) for name in self.frames[0]}
        reward = self.model.score([Episode("live", self.instruction, views)])[0]
        if math.isnan(reward.final):
            raise BadReward(self.model.card.name, "live", reward.why_missing)
        success = None if reward.success is None else float(reward.success[-1])
        return LiveReward(reward.final, success, reward.familiarity)


class EpisodeWatch:
    """Shows the frames of one episode to a model, stage after stage."""

    def __init__(self, model: RewardModel, instructions: Sequence[str], scheme: RewardScheme) -> None:
        scheme.check(model.card, len(instructions))
        self.model, self.instructions, self.scheme = model, instructions, scheme
        self._is_needed = scheme.mode != "final" or scheme.success is not None or scheme.failure is not None
        self._start(0)

    def _start(self, stage: int) -> None:
        instruction = self.instructions[stage]
        self._stage, self._highest, self._seen = stage, -math.inf, 0
        self._streaks = {"success": 0, "failure": 0}
        failure = self.scheme.failure
        self._follower = failure.follow(instruction) if isinstance(failure, Detector) else None
        self._live: LiveEpisode = (
            self.model.start(instruction)
            if isinstance(self.model, Online)
            else RescoredEpisode(self.model, instruction)
        )

    def look(self, frame: LiveFrame, is_last: bool = False) -> Look:
        """Show the next frame. A frame that the model cannot score raises `BadReward`."""
        if isinstance(self._live, RescoredEpisode) and not (self._is_needed or is_last):
            self._live.add(frame)
            return Look(LiveReward(math.nan), math.nan, self._stage, False, False)
        answer = self._live.step(frame)
        if not math.isfinite(answer.value):
            raise BadReward(self.model.card.name, "live", "it has no value for this frame, and none is made up")
        self._highest = max(self._highest, answer.value)
        succeeds = self._is_reached("success", answer)
        if succeeds and self._stage + 1 < len(self.instructions):
            self._start(self._stage + 1)
            return self.look(frame, is_last)
        level = self.scheme.level(answer.value, succeeds, self._stage, self.model.card)
        failed = self._is_reached("failure", answer) and not succeeds
        self._seen += 1
        return Look(answer, level, self._stage, succeeds, failed)

    def _is_reached(self, end: Literal["success", "failure"], answer: LiveReward) -> bool:
        threshold = self.scheme.success if end == "success" else self.scheme.failure
        if isinstance(threshold, Detector):
            assert self._follower is not None
            level, frame = threshold.find_level(answer), self._seen * self.scheme.stride
            return self._follower.find_behind(frame, level) >= self._follower.schedule.threshold
        self._streaks[end] = self._streaks[end] + 1 if reaches(threshold, answer, self._highest) else 0
        return self._streaks[end] >= (threshold.in_a_row if isinstance(threshold, EpisodeThreshold) else 1)


@dataclass(frozen=True)
class StepReward:
    """The outcome of one environment step."""

    reward: float
    is_over: bool
    """success or failure was seen"""
    look: Look
    """the look that arrived at this step; at the end the one that ended the episode, else the newest"""
    rewards: tuple[float, ...] = ()
    """at the end: the reward of each step of the episode, without delay"""


class LiveRewards:
    """The rewards of one running episode. With a delay of d, the reward of step t arrives at step t + d.

    The first d rewards are 0. The last is the sum of all that had not arrived, so nothing is outstanding at the end.
    """

    def __init__(self, watch: EpisodeWatch, first: LiveFrame, delay: int = 0, worker: Executor | None = None) -> None:
        self._watch, self._delay, self._worker = watch, delay, worker
        self._looks: list[Future[Look]] = []
        self._env_rewards = [0.0]
        self._look(first, False)

    def step(
        self, frame: Callable[[], LiveFrame], terminated: bool, truncated: bool, env_reward: float = 0.0
    ) -> StepReward:
        """Take one step; `frame` gives the newest frame, and is called only when the model is to see it."""
        now, is_last = len(self._looks), terminated or truncated
        self._env_rewards.append(env_reward)
        is_seen = is_last or now % self._watch.scheme.stride == 0
        if is_seen:
            self._look(frame(), is_last)
        else:
            self._looks.append(self._looks[-1])
        arrived = max(0, now - self._delay)
        look = self._looks[arrived].result()
        if not (is_last or look.succeeded or look.failed):
            previous = self._looks[arrived - 1].result().level
            reward = self._watch.scheme.reward(previous, look.level, self._env_rewards[arrived]) if arrived else 0.0
            return StepReward(reward, False, look)
        if not is_seen:
            del self._looks[-1]
            self._look(frame(), True)
        looks = [one.result() for one in self._looks]
        look = next((one for one in looks[arrived:] if one.succeeded or one.failed), looks[-1])
        is_over = look.succeeded or look.failed
        levels = [one.level for one in looks]
        rewards = tuple(self._watch.scheme.rewards(levels, self._env_rewards[1:], terminated or is_over))
        return StepReward(sum(rewards[max(0, arrived - 1) :]), is_over, look, rewards)

    def _look(self, frame: LiveFrame, is_last: bool) -> None:
        if self._worker is not None:
            self._looks.append(self._worker.submit(self._watch.look, frame, is_last))
            return
        done: Future[Look] = Future()
        done.set_result(self._watch.look(frame, is_last))
        self._looks.append(done)


def relabel(
    frames: npt.ArrayLike | Mapping[str, npt.ArrayLike],
    model: str | RewardModel,
    instruction: str | Sequence[str],
    env_rewards: Sequence[float] | None = None,
    terminated: bool = False,
    **scheme: Any,
) -> npt.NDArray[np.float64]:
    """Return the rewards of a stored episode: those that `RewardEnv` gave, or would have given, without delay.

    Args:
        frames: (steps + 1, height, width, 3) uint8, with the frame of the reset first; or such an array by camera.
        model: a model or its name.
        instruction: one, or one per stage.
        env_rewards: the environment's own rewards, for `add_env_reward`.
        terminated: whether the environment, a success or a failure ended it; matters only for `add_env_reward`.
        scheme: fields of `RewardScheme`.

    Returns:
        (steps,) rewards.
    """
    views = {name: np.asarray(images) for name, images in frames.items()} if isinstance(frames, Mapping) else None
    images = np.asarray(frames) if views is None else next(iter(views.values()))
    rule, last = RewardScheme(**scheme), len(images) - 1
    if rule.add_env_reward and env_rewards is None:
        raise BadInput("add_env_reward", "env_rewards", "none")
    bases = [0.0] * last if env_rewards is None else [float(reward) for reward in env_rewards]
    if last < 1 or len(bases) != last or any(len(view) != len(images) for view in (views or {}).values()):
        got = f"{len(images)} frames and {len(bases)} rewards"
        raise BadInput("an episode", "two frames or more, as many of each camera, one more than rewards", got)
    watch = EpisodeWatch(load(model), stages(instruction), rule)
    levels: list[float] = []
    for t in range(last + 1):
        if t % rule.stride == 0 or t == last:
            frame = images[t] if views is None else {name: view[t] for name, view in views.items()}
            look = watch.look(frame, t == last)
        levels.append(look.level)
    return np.array(rule.rewards(levels, bases, terminated or look.succeeded or look.failed))


def stages(instruction: str | Sequence[str]) -> tuple[str, ...]:
    """Return the instructions, one per stage."""
    found = (instruction,) if isinstance(instruction, str) else tuple(instruction)
    if not found:
        raise BadInput("instruction", "one, or one per stage", "none")
    return found


def load(model: str | RewardModel) -> RewardModel:
    """Return a model by name, or as it is."""
    return load_model(model) if isinstance(model, str) else model
