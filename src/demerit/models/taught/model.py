"""A taught model: the shipped network and a head fitted to the user's own episodes.

The folder that `demerit teach` writes holds `model.json`, `head-*.npz` (named by its hash, so a crash never leaves one
model's description with another's arrays), `report.html` and `report.json`. The network is not in the folder:
model.json holds its hash, and another network is refused; a second tower of the user's own is there, as
`tower-*.onnx`. `seen-*.json`, named by the head's hash too, marks the episodes that it was taught on; `held-*.npz` has
the values of its successes by heads that were fitted without them.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.config import build_config
from demerit.data.arrays import Floats
from demerit.data.episode import Episode, normalize_instruction
from demerit.data.files import read_npz
from demerit.data.frames import Images, Prepare, short_hash
from demerit.data.reward import NOT_TAUGHT, Reward
from demerit.data.splits import SeenEpisodes, mark_episode, seen_by
from demerit.errors import BadEpisode, BadInput, DemeritError, StoreError
from demerit.models.live import FRAMES_ALONE, LiveCameras
from demerit.models.loading import DESCRIPTION, name_of, read_description, read_listed
from demerit.models.protocol import SCORE, LiveFrame, LiveReward, ModelCard, ShownModel
from demerit.models.signals import SignalScales, add_farthest, are_scales, scale_signals
from demerit.models.taught.features import (
    SHIPPED_TOWER,
    FeatureNetwork,
    Features,
    FeatureStream,
    Reader,
    Tower,
    join_cameras,
    load_network,
    mean_read,
    prepare_large,
    stream_features,
    stride_indices,
    validate_parts,
)
from demerit.models.taught.head import MOST_BYTES, TaughtHead

KIND = "taught"
IDENTITY = 2
HELD_ROWS, JOIN = 3, "-"
"""rows of a held-out reward: frames, values, probabilities; its name joins the episode's marks"""
AT_ONCE = 512
"""frames computed at once; a multiple of the engine's chunks and steps"""


@dataclass(frozen=True)
class TaughtConfig:
    """The fields of a taught model's model.json."""

    network: str
    """hash of the network it was taught on"""
    cameras: tuple[str, ...]
    parts: tuple[str, ...]
    """feature parts, see `demerit.models.taught.features`"""
    stride: int
    """uses every stride-th frame, and the last"""
    threshold: float | None
    """p(success) from which success is reported; None = too few failures for a guarantee"""
    risk: float
    promise: str
    """the threshold's false-positive guarantee, as text"""
    taught_on: Mapping[str, Any]
    """dataset, number of episodes and labels, tasks; quantity "score" where no progress was taught"""
    licence: str
    head: str = ""
    """sha256 of the head file, which is named by it"""
    reader: str = ""
    """sha256 of the reader's file, which is named by it; empty = there is none"""
    second_tower: str = ""
    """sha256 of the second tower; empty = there is none"""
    signals: SignalScales = field(default_factory=dict)
    """the signals that it reads, see `demerit.models.signals`"""
    read_every: int = 1
    """the reader reads every so-many-th of the frames used"""
    large: bool = False
    """its features were fitted on images resized for a reader first"""
    lesson: Mapping[str, Any] = field(default_factory=dict)
    """how it was fitted, for people; caution: why it is not trusted yet, which every reward repeats"""
    identity: int = 1
    """what the model's hash covers. 1: network, head and threshold; 2: also cameras, parts, stride, risk and tasks"""

    @classmethod
    def read(cls, folder: Path) -> TaughtConfig:
        """Read and validate a folder's model.json."""
        facts = {name: value for name, value in read_description(folder).items() if name not in ("format", "kind")}
        path = folder / DESCRIPTION
        config = build_config(cls, facts, str(path))
        validate_parts(config.parts)
        tasks = config.taught_on.get("tasks", {})
        for name, holds, expected in (
            ("cameras", bool(config.cameras) and len(set(config.cameras)) == len(config.cameras), "different names"),
            ("parts", len(set(config.parts)) == len(config.parts), "different names"),
            ("head", config.head.isalnum(), "a hash"),
            ("stride", config.stride >= 1, "a whole number, 1 or more"),
            ("read_every", config.read_every >= 1, "a whole number, 1 or more"),
            ("threshold", config.threshold is None or 0 <= config.threshold <= 1, "a number from 0 to 1, or null"),
            ("risk", 0 <= config.risk <= 1, "a number from 0 to 1"),
            ("identity", 1 <= config.identity <= IDENTITY, f"1 to {IDENTITY} (another may need a newer demerit)"),
            ("signals", are_scales(config.signals), "middle and spread of each column, by name"),
            ("taught_on", isinstance(tasks, dict) and all(isinstance(x, str) for x in tasks.values()), "tasks by name"),
        ):
            if not holds:
                raise BadInput(f"{path}, {name}", expected, repr(facts[name])[:80])
        return config

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        facts = {**vars(self), "cameras": list(self.cameras), "parts": list(self.parts)}
        return {name: value for name, value in facts.items() if name != "signals" or value}

    def hash(self, pooled: int) -> str:
        """Hash everything that changes a reward; `pooled` is the width at which the network's features are split."""
        contents = [self.head.encode(), self.network.encode(), repr(self.threshold).encode()]
        contents += [f"large {self.reader}".encode()] if self.large else []
        contents += [f"read every {self.read_every}".encode()] if self.read_every > 1 else []
        contents += [f"signals {json.dumps(self.signals)}".encode()] if self.signals else []
        if self.identity > 1:
            tasks = self.taught_on.get("tasks", {})
            more = [self.cameras, self.parts, self.stride, self.risk, tasks, pooled, self.identity]
            contents.append(json.dumps(more, sort_keys=True).encode())
        return short_hash(*contents)


