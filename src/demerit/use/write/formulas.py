"""From the values of frames to rewards, returns, advantages and sample weights.

All arrays are flat: the frames of one episode follow those of the episode before (`EpisodeSpans`). Row t is the step
from frame t to frame t + 1; the last row of an episode has no next frame, and its own frame stands in for it. NaN is
unscored and makes everything NaN that is computed from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
RewardRule = Literal["dense", "potential", "final"]
RABC_EPSILON = 1e-6


@dataclass(frozen=True, eq=False)
class EpisodeSpans:
    """Where the frames of each episode are in flat arrays."""

    lengths: Places
    """frames per episode, each 1 or more"""

    @cached_property
    def starts(self) -> Places:
        """The place of each episode's first frame."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def owner(self) -> Places:
        """The episode of each frame."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def last(self) -> Places:
        """For each frame, the place of the last frame of its episode."""
        return np.repeat(self.starts + self.lengths - 1, self.lengths)

    @cached_property
    def is_last(self) -> npt.NDArray[np.bool_]:
        """Whether a frame is the last of its episode."""
        return np.equal(self.last, np.arange(len(self.last)))

    def ahead(self, frames: int) -> Places:
        """For each frame, the place of the one that many frames later, at most the last of its episode."""
        return np.minimum(np.arange(len(self.last)) + frames, self.last)


def reward_steps(
    values: Floats, failing: npt.NDArray[np.bool_], spans: EpisodeSpans, rule: RewardRule, gamma: float, penalty: float
) -> Floats:
    """Reward each step by the frame it leads to.

    dense: v(t+1). potential: gamma * v(t+1) - v(t), 0 at the last row. final: v at the last row, 0 before it. A step
    to a failing frame (or, at the last row, of one) loses `penalty`.
    """
    after = values[spans.ahead(1)]
    if rule == "dense":
        rewards = after
    elif rule == "potential":
        rewards = np.where(spans.is_last, 0.0 * values, gamma * after - values)
    else:
        rewards = np.where(spans.is_last, values, 0.0)
    return rewards - penalty * failing[spans.ahead(1)]


def discount(rewards: Floats, spans: EpisodeSpans, gamma: float) -> Floats:
    """Sum the rewards from each row to the end of its episode: G(t) = r(t) + gamma * G(t+1).

    Sums of 1, 2, 4, 8 ... rows, so that the work is a few passes over all frames.
    """
    sums, place, step = rewards.astype(np.float64), np.arange(len(rewards)), 1
    while step < int(spans.lengths.max(initial=0)):
        inside = place + step <= spans.last
        sums = sums + np.where(inside, gamma**step * sums[np.minimum(place + step, spans.last)], 0.0)
        step *= 2
    return sums


def advantages_ahead(
    values: Floats, failing: npt.NDArray[np.bool_], spans: EpisodeSpans, n: int, gamma: float, penalty: float
) -> Floats:
    """Compute n-step advantages with the model's value as the value function: how much it rises, less the penalties.

    A(t) = sum over k < n of gamma^k * p(t+k) + gamma^m * v(t+m) - v(t), where p is -penalty for a step to a failing
    frame, and m is n or the number of frames left in the episode.
    """
    total = discount(np.where(failing[spans.ahead(1)], -penalty, 0.0), spans, gamma)
    target, place = spans.ahead(n), np.arange(len(values))
    later = np.where(place + n <= spans.last, gamma ** float(n) * total[target], 0.0)
    return total - later + gamma ** (target - place) * values[target] - values


def normalise_groups(numbers: Floats, groups: Places) -> Floats:
    """Subtract the mean of each group and divide by its standard deviation; 0 where all of a group are equal."""
    known = ~np.isnan(numbers)
    count = np.maximum(np.bincount(groups[known], minlength=groups.max(initial=-1) + 1), 1)
    mean = np.bincount(groups[known], numbers[known], len(count)) / count
    gap = numbers - mean[groups]
    spread = np.sqrt(np.bincount(groups[known], gap[known] ** 2, len(count)) / count)[groups]
    flat = spread <= np.finfo(np.float64).eps * np.maximum(1.0, np.abs(mean[groups]))  # rounding of equal numbers
    return np.where(flat, 0.0 * gap, gap / np.where(flat, 1.0, spread))


def weigh_samples(progress: Floats, spans: EpisodeSpans, chunk: int, kappa: float) -> Floats:
    """Compute the sample weights of RA-BC (SARM, arXiv 2509.25358, equations 8 and 9), as LeRobot's RABCWeights does.

    r = progress(t + chunk) - progress(t), to the last frame at most; mu (at least 0) and sigma of all r;
    w = 1 where r > kappa, clip((r - (mu - 2 sigma)) / (4 sigma + 1e-6), 0, 1) where 0 <= r <= kappa, else 0.
    Where r is unknown the weight is NaN; LeRobot would make it 1.
    """
    rise = progress[spans.ahead(chunk)] - progress
    known = rise[~np.isnan(rise)]
    mu = max(float(known.mean()), 0.0) if known.size else 0.0
    sigma = max(float(known.std()) if known.size else 0.0, RABC_EPSILON)
    rounded: npt.NDArray[Any] = rise.astype(np.float32)  # as LeRobot does, so that both decide alike at kappa
    soft = np.clip((rounded - (mu - 2 * sigma)) / (4 * sigma + RABC_EPSILON), 0.0, 1.0)
    weights = np.where(rounded > np.float32(kappa), 1.0, np.where(rounded >= 0, soft, 0.0))
    return np.where(np.isnan(rise), np.nan, weights)
