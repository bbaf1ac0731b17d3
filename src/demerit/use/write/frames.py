"""A scored dataset as flat arrays of frames, and what happens to the frames that have no value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.labels import TRAINED_SOURCES, Event, Outcome, most_trusted, select_labels
from demerit.data.reward import Reward
from demerit.errors import BadInput, BadReward, UnreadableVideo, UnscoredFrames
from demerit.models.protocol import ModelCard
from demerit.use.write.formulas import (
    EpisodeSpans,
    Floats,
    Places,
    RewardRule,
    advantages_ahead,
    discount,
    normalise_groups,
    reward_steps,
    weigh_samples,
)

UnscoredRule = Literal["fail", "drop-episode", "interpolate", "weight-zero"]
AdvantageRule = Literal["n-step", "normalised", "group"]
Flags = npt.NDArray[np.bool_]
NOTHING = np.empty(0, dtype=np.float32)


@dataclass(frozen=True)
class RewardRecipe:
    """How values become rewards, and what happens to unscored frames."""

    unscored: tuple[UnscoredRule, ...] = ("fail",)
    """fail: an error. interpolate: a straight line between scored frames of an episode, never beyond them.
    drop-episode: leave out episodes with an unscored frame. weight-zero: no reward, and sample weight 0.
    interpolate goes first and can be followed by one of the others, for the frames that it cannot fill"""
    rule: RewardRule = "dense"
    gamma: float = 0.99
    """the discount of returns, advantages and potential rewards"""
    n: int = 50
    """frames that an advantage and a sample weight look ahead: the length of the policy's action chunk"""
    advantage: AdvantageRule = "n-step"
    """normalised: n-step, with mean 0 and standard deviation 1 in each task. group: the return of the whole episode
    compared with those of the other episodes of its task"""
    penalty: float = 0.0
    """what a step to a failing frame loses"""
    kappa: float = 0.01
    """RA-BC: a rise of more than this has full weight"""
    success_from: float | None = None
    """episodes without a success label are successes where the model's last probability of success reaches this"""

    def __post_init__(self) -> None:
        """Check the values."""
        rest = [name for name in self.unscored if name != "interpolate"]
        for name in self.unscored:
            if name not in get_args(UnscoredRule):
                raise BadInput("--unscored", f"some of {', '.join(get_args(UnscoredRule))}", repr(name))
        if not self.unscored or len(rest) > 1:
            raise BadInput("--unscored", "interpolate, and at most one other", ", ".join(self.unscored) or "nothing")
        for what, given, known in (("--reward", self.rule, RewardRule), ("--advantage", self.advantage, AdvantageRule)):
            if given not in get_args(known):
                raise BadInput(what, f"one of {', '.join(get_args(known))}", repr(given))
        if not 0 <= self.gamma <= 1:
            raise BadInput("--gamma", "a number from 0 to 1", self.gamma)
        if self.success_from is not None and not 0 <= self.success_from <= 1:
            raise BadInput("--success-from", "a probability from 0 to 1", self.success_from)
        if self.n < 1:
            raise BadInput("--ahead", "1 frame or more", self.n)
        if not (0 <= self.penalty < float("inf") and 0 <= self.kappa < float("inf")):
            raise BadInput("--penalty and --kappa", "0 or more", (self.penalty, self.kappa))

    @property
    def rest(self) -> UnscoredRule:
        """What happens to frames that are still unscored."""
        return next((name for name in self.unscored if name != "interpolate"), "fail")


@dataclass(frozen=True, eq=False)
class EpisodeFrames:
    """What is known of one episode's frames."""

    id: str
    task: str
    value: npt.NDArray[np.float32]
    """(frames,), NaN = unscored; empty if the frames cannot be counted"""
    failing: Flags
    success: bool | None = None
    has_event: bool = False
    """whether a label says when it failed"""
    why_missing: str = ""


@dataclass(frozen=True, eq=False)
class FrameRewards:
    """The frames of the kept episodes, in flat arrays."""

    model: str
    episodes: tuple[EpisodeFrames, ...]
    places: Places
    """the place of each kept episode in the dataset"""
    lengths: Places
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
    def index(self) -> Places:
        """The number of each kept frame among all frames of the dataset."""
        first = (np.cumsum(self.lengths) - self.lengths)[self.places]
        return np.arange(len(self.value)) + np.repeat(first - self.spans.starts, self.spans.lengths)

    @property
    def frame(self) -> Places:
        """The number of each frame in its episode."""
        return np.arange(len(self.value)) - self.spans.starts[self.spans.owner]

    @property
    def success(self) -> Flags | None:
        """For each frame, whether it is the last of a success; None if the outcome of an episode is unknown."""
        known = [episode.success for episode in self.episodes]
        if None in known:
            return None
        return np.asarray(self.spans.is_last & np.array(known, dtype=bool)[self.spans.owner])

    def of(self, column: Floats, place: int) -> Floats:
        """Return the part of a flat array that belongs to the n-th kept episode."""
        return column[self.spans.starts[place] :][: self.spans.lengths[place]]