class TaughtModel(ShownModel):
    """Progress and success as the user's own episodes define them. Causal."""

    thread_safe = True

    def __init__(
        self,
        config: TaughtConfig,
        head: TaughtHead,
        network: FeatureNetwork,
        name: str = KIND,
        taught_on: SeenEpisodes | None = None,
        reader: Reader | None = None,
        held_out: Iterable[Reward] = (),
    ) -> None:
        """Combine the parts; `TaughtModel.from_folder` reads them. `taught_on` None = unknown.

        `held_out` has rewards of taught successes by heads that were fitted without them, named by joined marks.
        """
        if network.hash != config.network:
            raise BadInput(
                f"the taught model {name!r}",
                f"the network that it was taught on ({config.network[:12]})",
                f"another one ({network.hash[:12]}): teach it again, or install the demerit version it was made with",
            )
        self.config, self.head, self.network = config, replace(head, cameras=len(config.cameras)), network
        self.reader = reader
        self.held_out = {mark: reward for reward in held_out for mark in reward.episode.split(JOIN)}
        self.tasks: Mapping[str, str] = config.taught_on.get("tasks", {})
        self.card = self._card(name)
        self.seen = (taught_on or SeenEpisodes(complete=False)) | seen_by(network)

    @classmethod
    def from_folder(cls, folder: Path, network: FeatureNetwork | str | Path | None = None) -> TaughtModel:
        """Load a model folder of kind `taught`; `network` replaces the shipped network (itself or its folder).

        A second tower is in the folder, unless it is the one that comes with demerit.
        """
        config = TaughtConfig.read(folder)
        path = folder / head_file(config.head)
        read_listed(path, config.head)
        taught_on = SeenEpisodes.read(folder / seen_file(config.head))
        reader = Reader.load(folder / reader_file(config.reader), config.reader) if config.reader else None
        other = folder / tower_file(config.second_tower)
        tower = (
            Tower.load(other if other.is_file() else SHIPPED_TOWER, config.second_tower)
            if config.second_tower
            else None
        )
        loaded, held_out = load_network(network, tower), read_held_out(folder / held_file(config.head))
        return cls(config, TaughtHead.load(path), loaded, name_of(folder), taught_on, reader, held_out)

    @property
    def cut(self) -> str:
        """When an episode is called a success; empty = never, as nothing could be guaranteed."""
        threshold = self.config.threshold
        return "" if threshold is None else f"the probability of success reaches {threshold:.2f}"

    @property
    def promise(self) -> str:
        """What is guaranteed of such a call, or why nothing is."""
        return self.config.promise

    @property
    def prepare(self) -> Prepare:
        """Resize images; run in the decoding processes."""
        return prepare_large() if self.config.large else self.network.prepare

    @property
    def wanted(self) -> Callable[[int], npt.NDArray[np.int32]]:
        """The frames to decode, by the number of frames."""
        return partial(stride_indices, stride=self.config.stride)

    def looks_at(self, episode: Episode) -> list[str]:
        """Return the camera names: those it was taught with and the episode has; if it has none, its main camera."""
        return [name for name in self.config.cameras if name in episode.views] or [episode.main_camera]

    def _describe_lesson(self) -> str:
        tasks = sorted(set(self.tasks.values()))
        named = f" of {tasks[0]!r}{' and other tasks' if len(tasks) > 1 else ''}" if tasks else ""
        return f"{self.config.taught_on.get('episodes', 'some')} episodes{named}"

    def task(self, instruction: str) -> str:
        """Return the taught task an instruction names; empty when none."""
        return self.tasks.get(normalize_instruction(instruction), "")

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Score episodes. An episode that cannot be read comes back unscored with the reason."""
        return [self._score_episode(episode) for episode in episodes]

    def left_out(self, episode: Episode) -> Reward | None:
        """Return the reward of a taught success by a head that was fitted without it; None = there is none.

        There is none of an edit: it shares its video with the original, and has other frames or other pictures.
        """
        if episode.edits:
            return None
        reward = next((self.held_out[mark] for mark in mark_episode(episode) if mark in self.held_out), None)
        return None if reward is None else replace(reward, episode=episode.id)

    def prefer(self, pairs: Sequence[tuple[Episode, Episode]]) -> list[float]:
        """Return the probability that the first of each pair is better, by the scores at the end."""
        scores: dict[int, float] = {}
        for episode in (episode for pair in pairs for episode in pair):
            if id(episode) not in scores:
                scores[id(episode)] = self._final_score(episode)
        return [1 / (1 + math.exp(self.head.steep * (scores[id(b)] - scores[id(a)]))) for a, b in pairs]

    def start(self, instruction: str) -> _TaughtRun:
        """Start a live episode. The cost per step is constant.

        A camera that the first frame lacks is missing in the whole episode. A model that reads signals is refused.
        """
        if self.config.signals:
            raise BadInput(self.card.name, FRAMES_ALONE, f"one that reads the signals {', '.join(self.config.signals)}")
        cameras = self.config.cameras
        chosen = LiveCameras(lambda names: [name for name in cameras if name in names], cameras)
        return _TaughtRun(self, instruction, chosen)

    def start_stream(self, instruction: str) -> FeatureStream:
        """Start the features of one camera of an episode."""
        return FeatureStream(self.network, instruction, self.config.parts, self.reader, self.config.read_every)

    def features(self, episode: Episode) -> tuple[npt.NDArray[np.int32], Features]:
        """Return the frames used and their features (frames, columns)."""
        at, parts = self._read_features(episode)
        return at, np.concatenate([x for x, _ in parts])

    def _read_features(
        self, episode: Episode
    ) -> tuple[npt.NDArray[np.int32], Iterator[tuple[Features, Floats | None]]]:
        """Return the frames used, and their features and what the reader says, 512 frames after the other.

        A long video is never in memory.
        """
        cameras = self.looks_at(episode)
        if cameras[0] not in self.config.cameras:
            names = " or ".join(map(repr, self.config.cameras))
            expected = f"the camera {names}, which this model was taught with"
            named = f"a column camera:{self.config.cameras[0]} of a label file names a camera"
            raise BadEpisode(episode.id, expected, f"an episode with {', '.join(episode.views)} ({named})")
        lengths = {name: len(episode.views[name]) for name in (episode.main_camera, *cameras)}
        if len(set(lengths.values())) > 1:
            raise BadEpisode(episode.id, "cameras of one length", lengths)
        length = lengths[cameras[0]]
        if not length:
            raise BadEpisode(episode.id, "at least one frame", "none")
        at, stride = stride_indices(length, self.config.stride), self.config.stride
        signals = [add_farthest(scale_signals(episode, self.config.signals))[at]] if self.config.signals else []
        streams = {name: self.start_stream(episode.instruction) for name in cameras}

        def read() -> Iterator[tuple[Features, Floats | None]]:
            for start in range(0, len(at), AT_ONCE):
                some = at[start : start + AT_ONCE]
                pairs = {
                    name: stream.embed_and_read(episode.views[name].take_prepared(some, self.prepare))
                    for name, stream in streams.items()
                }
                columns = [part[start : start + AT_ONCE] for part in signals]
                rows = {
                    name: np.concatenate([stream_features(stream, pairs[name][0], some, stride), *columns], axis=1)
                    for name, stream in streams.items()
                }
                yield join_cameras([rows.get(name) for name in self.config.cameras]), mean_read(pairs.values())

        return at, read()

    def _score_episode(self, episode: Episode) -> Reward:
        task = self.task(episode.instruction)
        try:
            at, parts = self._read_features(episode)
            rows = [(self.head.outputs(x, task, read), self.head.distances(x)) for x, read in parts]
            outputs, distances = (np.concatenate(column) for column in zip(*rows, strict=True))
        except DemeritError as error:
            has_none = self.looks_at(episode)[0] not in self.config.cameras
            facts = {"missing cameras": list(self.config.cameras)} if has_none else {}
            return Reward.unscored(self.card.name, episode.id, str(error), facts)
        success = self.head.success(outputs).astype(np.float32)
        value = self.head.value(outputs).astype(np.float32)
        why = "" if np.isfinite(value).all() else "the network gave no number there"
        familiarity = None if self.head.familiarity is None else self.head.familiarity.percentile(distances)
        facts = self.describe_scoring(self.looks_at(episode), episode.instruction, len(at), success[-1], familiarity)
        return Reward(self.card.name, episode.id, at, value, success, why, facts)

    def describe_scoring(
        self, cameras: Sequence[str], instruction: str, frames: int, success: np.float32, familiarity: float | None
    ) -> dict[str, Any]:
        """Return `Reward.given` of an episode that ends with this probability of success."""
        missing = [name for name in self.config.cameras if name not in cameras]
        # the guarantee is about episodes with all cameras
        threshold = None if missing else self.config.threshold
        is_known = normalize_instruction(instruction) in self.tasks
        caution = self.config.lesson.get("caution", "")
        return {
            "camera": cameras[0] if len(cameras) == 1 else cameras,
            **({"missing cameras": missing} if missing else {}),
            "frames": frames,
            "instruction": instruction or "none",
            "task": "as taught" if is_known else NOT_TAUGHT,
            "success from": threshold,
            "risk": self.config.risk if threshold is not None else None,
            "succeeds": None if threshold is None else bool(success >= threshold),
            **({} if familiarity is None else {"familiarity": familiarity}),
            **({"caution": caution} if caution else {}),
        }

    def _final_score(self, episode: Episode) -> float:
        task = self.task(episode.instruction)
        try:
            *_, (x, read) = self._read_features(episode)[1]
        except DemeritError:
            return math.nan
        return float(self.head.score(self.head.outputs(x, task, read)[-1]))

    def _card(self, name: str) -> ModelCard:
        config = self.config
        episodes, dataset, labels = (config.taught_on.get(key, "?") for key in ("episodes", "dataset", "labels"))
        about = (
            f"Taught on {episodes} episodes of {dataset} ({labels}); "
            f"good for those tasks, cameras and robots and no others. {config.promise}"
        )
        if config.signals:
            about += f" Needs the signals {', '.join(config.signals)} at every frame, and does not score live."
        return ModelCard(
            name=name,
            revision=short_hash(config.head.encode(), config.network.encode())[:12],
            licence=config.licence,
            quantity=SCORE if config.taught_on.get("quantity") == "score" else "progress",
            low=0.0,
            high=1.0,
            causal=True,
            comparable=True,
            reads_instruction=bool({"hidden", "outputs"} & set(config.parts)) or bool(self.head.tasks),
            weights_hash=config.hash(self.network.pooled_width),
            about=about,
            reads_signals=bool(config.signals),
        )


def head_file(sha256: str) -> str:
    """Return the head's file name."""
    return f"head-{sha256[:12]}.npz"


