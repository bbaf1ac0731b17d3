"""Questions about what happens inside an episode: order of the frames, true progress, failure moments, instructions.

order         voc_{pearson,spearman}[_reversed|_shuffled], on demonstrations
truth         progress_error, progress_correlation, against a measured curve
moment        failure_caught, failure_caught_placebo, failure_drop, failure_latency
instruction   right_instruction_accuracy, instruction_diagonal_share
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from demerit.errors import NotApplicable
from demerit.evaluate.benchmarks.evidence import NAN, Evidence, Floats
from demerit.evaluate.benchmarks.question import Question
from demerit.evaluate.benchmarks.showings import SHUFFLED, Probe, demonstrations, frame_order, probes, told
from demerit.evaluate.metrics import Tally
from demerit.evaluate.metrics.bootstrap import empty_tally, mean_tally
from demerit.evaluate.metrics.failure_moment import Falls, falls_at
from demerit.evaluate.metrics.instruction import diagonal_tally, right_instruction_tally
from demerit.evaluate.metrics.order_correlation import Correlations, Method, order_correlations, spearman
from demerit.evaluate.reports.report import AS_RECORDED, Judged

FALL = 0.1
"""a failure is noticed when the value falls by a tenth of the model's range ..."""
PATIENCE = 0.2
"""... within a fifth of the episode"""
LATENCY = "; in frames from the marked start on, over the failures that this model caught: read it beside their share"
TWO = 2


def order_correlation(method: Method, showing: str = AS_RECORDED) -> Question:
    """Ask for VOC on demonstrations, shown in one of the ways.

    A clock reaches 1 in order without looking, so it is no rival there; shuffled, it falls to 0.
    """
    suffix = "" if showing == AS_RECORDED else f"_{showing}"
    return Question(
        name=f"voc_{method}{suffix}",
        numbers=lambda evidence, model: _correlations(evidence, model, method, showing).value,
        counting=lambda evidence, found: mean_tally("", "episodes", found, evidence.tasks),
        needs="successes (or demonstrations)" if showing == AS_RECORDED else f"successes that were shown {showing}",
        across=False,
        of=lambda evidence: _demonstrated(evidence, showing),
        undefined=lambda evidence, model: int(_correlations(evidence, model, method, showing).undefined.sum()),
        beaten_by=() if suffix else ("clock",),
        note=(lambda evidence, model: "the first frame stays and is not counted") if showing == SHUFFLED else None,
    )


def _demonstrated(evidence: Evidence, showing: str) -> Evidence:
    """The demonstrations that anybody was shown in this way."""
    seen = {id for (_, way), rewards in evidence.rewards.items() if way == showing for id in rewards}
    wanted = {one.id for one in demonstrations(evidence.episodes)} & seen
    return evidence.where(lambda one: one.id in wanted)


def _correlations(evidence: Evidence, model: str, method: Method, showing: str) -> Correlations:
    key = ("order", model, method, showing, evidence.ids)
    return evidence.once(key, lambda: _correlated(evidence, model, method, showing))


def _correlated(evidence: Evidence, model: str, method: Method, showing: str) -> Correlations:
    """Correlate value and true time; of shuffled frames the first, which stayed in its place, is not counted."""
    values: list[npt.ArrayLike] = []
    times: list[npt.ArrayLike] = []
    for one, reward in zip(evidence.episodes, evidence.shown(model, showing), strict=True):
        if reward is None or not len(reward.at):
            values.append([])
            times.append([])
            continue
        moved = reward.at > 0 if showing == SHUFFLED else reward.at >= 0
        values.append(reward.value[moved])
        times.append(_true_times(evidence, showing, one)[reward.at[moved]])
    return order_correlations(values, times, method)


def _true_times(evidence: Evidence, showing: str, one: Judged) -> npt.NDArray[np.int64]:
    return evidence.once(("frames", showing, one.id, one.frames), lambda: frame_order(showing, one.id, one.frames))


