"""A scored dataset as flat arrays of frames: rewards, returns, advantages, weights, and frames that have no value.

All arrays are flat: the frames of one episode follow those of the episode before (`EpisodeSpans`). Row t is the step
from frame t to frame t + 1; the last row of an episode has no next frame, and its own frame stands in for it. NaN is
unscored and makes everything NaN that is computed from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Bools, Floats, Floats32, Ints
from demerit.data.episode import TRAINED_SOURCES, Episode, Event, Outcome, most_trusted, select_labels
from demerit.data.reward import Reward
from demerit.errors import BadInput, UnreadableVideo, UnscoredFrames
from demerit.models.protocol import ModelCard

RewardRule = Literal["dense", "potential", "final"]
RABC_EPSILON = 1e-6


@dataclass(frozen=True, eq=False)
class EpisodeSpans:
    """Where the frames of each episode are in flat arrays."""

    lengths: Ints
    """frames per episode, each 1 or more"""

    @cached_property
    def starts(self) -> Ints:
        """The place of each episode's first frame."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def owner(self) -> Ints:
        """The episode of each frame."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def last(self) -> Ints:
        """For each frame, the place of the last frame of its episode."""
        return np.repeat(self.starts + self.lengths - 1, self.lengths)

    @cached_property
    def is_last(self) -> Bools:
        """Whether a frame is the last of its episode."""
        return np.equal(self.last, np.arange(len(self.last)))

    def ahead(self, frames: int) -> Ints:
        """For each frame, the place of the one that many frames later, at most the last of its episode."""
        return np.minimum(np.arange(len(self.last)) + frames, self.last)


def reward_steps(
    values: Floats, failing: Bools, spans: EpisodeSpans, rule: RewardRule, gamma: float, penalty: float
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
    values: Floats, failing: Bools, spans: EpisodeSpans, n: int, gamma: float, penalty: float
) -> Floats:
    """Compute n-step advantages with the model's value as the value function: how much it rises, less the penalties.

    A(t) = sum over k < n of gamma^k * p(t+k) + gamma^m * v(t+m) - v(t), where p is -penalty for a step to a failing
    frame, and m is n or the number of frames left in the episode.
    """
    total = discount(np.where(failing[spans.ahead(1)], -penalty, 0.0), spans, gamma)
    target, place = spans.ahead(n), np.arange(len(values))
    later = np.where(place + n <= spans.last, gamma ** float(n) * total[target], 0.0)
    return total - later + gamma ** (target - place) * values[target] - values


def normalise_groups(numbers: Floats, groups: Ints) -> Floats:
    """Subtract the mean of each group and divide by its standard deviation; 0 where all of a group are equal."""
    is_known = ~np.isnan(numbers)
    count = np.maximum(np.bincount(groups[is_known], minlength=groups.max(initial=-1) + 1), 1)
    mean = np.bincount(groups[is_known], numbers[is_known], len(count)) / count
    gap = numbers - mean[groups]
    spread = np.sqrt(np.bincount(groups[is_known], gap[is_known] ** 2, len(count)) / count)[groups]
    flat = spread <= np.finfo(np.float64).eps * np.maximum(1.0, np.abs(mean[groups]))  # rounding of equal numbers
    return np.where(flat, 0.0 * gap, gap / np.where(flat, 1.0, spread))


def weigh_samples(progress: Floats, spans: EpisodeSpans, chunk: int, kappa: float) -> Floats:
    """Compute the sample weights of RA-BC (SARM, arXiv 2509.25358, equations 8 and 9), as LeRobot's RABCWeights does.

    r = progress(t + chunk) - progress(t), to the last frame at most; mu (at least 0) and sigma of all r;
    w = 1 where r > kappa, clip((r - (mu - 2 sigma)) / (4 sigma + 1e-6), 0, 1) where 0 <= r <= kappa, else 0.
    Where r is unknown the weight is NaN; LeRobot would make it 1.
    """
    rise = progress[spans.ahead(chunk)] - progress
    rises = rise[~np.isnan(rise)]
    mu = max(float(rises.mean()), 0.0) if rises.size else 0.0
    sigma = max(float(rises.std()) if rises.size else 0.0, RABC_EPSILON)
    rounded: npt.NDArray[Any] = rise.astype(np.float32)  # as LeRobot does, so that both decide alike at kappa
    soft = np.clip((rounded - (mu - 2 * sigma)) / (4 * sigma + RABC_EPSILON), 0.0, 1.0)
    weights = np.where(rounded > np.float32(kappa), 1.0, np.where(rounded >= 0, soft, 0.0))
    return np.where(np.isnan(rise), np.nan, weights)


UnscoredRule = Literal["fail", "drop-episode", "interpolate", "weight-zero"]
SuccessSource = Literal["labels", "model"]
AdvantageRule = Literal["n-step", "normalised", "group"]
NOTHING = np.empty(0, dtype=np.float32)


@dataclass(frozen=True)
class RewardRecipe:
    """How values become rewards, and what happens to unscored frames."""

    unscored: tuple[UnscoredRule, ...] = ("fail",)
    """fail: an error. interpolate: a straight line between scored frames of an episode, never beyond them.
    drop-episode: leave out episodes with an unscored frame. weight-zero: no reward, and sample weight 0.
    interpolate goes first and can be followed by one of the others, for the frames that it cannot fill"""
    reward: RewardRule = "dense"
    gamma: float = 0.99
    """the discount of returns, advantages and potential rewards"""
    ahead: int = 50
    """frames that an advantage and a sample weight look ahead: the length of the policy's action chunk"""
    advantage: AdvantageRule = "n-step"
    """normalised: n-step, with mean 0 and standard deviation 1 in each task. group: the return of the whole episode
    compared with those of the other episodes of its task"""
    penalty: float = 0.0
    """what a step to a failing frame loses"""
    kappa: float = 0.01
    """RA-BC: a rise of more than this has full weight"""
    success: SuccessSource = "labels"
    """who says whether an episode succeeded; model: its verdict, where there is no label"""
    positive: float = 0.3
    """RECAP: the share of each task's frames whose advantage is positive"""
    tag: str = ""
    """the end of the names of RLinf's files; empty = the model's name"""

    def __post_init__(self) -> None:
        """Check the values."""
        rest = [name for name in self.unscored if name != "interpolate"]
        for name in self.unscored:
            if name not in get_args(UnscoredRule):
                raise BadInput("--unscored", f"some of {', '.join(get_args(UnscoredRule))}", repr(name))
        if not self.unscored or len(rest) > 1:
            raise BadInput("--unscored", "interpolate, and at most one other", ", ".join(self.unscored) or "nothing")
        for field, choices in (("reward", RewardRule), ("advantage", AdvantageRule), ("success", SuccessSource)):
            if getattr(self, field) not in get_args(choices):
                raise BadInput(field, f"one of {', '.join(get_args(choices))}", repr(getattr(self, field)))
        if not 0 <= self.gamma <= 1:
            raise BadInput("gamma", "a number from 0 to 1", self.gamma)
        if not 0 < self.positive < 1:
            raise BadInput("positive", "a share between 0 and 1", self.positive)
        if self.ahead < 1:
            raise BadInput("ahead", "1 frame or more", self.ahead)
        if not (0 <= self.penalty < float("inf") and 0 <= self.kappa < float("inf")):
            raise BadInput("penalty and kappa", "0 or more", (self.penalty, self.kappa))

    @property
    def rest(self) -> UnscoredRule:
        """What happens to frames that are still unscored."""
        return next((name for name in self.unscored if name != "interpolate"), "fail")