def seen_file(sha256: str) -> str:
    """Return the name of the file that marks the episodes of a head."""
    return f"seen-{sha256[:12]}.json"


def held_file(sha256: str) -> str:
    """Return the name of the file with the values of a head's taught successes, held out."""
    return f"held-{sha256[:12]}.npz"


def pack_held_out(rewards: Iterable[Reward]) -> bytes:
    """Return what `read_held_out` reads: per reward, named by marks, its frames, values and probabilities."""
    buffer = io.BytesIO()
    rows = {
        reward.episode: np.stack([reward.at, reward.value, reward.success])
        for reward in rewards
        if reward.success is not None
    }
    np.savez_compressed(buffer, **rows)  # type: ignore[arg-type]
    return buffer.getvalue()


def read_held_out(path: Path) -> list[Reward]:
    """Read held-out rewards; without the file there are none (models of earlier versions)."""
    rewards = []
    for marks, rows in (read_npz(path, MOST_BYTES) if path.is_file() else {}).items():
        if rows.ndim != 2 or len(rows) != HELD_ROWS or not np.isfinite(rows).all():  # noqa: PLR2004
            raise StoreError(path, "damaged, or not the held-out values of a taught model")
        rewards.append(Reward(KIND, marks, rows[0].astype(np.int32), *rows[1:].astype(np.float32)))
    return rewards


