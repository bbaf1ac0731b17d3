"""ReWiND (Zhang et al. 2025): a small causal transformer over features of frames, trained by `demerit train rewind`.

A model folder holds `model.json` (see `RewindInfo`), `head.onnx` (features and an instruction to progress),
`tower/` (the compact network that computes the features and reads the instruction) and `seen.json`. ONNX Runtime
computes. The value at a frame comes from at most `frames` frames, spread over the video up to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from demerit.config import build_config
from demerit.data.arrays import Floats32
from demerit.data.episode import Episode
from demerit.data.frames import Images, Prepare, short_hash, spread
from demerit.data.reward import Reward
from demerit.data.splits import SEEN, SeenEpisodes
from demerit.errors import BadEpisode, BadInput, DemeritError
from demerit.models.compact.engine import AGAIN, Engine, open_session
from demerit.models.compact.model import Compact
from demerit.models.live import LiveCameras
from demerit.models.loading import DESCRIPTION, name_of, read_description
from demerit.models.protocol import LiveFrame, LiveReward, ModelCard, ShownModel

KIND, HEAD, TOWER_FOLDER = "rewind", "head.onnx", "tower"
AT_ONCE = 64
"""moments computed at once"""
ABOUT = (
    "ReWiND: a small transformer over frame features, trained on t/T and rewound videos, and on failures or wrong "
    "instructions where its recipe has them. It needs an instruction, and knows the tasks it was trained on."
)


@dataclass(frozen=True)
class RewindInfo:
    """The fields of model.json, besides format and kind."""

    frames: int
    """most frames seen at once"""
    head: str
    """sha256 of head.onnx"""
    revision: str
    licence: str
    trained_on: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> RewindInfo:
        """Read and validate a folder's model.json."""
        facts = {name: value for name, value in read_description(folder).items() if name not in ("format", "kind")}
        info = build_config(cls, facts, str(folder / DESCRIPTION))
        if info.frames < 1:
            raise BadInput(f"{folder / DESCRIPTION}, frames", "a whole number, 1 or more", info.frames)
        return info

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**vars(self), "trained_on": list(self.trained_on)}


class ReWiND(ShownModel):
    """Progress (0 to 1) for every frame of the main camera, given an instruction. Causal."""

    thread_safe = True

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        """Use `from_folder`."""
        self.info = RewindInfo.read(folder)
        self.engine = Engine.load(folder / TOWER_FOLDER, threads)
        path, width = folder / HEAD, self.engine.info.vector
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no such file"
        if digest != self.info.head:
            raise BadInput(
                str(path), f"the file listed in {DESCRIPTION}, sha256 {self.info.head[:12]} ({AGAIN})", digest
            )
        inputs: dict[str, tuple[int | None, ...]] = {
            "features": (None, None, width),
            "words": (None, self.engine.info.words),
        }
        self._head = open_session(path.read_bytes(), (inputs, {"progress": (None, None)}), path)
        self._reader = Compact(engine=self.engine)
        self.seen = SeenEpisodes.read(folder / SEEN) | self.engine.seen
        weights = short_hash(self.info.head.encode(), self.engine.hash.encode(), str(self.info.frames).encode())
        self.card = ModelCard(
            name=name_of(folder),
            revision=self.info.revision,
            licence=self.info.licence,
            quantity="progress",
            low=0.0,
            high=1.0,
            causal=True,
            comparable=True,
            weights_hash=weights,
            about=ABOUT,
        )

    @classmethod
    def from_folder(cls, folder: Path, threads: int | None = None) -> ReWiND:
        """Load a model folder of kind `rewind` strictly: every file's hash and every graph's shapes are checked."""
        return cls(folder, threads)

    @property
    def prepare(self) -> Prepare:
        """Resize images; run in the decoding processes."""
        return self.engine.prepare

    def looks_at(self, episode: Episode) -> list[str]:
        """Return the main camera's name."""
        return [episode.main_camera]

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Score every frame. An episode that cannot be read comes back unscored with the reason."""
        return [self._score_episode(episode) for episode in episodes]

    def start(self, instruction: str) -> _RewindRun:
        """Start a live episode. The cost per step is constant."""
        words = self.engine.text_vector(instruction)
        if words is None:
            raise BadInput("instruction", "text with a known word", repr(instruction))
        return _RewindRun(self, words)

    def follow(self, features: Floats32, words: Floats32) -> Floats32:
        """Return (frames,) progress from 0 to 1, of (frames, features) and an instruction's vector."""
        early = self._run(features[None, : self.info.frames], words)[0]
        late = [
            self._run(np.stack([self._window(features[: at + 1]) for at in block]), words)[:, -1]
            for block in _blocks(range(self.info.frames, len(features)))
        ]
        return np.concatenate([early, *late])

    def follow_last(self, features: Floats32, words: Floats32) -> float:
        """Return the progress at the last of some frames."""
        return float(self._run(self._window(features)[None], words)[0, -1])

    def _window(self, features: Floats32) -> Floats32:
        return features[spread(len(features), self.info.frames)]

    def _run(self, windows: Floats32, words: Floats32) -> Floats32:
        inputs = {"features": np.ascontiguousarray(windows), "words": np.repeat(words[None], len(windows), axis=0)}
        progress: Floats32 = self._head.run(["progress"], inputs)[0]
        return progress

    def _score_episode(self, episode: Episode) -> Reward:
        facts: dict[str, Any] = {"camera": episode.main_camera, "instruction": episode.instruction}
        try:
            words = self.engine.text_vector(episode.instruction)
            if words is None:
                raise BadEpisode(episode.id, "an instruction with a known word", repr(episode.instruction))
            features = self._reader.features(episode.main)[:, : self.engine.info.vector]
            if not len(features):
                raise BadEpisode(episode.id, "at least one frame", "none")
            value = self.follow(features, words)
        except DemeritError as error:
            return Reward.unscored(self.card.name, episode.id, str(error), facts)
        why = "" if np.isfinite(value).all() else "the network gave no number there"
        at = np.arange(len(value), dtype=np.int32)
        return Reward(self.card.name, episode.id, at, value, None, why, {**facts, "frames": len(at)})


@dataclass(eq=False)
class _RewindRun:
    """A live episode: the first image and the features so far."""

    model: ReWiND
    words: Floats32
    features: list[Floats32] = field(default_factory=list)
    first: Images | None = None
    cameras: LiveCameras = field(default_factory=LiveCameras)

    def step(self, frame: LiveFrame) -> LiveReward:
        image = self.cameras.pick_main(frame)
        self.first = image if self.first is None else self.first
        engine = self.model.engine
        self.features.append(engine.features(image[None], self.first)[0, : engine.info.vector])
        indices = spread(len(self.features), self.model.info.frames)
        return LiveReward(self.model.follow_last(np.stack([self.features[at] for at in indices]), self.words))


def _blocks(moments: range) -> list[range]:
    return [moments[start : start + AT_ONCE] for start in range(0, len(moments), AT_ONCE)]
