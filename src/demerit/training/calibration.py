"""Calibrate a model on labelled episodes: score, fit maps and a threshold with a guarantee, measure on held-out tasks.

`isotonic` and `fit_logistic` map scores to probabilities; `conformal_threshold` bounds the false-positive rate (see
`demerit.decide.threshold`). `cross_validate` measures a calibration on held-out tasks. `calibrate` is the job;
it writes a small model folder.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Floats
from demerit.data.dataset import Dataset, ListReader
from demerit.data.episode import NOT_A_MODEL, Episode, count_episodes, safe_name
from demerit.data.files import make_folder, write_atomic
from demerit.data.frames import short_hash
from demerit.data.reward import Reward
from demerit.data.splits import LabelSelection, recording_of, seen_by, videos_of
from demerit.decide.threshold import Threshold, affordable_risk, conformal_threshold, failures_needed
from demerit.errors import BadInput, StoreError
from demerit.evaluate.benchmarks.scores import labels_of
from demerit.evaluate.metrics import Measure, Resampling
from demerit.evaluate.metrics.bootstrap import mean_tally, numbers
from demerit.evaluate.metrics.success import (
    brier,
    calibration_error,
    false_positive_rate,
)
from demerit.evaluate.reports.report import EpisodeLabels
from demerit.models import load_model
from demerit.models.calibrated import (
    KIND,
    METHODS,
    Calibrated,
    CalibrationMap,
    CalibrationMethod,
    CalibrationRecipe,
    Confidence,
    EvidenceKind,
    Isotonic,
    Same,
    Shift,
    final_evidence,
    relative_name,
)
from demerit.models.loading import DESCRIPTION, FORMAT, check_out, name_of
from demerit.models.protocol import RewardModel
from demerit.models.reward_store import RewardStore
from demerit.models.score import ScoreJob, ScoreProgress, score

FOLDS = 5
SLOPES, MIDPOINTS = np.geomspace(2, 64, 21), np.linspace(0.05, 0.95, 91)
"""the grid of `fit_logistic`"""
PRIOR_SLOPE, PRIOR_LOG_SPREAD = 8.0, 0.7
PRIOR_MIDPOINT, PRIOR_SPREAD = 0.6, 0.2


@dataclass(frozen=True, eq=False)
class CalibrationExample:
    """One labelled episode and the model's numbers for it; NaN = unscored, None = unlabelled."""

    id: str
    task: str
    """held out together; the simulator's name of the task if there is one, since it has several instructions"""
    score: float
    """the number that decides success, at the last frame"""
    success: bool | None
    final: float
    """the value at the last frame"""
    progress: float | None
    """at the end"""
    values: Floats = field(default_factory=lambda: np.zeros(0))
    """values at the frames whose true progress is known; only the last one without a labelled curve"""
    truth: Floats = field(default_factory=lambda: np.zeros(0))
    recording: str = ""
    """what it was made of; empty = itself. Whatever was made of one recording counts once, with the worst number"""


@dataclass(frozen=True, eq=False)
class FittedCalibration:
    """The maps of a calibration, its threshold, and notes on what could not be fitted."""

    progress: CalibrationMap
    success: CalibrationMap
    bound: Threshold
    notes: tuple[str, ...]

    @property
    def threshold(self) -> float | None:
        """The score from which on an episode is a success; None if nothing can be guaranteed."""
        return self.bound.at if self.bound.enough else None

    @property
    def promise(self) -> str:
        """The guarantee of the threshold, as text."""
        if self.bound.enough:
            return str(self.bound.guarantee)
        return f"No false-positive risk is promised: {too_few(self.bound.episodes, self.bound.risk)}."


# Examples


def labelled_episodes(
    episodes: Iterable[Episode], selection: LabelSelection | None = None
) -> dict[str, tuple[Episode, EpisodeLabels]]:
    """Return the selected episodes whose success or progress is labelled, by id; default: none of a test split."""
    pairs, selection = {}, selection or LabelSelection()
    for episode in filter(None, map(selection.take, episodes)):
        labels = labels_of(episode)
        labels = replace(labels, task=episode.origin.tags.get("task") or labels.task)
        if labels.success is not None or labels.progress is not None or labels.curve is not None:
            pairs[episode.id] = (episode, labels)
    return pairs


