"""A taught model: the network that ships, and a head that was fitted to somebody's own episodes.

The folder that `demerit teach` writes holds `model.json` (what it is), `head-*.npz` (the fitted numbers, named by their
hash: a crash never leaves one model's description beside another's numbers), and for people `report.html` and
`report.json`. The network is not in it: it is named by its hash, and another one is refused.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.frames import Images, Prepare, short_hash
from demerit.data.instructions import normalize_instruction
from demerit.data.reward import Reward
from demerit.errors import BadEpisode, BadInput, DemeritError, StoreError
from demerit.models.folder import name_of, only_these, read_description
from demerit.models.protocol import ModelCard
from demerit.models.taught.features import FeatureMaker, Features, Stream, beats, followed_rows
from demerit.models.taught.head import Head, success_score

KIND = "taught"
AT_ONCE = 1024
"""frames that are in memory at once, small"""
ONE_PICTURE = 3


@dataclass(frozen=True)
class Recipe:
    """What a taught model is beside its numbers: the fields of model.json."""

    network: str
    """hash of the network that it was taught on"""
    cameras: tuple[str, ...]
    parts: tuple[str, ...]
    """what the head sees: see `demerit.models.taught.features`"""
    stride: int
    """it looks at every so many-th frame, and at the last"""
    threshold: float | None
    """probability from which on success is said; None: nothing is promised"""
    risk: float
    promise: str
    """what the threshold promises, as a sentence"""
    taught_on: Mapping[str, Any]
    """the dataset, how many episodes and labels, tasks"""
    licence: str
    head: str = ""
    """sha256 of the file with the fitted numbers, which is named by it"""
    lesson: Mapping[str, Any] = field(default_factory=dict)
    """how it was fitted, for people"""

    @classmethod
    def read(cls, folder: Path) -> Recipe:
        """Read a folder's model.json strictly."""
        facts = read_description(folder)
        names = tuple(cls.__dataclass_fields__)
        only_these(folder, facts, *names)
        missing = [name for name in names if name not in facts]
        if missing:
            raise BadInput(str(folder / "model.json"), f"the fields {', '.join(names)}", f"none of {missing}")
        kept = {name: facts[name] for name in names}
        for name in ("cameras", "parts"):
            if not isinstance(kept[name], list) or not kept[name]:
                raise BadInput(f"{folder / 'model.json'}, {name}", "a list of names", repr(kept[name]))
            kept[name] = tuple(str(one) for one in kept[name])
        if not isinstance(kept["head"], str) or not kept["head"].isalnum():
            raise BadInput(f"{folder / 'model.json'}, head", "a hash", repr(kept["head"]))
        if type(kept["stride"]) is not int or kept["stride"] < 1:
            raise BadInput(f"{folder / 'model.json'}, stride", "a whole number from 1 on", repr(kept["stride"]))
        if kept["threshold"] is not None and not 0 <= float(kept["threshold"]) <= 1:
            raise BadInput(f"{folder / 'model.json'}, threshold", "a number from 0 to 1, or null", kept["threshold"])
        return cls(**kept)

    def as_facts(self) -> dict[str, Any]:
        """Write the fields as plain values."""
        return {**vars(self), "cameras": list(self.cameras), "parts": list(self.parts)}


