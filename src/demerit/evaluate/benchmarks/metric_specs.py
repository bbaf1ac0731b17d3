"""The metrics that benchmarks are made of: of whole episodes, of curves within an episode, and of success thresholds.

    ordering     preference_ordering_by_{sum,final,mean}, strict_preference_ordering_by_sum (the position paper's),
                 judgement_agreement[_by_sum], both_orders_agreement
    detection    auroc, over_reward_rate, over_reward_above_{half,threshold}, average_precision_of_success,
                 f1_of_failure, best_f1_of_success ...
    ranking      kendall_{tau_a,tau_b,ordered}, success_failure_gap
    grades       mae, mae_group_wise, mae_roboarena, mae_group_wise_without_roboarena
    calibration  ece_equal_width, brier
    at risk      {false,true}_positive_rate_at_RISK, at a threshold that at most a share RISK of failures passes

The threshold of the last two is calibrated on failures that are not measured: those of the split that
`--set calibrate-on=` names, else of the validation split, else of half of the tasks. The half follows from the task
names alone, so everybody who recomputes a report gets the same one.

order         voc_{pearson,spearman}[_reversed|_shuffled], on demonstrations
truth         progress_error, progress_correlation_spearman, against a labelled curve
moment        failure_caught, failure_caught_placebo, failure_drop, failure_latency
instruction   right_instruction_accuracy, instruction_diagonal_share
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Floats
from demerit.data.frames import short_hash
from demerit.data.splits import normalize_split
from demerit.decide.threshold import Threshold, conformal_threshold, failures_needed
from demerit.errors import NotApplicable
from demerit.evaluate.benchmarks.scores import (
    ALWAYS_A,
    NAN,
    REVERSED,
    ROBOTS,
    SHUFFLED,
    MetricSpec,
    Scores,
    demonstrations,
    frame_order,
    instruction_probes,
    under_instruction,
)
from demerit.evaluate.metrics import Tally
from demerit.evaluate.metrics.bootstrap import empty_tally, mean_tally
from demerit.evaluate.metrics.failure_moment import Falls, falls_at
from demerit.evaluate.metrics.grades import fit_thresholds, grade_by_range, grade_error, group_wise_error
from demerit.evaluate.metrics.ranking import (
    LEVELS,
    Correlations,
    Method,
    Return,
    TieCredit,
    Variant,
    both_orders_agreement,
    diagonal_share,
    judgement_agreement,
    kendall_tau,
    order_correlations,
    preference_ordering,
    right_instruction,
    spearman,
    success_failure_gap,
)
from demerit.evaluate.metrics.success import (
    auroc,
    average_precision,
    best_f1,
    brier,
    calibration_error,
    f1,
    over_reward,
    over_reward_above,
)
from demerit.evaluate.metrics.verdict import Expectation
from demerit.evaluate.reports.report import AS_RECORDED, EpisodeLabels

TWO_SIDES = "accepted and rejected episodes"
RANKED = "two episodes of one task (and session) that were judged differently"
GRADED = "episodes with a grade from 1 to 5"
COMPARED = "people's A/B judgements of two episodes"
HALF = 0.5
SUCCESS_GRADE = 4.5
"""only grade 5 is a success; a model that answers in between has to be nearer to 5 than to 4"""
RISK = 0.05
"""the share of failures that may pass the calibrated threshold"""
SIDES = {"false": (0.0, "rejected episodes"), "true": (1.0, "accepted episodes")}


# Ordering


def ordering(how: Return, ties: TieCredit = "half") -> MetricSpec:
    """Are the episodes of one task ordered as people order them?"""

    def tally_of(scores: Scores, returns: Floats) -> Tally:
        human, label = scores.human_scores
        tally = preference_ordering(returns, human, scores.contexts, clusters=scores.clusters, how=how, ties=ties)
        return replace(tally, note=f"people's order by {label}")

    name = f"{'strict_' if ties == 'wrong' else ''}preference_ordering_by_{how}"
    by = ("category", *ROBOTS)
    return MetricSpec(name, lambda scores, model: scores.returns(model, how), tally_of, RANKED, by=by)


def judgement(name: str, how: Return) -> MetricSpec:
    """Does the model repeat human A/B verdicts? Its preference is the difference of two returns."""

    def margins(scores: Scores, model: str) -> Floats:
        if model == ALWAYS_A:
            return np.ones(len(scores.preferences))
        value = dict(zip(scores.ids, scores.returns(model, how).tolist(), strict=True))
        return np.array([value[pair.a] - value[pair.b] for pair in scores.preferences], dtype=np.float64)

    def tally_of(scores: Scores, margin: Floats) -> Tally:
        return judgement_agreement(margin, _verdicts(scores), clusters=_pair_clusters(scores))

    return MetricSpec(name, margins, tally_of, needs=COMPARED, asks_comparers=True)


def _verdicts(scores: Scores) -> list[str]:
    return [pair.verdict for pair in scores.preferences]


def _pair_clusters(scores: Scores) -> list[str]:
    cluster = dict(zip(scores.ids, scores.clusters, strict=True))
    return [cluster[pair.a] for pair in scores.preferences]


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
    is_known = ~np.isnan(forward) & ~np.isnan(swapped)
    differ = int((is_known & (forward != swapped)).sum())
    return f"{differ} of {int(is_known.sum())} pairs judged otherwise in the other order"


def _is_comparer(scores: Scores, model: str) -> bool:
    """Whether the model was asked about pairs; always-a counts only if another model was."""
    return any(model in (answer.model, ALWAYS_A) for answer in scores.answers.values())


BOTH_ORDERS = MetricSpec(
    "both_orders_agreement",
    _mean_leaning,
    lambda scores, leaning: both_orders_agreement(leaning, _verdicts(scores), clusters=_pair_clusters(scores)),
    needs=COMPARED,
    across=False,
    note=_order_effect,
    asks_comparers=True,
    applies_to=_is_comparer,
)
PUBLISHED_ORDERING = ordering("sum", "wrong")
"""as the position paper defines it, for tables that stand beside its numbers"""
ORDERING = (ordering("sum"), ordering("final"), ordering("mean"))
JUDGEMENT = (judgement("judgement_agreement", "final"), judgement("judgement_agreement_by_sum", "sum"))


# Ranking


def ranking(variant: Variant) -> MetricSpec:
    """Is failed < suboptimal < successful within a task, by final value?"""

    def tally_of(scores: Scores, finals: Floats) -> Tally:
        return kendall_tau(finals, _levels(scores), scores.contexts, variant=variant, clusters=scores.tasks)

    return MetricSpec(
        f"kendall_{variant}", Scores.finals, tally_of, "episodes of one task that went differently well", by=ROBOTS
    )


def _levels(scores: Scores) -> Floats:
    """How well it went: by the quality word where there is one, else by success."""
    plain = {True: LEVELS["successful"], False: LEVELS["failed"], None: NAN}
    return np.array([LEVELS[row.quality] if row.quality else plain[row.success] for row in scores.episodes])


# Detection


def _by_final(name: str, metric: Callable[..., Tally], **more: object) -> MetricSpec:
    """A detection metric of the final value."""

    def tally_of(scores: Scores, finals: Floats) -> Tally:
        return metric(finals, scores.success, clusters=scores.clusters)

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
    return replace(f1(calls, scores.success, HALF, positive="failure", clusters=scores.clusters), note="")


def _f1_over_tasks(scores: Scores, calls: Floats) -> Tally:
    """Average the F1 of the tasks, each with the same weight."""
    tally = f1(calls, scores.success, HALF, positive="failure", clusters=scores.tasks)
    by_task = tally.by_cluster()
    defined = {task: value for task, value in by_task.items() if not math.isnan(value)}
    values = np.array(list(defined.values()), dtype=np.float64)
    undefined = len(by_task) - len(defined)
    return mean_tally("", "tasks", values, list(defined), undefined=undefined, counts={"episodes": tally.n})


def _absolute_finals(scores: Scores, model: str) -> Floats:
    """Final values that mean something by themselves: progress or probability of success from 0 to 1."""
    card = scores.cards[model]
    if not card.is_absolute:
        raise NotApplicable(f"its {card.quantity} is not a progress or probability from 0 to 1")
    return scores.finals(model)


def _threshold_calls(scores: Scores, model: str) -> Floats:
    """1 where the model's verdict is success, 0 where it is failure, NaN = unknown."""
    calls = [None if reward is None else reward.verdict.success for reward in scores.rewards_of(model)]
    return np.array([NAN if call is None else float(call) for call in calls])


