"""A reward: one model's values for one episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.notebook import RewardPlot, draw_reward
from demerit.errors import BadReward

UNFAMILIAR = 0.01
"""a value of an episode below this familiarity is a guess: of episodes like those learned from, 1% are"""


@dataclass(frozen=True, eq=False)
class Reward:
    """A model's values by frame. Unscored frames are NaN with a reason; nothing is filled in."""

    model: str
    episode: str
    at: npt.NDArray[np.int32]
    """indices of the scored frames, strictly increasing"""
    value: npt.NDArray[np.float32]
    """a value per index, in the quantity and range of the model's card; NaN = unscored"""
    success: npt.NDArray[np.float32] | None = None
    """probability of success at each index, if the model predicts it"""
    why_missing: str = ""
    """why values are NaN, or why nothing was scored"""
    given: Mapping[str, Any] = field(default_factory=dict)
    """what the model was given: camera, number of frames, whether there was an instruction ..."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", self._column("at", self.at, np.int32))
        object.__setattr__(self, "value", self._column("value", self.value, np.float32))
        if self.success is not None:
            object.__setattr__(self, "success", self._column("success", self.success, np.float32))
        self._check()

    @classmethod
    def unscored(cls, model: str, episode: str, reason: str, given: Mapping[str, Any] | None = None) -> Reward:
        """Make a reward without values, with the reason."""
        nothing = np.empty(0)
        return cls(model, episode, nothing.astype(np.int32), nothing.astype(np.float32), None, reason, given or {})

    @property
    def scored(self) -> bool:
        """Whether at least one frame has a value."""
        return bool(np.any(~np.isnan(self.value)))

    @property
    def final(self) -> float:
        """The value at the last index; NaN when it is unscored."""
        return float(self.value[-1]) if len(self.value) else float("nan")

    @property
    def familiarity(self) -> float | None:
        """How much the episode looks like what the model learned from, 0 to 1; 0.5 = typical, None = unknown."""
        found = self.given.get("familiarity")
        return float(found) if isinstance(found, int | float) and 0 <= found <= 1 else None

    @property
    def is_guess(self) -> bool:
        """Whether the episode is unlike everything that the model learned from."""
        return self.familiarity is not None and self.familiarity < UNFAMILIAR

    def plot(self) -> RewardPlot:
        """Draw values (and probabilities of success) over frames; unscored frames are gaps. Notebooks show it."""
        return RewardPlot(draw_reward(self))

    def __repr__(self) -> str:
        if not self.scored:
            return f"Reward({self.model!r}, {self.episode!r}, unscored: {self.why_missing})"
        missing = int(np.isnan(self.value).sum())
        note = f", {missing} unscored: {self.why_missing}" if missing else ""
        return f"Reward({self.model!r}, {self.episode!r}, {len(self.at)} frames, final={self.final:.3f}{note})"

    def _column(self, name: str, values: npt.ArrayLike, dtype: type[np.generic]) -> npt.NDArray[Any]:
        column = np.array(values)
        if column.ndim != 1:
            raise BadReward(self.model, self.episode, f"{name} has shape {column.shape} instead of one number a frame")
        if column.size and not np.issubdtype(column.dtype, np.number):
            raise BadReward(self.model, self.episode, f"{name} holds {column.dtype} instead of numbers")
        if dtype is np.int32 and column.size and not np.array_equal(column, column.astype(np.int32)):
            raise BadReward(self.model, self.episode, f"{name} holds numbers that are not frame indices")
        column = column.astype(dtype)
        column.setflags(write=False)
        return column

    def _check(self) -> None:
        def fail(reason: str) -> None:
            raise BadReward(self.model, self.episode, reason)

        if len(self.at) != len(self.value):
            fail(f"{len(self.at)} frame indices but {len(self.value)} values")
        if self.success is not None and len(self.success) != len(self.at):
            fail(f"{len(self.at)} frame indices but {len(self.success)} success probabilities")
        if len(self.at) and (self.at[0] < 0 or bool(np.any(np.diff(self.at) <= 0))):
            fail("frame indices are not increasing from 0")
        if bool(np.any(np.isinf(self.value))):
            fail("a value is infinite")
        missing = not len(self.value) or bool(np.any(np.isnan(self.value)))
        if missing and not self.why_missing:
            fail("values are missing and no reason is given")
        if not missing and self.why_missing:
            fail(f"a reason for missing values ({self.why_missing!r}), but none is missing")
