"""Every frame of every episode through the network once, cached on disk: a repeated run decodes nothing twice."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Floats
from demerit.data.decode import load_ahead
from demerit.data.episode import Episode, normalize_instruction
from demerit.data.files import read_npz, write_atomic
from demerit.data.frames import Images, Prepare, short_hash, spread
from demerit.data.reward import Reward
from demerit.errors import BadEpisode, DemeritError, MissingExtra
from demerit.models.baselines import Change, Motion
from demerit.models.signals import SignalScales, add_farthest, scale_signals
from demerit.models.taught.features import (
    LAYERS,
    SIGNALS,
    FeatureLayout,
    FeatureNetwork,
    Features,
    FeatureStream,
    Tower,
    find_engine,
    join_cameras,
    part_widths,
    prepare_large,
    stream_features,
    stride_indices,
    validate_parts,
)
from demerit.training.teach.data import TeachConfig

BATCH = 2
"""episodes decoded at once; the cache is written after each"""
FRAMES_PER_SECOND = 150
"""rate of two slow cores, decoding included; the frame budget uses it instead of measuring time"""
SECONDS_ALLOWED = ((0, 40.0), (10, 60.0), (40, 180.0), (500, 900.0))
"""(episodes, seconds for extracting their features); linear in between and beyond"""

MOST_IMAGES = 2400
"""images kept in memory for a reader: 265 MB"""
KEPT_IMAGES = 6, 24
"""images kept per view, at least and at most"""


@dataclass(frozen=True, eq=False)
class EmbeddedEpisode:
    """An episode and the tower's features of its frames."""

    episode: Episode
    length: int
    """frames of the video"""
    at: npt.NDArray[np.int32]
    """the frames used"""
    tower: Mapping[str, Features]
    """(frames used, D) by camera; only cameras that the episode has"""
    controls: tuple[Reward, ...] = ()
    """rewards of the baselines that need pixels"""
    kept: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """which of the frames used have images"""
    images: Mapping[str, Images] = field(default_factory=dict)
    """the images of those, as the tower takes them, by camera"""

    @property
    def id(self) -> str:
        """The episode's id."""
        return self.episode.id

    @property
    def instruction(self) -> str:
        """The normalized instruction."""
        return normalize_instruction(self.episode.instruction)


UnreadableEpisode = tuple[str, str]
"""the id of an episode without features, and why"""


@dataclass(frozen=True, eq=False)
class FeatureSpec:
    """What defines the features of all episodes: network, cameras, stride and parts."""

    network: FeatureNetwork
    cameras: tuple[str, ...]
    stride: int
    config: TeachConfig
    keep: int = 0
    """images kept per episode and camera, to train a reader; 0 = there is none"""
    signals: SignalScales = field(default_factory=dict)
    """the signals that it reads"""

    @property
    def prepare(self) -> Prepare:
        """Resize images; run in the decoding processes."""
        return prepare_large() if self.keep else self.network.prepare

    @property
    def parts(self) -> tuple[str, ...]:
        """The feature parts in order."""
        return validate_parts(list(self.config.parts))

    def layout(self, embedded: EmbeddedEpisode) -> FeatureLayout:
        """Return the columns' layout, from one episode."""
        tower = next(iter(embedded.tower.values()))
        hidden, pooled = 0, self.network.pooled_width
        if {"hidden", "outputs"} & set(self.parts):
            hidden = int(np.asarray(self.network.follow(np.asarray(tower[:1], np.float32), "").hidden).shape[-1])
        widths = part_widths(self.parts, pooled, tower.shape[1] - pooled, hidden)
        if not self.signals:
            return FeatureLayout(self.cameras, self.parts, widths)
        signals = 2 * sum(map(len, self.signals.values()))
        return FeatureLayout(self.cameras, (*self.parts, SIGNALS), (*widths, signals))

    def features(self, embedded: EmbeddedEpisode, instruction: str | None = None) -> Features:
        """Return an episode's features (frames used, columns), optionally under another instruction."""
        text = embedded.episode.instruction if instruction is None else instruction
        signals = [add_farthest(now)[embedded.at] for now in self._scaled(embedded)]
        return self._stream(embedded, np.arange(len(embedded.at)), text, embedded.length, self.stride, signals)

    def reorder_features(self, embedded: EmbeddedEpisode, order: npt.NDArray[np.integer]) -> Features:
        """Return the features of the same frames in another order; only what depends on it is computed again."""
        signals = [add_farthest(now[embedded.at][order]) for now in self._scaled(embedded)]
        return self._stream(embedded, order, embedded.episode.instruction, len(order), 1, signals)

    def _scaled(self, embedded: EmbeddedEpisode) -> list[Floats]:
        return [scale_signals(embedded.episode, self.signals)] if self.signals else []

    def _stream(
        self,
        embedded: EmbeddedEpisode,
        order: npt.NDArray[np.integer],
        instruction: str,
        length: int,
        stride: int,
        signals: Sequence[Floats],
    ) -> Features:
        blocks = {}
        for camera, whole in embedded.tower.items():
            tower = np.asarray(whole, dtype=np.float32)[order]
            stream = FeatureStream(self.network, instruction, self.parts)
            seen = stream_features(stream, tower, stride_indices(length, stride), stride)
            blocks[camera] = np.concatenate([seen, *signals], axis=1)
        return join_cameras([blocks.get(camera) for camera in self.cameras])

    def present(self, episode: Episode) -> list[str]:
        """Return the cameras that an episode has."""
        return [name for name in self.cameras if name in episode.views]


