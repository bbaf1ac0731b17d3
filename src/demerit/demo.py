"""The demo: make or take a dataset, import it, score it with every baseline, and say what came out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demerit.contact_sheet import contact_sheet
from demerit.episode import Episode
from demerit.ingest import import_dataset
from demerit.models import load_model
from demerit.reward import Reward
from demerit.sample import make_sample
from demerit.score import Job, rewards_folder, score
from demerit.sources import open_dataset
from demerit.store import RewardStore, Store

BASELINES = ("clock", "constant", "random")


@dataclass(frozen=True)
class DemoRow:
    """One model on the demo's episodes."""

    model: str
    scored: int
    final_of_successes: float
    final_of_failures: float


@dataclass(frozen=True)
class DemoResult:
    """What the demo made."""

    store: Path
    sheet: Path
    rows: list[DemoRow]


def run_demo(folder: str | Path) -> DemoResult:
    """Draw the sample, import it, score it and draw a contact sheet; the same folder again changes nothing."""
    folder = Path(folder)
    if not (folder / "videos" / "labels.jsonl").is_file():
        make_sample(folder / "videos")
    import_dataset(open_dataset(f"videos:{folder / 'videos'}"), folder / "dataset")
    rows = [_row(folder / "dataset", name) for name in BASELINES]
    store = Store(folder / "dataset")
    shown = next(store.episodes({"success": False}))
    rewards = [reward for name in BASELINES for reward in _rewards(store, name) if reward.episode == shown.id]
    sheet = contact_sheet(shown, folder / "sheet.png", rewards)
    return DemoResult(store.root, sheet, rows)


def _row(store: Path, name: str) -> DemoRow:
    dataset = open_dataset(f"demerit:{store}")
    model = load_model(name)
    score(Job(model, dataset, rewards_folder(dataset, model.card.name)))
    outcomes = {episode.id: episode for episode in dataset}
    finals: dict[bool, list[float]] = {True: [], False: []}
    for reward in _rewards(Store(store), name):
        finals[_succeeded(outcomes[reward.episode])].append(reward.final)
    return DemoRow(name, sum(map(len, finals.values())), float(np.mean(finals[True])), float(np.mean(finals[False])))


def _succeeded(episode: Episode) -> bool:
    return episode.outcome is not None and episode.outcome.success is True


def _rewards(store: Store, name: str) -> list[Reward]:
    return list(RewardStore(store.root / "rewards" / name))
