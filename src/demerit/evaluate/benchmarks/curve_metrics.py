"""Metrics inside an episode.

order         voc_{pearson,spearman}[_reversed|_shuffled], on demonstrations
truth         progress_error, progress_correlation_spearman, against a labelled curve
moment        failure_caught, failure_caught_placebo, failure_drop, failure_latency
instruction   right_instruction_accuracy, instruction_diagonal_share
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from demerit.errors import NotApplicable
from demerit.evaluate.benchmarks.data import (
    REVERSED,
    SHUFFLED,
    InstructionProbe,
    demonstrations,
    frame_order,
    instruction_probes,
    under_instruction,
)
from demerit.evaluate.benchmarks.scores import NAN, MetricSpec, Scores
from demerit.evaluate.metrics import Tally
from demerit.evaluate.metrics.bootstrap import empty_tally, mean_tally
from demerit.evaluate.metrics.columns import Floats
from demerit.evaluate.metrics.correlation import Correlations, Method, order_correlations, spearman
from demerit.evaluate.metrics.failure_moment import Falls, falls_at
from demerit.evaluate.metrics.ordering import diagonal_share, right_instruction
from demerit.evaluate.reports.report import AS_RECORDED

FALL = 0.1
"""a failure is caught if the value falls by a tenth of the model's range ..."""
PATIENCE = 0.2
"""... within a fifth of the episode"""
LATENCY = "; in frames from the marked start on, over the failures that this model caught: read it beside their share"
OTHER_INSTRUCTIONS = "two tasks, their videos shown under each other's words"
Columns = tuple[list[npt.ArrayLike], list[npt.ArrayLike]]


def _mean_over_episodes(scores: Scores, values: Floats) -> Tally:
    return mean_tally("", "episodes", values, scores.tasks)


# Order of the frames


def order_correlation(method: Method, perturbation: str = AS_RECORDED) -> MetricSpec:
    """VOC on demonstrations under one perturbation.

    With frames in order a clock scores 1 without looking, so models need not beat it; with shuffled frames it scores 0.
    """

    def correlations(scores: Scores, model: str) -> Correlations:
        key = ("order", model, method, perturbation, scores.ids)
        return scores.cached(key, lambda: order_correlations(*_values_and_times(scores, model, perturbation), method))

    in_order = perturbation == AS_RECORDED
    return MetricSpec(
        f"voc_{method}" + ("" if in_order else f"_{perturbation}"),
        lambda scores, model: correlations(scores, model).value,
        _mean_over_episodes,
        needs="successes (or demonstrations)" if in_order else f"successes that were shown {perturbation}",
        across=False,
        subset=lambda scores: _demonstrated(scores, perturbation),
        undefined=lambda scores, model: int(correlations(scores, model).undefined.sum()),
        top_by_construction=("clock",) if in_order else (),
        note=(lambda scores, model: "the first frame stays and is not counted") if perturbation == SHUFFLED else None,
    )


def _demonstrated(scores: Scores, perturbation: str) -> Scores:
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
        moved = reward.at > 0 if perturbation == SHUFFLED else reward.at >= 0
        key = ("frames", perturbation, row.id, row.frames)
        order = scores.cached(key, lambda row=row: frame_order(perturbation, row.id, row.frames))  # type: ignore[misc]
        values.append(reward.value[moved])
        times.append(order[reward.at[moved]])
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
    found = []
    for row, reward in zip(scores.episodes, scores.rewards_of(model), strict=True):
        if reward is None or not reward.scored or row.curve is None or len(row.curve) <= int(reward.at[-1]):
            found.append((np.zeros(0), np.zeros(0)))
            continue
        truth = row.curve[reward.at].astype(np.float64)
        known = ~np.isnan(truth)
        found.append((reward.value.astype(np.float64)[known], truth[known]))
    return found


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
    return scores.cached(("falls", model, scores.ids), lambda: _compute_falls(scores, model))


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
        return mean_tally("", unit, values, [row.task for row in scores.episodes for _ in row.events])

    def undefined(scores: Scores, model: str) -> int:
        falls = _falls(scores, model)
        scored = [reward is not None and reward.scored for reward in scores.rewards_of(model)]
        seen = np.repeat(np.array(scored, dtype=bool), [len(row.events) for row in scores.episodes])
        return int((np.isnan(getattr(falls, column)) & seen & (falls.unseen | ~np.isnan(falls.drop))).sum())

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
    probes = instruction_probes(scores.episodes)
    if len(probes) <= 1:
        return np.zeros(0)
    finals = [_final_under(scores, model, video, probe) for video in probes for probe in probes]
    return (np.array(finals, dtype=np.float64) - low) / (high - low)


def _final_under(scores: Scores, model: str, video: InstructionProbe, probe: InstructionProbe) -> float:
    # a model that does not read the instruction was asked once only
    same = video.task == probe.task or not scores.cards[model].reads_instruction
    reward = scores.reward(model, video.episode, AS_RECORDED if same else under_instruction(probe.instruction))
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
    probes = instruction_probes(scores.episodes)
    matrix = cells.reshape(len(probes), len(probes))
    rows, columns = np.nonzero(~np.eye(len(probes), dtype=bool))
    tasks = [probes[row].task for row in rows]
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