def _has_threshold(scores: Scores, model: str) -> bool:
    return not np.isnan(_threshold_calls(scores, model)).all()


def _over_reward_above(name: str, numbers: Callable[[Scores, str], Floats], **more: object) -> MetricSpec:
    """The share of failures above 1/2, of values or of calls; controls that reward nothing would win."""

    def tally_of(scores: Scores, values: Floats) -> Tally:
        tally = over_reward_above(values, scores.success, HALF, clusters=scores.clusters)
        above, successes = tally.counts["successes above"], tally.counts["successes"]
        return replace(tally, note=f"successes above: {above} of {successes}")

    return MetricSpec(
        name,
        numbers,
        tally_of,
        needs="rejected episodes",
        lower_is_better=True,
        has_controls=False,
        **more,  # type: ignore[arg-type]
    )


AUROC = _by_final("auroc", auroc, by=("category", *ROBOTS))
OVER_REWARD = _by_final("over_reward_rate", over_reward, lower_is_better=True)
OVER_REWARD_ABOVE_HALF = _over_reward_above("over_reward_above_half", _absolute_finals)
OVER_REWARD_ABOVE_THRESHOLD = _over_reward_above(
    "over_reward_above_threshold", _threshold_calls, applies_to=_has_threshold
)
OVER_REWARDS = (OVER_REWARD, OVER_REWARD_ABOVE_HALF, OVER_REWARD_ABOVE_THRESHOLD)
"""relative to the successes, and absolute"""
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
DETECTION = (AUROC, *OVER_REWARDS, AVERAGE_PRECISION, BEST_F1)
RANKING = (ranking("tau_a"), ranking("tau_b"), ranking("ordered"), GAP)


