"""The questions that benchmarks are put together from, one for each measure of `evaluate.metrics` over episodes.

    ordering     preference_ordering_by_{sum,final,mean}, judgement_agreement[_by_sum]
    detection    auroc, over_reward_rate, average_precision_of_success, f1_of_failure, best_f1_of_failure, ...
    ranking      kendall_{tau_a,tau_b,ordered}, success_failure_gap
    grades       mae, mae_group_wise, mae_roboarena, mae_group_wise_without_roboarena
    calibration  ece_equal_width, brier

Questions about what happens inside an episode are in `curve_questions`, those at a calibrated threshold
in `risk_questions`, and what comparers are asked in `comparers`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from demerit.errors import NotApplicable
from demerit.evaluate.benchmarks.controls import ALWAYS_A
from demerit.evaluate.benchmarks.evidence import NAN, Evidence, Floats
from demerit.evaluate.benchmarks.question import TWO_SIDES, Question
from demerit.evaluate.metrics import Tally
from demerit.evaluate.metrics.bootstrap import mean_tally
from demerit.evaluate.metrics.calibration import brier_tally, calibration_tally
from demerit.evaluate.metrics.detection import (
    auroc_tally,
    average_precision_tally,
    best_f1_tally,
    f1_tally,
    over_reward_tally,
)
from demerit.evaluate.metrics.grades import error_tally, fit_thresholds, grade_by_range, group_wise_tally
from demerit.evaluate.metrics.kendall import LEVELS, Variant, gap_tally, kendall_tally
from demerit.evaluate.metrics.ordering import Return, judgement_tally, ordering_tally
from demerit.evaluate.reports.report import Judged

RANKED = "two episodes of one task (and session) that were judged differently"
GRADED = "episodes with a grade from 1 to 5"
SAYS_SUCCESS = 0.5
DONE_GRADE = 4.5
"""a grade is a success at 5 only; a model that answers in between has to be nearer to 5 than to 4"""


def ordering(how: Return) -> Question:
    """Ask whether rollouts of one task are ordered as people order them."""
    return Question(
        name=f"preference_ordering_by_{how}",
        numbers=lambda evidence, model: evidence.returns(model, how),
        counting=lambda evidence, returns: _ordering(evidence, returns, how),
        needs=RANKED,
        by=("category",),
    )


def _ordering(evidence: Evidence, returns: Floats, how: Return) -> Tally:
    human, label = evidence.scores
    tally = ordering_tally(returns, human, evidence.contexts, clusters=evidence.tasks, how=how)
    return replace(tally, note=f"people's order by {label}")


def judgement(name: str, how: Return) -> Question:
    """Ask whether the model repeats people's A or B; the difference of two returns is its preference."""

    def margins(evidence: Evidence, model: str) -> Floats:
        if model == ALWAYS_A:
            return np.ones(len(evidence.preferences))
        place = {one.id: i for i, one in enumerate(evidence.episodes)}
        returns = evidence.returns(model, how)
        pairs = [(place[one.a], place[one.b]) for one in evidence.preferences]
        return np.array([returns[a] - returns[b] for a, b in pairs], dtype=np.float64)

    def counting(evidence: Evidence, margin: Floats) -> Tally:
        task = {one.id: one.task for one in evidence.episodes}
        labels = [task[one.a] for one in evidence.preferences]
        return judgement_tally(margin, [one.verdict for one in evidence.preferences], clusters=labels)

    return Question(name, margins, counting, needs="people's A/B judgements of two episodes", asks_comparers=True)


def ranking(variant: Variant) -> Question:
    """Ask whether failed < suboptimal < successful within a task, by final value."""
    return Question(
        name=f"kendall_{variant}",
        numbers=Evidence.finals,
        counting=lambda evidence, finals: kendall_tally(
            finals, _levels(evidence), evidence.contexts, variant=variant, clusters=evidence.tasks
        ),
        needs="episodes of one task that went differently well",
    )


def _levels(evidence: Evidence) -> Floats:
    """How well it went: the word where there is one, else success or failure."""
    plain = {True: LEVELS["successful"], False: LEVELS["failed"], None: NAN}
    return np.array([LEVELS[one.quality] if one.quality else plain[one.success] for one in evidence.episodes])


def _says_success(evidence: Evidence, model: str) -> Floats:
    """A number that says success from 1/2 on: a probability, a grade of 5, or the upper half of the range."""
    if any(one is not None and one.success is not None for one in evidence.shown(model)):
        return evidence.success_probabilities(model)[0]
    finals = evidence.finals(model)
    if evidence.cards[model].quantity == "grade":
        return np.where(np.isnan(finals), NAN, (finals >= DONE_GRADE).astype(np.float64))
    return evidence.shares(model)


def _how_it_says_success(evidence: Evidence, model: str) -> str:
    if any(one is not None and one.success is not None for one in evidence.shown(model)):
        return "success = the model's probability of success is at least 1/2"
    if evidence.cards[model].quantity == "grade":
        return "success = grade 5"
    return "success = final value in the upper half of its range"


def _f1_by_task(evidence: Evidence, says: Floats) -> Tally:
    """Average the F1 of the tasks, each with the same weight."""
    tally = f1_tally(says, evidence.success, SAYS_SUCCESS, positive="failure", clusters=evidence.tasks)
    each = tally.by_cluster()
    values = np.array(list(each.values()), dtype=np.float64)
    keep = ~np.isnan(values)
    labels = [task for task, kept in zip(each, keep, strict=True) if kept]
    undefined = int((~keep).sum())
    return mean_tally("", "tasks", values[keep], labels, undefined=undefined, counts={"episodes": tally.n})


