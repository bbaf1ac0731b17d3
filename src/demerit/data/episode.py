"""An episode: one attempt at one instruction, recorded by one or more cameras."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.frames import Frames, short_hash
from demerit.data.labels import Outcome, most_trusted
from demerit.data.notebook import episode_html
from demerit.errors import BadEpisode, BadInput, UnknownName


@dataclass(frozen=True)
class Origin:
    """Where an episode comes from. Empty means unknown."""

    dataset: str = ""
    revision: str = ""
    licence: str = ""
    embodiment: str = ""
    site: str = ""
    split: str = ""
    group: str = ""
    """episodes recorded together (a session, a scene, an original video); splits never separate a group"""
    parent: str = ""
    """the id of the episode that this one was made from"""
    tags: Mapping[str, str] = field(default_factory=dict)
    """anything else from the source: policy, subset, language ..."""


@dataclass(frozen=True)
class Edit:
    """A recorded change. Name, parameters and seed are enough to repeat it."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None


@dataclass(frozen=True, eq=False)
class Episode:
    """One attempt at one instruction."""

    id: str
    instruction: str
    """the task given to the robot; empty when unknown"""
    views: Mapping[str, Frames]
    """cameras by name; the first is the main one"""
    outcomes: tuple[Outcome, ...] = ()
    """one per label source; `outcome` is the most trusted"""
    origin: Origin = field(default_factory=Origin)
    signals: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """per-frame arrays such as state and action; may load on first access"""
    edits: tuple[Edit, ...] = ()

    def __post_init__(self) -> None:
        if not self.id or not self.id.isprintable():
            raise BadEpisode(self.id, "a printable, non-empty id", repr(self.id))
        if not isinstance(self.instruction, str):
            raise BadEpisode(self.id, "an instruction (empty when unknown)", repr(self.instruction))
        if not self.views:
            raise BadEpisode(self.id, "at least one camera", "none")

    @classmethod
    def from_video(cls, path: str | Path, instruction: str = "", id: str | None = None) -> Episode:
        """Make an episode of one video file."""
        frames = Frames.from_video(path)
        return cls(id or Path(path).stem, instruction, {"main": frames})

    @classmethod
    def from_array(cls, images: npt.ArrayLike, instruction: str = "", id: str = "array", fps: float = 10.0) -> Episode:
        """Make an episode of (n, height, width, 3) uint8 RGB images."""
        return cls(id, instruction, {"main": Frames.from_array(images, fps)})

    @property
    def outcome(self) -> Outcome | None:
        """The most trusted outcome, None when there is none."""
        return most_trusted(self.outcomes)

    @property
    def main(self) -> Frames:
        """The main camera."""
        return next(iter(self.views.values()))

    @property
    def main_camera(self) -> str:
        """The main camera's name."""
        return next(iter(self.views))

    def __len__(self) -> int:
        return len(self.main)

    def with_camera(self, name: str) -> Episode:
        """Make the named camera the main one."""
        if name not in self.views:
            raise UnknownName(f"camera in episode {self.id!r}", name, self.views)
        rest = {other: frames for other, frames in self.views.items() if other != name}
        return replace(self, views={name: self.views[name], **rest})

    def select(self, indices: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Episode:
        """Keep only the given frames of every camera and signal. Curves and events are dropped, other labels stay."""
        lengths = {name: len(frames) for name, frames in self.views.items()}
        if len(set(lengths.values())) > 1:
            raise BadEpisode(self.id, "cameras of one length (choose one with with_camera)", lengths)
        chosen = np.asarray(indices, dtype=np.int64)
        return replace(
            self,
            views={name: frames.select(chosen) for name, frames in self.views.items()},
            outcomes=tuple(replace(outcome, curve=None, events=()) for outcome in self.outcomes),
            signals={name: values[chosen] for name, values in self.signals.items() if len(values) == len(self)},
        )

    def fingerprint(self, with_signals: bool = False) -> str:
        """Hash what a model may see: the instruction, every camera's frames, perhaps the signals; never the labels."""
        views = [[name, frames.identity()] for name, frames in self.views.items()]
        seen = json.dumps([self.instruction, views]).encode()
        if not with_signals:
            return short_hash(seen)
        signals = {name: np.asarray(values) for name, values in self.signals.items()}
        parts = [f"{name} {array.dtype} {array.shape}".encode() + array.tobytes() for name, array in signals.items()]
        return short_hash(seen, *parts)

    def __repr__(self) -> str:
        outcome = self.outcome
        label = "" if outcome is None else f", success={outcome.success} ({outcome.source})"
        return f"Episode({self.id!r}, {self.instruction!r}, cameras={list(self.views)}{label})"

    def _repr_html_(self) -> str:
        return episode_html(self)


def count_episodes(number: int) -> str:
    """Return "1 episode", "2 episodes" ..."""
    return f"{number} episode{'' if number == 1 else 's'}"


def safe_name(text: str) -> str:
    """Turn a name into a safe file name; raise if nothing is left."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "._-+=@") else "-" for c in text).strip(".-")
    if not safe:
        raise BadInput("name", "some letters or digits", repr(text))
    return safe