# Grades


def _grade_finals(scores: Scores, model: str) -> Floats:
    """Final values as grades: by cuts fitted on the calibration split if there is one, else by the range."""
    fitted_on = scores.calibration
    if fitted_on is None:
        return grade_by_range(scores.finals(model), *scores.range_of(model))
    is_known = ~np.isnan(fitted_on.finals(model)) & ~np.isnan(fitted_on.grades)
    if not is_known.any():
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
    _grade_finals,
    lambda scores, grades: grade_error(grades, scores.grades, clusters=scores.clusters),
    needs=GRADED,
    lower_is_better=True,
    by=("subset", "category", *ROBOTS),
    note=_grading_rule,
)
MAE_GROUP_WISE = MetricSpec(
    "mae_group_wise",
    _grade_finals,
    lambda scores, grades: group_wise_error(grades, scores.grades, _subsets(scores), clusters=scores.clusters),
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
        lambda scores, p: metric(p, scores.success, clusters=scores.clusters),
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
        clusters = [name for name, is_kept in zip(scores.clusters, rows, strict=True) if is_kept]
        return mean_tally("", unit, passes[rows], clusters)

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
    held_out = {row.id for row in scores.episodes if normalize_split(row.split) == "validation"}
    if not held_out or len(held_out) == len(scores.episodes):
        tasks = {row.task for row in scores.episodes if row.success is False}
        half = set(sorted(tasks, key=lambda task: short_hash(task.encode()))[::2])
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


def _threshold(scores: Scores, model: str, risk: float) -> Threshold:
    failures = _calibration_failures(scores, model)
    threshold = conformal_threshold(failures, risk)
    if not threshold.enough:
        scored = f"it scored {threshold.episodes} of the {len(failures)} rejected episodes to calibrate on"
        raise NotApplicable(f"{scored}, and a risk of {risk:.0%} takes {failures_needed(risk)}")
    return threshold


def _passes(scores: Scores, model: str, risk: float) -> Floats:
    finals = scores.finals(model)
    if np.isnan(scores.success).all():
        return np.full(len(finals), NAN)  # no labels: nothing to calibrate or to measure
    threshold = _threshold(scores, model, risk).at
    return np.where(np.isnan(finals), NAN, (finals >= threshold).astype(np.float64))


def _threshold_note(scores: Scores, model: str, risk: float) -> str:
    if np.isnan(scores.success).all():
        return ""
    threshold = _threshold(scores, model, risk)
    highest = float(np.nextafter(threshold.at, -np.inf))  # the largest value that does not pass
    missing = len(_calibration_failures(scores, model)) - threshold.episodes
    unscored = f" ({missing} more are unscored)" if missing else ""
    return (
        f"risk {risk:.0%}: success = final value above {highest:.4g}, by {threshold.episodes} rejected episodes "
        f"{_calibrated_on(scores)}{unscored}; the interval takes the threshold as given"
    )


def _calibrated_on(scores: Scores) -> str:
    if not scores.episodes:
        return "in all"
    on = scores.calibration
    splits = {row.split for row in on.episodes} if on is not None else set()
    if splits and splits.isdisjoint(row.split for row in scores.episodes):
        return f"of the split {', '.join(repr(split) for split in sorted(splits))}"
    return "of the other half of the tasks"


def _too_few(scores: Scores, risk: float) -> str:
    """Return why no model can have a threshold on these labels; empty if one can."""
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


FALL = 0.1
"""a failure is caught if the value falls by a tenth of the model's range ..."""
PATIENCE = 0.2
"""... within a fifth of the episode"""
LATENCY = "; in frames from the marked start on, over the failures that this model caught: read it beside their share"
OTHER_INSTRUCTIONS = "two tasks, their videos shown under each other's words"
Columns = tuple[list[npt.ArrayLike], list[npt.ArrayLike]]


def _mean_over_episodes(scores: Scores, values: Floats) -> Tally:
    return mean_tally("", "episodes", values, scores.clusters)


# Order of the frames


def order_correlation(method: Method, perturbation: str = AS_RECORDED) -> MetricSpec:
    """VOC on demonstrations under one perturbation.

    With frames in order a clock scores 1 without looking, so models need not beat it; with shuffled frames it scores 0.
    """

    def correlations(scores: Scores, model: str) -> Correlations:
        key = ("order", model, method, perturbation, scores.ids)
        return scores.compute_once(
            key, lambda: order_correlations(*_values_and_times(scores, model, perturbation), method)
        )

    in_order = perturbation == AS_RECORDED
    return MetricSpec(
        f"voc_{method}" + ("" if in_order else f"_{perturbation}"),
        lambda scores, model: correlations(scores, model).value,
        _mean_over_episodes,
        needs="successes (or demonstrations)" if in_order else f"successes that were shown {perturbation}",
        across=False,
        subset=lambda scores: _select_demonstrations(scores, perturbation),
        undefined=lambda scores, model: int(correlations(scores, model).undefined.sum()),
        by=ROBOTS if in_order else (),
        top_by_construction=("clock",) if in_order else (),
        note=(lambda scores, model: "the first frame stays and is not counted") if perturbation == SHUFFLED else None,
    )


def _select_demonstrations(scores: Scores, perturbation: str) -> Scores:
    """The demonstrations that any model was shown under this perturbation."""
    shown = {id for (_, name), rewards in scores.rewards.items() if name == perturbation for id in rewards}
    wanted = {row.id for row in demonstrations(scores.episodes)} & shown
    return scores.where(lambda row: row.id in wanted)


def _values_and_times(scores: Scores, model: str, perturbation: str) -> Columns:
    """Values and true times; of shuffled frames the first, which stayed in place, is skipped."""
    values: list[npt.ArrayLike] = []
    times: list[npt.ArrayLike] = []
    for row, reward in zip(scores.episodes, scores.rewards_of(model, perturbation), strict=True):
        if reward is None or not len(reward.at):
            values.append([])
            times.append([])
            continue
        is_moved = reward.at > 0 if perturbation == SHUFFLED else reward.at >= 0
        key = ("frames", perturbation, row.id, row.frames)
        order = scores.compute_once(key, lambda row=row: frame_order(perturbation, row.id, row.frames))  # type: ignore[misc]
        values.append(reward.value[is_moved])
        times.append(order[reward.at[is_moved]])
    return values, times


# True progress


def _progress_errors(scores: Scores, model: str) -> Floats:
    """Mean distance to the true curve at the scored frames, as a share of the model's range, per episode."""
    low, high = scores.range_of(model)
    return np.array(
        [
            NAN if not len(truth) else float(np.abs((value - low) / (high - low) - truth).mean())
            for value, truth in _along_curves(scores, model)
        ],
        dtype=np.float64,
    )


def _progress_correlations(scores: Scores, model: str) -> Floats:
    return np.array(
        [NAN if np.isnan(value).any() else spearman(value, truth) for value, truth in _along_curves(scores, model)],
        dtype=np.float64,
    )


def _along_curves(scores: Scores, model: str) -> list[tuple[Floats, Floats]]:
    """Values and true progress at the scored frames whose truth is known; empty where unscored."""
    curves = []
    for row, reward in zip(scores.episodes, scores.rewards_of(model), strict=True):
        if reward is None or not reward.scored or row.curve is None or len(row.curve) <= int(reward.at[-1]):
            curves.append((np.zeros(0), np.zeros(0)))
            continue
        truth = row.curve[reward.at].astype(np.float64)
        is_known = ~np.isnan(truth)
        curves.append((reward.value.astype(np.float64)[is_known], truth[is_known]))
    return curves


def _constant_along_curve(scores: Scores, model: str) -> int:
    """Count episodes that are fully scored, but whose value or truth never changes."""
    missing = np.isnan(_progress_correlations(scores, model))
    rewards = scores.rewards_of(model)
    whole = [reward is not None and reward.scored and not np.isnan(reward.value).any() for reward in rewards]
    return int((missing & np.array(whole, dtype=bool)).sum())


def _with_curve(scores: Scores) -> Scores:
    return scores.where(lambda row: row.curve is not None and len(row.curve) == row.frames)


PROGRESS_ERROR = MetricSpec(
    "progress_error",
    _progress_errors,
    _mean_over_episodes,
    needs="true progress at every frame",
    lower_is_better=True,
    subset=_with_curve,
    note=lambda scores, model: "mean distance of the value, as a share of its range, to the true progress",
)
PROGRESS_CORRELATION = MetricSpec(
    "progress_correlation_spearman",
    _progress_correlations,
    _mean_over_episodes,
    needs="true progress at every frame",
    across=False,
    subset=_with_curve,
    undefined=_constant_along_curve,
)


# Failure moments


def _falls(scores: Scores, model: str) -> Falls:
    return scores.compute_once(("falls", model, scores.ids), lambda: _compute_falls(scores, model))


def _compute_falls(scores: Scores, model: str) -> Falls:
    """Drop and latency at each event; the window is relative to its episode, the fall to the model's range."""
    low, high = scores.range_of(model)
    delta = FALL * (high - low)
    parts = [falls_at([], [], [], window=0, delta=delta)]
    for row, reward in zip(scores.episodes, scores.rewards_of(model), strict=True):
        value: npt.ArrayLike = [] if reward is None else reward.value
        at: npt.ArrayLike = [] if reward is None else reward.at
        window = max(1, round(PATIENCE * row.frames))
        parts += [falls_at([value], [at], [event.first], window=window, delta=delta) for event in row.events]
    names = ("drop", "latency", "early", "unseen", "placebo")
    return Falls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}, delta=delta)


