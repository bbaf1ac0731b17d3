"""What a calibration is worth on tasks that it was not fitted to: each task is left out once.

Fitted numbers look good on their own episodes whatever they are worth; and a promise that rests on failures of some
tasks need not hold for others. Both show only where a task is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from demerit.data.frames import short_hash
from demerit.evaluate.metrics import Measure, Resampling
from demerit.evaluate.metrics.bootstrap import mean_tally
from demerit.evaluate.metrics.calibration import brier, calibration_error
from demerit.evaluate.metrics.columns import Floats
from demerit.evaluate.metrics.detection import false_positive_rate
from demerit.models.calibrated import Method
from demerit.training.calibration.examples import Example
from demerit.training.calibration.fit import Fitted, fit

FOLDS = 5
FEWEST_TASKS = 2
PASSES = 0.5
"""between failed (0) and passed (1)"""


def left_out(
    examples: Sequence[Example], method: Method, risk: float, is_progress: bool, resampling: Resampling
) -> dict[str, Measure]:
    """Measure probabilities, progress and the promise on left-out tasks (episodes, where there is one task only).

    Names that end in `_before` are the model's own numbers on the same episodes, where they run from 0 to 1.
    """
    names = [one.task for one in examples]
    units = names if len(set(names)) >= FEWEST_TASKS else [one.id for one in examples]
    folds = _folds(units)
    probability, value, passes = (np.full(len(examples), np.nan) for _ in range(3))
    for fold in sorted(set(folds.values())):
        inside = [one for one, unit in zip(examples, units, strict=True) if folds[unit] != fold]
        places = [i for i, unit in enumerate(units) if folds[unit] == fold]
        if inside:
            found = fit(inside, method, risk, is_progress)
            _answer(found, examples, places, (probability, value, passes))
    return _measures(examples, (probability, value, passes), method, is_progress, units, resampling)


def doubts(measures: Mapping[str, Measure], counts: Mapping[str, int], risk: float) -> Iterator[str]:
    """Say where left-out tasks show that the calibrated numbers are worth little."""
    probability, passed = measures.get("brier"), measures.get("true_positive_rate")
    false = measures.get("false_positive_rate")
    if probability is not None:
        share = counts["successes"] / (counts["successes"] + counts["failures"])
        alone = share * (1 - share)
        if probability.value >= alone:
            yield (
                f"On left-out tasks the probabilities (Brier score {probability.value:.3f}) are no better than always "
                f"saying {share:.0%} ({alone:.3f}): this model's numbers say little about success there."
            )
    if passed is not None and not passed.low > risk:
        yield f"{passed.value:.0%} of left-out successes pass the threshold: the promise costs nearly all of them."
    if false is not None and false.low > risk:
        yield f"{false.value:.1%} of failures of left-out tasks pass: the promise does not carry over to other tasks."


def _answer(
    found: Fitted, examples: Sequence[Example], places: list[int], columns: tuple[Floats, Floats, Floats]
) -> None:
    probability, value, passes = columns
    scores = np.array([examples[i].score for i in places])
    probability[places] = found.success(scores)
    value[places] = found.progress([examples[i].final for i in places])
    if found.threshold is not None:
        passes[places] = scores >= found.threshold


def _measures(
    examples: Sequence[Example],
    columns: tuple[Floats, Floats, Floats],
    method: Method,
    is_progress: bool,
    units: list[str],
    how: Resampling,
) -> dict[str, Measure]:
    probability, value, passes = columns
    success = np.array([np.nan if one.success is None else float(one.success) for one in examples])
    progress = np.array([np.nan if one.progress is None else one.progress for one in examples])
    scores, finals = np.array([one.score for one in examples]), np.array([one.final for one in examples])
    rates = false_positive_rate(passes, success, PASSES, clusters=units, resampling=how)
    found = {"false_positive_rate": rates}
    good = success == 1
    named = [unit for unit, kept in zip(units, good, strict=True) if kept]
    found["true_positive_rate"] = mean_tally("true_positive_rate", "accepted episodes", passes[good], named).measure(
        how
    )
    for name, numbers in (("", probability), ("_before", scores)):
        if method == "isotonic" and not np.isnan(success).all() and _is_probability(numbers):
            found[f"brier{name}"] = brier(numbers, success, clusters=units, resampling=how)
            found[f"ece{name}"] = calibration_error(numbers, success, clusters=units, resampling=how)
    for name, numbers in (("", value), ("_before", finals)):
        if is_progress and not np.isnan(progress).all():
            errors = mean_tally(f"progress_error{name}", "episodes", np.abs(numbers - progress), units)
            found[f"progress_error{name}"] = errors.measure(how)
        if method == "conformal" and is_progress and not np.isnan(progress).all():
            over = mean_tally(f"progress_overrated{name}", "episodes", _above(numbers, progress), units)
            found[f"progress_overrated{name}"] = over.measure(how)
    return {name: measure for name, measure in found.items() if measure.known}


def _above(numbers: Floats, progress: Floats) -> Floats:
    return np.where(np.isnan(numbers + progress), np.nan, (numbers > progress + 1e-6).astype(np.float64))


def _is_probability(numbers: Floats) -> bool:
    known = numbers[~np.isnan(numbers)]
    return bool(len(known)) and bool(known.min() >= 0) and bool(known.max() <= 1)


def _folds(units: Sequence[str]) -> dict[str, int]:
    """Deal the tasks out in an order that depends on their names alone."""
    ordered = sorted(set(units), key=lambda unit: short_hash(unit.encode()))
    return {unit: place % FOLDS for place, unit in enumerate(ordered)}