AUROC = Question(
    "auroc",
    Evidence.finals,
    lambda evidence, finals: auroc_tally(finals, evidence.success, clusters=evidence.tasks),
    needs=TWO_SIDES,
    by=("category",),
)
OVER_REWARD = Question(
    "over_reward_rate",
    Evidence.finals,
    lambda evidence, finals: over_reward_tally(finals, evidence.success, clusters=evidence.tasks),
    needs=TWO_SIDES,
    lower_is_better=True,
)
AVERAGE_PRECISION = Question(
    "average_precision_of_success",
    Evidence.finals,
    lambda evidence, finals: average_precision_tally(finals, evidence.success, clusters=evidence.tasks),
    needs=TWO_SIDES,
)
FAILURE_PRECISION = Question(
    "average_precision_of_failure",
    Evidence.finals,
    lambda evidence, finals: average_precision_tally(
        finals, evidence.success, positive="failure", clusters=evidence.tasks
    ),
    needs=TWO_SIDES,
)
BEST_F1 = Question(
    "best_f1_of_success",
    Evidence.finals,
    lambda evidence, finals: best_f1_tally(finals, evidence.success, clusters=evidence.tasks),
    needs=TWO_SIDES,
)
F1_OF_FAILURE = Question(
    "f1_of_failure",
    _says_success,
    lambda evidence, says: replace(
        f1_tally(says, evidence.success, SAYS_SUCCESS, positive="failure", clusters=evidence.tasks), note=""
    ),
    needs=TWO_SIDES,
    by=("task",),
    note=_how_it_says_success,
)
F1_OVER_TASKS = Question(
    "f1_of_failure_mean_over_tasks", _says_success, _f1_by_task, needs=TWO_SIDES, note=_how_it_says_success
)
GAP = Question(
    "success_failure_gap",
    Evidence.finals,
    lambda evidence, finals: gap_tally(finals, evidence.success, clusters=evidence.tasks),
    needs=TWO_SIDES,
)


def _graded(evidence: Evidence, model: str) -> Floats:
    """Final values as grades: through cuts fitted on the calibration split when there is one, else by the range."""
    fitted_on = evidence.calibration
    if fitted_on is None:
        return grade_by_range(evidence.finals(model), *evidence.range_of(model))
    known = ~np.isnan(fitted_on.finals(model)) & ~np.isnan(fitted_on.grades)
    if not known.any():
        raise NotApplicable(f"no scored and graded episode in the split {evidence.settings.calibrate_on!r}")
    subsets = [one.subset for one in fitted_on.episodes]
    return fit_thresholds(fitted_on.finals(model), fitted_on.grades, subsets).grade(evidence.finals(model))


def _how_graded(evidence: Evidence, model: str) -> str:
    if evidence.calibration is not None:
        return f"grades by cuts fitted on the split {evidence.settings.calibrate_on!r}"
    low, high = evidence.range_of(model)
    return f"grade = 1 + 4 (value - {low:g}) / {high - low:g}, rounded"


def _group_wise(evidence: Evidence, grades: Floats) -> Tally:
    subsets = [one.subset for one in evidence.episodes]
    return group_wise_tally(grades, evidence.grades, subsets, clusters=evidence.tasks)


def _plain_error(evidence: Evidence, grades: Floats) -> Tally:
    return error_tally(grades, evidence.grades, clusters=evidence.tasks)


def _is_roboarena(one: Judged) -> bool:
    return "roboarena" in one.subset.lower().replace("_", "").replace("-", "")


MAE = Question(
    "mae", _graded, _plain_error, needs=GRADED, lower_is_better=True, by=("subset", "category"), note=_how_graded
)
MAE_GROUP_WISE = Question("mae_group_wise", _graded, _group_wise, needs=GRADED, lower_is_better=True, note=_how_graded)
MAE_ROBOARENA = replace(
    MAE,
    name="mae_roboarena",
    by=(),
    needs="graded episodes of the RoboArena subset",
    of=lambda evidence: evidence.where(_is_roboarena),
)
MAE_WITHOUT_ROBOARENA = replace(
    MAE_GROUP_WISE,
    name="mae_group_wise_without_roboarena",
    of=lambda evidence: evidence.where(lambda one: not _is_roboarena(one)),
)


def _probabilities(evidence: Evidence, model: str) -> Floats:
    return evidence.success_probabilities(model)[0]


def _read_from(evidence: Evidence, model: str) -> str:
    return evidence.success_probabilities(model)[1]


ECE = Question(
    "ece_equal_width",
    _probabilities,
    lambda evidence, p: calibration_tally(p, evidence.success, clusters=evidence.tasks),
    needs="episodes judged accepted or rejected",
    lower_is_better=True,
    note=_read_from,
)
BRIER = Question(
    "brier",
    _probabilities,
    lambda evidence, p: brier_tally(p, evidence.success, clusters=evidence.tasks),
    needs="episodes judged accepted or rejected",
    lower_is_better=True,
    note=_read_from,
)
ORDERING = (ordering("sum"), ordering("final"), ordering("mean"))
JUDGEMENT = (judgement("judgement_agreement", "final"), judgement("judgement_agreement_by_sum", "sum"))
DETECTION = (AUROC, OVER_REWARD, AVERAGE_PRECISION, BEST_F1)
RANKING = (ranking("tau_a"), ranking("tau_b"), ranking("ordered"), GAP)
CALIBRATION = (ECE, BRIER)
GRADES = (MAE_GROUP_WISE, MAE)
