"""The configuration of a ReWiND training run. Every number is checked before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Literal

from demerit.config import need, read_yaml
from demerit.training.train_config import TrainConfig

FEWEST_FRAMES = 2


@dataclass(frozen=True)
class RewindTrainConfig(TrainConfig):
    """How the network is trained. The defaults equal `assets/train/rewind.yaml`."""

    steps: int = 1500
    clips: int = 64
    """clips in a step; each is shown under its own and under another task's instruction"""
    frames: int = 16
    """most frames that the network sees at once, spread over the video so far"""
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    rate: float = 5e-4
    decay: float = 1e-4
    average: float = 0.995
    """decay of the moving average of the weights, which is what is exported"""
    rewind: float = 0.8
    """share of clips of successes that go forward and back"""
    mismatched: float = 0.0
    """weight of the clips under another task's instruction, which are worth 0; 0: none. The paper's is 1, which needs
    many instructions: with the simulator's forty tasks every new one reads as a wrong one"""
    failures: float = 0.5
    """share of failures among the clips of tasks that have some; 0: none, as in the paper"""
    targets: Literal["time", "measured"] = "time"
    """of successes: t / T, or the measured progress where there is some. Failures always have the measured one"""
    held_out_tasks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be trained with."""
        super().__post_init__()
        for name in ("steps", "clips", "hidden", "layers", "heads"):
            need(name, getattr(self, name) >= 1, "at least 1", getattr(self, name))
        need("frames", self.frames >= FEWEST_FRAMES, f"at least {FEWEST_FRAMES}", self.frames)
        need("heads", self.hidden % self.heads == 0, f"a divisor of hidden ({self.hidden})", self.heads)
        need("rate", 0 < self.rate <= 1, "a number above 0, at most 1", self.rate)
        need("decay", 0 <= self.decay <= 1, "a number from 0 to 1", self.decay)
        need("mismatched", 0 <= self.mismatched < inf, "a finite number, 0 or more", self.mismatched)
        for name in ("rewind", "failures", "average"):
            need(name, 0 <= getattr(self, name) <= 1, "a share from 0 to 1", getattr(self, name))


def load_rewind_config(path: str | Path | None = None) -> RewindTrainConfig:
    """Read a YAML file; by default the shipped one."""
    file = files("demerit") / "assets" / "train" / "rewind.yaml" if path is None else Path(path)
    return RewindTrainConfig().change(read_yaml(file, str(path or "rewind.yaml")))
