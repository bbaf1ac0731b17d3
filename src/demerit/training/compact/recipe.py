"""The recipe of a training run: one file, every number in it, and every one is checked before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Any

from demerit.config import change_config, need, read_yaml
from demerit.errors import UnknownName

KINDS = ("measured", "demonstration", "model")
"""of episodes: see `corpus.Row.kind`"""
LOSSES = ("preference", "success", "by_task", "facts", "taught", "wrong_weight", "model_weight")
"""names of the weights of losses and of clips"""
FOLDS = 3
FEWEST_FRAMES = 4
"""in a clip: there and back again"""
STRIDE, SMALLEST = 32, 64
"""the image tower halves a picture five times, and looks at four by four places before the last"""


@dataclass(frozen=True)
class Recipe:
    """How a network is trained. The defaults are those of the file `recipe.yaml`, which made the shipped weights."""

    seed: int = 0
    size: int = 128
    """pixels a side"""
    steps: int = 2600
    groups: int = 24
    """groups of episodes in a step"""
    clips: int = 8
    """clips in a group: they share an instruction, and each pair of them is compared"""
    frames: int = 8
    """frames in a clip"""
    tower_rate: float = 6e-4
    head_rate: float = 1.5e-3
    decay: float = 0.03
    average: float = 0.998
    """how much of the averaged weights is kept at each step; the average is what is exported"""

    shares: Mapping[str, float] = field(
        default_factory=lambda: {"measured": 0.7, "demonstration": 0.2, "model": 0.1},
    )
    """how much of a step comes from episodes of each kind"""
    failures: bool = True
    """whether failures that really happened are shown"""
    rewind: float = 0.15
    """share of clips that go back"""
    wrong_words: float = 0.15
    """share of the clips of `wrong_kinds` that are told something else"""
    wrong_kinds: tuple[str, ...] = ("demonstration", "model")
    """not the simulator: with forty tasks the network learns by heart which words belong to which scene, and then every
    wording of a new task is a wrong one"""
    unsaid: float = 0.3
    """share of clips told nothing"""
    cut: float = 0.5
    """share of clips that end early"""

    preference: float = 0.3
    success: float = 0.3
    by_task: float = 0.5
    facts: float = 0.3
    taught: float = 1.0
    """weights of the losses beside progress, which has weight 1"""
    wrong_weight: float = 0.5
    model_weight: float = 0.5
    """how much a teacher's curve counts against a measured one"""

    held_out_tasks: tuple[str, ...] = ()
    fold: int | None = None
    """with a fold: demonstrations of a third of the sites and a third of the teacher's instructions are held out"""

    def __post_init__(self) -> None:
        """Refuse numbers that nothing can be trained with."""
        need("seed", self.seed >= 0, "0 or more", self.seed)
        for name in ("steps", "groups"):
            need(name, getattr(self, name) >= 1, "at least 1", getattr(self, name))
        for name in ("tower_rate", "head_rate"):
            need(name, 0 < getattr(self, name) <= 1, "a number above 0, at most 1", getattr(self, name))
        need("decay", 0 <= self.decay <= 1, "a number from 0 to 1", self.decay)
        for name in LOSSES:
            need(name, 0 <= getattr(self, name) < inf, "a finite number, 0 or more", getattr(self, name))
        fits = self.size >= SMALLEST and self.size % STRIDE == 0
        need("size", fits, f"a multiple of {STRIDE} from {SMALLEST} on", self.size)
        even = self.clips >= 2 and self.clips % 2 == 0  # noqa: PLR2004
        need("clips", even, "an even number: half of a group teaches, half is asked", self.clips)
        need("frames", self.frames >= FEWEST_FRAMES, f"at least {FEWEST_FRAMES}", self.frames)
        for name in ("rewind", "wrong_words", "unsaid", "cut", "average"):
            need(name, 0 <= getattr(self, name) <= 1, "a share from 0 to 1", getattr(self, name))
        need("wrong_words", self.rewind + self.wrong_words <= 1, "at most 1 together with rewind", self.wrong_words)
        need("fold", self.fold is None or self.fold in range(FOLDS), f"none, or 0 to {FOLDS - 1}", self.fold)
        for name in ("shares", "wrong_kinds"):
            for kind in getattr(self, name):
                if kind not in KINDS:
                    raise UnknownName(f"kind of episodes (recipe, {name})", str(kind), KINDS)
        good = all(isinstance(one, int | float) and one >= 0 for one in self.shares.values())
        need("shares", good and sum(self.shares.values()) > 0, "shares from 0 on, not all 0", dict(self.shares))

    def changed(self, changes: Mapping[str, Any]) -> Recipe:
        """Return it with other numbers; an unknown name is refused."""
        return change_config(self, changes)

    def facts_of(self) -> dict[str, Any]:
        """Return it as plain values, for a file."""
        return {**asdict(self), "shares": dict(self.shares)}


def load_recipe(path: str | Path | None = None) -> Recipe:
    """Read a recipe; without a path, the one that made the shipped weights."""
    file = files("demerit") / "assets" / "train" / "compact.yaml" if path is None else Path(path)
    return Recipe().changed(read_yaml(file, str(path or "recipe.yaml")))
