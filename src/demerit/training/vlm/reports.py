"""What a run says of itself: a line of JSON for every update, and the same to TensorBoard or wandb where asked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from demerit.errors import BadInput
from demerit.training.vlm.dashboards import DASHBOARDS, Dashboard, check_dashboards

METRICS = "metrics.jsonl"


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
    found: float | None = None
    """share of the pictures whose features were kept already"""
    gib: float | None = None
    """the most memory of a GPU so far"""
    error: float | None = None
    """on what is held out, where that was looked at"""
    broke: str = ""
    """why the update was not made, and the run ended here"""

    @property
    def loss(self) -> float:
        """The sum that is minimised."""
        return sum(self.losses.values())

    def in_words(self) -> str:
        """Say how a run is doing."""
        each = " ".join(f"{name} {value:.3f}" for name, value in self.losses.items())
        more = "" if self.error is None else f", held-out error {self.error:.3f}"
        return f"loss {self.loss:.3f} ({each}), {self.tokens / max(self.seconds, 1e-9):.0f} tokens/s{more}"

    def facts(self) -> dict[str, Any]:
        """Return plain numbers; what nobody looked at is left out, and what is no number is there as it is."""
        told: dict[str, Any] = {"step": self.step}
        told |= {"loss": self.loss, **{f"loss_{name}": one for name, one in self.losses.items()}}
        told |= {"rate": self.rate, "gradient": self.gradient, "seconds": self.seconds, "tokens": self.tokens}
        told |= {"features_found": self.found, "gpu_gib": self.gib, "held_out_error": self.error}
        return {name: value for name, value in told.items() if value is not None}


Report = Callable[[Told], None]


class Reports:
    """Everywhere that updates are told. As a context, it ends what was opened."""

    def __init__(self, folder: Path, also: Sequence[str], report: Report | None, facts: Mapping[str, Any]) -> None:
        """Check what was asked for; it is opened when it is known where the run goes on.

        Args:
            folder: where the lines go.
            also: names of dashboards.
            report: called with every update.
            facts: about the run, for the dashboards.
        """
        check_dashboards(also)
        self._report, self._also, self._facts = report, also, facts
        self._folder, self._path = folder, folder / METRICS
        self._opened: list[Dashboard] = []

    def tell(self, told: Told) -> None:
        """Report an update."""
        facts = told.facts()
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(facts, told.broke))
        del facts["step"]
        for one in self._opened:
            one.tell(told.step, facts)
        if self._report is not None:
            self._report(told)

    def go_on_from(self, step: int) -> None:
        """Open the dashboards, and drop the lines behind a checkpoint: those updates are made again."""
        kept = self._lines_to(step)
        self._opened = [DASHBOARDS[name](self._folder, step, self._facts) for name in dict.fromkeys(self._also)]
        if kept is None:
            return
        partial = self._path.with_suffix(".partial")
        partial.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        partial.replace(self._path)

    def _lines_to(self, step: int) -> list[str] | None:
        """Read the lines up to an update; None where there is no file, and a sentence where it is not ours."""
        if not self._path.exists():
            return None
        try:
            return [line for line in self._path.read_text("utf-8").splitlines() if _step(line) <= step]
        except (UnicodeDecodeError, TypeError) as error:
            expected = "a line of JSON for every update (move it away to go on without it)"
            raise BadInput(str(self._path), expected, "something else") from error

    def __enter__(self) -> Self:
        """Tell updates within."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Close the dashboards."""
        for one in self._opened:
            one.close(whole=kind is None)


def _line(facts: Mapping[str, float], broke: str) -> str:
    """Write a line of JSON, which has no word for what is no number: that is null, and `broke` says what it was."""
    told: dict[str, Any] = {name: value if math.isfinite(value) else None for name, value in facts.items()}
    return json.dumps({**told, "broke": broke} if broke else told) + "\n"


def _step(line: str) -> float:
    try:
        told = json.loads(line)
    except ValueError:  # half a line, from a run that was killed
        return float("inf")
    if not isinstance(told, dict) or not isinstance(told.get("step"), int):
        raise TypeError
    return float(told["step"])
