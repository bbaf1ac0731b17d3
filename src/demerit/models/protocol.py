"""What a reward model is: a card that says what its numbers mean, and `score`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from demerit.data.episode import Episode, safe_name
from demerit.data.frames import Images, Indices, Prepare, short_hash, spread
from demerit.data.reward import Reward
from demerit.errors import BadInput, BadReward


@dataclass(frozen=True)
class ModelCard:
    """What a model's numbers are, and what it takes to get them."""

    name: str
    revision: str
    licence: str
    quantity: str
    """what the value is: 'progress', 'grade', 'log-probability of success' ..."""
    low: float | None
    """smallest possible value, None when unbounded"""
    high: float | None
    causal: bool
    """a frame's value never changes when later frames are cut off"""
    comparable: bool
    """values of two episodes may be compared (false for per-episode normalised values)"""
    sees_pixels: bool = True
    frame_budget: int | None = None
    """how many frames, spread over the episode, it looks at; None = every frame"""
    reads_instruction: bool = True
    weights_hash: str = ""
    rounding: float = 0.0
    """how far a value may move when other things are computed beside it: half precision rounds as it comes"""
    about: str = ""
    """one honest sentence on what it is and what it cannot do"""

    def __post_init__(self) -> None:
        """Refuse a card that could not name a folder or that has an empty range."""
        safe_name(self.name)
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise BadInput(f"card of {self.name!r}", "low < high", (self.low, self.high))
        if not 0 <= self.rounding < float("inf"):
            raise BadInput(f"card of {self.name!r}", "a rounding of 0 or more", self.rounding)
        if self.frame_budget is not None and self.frame_budget < 1:
            raise BadInput(f"card of {self.name!r}", "a frame budget of at least 1", self.frame_budget)

    def hash(self) -> str:
        """Identify the model: rewards made under another card are stale."""
        facts = asdict(self)
        if not self.rounding:  # cards of before it was asked for stay the same
            del facts["rounding"]
        return short_hash(json.dumps(facts, sort_keys=True).encode())

    def wanted(self, length: int) -> Indices:
        """Which frames of an episode this model looks at."""
        if not self.sees_pixels:
            return np.empty(0, dtype=np.int32)
        return spread(length, length if self.frame_budget is None else self.frame_budget)

    def check(self, reward: Reward, episode: Episode) -> None:
        """Refuse a reward that is not this model's, not this episode's or outside the declared range."""
        if reward.episode != episode.id:
            raise BadReward(self.name, episode.id, f"the answer names episode {reward.episode!r}")
        if len(reward.at) and int(reward.at[-1]) >= len(episode):
            raise BadReward(self.name, episode.id, f"frame {reward.at[-1]} is scored, of {len(episode)} frames")
        known = reward.value[~np.isnan(reward.value)].astype(np.float64)
        slack = 1e-6
        for bound, beyond in ((self.low, np.less), (self.high, np.greater)):
            if bound is not None and known.size:
                sign = 1 if beyond is np.greater else -1
                worst = float(known.max() if sign > 0 else known.min())
                if sign * (worst - bound) > slack:
                    raise BadReward(self.name, episode.id, f"{worst:g} is outside [{self.low}, {self.high}]")


@runtime_checkable
class RewardModel(Protocol):
    """Anything that scores episodes."""

    @property
    def card(self) -> ModelCard:
        """What the numbers mean."""
        ...

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Score each episode, in order. An episode that cannot be scored comes back unscored with the reason."""
        ...


@runtime_checkable
class Comparer(Protocol):
    """A model that can also say which of two episodes is better."""

    def prefer(self, pairs: Sequence[tuple[Episode, Episode]]) -> list[float]:
        """Probability that the first of each pair is the better one; NaN when it cannot tell."""
        ...


@runtime_checkable
class Online(Protocol):
    """A model that can also follow a robot live."""

    def reset(self, instruction: str) -> None:
        """Begin a new episode."""
        ...

    def step(self, frame: Images) -> float:
        """Take the next (height, width, 3) uint8 RGB frame, return its value; NaN when unscored."""
        ...


@runtime_checkable
class Prepares(Protocol):
    """A model that says which cameras it looks at, and at what size: that is then done where frames are decoded."""

    @property
    def prepare(self) -> Prepare:
        """What becomes of pictures first: picklable, each picture by itself, and doing it twice changes nothing."""
        ...

    def looks_at(self, episode: Episode) -> Sequence[str]:
        """Name the cameras; one that the episode has not got is an error."""
        ...


def example_card(**changes: Any) -> ModelCard:
    """Return a card to copy from: a causal progress model with values from 0 to 1."""
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
