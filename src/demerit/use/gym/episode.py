"""An episode seen by a model: the scheme that makes rewards of its answers, and what ends it.

Stored frames are relabelled alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Floats
from demerit.decide.detector import Detector, EpisodeFollower
from demerit.decide.threshold import Threshold, check_answer
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.models.live import RescoredEpisode, start_live
from demerit.models.protocol import LiveFrame, LiveReward, ModelCard, RewardModel

RewardMode = Literal["dense", "final", "potential"]
RewardLevels = Literal["continuous", "five", "binary"]
BINS = 5


@dataclass(frozen=True)
class RewardScheme:
    """How values become rewards, and what ends an episode."""

    mode: RewardMode = "dense"
    """dense: the value of the newest frame; final: the last one's, 0 before; potential: gamma * new - previous"""
    levels: RewardLevels = "continuous"
    """continuous: the value; five: 1 to 5, equal parts of the model's range; binary: 1 where successful, else 0"""
    success: Threshold | float | None = None
    """ends an episode as terminated; a plain number (of the probability of success, else of the value) promises
    nothing; None = success does not end it"""
    failure: Threshold | Detector | None = None
    """ends an episode as terminated; see `find_failure_threshold` and `demerit detect`"""
    gamma: float = 0.99
    """the discount of mode potential; give the learner the same"""
    add_env_reward: bool = False
    """add the environment's own reward; in mode potential, the best policy for that reward stays the best"""
    stride: int = 1
    """the model sees frames 0, stride, 2 stride ... and the last; between them, the newest value holds"""

    def __post_init__(self) -> None:
        """Check the values."""
        for name, choice, choices in (("mode", self.mode, RewardMode), ("levels", self.levels, RewardLevels)):
            if choice not in get_args(choices):
                raise BadInput(name, f"one of {', '.join(get_args(choices))}", repr(choice))
        if self.levels == "binary" and self.success is None:
            raise BadInput("levels='binary'", "a success threshold (see find_success_threshold)", "none")
        if not 0 <= self.gamma <= 1:
            raise BadInput("gamma", "a number from 0 to 1", self.gamma)
        if self.stride < 1:
            raise BadInput("stride", "1 or more", self.stride)

    @property
    def is_sparse(self) -> bool:
        """Whether the last value of an episode is all that is needed."""
        return self.mode == "final" and self.success is None and self.failure is None

    def check(self, card: ModelCard, stages: int) -> None:
        """Refuse a rule, a model whose range is needed and unknown, and stages without a threshold."""
        if card.reads_signals:
            raise BadInput(card.name, "a model that sees frames alone (for a rule: RuleEnv)", "one that reads signals")
        if (self.levels == "five" or stages > 1) and (card.low is None or card.high is None):
            raise BadInput(card.name, "a model with values in a range, for five levels or stages", "an unbounded one")
        if isinstance(self.failure, Detector):
            self.failure.check(card)
            if self.failure.at_end:
                got = "one that judges episodes at their end (find_failure_threshold makes the other kind)"
                raise BadInput("failure", "a detector that judges every frame", got)
        if stages > 1 and self.success is None:
            raise BadInput("several instructions", "a success threshold, which starts the next one", "none")

    def level(self, value: float, succeeds: bool, stage: int, card: ModelCard) -> float:
        """Return the number that rewards are made of. A finished stage adds the width of the range: 1, 5 for five."""
        if self.levels == "binary":
            return float(stage + succeeds)
        if self.levels == "continuous" and stage == 0:
            return value
        assert card.low is not None and card.high is not None
        width = card.high - card.low
        if self.levels == "continuous":
            return stage * width + value
        return float(stage * BINS + 1 + min(BINS - 1, max(0, math.floor(BINS * (value - card.low) / width))))

    def reward(self, previous: float, new: float, env_reward: float, is_last: bool = False) -> float:
        """Return the reward of a step from one level to another."""
        added = env_reward if self.add_env_reward else 0.0
        if self.mode == "potential":
            return self.gamma * new - previous + added
        return (new if self.mode == "dense" or is_last else 0.0) + added

    def rewards(self, levels: Sequence[float], env_rewards: Sequence[float], terminated: bool) -> list[float]:
        """Return the rewards of a whole episode: one fewer than levels."""
        news = list(levels[1:])
        if self.mode == "potential" and self.add_env_reward and terminated:
            news[-1] = 0.0  # else another policy may become the best one (Ng et al., 1999)
        return [
            self.reward(previous, new, added, t == len(news) - 1)
            for t, (previous, new, added) in enumerate(zip(levels[:-1], news, env_rewards, strict=True))
        ]


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

    @property
    def is_over(self) -> bool:
        """Whether it ends the episode."""
        return self.succeeded or self.failed