@dataclass(frozen=True, eq=False)
class EpisodeFrames:
    """What is known of one episode's frames."""

    id: str
    task: str
    value: Floats32
    """(frames,), NaN = unscored; empty if the frames cannot be counted"""
    failing: Bools
    success: bool | None = None
    has_event: bool = False
    """whether a label says when it failed"""
    why_missing: str = ""


@dataclass(frozen=True, eq=False)
class FrameRewards:
    """The frames of the kept episodes, in flat arrays."""

    model: str
    episodes: tuple[EpisodeFrames, ...]
    places: Ints
    """the place of each kept episode in the dataset"""
    lengths: Ints
    """frames of every episode of the dataset, also of the dropped ones"""
    spans: EpisodeSpans
    value: Floats
    """in the quantity and range of the model's card; NaN only with weight-zero, as below"""
    reward: Floats
    returns: Floats
    advantage: Floats
    weight: Floats | None
    """RA-BC, 0 to 1, never NaN; None if the model's range is unknown"""
    progress: Floats | None
    """the value on the scale 0 to 1; None if the model's range is unknown"""
    unscored: int
    """frames that the model gave no value, in all episodes"""
    interpolated: int
    without_event: int
    """failures that get their penalty at the last frame because no event says when they failed"""

    @property
    def dropped(self) -> int:
        """The number of dropped episodes."""
        return len(self.lengths) - len(self.places)

    @property
    def index(self) -> Ints:
        """The number of each kept frame among all frames of the dataset."""
        first = (np.cumsum(self.lengths) - self.lengths)[self.places]
        return np.arange(len(self.value)) + np.repeat(first - self.spans.starts, self.spans.lengths)

    @property
    def frame(self) -> Ints:
        """The number of each frame in its episode."""
        return np.arange(len(self.value)) - self.spans.starts[self.spans.owner]

    @property
    def success(self) -> Bools | None:
        """For each frame, whether it is the last of a success; None if the outcome of an episode is unknown."""
        outcomes = [episode.success for episode in self.episodes]
        if None in outcomes:
            return None
        return np.asarray(self.spans.is_last & np.array(outcomes, dtype=bool)[self.spans.owner])

    def of(self, column: Floats, place: int) -> Floats:
        """Return the part of a flat array that belongs to the n-th kept episode."""
        return column[self.spans.starts[place] :][: self.spans.lengths[place]]


