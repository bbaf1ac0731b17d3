"""Metrics over whole episodes.

    ordering     preference_ordering_by_{sum,final,mean}, judgement_agreement[_by_sum], both_orders_agreement
    detection    auroc, over_reward_rate, average_precision_of_success, f1_of_failure, best_f1_of_success ...
    ranking      kendall_{tau_a,tau_b,ordered}, success_failure_gap
    grades       mae, mae_group_wise, mae_roboarena, mae_group_wise_without_roboarena
    calibration  ece_equal_width, brier
    at risk      {false,true}_positive_rate_at_RISK, at a threshold that at most a share RISK of failures passes

The threshold of the last two is calibrated on failures that are not measured: those of the split that
`--calibrate-on` names, else of the validation split, else of half of the tasks. The half follows from the task names
alone, so everybody who recomputes a report gets the same one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from demerit.data.frames import short_hash
from demerit.errors import NotApplicable
from demerit.evaluate.benchmarks.scores import ALWAYS_A, NAN, MetricSpec, Scores
from demerit.evaluate.metrics import Tally
from demerit.evaluate.metrics.bootstrap import mean_tally
from demerit.evaluate.metrics.calibration import (
    ConformalThreshold,
    brier,
    calibration_error,
    conformal_threshold,
    failures_needed,
)
from demerit.evaluate.metrics.columns import Floats
from demerit.evaluate.metrics.controls import Expectation
from demerit.evaluate.metrics.correlation import LEVELS, Variant, kendall_tau, success_failure_gap
from demerit.evaluate.metrics.detection import auroc, average_precision, best_f1, f1, over_reward
from demerit.evaluate.metrics.grades import fit_thresholds, grade_by_range, grade_error, group_wise_error
from demerit.evaluate.metrics.ordering import Return, both_orders_agreement, judgement_agreement, preference_ordering
from demerit.evaluate.reports.report import EpisodeLabels

TWO_SIDES = "accepted and rejected episodes"
RANKED = "two episodes of one task (and session) that were judged differently"
GRADED = "episodes with a grade from 1 to 5"
COMPARED = "people's A/B judgements of two episodes"
HALF = 0.5
SUCCESS_GRADE = 4.5
"""only grade 5 is a success; a model that answers in between has to be nearer to 5 than to 4"""
RISK = 0.05
"""the share of failures that may pass the calibrated threshold"""
VALIDATION = ("val", "valid", "validation", "dev")
"""names of the split that datasets provide for choosing thresholds"""
SIDES = {"false": (0.0, "rejected episodes"), "true": (1.0, "accepted episodes")}


# Ordering


def ordering(how: Return) -> MetricSpec:
    """Are the episodes of one task ordered as people order them?"""

    def tally_of(scores: Scores, returns: Floats) -> Tally:
        human, label = scores.human_scores
        tally = preference_ordering(returns, human, scores.contexts, clusters=scores.tasks, how=how)
        return replace(tally, note=f"people's order by {label}")

    name = f"preference_ordering_by_{how}"
    return MetricSpec(name, lambda scores, model: scores.returns(model, how), tally_of, RANKED, by=("category",))


def judgement(name: str, how: Return) -> MetricSpec:
    """Does the model repeat human A/B verdicts? Its preference is the difference of two returns."""

    def margins(scores: Scores, model: str) -> Floats:
        if model == ALWAYS_A:
            return np.ones(len(scores.preferences))
        value = dict(zip(scores.ids, scores.returns(model, how).tolist(), strict=True))
        return np.array([value[pair.a] - value[pair.b] for pair in scores.preferences], dtype=np.float64)

    def tally_of(scores: Scores, margin: Floats) -> Tally:
        return judgement_agreement(margin, _verdicts(scores), clusters=_pair_tasks(scores))

    return MetricSpec(name, margins, tally_of, needs=COMPARED, asks_comparers=True)


def _verdicts(scores: Scores) -> list[str]:
    return [pair.verdict for pair in scores.preferences]


def _pair_tasks(scores: Scores) -> list[str]:
    task = {row.id: row.task for row in scores.episodes}
    return [task[pair.a] for pair in scores.preferences]


def _leanings(scores: Scores, model: str) -> tuple[Floats, Floats]:
    """The sign of each preference for A (1), B (-1) or neither (0): with A shown first, and with B shown first."""
    if model == ALWAYS_A:
        return np.ones(len(scores.preferences)), -np.ones(len(scores.preferences))
    answers = [scores.answers.get((model, pair.a, pair.b)) for pair in scores.preferences]
    forward = [NAN if answer is None else answer.p_first - HALF for answer in answers]
    swapped = [NAN if answer is None else HALF - answer.p_swapped for answer in answers]
    return np.sign(np.array(forward, dtype=np.float64)), np.sign(np.array(swapped, dtype=np.float64))


def _mean_leaning(scores: Scores, model: str) -> Floats:
    forward, swapped = _leanings(scores, model)
    return (forward + swapped) / 2


def _order_effect(scores: Scores, model: str) -> str:
    decided = np.array([pair.verdict != "tie" for pair in scores.preferences], dtype=bool)
    forward, swapped = (column[decided] for column in _leanings(scores, model))
    known = ~np.isnan(forward) & ~np.isnan(swapped)
    differ = int((known & (forward != swapped)).sum())
    return f"{differ} of {int(known.sum())} pairs judged otherwise in the other order"


def _is_comparer(scores: Scores, model: str) -> bool:
    """The models that were asked about pairs; always-a is only shown beside such models."""
    return any(model in (answer.model, ALWAYS_A) for answer in scores.answers.values())


BOTH_ORDERS = MetricSpec(
    "both_orders_agreement",
    _mean_leaning,
    lambda scores, leaning: both_orders_agreement(leaning, _verdicts(scores), clusters=_pair_tasks(scores)),
    needs=COMPARED,
    across=False,
    note=_order_effect,
    asks_comparers=True,
    applies_to=_is_comparer,
)
ORDERING = (ordering("sum"), ordering("final"), ordering("mean"))
JUDGEMENT = (judgement("judgement_agreement", "final"), judgement("judgement_agreement_by_sum", "sum"))


# Ranking


def ranking(variant: Variant) -> MetricSpec:
    """Is failed < suboptimal < successful within a task, by final value?"""

    def tally_of(scores: Scores, finals: Floats) -> Tally:
        return kendall_tau(finals, _levels(scores), scores.contexts, variant=variant, clusters=scores.tasks)

    return MetricSpec(
        f"kendall_{variant}", Scores.finals, tally_of, needs="episodes of one task that went differently well"
    )


def _levels(scores: Scores) -> Floats:
    """How well it went: by the quality word where there is one, else by success."""
    plain = {True: LEVELS["successful"], False: LEVELS["failed"], None: NAN}
    return np.array([LEVELS[row.quality] if row.quality else plain[row.success] for row in scores.episodes])


# Detection


def _by_final(name: str, metric: Callable[..., Tally], **more: object) -> MetricSpec:
    """A detection metric of the final value."""

    def tally_of(scores: Scores, finals: Floats) -> Tally:
        return metric(finals, scores.success, clusters=scores.tasks)

    return MetricSpec(name, Scores.finals, tally_of, needs=TWO_SIDES, **more)  # type: ignore[arg-type]


def _success_calls(scores: Scores, model: str) -> Floats:
    """A number that calls success from 1/2 on: a probability, a grade of 5, or the upper half of the range."""
    if scores.gives_success(model):
        return scores.success_probabilities(model)[0]
    finals = scores.finals(model)
    if scores.cards[model].quantity == "grade":
        return np.where(np.isnan(finals), NAN, (finals >= SUCCESS_GRADE).astype(np.float64))
    return scores.shares(model)


def _success_rule(scores: Scores, model: str) -> str:
    if scores.gives_success(model):
        return "success = the model's probability of success is at least 1/2"
    if scores.cards[model].quantity == "grade":
        return "success = grade 5"
    return "success = final value in the upper half of its range"


def _f1_of_failure(scores: Scores, calls: Floats) -> Tally:
    return replace(f1(calls, scores.success, HALF, positive="failure", clusters=scores.tasks), note="")


def _f1_over_tasks(scores: Scores, calls: Floats) -> Tally:
    """Average the F1 of the tasks, each with the same weight."""
    tally = _f1_of_failure(scores, calls)
    by_task = tally.by_cluster()
    defined = {task: value for task, value in by_task.items() if not math.isnan(value)}
    values = np.array(list(defined.values()), dtype=np.float64)
    undefined = len(by_task) - len(defined)
    return mean_tally("", "tasks", values, list(defined), undefined=undefined, counts={"episodes": tally.n})


AUROC = _by_final("auroc", auroc, by=("category",))
OVER_REWARD = _by_final("over_reward_rate", over_reward, lower_is_better=True)
AVERAGE_PRECISION = _by_final("average_precision_of_success", average_precision)
FAILURE_PRECISION = _by_final(
    "average_precision_of_failure",
    lambda finals, success, clusters: average_precision(finals, success, positive="failure", clusters=clusters),
)
BEST_F1 = _by_final("best_f1_of_success", best_f1)
GAP = _by_final("success_failure_gap", success_failure_gap)
F1_OF_FAILURE = MetricSpec(
    "f1_of_failure", _success_calls, _f1_of_failure, needs=TWO_SIDES, by=("task",), note=_success_rule
)
F1_OVER_TASKS = MetricSpec(
    "f1_of_failure_mean_over_tasks", _success_calls, _f1_over_tasks, needs=TWO_SIDES, note=_success_rule
)
DETECTION = (AUROC, OVER_REWARD, AVERAGE_PRECISION, BEST_F1)
RANKING = (ranking("tau_a"), ranking("tau_b"), ranking("ordered"), GAP)


# Grades


def _graded(scores: Scores, model: str) -> Floats:
    """Final values as grades: by cuts fitted on the calibration split if there is one, else by the range."""
    fitted_on = scores.calibration
    if fitted_on is None:
        return grade_by_range(scores.finals(model), *scores.range_of(model))
    known = ~np.isnan(fitted_on.finals(model)) & ~np.isnan(fitted_on.grades)
    if not known.any():
        raise NotApplicable(f"no scored and graded episode in the split {scores.settings.calibrate_on!r}")
    return fit_thresholds(fitted_on.finals(model), fitted_on.grades, _subsets(fitted_on)).grade(scores.finals(model))


def _grading_rule(scores: Scores, model: str) -> str:
    if scores.calibration is not None:
        return f"grades by cuts fitted on the split {scores.settings.calibrate_on!r}"
    low, high = scores.range_of(model)
    return f"grade = 1 + 4 (value - {low:g}) / {high - low:g}, rounded"


def _subsets(scores: Scores) -> list[str]:
    return [row.subset for row in scores.episodes]


def _is_roboarena(row: EpisodeLabels) -> bool:
    return "roboarena" in row.subset.lower().replace("_", "").replace("-", "")


MAE = MetricSpec(
    "mae",
    _graded,
    lambda scores, grades: grade_error(grades, scores.grades, clusters=scores.tasks),
    needs=GRADED,
    lower_is_better=True,
    by=("subset", "category"),
    note=_grading_rule,
)
MAE_GROUP_WISE = MetricSpec(
    "mae_group_wise",
    _graded,
    lambda scores, grades: group_wise_error(grades, scores.grades, _subsets(scores), clusters=scores.tasks),
    needs=GRADED,
    lower_is_better=True,
    note=_grading_rule,
)
MAE_ROBOARENA = replace(
    MAE,
    name="mae_roboarena",
    by=(),
    needs="graded episodes of the RoboArena subset",
    subset=lambda scores: scores.where(_is_roboarena),
)
MAE_WITHOUT_ROBOARENA = replace(
    MAE_GROUP_WISE,
    name="mae_group_wise_without_roboarena",
    subset=lambda scores: scores.where(lambda row: not _is_roboarena(row)),
)
GRADES = (MAE_GROUP_WISE, MAE)


# Calibration


def _of_probability(name: str, metric: Callable[..., Tally]) -> MetricSpec:
    return MetricSpec(
        name,
        lambda scores, model: scores.success_probabilities(model)[0],
        lambda scores, p: metric(p, scores.success, clusters=scores.tasks),
        needs="episodes judged accepted or rejected",
        lower_is_better=True,
        note=lambda scores, model: scores.success_probabilities(model)[1],
    )


ECE = _of_probability("ece_equal_width", calibration_error)
BRIER = _of_probability("brier", brier)
CALIBRATION = (ECE, BRIER)


# At a threshold with a false-positive guarantee


def rate_at_risk(kind: str, risk: float = RISK) -> MetricSpec:
    """The share of rejected ('false') or accepted ('true') episodes that passes the calibrated threshold."""
    side, unit = SIDES[kind]

    def tally_of(scores: Scores, passes: Floats) -> Tally:
        rows = scores.success == side
        tasks = [task for task, is_kept in zip(scores.tasks, rows, strict=True) if is_kept]
        return mean_tally("", unit, passes[rows], tasks)

    return MetricSpec(
        f"{kind}_positive_rate_at_{risk:g}",
        lambda scores, model: _passes(scores, model, risk),
        tally_of,
        needs=TWO_SIDES,
        lower_is_better=kind == "false",
        subset=hold_out_calibration,
        note=lambda scores, model: _threshold_note(scores, model, risk),
        lacking=lambda scores: _too_few(scores, risk),
    )


def hold_out_calibration(scores: Scores) -> Scores:
    """Return the episodes to measure; those to calibrate on are in its `calibration`."""
    if scores.calibration is not None:
        return scores
    held_out = {row.id for row in scores.episodes if row.split.lower() in VALIDATION}
    if not held_out or len(held_out) == len(scores.episodes):
        failed = {row.task for row in scores.episodes if row.success is False}
        half = set(sorted(failed, key=lambda task: short_hash(task.encode()))[::2])
        held_out = {row.id for row in scores.episodes if row.task in half}
    measured = scores.where(lambda row: row.id not in held_out)
    return replace(measured, calibration=scores.where(lambda row: row.id in held_out))


def risk_expectations(scores: Scores, control: str, risk: float = RISK) -> dict[str, Expectation]:
    """Return what a control must score at the calibrated threshold.

    Of n + 1 exchangeable failures without ties, floor(risk (n + 1)) pass: in the mean, the share
    floor(risk (n + 1)) / (n + 1) of the measured ones. If all final values are equal, the threshold is above them.
    """
    both = [f"{kind}_positive_rate_at_{risk:g}" for kind in SIDES]
    if control in ("constant", "clock"):
        why = "all final values are equal, and the threshold lies above them"
        return dict.fromkeys(both, Expectation(0.0, True, why))
    if control != "random" or _too_few(scores, risk):
        return {}
    count = int((~np.isnan(_calibration_failures(hold_out_calibration(scores), control))).sum()) + 1
    share = math.floor(risk * count + 1e-9) / count
    return dict.fromkeys(both, Expectation(share, False, "it passes as often as the failures that it resembles"))


def _calibration_failures(scores: Scores, model: str) -> Floats:
    on = scores.calibration
    return np.zeros(0) if on is None else on.finals(model)[on.success == 0]


def _threshold(scores: Scores, model: str, risk: float) -> ConformalThreshold:
    failures = _calibration_failures(scores, model)
    found = conformal_threshold(failures, risk)
    if not found.enough:
        scored = f"it scored {found.n} of the {len(failures)} rejected episodes to calibrate on"
        raise NotApplicable(f"{scored}, and a risk of {risk:.0%} takes {failures_needed(risk)}")
    return found


def _passes(scores: Scores, model: str, risk: float) -> Floats:
    finals = scores.finals(model)
    if np.isnan(scores.success).all():
        return np.full(len(finals), NAN)  # no labels: nothing to calibrate or to measure
    threshold = _threshold(scores, model, risk).threshold
    return np.where(np.isnan(finals), NAN, (finals >= threshold).astype(np.float64))


def _threshold_note(scores: Scores, model: str, risk: float) -> str:
    if np.isnan(scores.success).all():
        return ""
    found = _threshold(scores, model, risk)
    highest = float(np.nextafter(found.threshold, -np.inf))  # the largest value that does not pass
    unscored = f" ({found.unscored} more are unscored)" if found.unscored else ""
    return (
        f"risk {risk:.0%}: success = final value above {highest:.4g}, by {found.n} rejected episodes "
        f"{_calibrated_on(scores)}{unscored}; the interval takes the threshold as given"
    )


def _calibrated_on(scores: Scores) -> str:
    on = scores.calibration
    splits = {row.split for row in on.episodes} if on is not None else set()
    if splits and splits.isdisjoint(row.split for row in scores.episodes):
        return f"of the split {', '.join(repr(split) for split in sorted(splits))}"
    return "of the other half of the tasks"


def _too_few(scores: Scores, risk: float) -> str:
    """Say why there can be no threshold, whatever the model; empty if there can."""
    measured = hold_out_calibration(scores)
    on = measured.calibration
    labelled = ~np.isnan(np.concatenate([measured.success, on.success if on is not None else []]))
    if not labelled.any():
        return ""  # the missing labels are reported for all metrics together
    count, needed = 0 if on is None else int((on.success == 0).sum()), failures_needed(risk)
    if count < needed:
        takes = f"a risk of {risk:.0%} takes at least {needed} rejected episodes to calibrate a threshold on"
        return f"{takes}, and there are {count} {_calibrated_on(measured)}"
    if not (measured.success == 0).any():
        return f"all {count} rejected episodes are needed to calibrate a threshold on, and none is left to measure"
    return ""


AT_RISK = (rate_at_risk("false"), rate_at_risk("true"))
