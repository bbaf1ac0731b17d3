"""The calibration job: score labelled episodes, fit, measure on held-out tasks, and write a small model folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demerit.data.dataset import Dataset, ListReader
from demerit.data.episode import Episode, safe_name
from demerit.data.files import write_atomic
from demerit.data.labels import NOT_A_MODEL
from demerit.data.reward import Reward
from demerit.data.splits import videos_of
from demerit.errors import BadInput, StoreError
from demerit.evaluate.metrics import Measure, Resampling
from demerit.evaluate.metrics.success import failures_needed
from demerit.models import load_model
from demerit.models.calibrated import KIND, METHODS, Calibrated, CalibrationMethod, CalibrationRecipe, relative_name
from demerit.models.loading import DESCRIPTION, FORMAT, name_of, read_description
from demerit.models.protocol import RewardModel
from demerit.models.reward_store import RewardStore
from demerit.models.score import ScoreJob, ScoreProgress, score
from demerit.training.calibration.fit import (
    CalibrationExample,
    cross_validate,
    doubts,
    fit,
    labelled_episodes,
    make_examples,
    too_few,
)
from demerit.training.selection import LabelSelection

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
    check_out(folder, name, dataset.address)
    selection = LabelSelection(options.sources, options.use_test_split)
    chosen = dict(list(labelled_episodes(dataset, selection).items())[: options.limit])
    if not chosen:
        got = " ".join(("none.", *selection.notes()))
        raise BadInput(dataset.address or dataset.name, "episodes with success or progress labelled", got)
    episodes = [episode for episode, _ in chosen.values()]
    rewards = _score(dataset, episodes, inner, folder, options, on_progress)
    examples, evidence, unscored = make_examples({id: labels for id, (_, labels) in chosen.items()}, rewards)
    if not examples:
        raise BadInput(inner.card.name, "a model that scores some of the labelled episodes", _reasons(unscored))
    counts = _counts(examples, unscored)
    if options.method == "conformal" and counts["failures"] < failures_needed(options.risk):
        least = f"at least {failures_needed(options.risk)} labelled failures that the model scored"
        raise BadInput("--method conformal", least, too_few(counts["failures"], options.risk))
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
        promise=fitted.guarantee,
        calibrated_on=on,
    )
    write_model(folder, recipe)
    measures = cross_validate(examples, options.method, options.risk, is_progress, RESAMPLING)
    notes = [*selection.notes(), *fitted.notes, *doubts(measures, counts, options.risk)]
    if unscored:
        notes.append(f"{unscored.total()} labelled episodes are unscored: {_reasons(unscored)}.")
    return CalibrationResult(Calibrated(recipe, inner, name_of(folder)), counts, measures, tuple(notes))


def check_out(out: Path, inner: str, address: str) -> None:
    """Raise StoreError if the folder holds anything but an earlier calibration of this model on this dataset."""
    if not out.exists():
        return
    if not out.is_dir():
        raise StoreError(out, "it is a file; choose a folder for the model")
    if not (out / DESCRIPTION).exists():
        if any(not path.name.endswith(".part") for path in out.iterdir()):
            raise StoreError(out, "it holds something else; nothing is overwritten, choose another folder")
        return
    facts = read_description(out)
    if facts["kind"] != KIND:
        reason = f"it holds a model of kind {facts['kind']!r}; nothing is overwritten, choose another folder"
        raise StoreError(out, reason)
    before = (facts.get("inner"), (facts.get("calibrated_on") or {}).get("address"))
    if before != (inner, address):
        reason = f"it holds {before[0]} calibrated on {before[1]}, not {inner} on {address}; choose another folder"
        raise StoreError(out, reason)


def write_model(folder: Path, recipe: CalibrationRecipe) -> None:
    """Write model.json atomically."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(folder, f"the folder cannot be made ({error.strerror})") from error
    facts = {"format": FORMAT, "kind": KIND, **recipe.as_facts()}
    write_atomic(folder / DESCRIPTION, (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())


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
    given: dict[str, Any] = {} if options.workers is None else {"workers": options.workers}
    chosen = Dataset(ListReader(dataset.name, list(episodes)), dataset.address)
    score(ScoreJob(inner, chosen, rewards, batch=options.batch, **given), on_progress)
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
