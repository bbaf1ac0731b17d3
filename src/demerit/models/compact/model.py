"""The default model: a small network for any CPU that gives progress and a probability of success per frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.arrays import Floats, Floats32
from demerit.data.episode import Episode, safe_name
from demerit.data.frames import Frames, Images
from demerit.data.reward import Reward
from demerit.data.splits import SeenEpisodes
from demerit.errors import BadEpisode, BadInput, DemeritError, UnknownName
from demerit.models.compact.engine import Engine, NetworkInfo, NetworkOutputs, resize_square
from demerit.models.live import LiveCameras, take_first
from demerit.models.loading import name_of, only_these, read_description
from demerit.models.protocol import LiveFrame, LiveReward, ModelCard, ShownModel

MAIN, ALL = "main", "all"
COLUMNS = ("progress", "bins", "success", "rank", "hidden")
AT_ONCE = 512
"""frames computed at once; a multiple of the engine's chunks and steps, so that it changes no value"""
ABOUT = (
    "A small network for any CPU: sees every frame beside the first and reads the instruction. Trained mostly in "
    "simulation: on a new robot or camera its zero-shot values are a guess until it is taught some of your episodes."
)


class Compact(ShownModel):
    """Progress (0 to 1) and probability of success for every frame. Causal."""

    thread_safe = True

    def __init__(
        self, cameras: str | Sequence[str] = MAIN, *, engine: Engine | None = None, name: str = "default"
    ) -> None:
        """Load the network that comes with demerit, or use another.

        Args:
            cameras: `main`, `all` (the mean over all cameras), or camera names as a list or as `left,right`.
            engine: another network.
            name: the model's name in rewards.
        """
        self.engine = engine or Engine.load_shipped()
        self._cameras = _parse_cameras(cameras)
        self.card = _card(self.engine.info, _model_name(name, self._cameras))

    @classmethod
    def from_folder(cls, folder: Path, cameras: str | Sequence[str] = MAIN, threads: int | None = None) -> Compact:
        """Load a model folder of kind `compact`: model.json and a network's files."""
        only_these(folder, read_description(folder))
        return cls(cameras, engine=Engine.load(folder, threads), name=name_of(folder))

    @property
    def seen(self) -> SeenEpisodes:
        """The episodes that the network was trained on."""
        return self.engine.seen

    @property
    def prepare(self) -> Callable[[Images], Images]:
        """Resize images; run in the decoding processes."""
        return self.engine.prepare

    def looks_at(self, episode: Episode) -> list[str]:
        """Return the names of the cameras used."""
        if self._cameras == MAIN:
            return [episode.main_camera]
        if self._cameras == ALL:
            return list(episode.views)
        for name in self._cameras:
            if name not in episode.views:
                raise UnknownName(f"camera in episode {episode.id!r}", name, episode.views)
        return list(self._cameras)

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Score every frame. An episode that cannot be read comes back unscored with the reason."""
        return [self._score_episode(episode) for episode in episodes]

    def prefer(self, pairs: Sequence[tuple[Episode, Episode]]) -> list[float]:
        """Return the probability that the first of each pair is better: the sigmoid of the rank difference."""
        ranks: dict[int, float] = {}
        for episode in (episode for pair in pairs for episode in pair):
            if id(episode) not in ranks:
                ranks[id(episode)] = self._rank(episode)
        return [1 / (1 + float(np.exp(ranks[id(b)] - ranks[id(a)]))) for a, b in pairs]

    def start(self, instruction: str) -> _CompactRun:
        """Start a live episode. The cost per step is constant."""
        if isinstance(self._cameras, tuple):
            return _CompactRun(self.engine, instruction, LiveCameras(lambda _: self._cameras, self._cameras))
        return _CompactRun(self.engine, instruction, LiveCameras(take_first if self._cameras == MAIN else list))

    def follow(self, episode: Episode) -> NetworkOutputs:
        """Return all network outputs for an episode, the mean over its cameras."""
        cameras = self._check_cameras(episode)
        return average_outputs([self._follow_camera(episode.views[name], episode.instruction) for name in cameras])

    def features(self, frames: Frames) -> Floats32:
        """Turn every frame of a camera into (frames, features)."""
        return np.concatenate([np.empty((0, self.engine.info.features), np.float32), *self._read_features(frames)])

    def _read_features(self, frames: Frames) -> Iterator[Floats32]:
        """Yield the features of 512 frames after the other: a long video is never in memory."""
        first: Images | None = None
        for start in range(0, len(frames), AT_ONCE):
            images = frames.take_prepared(np.arange(start, min(start + AT_ONCE, len(frames))), self.prepare)
            first = images[0].copy() if first is None else first
            yield self.engine.features(images, first)

    def _follow_camera(self, frames: Frames, instruction: str) -> NetworkOutputs:
        parts: list[NetworkOutputs] = []
        for features in self._read_features(frames):
            parts.append(self.engine.follow(features, instruction, parts[-1].state if parts else None))
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
        return NetworkOutputs(**columns, state=parts[-1].state, distance=_distances(parts, np.concatenate))

    def _score_episode(self, episode: Episode) -> Reward:
        facts: dict[str, Any] = {}
        try:
            cameras = self._check_cameras(episode)
            is_known = self.engine.text_vector(episode.instruction) is not None
            facts = {
                "camera": cameras[0] if len(cameras) == 1 else cameras,
                "instruction": episode.instruction if is_known else "none",
            }
            outputs = self.follow(episode)
        except DemeritError as error:
            return Reward.unscored(self.card.name, episode.id, str(error), facts)
        value = np.clip(outputs.progress, 0, 1)
        why = "" if np.isfinite(value).all() else "the network gave no number there"
        at = np.arange(len(value), dtype=np.int32)
        facts["frames"] = len(at)
        if self.engine.familiarity is not None and outputs.distance is not None:
            facts["familiarity"] = self.engine.familiarity.percentile(outputs.distance)
        return Reward(self.card.name, episode.id, at, value, outputs.success, why, facts)

    def _check_cameras(self, episode: Episode) -> list[str]:
        """Return the camera names; refuse cameras of different lengths and empty episodes."""
        cameras = self.looks_at(episode)
        lengths = {name: len(episode.views[name]) for name in (episode.main_camera, *cameras)}
        if len(set(lengths.values())) > 1:
            raise BadEpisode(episode.id, "cameras of one length (choose one of them)", lengths)
        if not len(episode):
            raise BadEpisode(episode.id, "at least one frame", "none")
        return cameras

    def _rank(self, episode: Episode) -> float:
        try:
            return float(self.follow(episode).rank[-1])
        except DemeritError:
            return float("nan")


@dataclass(eq=False)
class _CompactRun:
    """A live episode: the first image and the recurrent state of each camera."""

    engine: Engine
    instruction: str
    cameras: LiveCameras
    first: dict[str, Images] = field(default_factory=dict)
    states: dict[str, Floats32] = field(default_factory=dict)
    total: float = 0.0
    """sum of the frames' distances"""
    count: int = 0

    def step(self, frame: LiveFrame) -> LiveReward:
        size = self.engine.info.size
        small = {name: resize_square(image[None], size) for name, image in self.cameras.pick(frame).items()}
        self.first = self.first or {name: image[0] for name, image in small.items()}
        rows = {
            name: self.engine.follow(
                self.engine.features(image, self.first[name]), self.instruction, self.states.get(name)
            )
            for name, image in small.items()
        }
        self.states = {name: row.state for name, row in rows.items()}
        outputs = average_outputs(list(rows.values()))
        familiarity = None
        if self.engine.familiarity is not None and outputs.distance is not None:
            self.total += float(outputs.distance[0])
            self.count += 1
            familiarity = self.engine.familiarity.percentile(self.total / self.count)
        return LiveReward(float(np.clip(outputs.progress[0], 0, 1)), float(outputs.success[0]), familiarity)


