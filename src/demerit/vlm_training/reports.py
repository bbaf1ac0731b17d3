"""What a run says of itself: a line of JSON for every update, and the same to TensorBoard or wandb where asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demerit.errors import BadInput, UnknownName

METRICS = "metrics.jsonl"
KNOWN = ("tensorboard", "wandb")


@dataclass(frozen=True)
class Told:
    """What is reported of an update."""

    step: int
    steps: int
    losses: Mapping[str, float]
    rate: float
    gradient: float
    """its length before it was clipped"""
    seconds: float
    tokens: int
    """over all machines"""
    found: float = float("nan")
    """share of the pictures whose features were kept already"""
    gib: float = 0.0
    """the most memory of a GPU so far"""
    error: float = float("nan")
    """on what is held out, where that was looked at"""

    @property
    def loss(self) -> float:
        """The sum that is minimised."""
        return sum(self.losses.values())

    def in_words(self) -> str:
        """Say how a run is doing."""
        each = " ".join(f"{name} {value:.3f}" for name, value in self.losses.items())
        more = "" if self.error != self.error else f", held-out error {self.error:.3f}"
        return f"loss {self.loss:.3f} ({each}), {self.tokens / max(self.seconds, 1e-9):.0f} tokens/s{more}"

    def facts(self) -> dict[str, Any]:
        """Return plain values; what is not known is left out."""
        told = {"step": self.step, "loss": self.loss, **{f"loss_{name}": one for name, one in self.losses.items()}}
        told |= {"rate": self.rate, "gradient": self.gradient, "seconds": self.seconds, "tokens": self.tokens}
        told |= {"features_found": self.found, "gpu_gib": self.gib, "held_out_error": self.error}
        return {name: value for name, value in told.items() if value == value}  # noqa: PLR0124  NaN


Report = Callable[[Told], None]


class Reports:
    """Everywhere that updates are told."""

    def __init__(self, folder: Path, also: Sequence[str], report: Report | None, facts: Mapping[str, Any]) -> None:
        """Open what was asked for; a library that is missing is a sentence before anything is computed."""
        self._told = [] if report is None else [report]
        self._path = folder / METRICS
        for name in also:
            if name not in KNOWN:
                raise UnknownName("place for metrics", name, KNOWN)
            self._told.append(_tensorboard(folder) if name == "tensorboard" else _wandb(folder, facts))

    def tell(self, told: Told) -> None:
        """Report an update."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(told.facts()) + "\n")
        for one in self._told:
            one(told)

    def go_on_from(self, step: int) -> None:
        """Drop the lines behind a checkpoint: those updates are made again."""
        if not self._path.exists():
            return
        kept = [line for line in self._path.read_text("utf-8").splitlines() if _step(line) <= step]
        partial = self._path.with_suffix(".partial")
        partial.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        partial.replace(self._path)


def _step(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError):  # half a line, from a run that was killed
        return float("inf")


def _tensorboard(folder: Path) -> Report:
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415
    except ImportError as missing:
        raise BadInput("metrics", "tensorboard to be installed (pip install tensorboard)", "none") from missing
    writer = SummaryWriter(str(folder / "tensorboard"))

    def tell(told: Told) -> None:
        for name, value in told.facts().items():
            writer.add_scalar(name, value, told.step)

    return tell


def _wandb(folder: Path, facts: Mapping[str, Any]) -> Report:
    try:
        import wandb  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415
    except ImportError as missing:
        raise BadInput("metrics", "wandb to be installed (pip install wandb)", "none") from missing
    run = wandb.init(project="demerit", dir=str(folder), config=dict(facts), resume="allow")

    def tell(told: Told) -> None:
        run.log(told.facts(), step=told.step)

    return tell