def label_advantages(frames: FrameRewards, positive: float) -> tuple[Bools, dict[str, float]]:
    """Call the highest advantages of each task positive; return that for each frame, and the thresholds by task.

    A threshold is the (1 - `positive`) quantile of the task's frames. Frames at it are positive, so equal advantages
    can make the share larger.
    """
    tasks, group = np.unique([episode.task for episode in frames.episodes], return_inverse=True)
    owner = group[frames.spans.owner]
    limits = np.array([np.quantile(frames.advantage[owner == place], 1 - positive) for place in range(len(tasks))])
    return np.asarray(frames.advantage >= limits[owner]), dict(zip(tasks.tolist(), limits.tolist(), strict=True))


def read_frames(episode: Episode, reward: Reward, recipe: RewardRecipe) -> EpisodeFrames:
    """Lay a reward out over all frames of its episode, with what the labels say of success and failure."""
    try:
        length = len(episode)
    except UnreadableVideo as error:
        return EpisodeFrames(episode.id, episode.instruction, NOTHING, NOTHING > 0, why_missing=str(error))
    value = np.full(length, np.nan, dtype=np.float32)
    value[reward.at] = reward.value
    labels = select_labels(episode.labels, TRAINED_SOURCES)
    label = most_trusted(label for label in labels if label.success is not None)
    success = None if label is None else label.success
    if success is None and recipe.success == "model":
        success = reward.verdict.success
    why = reward.why_missing or f"the model scores {len(reward.at)} of {length} frames"
    failing, has_event = find_failing(labels, success, length), any(label.events for label in labels)
    return EpisodeFrames(episode.id, episode.instruction, value, failing, success, has_event, why)