def _cache_file(folder: Path, episode: Episode, spec: FeatureSpec) -> Path:
    """Return the file of an episode's features, named by everything that they depend on."""
    large = ["large"] if spec.keep else []
    facts = json.dumps([spec.network.hash, list(spec.cameras), spec.stride, *large]).encode()
    return folder / f"{short_hash(facts, episode.fingerprint().encode())}.npz"


def _write_features(path: Path, embedded: EmbeddedEpisode, spec: FeatureSpec) -> None:
    """Write an episode's features atomically."""
    arrays: dict[str, npt.NDArray[Any]] = {"at": embedded.at, "length": np.array([embedded.length])}
    arrays |= {f"tower.{spec.cameras.index(name)}": tower for name, tower in embedded.tower.items()}
    if spec.keep:
        arrays["kept"] = embedded.kept
        arrays |= {f"images.{spec.cameras.index(name)}": images for name, images in embedded.images.items()}
    for reward in embedded.controls:
        arrays |= {f"control.{reward.model}.at": reward.at, f"control.{reward.model}.value": reward.value}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write_atomic(path, buffer.getvalue())


def _read_features(path: Path, episode: Episode, spec: FeatureSpec) -> EmbeddedEpisode | None:
    """Return cached features; None when there are none or the file is damaged."""
    try:
        arrays = read_npz(path, path.stat().st_size)  # it is not compressed
        present = {name: number for number, name in enumerate(spec.cameras) if name in episode.views}
        tower = {name: arrays[f"tower.{number}"] for name, number in present.items()}
        names = sorted({name.split(".")[1] for name in arrays if name.startswith("control.")})
        controls = tuple(
            Reward(name, episode.id, arrays[f"control.{name}.at"], arrays[f"control.{name}.value"]) for name in names
        )
        embedded = EmbeddedEpisode(episode, int(arrays["length"][0]), arrays["at"], tower, controls)
        if not spec.keep:
            return embedded
        images = {name: arrays[f"images.{number}"] for name, number in present.items()}
        return replace(embedded, kept=arrays["kept"], images=images)
    except (OSError, ValueError, LookupError, DemeritError):
        return None


def extract_features(
    episodes: Sequence[Episode],
    spec: FeatureSpec,
    cache: Path,
    workers: int,
    on_done: Callable[[int], None] = lambda done: None,
) -> Iterator[EmbeddedEpisode | UnreadableEpisode]:
    """Yield every episode with its features, those in the folder `cache` first; `on_done` gets the number done."""
    todo: list[Episode] = []
    done = 0
    for episode in episodes:
        features = _look_up(episode, spec, cache)
        if features is None:
            todo.append(episode)
            continue
        done += 1
        on_done(done)
        yield features
    wanted = partial(stride_indices, stride=spec.stride)
    originals = {episode.id: episode for episode in todo}
    for batch in load_ahead(todo, wanted, BATCH, workers, spec.present, spec.prepare):
        for loaded in batch:
            original = originals[loaded.episode.id]
            result: EmbeddedEpisode | UnreadableEpisode = (original.id, loaded.error)
            if not loaded.error:
                try:
                    result = replace(_embed(loaded.episode, spec), episode=original)
                except DemeritError as error:
                    result = original.id, str(error)
            if isinstance(result, EmbeddedEpisode):
                _write_features(_cache_file(cache, original, spec), result, spec)
            done += 1
            on_done(done)
            yield result


def common_cameras(episodes: Sequence[Episode]) -> tuple[str, ...]:
    """Return the cameras that more than half of the episodes have, so that any two of them share an episode."""
    return tuple(name for name, count in count_cameras(episodes).items() if 2 * count > len(episodes))


def count_cameras(episodes: Sequence[Episode]) -> dict[str, int]:
    """Return how many episodes have each camera, in the order of an episode that has most."""
    most_first = sorted(episodes, key=lambda episode: -len(episode.views))
    return dict(Counter(name for episode in most_first for name in episode.views))