def read_frames(episode: Episode, reward: Reward, recipe: RewardRecipe) -> EpisodeFrames:
    """Lay a reward out over all frames of its episode, with what the labels say of success and failure."""
    try:
        length = len(episode)
    except UnreadableVideo as error:
        return EpisodeFrames(episode.id, episode.instruction, NOTHING, NOTHING > 0, why_missing=str(error))
    value = np.full(length, np.nan, dtype=np.float32)
    value[reward.at] = reward.value
    labels = select_labels(episode.outcomes, TRAINED_SOURCES)
    verdict = most_trusted(label for label in labels if label.success is not None)
    success = None if verdict is None else verdict.success
    if success is None and recipe.success_from is not None and reward.success is not None and len(reward.success):
        chance = float(reward.success[-1])
        success = None if np.isnan(chance) else chance >= recipe.success_from
    why = reward.why_missing or f"the model scores {len(reward.at)} of {length} frames"
    failing, has_event = find_failing(labels, success, length), any(label.events for label in labels)
    return EpisodeFrames(episode.id, episode.instruction, value, failing, success, has_event, why)


def find_failing(labels: Sequence[Outcome], success: bool | None, length: int) -> Flags:
    """Mark the frames of a failure.

    A failure lasts from the first frame of its first event to the end; without an event only the last frame is marked.
    In an episode that succeeds or whose outcome is unknown, events are marked while they last.
    """
    failing = np.zeros(length, dtype=bool)
    told = most_trusted(label for label in labels if label.events)
    events: tuple[Event, ...] = () if told is None else told.events
    for event in events:
        failing[event.first : event.last + 1] = True
    if success is False:
        failing[min((event.first for event in events), default=length - 1) :] = True
    return failing


def fill_between(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Draw straight lines between scored frames; frames before the first and after the last one stay NaN."""
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return values
    filled = np.interp(np.arange(len(values)), known, values[known]).astype(np.float32)
    filled[: known[0]] = filled[known[-1] + 1 :] = np.nan
    return filled


def lay_out(episodes: Iterable[EpisodeFrames], recipe: RewardRecipe, card: ModelCard) -> FrameRewards:
    """Compute everything for all episodes of a dataset, in its order."""
    found = list(episodes)
    if not found:
        raise BadInput("dataset", "at least one episode", "none")
    filled = [fill_between(one.value) if "interpolate" in recipe.unscored else one.value for one in found]
    is_whole = np.array([len(values) > 0 and not np.isnan(values).any() for values in filled], dtype=bool)
    unscored = sum(int(np.isnan(one.value).sum()) for one in found)
    still = sum(int(np.isnan(values).sum()) for values in filled)
    if recipe.rest == "fail" and not is_whole.all():
        first = next(one for one, whole in zip(found, is_whole, strict=True) if not whole)
        raise UnscoredFrames(card.name, still, int((~is_whole).sum()), len(found), f"{first.id}: {first.why_missing}")
    places = np.flatnonzero(is_whole if recipe.rest == "drop-episode" else [len(values) > 0 for values in filled])
    if not any((~np.isnan(filled[place])).any() for place in places):
        example = f"{found[0].id}: {found[0].why_missing} (--unscored interpolate fills frames between scored ones)"
        raise BadReward(card.name, "all", f"every episode has unscored frames, e.g. {example}")
    kept = tuple(found[place] for place in places)
    spans = EpisodeSpans(np.array([len(one.value) for one in kept], dtype=np.int64))
    value = np.concatenate([filled[place] for place in places]).astype(np.float64)
    failing = np.concatenate([one.failing for one in kept])
    reward = reward_steps(value, failing, spans, recipe.rule, recipe.gamma, recipe.penalty)
    returns = discount(reward, spans, recipe.gamma)
    progress = None if card.low is None or card.high is None else (value - card.low) / (card.high - card.low)
    weight = None if progress is None else weigh_samples(progress, spans, recipe.n, recipe.kappa)
    return FrameRewards(
        model=card.name,
        episodes=kept,
        places=places,
        lengths=np.array([len(one.value) for one in found], dtype=np.int64),
        spans=spans,
        value=value,
        reward=reward,
        returns=returns,
        advantage=_advantages(recipe, value, failing, returns, spans, [one.task for one in kept]),
        weight=None if weight is None else np.where(np.isnan(weight + value + reward), 0.0, weight),
        progress=progress,
        unscored=unscored,
        interpolated=unscored - still,
        without_event=sum(one.success is False and not one.has_event for one in kept) if recipe.penalty else 0,
    )


def _advantages(
    recipe: RewardRecipe, value: Floats, failing: Flags, returns: Floats, spans: EpisodeSpans, tasks: list[str]
) -> Floats:
    group = np.unique(tasks, return_inverse=True)[1].astype(np.int64)
    if recipe.advantage == "group":
        return normalise_groups(returns[spans.starts], group)[spans.owner]
    steps = advantages_ahead(value, failing, spans, recipe.n, recipe.gamma, recipe.penalty)
    return normalise_groups(steps, group[spans.owner]) if recipe.advantage == "normalised" else steps
