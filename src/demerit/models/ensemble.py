"""An ensemble: the mean or the smallest value of several models, and how far they disagree.

    demerit score my_set --model ensemble:change+motion
    demerit score my_set --model min:rule:safe.yaml+default

The members must have the same range. A frame that one member leaves unscored is unscored, with that member's reason.
In `min`, a rule beside a model with bounds is a gate: the highest value while it holds, the lowest while it does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Floats, Floats32
from demerit.data.episode import Episode
from demerit.data.files import plain
from demerit.data.frames import Indices, short_hash
from demerit.data.reward import GENERATIONS, Reward, gather_doubts
from demerit.data.splits import SeenEpisodes, seen_by
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.models.live import CombinedEpisode
from demerit.models.loading import Listing
from demerit.models.protocol import LiveEpisode, LiveReward, ModelCard, Online, RewardModel, ShownModel
from demerit.models.rule import Rule, RuleGate

MIN_MEMBERS = 2
MAX_NAME_LENGTH = 80


class Ensemble(ShownModel):
    """The mean of its members at the frames that all of them look at."""

    listing = Listing(
        quantity="mean of the members' values",
        low=0.0,
        high=1.0,
        causal=False,
        licence="those of the members",
        about="The mean of several models of one range, and how far they disagree: ensemble:change+motion.",
        frames="as the members",
    )
    name, word = "ensemble", "mean"
    combine: Callable[..., Any] = staticmethod(np.mean)
    start: Callable[[str], LiveEpisode]

    def __init__(self, members: str | Sequence[str | RewardModel] = "") -> None:
        """Take models, their names, or one text with + between the names."""
        names: Sequence[str | RewardModel] = members.split("+") if isinstance(members, str) else members
        names = [name for name in names if name]
        if len(names) < MIN_MEMBERS:
            got = "none" if not names else "one"
            raise BadInput(self.name, f"at least two models, as in {self.name}:change+motion", got)
        self.members = self.adapt([load_model(name) if isinstance(name, str) else name for name in names])
        self.card = self._make_card([member.card for member in self.members])
        if all(isinstance(member, Online) for member in self.members):
            self.start = self._start

    def adapt(self, members: list[RewardModel]) -> list[RewardModel]:
        """Return the members as they take part."""
        return members

    @property
    def thread_safe(self) -> bool:
        """Whether several threads may use it at once."""
        return all(getattr(member, "thread_safe", False) for member in self.members)

    @property
    def seen(self) -> SeenEpisodes:
        """The episodes that a member learned from."""
        return reduce(or_, map(seen_by, self.members))

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Score with every member and combine, episode by episode."""
        rewards = [_score_member(member, episodes) for member in self.members]
        return [self._combine(episode, list(each)) for episode, *each in zip(episodes, *rewards, strict=True)]

    def _combine(self, episode: Episode, rewards: list[Reward]) -> Reward:
        facts: dict[str, Any] = {
            "members": {reward.model: plain(reward.final) for reward in rewards},
            "frames": {reward.model: len(reward.at) for reward in rewards},
            "camera": episode.main_camera,
        }
        if generations := [answer for reward in rewards for answer in reward.given.get(GENERATIONS, ())]:
            facts[GENERATIONS] = generations
        unscored = [reward for reward in rewards if not reward.scored]
        if unscored:
            reasons = "; ".join(f"{reward.model}: {reward.why_missing}" for reward in unscored)
            return Reward.unscored(self.card.name, episode.id, reasons, facts)
        at = _shared_frames(rewards)
        values = np.stack([_look_up(reward.at, reward.value, at) for reward in rewards])
        combined, spread = self.combine(values, axis=0), values.std(axis=0)
        why = _explain_gaps(rewards, at) if np.isnan(combined).any() else ""
        facts["disagreement"] = _summarise_spread(spread)
        facts |= gather_doubts(reward.given for reward in rewards)
        successes = [_look_up(reward.at, reward.success, at) for reward in rewards if reward.success is not None]
        success = self.combine(successes, axis=0).astype(np.float32) if len(successes) == len(rewards) else None
        return Reward(self.card.name, episode.id, at, combined.astype(np.float32), success, why, facts)

    def _start(self, instruction: str) -> LiveEpisode:
        runs = [member.start(instruction) for member in self.members if isinstance(member, Online)]
        return CombinedEpisode(runs, self._combine_live)

    def _combine_live(self, live: Sequence[LiveReward]) -> LiveReward:
        chances = [answer.success for answer in live if answer.success is not None]
        success = float(self.combine(chances)) if len(chances) == len(live) else None
        doubts = gather_doubts({**answer.given, "familiarity": answer.familiarity} for answer in live)
        value, familiarity = float(self.combine([answer.value for answer in live])), doubts.pop("familiarity", None)
        return LiveReward(value, success, familiarity, doubts)

    def _make_card(self, cards: list[ModelCard]) -> ModelCard:
        """Write the card; it claims only what all members claim."""
        _check_members(self.name, cards)
        names = "+".join(card.name for card in cards)
        identity = short_hash(*(card.hash().encode() for card in cards))
        quantities = list(dict.fromkeys(card.quantity for card in cards))
        looking = [card.frame_budget for card in cards if card.sees_pixels]
        budgets = [budget for budget in looking if budget is not None]
        return ModelCard(
            name=f"{self.name}-{names if len(names) <= MAX_NAME_LENGTH else f'of-{len(cards)}-{identity[:12]}'}",
            revision=identity[:12],
            licence=" AND ".join(dict.fromkeys(card.licence for card in cards)),
            quantity=quantities[0] if len(quantities) == 1 else f"{self.word} of {' and '.join(quantities)}",
            low=cards[0].low,
            high=cards[0].high,
            causal=all(card.causal for card in cards),
            comparable=all(card.comparable for card in cards),
            sees_pixels=bool(looking),
            frame_budget=max(budgets) if budgets and len(budgets) == len(looking) else None,
            reads_instruction=any(card.reads_instruction for card in cards),
            reads_signals=any(card.reads_signals for card in cards),
            weights_hash=identity,
            about=f"The {self.word} of {', '.join(card.name for card in cards)}. "
            "As wrong as they are where they err together.",
        )


