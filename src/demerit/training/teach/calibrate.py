"""Probabilities of success, and a threshold with a promised risk, from episodes that were left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from demerit.evaluate.metrics.conformal import ConformalThreshold, conformal_threshold
from demerit.models.taught.head import Floats, probability, success_score
from demerit.training.teach.crossval import CrossValidated
from demerit.training.teach.lesson import Lesson
from demerit.training.teach.views import ends

STEEPS = np.geomspace(2, 64, 21)
MIDDLES = np.linspace(0.05, 0.95, 91)
PRIOR_STEEP, PRIOR_STEEP_SPREAD = 8.0, 0.7
"""of the logarithm: between about 4 and 16"""
PRIOR_MIDDLE, PRIOR_MIDDLE_SPREAD = 0.6, 0.2
MADE_UP_WEIGHT = 0.25
"""what a made-up failure counts beside a real episode, all clips of one success together"""


@dataclass(frozen=True)
class Calibration:
    """How scores become probabilities, where success begins, and what is promised."""

    steep: float
    middle: float
    risk: float
    threshold: float | None
    """probability from which on success is said; None when there are too few failures to promise anything"""
    failures: int
    """failures that the promise rests on, all of them left out when they were scored"""
    successes: int
    needed: int
    """failures that this risk needs"""
    caught: float
    """share of left-out successes that pass the threshold; NaN when there is none"""
    made_up: int
    """made-up failures that the probabilities rest on as well"""
    note: str

    def as_facts(self) -> dict[str, Any]:
        """Write it as plain values."""
        facts = {**vars(self)}
        facts["caught"] = None if math.isnan(self.caught) else self.caught
        return facts

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Calibration:
        """Read what `as_facts` wrote."""
        return cls(**{**facts, "caught": math.nan if facts["caught"] is None else facts["caught"]})


def calibrate(lesson: Lesson, left_out: CrossValidated, risk: float) -> Calibration:
    """Fit probabilities to left-out ends, and find the threshold that at most a share `risk` of failures passes."""
    places, scores = left_out.ends()
    verdict = lesson.success[places] if places else np.zeros(0)
    known = ~np.isnan(verdict)
    made = _made_up(lesson, left_out)
    all_scores = np.concatenate([scores[known], made])
    labels = np.concatenate([verdict[known], np.zeros(len(made))])
    clips = MADE_UP_WEIGHT * max(1, int((verdict == 1).sum())) / max(1, len(made))
    weights = np.concatenate([np.ones(int(known.sum())), np.full(len(made), clips)])
    steep, middle = likely(all_scores, labels, weights)
    bounds = conformal_threshold(scores[verdict == 0], risk)
    needed = math.ceil(1 / risk - 1e-9) - 1
    threshold = _shown(bounds.threshold, steep, middle) if bounds.enough else None
    good = scores[verdict == 1]
    caught = float((good >= bounds.threshold).mean()) if len(good) and bounds.enough else math.nan
    note = promise(bounds, needed, left_out.by_episode)
    return Calibration(steep, middle, risk, threshold, bounds.n, len(good), needed, caught, len(made), note)


def likely(scores: Floats, labels: Floats, weights: Floats) -> tuple[float, float]:
    """Find the most likely steepness and middle of p = 1 / (1 + exp(-steep (s - middle))), on a grid, with a prior.

    Few episodes move the prior little; many decide.
    """
    steep, middle = STEEPS[:, None, None], MIDDLES[None, :, None]
    exponent = steep * (scores[None, None, :] - middle)
    # log p where it is a success, log (1 - p) where not, without overflow
    signed = np.where(labels == 1, exponent, -exponent)
    fits = -(weights * np.logaddexp(0, -signed)).sum(axis=2)
    prior = -0.5 * (np.log(STEEPS / PRIOR_STEEP) / PRIOR_STEEP_SPREAD)[:, None] ** 2
    prior = prior - 0.5 * ((MIDDLES - PRIOR_MIDDLE) / PRIOR_MIDDLE_SPREAD)[None, :] ** 2
    best = np.unravel_index(int(np.argmax(fits + prior)), fits.shape)
    return float(STEEPS[best[0]]), float(MIDDLES[best[1]])


def promise(bounds: ConformalThreshold, needed: int, by_episode: bool) -> str:
    """Say what is promised, or why nothing is and what would change that."""
    if not bounds.n:
        return (
            f"No false-positive risk is promised: no failure is labelled, and {bounds.alpha:g} needs {needed} of them."
        )
    if not bounds.enough:
        return (
            f"No false-positive risk is promised: a risk of {bounds.alpha:g} needs {needed} labelled failures and "
            f"there are {bounds.n}. Label {needed - bounds.n} more, or ask for --risk {_affordable(bounds.n)}."
        )
    said = (
        f"At most {bounds.alpha:.1%} of failures are called a success, if they resemble the {bounds.n} labelled "
        f"failures, each scored by a head that had not seen it."
    )
    if by_episode:
        said += " All were recorded together: on another day, with another camera or robot, nothing is promised."
    return said


def _affordable(failures: int) -> str:
    """The smallest risk that so many failures can promise, rounded up to two digits."""
    return f"{math.ceil(100 / (failures + 1)) / 100:g}"


def _made_up(lesson: Lesson, left_out: CrossValidated) -> Floats:
    found = []
    for place, outputs in left_out.outputs.items():
        if lesson.labels[place].verdict:
            found.append(success_score(outputs[ends(lesson, place)]))
    return np.concatenate([*found, np.zeros(0)])


def _shown(score: float, steep: float, middle: float) -> float:
    """The threshold as a probability, a hair above: those are kept in single precision, and none may round up."""
    above = np.nextafter(np.float32(probability(np.array(score), steep, middle)), np.float32(2))
    return float(min(above, np.float32(1)))