def choose_stride(lengths: Sequence[int], cameras: int) -> int:
    """Return the stride that keeps the number of frames within the budget."""
    frames = sum(lengths) * max(1, cameras)
    return max(1, -(-frames // frame_budget(len(lengths))))


def keep_frames(used: int, ending: int, most: int) -> npt.NDArray[np.int64]:
    """Choose the frames whose images are kept: a third of them from the ending, the others spread evenly."""
    if not most:
        return np.zeros(0, dtype=np.int64)
    ending = min(ending, used)
    last = used - ending + spread(ending, max(1, most // 3))
    return np.union1d(spread(used, max(1, most - len(last))), last).astype(np.int64)


def images_to_keep(network: FeatureNetwork, config: TeachConfig, views: int) -> int:
    """Return how many images per view are kept to train a reader; 0 where none can be trained."""
    engine = find_engine(network)
    if not config.reader or config.sees_order or engine is None or missing_extra():
        return 0
    return int(np.clip(MOST_IMAGES // max(1, views), *KEPT_IMAGES)) if all(map(engine.has_layer, LAYERS)) else 0


def missing_extra() -> str:
    """Return the package without which no reader can be trained; empty when there is none."""
    return next((name for name in ("torch", "onnx") if find_spec(name) is None), "")


def open_tower(name: str | Path) -> Tower | None:
    """Return a second tower by name or file; the folder of a vision model for `transformers` is converted to one."""
    if not Path(name).is_dir():
        return Tower.load(name)
    try:
        # torch and transformers are extras
        from demerit.training.teach.torch_tower import convert_tower  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise MissingExtra("A folder of a vision model as a tower", "vlm") from missing
    return Tower(convert_tower(Path(name)), Path(name))


def frame_budget(episodes: int) -> int:
    """Return how many frames may be used for this many episodes."""
    counts, seconds = zip(*SECONDS_ALLOWED, strict=True)
    if episodes > counts[-1]:
        return int(FRAMES_PER_SECOND * seconds[-1] * episodes / counts[-1])
    return int(FRAMES_PER_SECOND * np.interp(episodes, counts, seconds))


def to_half(numbers: Features) -> Any:
    """Convert to float16, clipping what would overflow."""
    most = float(np.finfo(np.float16).max)
    return np.clip(numbers, -most, most).astype(np.float16)


def _look_up(episode: Episode, spec: FeatureSpec, cache: Path) -> EmbeddedEpisode | UnreadableEpisode | None:
    if not spec.present(episode):
        return episode.id, f"it has no camera {' or '.join(map(repr, spec.cameras))}"
    try:
        if spec.signals:
            scale_signals(episode, spec.signals)  # raises where one is not as in the other episodes
            lengths = {name: len(episode.views[name]) for name in (episode.main_camera, *spec.present(episode))}
            if len(set(lengths.values())) > 1:
                raise BadEpisode(episode.id, "cameras of one length, as signals have a number per frame", lengths)
        return _read_features(_cache_file(cache, episode, spec), episode, spec)
    except DemeritError as error:
        return episode.id, str(error)


def _embed(episode: Episode, spec: FeatureSpec) -> EmbeddedEpisode:
    cameras = spec.present(episode)
    lengths = {name: len(episode.views[name]) for name in cameras}
    if len(set(lengths.values())) > 1:
        raise BadEpisode(episode.id, "cameras of one length (choose some with --camera)", lengths)
    length = next(iter(lengths.values()))
    if not length:
        raise BadEpisode(episode.id, "at least one frame", "none")
    at = stride_indices(length, spec.stride)
    kept = keep_frames(len(at), spec.config.ending(len(at)), spec.keep)
    tower: dict[str, Features] = {}
    images: dict[str, Images] = {}
    for name in cameras:
        frames = episode.views[name].take_prepared(at, spec.prepare)
        tower[name] = to_half(FeatureStream(spec.network, "", ["tower"]).embed(frames))
        images[name] = frames[kept]
    return EmbeddedEpisode(episode, length, at, tower, _score_controls(episode, cameras[0], at), kept, images)


def _score_controls(episode: Episode, camera: str, at: npt.NDArray[np.int32]) -> tuple[Reward, ...]:
    """Score the baselines that need pixels while the images are decoded."""
    frames = episode.views[camera].select(at)
    view = replace(episode, views={camera: frames}, outcomes=(), signals={})
    rewards = [model.score([view])[0] for model in (Change(), Motion())]
    return tuple(Reward(reward.model, reward.episode, at[reward.at], reward.value) for reward in rewards)