class Smallest(Ensemble):
    """The smallest value of its members: all of them must be content."""

    listing = replace(
        Ensemble.listing,
        quantity="smallest of the members' values",
        about="The smallest value of several models of one range; a rule is a gate: min:rule:safe.yaml+default.",
    )
    name, word = "min", "smallest"
    combine = staticmethod(np.min)

    def adapt(self, members: list[RewardModel]) -> list[RewardModel]:
        """Turn rules into gates of the range of the others."""
        ranges = {(member.card.low, member.card.high) for member in members if not isinstance(member, Rule)}
        ((low, high),) = ranges if len(ranges) == 1 else [(None, None)]
        if low is None or high is None:
            return members
        return [RuleGate(member, low, high) if isinstance(member, Rule) else member for member in members]


def _check_members(name: str, cards: list[ModelCard]) -> None:
    twice = [model for model, count in Counter(card.name for card in cards).items() if count > 1]
    if twice:
        raise BadInput(name, "each model once", f"{', '.join(twice)} twice")
    if len({(card.low, card.high) for card in cards}) > 1:
        ranges = ", ".join(f"{card.name} from {_bound(card.low)} to {_bound(card.high)}" for card in cards)
        raise BadInput(name, "models of one range (demerit calibrate gives a model the range 0 to 1)", ranges)
    unbounded = cards[0].low is None or cards[0].high is None
    if unbounded and len({card.quantity for card in cards}) > 1:
        what = ", ".join(f"{card.name} with {card.quantity}" for card in cards)
        raise BadInput(name, "models of one quantity where values have no bounds", what)


def _bound(bound: float | None) -> str:
    return "no bound" if bound is None else f"{bound:g}"


def _score_member(member: RewardModel, episodes: Sequence[Episode]) -> list[Reward]:
    """Score with one member and check its values: a mean would hide one that is out of range."""
    rewards = member.score(episodes)
    if len(rewards) != len(episodes):
        name = member.card.name
        raise BadInput(f"ensemble member {name!r}", f"{len(episodes)} rewards", f"{len(rewards)}")
    for reward, episode in zip(rewards, episodes, strict=True):
        member.card.check(reward, episode)
    return rewards


def _shared_frames(rewards: list[Reward]) -> Indices:
    """Return the frames that all members score, and the last that any scores, so that no end goes missing silently."""
    common = reduce(np.intersect1d, [reward.at for reward in rewards])
    last = max(int(reward.at[-1]) for reward in rewards)
    return np.union1d(common, [last]).astype(np.int32)


def _look_up(frames: npt.NDArray[np.int32], numbers: Floats32, at: Indices) -> Floats:
    """Take the numbers of the frames `at`; NaN where a frame is not known."""
    place = np.minimum(np.searchsorted(frames, at), len(frames) - 1)
    return np.where(frames[place] == at, numbers[place].astype(np.float64), np.nan)


def _summarise_spread(spread: Floats) -> dict[str, float | None]:
    """Summarise the standard deviation between members: over the frames, at its largest, and at the end."""
    numbers = spread[~np.isnan(spread)]
    if not len(numbers):
        return {"mean": None, "largest": None, "end": None}
    return {"mean": float(numbers.mean()), "largest": float(numbers.max()), "end": plain(spread[-1])}


def _explain_gaps(rewards: list[Reward], at: Indices) -> str:
    gaps = [reward for reward in rewards if np.isnan(reward.value[np.isin(reward.at, at)]).any()]
    reasons = [f"{reward.model}: {reward.why_missing}" for reward in gaps]
    reasons += [f"{reward.model}: it does not score frame {at[-1]}" for reward in rewards if at[-1] not in reward.at]
    return "; ".join(reasons)
