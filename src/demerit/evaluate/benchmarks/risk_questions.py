"""Questions at a threshold with a promise: at most a stated share of failures passes as success.

The threshold is calibrated on failures that are then not measured: those of the split that `--calibrate-on` names, else
of the data's own validation split, else of one half of the tasks. Which half a task is in follows from the names of the
tasks alone, so that everybody who recomputes a report finds the same ones.

    false_positive_rate_at_RISK    share of the other rejected episodes at or above the threshold: is the promise kept?
    true_positive_rate_at_RISK     share of accepted episodes there: what the promise costs
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from demerit.data.frames import short_hash
from demerit.errors import NotApplicable
from demerit.evaluate.benchmarks.evidence import NAN, Evidence, Floats
from demerit.evaluate.benchmarks.question import TWO_SIDES, Question
from demerit.evaluate.metrics import Tally
from demerit.evaluate.metrics.bootstrap import mean_tally
from demerit.evaluate.metrics.conformal import ConformalThreshold, conformal_threshold
from demerit.evaluate.metrics.controls import Expectation

RISK = 0.05
"""the share of failures that may pass"""
VALIDATION = ("val", "valid", "validation", "dev")
"""how datasets call the split that is there for choosing thresholds"""
SIDES = {"false": (0.0, "rejected episodes"), "true": (1.0, "accepted episodes")}


def at_risk(kind: str, risk: float = RISK) -> Question:
    """Ask which share of rejected ('false') or accepted ('true') episodes passes the calibrated threshold."""
    side, unit = SIDES[kind]

    def counting(evidence: Evidence, passes: Floats) -> Tally:
        rows = evidence.success == side
        tasks = [task for task, kept in zip(evidence.tasks, rows, strict=True) if kept]
        return mean_tally("", unit, passes[rows], tasks)

    return Question(
        name=f"{kind}_positive_rate_at_{risk:g}",
        numbers=lambda evidence, model: _passes(evidence, model, risk),
        counting=counting,
        needs=TWO_SIDES,
        lower_is_better=kind == "false",
        of=calibrated_apart,
        note=lambda evidence, model: _promise(evidence, model, risk),
        lacking=lambda evidence: _lacking(evidence, risk),
    )


def calibrated_apart(evidence: Evidence) -> Evidence:
    """Take the episodes to measure, with those to calibrate on put aside in `calibration`."""
    if evidence.calibration is not None:
        return evidence
    aside = {one.id for one in evidence.episodes if one.split.lower() in VALIDATION}
    if not aside or len(aside) == len(evidence.episodes):
        failed = {one.task for one in evidence.episodes if one.success is False}
        half = set(sorted(failed, key=lambda task: short_hash(task.encode()))[::2])
        aside = {one.id for one in evidence.episodes if one.task in half}
    measured = evidence.where(lambda one: one.id not in aside)
    return replace(measured, calibration=evidence.where(lambda one: one.id in aside))


def needed(risk: float) -> int:
    """How many calibration failures a promise takes: with fewer, no threshold keeps it."""
    return math.ceil(1 / risk - 1e-9) - 1


def risk_expectations(evidence: Evidence, control: str, risk: float = RISK) -> dict[str, Expectation]:
    """Return what a control must score at the calibrated threshold.

    Of n + 1 exchangeable failures without ties, the threshold lets floor(risk (n + 1)) pass: in the mean, the share
    floor(risk (n + 1)) / (n + 1) of the measured ones. Where all final values are equal, it lies above all of them.
    """
    both = [f"{kind}_positive_rate_at_{risk:g}" for kind in SIDES]
    if control in ("constant", "clock"):
        why = "all final values are equal, and the threshold lies above them"
        return dict.fromkeys(both, Expectation(0.0, True, why))
    if control != "random" or _lacking(evidence, risk):
        return {}
    count = int((~np.isnan(_calibration_failures(calibrated_apart(evidence), control))).sum()) + 1
    share = math.floor(risk * count + 1e-9) / count
    return dict.fromkeys(both, Expectation(share, False, "it passes as often as the failures that it resembles"))


def _calibration_failures(evidence: Evidence, model: str) -> Floats:
    on = evidence.calibration
    return np.zeros(0) if on is None else on.finals(model)[on.success == 0]


def _threshold(evidence: Evidence, model: str, risk: float) -> ConformalThreshold:
    failures = _calibration_failures(evidence, model)
    found = conformal_threshold(failures, risk)
    if not found.enough:
        scored = f"it scored {found.n} of the {len(failures)} rejected episodes to calibrate on"
        raise NotApplicable(f"{scored}, and a risk of {risk:.0%} takes {needed(risk)}")
    return found


def _passes(evidence: Evidence, model: str, risk: float) -> Floats:
    finals = evidence.finals(model)
    if np.isnan(evidence.success).all():
        return np.full(len(finals), NAN)  # nobody judged anything: there is nothing to calibrate, nor to measure
    threshold = _threshold(evidence, model, risk).threshold
    return np.where(np.isnan(finals), NAN, (finals >= threshold).astype(np.float64))


def _promise(evidence: Evidence, model: str, risk: float) -> str:
    if np.isnan(evidence.success).all():
        return ""
    found = _threshold(evidence, model, risk)
    highest = float(np.nextafter(found.threshold, -np.inf))  # the last one that does not pass
    left_out = f" ({found.unscored} more are unscored)" if found.unscored else ""
    return (
        f"risk {risk:.0%}: success = final value above {highest:.4g}, by {found.n} rejected episodes "
        f"{_whose(evidence)}{left_out}; the interval takes the threshold as given"
    )


def _whose(evidence: Evidence) -> str:
    on = evidence.calibration
    aside = {one.split for one in on.episodes} if on is not None else set()
    if aside and aside.isdisjoint(one.split for one in evidence.episodes):
        return f"of the split {', '.join(repr(split) for split in sorted(aside))}"
    return "of the other half of the tasks"


def _lacking(evidence: Evidence, risk: float) -> str:
    """Say why there can be no threshold, whatever the model; empty when there can."""
    about = calibrated_apart(evidence)
    on = about.calibration
    judged = ~np.isnan(np.concatenate([about.success, on.success if on is not None else []]))
    if not judged.any():
        return ""  # said for all measures that need labels
    count = 0 if on is None else int((on.success == 0).sum())
    if count < needed(risk):
        takes = f"a risk of {risk:.0%} takes at least {needed(risk)} rejected episodes to calibrate a threshold on"
        return f"{takes}, and there are {count} {_whose(about)}"
    if not (about.success == 0).any():
        return f"all {count} rejected episodes are needed to calibrate a threshold on, and none is left to measure"
    return ""


AT_RISK = (at_risk("false"), at_risk("true"))
