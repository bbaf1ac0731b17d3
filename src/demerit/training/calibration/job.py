"""The calibration job: score labelled episodes, fit, check on left-out tasks, and write a small model folder."""

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
from demerit.data.reward import Reward
from demerit.errors import BadInput, StoreError
from demerit.evaluate.benchmarks.leaks import marks
from demerit.evaluate.metrics import Measure, Resampling
from demerit.models import load_model
from demerit.models.calibrated import KIND, METHODS, Calibrated, Evidence, Method, Recipe, seen_from
from demerit.models.loading import DESCRIPTION, FORMAT, name_of, read_description
from demerit.models.protocol import ModelCard, RewardModel
from demerit.models.reward_store import RewardStore
from demerit.models.score import ScoreJob, ScoreProgress, score
from demerit.training.calibration.examples import Example, examples, labelled
from demerit.training.calibration.fit import Fitted, fit, refuse_too_few
from demerit.training.calibration.left_out import doubts, left_out

BESIDE = ".calibrating"
"""what is behind a model folder's name, for the folder with the inner model's rewards"""
RESAMPLING = Resampling(resamples=2000)


@dataclass(frozen=True)
class Options:
    """How to calibrate, and how fast."""

    method: Method = "isotonic"
    risk: float = 0.05
    batch: int = 8
    workers: int | None = None
    """decoding processes; None = one a core"""
    limit: int | None = None
    """only the first so many labelled episodes"""

    def __post_init__(self) -> None:
        """Refuse what cannot be promised."""
        if not 0 < self.risk < 1:
            raise BadInput("risk", "a number between 0 and 1", self.risk)
        if self.method not in METHODS:
            raise BadInput("method", f"one of {', '.join(METHODS)}", repr(self.method))
        if self.limit is not None and self.limit < 1:
            raise BadInput("limit", "a number from 1 on", self.limit)


@dataclass(frozen=True, eq=False)
class Calibration:
    """A calibrated model, what it rests on, and what it is worth where it was not fitted."""

    model: Calibrated
    counts: dict[str, int]
    """episodes, successes, failures, with progress, unscored"""
    measures: dict[str, Measure]
    """on left-out tasks"""
    notes: tuple[str, ...]


def calibrate(
    dataset: Dataset,
    model: str | RewardModel,
    out: str | Path,
    options: Options | None = None,
    on_progress: Callable[[ScoreProgress], None] = lambda progress: None,
) -> Calibration:
    """Calibrate a model on the labelled episodes of a dataset and write it to a folder.

    Args:
        dataset: with success or progress labelled on some episodes, by anybody but a model.
        model: its name, or a model of yours (which whoever loads the folder then has to hand over).
        out: the folder; beside it, in OUT.calibrating, the model's own rewards are kept, so that an interrupted run
            goes on where it was.
        options: method, risk, how fast.
        on_progress: told how far the scoring is.
    """
    options, folder = options or Options(), Path(out)
    inner = load_model(model) if isinstance(model, str) else model
    name = seen_from(folder, model) if isinstance(model, str) else inner.card.name
    check_out(folder, name, dataset.address)
    known = labelled(dataset)
    chosen = dict(list(known.items())[: options.limit])
    if not chosen:
        raise BadInput(dataset.address or dataset.name, "episodes with success or progress labelled", "none")
    episodes = [episode for episode, _ in chosen.values()]
    rewards = _scored(dataset, episodes, inner, folder, options, on_progress)
    rows, evidence, silent = examples({id: label for id, (_, label) in chosen.items()}, rewards)
    if not rows:
        raise BadInput(inner.card.name, "a model that scores some of the labelled episodes", _why(silent))
    if options.method == "conformal":
        refuse_too_few(rows, options.risk)
    is_progress = (inner.card.low, inner.card.high) == (0.0, 1.0)
    fitted = fit(rows, options.method, options.risk, is_progress)
    counts = _counts(rows, silent)
    used = {one.id for one in rows}
    on = _provenance(dataset, [one for one in episodes if one.id in used], counts)
    recipe = _recipe(name, inner.card, fitted, evidence, on, options)
    write_model(folder, recipe)
    measures = left_out(rows, options.method, options.risk, is_progress, RESAMPLING)
    notes = [*fitted.notes, *doubts(measures, counts, options.risk)]
    if silent:
        notes.append(f"{sum(silent.values())} labelled episodes are unscored: {_why(silent)}.")
    return Calibration(Calibrated(recipe, inner, name_of(folder)), counts, measures, tuple(notes))