class TaughtModel:
    """Progress and success as somebody's own episodes showed them; never looks ahead."""

    def __init__(self, recipe: Recipe, head: Head, maker: FeatureMaker, name: str = KIND) -> None:
        """Put the parts together; `TaughtModel.from_folder` reads them."""
        if maker.hash != recipe.network:
            raise BadInput(
                f"the taught model {name!r}",
                f"the network that it was taught on ({recipe.network[:12]})",
                f"another one ({maker.hash[:12]}): teach it again, or install the demerit that it was made with",
            )
        self.recipe, self.head, self.maker = recipe, head, maker
        self.tasks: Mapping[str, str] = recipe.taught_on.get("tasks", {})
        self.card = self._card(name)
        self._live: _Live | None = None

    @classmethod
    def from_folder(cls, folder: Path, network: FeatureMaker | str | Path | None = None) -> TaughtModel:
        """Load a model folder of kind `taught`; `network` is another than the one that ships, or its folder."""
        recipe = Recipe.read(folder)
        path = folder / head_file(recipe.head)
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise StoreError(path, f"it cannot be read ({error.strerror}): copy the folder again") from error
        if found != recipe.head:
            raise StoreError(path, "it is not the file that model.json speaks of: copy the folder again")
        head = Head.load(path)
        if network is None or isinstance(network, str | Path):
            from demerit.models.taught.network import Network  # noqa: PLC0415  # a tenth of a second

            network = Network.shipped() if network is None else Network.load(network)
        return cls(recipe, head, network, name_of(folder))

    @property
    def prepare(self) -> Prepare:
        """Pictures are made small where they are decoded."""
        return self.maker.prepare

    def looks_at(self, episode: Episode) -> list[str]:
        """Name the cameras: those that it was taught with."""
        for name in self.recipe.cameras:
            if name not in episode.views:
                raise BadEpisode(
                    episode.id,
                    f"the camera {name!r}, which this model was taught with",
                    f"an episode with {', '.join(episode.views)}",
                )
        return list(self.recipe.cameras)

    def task(self, instruction: str) -> str:
        """Which of the taught tasks words name; empty when none."""
        return self.tasks.get(normalize_instruction(instruction), "")

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Score episodes; one that cannot be seen comes back unscored with the reason."""
        return [self._one(episode) for episode in episodes]

    def prefer(self, pairs: Sequence[tuple[Episode, Episode]]) -> list[float]:
        """Say how likely the first of each pair is the better one, by what they are worth at the end."""
        scores: dict[int, float] = {}
        for episode in (one for pair in pairs for one in pair):
            if id(episode) not in scores:
                scores[id(episode)] = self._worth(episode)
        return [1 / (1 + math.exp(self.head.steep * (scores[id(b)] - scores[id(a)]))) for a, b in pairs]

    def reset(self, instruction: str) -> None:
        """Begin to follow a robot."""
        streams = tuple(Stream(self.maker, instruction, self.recipe.parts) for _ in self.recipe.cameras)
        self._live = _Live(self, self.task(instruction), streams)

    def step(self, frame: Images | Mapping[str, Images]) -> float:
        """Take the next (height, width, 3) frame, or one per camera by name, and return its progress.

        Every step costs the same, however long the episode is.
        """
        if self._live is None:
            raise BadInput("step", "reset(instruction) before the first frame", "a frame")
        return self._live.step(frame)

    def features(self, episode: Episode) -> tuple[npt.NDArray[np.int32], Features]:
        """Look at an episode: the frames that were looked at, and what the head sees of them."""
        cameras = self.looks_at(episode)
        lengths = {name: len(episode.views[name]) for name in (episode.main_camera, *cameras)}
        if len(set(lengths.values())) > 1:
            raise BadEpisode(episode.id, "cameras of one length", lengths)
        length = lengths[cameras[0]]
        if not length:
            raise BadEpisode(episode.id, "at least one frame", "none")
        at = beats(length, self.recipe.stride)
        found = []
        for camera in cameras:
            stream = Stream(self.maker, episode.instruction, self.recipe.parts)
            frames = episode.views[camera]
            parts = [
                stream.look(frames.take_prepared(at[start : start + AT_ONCE], self.prepare))
                for start in range(0, len(at), AT_ONCE)
            ]
            found.append(followed_rows(stream, np.concatenate(parts), length, self.recipe.stride))
        return at, np.concatenate(found, axis=1)

    def _one(self, episode: Episode) -> Reward:
        try:
            at, x = self.features(episode)
        except DemeritError as error:
            return Reward.unscored(self.card.name, episode.id, str(error))
        outputs = self.head.outputs(x, self.task(episode.instruction))
        success = self.head.success(outputs).astype(np.float32)
        value = self.head.value(outputs).astype(np.float32)
        why = "" if np.isfinite(value).all() else "the network gave no number there"
        return Reward(self.card.name, episode.id, at, value, success, why, self._given(episode, len(at), success))

    def _given(self, episode: Episode, frames: int, success: npt.NDArray[np.float32]) -> dict[str, Any]:
        cameras = list(self.recipe.cameras)
        threshold = self.recipe.threshold
        return {
            "camera": cameras[0] if len(cameras) == 1 else cameras,
            "frames": frames,
            "instruction": episode.instruction or "none",
            "task": "as taught"
            if normalize_instruction(episode.instruction) in self.tasks
            else "not among those taught",
            "success from": threshold,
            "risk": self.recipe.risk if threshold is not None else None,
            "succeeds": None if threshold is None else bool(success[-1] >= threshold),
        }

    def _worth(self, episode: Episode) -> float:
        try:
            x = self.features(episode)[1]
        except DemeritError:
            return math.nan
        return float(success_score(self.head.outputs(x[-1:], self.task(episode.instruction))[0]))

    def _card(self, name: str) -> ModelCard:
        recipe = self.recipe
        episodes, dataset, labels = (recipe.taught_on.get(one, "?") for one in ("episodes", "dataset", "labels"))
        about = (
            f"Taught on {episodes} episodes of {dataset} ({labels}); "
            f"good for those tasks, cameras and robots and no others. {recipe.promise}"
        )
        return ModelCard(
            name=name,
            revision=short_hash(recipe.head.encode(), recipe.network.encode())[:12],
            licence=recipe.licence,
            quantity="progress",
            low=0.0,
            high=1.0,
            causal=True,
            comparable=True,
            reads_instruction=bool({"hidden", "outputs"} & set(recipe.parts)) or bool(self.head.tasks),
            weights_hash=short_hash(recipe.head.encode(), recipe.network.encode(), repr(recipe.threshold).encode()),
            about=about,
        )


def head_file(sha256: str) -> str:
    """Name the file with the fitted numbers."""
    return f"head-{sha256[:12]}.npz"


@dataclass(eq=False)
class _Live:
    """A robot that is being followed: a stream a camera, and how many frames there were."""

    model: TaughtModel
    task: str
    streams: tuple[Stream, ...]
    count: int = 0

    def step(self, frame: Images | Mapping[str, Images]) -> float:
        rows = [self._row(stream, picture) for stream, picture in zip(self.streams, self._pictures(frame), strict=True)]
        self.count += 1
        return float(self.model.head.progress(np.concatenate(rows, axis=1), self.task)[0])

    def _row(self, stream: Stream, picture: Images) -> Features:
        tower = stream.look(self.model.prepare(picture[None]))
        in_turn = self.count % self.model.recipe.stride == 0
        return stream.follow(tower) if in_turn else stream.peek(tower)

    def _pictures(self, frame: Images | Mapping[str, Images]) -> list[Images]:
        cameras = self.model.recipe.cameras
        if isinstance(frame, Mapping):
            missing = [name for name in cameras if name not in frame]
            if missing:
                raise BadInput("frame", f"a picture of each of {', '.join(cameras)}", f"none of {', '.join(missing)}")
            return [frame[name] for name in cameras]
        if len(cameras) > 1:
            raise BadInput("frame", f"a picture by camera: {{{', '.join(map(repr, cameras))}}}", "one picture")
        if frame.ndim != ONE_PICTURE:
            raise BadInput("frame", "shape (height, width, 3)", frame.shape)
        return [frame]
