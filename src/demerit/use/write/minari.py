"""A Minari dataset: the signals of episodes as observations and actions, with rewards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import minari
import numpy as np
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, safe_name
from demerit.data.files import atomic_folder
from demerit.data.quality import ACTIONS
from demerit.errors import BadEpisode
from demerit.use.write.frames import FrameRewards, RewardRecipe

FEWEST_FRAMES = 2
"""which make a step"""


def write_minari(dataset: Dataset, frames: FrameRewards, recipe: RewardRecipe, dest: Path) -> str:
    """Write the kept episodes as a Minari dataset in `dest/data`; return its id.

    A step goes from one frame to the next, so an episode of n frames has n - 1 steps. A success is terminated, any
    other episode truncated. Images are not written.
    """
    place_of = {episode.id: place for place, episode in enumerate(frames.episodes)}

    def box(array: Any) -> Any:
        return spaces.Box(-np.inf, np.inf, array.shape[1:], array.dtype.type)

    def buffers() -> Iterator[Any]:
        for episode in dataset:
            place = place_of.get(episode.id)
            if place is None:
                continue
            observations, actions = _signals(episode, shapes)
            rewards = frames.of(frames.reward, place)[:-1].copy()
            if recipe.reward == "final":  # the last step leads to the last frame
                rewards[-1:] = frames.of(frames.reward, place)[-1]
            ends = np.zeros(len(rewards), dtype=bool)
            ends[-1:] = True
            is_success = frames.episodes[place].success is True
            yield EpisodeBuffer(
                options={"episode": episode.id, "instruction": episode.instruction},
                observations=observations if len(observations) > 1 else next(iter(observations.values())),
                actions=actions,
                rewards=rewards,
                terminations=ends if is_success else ~ends & ends,
                truncations=~ends & ends if is_success else ends,
            )

    shapes: dict[str, tuple[int, ...]] = {}
    first = next(episode for episode in dataset if episode.id in place_of)
    observations, actions = _signals(first, shapes)
    boxes = {name: box(array) for name, array in observations.items()}
    name = safe_name(dest.name)
    id = name if re.search(r"-v\d+$", name) else f"{name}-v0"
    with atomic_folder(dest) as partial:
        storage = MinariStorage.new(
            partial / "data",
            observation_space=spaces.Dict(boxes) if len(boxes) > 1 else next(iter(boxes.values())),
            action_space=box(actions),
        )
        about = f"rewards of {frames.model} ({recipe.reward}, gamma {recipe.gamma:g})"
        storage.update_metadata({"dataset_id": id, "minari_version": minari.__version__, "description": about})
        storage.update_episodes(buffers())
    return id


def _signals(episode: Episode, shapes: dict[str, tuple[int, ...]]) -> tuple[dict[str, Any], Any]:
    """Return the observations of all frames and the actions of all but the last; all episodes have the same shapes."""
    signals = {name: _numbers(values) for name, values in episode.signals.items() if not name.startswith("next.")}
    names = [name for name in signals if name in ACTIONS]
    if not names or len(signals) == 1:
        got = f"{', '.join(signals) or 'no signal'}: --to parquet needs neither"
        raise BadEpisode(episode.id, "an action and another signal, as a Minari dataset needs", got)
    if len(episode) < FEWEST_FRAMES:
        raise BadEpisode(episode.id, f"{FEWEST_FRAMES} frames or more, which make a step", len(episode))
    short = {name: len(values) for name, values in signals.items() if len(values) != len(episode)}
    if short:
        raise BadEpisode(episode.id, f"signals of {len(episode)} frames", short)
    own_shapes = {name: values.shape[1:] for name, values in signals.items()}
    if shapes and own_shapes != shapes:
        raise BadEpisode(episode.id, f"signals as in the first episode: {shapes}", own_shapes)
    shapes.update(own_shapes)
    action = signals.pop(names[0])
    return signals, action[:-1]


def _numbers(values: Any) -> Any:
    array = np.asarray(values)
    array = array.astype(np.float32) if array.dtype.kind in "fb" else array
    return array[:, None] if array.ndim == 1 else array