def check_out(out: Path, inner: str, address: str) -> None:
    """Refuse a folder that holds anything but an earlier calibration of the same model on the same dataset."""
    if not out.exists():
        return
    if not out.is_dir():
        raise StoreError(out, "it is a file; choose a folder for the model")
    if not (out / DESCRIPTION).exists():
        if any(not path.name.endswith(".part") for path in out.iterdir()):
            raise StoreError(out, "it holds something else; nothing is overwritten, choose another folder")
        return
    facts = read_description(out)
    before = (facts.get("inner"), (facts.get("calibrated_on") or {}).get("address"))
    if facts["kind"] != KIND:
        reason = f"it holds a model of kind {facts['kind']!r}; nothing is overwritten, choose another folder"
        raise StoreError(out, reason)
    if before != (inner, address):
        reason = f"it holds {before[0]} calibrated on {before[1]}, not {inner} on {address}; choose another folder"
        raise StoreError(out, reason)


def write_model(folder: Path, recipe: Recipe) -> None:
    """Write model.json in one step: after a crash there is the old model, the new one, or none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(folder, f"the folder cannot be made ({error.strerror})") from error
    facts = {"format": FORMAT, "kind": KIND, **recipe.as_facts()}
    write_atomic(folder / DESCRIPTION, (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())


def _recipe(
    name: str, card: ModelCard, fitted: Fitted, evidence: Evidence, on: dict[str, Any], options: Options
) -> Recipe:
    return Recipe(
        inner=name,
        inner_card=card.hash(),
        method=options.method,
        risk=options.risk,
        evidence=evidence,
        progress=fitted.progress,
        success=fitted.success,
        threshold=fitted.threshold,
        promise=fitted.promise,
        calibrated_on=on,
    )


def _scored(
    dataset: Dataset,
    episodes: Sequence[Episode],
    inner: RewardModel,
    folder: Path,
    options: Options,
    on_progress: Callable[[ScoreProgress], None],
) -> list[Reward]:
    """Score the labelled episodes; what an interrupted run had scored is kept."""
    rewards = folder.with_name(folder.name + BESIDE) / "rewards" / safe_name(inner.card.name)
    given: dict[str, Any] = {} if options.workers is None else {"workers": options.workers}
    chosen = Dataset(ListReader(dataset.name, list(episodes)), dataset.address)
    score(ScoreJob(inner, chosen, rewards, batch=options.batch, **given), on_progress)
    ids = {one.id for one in episodes}
    return [reward for reward in RewardStore(rewards) if reward.episode in ids]


def _provenance(dataset: Dataset, episodes: Sequence[Episode], counts: dict[str, int]) -> dict[str, Any]:
    found = sorted({mark for episode in episodes for mark in marks(episode)})
    return {"dataset": dataset.name, "address": dataset.address, **counts, "marks": found}


def _counts(rows: Sequence[Example], silent: Counter[str]) -> dict[str, int]:
    return {
        "episodes": len(rows),
        "successes": sum(one.success is True for one in rows),
        "failures": sum(one.success is False for one in rows),
        "with progress": sum(bool(len(one.truth)) for one in rows),
        "tasks": len({one.task for one in rows}),
        "unscored": sum(silent.values()),
    }


def _why(silent: Counter[str]) -> str:
    return "; ".join(f"{reason or 'the last frame has no value'} ({count})" for reason, count in silent.most_common(3))
