"""A taught model: the shipped network and a head fitted to the user's own episodes.

The folder that `demerit teach` writes holds `model.json`, `head-*.npz` (named by its hash, so a crash never leaves one
model's description with another's arrays), `report.html` and `report.json`. The network is not in the folder:
model.json holds its hash, and another network is refused. `seen-*.json`, named by the head's hash too, marks the
episodes that it was taught on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.config import build_config
from demerit.data.episode import Episode
from demerit.data.frames import Images, Prepare, short_hash
from demerit.data.instructions import normalize_instruction
from demerit.data.reward import Reward
from demerit.data.seen import SeenEpisodes, seen_by
from demerit.errors import BadEpisode, BadInput, DemeritError
from demerit.models.live_cameras import LiveCameras
from demerit.models.loading import DESCRIPTION, name_of, read_description, read_listed
from demerit.models.protocol import LiveFrame, LiveReward, ModelCard
from demerit.models.taught.features import (
    FeatureNetwork,
    Features,
    FeatureStream,
    join_cameras,
    load_network,
    mean_read,
    stream_features,
    stride_indices,
    validate_parts,
)
from demerit.models.taught.head import Floats, TaughtHead, success_score
from demerit.models.taught.reader import Reader, prepare_large

KIND = "taught"
IDENTITY = 2
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
    """dataset, number of episodes and labels, tasks"""
    licence: str
    head: str = ""
    """sha256 of the head file, which is named by it"""
    reader: str = ""
    """sha256 of the reader's file, which is named by it; empty = there is none"""
    read_every: int = 1
    """the reader reads every so-many-th of the frames used"""
    large: bool = False
    """its features were fitted on images resized for a reader first"""
    lesson: Mapping[str, Any] = field(default_factory=dict)
    """how it was fitted; for people"""
    identity: int = 1
    """what the model's hash covers. 1: network, head and threshold; 2: also cameras, parts, stride, risk and tasks"""

    @classmethod
    def read(cls, folder: Path) -> TaughtConfig:
        """Read and validate a folder's model.json."""
        facts = {name: value for name, value in read_description(folder).items() if name not in ("format", "kind")}
        path = folder / DESCRIPTION
        found = build_config(cls, facts, str(path))
        validate_parts(found.parts)
        tasks = found.taught_on.get("tasks", {})
        for name, holds, expected in (
            ("cameras", bool(found.cameras) and len(set(found.cameras)) == len(found.cameras), "different names"),
            ("parts", len(set(found.parts)) == len(found.parts), "different names"),
            ("head", found.head.isalnum(), "a hash"),
            ("stride", found.stride >= 1, "a whole number, 1 or more"),
            ("read_every", found.read_every >= 1, "a whole number, 1 or more"),
            ("threshold", found.threshold is None or 0 <= found.threshold <= 1, "a number from 0 to 1, or null"),
            ("risk", 0 <= found.risk <= 1, "a number from 0 to 1"),
            ("identity", 1 <= found.identity <= IDENTITY, f"1 to {IDENTITY} (another may need a newer demerit)"),
            ("taught_on", isinstance(tasks, dict) and all(isinstance(x, str) for x in tasks.values()), "tasks by name"),
        ):
            if not holds:
                raise BadInput(f"{path}, {name}", expected, repr(facts[name])[:80])
        return found

    def as_facts(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**vars(self), "cameras": list(self.cameras), "parts": list(self.parts)}

    def hash(self, pooled: int) -> str:
        """Hash everything that changes a reward; `pooled` is the width at which the network's features are split."""
        known = [self.head.encode(), self.network.encode(), repr(self.threshold).encode()]
        known += [f"large {self.reader}".encode()] if self.large else []
        known += [f"read every {self.read_every}".encode()] if self.read_every > 1 else []
        if self.identity > 1:
            tasks = self.taught_on.get("tasks", {})
            more = [self.cameras, self.parts, self.stride, self.risk, tasks, pooled, self.identity]
            known.append(json.dumps(more, sort_keys=True).encode())
        return short_hash(*known)