class EpisodeWatch:
    """Shows the frames of one episode to a model, stage after stage."""

    def __init__(self, model: RewardModel, instructions: Sequence[str], scheme: RewardScheme) -> None:
        scheme.check(model.card, len(instructions))
        self.model, self.instructions, self.scheme = model, instructions, scheme
        self._start(0)

    def _start(self, stage: int) -> None:
        instruction = self.instructions[stage]
        self._stage, self._highest, self._seen = stage, -math.inf, 0
        self._streaks = {"success": 0, "failure": 0}
        failure = self.scheme.failure
        self._follower = EpisodeFollower(failure.schedule(instruction)) if isinstance(failure, Detector) else None
        self._live = start_live(self.model, instruction)

    def look(self, frame: LiveFrame, is_last: bool = False) -> Look:
        """Show the next frame. A frame that the model cannot score raises `BadReward`."""
        if isinstance(self._live, RescoredEpisode) and self.scheme.is_sparse and not is_last:
            self._live.add(frame)
            return Look(LiveReward(math.nan), math.nan, self._stage, False, False)
        answer = check_answer(self._live.step(frame), self.model)
        self._highest = max(self._highest, answer.value)
        succeeds = self._is_reached("success", answer)
        if succeeds and self._stage + 1 < len(self.instructions):
            self._start(self._stage + 1)
            return self.look(frame, is_last)
        level = self.scheme.level(answer.value, succeeds, self._stage, self.model.card)
        fails = self._is_reached("failure", answer) and not succeeds
        self._seen += 1
        return Look(answer, level, self._stage, succeeds, fails)

    def _is_reached(self, end: Literal["success", "failure"], answer: LiveReward) -> bool:
        threshold = self.scheme.success if end == "success" else self.scheme.failure
        if isinstance(threshold, Detector):
            assert self._follower is not None
            level, frame = threshold.find_level(answer), self._seen * self.scheme.stride
            return self._follower.find_behind(frame, level) >= self._follower.schedule.threshold
        if isinstance(threshold, Threshold):
            self._streaks[end] = self._streaks[end] + 1 if threshold.is_reached(answer, self._highest) else 0
            return self._streaks[end] >= threshold.in_a_row
        number = answer.value if answer.success is None else answer.success
        return threshold is not None and number >= threshold


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
    ) -> tuple[float, Look, list[float]]:
        """Take one step; `frame` gives the newest frame, and is called only when the model is to see it.

        Returns the reward; the look that arrived at this step (at the end the one that ended the episode, else the
        newest); and, at the end, the reward of each step of the episode, without delay.
        """
        now, is_last = len(self._looks), terminated or truncated
        self._env_rewards.append(env_reward)
        is_seen = is_last or now % self._watch.scheme.stride == 0
        if is_seen:
            self._look(frame(), is_last)
        else:
            self._looks.append(self._looks[-1])
        arrived = max(0, now - self._delay)
        look = self._looks[arrived].result()
        if not (is_last or look.is_over):
            previous = self._looks[arrived - 1].result().level
            reward = self._watch.scheme.reward(previous, look.level, self._env_rewards[arrived]) if arrived else 0.0
            return reward, look, []
        if not is_seen:
            del self._looks[-1]
            self._look(frame(), True)
        looks = [future.result() for future in self._looks]
        look = next((look for look in looks[arrived:] if look.is_over), looks[-1])
        levels = [look.level for look in looks]
        rewards = self._watch.scheme.rewards(levels, self._env_rewards[1:], terminated or look.is_over)
        return sum(rewards[max(0, arrived - 1) :]), look, rewards

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
) -> Floats:
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
    loaded = load_model(model) if isinstance(model, str) else model
    watch = EpisodeWatch(loaded, list_stages(instruction), rule)
    levels: list[float] = []
    for t in range(last + 1):
        if t % rule.stride == 0 or t == last:
            frame = images[t] if views is None else {name: view[t] for name, view in views.items()}
            look = watch.look(frame, t == last)
        levels.append(look.level)
    return np.array(rule.rewards(levels, bases, terminated or look.is_over))


def list_stages(instruction: str | Sequence[str]) -> tuple[str, ...]:
    """Return the instructions, one per stage."""
    stages = (instruction,) if isinstance(instruction, str) else tuple(instruction)
    if not stages:
        raise BadInput("instruction", "one, or one per stage", "none")
    return stages
