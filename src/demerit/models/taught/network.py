"""The network that ships, as what a taught model looks through."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from demerit.data.frames import Images, Prepare
from demerit.models.compact.engine import Engine, Followed
from demerit.models.compact.resize import resized
from demerit.models.taught.features import Features


class Network:
    """A trained network at work; satisfies `FeatureMaker`."""

    def __init__(self, engine: Engine) -> None:
        """Take a network that is loaded."""
        self.engine = engine

    @classmethod
    def shipped(cls) -> Network:
        """Load the one that comes with demerit."""
        return cls(Engine.shipped())

    @classmethod
    def load(cls, folder: str | Path) -> Network:
        """Load another one."""
        return cls(Engine.load(Path(folder)))

    @property
    def hash(self) -> str:
        """Identify the weights."""
        return self.engine.info.hash()

    @property
    def facts(self) -> Mapping[str, Any]:
        """Revision, licence and what it was trained on."""
        info = self.engine.info
        return {"revision": info.revision, "licence": info.licence, "trained on": list(info.trained_on)}

    @property
    def vector(self) -> int:
        """How many of a frame's numbers are the tower's vector."""
        return self.engine.info.vector

    @property
    def prepare(self) -> Prepare:
        """Make pictures small."""
        return partial(resized, side=self.engine.info.size)

    def features(self, images: Images, first: Images) -> Features:
        """Look at frames beside the first one."""
        return self.engine.features(images, first)

    def follow(self, features: Features, instruction: str, state: Any = None) -> Followed:
        """Follow frames in order."""
        return self.engine.follow(features, instruction, state)