def make_examples(
    labels: Mapping[str, EpisodeLabels], rewards: Iterable[Reward]
) -> tuple[list[CalibrationExample], EvidenceKind, Counter[str]]:
    """Combine labels and rewards; also return which number decides success, and the reasons of unscored episodes.

    The model's probabilities of success decide if it gives them for all episodes, else its values do.
    """
    mine = [reward for reward in rewards if reward.episode in labels]
    unscored = Counter(reward.why_missing for reward in mine if np.isnan(reward.final))
    scored = [reward for reward in mine if not np.isnan(reward.final)]
    evidence: EvidenceKind = "value"
    if scored and all(reward.success is not None for reward in scored):
        evidence = "success"
    return [_example(labels[reward.episode], reward, evidence) for reward in scored], evidence, unscored


def _example(labels: EpisodeLabels, reward: Reward, evidence: EvidenceKind) -> CalibrationExample:
    progress, curve = labels.progress, labels.curve
    if progress is None and curve is not None and len(curve) and not np.isnan(curve[-1]):
        progress = float(curve[-1])
    if curve is None:
        truth = np.array([] if progress is None else [progress], dtype=np.float64)
        values = np.full(len(truth), reward.final)
    else:
        inside = reward.at < len(curve)
        values, truth = reward.value[inside].astype(np.float64), curve[reward.at[inside]].astype(np.float64)
        is_known = ~np.isnan(values) & ~np.isnan(truth)
        values, truth = values[is_known], truth[is_known]
    score = final_evidence(reward, evidence)
    return CalibrationExample(labels.id, labels.task, score, labels.success, reward.final, progress, values, truth)


# Maps


def isotonic(x: npt.ArrayLike, y: npt.ArrayLike, weight: npt.ArrayLike | None = None) -> Isotonic:
    """Fit f, non-decreasing, with the smallest sum of w (y - f(x))^2, by pooling adjacent violators.

    Rows of one x are averaged; then neighbours that do not increase are pooled to their weighted mean until none is
    left. f is that mean over each pool, and a straight line between two pools.

    Args:
        x: the model's numbers.
        y: the labels, 0 to 1.
        weight: of each row, above 0; None = 1.
    """
    xs, ys = numbers("x", x), numbers("y", y)
    weights = np.ones(len(xs)) if weight is None else numbers("weights", weight, len(xs))
    if not len(xs) or len(xs) != len(ys) or np.isnan(xs + ys).any() or not (weights > 0).all():
        raise BadInput("isotonic regression", "rows of known x, y and a weight above 0", f"{len(xs)} and {len(ys)}")
    at, index = np.unique(xs, return_inverse=True)
    mass = np.bincount(index.reshape(-1), weights)
    total = np.bincount(index.reshape(-1), weights * ys)
    pools: list[tuple[float, float, int, int]] = []  # weight, weighted sum, first and last x
    for i, (new_mass, new_total) in enumerate(zip(mass.tolist(), total.tolist(), strict=True)):
        pool = (new_mass, new_total, i, i)
        # compare means without dividing: sum_a / mass_a >= sum_b / mass_b
        while pools and pools[-1][1] * pool[0] >= pool[1] * pools[-1][0]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1], before[2], i)
        pools.append(pool)
    knots: dict[int, float] = {}
    for pool_mass, pool_total, first, last in pools:
        knots[first] = knots[last] = min(max(pool_total / pool_mass, 0.0), 1.0)  # rounding must not leave 0..1
    places = sorted(knots)
    return Isotonic(at[places], np.maximum.accumulate([knots[place] for place in places]))


def fit_logistic(scores: Floats, labels: Floats, weights: Floats) -> tuple[float, float]:
    """Fit slope and midpoint of p = 1 / (1 + exp(-slope (score - midpoint))): the most likely on a grid, with a prior.

    The prior decides where there are few episodes. Scores and midpoint are 0..1.
    """
    exponent = SLOPES[:, None, None] * (scores[None, None, :] - MIDPOINTS[None, :, None])
    # log p for a success, log (1 - p) for a failure, without overflow
    signed = np.where(labels == 1, exponent, -exponent)
    likelihood = -(weights * np.logaddexp(0, -signed)).sum(axis=2)
    prior = -0.5 * (np.log(SLOPES / PRIOR_SLOPE) / PRIOR_LOG_SPREAD)[:, None] ** 2
    prior = prior - 0.5 * ((MIDPOINTS - PRIOR_MIDPOINT) / PRIOR_SPREAD)[None, :] ** 2
    best = np.unravel_index(int(np.argmax(likelihood + prior)), likelihood.shape)
    return float(SLOPES[best[0]]), float(MIDPOINTS[best[1]])