def _moment(name: str, column: str, unit: str = "events", note: str = "", lower_is_better: bool = False) -> MetricSpec:
    def numbers(scores: Scores, model: str) -> Floats:
        return np.asarray(getattr(_falls(scores, model), column), dtype=np.float64)

    def tally_of(scores: Scores, values: Floats) -> Tally:
        owners = zip(scores.episodes, scores.clusters, strict=True)
        return mean_tally("", unit, values, [cluster for row, cluster in owners for _ in row.events])

    def undefined(scores: Scores, model: str) -> int:
        falls = _falls(scores, model)
        scored = [reward is not None and reward.scored for reward in scores.rewards_of(model)]
        is_scored = np.repeat(np.array(scored, dtype=bool), [len(row.events) for row in scores.episodes])
        return int((np.isnan(getattr(falls, column)) & is_scored & (falls.unseen | ~np.isnan(falls.drop))).sum())

    return MetricSpec(
        name,
        numbers,
        tally_of,
        needs="failures marked in time",
        across=False,
        lower_is_better=lower_is_better,
        subset=lambda scores: scores.where(lambda row: bool(row.events)),
        undefined=undefined,
        note=lambda scores, model: f"a fall of a tenth of the range within a fifth of the episode{note}",
    )


# Instructions


def _probe_matrix(scores: Scores, model: str) -> Floats:
    """Final values of each probe's video (rows) under each probe's instruction (columns), flattened; 0..1."""
    if not _was_asked(scores):
        return np.zeros(0)
    low, high = scores.range_of(model)
    probes = instruction_probes(scores.episodes).values()
    if len(probes) <= 1:
        return np.zeros(0)
    finals = [_final_under(scores, model, video, probe) for video in probes for probe in probes]
    return (np.array(finals, dtype=np.float64) - low) / (high - low)


