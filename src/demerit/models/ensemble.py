"""An ensemble: the mean of several models, and how far they disagree.

    demerit score my_set --model ensemble:change+motion

A mean of numbers that mean different things is no number, so the members' ranges must agree; and nothing is averaged
over fewer members than there are: where one says nothing, the ensemble says nothing, with that member's reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.frames import Images, Indices, short_hash
from demerit.data.reward import Reward
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.models.listing import Listing
from demerit.models.protocol import ModelCard, Online, RewardModel

Floats = npt.NDArray[np.float64]
FEWEST = 2
LONGEST_NAME = 80


class Ensemble:
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
    reset: Callable[[str], None]
    step: Callable[[Images], float]

    def __init__(self, members: str | Sequence[str | RewardModel] = "") -> None:
        """`members` are models or their names, or names with + between them."""
        names: Sequence[str | RewardModel] = members.split("+") if isinstance(members, str) else members
        names = [one for one in names if one]
        if len(names) < FEWEST:
            got = "none" if not names else "one"
            raise BadInput("ensemble", "at least two models to average, as in ensemble:change+motion", got)
        self.members = [load_model(one) if isinstance(one, str) else one for one in names]
        self.card = _card([member.card for member in self.members])
        if all(isinstance(member, Online) for member in self.members):
            self.reset, self.step = self._reset, self._step

    @property
    def seen(self) -> frozenset[str]:
        """Marks of the episodes that a member was fitted to."""
        return frozenset().union(*(getattr(member, "seen", ()) for member in self.members))

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Ask every member and average, episode by episode."""
        answers = [_answers(member, episodes) for member in self.members]
        return [self._mean(episode, list(said)) for episode, *said in zip(episodes, *answers, strict=True)]

    def _mean(self, episode: Episode, said: list[Reward]) -> Reward:
        given: dict[str, Any] = {
            "members": {one.model: _number(one.final) for one in said},
            "frames": {one.model: len(one.at) for one in said},
            "camera": episode.main_camera,
        }
        silent = [one for one in said if not one.scored]
        if silent:
            return Reward.unscored(self.card.name, episode.id, _reasons(silent), given)
        at = _shared(said)
        values = np.stack([_at(one.at, one.value, at) for one in said])
        mean, spread = values.mean(axis=0), values.std(axis=0)
        why = _reasons_at(said, at) if np.isnan(mean).any() else ""
        given["disagreement"] = _disagreement(spread)
        return Reward(self.card.name, episode.id, at, mean.astype(np.float32), _mean_success(said, at), why, given)

    def _reset(self, instruction: str) -> None:
        for member in self.members:
            assert isinstance(member, Online)
            member.reset(instruction)

    def _step(self, frame: Images) -> float:
        said = [member.step(frame) for member in self.members if isinstance(member, Online)]
        return float(np.mean(said))


def _card(cards: list[ModelCard]) -> ModelCard:
    """Say what the mean is: it promises only what all members do."""
    _refuse_what_has_no_mean(cards)
    names = "+".join(card.name for card in cards)
    identity = short_hash(*(card.hash().encode() for card in cards))
    quantities = list(dict.fromkeys(card.quantity for card in cards))
    looking = [card.frame_budget for card in cards if card.sees_pixels]
    budgets = [budget for budget in looking if budget is not None]
    return ModelCard(
        name=f"ensemble-{names}" if len(names) <= LONGEST_NAME else f"ensemble-of-{len(cards)}-{identity[:12]}",
        revision=identity[:12],
        licence=" AND ".join(dict.fromkeys(card.licence for card in cards)),
        quantity=quantities[0] if len(quantities) == 1 else f"mean of {' and '.join(quantities)}",
        low=cards[0].low,
        high=cards[0].high,
        causal=all(card.causal for card in cards),
        comparable=all(card.comparable for card in cards),
        sees_pixels=bool(looking),
        frame_budget=max(budgets) if budgets and len(budgets) == len(looking) else None,
        reads_instruction=any(card.reads_instruction for card in cards),
        weights_hash=identity,
        about=f"The mean of {', '.join(card.name for card in cards)}. As wrong as they are where they err together.",
    )


def _refuse_what_has_no_mean(cards: list[ModelCard]) -> None:
    twice = [name for name, count in Counter(card.name for card in cards).items() if count > 1]
    if twice:
        raise BadInput("ensemble", "each model once", f"{', '.join(twice)} twice")
    if len({(card.low, card.high) for card in cards}) > 1:
        ranges = ", ".join(f"{card.name} from {_bound(card.low)} to {_bound(card.high)}" for card in cards)
        raise BadInput("ensemble", "models of one range (demerit calibrate gives a model the range 0 to 1)", ranges)
    unbounded = cards[0].low is None or cards[0].high is None
    if unbounded and len({card.quantity for card in cards}) > 1:
        what = ", ".join(f"{card.name} with {card.quantity}" for card in cards)
        raise BadInput("ensemble", "models of one quantity where values have no bounds", what)


def _bound(bound: float | None) -> str:
    return "no bound" if bound is None else f"{bound:g}"


def _answers(member: RewardModel, episodes: Sequence[Episode]) -> list[Reward]:
    """Ask a member, and hold it to its own card: a mean would hide a value outside its range."""
    rewards = member.score(episodes)
    if len(rewards) != len(episodes):
        name = member.card.name
        raise BadInput(f"ensemble member {name!r}", f"{len(episodes)} rewards", f"{len(rewards)}")
    for reward, episode in zip(rewards, episodes, strict=True):
        member.card.check(reward, episode)
    return rewards


def _shared(said: list[Reward]) -> Indices:
    """Return the frames that all members look at, and the last that any does: nobody's end goes missing unsaid."""
    common = reduce(np.intersect1d, [one.at for one in said])
    last = max(int(one.at[-1]) for one in said)
    return np.union1d(common, [last]).astype(np.int32)


def _at(known: npt.NDArray[np.int32], numbers: npt.NDArray[np.float32], at: Indices) -> Floats:
    """Look numbers up by frame; NaN for a frame that is not there."""
    place = np.minimum(np.searchsorted(known, at), len(known) - 1)
    return np.where(known[place] == at, numbers[place].astype(np.float64), np.nan)


def _mean_success(said: list[Reward], at: Indices) -> npt.NDArray[np.float32] | None:
    """Average the probabilities of success, when all members give one."""
    found = [_at(one.at, one.success, at) for one in said if one.success is not None]
    return np.mean(found, axis=0).astype(np.float32) if len(found) == len(said) else None


def _disagreement(spread: Floats) -> dict[str, float | None]:
    """Summarise the standard deviation between members: over the frames, at its largest, and at the end."""
    known = spread[~np.isnan(spread)]
    if not len(known):
        return {"mean": None, "largest": None, "end": None}
    return {"mean": float(known.mean()), "largest": float(known.max()), "end": _number(float(spread[-1]))}


def _reasons_at(said: list[Reward], at: Indices) -> str:
    reasons = [_reason(one) for one in said if np.isnan(one.value[np.isin(one.at, at)]).any()]
    reasons += [f"{one.model}: it does not look at frame {at[-1]}" for one in said if at[-1] not in one.at]
    return "; ".join(reasons)


def _reasons(silent: list[Reward]) -> str:
    return "; ".join(_reason(one) for one in silent)


def _reason(reward: Reward) -> str:
    return f"{reward.model}: {reward.why_missing}"


def _number(value: float) -> float | None:
    """NaN is not JSON."""
    return None if np.isnan(value) else float(value)