def fit(
    examples: Sequence[CalibrationExample], method: CalibrationMethod, risk: float, is_progress: bool = True
) -> FittedCalibration:
    """Fit both maps and the threshold.

    Args:
        examples: labelled episodes with the model's numbers.
        method: `isotonic` maps numbers to means and probabilities; `conformal` to bounds that hold except for `risk`.
        risk: the share of failures that may be called a success, between 0 and 1.
        is_progress: whether the model's values run from 0 to 1, so that an error can be subtracted from them.
    """
    if method not in METHODS:
        raise BadInput("method", f"one of {', '.join(METHODS)}", repr(method))
    failures = _scores_of_failures(examples)
    notes: list[str] = []
    if method == "isotonic":
        progress, success = _mean_progress(examples, notes), _probability(examples, notes)
    else:
        progress, success = _lower_bound(examples, risk, is_progress, notes), Confidence(failures)
    return FittedCalibration(progress, success, conformal_threshold(failures, risk), tuple(notes))


def _scores_of_failures(examples: Iterable[CalibrationExample]) -> Floats:
    return _worst_by_recording((example, example.score) for example in examples if example.success is False)


def _worst_by_recording(numbers: Iterable[tuple[CalibrationExample, float]]) -> Floats:
    """Return the highest number of each recording."""
    highest: dict[str | int, float] = {}
    for place, (example, number) in enumerate(numbers):
        name = example.recording or place
        highest[name] = max(number, highest.get(name, -np.inf))
    return np.array(list(highest.values()))


def too_few(count: int, risk: float) -> str:
    """Describe how many failures are missing, and which risk could be guaranteed instead."""
    needed = failures_needed(risk)
    instead = f", or promise --risk {affordable_risk(count):g}" if count else ""
    return (
        f"a risk of {risk:g} takes {needed} labelled failures and there are {count} "
        f"(label {needed - count} more{instead})"
    )


def _mean_progress(examples: Sequence[CalibrationExample], notes: list[str]) -> CalibrationMap:
    """Fit the mean true progress at each value; every episode has the same weight, however long it is."""
    sample = [example for example in examples if len(example.truth)]
    if not sample:
        notes.append("No episode has its progress labelled: values stay as they were.")
        return Same()
    weights = [np.full(len(example.truth), 1 / len(example.truth)) for example in sample]
    columns = ([example.values for example in sample], [example.truth for example in sample], weights)
    return isotonic(*(np.concatenate(column) for column in columns))


def _probability(examples: Sequence[CalibrationExample], notes: list[str]) -> CalibrationMap:
    """Fit the share of successes at each score."""
    sample = [example for example in examples if example.success is not None]
    outcomes = {example.success for example in sample}
    if len(outcomes) <= 1:
        lacking = "no labelled failure" if True in outcomes else "no labelled success"
        notes.append(f"There is {lacking}: probabilities of success stay as they were, where the model gives any.")
        return Same()
    return isotonic([example.score for example in sample], [float(bool(example.success)) for example in sample])


def _lower_bound(
    examples: Sequence[CalibrationExample], risk: float, is_progress: bool, notes: list[str]
) -> CalibrationMap:
    """Fit the shift t so that, except for the risk, at least value - t was reached at the end.

    With residuals r = value - true progress, P(r >= t) <= risk for a new exchangeable episode (see
    `conformal_threshold`), so true progress > value - t except for that risk.
    """
    residuals = _worst_by_recording(
        (example, example.final - example.progress) for example in examples if example.progress is not None
    )
    if not is_progress:
        notes.append(
            "The model's values do not run from 0 to 1, so they stay as they were (--method isotonic maps them)."
        )
        return Same()
    if len(residuals) < failures_needed(risk):
        least = f"a bound on progress at a risk of {risk:g} takes {failures_needed(risk)}"
        notes.append(f"{len(residuals)} episodes have their progress labelled and {least}: values stay as they were.")
        return Same()
    return Shift(conformal_threshold(residuals, risk).at)