def _along_curve(evidence: Evidence, model: str, absolute: bool) -> Floats:
    return evidence.once(("curve", model, absolute, evidence.ids), lambda: _followed(evidence, model, absolute))


def _followed(evidence: Evidence, model: str, absolute: bool) -> Floats:
    """Per episode, the mean distance to the true curve at the scored frames, or the rank correlation with it."""
    low, high = evidence.range_of(model) if absolute else (0.0, 1.0)
    found = []
    for one, reward in zip(evidence.episodes, evidence.shown(model), strict=True):
        if reward is None or not reward.scored or one.curve is None or len(one.curve) <= int(reward.at[-1]):
            found.append(NAN)
            continue
        truth = one.curve[reward.at].astype(np.float64)
        value = (reward.value.astype(np.float64) - low) / (high - low)
        there = ~np.isnan(truth)
        distance = np.abs(value - truth)[there]
        found.append(
            float(distance.mean()) if absolute and len(distance) else _ranked(value[there], truth[there], absolute)
        )
    return np.array(found, dtype=np.float64)


def _ranked(value: Floats, truth: Floats, absolute: bool) -> float:
    return NAN if absolute or np.isnan(value).any() else spearman(value, truth)


def _with_curve(evidence: Evidence) -> Evidence:
    return evidence.where(lambda one: one.curve is not None and len(one.curve) == one.frames)


def _undefined_along_curve(evidence: Evidence, model: str) -> int:
    """Scored, but the value or the truth never changes."""
    missing = np.isnan(_along_curve(evidence, model, False))
    whole = [one is not None and one.scored and not np.isnan(one.value).any() for one in evidence.shown(model)]
    return int((missing & np.array(whole, dtype=bool)).sum())


PROGRESS_ERROR = Question(
    "progress_error",
    lambda evidence, model: _along_curve(evidence, model, True),
    lambda evidence, found: mean_tally("", "episodes", found, evidence.tasks),
    needs="true progress at every frame",
    lower_is_better=True,
    of=_with_curve,
    note=lambda evidence, model: "mean distance of the value, as a share of its range, to the true progress",
)
PROGRESS_CORRELATION = Question(
    "progress_correlation_spearman",
    lambda evidence, model: _along_curve(evidence, model, False),
    lambda evidence, found: mean_tally("", "episodes", found, evidence.tasks),
    needs="true progress at every frame",
    across=False,
    of=_with_curve,
    undefined=_undefined_along_curve,
)


def _falls(evidence: Evidence, model: str) -> Falls:
    return evidence.once(("falls", model, evidence.ids), lambda: _looked_at(evidence, model))


def _looked_at(evidence: Evidence, model: str) -> Falls:
    """Look at each failure event, with patience measured by its episode and the fall by the model's range."""
    low, high = evidence.range_of(model)
    delta = FALL * (high - low)
    parts = [falls_at([], [], [], window=0, delta=delta)]
    for one, reward in zip(evidence.episodes, evidence.shown(model), strict=True):
        value: npt.ArrayLike = [] if reward is None else reward.value
        at: npt.ArrayLike = [] if reward is None else reward.at
        window = max(1, round(PATIENCE * one.frames))
        parts += [falls_at([value], [at], [event.first], window=window, delta=delta) for event in one.events]
    return Falls(
        drop=np.concatenate([part.drop for part in parts]),
        latency=np.concatenate([part.latency for part in parts]),
        early=np.concatenate([part.early for part in parts]),
        unseen=np.concatenate([part.unseen for part in parts]),
        placebo=np.concatenate([part.placebo for part in parts]),
        delta=delta,
    )


