"""How the simulated judge is wrong, in numbers: optimism, blindness, noise, and what examples of failure mend.

This is a simulation. Its numbers are chosen so that an ablation has something to find; they measure no real model.

With p the measured progress at a frame and h the hopeful one (the largest progress so far, or the share of the time
that has passed, whichever is more), a failed attempt is seen as

    s = p + (optimism + (1 - optimism) * blind) * (1 - relief) * (h - p)

where `blind` is the judge's blindness to the best seen of the attempt's kinds of failure and `relief` is what the
examples in the prompt mend. Successes are seen as they are. Then the mood of the episode (the same whenever it is asked
about) and noise (anew for every frame of every request) are added, and the result is cut to 0 .. 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from demerit.data.labels import Outcome
from demerit.errors import BadInput

Floats = npt.NDArray[np.float64]
Level = Literal["text", "video", "dense"]

USUAL_BLINDNESS = MappingProxyType({
    "dropped": 0.9,
    "missed grasp": 0.8,
    "not released": 0.95,
    "overshoot": 0.9,
    "undone": 0.95,
    "wrong object": 0.95,
    "wrong place": 0.9,
})  # fmt: skip


@dataclass(frozen=True)
class Temperament:
    """Every number that makes the simulated judge wrong. All are shares from 0 to 1, but noise and mood."""

    optimism: float = 0.5
    """how far any failure is pushed from what was measured towards what was hoped"""
    blind: Mapping[str, float] = field(default_factory=lambda: dict(USUAL_BLINDNESS))
    """by kind of failure (or name of a behaviour): how far it is overlooked"""
    blind_otherwise: float = 0.6
    """how far kinds are overlooked that `blind` does not name"""
    mood: float = 0.12
    """standard deviation of what is added to all frames of an episode, the same in every request"""
    noise: float = 0.08
    """standard deviation of what is added to each frame, anew in every request and sample"""
    text: float = 0.05
    """how much of the push a description of the attempt's kind of failure takes away"""
    video: float = 0.3
    """... pictures of an attempt that failed in the same way"""
    dense: float = 0.7
    """... such an attempt with the right value at each picture"""
    transfer: float = 0.5
    """share of all this that is left when the examples failed in other ways than the attempt"""

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        shares = {
            one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("blind", "mood", "noise")
        }
        for name, share in {**shares, **self.blind}.items():
            if not 0 <= share <= 1:
                raise BadInput(f"simulated judge: {name}", "a share from 0 to 1", share)
        for name in ("mood", "noise"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise BadInput(f"simulated judge: {name}", "a standard deviation, 0 or more", getattr(self, name))

    def blindness(self, kinds: Collection[str]) -> float:
        """How far an attempt with these kinds of failure is overlooked: the kind that is seen best gives it away."""
        return min((self.blind.get(kind, self.blind_otherwise) for kind in kinds), default=self.blind_otherwise)

    def as_facts(self) -> dict[str, Any]:
        """Every number by its name, to be shown beside what it did."""
        return {one.name: getattr(self, one.name) for one in fields(self)} | {"blind": dict(self.blind)}


@dataclass(frozen=True)
class Lesson:
    """What the prompt shows of bad behaviour: the kinds of failure at each level, and how right the values are."""

    text: frozenset[str] = frozenset()
    video: frozenset[str] = frozenset()
    dense: frozenset[str] = frozenset()
    fidelity: float = 1.0
    """1 when the values beside dense examples are the measured ones, 0 when they are off by half or more"""

    def relief(self, temperament: Temperament, kinds: Collection[str]) -> float:
        """How much of the push is taken away from an attempt with these kinds of failure: the best example counts.

        Dense examples are pictures as well: wrong values beside them leave what the pictures alone give.
        """

        def share(shown: frozenset[str]) -> float:
            if not shown:
                return 0.0
            return 1.0 if shown & set(kinds) else temperament.transfer

        valued = temperament.video + max(0.0, temperament.dense - temperament.video) * self.fidelity
        return max(
            temperament.text * share(self.text), temperament.video * share(self.video), valued * share(self.dense)
        )


def hoped(curve: Floats) -> Floats:
    """What somebody sees who believes that all goes well: progress that never falls, and time that passes."""
    elapsed = np.arange(len(curve)) / max(1, len(curve) - 1)
    return np.maximum(np.maximum.accumulate(np.nan_to_num(curve)), elapsed)


def perceived(outcome: Outcome, kinds: Collection[str], lesson: Lesson, temperament: Temperament) -> Floats:
    """Bend a measured curve as the temperament says; mood and noise come later."""
    curve = np.asarray(outcome.curve, dtype=np.float64)
    if outcome.success:
        return curve
    push = temperament.optimism + (1 - temperament.optimism) * temperament.blindness(kinds)
    return np.asarray(curve + push * (1 - lesson.relief(temperament, kinds)) * (hoped(curve) - curve))