# Held-out tasks


def cross_validate(
    examples: Sequence[CalibrationExample],
    method: CalibrationMethod,
    risk: float,
    is_progress: bool,
    resampling: Resampling,
) -> dict[str, Measure]:
    """Measure probabilities, progress and the guarantee on held-out tasks (episodes, if there is one task only).

    Names that end in `_before` are the model's own numbers on the same episodes, where they run from 0 to 1; those
    that end in `_change` are the mean difference to them.
    """
    tasks = [example.task for example in examples]
    units = tasks if len(set(tasks)) > 1 else [example.recording or example.id for example in examples]
    # folds depend on the names alone
    ordered = sorted(set(units), key=lambda unit: short_hash(unit.encode()))
    fold_of = {unit: place % FOLDS for place, unit in enumerate(ordered)}
    folds = np.array([fold_of[unit] for unit in units])
    scores = np.array([example.score for example in examples])
    finals = np.array([example.final for example in examples])
    probability, value, passes = (np.full(len(examples), np.nan) for _ in range(3))
    for fold in sorted(set(fold_of.values())):
        inside = [example for example, other in zip(examples, folds, strict=True) if other != fold]
        if not inside:
            continue
        fitted, held_out = fit(inside, method, risk, is_progress), folds == fold
        probability[held_out] = fitted.success(scores[held_out])
        value[held_out] = fitted.progress(finals[held_out])
        if fitted.threshold is not None:
            passes[held_out] = scores[held_out] >= fitted.threshold
    success = np.array([np.nan if example.success is None else float(example.success) for example in examples])
    progress = np.array([np.nan if example.progress is None else example.progress for example in examples])
    good = success == 1
    owners = [unit for unit, is_good in zip(units, good, strict=True) if is_good]
    tallies = {
        "false_positive_rate": false_positive_rate(passes, success, 0.5, clusters=units),
        "true_positive_rate": mean_tally("true_positive_rate", "accepted episodes", passes[good], owners),
    }
    errors: dict[str, list[Floats]] = {}
    for suffix, column in (("", probability), ("_before", scores)):
        if method == "isotonic" and not np.isnan(success).all() and _is_probability(column):
            tallies[f"brier{suffix}"] = brier(column, success, clusters=units)
            tallies[f"ece{suffix}"] = calibration_error(column, success, clusters=units)
            errors.setdefault("brier", []).append((column - success) ** 2)
    for suffix, column in (("", value), ("_before", finals)):
        if is_progress and not np.isnan(progress).all():
            apart = np.abs(column - progress)
            tallies[f"progress_error{suffix}"] = mean_tally(f"progress_error{suffix}", "episodes", apart, units)
            errors.setdefault("progress_error", []).append(apart)
        if method == "conformal" and is_progress and not np.isnan(progress).all():
            above = np.where(np.isnan(apart), np.nan, (column > progress + 1e-6).astype(np.float64))
            name = f"progress_overrated{suffix}"
            tallies[name] = mean_tally(name, "episodes", above, units)
            errors.setdefault("progress_overrated", []).append(above)
    for name, both in errors.items():
        if len(both) == len(("after", "before")):
            change = both[0] - both[1]
            tallies[f"{name}_change"] = mean_tally(f"{name}_change", "episodes", change, units)
    measures = {name: tally.measure(resampling) for name, tally in tallies.items()}
    return {name: measure for name, measure in measures.items() if measure.known}


def _is_probability(column: Floats) -> bool:
    values = column[~np.isnan(column)]
    return bool(len(values)) and bool(values.min() >= 0) and bool(values.max() <= 1)