def _moment(name: str, column: str, unit: str = "events", note: str = "") -> Question:
    def numbers(evidence: Evidence, model: str) -> Floats:
        return np.asarray(getattr(_falls(evidence, model), column), dtype=np.float64)

    def counting(evidence: Evidence, found: Floats) -> Tally:
        labels = [one.task for one in evidence.episodes for _ in one.events]
        return mean_tally("", unit, found, labels)

    def undefined(evidence: Evidence, model: str) -> int:
        found = _falls(evidence, model)
        scored = [one is not None and one.scored for one in evidence.shown(model)]
        seen = np.repeat(np.array(scored, dtype=bool), [len(one.events) for one in evidence.episodes])
        return int((np.isnan(getattr(found, column)) & seen & (found.unseen | ~np.isnan(found.drop))).sum())

    return Question(
        name,
        numbers,
        counting,
        needs="failures marked in time",
        across=False,
        of=lambda evidence: evidence.where(lambda one: bool(one.events)),
        undefined=undefined,
        note=lambda evidence, model: f"a fall of a tenth of the range within a fifth of the episode{note}",
    )


def _asked(evidence: Evidence, model: str) -> tuple[list[Probe], Floats]:
    """The final values of each probe's video (rows) under each probe's words (columns), above the card's minimum."""
    found = probes(evidence.episodes)
    low, high = evidence.range_of(model)
    matrix = np.full((len(found), len(found)), NAN)
    blind = not evidence.cards[model].reads_instruction
    for row, video in enumerate(found):
        for column, words in enumerate(found):
            # a model that does not read the words answers as it did: asking again would only cost time
            showing = AS_RECORDED if row == column or blind else told(words.words)
            reward = evidence.reward(model, video.episode, showing)
            matrix[row, column] = NAN if reward is None else (reward.final - low) / (high - low)
    return found, matrix


def _was_asked(evidence: Evidence) -> bool:
    """Whether other words were shown at all."""
    return any(way.startswith(told("")) for _, way in evidence.rewards) or all(
        not card.reads_instruction for card in evidence.cards.values()
    )


def _matrix(evidence: Evidence, model: str) -> Floats:
    if not _was_asked(evidence):
        return np.zeros(0)
    found, matrix = _asked(evidence, model)
    return matrix.reshape(-1) if len(found) >= TWO else np.zeros(0)


def _diagonal(evidence: Evidence, cells: Floats) -> Tally:
    if not len(cells):
        return empty_tally("", "instructions", 0, "fewer than two tasks")
    size = round(len(cells) ** 0.5)
    return replace(diagonal_tally(cells.reshape(size, size)), counts={"tasks": size})


def _margins(evidence: Evidence, cells: Floats) -> Tally:
    if not len(cells):
        return empty_tally("", "comparisons", 0, "fewer than two tasks")
    found = probes(evidence.episodes)
    matrix = cells.reshape(len(found), len(found))
    rows, columns = np.nonzero(~np.eye(len(found), dtype=bool))
    tasks = [found[row].task for row in rows]
    return right_instruction_tally(matrix[rows, rows], matrix[rows, columns], clusters=tasks)


def _above_zero(evidence: Evidence, model: str) -> Floats:
    if evidence.cards[model].low is None:
        raise NotApplicable("its values have no lowest one to measure shares from")
    return _matrix(evidence, model)


OTHER_WORDS = "two tasks, their videos shown under each other's words"
DIAGONAL = Question("instruction_diagonal_share", _above_zero, _diagonal, needs=OTHER_WORDS)
RIGHT_INSTRUCTION = Question("right_instruction_accuracy", _matrix, _margins, needs=OTHER_WORDS)
INSTRUCTION = (RIGHT_INSTRUCTION, DIAGONAL)
MOMENT = (
    _moment("failure_caught", "caught"),
    replace(_moment("failure_caught_placebo", "placebo"), lower_is_better=True),
    _moment("failure_drop", "drop"),
    replace(_moment("failure_latency", "latency", "caught events", LATENCY), lower_is_better=True),
)
TRUTH = (PROGRESS_ERROR, PROGRESS_CORRELATION)
ORDER = tuple(order_correlation(method) for method in ("pearson", "spearman"))
SHUFFLED_ORDER = tuple(order_correlation(method, "shuffled") for method in ("pearson", "spearman"))
REVERSED_ORDER = tuple(order_correlation(method, "reversed") for method in ("pearson", "spearman"))