def find_failing(labels: Sequence[Outcome], success: bool | None, length: int) -> Bools:
    """Mark the frames of a failure.

    A failure lasts from the first frame of its first event to the end; without an event only the last frame is marked.
    In an episode that succeeds or whose outcome is unknown, events are marked while they last.
    """
    failing = np.zeros(length, dtype=bool)
    outcome = most_trusted(label for label in labels if label.events)
    events: tuple[Event, ...] = () if outcome is None else outcome.events
    for event in events:
        failing[event.first : event.last + 1] = True
    if success is False:
        failing[min((event.first for event in events), default=length - 1) :] = True
    return failing


def fill_between(values: Floats32) -> Floats32:
    """Draw straight lines between scored frames; frames before the first and after the last one stay NaN."""
    places = np.flatnonzero(~np.isnan(values))
    if not len(places):
        return values
    filled = np.interp(np.arange(len(values)), places, values[places]).astype(np.float32)
    filled[: places[0]] = filled[places[-1] + 1 :] = np.nan
    return filled


def lay_out(episodes: Iterable[EpisodeFrames], recipe: RewardRecipe, card: ModelCard) -> FrameRewards:
    """Compute everything for all episodes of a dataset, in its order."""
    rows = list(episodes)
    if not rows:
        raise BadInput("dataset", "at least one episode", "none")
    filled = [fill_between(row.value) if "interpolate" in recipe.unscored else row.value for row in rows]
    is_whole = np.array([len(values) > 0 and not np.isnan(values).any() for values in filled], dtype=bool)
    unscored = sum(int(np.isnan(row.value).sum()) for row in rows)
    still = sum(int(np.isnan(values).sum()) for values in filled)
    if recipe.rest == "fail" and not is_whole.all():
        first = next(row for row, whole in zip(rows, is_whole, strict=True) if not whole)
        raise UnscoredFrames(card.name, still, int((~is_whole).sum()), len(rows), f"{first.id}: {first.why_missing}")
    places = np.flatnonzero(is_whole if recipe.rest == "drop-episode" else [len(values) > 0 for values in filled])
    if not any((~np.isnan(filled[place])).any() for place in places):
        example = f"{rows[0].id}: {rows[0].why_missing} (--unscored interpolate fills frames between scored ones)"
        raise BadInput(card.name, f"episodes to keep by --unscored {recipe.rest}", f"none, e.g. {example}")
    kept = tuple(rows[place] for place in places)
    spans = EpisodeSpans(np.array([len(row.value) for row in kept], dtype=np.int64))
    value = np.concatenate([filled[place] for place in places]).astype(np.float64)
    failing = np.concatenate([row.failing for row in kept])
    reward = reward_steps(value, failing, spans, recipe.reward, recipe.gamma, recipe.penalty)
    returns = discount(reward, spans, recipe.gamma)
    progress = None if card.low is None or card.high is None else (value - card.low) / (card.high - card.low)
    weight = None if progress is None else weigh_samples(progress, spans, recipe.ahead, recipe.kappa)
    return FrameRewards(
        model=card.name,
        episodes=kept,
        places=places,
        lengths=np.array([len(row.value) for row in rows], dtype=np.int64),
        spans=spans,
        value=value,
        reward=reward,
        returns=returns,
        advantage=_advantages(recipe, value, failing, returns, spans, [row.task for row in kept]),
        weight=None if weight is None else np.where(np.isnan(weight + value + reward), 0.0, weight),
        progress=progress,
        unscored=unscored,
        interpolated=unscored - still,
        without_event=sum(row.success is False and not row.has_event for row in kept) if recipe.penalty else 0,
    )


def _advantages(
    recipe: RewardRecipe, value: Floats, failing: Bools, returns: Floats, spans: EpisodeSpans, tasks: list[str]
) -> Floats:
    group = np.unique(tasks, return_inverse=True)[1].astype(np.int64)
    if recipe.advantage == "group":
        return normalise_groups(returns[spans.starts], group)[spans.owner]
    steps = advantages_ahead(value, failing, spans, recipe.ahead, recipe.gamma, recipe.penalty)
    return normalise_groups(steps, group[spans.owner]) if recipe.advantage == "normalised" else steps
