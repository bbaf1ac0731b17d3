"""What values mean when only success flags are taught: are failures below one half, and successes above?

    python benchmarks/flags_alone.py DATASET [DATASET ...] [--seeds 3]
    python benchmarks/flags_alone.py --small

Every task of every dataset (LeRobot folder, videos with a label file, a simulated store) is taught by itself from its
flags, ten-fold; curves, grades and events are hidden. `--small` uses the sample that comes with demerit.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

import demerit
from demerit.data.dataset import Dataset
from demerit.data.episode import Outcome
from demerit.data.splits import LabelSelection
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.success import auroc
from demerit.models.compact import Engine
from demerit.training.teach import TeachConfig
from demerit.training.teach.data import gather_data, label_of
from demerit.training.teach.features import FeatureSpec, common_cameras, extract_features
from demerit.training.teach.training_set import build_training_set
from demerit.training.teach.validate import CrossValidation, cross_validate

SAMPLE = Path(demerit.__file__).parent / "assets" / "sample"
FEWEST = 8


def split_tasks(address: str) -> dict[str, list[demerit.Episode]]:
    """Return the flagged episodes of each task, with nothing but the flag."""
    tasks: dict[str, list[demerit.Episode]] = defaultdict(list)
    for episode in demerit.open_dataset(address):
        flag = label_of(episode).verdict
        if flag is not None:
            task = episode.origin.tags.get("task") or episode.instruction
            flagged = replace(episode, outcomes=(Outcome("human", success=flag),))
            tasks[task].append(flagged)
    return {task: found for task, found in tasks.items() if len(found) >= FEWEST}


def final_values(episodes: list[demerit.Episode], seed: int, cache: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the held-out final value of each episode, and its flag."""
    data = gather_data(Dataset.from_episodes(episodes), selection=LabelSelection(use_test_split=True))
    spec = FeatureSpec(Engine.load_shipped(), common_cameras(episodes), 1, TeachConfig(seed=seed))
    embedded = list(extract_features(data.taught, spec, cache, workers=2))
    training_set, skipped = build_training_set(data, spec, embedded)
    assert not skipped, skipped
    found = CrossValidation(np.full(len(training_set), -1))
    cross_validate(training_set, found)
    heads = [found.heads[fold] for fold in found.fold]
    return np.array([head.value(found.outputs[i][-1]) for i, head in enumerate(heads)]), training_set.success


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", metavar="DATASET")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="the shipped sample, one seed")
    given = parser.parse_args()
    addresses, seeds = ([str(SAMPLE)], 1) if given.small else (given.datasets, given.seeds)
    print("| task | episodes | AUROC | failures below 0.5 | successes above 0.5 | median failure, success |")
    print("|---|---|---|---|---|---|")
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for address in addresses:
            for task, episodes in split_tasks(address).items():
                runs = []
                for seed in range(seeds):
                    value, flag = final_values(episodes, seed, Path(cache))
                    bad, good = value[flag == 0], value[flag == 1]
                    area = auroc(value, flag).measure(Resampling(resamples=1)).value
                    runs.append((area, (bad < 0.5).mean(), (good > 0.5).mean(), np.median(bad), np.median(good)))
                rows.append(np.mean(runs, axis=0))
                area, below, above, median_bad, median_good = rows[-1]
                name = task if len(task) <= 40 else task[:37] + "..."
                print(f"| {name} | {len(episodes)} | {area:.3f} | {below:.0%} | {above:.0%} "
                      f"| {median_bad:.2f}, {median_good:.2f} |", flush=True)  # fmt: skip
    area, below, above, median_bad, median_good = np.mean(rows, axis=0)
    print(f"| mean | | {area:.3f} | {below:.0%} | {above:.0%} | {median_bad:.2f}, {median_good:.2f} |")


if __name__ == "__main__":
    main()