def doubts(measures: Mapping[str, Measure], counts: Mapping[str, int], risk: float) -> Iterator[str]:
    """Warn if the measures on held-out tasks show that the calibration is of little use."""
    probability, passed = measures.get("brier"), measures.get("true_positive_rate")
    false = measures.get("false_positive_rate")
    if probability is not None:
        share = counts["successes"] / (counts["successes"] + counts["failures"])
        constant = share * (1 - share)
        if probability.value >= constant:
            yield (
                f"On held-out tasks the probabilities (Brier score {probability.value:.3f}) are no better than always "
                f"saying {share:.0%} ({constant:.3f}): this model's numbers say little about success there."
            )
    # a lower bound is meant to be below the progress: there only how often it is above counts
    for name in ("brier", *(("progress_overrated",) if "progress_overrated" in measures else ("progress_error",))):
        change = measures.get(f"{name}_change")
        if change is not None and change.value > 0:
            after, before = measures[name].value, measures[f"{name}_before"].value
            found = "makes this worse" if change.low > 0 else "is not shown to help"
            span = "unknown" if math.isnan(change.low) else f"{change.low:+.3f} to {change.high:+.3f}"
            yield (
                f"Calibration {found} on held-out data: {name} {after:.3f} instead of {before:.3f} (95% interval of "
                f"the difference: {span}). Label more, or use the model without it."
            )
    if passed is not None and not passed.low > risk:
        yield f"{passed.value:.0%} of held-out successes pass the threshold: the guarantee costs nearly all of them."
    if false is not None and false.low > risk:
        yield f"{false.value:.1%} of failures of held-out tasks pass: the guarantee does not carry over to other tasks."


WORK_SUFFIX = ".calibrating"
"""of the folder next to the model folder that keeps the inner model's rewards"""
RESAMPLING = Resampling(resamples=2000)


@dataclass(frozen=True)
class CalibrateOptions:
    """How to calibrate, and how fast."""

    method: CalibrationMethod = "isotonic"
    risk: float = 0.05
    """the share of failures that may be called a success"""
    batch: int = 8
    workers: int | None = None
    """decoding processes; None = one per core"""
    limit: int | None = None
    """use only the first N labelled episodes"""
    sources: tuple[str, ...] = NOT_A_MODEL
    """label sources to calibrate on"""
    use_test_split: bool = False
    """also calibrate on episodes of a test split"""

    def __post_init__(self) -> None:
        """Check the values."""
        if not 0 < self.risk < 1:
            raise BadInput("risk", "a number between 0 and 1", self.risk)
        if self.method not in METHODS:
            raise BadInput("method", f"one of {', '.join(METHODS)}", repr(self.method))
        if self.limit is not None and self.limit < 1:
            raise BadInput("limit", "a number from 1 on", self.limit)


@dataclass(frozen=True, eq=False)
class CalibrationResult:
    """A calibrated model, and its measures on held-out tasks."""

    model: Calibrated
    counts: dict[str, int]
    """episodes, successes, failures, with progress, tasks, unscored"""
    measures: dict[str, Measure]
    """on held-out tasks"""
    notes: tuple[str, ...]