class TaughtModel:
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
    ) -> None:
        """Combine the parts; `TaughtModel.from_folder` reads them. `taught_on` None = unknown."""
        if network.hash != config.network:
            raise BadInput(
                f"the taught model {name!r}",
                f"the network that it was taught on ({config.network[:12]})",
                f"another one ({network.hash[:12]}): teach it again, or install the demerit version it was made with",
            )
        self.config, self.head, self.network = config, replace(head, cameras=len(config.cameras)), network
        self.reader = reader
        self.tasks: Mapping[str, str] = config.taught_on.get("tasks", {})
        self.card = self._card(name)
        self.seen = (taught_on or SeenEpisodes(complete=False)) | seen_by(network)

    @classmethod
    def from_folder(cls, folder: Path, network: FeatureNetwork | str | Path | None = None) -> TaughtModel:
        """Load a model folder of kind `taught`; `network` replaces the shipped network (itself or its folder)."""
        config = TaughtConfig.read(folder)
        path = folder / head_file(config.head)
        read_listed(path, config.head)
        taught_on = SeenEpisodes.read(folder / seen_file(config.head))
        reader = Reader.load(folder / reader_file(config.reader), config.reader) if config.reader else None
        return cls(config, TaughtHead.load(path), load_network(network), name_of(folder), taught_on, reader)

    @property
    def prepare(self) -> Prepare:
        """Resize images; run in the decoding processes."""
        return prepare_large() if self.config.large else self.network.prepare

    @property
    def wanted(self) -> Callable[[int], npt.NDArray[np.int32]]:
        """The frames to decode, by the number of frames."""
        return partial(stride_indices, stride=self.config.stride)

    def looks_at(self, episode: Episode) -> list[str]:
        """Return the camera names: those it was taught with and the episode has."""
        found = [name for name in self.config.cameras if name in episode.views]
        if not found:
            names = " or ".join(map(repr, self.config.cameras))
            expected = f"the camera {names}, which this model was taught with"
            raise BadEpisode(episode.id, expected, f"an episode with {', '.join(episode.views)}")
        return found

    def task(self, instruction: str) -> str:
        """Return the taught task an instruction names; empty when none."""
        return self.tasks.get(normalize_instruction(instruction), "")

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Score episodes. An episode that cannot be read comes back unscored with the reason."""
        return [self._score_episode(episode) for episode in episodes]

    def prefer(self, pairs: Sequence[tuple[Episode, Episode]]) -> list[float]:
        """Return the probability that the first of each pair is better, by the scores at the end."""
        scores: dict[int, float] = {}
        for episode in (episode for pair in pairs for episode in pair):
            if id(episode) not in scores:
                scores[id(episode)] = self._final_score(episode)
        return [1 / (1 + math.exp(self.head.steep * (scores[id(b)] - scores[id(a)]))) for a, b in pairs]

    def start(self, instruction: str) -> _TaughtRun:
        """Start a live episode. The cost per step is constant.

        A camera that the first frame lacks is missing in the whole episode.
        """
        cameras = self.config.cameras
        chosen = LiveCameras(lambda given: [name for name in cameras if name in given], cameras)
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
        lengths = {name: len(episode.views[name]) for name in (episode.main_camera, *cameras)}
        if len(set(lengths.values())) > 1:
            raise BadEpisode(episode.id, "cameras of one length", lengths)
        length = lengths[cameras[0]]
        if not length:
            raise BadEpisode(episode.id, "at least one frame", "none")
        at, stride = stride_indices(length, self.config.stride), self.config.stride
        streams = {name: self.start_stream(episode.instruction) for name in cameras}

        def read() -> Iterator[tuple[Features, Floats | None]]:
            for start in range(0, len(at), AT_ONCE):
                some = at[start : start + AT_ONCE]
                seen = {
                    name: stream.embed_and_read(episode.views[name].take_prepared(some, self.prepare))
                    for name, stream in streams.items()
                }
                rows = {name: stream_features(stream, seen[name][0], some, stride) for name, stream in streams.items()}
                yield join_cameras([rows.get(name) for name in self.config.cameras]), mean_read(seen.values())

        return at, read()

    def _score_episode(self, episode: Episode) -> Reward:
        task = self.task(episode.instruction)
        try:
            at, parts = self._read_features(episode)
            found = [(self.head.outputs(x, task, read), self.head.distances(x)) for x, read in parts]
            outputs, distances = (np.concatenate(column) for column in zip(*found, strict=True))
        except DemeritError as error:
            return Reward.unscored(self.card.name, episode.id, str(error))
        success = self.head.success(outputs).astype(np.float32)
        value = self.head.value(outputs).astype(np.float32)
        why = "" if np.isfinite(value).all() else "the network gave no number there"
        given = self._given(episode, len(at), success)
        if self.head.familiarity is not None:
            given["familiarity"] = self.head.familiarity.percentile(distances)
        return Reward(self.card.name, episode.id, at, value, success, why, given)

    def _given(self, episode: Episode, frames: int, success: npt.NDArray[np.float32]) -> dict[str, Any]:
        cameras = self.looks_at(episode)
        missing = [name for name in self.config.cameras if name not in cameras]
        # the guarantee is about episodes with all cameras
        threshold = None if missing else self.config.threshold
        known = normalize_instruction(episode.instruction) in self.tasks
        return {
            "camera": cameras[0] if len(cameras) == 1 else cameras,
            **({"missing cameras": missing} if missing else {}),
            "frames": frames,
            "instruction": episode.instruction or "none",
            "task": "as taught" if known else "not among those taught",
            "success from": threshold,
            "risk": self.config.risk if threshold is not None else None,
            "succeeds": None if threshold is None else bool(success[-1] >= threshold),
        }

    def _final_score(self, episode: Episode) -> float:
        task = self.task(episode.instruction)
        try:
            *_, (x, read) = self._read_features(episode)[1]
        except DemeritError:
            return math.nan
        return float(success_score(self.head.outputs(x, task, read)[-1]))

    def _card(self, name: str) -> ModelCard:
        config = self.config
        episodes, dataset, labels = (config.taught_on.get(key, "?") for key in ("episodes", "dataset", "labels"))
        about = (
            f"Taught on {episodes} episodes of {dataset} ({labels}); "
            f"good for those tasks, cameras and robots and no others. {config.promise}"
        )
        return ModelCard(
            name=name,
            revision=short_hash(config.head.encode(), config.network.encode())[:12],
            licence=config.licence,
            quantity="progress",
            low=0.0,
            high=1.0,
            causal=True,
            comparable=True,
            reads_instruction=bool({"hidden", "outputs"} & set(config.parts)) or bool(self.head.tasks),
            weights_hash=config.hash(self.network.pooled_width),
            about=about,
        )


def head_file(sha256: str) -> str:
    """Return the head's file name."""
    return f"head-{sha256[:12]}.npz"


def seen_file(sha256: str) -> str:
    """Return the name of the file that marks the episodes of a head."""
    return f"seen-{sha256[:12]}.json"


def reader_file(sha256: str) -> str:
    """Return the reader's file name."""
    return f"reader-{sha256[:12]}.onnx"


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
        seen = {name: self._look(stream, images[name]) for name, stream in self.streams.items()}
        self.count += 1
        head = self.model.head
        x = join_cameras([seen[name][0] if name in seen else None for name in cameras])
        outputs, familiarity = head.outputs(x, self.model.task(self.instruction), mean_read(seen.values())), None
        if head.familiarity is not None:
            self.distance += float(head.distances(x)[0])
            familiarity = head.familiarity.percentile(self.distance / self.count)
        return LiveReward(float(head.value(outputs)[0]), float(head.success(outputs)[0]), familiarity)

    def _look(self, stream: FeatureStream, image: Images) -> tuple[Features, Floats | None]:
        tower, read = stream.embed_and_read(self.model.prepare(image[None]))
        on_stride = self.count % self.model.config.stride == 0
        return stream.follow(tower) if on_stride else stream.peek(tower), read
