"""How the simulated judge errs: optimism, blindness, noise, and how much examples of failure help.

Its numbers are chosen so that a comparison of contexts has something to find; they measure no real model.

With p the measured progress at a frame and h the hopeful one (the larger of the best progress so far and the share of
time passed), a failed attempt is perceived as

    s = p + (optimism + (1 - optimism) * blind) * (1 - relief) * (h - p)

where `blind` is the judge's blindness to the most visible of the attempt's kinds of failure, and `relief` is the effect
of the examples in the prompt. Successes are perceived as they are. Then a bias per episode (the same in every request)
and noise per frame and request are added, and the result is clipped to 0 .. 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from demerit.data.labels import Outcome
from demerit.errors import BadInput

Floats = npt.NDArray[np.float64]

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
class JudgeErrors:
    """The numbers of the error model. All are shares from 0 to 1, but noise and bias."""

    optimism: float = 0.5
    """how far any failure is pushed from the measured towards the hopeful progress"""
    blind: Mapping[str, float] = field(default_factory=lambda: dict(USUAL_BLINDNESS))
    """by kind of failure (or name of a behaviour): how far it is overlooked"""
    blind_otherwise: float = 0.6
    """how far kinds that `blind` does not name are overlooked"""
    bias: float = 0.12
    """standard deviation of the error per episode, the same in every request"""
    noise: float = 0.08
    """standard deviation of the error per frame, new in every request and sample"""
    text: float = 0.05
    """how much of the push a description of the same kind of failure removes"""
    video: float = 0.3
    """... images of an attempt that failed in the same way"""
    dense: float = 0.7
    """... such an attempt with the right value at each image"""
    transfer: float = 0.5
    """share of all this that remains if the examples failed in other ways"""

    def __post_init__(self) -> None:
        numbers = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "blind"}
        for name, number in {**numbers, **self.blind}.items():
            if not 0 <= number <= 1:
                raise BadInput(f"simulated judge: {name}", "a number from 0 to 1", number)

    def blindness(self, kinds: Collection[str]) -> float:
        """How far an attempt with these kinds of failure is overlooked: the most visible kind decides."""
        return min((self.blind.get(kind, self.blind_otherwise) for kind in kinds), default=self.blind_otherwise)


@dataclass(frozen=True)
class ShownFailures:
    """The kinds of failure that a prompt shows at each level, and how right the values are."""

    text: frozenset[str] = frozenset()
    video: frozenset[str] = frozenset()
    dense: frozenset[str] = frozenset()
    fidelity: float = 1.0
    """1 if the values beside dense examples are the measured ones, 0 if they are off by half or more"""

    def relief(self, errors: JudgeErrors, kinds: Collection[str]) -> float:
        """How much of the push is removed for an attempt with these kinds of failure: the best example counts.

        Dense examples are images too: wrong values beside them leave the effect of the images.
        """

        def share(shown: frozenset[str]) -> float:
            if not shown:
                return 0.0
            return 1.0 if shown & set(kinds) else errors.transfer

        valued = errors.video + max(0.0, errors.dense - errors.video) * self.fidelity
        return max(errors.text * share(self.text), errors.video * share(self.video), valued * share(self.dense))


def hopeful_progress(curve: Floats) -> Floats:
    """Progress that never falls and grows with time."""
    elapsed = np.arange(len(curve)) / max(1, len(curve) - 1)
    return np.maximum(np.maximum.accumulate(np.nan_to_num(curve)), elapsed)


def perceive(outcome: Outcome, kinds: Collection[str], shown: ShownFailures, errors: JudgeErrors) -> Floats:
    """Bend a measured curve by the error model; bias and noise come later."""
    curve = np.asarray(outcome.curve, dtype=np.float64)
    if outcome.success:
        return curve
    push = errors.optimism + (1 - errors.optimism) * errors.blindness(kinds)
    return np.asarray(curve + push * (1 - shown.relief(errors, kinds)) * (hopeful_progress(curve) - curve))