def average_outputs(cameras: Sequence[NetworkOutputs]) -> NetworkOutputs:
    """Average the outputs of several cameras."""
    if len(cameras) == 1:
        return cameras[0]
    columns: Mapping[str, Floats32] = {
        name: np.mean([getattr(camera, name) for camera in cameras], axis=0, dtype=np.float32) for name in COLUMNS
    }
    state = np.concatenate([camera.state for camera in cameras])
    # the worst camera counts: values are the mean of all
    return NetworkOutputs(**columns, state=state, distance=_distances(cameras, partial(np.max, axis=0)))


def _distances(parts: Sequence[NetworkOutputs], combine: Callable[[list[Any]], Any]) -> Floats | None:
    distances = [part.distance for part in parts if part.distance is not None]
    return np.asarray(combine(distances)) if len(distances) == len(parts) else None


def _parse_cameras(cameras: str | Sequence[str]) -> str | tuple[str, ...]:
    if isinstance(cameras, str):
        if cameras in (MAIN, ALL):
            return cameras
        cameras = [name.strip() for name in cameras.split(",")]
    names = tuple(cameras)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise BadInput("cameras", "'main', 'all' or different camera names", repr(cameras))
    return names


def _model_name(name: str, cameras: str | tuple[str, ...]) -> str:
    """Other cameras give other rewards, so they are part of the name."""
    if cameras == MAIN:
        return name
    return f"{name}-{ALL}" if cameras == ALL else f"{name}-{'+'.join(safe_name(camera) for camera in cameras)}"


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