def _final_under(scores: Scores, model: str, video: EpisodeLabels, probe: EpisodeLabels) -> float:
    # a model that does not read the instruction was asked once only
    is_same = video is probe or not scores.cards[model].reads_instruction
    reward = scores.reward(model, video.id, AS_RECORDED if is_same else under_instruction(probe.instruction))
    return NAN if reward is None else reward.final


def _was_asked(scores: Scores) -> bool:
    """Whether any model was shown other instructions, or no model reads them."""
    return any(name.startswith(under_instruction("")) for _, name in scores.rewards) or all(
        not card.reads_instruction for card in scores.cards.values()
    )


def _diagonal(scores: Scores, cells: Floats) -> Tally:
    if not len(cells):
        return empty_tally("", "instructions", 0, "fewer than two tasks")
    size = round(len(cells) ** 0.5)
    return replace(diagonal_share(cells.reshape(size, size)), counts={"tasks": size})


def _right_against_wrong(scores: Scores, cells: Floats) -> Tally:
    if not len(cells):
        return empty_tally("", "comparisons", 0, "fewer than two tasks")
    names = list(instruction_probes(scores.episodes))
    matrix = cells.reshape(len(names), len(names))
    rows, columns = np.nonzero(~np.eye(len(names), dtype=bool))
    tasks = [names[row] for row in rows]
    return right_instruction(matrix[rows, rows], matrix[rows, columns], clusters=tasks)


def _bounded_below(scores: Scores, model: str) -> Floats:
    if scores.cards[model].low is None:
        raise NotApplicable("its values have no lowest one to measure shares from")
    return _probe_matrix(scores, model)


INSTRUCTION_METRICS = (
    MetricSpec("right_instruction_accuracy", _probe_matrix, _right_against_wrong, needs=OTHER_INSTRUCTIONS),
    MetricSpec("instruction_diagonal_share", _bounded_below, _diagonal, needs=OTHER_INSTRUCTIONS),
)
MOMENT = (
    _moment("failure_caught", "caught"),
    _moment("failure_caught_placebo", "placebo", lower_is_better=True),
    _moment("failure_drop", "drop"),
    _moment("failure_latency", "latency", "caught events", LATENCY, lower_is_better=True),
)
TRUTH = (PROGRESS_ERROR, PROGRESS_CORRELATION)
ORDER = (order_correlation("pearson"), order_correlation("spearman"))
SHUFFLED_ORDER = (order_correlation("pearson", SHUFFLED), order_correlation("spearman", SHUFFLED))
REVERSED_ORDER = (order_correlation("pearson", REVERSED), order_correlation("spearman", REVERSED))
