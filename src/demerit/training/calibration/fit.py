"""From examples to maps, a threshold and what it promises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demerit.errors import BadInput
from demerit.evaluate.benchmarks.risk_questions import needed
from demerit.evaluate.metrics.conformal import ConformalThreshold, conformal_threshold
from demerit.models.calibrated import METHODS, Method
from demerit.models.calibrated_maps import Confidence, Floats, Map, Same, Shift
from demerit.training.calibration.examples import Example
from demerit.training.calibration.isotonic import isotonic


@dataclass(frozen=True, eq=False)
class Fitted:
    """The maps of a calibration, its threshold, and what had to be left as it was."""

    progress: Map
    success: Map
    bounds: ConformalThreshold
    notes: tuple[str, ...]

    @property
    def threshold(self) -> float | None:
        """Where success begins; None when nothing can be promised."""
        return self.bounds.threshold if self.bounds.enough else None

    @property
    def promise(self) -> str:
        """What the threshold promises, as a sentence."""
        if not self.bounds.enough:
            return f"No false-positive risk is promised: {too_few(self.bounds.n, self.bounds.alpha)}."
        return (
            f"At most {self.bounds.alpha:.1%} of failures are called a success, if they resemble the {self.bounds.n} "
            f"failures that it was calibrated on; for other tasks, cameras and robots nothing is promised."
        )


def fit(examples: Sequence[Example], method: Method, risk: float, is_progress: bool = True) -> Fitted:
    """Fit both maps and the threshold.

    Args:
        examples: labelled episodes with what the model said.
        method: `isotonic` turns numbers into means and probabilities; `conformal` into bounds that hold but for `risk`.
        risk: the share of failures that may be called a success, between 0 and 1.
        is_progress: whether the model's values run from 0 to 1, so that an error of progress can be taken off them.
    """
    if method not in METHODS:
        raise BadInput("method", f"one of {', '.join(METHODS)}", repr(method))
    failures = np.array([one.score for one in examples if one.success is False])
    bounds = conformal_threshold(failures, risk)
    notes: list[str] = []
    if method == "isotonic":
        progress, success = _mean_progress(examples, notes), _probability(examples, notes)
    else:
        progress, success = _sure_progress(examples, risk, is_progress, notes), Confidence(failures)
    return Fitted(progress, success, bounds, tuple(notes))


def refuse_too_few(examples: Sequence[Example], risk: float) -> None:
    """Say how many failures a promise takes, where there are fewer."""
    count = sum(one.success is False for one in examples)
    if count < needed(risk):
        least = f"at least {needed(risk)} labelled failures that the model scored"
        raise BadInput(f"a promised risk of {risk:g}", least, f"{count} ({_ways_out(count, risk)})")


def too_few(count: int, risk: float) -> str:
    """Say how many failures are lacking, and which risk could be promised instead."""
    return f"a risk of {risk:g} takes {needed(risk)} labelled failures and there are {count} ({_ways_out(count, risk)})"


def _ways_out(count: int, risk: float) -> str:
    more = f"label {needed(risk) - count} more"
    if not count:
        return more
    affordable = math.ceil(100 / (count + 1) - 1e-9) / 100  # rounded up to two digits
    return f"{more}, or promise --risk {affordable:g}"


def _mean_progress(examples: Sequence[Example], notes: list[str]) -> Map:
    """Fit the mean true progress at each value; every episode counts the same, however long it is."""
    told = [one for one in examples if len(one.truth)]
    if not told:
        notes.append("No episode has its progress labelled: values stay as they were.")
        return Same()
    weights = np.concatenate([np.full(len(one.truth), 1 / len(one.truth)) for one in told])
    return isotonic(_joined([one.values for one in told]), _joined([one.truth for one in told]), weights)


def _probability(examples: Sequence[Example], notes: list[str]) -> Map:
    """Fit the share of successes at each score."""
    judged = [one for one in examples if one.success is not None]
    if len({one.success for one in judged}) < 2:  # noqa: PLR2004
        lacking = "no labelled success" if not any(one.success for one in judged) else "no labelled failure"
        notes.append(f"There is {lacking}: probabilities of success stay as they were, where the model gives any.")
        return Same()
    return isotonic([one.score for one in judged], [float(bool(one.success)) for one in judged])


def _sure_progress(examples: Sequence[Example], risk: float, is_progress: bool, notes: list[str]) -> Map:
    """Find what to take off a value so that, but for the risk, at least the rest was reached at the end.

    With residuals r = value - true progress, P(r >= t) <= risk for a new exchangeable episode (see
    `conformal_threshold`), so true progress > value - t but for that risk.
    """
    told = [(one.final, one.progress) for one in examples if one.progress is not None]
    if not is_progress:
        notes.append(
            "The model's values do not run from 0 to 1, so they stay as they were (--method isotonic maps them)."
        )
        return Same()
    if len(told) < needed(risk):
        least = f"a bound on progress at a risk of {risk:g} takes {needed(risk)}"
        notes.append(f"{len(told)} episodes have their progress labelled and {least}: values stay as they were.")
        return Same()
    return Shift(conformal_threshold([final - progress for final, progress in told], risk).threshold)


def _joined(columns: list[Floats]) -> Floats:
    return np.concatenate(columns)
