"""The interface of a reward model: `card` says what its numbers mean, `score` computes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from demerit.data.episode import Episode, safe_name
from demerit.data.frames import Images, Indices, Prepare, short_hash, spread
from demerit.data.reward import Reward, Verdict, judge, read_caution
from demerit.errors import BadInput, BadReward

SCORE = "score: above 0.5 is more like your successes"
"""the quantity of a model that was taught verdicts about the end alone, and no progress"""


@dataclass(frozen=True)
class ModelCard:
    """What a model's numbers mean and what it needs."""

    name: str
    revision: str
    licence: str
    quantity: str
    """what the value is: 'progress' (only where progress was learned), 'grade', 'log-probability of success', ..."""
    low: float | None
    """smallest possible value; None = unbounded"""
    high: float | None
    causal: bool
    """a frame's value does not depend on later frames"""
    comparable: bool
    """values of different episodes can be compared (False for values normalised per episode)"""
    sees_pixels: bool = True
    frame_budget: int | None = None
    """frames used per episode, spread evenly; None = all"""
    reads_instruction: bool = True
    weights_hash: str = ""
    rounding: float = 0.0
    """how much a value may vary with the batch (half precision)"""
    about: str = ""
    """one sentence: what it is and what it cannot do"""
    reads_signals: bool = False
    """values depend on the episode's signals (states, forces ...), at every frame"""

    def __post_init__(self) -> None:
        """Validate: the name can be a folder name, the range is not empty."""
        safe_name(self.name)
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise BadInput(f"card of {self.name!r}", "low < high", (self.low, self.high))
        if not 0 <= self.rounding < float("inf"):
            raise BadInput(f"card of {self.name!r}", "a rounding of 0 or more", self.rounding)
        if self.frame_budget is not None and self.frame_budget < 1:
            raise BadInput(f"card of {self.name!r}", "a frame budget of at least 1", self.frame_budget)

    @property
    def meaning(self) -> str:
        """What a value is, with its range: `progress, 0 to 1`."""
        is_bounded = self.low is not None and self.high is not None
        return f"{self.quantity}, {self.low:g} to {self.high:g}" if is_bounded else self.quantity

    @property
    def is_absolute(self) -> bool:
        """Whether 0.5 means something by itself: a progress, a probability or a score of success from 0 to 1."""
        words = ("progress", "probability", SCORE)
        return (self.low, self.high) == (0.0, 1.0) and any(word in self.quantity for word in words)

    def hash(self) -> str:
        """Hash of all fields; stored rewards with another hash are stale."""
        return self._hash

    @cached_property
    def _hash(self) -> str:
        facts = asdict(self)
        for name in ("rounding", "reads_signals"):
            if not facts[name]:  # older cards have no such field and keep their hash
                del facts[name]
        return short_hash(json.dumps(facts, sort_keys=True).encode())

    def wanted(self, length: int) -> Indices:
        """Return the frames this model uses of an episode of `length` frames."""
        if not self.sees_pixels:
            return np.empty(0, dtype=np.int32)
        return spread(length, length if self.frame_budget is None else self.frame_budget)

    def check(self, reward: Reward, episode: Episode) -> None:
        """Raise BadReward when a reward is of another episode, beyond its frames or outside the declared range."""
        if reward.episode != episode.id:
            raise BadReward(self.name, episode.id, f"the reward is for episode {reward.episode!r}")
        if len(reward.at) and int(reward.at[-1]) >= len(episode):
            raise BadReward(self.name, episode.id, f"frame {reward.at[-1]} is scored, of {len(episode)} frames")
        values = reward.value[~np.isnan(reward.value)].astype(np.float64)
        slack = 1e-6
        for bound, beyond in ((self.low, np.less), (self.high, np.greater)):
            if bound is not None and values.size:
                sign = 1 if beyond is np.greater else -1
                worst = float(values.max() if sign > 0 else values.min())
                if sign * (worst - bound) > slack:
                    raise BadReward(self.name, episode.id, f"{worst:g} is outside [{self.low}, {self.high}]")


@runtime_checkable
class RewardModel(Protocol):
    """A model that scores episodes."""

    @property
    def card(self) -> ModelCard:
        """What the numbers mean."""
        ...

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Score each episode, in order. Return `Reward.unscored` with the reason for one that cannot be scored."""
        ...


class ShownModel:
    """A model that shows its name, the quantity and range of its values, and what it was taught on."""

    def __repr__(self) -> str:
        card: ModelCard = self.card  # type: ignore[attr-defined]  # every model has one
        lesson = self._describe_lesson()
        return f"{type(self).__name__}({card.name!r}, {card.meaning}{f', taught on {lesson}' if lesson else ''})"

    def _describe_lesson(self) -> str:
        return ""


@runtime_checkable
class Comparer(Protocol):
    """A model that can also compare two episodes."""

    def prefer(self, pairs: Sequence[tuple[Episode, Episode]]) -> list[float]:
        """Return the probability that the first of each pair is better; NaN when unknown."""
        ...


@dataclass(frozen=True)
class LiveReward:
    """What a model says about the newest frame of a live episode; `float()` gives its value."""

    value: float
    """in the quantity and range of the model's card; NaN = unscored"""
    success: float | None = None
    """probability of success; None if the model predicts none"""
    familiarity: float | None = None
    """how much the episode so far looks like what the model learned from, 0 to 1; None = unknown"""
    given: Mapping[str, Any] = field(default_factory=dict)
    """as `Reward.given`, about the episode so far"""

    @property
    def verdict(self) -> Verdict:
        """The verdict about the episode, if it ended with this frame."""
        facts = {**self.given, "familiarity": self.familiarity}
        return judge(self.value, "the model gave no value for this frame", facts)

    @property
    def caution(self) -> str:
        """As `Reward.caution`."""
        return read_caution(self.given)

    def __float__(self) -> float:
        return self.value


LiveFrame = Images | Mapping[str, Images]
"""a (height, width, 3) uint8 RGB image, or one per camera by name, the main camera first"""


@runtime_checkable
class LiveEpisode(Protocol):
    """An episode that is scored while it happens."""

    def step(self, frame: LiveFrame) -> LiveReward:
        """Take the next frame; return the value and success that `score` gives it."""
        ...


@runtime_checkable
class StepsTogether(Protocol):
    """A live episode whose model takes frames of several episodes in one call."""

    def step_together(self, runs: Sequence[LiveEpisode], frames: Sequence[LiveFrame]) -> list[LiveReward | Exception]:
        """Take the next frame of each of different episodes of one model; a bad frame's answer is its error.

        Where it raises, no episode has taken its frame, and each is asked alone.
        """
        ...


@runtime_checkable
class Online(Protocol):
    """A model that can also score live episodes frame by frame, any number of them at once."""

    def start(self, instruction: str) -> LiveEpisode:
        """Start a live episode."""
        ...


@runtime_checkable
class Prepares(Protocol):
    """A model that chooses its cameras and preprocesses images in the decoding processes."""

    @property
    def prepare(self) -> Prepare:
        """Per-image preprocessing. Must be picklable and idempotent."""
        ...

    def looks_at(self, episode: Episode) -> Sequence[str]:
        """Return the camera names; raise when the episode lacks one."""
        ...


def example_card(**changes: Any) -> ModelCard:
    """Return a card for examples and tests: a causal progress model with values from 0 to 1."""
    facts: dict[str, Any] = {
        "name": "example",
        "revision": "1",
        "licence": "Apache-2.0",
        "quantity": "progress",
        "low": 0.0,
        "high": 1.0,
        "causal": True,
        "comparable": True,
    }
    return ModelCard(**{**facts, **changes})
