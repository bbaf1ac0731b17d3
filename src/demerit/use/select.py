"""Best of K: pick one of several candidate rollouts, or imagined futures, by a model's values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.errors import BadInput, BadReward
from demerit.models import RewardModel, load_model


@dataclass(frozen=True, eq=False)
class Choice:
    """The picked candidate, and how clear the pick was."""

    index: int
    """the candidate with the highest value, and of those the highest probability of success; the first of equals"""
    values: npt.NDArray[np.float32]
    """each candidate's final value, in the quantity and range of the model's card; NaN = unscored"""
    margin: float
    """the highest value minus the next one; 0 if values did not decide, NaN if nothing else was scored"""
    ties: tuple[int, ...]
    """the other candidates with the same value and the same probability of success"""
    is_guess: bool
    """the picked candidate is unlike everything that the model learned from"""
    unscored: Mapping[int, str]
    """why candidates have no value; they are never picked"""


def pick(candidates: Sequence[Episode], model: str | RewardModel) -> Choice:
    """Pick the candidate whose final value is highest.

    Values of good rollouts often end at the same limit (1). Then the probability of success decides, if the model
    gives one: on simulated tasks, up to 12 points more of the picks succeeded (docs/results/best_of_k.md). The
    candidates are episodes of one task; their ids need not differ.

    Raises BadReward if no candidate can be scored, BadInput if the model's values cannot be compared.
    """
    judge = load_model(model) if isinstance(model, str) else model
    if not candidates:
        raise BadInput("candidates", "one or more episodes", "none")
    if not judge.card.comparable:
        raise BadInput(judge.card.name, "a model whose values can be compared between episodes", "one relative to each")
    return choose(judge.score(candidates))


def choose(rewards: Sequence[Reward]) -> Choice:
    """Pick by rewards that were computed before."""
    values = np.array([reward.final for reward in rewards], dtype=np.float32)
    unscored = {place: rewards[place].why_missing for place in np.flatnonzero(np.isnan(values)).tolist()}
    if len(unscored) == len(rewards):
        reasons = "; ".join(f"{reason} ({count})" for reason, count in Counter(unscored.values()).most_common(3))
        raise BadReward(rewards[0].model if rewards else "none", "all", f"no candidate has a final value: {reasons}")
    chances = np.array([-1.0 if one.success is None else np.nan_to_num(one.success[-1], nan=-1.0) for one in rewards])
    best = values == np.nanmax(values)
    index, *ties = np.flatnonzero(best & (chances == chances[best].max())).tolist()
    others = np.delete(values, index)
    margin = float("nan") if np.isnan(others).all() else float(values[index] - np.nanmax(others))
    return Choice(index, values, margin, tuple(ties), rewards[index].is_guess, unscored)