def reader_file(sha256: str) -> str:
    """Return the reader's file name."""
    return f"reader-{sha256[:12]}.onnx"


def tower_file(sha256: str) -> str:
    """Return the name of a second tower's file."""
    return f"tower-{sha256[:12]}.onnx"


@dataclass(eq=False)
class _TaughtRun:
    """A live episode: a feature stream per camera of the first frame, and the number of frames so far."""

    model: TaughtModel
    instruction: str
    chosen: LiveCameras
    streams: dict[str, FeatureStream] = field(default_factory=dict)
    count: int = 0
    distance: float = 0.0
    """sum over the frames"""

    def step(self, frame: LiveFrame) -> LiveReward:
        images, cameras = self.chosen.pick(frame), self.model.config.cameras
        if not self.streams:
            self.streams = {name: self.model.start_stream(self.instruction) for name in images}
        pairs = {name: self._look(stream, images[name]) for name, stream in self.streams.items()}
        self.count += 1
        head = self.model.head
        x = join_cameras([pairs[name][0] if name in pairs else None for name in cameras])
        outputs, familiarity = head.outputs(x, self.model.task(self.instruction), mean_read(pairs.values())), None
        if head.familiarity is not None:
            self.distance += float(head.distances(x)[0])
            familiarity = head.familiarity.percentile(self.distance / self.count)
        success = head.success(outputs).astype(np.float32)
        facts = self.model.describe_scoring(list(pairs), self.instruction, self.count, success[0], familiarity)
        return LiveReward(float(head.value(outputs)[0]), float(head.success(outputs)[0]), familiarity, facts)

    def _look(self, stream: FeatureStream, image: Images) -> tuple[Features, Floats | None]:
        tower, read = stream.embed_and_read(self.model.prepare(image[None]))
        on_stride = self.count % self.model.config.stride == 0
        return stream.follow(tower) if on_stride else stream.peek(tower), read
