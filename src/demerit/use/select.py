"""Best of K: pick one of several rollouts, or action chunks with their imagined futures, by a model's values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.frames import RGB, Frames, Images
from demerit.data.reward import Reward, gather_doubts
from demerit.errors import BadInput, BadReward
from demerit.models import RewardModel, load_model

Clip = Images | Mapping[str, Images]
"""(n, height, width, 3) uint8 RGB frames, or such frames by camera, the main camera first"""
Chunk = TypeVar("Chunk")
IS_CLIP = RGB + 1
"""dimensions of a clip; several in one array have one more"""


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


def pick(candidates: Iterable[Episode], model: str | RewardModel) -> Choice:
    """Pick the candidate whose final value is highest.

    Values of good rollouts often end at the same limit (1). Then the probability of success decides, if the model
    gives one: on simulated tasks, up to 12 points more of the picks succeeded (docs/results/best_of_k.md). The
    candidates are episodes of one task; their ids need not differ.

    Raises BadReward if no candidate can be scored, BadInput if the model's values cannot be compared.
    """
    episodes = list(candidates) if isinstance(candidates, Iterable) else [candidates]
    strange = [type(episode).__name__ for episode in episodes if not isinstance(episode, Episode)]
    if strange or not episodes:
        got = repr(candidates) if isinstance(candidates, str) else (strange or ["none"])[0]
        raise BadInput("candidates", "one or more episodes, as in demerit.open_dataset(PATH)", got)
    return choose(_load_judge(model).score(episodes))


def pick_chunk(
    chunks: Sequence[Chunk],
    imagine: Callable[[Clip, Chunk], Clip | Sequence[Clip]],
    frames: Clip,
    model: str | RewardModel,
    instruction: str,
    fps: float = 10.0,
) -> Choice:
    """Pick the action chunk whose imagined futures have the highest mean final value.

    The mean over several futures estimates the expected reward of a chunk, for a world that does not always do the
    same. Mean probabilities of success decide between equal means, as in `pick`.

    Args:
        chunks: the candidates, e.g. of `PolicyClient.sample_chunks`.
        imagine: takes `frames` and a chunk; returns the frames that follow, or a sequence of several such futures.
        frames: what the cameras have shown so far, at least the newest frame. The model scores it with every future.
        model: a model or its name.
        instruction: the task.
        fps: frames per second, of both.

    Raises BadReward if no chunk can be scored: one with a future that the model cannot score has no value.
    """
    judge, past = _load_judge(model), _by_camera("frames", frames)
    futures = [_list_futures(imagine(frames, chunk)) for chunk in chunks]
    if not futures:
        raise BadInput("chunks", "one or more", "none")
    episodes = [
        Episode(f"chunk {i}, future {j}", instruction, _join(past, future, fps))
        for i, group in enumerate(futures)
        for j, future in enumerate(group)
    ]
    rewards = iter(judge.score(episodes))
    return choose([_average([next(rewards) for _ in some]) for some in futures])


def _load_judge(model: str | RewardModel) -> RewardModel:
    judge = load_model(model) if isinstance(model, str) else model
    if not isinstance(judge, RewardModel):
        raise BadInput("model", "a model or its name", type(judge).__name__)
    if not judge.card.comparable:
        raise BadInput(judge.card.name, "a model whose values can be compared between episodes", "one relative to each")
    return judge


def _by_camera(what: str, clip: Any) -> dict[str, Images]:
    """Return the frames of each camera; refuse what is no clip."""
    views = {
        name: np.asarray(frames) for name, frames in (clip if isinstance(clip, Mapping) else {"main": clip}).items()
    }
    for name, view in views.items():
        if view.dtype != np.uint8 or view.ndim != IS_CLIP or view.shape[-1] != RGB or not view.size:
            raise BadInput(f"{what} ({name})", "uint8 of shape (n, height, width, 3)", f"{view.dtype} of {view.shape}")
    if len({len(view) for view in views.values()}) != 1:
        got = ", ".join(f"{name}: {len(view)}" for name, view in views.items()) or "no camera"
        raise BadInput(what, "as many frames of each camera", got)
    return views


def _list_futures(answer: Any) -> list[dict[str, Images]]:
    several = isinstance(answer, list | tuple) or (isinstance(answer, np.ndarray) and answer.ndim > IS_CLIP)
    futures = [_by_camera("a future of imagine", future) for future in (answer if several else [answer])]
    if not futures:
        raise BadInput("imagine", "one future or more", "none")
    return futures


def _join(past: Mapping[str, Images], future: Mapping[str, Images], fps: float) -> dict[str, Frames]:
    sizes, wanted = ({name: view.shape[1:] for name, view in views.items()} for views in (future, past))
    if sizes != wanted:
        raise BadInput("imagine", f"cameras and sizes as in frames, {wanted}", sizes)
    return {name: Frames.from_array(np.concatenate([view, future[name]]), fps) for name, view in past.items()}


def _average(rewards: Sequence[Reward]) -> Reward:
    """Return the mean of the final values, and of the probabilities of success, of a chunk's futures."""
    model, id = rewards[0].model, rewards[0].episode
    missing = [reward.why_missing for reward in rewards if np.isnan(reward.final)]
    if missing:
        return Reward.unscored(model, id, f"{len(missing)} of {len(rewards)} futures: {missing[0]}")
    chances = [reward.success[-1] for reward in rewards if reward.success is not None]
    success = np.mean(chances, keepdims=True) if len(chances) == len(rewards) else None
    value = np.mean([reward.final for reward in rewards], keepdims=True)
    return Reward(
        model, id, np.zeros(1, np.int32), value, success, given=gather_doubts(reward.given for reward in rewards)
    )


def choose(rewards: Sequence[Reward]) -> Choice:
    """Pick by rewards that were computed before."""
    values = np.array([reward.final for reward in rewards], dtype=np.float32)
    unscored = {place: rewards[place].why_missing for place in np.flatnonzero(np.isnan(values)).tolist()}
    if len(unscored) == len(rewards):
        reasons = "; ".join(f"{reason} ({count})" for reason, count in Counter(unscored.values()).most_common(3))
        raise BadReward(rewards[0].model if rewards else "none", "all", f"no candidate has a final value: {reasons}")
    chances = np.array(
        [-1.0 if reward.success is None else np.nan_to_num(reward.success[-1], nan=-1.0) for reward in rewards]
    )
    best = values == np.nanmax(values)
    index, *ties = np.flatnonzero(best & (chances == chances[best].max())).tolist()
    others = np.delete(values, index)
    margin = float("nan") if np.isnan(others).all() else float(values[index] - np.nanmax(others))
    return Choice(index, values, margin, tuple(ties), rewards[index].is_guess, unscored)
