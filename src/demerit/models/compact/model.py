"""The default model: a small network that runs on any CPU, says how far the task is done, and knows when it is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode, safe_name
from demerit.data.frames import RGB, Frames, Images
from demerit.data.reward import Reward
from demerit.errors import BadEpisode, BadInput, DemeritError, UnknownName
from demerit.models.compact.engine import Engine, Followed
from demerit.models.compact.info import NetworkInfo
from demerit.models.compact.resize import resized
from demerit.models.folder import name_of, only_these, read_description
from demerit.models.protocol import ModelCard

MAIN, ALL = "main", "all"
AT_ONCE = 1024
"""frames that are in memory at once, small"""
ONE_PICTURE, SEVERAL_PICTURES = 3, 4
ABOUT = (
    "A small network for any CPU: sees every frame beside the first and reads the instruction. Trained mostly in "
    "simulation: on a new robot or camera its zero-shot values are a guess until it is taught some of your episodes."
)

Floats = npt.NDArray[np.float32]


class Compact:
    """Progress from 0 to 1 and a probability of success, frame by frame, never looking ahead."""

    def __init__(
        self, cameras: str | Sequence[str] = MAIN, *, engine: Engine | None = None, name: str = "default"
    ) -> None:
        """Load the network that ships, or use another.

        Args:
            cameras: `main`, `all` (the mean over every camera), or the cameras' names, as a list or `left,right`.
            engine: another trained network.
            name: what the model is called in rewards.
        """
        self.engine = engine or Engine.shipped()
        self._cameras = _chosen(cameras)
        self.card = _card(self.engine.info, _name(name, self._cameras))
        self._live: _Live | None = None

    @classmethod
    def from_folder(cls, folder: Path, cameras: str | Sequence[str] = MAIN, threads: int | None = None) -> Compact:
        """Load a model folder of kind `compact`: model.json beside a trained network's files."""
        only_these(folder, read_description(folder))
        return cls(cameras, engine=Engine.load(folder, threads), name=name_of(folder))

    @property
    def prepare(self) -> Callable[[Images], Images]:
        """Pictures are made small where they are decoded."""
        return partial(resized, side=self.engine.info.size)

    def looks_at(self, episode: Episode) -> list[str]:
        """Name the cameras that are looked at."""
        if self._cameras == MAIN:
            return [episode.main_camera]
        if self._cameras == ALL:
            return list(episode.views)
        for name in self._cameras:
            if name not in episode.views:
                raise UnknownName(f"camera in episode {episode.id!r}", name, episode.views)
        return list(self._cameras)

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Score every frame; an episode that cannot be seen comes back unscored with the reason."""
        return [self._one(episode) for episode in episodes]

    def prefer(self, pairs: Sequence[tuple[Episode, Episode]]) -> list[float]:
        """Say how likely the first of each pair is the better one: the sigmoid of the difference of their ranks."""
        ranks: dict[int, float] = {}
        for episode in (one for pair in pairs for one in pair):
            if id(episode) not in ranks:
                ranks[id(episode)] = self._rank(episode)
        return [1 / (1 + float(np.exp(ranks[id(b)] - ranks[id(a)]))) for a, b in pairs]

    def reset(self, instruction: str) -> None:
        """Begin to follow a robot."""
        self._live = _Live(self.engine, instruction)

    def step(self, frame: Images) -> float:
        """Take the next (height, width, 3) frame, or (cameras, height, width, 3) of several, and return its progress.

        Every step costs the same, however long the episode is.
        """
        if self._live is None:
            raise BadInput("step", "reset(instruction) before the first frame", "a frame")
        return self._live.step(frame)

    def follow(self, episode: Episode) -> Followed:
        """Return all that the network says of an episode, the mean over its cameras; `score` is a part of it."""
        return mean_of([self.follow_camera(episode, name) for name in self._seen(episode)])

    def follow_camera(self, episode: Episode, camera: str) -> Followed:
        """Return all that the network says when it sees one camera."""
        return self.engine.follow(self.features(episode.views[camera]), episode.instruction)

    def features(self, frames: Frames) -> Floats:
        """Turn every frame of a camera into (frames, features), a thousand in memory at once."""
        parts = [np.empty((0, self.engine.info.features), np.float32)]
        first: Images | None = None
        for start in range(0, len(frames), AT_ONCE):
            some = frames.take_prepared(np.arange(start, min(start + AT_ONCE, len(frames))), self.prepare)
            first = some[0] if first is None else first
            parts.append(self.engine.features(some, first))
        return np.concatenate(parts)

    def _one(self, episode: Episode) -> Reward:
        given: dict[str, Any] = {}
        try:
            cameras = self._seen(episode)
            given = {"camera": cameras[0] if len(cameras) == 1 else cameras, "instruction": self._told(episode)}
            followed = self.follow(episode)
        except DemeritError as error:
            return Reward.unscored(self.card.name, episode.id, str(error), given)
        value = np.clip(followed.progress, 0, 1)
        why = "" if np.isfinite(value).all() else "the network gave no number there"
        at = np.arange(len(value), dtype=np.int32)
        given["frames"] = len(at)
        return Reward(self.card.name, episode.id, at, value, followed.success, why, given)

    def _seen(self, episode: Episode) -> list[str]:
        """Name the cameras, and refuse what would give a frame two meanings or none."""
        cameras = self.looks_at(episode)
        lengths = {name: len(episode.views[name]) for name in (episode.main_camera, *cameras)}
        if len(set(lengths.values())) > 1:
            raise BadEpisode(episode.id, "cameras of one length (choose one of them)", lengths)
        if not len(episode):
            raise BadEpisode(episode.id, "at least one frame", "none")
        return cameras

    def _told(self, episode: Episode) -> str:
        return "none" if self.engine.vector(episode.instruction) is None else episode.instruction

    def _rank(self, episode: Episode) -> float:
        try:
            return float(self.follow(episode).rank[-1])
        except DemeritError:
            return float("nan")


@dataclass(eq=False)
class _Live:
    """A robot that is being followed: the first picture and the memory of each camera, and nothing else."""

    engine: Engine
    instruction: str
    first: Images | None = None
    states: Sequence[Floats] | None = None

    def step(self, frame: Images) -> float:
        pictures = frame if frame.ndim == SEVERAL_PICTURES else frame[None]
        if frame.ndim not in (ONE_PICTURE, SEVERAL_PICTURES) or frame.shape[-1] != RGB or not len(pictures):
            raise BadInput("frame", "shape (height, width, 3), or (cameras, height, width, 3)", frame.shape)
        small = resized(pictures, self.engine.info.size)
        self.first = small if self.first is None else self.first
        if len(small) != len(self.first):
            raise BadInput("frame", f"{len(self.first)} cameras, as at the first step", len(small))
        states: Sequence[Floats | None] = self.states or [None] * len(small)
        rows = [
            self.engine.follow(self.engine.features(picture[None], first), self.instruction, state)
            for picture, first, state in zip(small, self.first, states, strict=True)
        ]
        self.states = [row.state for row in rows]
        return float(np.clip(mean_of(rows).progress[0], 0, 1))


def mean_of(rows: Sequence[Followed]) -> Followed:
    """Average what was said of several cameras; one camera's words are left as they are."""
    if len(rows) == 1:
        return rows[0]
    columns: Mapping[str, Floats] = {
        name: np.mean([getattr(row, name) for row in rows], axis=0, dtype=np.float32)
        for name in ("progress", "bins", "success", "rank", "hidden")
    }
    return Followed(**columns, state=np.concatenate([row.state for row in rows]))


def _chosen(cameras: str | Sequence[str]) -> str | tuple[str, ...]:
    if isinstance(cameras, str):
        if cameras in (MAIN, ALL):
            return cameras
        cameras = [name.strip() for name in cameras.split(",")]
    names = tuple(cameras)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise BadInput("cameras", "'main', 'all' or different cameras' names", repr(cameras))
    return names


def _name(name: str, cameras: str | tuple[str, ...]) -> str:
    """Another choice of cameras gives other rewards, so it is another name."""
    if cameras == MAIN:
        return name
    return f"{name}-{ALL}" if cameras == ALL else f"{name}-{'+'.join(safe_name(one) for one in cameras)}"


def _card(info: NetworkInfo, name: str) -> ModelCard:
    return ModelCard(
        name=name,
        revision=info.revision,
        licence=info.licence,
        quantity="progress",
        low=0.0,
        high=1.0,
        causal=True,
        comparable=True,
        weights_hash=info.hash(),
        about=ABOUT,
    )
