"""The configuration of a compact training run. Every number is checked before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from demerit.config import need, read_yaml
from demerit.errors import UnknownName
from demerit.training.train_config import TrainConfig

KINDS = ("measured", "demonstration", "outcome", "model")
"""of episodes: see `CorpusRow.kind`"""
LOSS_WEIGHTS = ("preference", "success", "by_task", "facts", "taught", "wrong_weight", "model_weight")
FOLDS = 3
FEWEST_FRAMES = 4
STRIDE, SMALLEST = 32, 64
"""the image tower halves an image five times and pools 4 x 4 places before the last"""


@dataclass(frozen=True)
class CompactTrainConfig(TrainConfig):
    """How the compact network is trained. The defaults equal `compact.yaml`, which made the weights."""

    size: int = 128
    """pixels per side"""
    steps: int = 2600
    groups: int = 24
    """groups of clips in a step"""
    clips: int = 8
    """clips in a group: they share an instruction, and each pair of them is compared"""
    frames: int = 8
    """frames in a clip"""
    tower_rate: float = 6e-4
    head_rate: float = 1.5e-3
    decay: float = 0.03
    average: float = 0.998
    """decay of the moving average of the weights, which is what is exported"""

    shares: Mapping[str, float] = field(
        default_factory=lambda: {"measured": 0.7, "demonstration": 0.2, "outcome": 0.2, "model": 0.1},
    )
    """share of a step for each kind of episode; kinds that the corpus lacks do not count"""
    failures: bool = True
    """whether failures are used"""
    rewind: float = 0.15
    """share of clips that go forward and back"""
    wrong_words: float = 0.15
    """share of clips of `wrong_kinds` that get the instruction of another task"""
    wrong_kinds: tuple[str, ...] = ("demonstration", "model")
    """without the simulator: with forty tasks the network would memorise which instruction fits which scene, and then
    reject every new instruction"""
    unsaid: float = 0.3
    """share of groups without an instruction"""
    cut: float = 0.5
    """share of clips that end early"""

    preference: float = 0.3
    success: float = 0.3
    by_task: float = 0.5
    facts: float = 0.3
    taught: float = 1.0
    """weights of the losses; progress has weight 1"""
    wrong_weight: float = 0.5
    """weight of clips with a wrong instruction"""
    model_weight: float = 0.5
    """weight of a model's curve relative to a measured one"""

    held_out_tasks: tuple[str, ...] = ()
    fold: int | None = None
    """0 to 2: hold out demonstrations of a third of the sites and a third of the instructions of a model's curves"""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be trained with."""
        super().__post_init__()
        for name in ("steps", "groups"):
            need(name, getattr(self, name) >= 1, "at least 1", getattr(self, name))
        for name in ("tower_rate", "head_rate"):
            need(name, 0 < getattr(self, name) <= 1, "a number above 0, at most 1", getattr(self, name))
        need("decay", 0 <= self.decay <= 1, "a number from 0 to 1", self.decay)
        for name in LOSS_WEIGHTS:
            need(name, 0 <= getattr(self, name) < inf, "a finite number, 0 or more", getattr(self, name))
        fits = self.size >= SMALLEST and self.size % STRIDE == 0
        need("size", fits, f"a multiple of {STRIDE}, at least {SMALLEST}", self.size)
        even = self.clips >= 2 and self.clips % 2 == 0
        need("clips", even, "an even number (one half of a group is fitted, the other predicted)", self.clips)
        need("frames", self.frames >= FEWEST_FRAMES, f"at least {FEWEST_FRAMES}", self.frames)
        for name in ("rewind", "wrong_words", "unsaid", "cut", "average"):
            need(name, 0 <= getattr(self, name) <= 1, "a share from 0 to 1", getattr(self, name))
        need("wrong_words", self.rewind + self.wrong_words <= 1, "at most 1 together with rewind", self.wrong_words)
        need("fold", self.fold is None or self.fold in range(FOLDS), f"none, or 0 to {FOLDS - 1}", self.fold)
        for name in ("shares", "wrong_kinds"):
            for kind in getattr(self, name):
                if kind not in KINDS:
                    raise UnknownName(f"kind of episodes ({name})", str(kind), KINDS)
        good = all(isinstance(share, int | float) and share >= 0 for share in self.shares.values())
        need("shares", good and sum(self.shares.values()) > 0, "shares of 0 or more, not all 0", dict(self.shares))


def load_compact_config(path: str | Path | None = None) -> CompactTrainConfig:
    """Read a YAML file; by default the configuration that made the shipped weights."""
    file = Path(__file__).with_name("compact.yaml") if path is None else Path(path)
    return CompactTrainConfig().change(read_yaml(file, str(path or "compact.yaml")))