def calibrate(
    dataset: Dataset,
    model: str | RewardModel,
    out: str | Path,
    options: CalibrateOptions | None = None,
    on_progress: Callable[[ScoreProgress], None] = lambda progress: None,
) -> CalibrationResult:
    """Calibrate a model on the labelled episodes of a dataset and write it to a folder.

    Args:
        dataset: with success or progress labelled on some episodes.
        model: its name, or a model object (which must then be given again to load the folder).
        out: the folder; the model's own rewards are kept next to it, in OUT.calibrating, so an interrupted run resumes.
        options: method, risk, speed.
        on_progress: called after each batch.
    """
    options, folder = options or CalibrateOptions(), Path(out)
    inner = load_model(model) if isinstance(model, str) else model
    name = relative_name(folder, model) if isinstance(model, str) else inner.card.name
    facts = check_out(folder, KIND)
    before = (facts.get("inner"), (facts.get("calibrated_on") or {}).get("address"))
    if facts and before != (name, dataset.address):
        reason = f"it holds {before[0]} calibrated on {before[1]}, not {name} on {dataset.address}"
        raise StoreError(folder, f"{reason}; choose another folder")
    selection = LabelSelection(options.sources, options.use_test_split)
    labelled, seen = labelled_episodes(dataset, selection), seen_by(inner)
    new = {id: pair for id, pair in labelled.items() if not seen.has(pair[0])}
    chosen, learned_from = dict(list(new.items())[: options.limit]), len(labelled) - len(new)
    if not chosen:
        expected = "episodes with success or progress labelled"
        expected += f" that {inner.card.name} did not learn from (record and label others)" if labelled else ""
        got = f"{count_episodes(learned_from)}, all of them in its lesson." if labelled else "none."
        raise BadInput(dataset.address or dataset.name, expected, " ".join((got, *selection.notes())))
    episodes = [episode for episode, _ in chosen.values()]
    rewards = _score(dataset, episodes, inner, folder, options, on_progress)
    examples, evidence, unscored = make_examples({id: labels for id, (_, labels) in chosen.items()}, rewards)
    if not examples:
        raise BadInput(inner.card.name, "a model that scores some of the labelled episodes", _reasons(unscored))
    recordings = {id: recording_of(episode) for id, (episode, _) in chosen.items()}
    examples = [replace(example, recording=recordings[example.id]) for example in examples]
    counts, failures = _counts(examples, unscored), len(_scores_of_failures(examples))
    if options.method == "conformal" and failures < failures_needed(options.risk):
        least = f"at least {failures_needed(options.risk)} labelled failures that the model scored"
        raise BadInput("--method conformal", least, too_few(failures, options.risk))
    is_progress = (inner.card.low, inner.card.high) == (0.0, 1.0)
    fitted = fit(examples, options.method, options.risk, is_progress)
    used = {example.id for example in examples}
    learned = [episode for episode in episodes if episode.id in used]
    # The marks are part of the card's hash: the same data must give the same card as before.
    marks = {mark for episode in learned for mark in (episode.fingerprint(), *videos_of(episode))}
    on = {"dataset": dataset.name, "address": dataset.address, **counts, "marks": sorted(marks)}
    recipe = CalibrationRecipe(
        inner=name,
        inner_card=inner.card.hash(),
        method=options.method,
        risk=options.risk,
        evidence=evidence,
        progress=fitted.progress,
        success=fitted.success,
        threshold=fitted.threshold,
        promise=fitted.promise,
        calibrated_on=on,
    )
    write_model(folder, recipe)
    measures = cross_validate(examples, options.method, options.risk, is_progress, RESAMPLING)
    notes = [*selection.notes(), *fitted.notes, *doubts(measures, counts, options.risk)]
    if learned_from:
        notes.append(f"{count_episodes(learned_from)} left out: {inner.card.name} learned from them.")
    if unscored:
        notes.append(f"{unscored.total()} labelled episodes are unscored: {_reasons(unscored)}.")
    return CalibrationResult(Calibrated(recipe, inner, name_of(folder)), counts, measures, tuple(notes))


def write_model(folder: Path, recipe: CalibrationRecipe) -> None:
    """Write model.json atomically."""
    facts = {"format": FORMAT, "kind": KIND, **recipe.as_dict()}
    write_atomic(make_folder(folder) / DESCRIPTION, (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())


def _score(
    dataset: Dataset,
    episodes: Sequence[Episode],
    inner: RewardModel,
    folder: Path,
    options: CalibrateOptions,
    on_progress: Callable[[ScoreProgress], None],
) -> list[Reward]:
    """Score the labelled episodes; rewards of an interrupted run are kept."""
    rewards = folder.with_name(folder.name + WORK_SUFFIX) / "rewards" / safe_name(inner.card.name)
    arguments: dict[str, Any] = {} if options.workers is None else {"workers": options.workers}
    chosen = Dataset(ListReader(dataset.name, list(episodes)), dataset.address)
    score(ScoreJob(inner, chosen, rewards, batch=options.batch, **arguments), on_progress)
    ids = {episode.id for episode in episodes}
    return [reward for reward in RewardStore(rewards) if reward.episode in ids]


def _counts(examples: Sequence[CalibrationExample], unscored: Counter[str]) -> dict[str, int]:
    return {
        "episodes": len(examples),
        "successes": sum(example.success is True for example in examples),
        "failures": sum(example.success is False for example in examples),
        "with progress": sum(bool(len(example.truth)) for example in examples),
        "tasks": len({example.task for example in examples}),
        "unscored": unscored.total(),
    }


def _reasons(unscored: Counter[str]) -> str:
    named = ((reason or "the last frame has no value", count) for reason, count in unscored.most_common(3))
    return "; ".join(f"{reason} ({count})" for reason, count in named)
