"""From a model's numbers to rewards: the scheme, and the thresholds that end an episode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from demerit.errors import BadInput
from demerit.models.protocol import LiveReward, ModelCard
from demerit.use.detect import Detector

RewardMode = Literal["dense", "final", "potential"]
RewardLevels = Literal["continuous", "five", "binary"]
ThresholdEvidence = Literal["value", "success", "drop"]
"""the number compared: the value, the probability of success, or how far the value fell below its highest so far"""
BINS = 5


@dataclass(frozen=True)
class EpisodeThreshold:
    """An episode has succeeded (or failed) where its number reaches `at` at several looks in a row."""

    at: float
    evidence: ThresholdEvidence
    risk: float
    """share of the opposite episodes that it ends by mistake"""
    confidence: float | None
    """probability that the share holds, over calibration sets; None = it holds on average over them"""
    episodes: int
    """number of calibration episodes"""
    in_a_row: int = 1
    """looks in a row that must reach it"""

    @property
    def promise(self) -> str:
        """The guarantee, as a sentence."""
        wrong = "successes end as failed" if self.evidence == "drop" else "failures end as a success"
        sure = "on average" if self.confidence is None else f"with {self.confidence:.0%} confidence"
        return (
            f"At most {self.risk:.1%} of {wrong}, {sure}, all frames of an episode together, if they resemble the "
            f"{self.episodes} episodes that it was calibrated on. A policy that learned to please the model does not."
        )


@dataclass(frozen=True)
class RewardScheme:
    """How values become rewards, and what ends an episode."""

    mode: RewardMode = "dense"
    """dense: the value of the newest frame; final: the last one's, 0 before; potential: gamma * new - previous"""
    levels: RewardLevels = "continuous"
    """continuous: the value; five: 1 to 5, equal parts of the model's range; binary: 1 where successful, else 0"""
    success: EpisodeThreshold | float | None = None
    """ends an episode as terminated; a plain number (of the probability of success, else of the value) promises
    nothing; None = success does not end it"""
    failure: EpisodeThreshold | Detector | None = None
    """ends an episode as terminated; see `find_failure_threshold` and `demerit detect`"""
    gamma: float = 0.99
    """the discount of mode potential; give the learner the same"""
    add_env_reward: bool = False
    """add the environment's own reward; in mode potential, the best policy for that reward stays the best"""
    stride: int = 1
    """the model sees frames 0, stride, 2 stride ... and the last; between them, the newest value holds"""

    def __post_init__(self) -> None:
        """Check the values."""
        for name, given, known in (("mode", self.mode, RewardMode), ("levels", self.levels, RewardLevels)):
            if given not in get_args(known):
                raise BadInput(name, f"one of {', '.join(get_args(known))}", repr(given))
        if self.levels == "binary" and self.success is None:
            raise BadInput("levels='binary'", "a success threshold (see find_success_threshold)", "none")
        if not 0 <= self.gamma <= 1:
            raise BadInput("gamma", "a number from 0 to 1", self.gamma)
        if self.stride < 1:
            raise BadInput("stride", "1 or more", self.stride)

    def check(self, card: ModelCard, stages: int) -> None:
        """Refuse a rule, a model whose range is needed and unknown, and stages without a threshold."""
        if card.reads_signals:
            raise BadInput(card.name, "a model that sees frames alone (for a rule: RuleEnv)", "one that reads signals")
        if (self.levels == "five" or stages > 1) and (card.low is None or card.high is None):
            raise BadInput(card.name, "a model with values in a range, for five levels or stages", "an unbounded one")
        if isinstance(self.failure, Detector):
            self.failure.check(card)
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


def reaches(threshold: EpisodeThreshold | float | None, answer: LiveReward, highest: float) -> bool:
    """Whether a model's answer reaches a threshold; `highest` is the highest value of the episode so far."""
    if threshold is None:
        return False
    if not isinstance(threshold, EpisodeThreshold):
        return (answer.value if answer.success is None else answer.success) >= threshold
    return read_evidence(threshold.evidence, answer, highest) >= threshold.at


def read_evidence(kind: ThresholdEvidence, answer: LiveReward, highest: float) -> float:
    """Return the number that a threshold is compared with; refuse a model that does not give it."""
    if kind == "drop":
        return highest - answer.value
    if kind == "value":
        return answer.value
    if answer.success is None:
        raise BadInput("the threshold", "a model that gives a probability of success, as it was calibrated", "none")
    return answer.success
