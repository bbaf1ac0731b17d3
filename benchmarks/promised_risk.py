"""Does the false-positive guarantee hold? Thresholds from some failures of the simulator, measured on others.

    python benchmarks/promised_risk.py --val DIR/val --test DIR/test [--model change ...] [--risk 0.05] [--work DIR]
    python benchmarks/promised_risk.py --small        (drawn episodes, in seconds)

DIR/val and DIR/test come from `demerit simulate DIR/val --benchmark metaworld-bad@1 --split validation` (seen tasks)
and `--split test` (ten other tasks). Every calibration is that of `demerit calibrate --method conformal`. Situations:

    same tasks         a random half of the test failures calibrates, the other half is measured: exchangeable
    each task alone    the same within one task, for every task with enough failures
    other tasks        a random half of the test tasks calibrates, the others are measured: not exchangeable
    one task held out  the other test tasks calibrate, one is measured: not exchangeable; the worst is named
    seen to unseen     the validation split calibrates, the test split is measured: not exchangeable

"mean" is over the repeated splits, with its Monte Carlo interval; "middle 95%" is the range of single splits. Seen to
unseen is one split; its interval is the bootstrap's, clustered by task.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from demerit.data.episode import safe_name
from demerit.data.formats import open_dataset
from demerit.data.splits import LabelSelection
from demerit.decide.threshold import failures_needed
from demerit.evaluate.metrics.success import false_positive_rate
from demerit.models import load_model
from demerit.models.reward_store import RewardStore
from demerit.models.score import ScoreJob, score
from demerit.training.calibration import CalibrationExample, fit, labelled_episodes, make_examples
from fakes.drawn_sample import make_sample

Split = Callable[[np.random.Generator], tuple[list[CalibrationExample], list[CalibrationExample]]]
NOISE = 0.35


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--val")
    parser.add_argument("--test")
    parser.add_argument("--model", action="append")
    parser.add_argument("--risk", type=float, default=0.05)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--work", type=Path, help="folder of the rewards (default: a temporary folder)")
    parser.add_argument("--small", action="store_true", help="drawn episodes, a risk of 0.3, 50 splits")
    given = parser.parse_args()
    names = given.model or ["change", "motion", "ensemble:change+motion", "random"]
    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        if given.small:
            given.val = given.test = str(make_sample(Path(temporary) / "drawn"))
            given.risk, given.repeats, names = 0.3, 50, ["change"]
        elif not (given.val and given.test):
            parser.error("--val and --test, or --small")
        pools = {name: (rows(given.val, name, work / "val"), rows(given.test, name, work / "test")) for name in names}
    val, test = pools[names[0]]
    pools["(invented) truth + noise"] = (noisy(val, 1), noisy(test, 2))
    print(f"guarantee: at most {given.risk:.1%} of failures pass; {given.repeats} splits\n")
    print("| model | situation | mean of failures that pass | middle 95% of splits | successes that pass |")
    print("|---|---|---|---|---|")
    for name, (val, test) in pools.items():
        for situation, split in situations(test, given.risk).items():
            print(f"| {name} | {situation} | {repeated(split, given.risk, given.repeats)} |", flush=True)
        print(f"| {name} | one task held out | {held_out_tasks(test, given.risk)} |", flush=True)
        print(f"| {name} | seen to unseen | {once(val, test, given.risk)} |", flush=True)


def rows(address: str, name: str, work: Path) -> list[CalibrationExample]:
    """Score a split with a model and combine labels and scores."""
    model, dataset = load_model(name), open_dataset(address)
    folder = work / safe_name(model.card.name)
    score(ScoreJob(model, dataset, folder))
    labels = {id: label for id, (_, label) in labelled_episodes(dataset, LabelSelection(use_test_split=True)).items()}
    found, _, unscored = make_examples(labels, RewardStore(folder))
    if unscored:
        print(f"{name}: {unscored.total()} episodes unscored, skipped")
    return found


def noisy(pool: Sequence[CalibrationExample], seed: int) -> list[CalibrationExample]:
    """An invented model that knows something: true progress with noise."""
    rng = np.random.default_rng(seed)
    return [replace(example, score=float(example.progress or 0.0) + NOISE * rng.standard_normal()) for example in pool]


def situations(test: Sequence[CalibrationExample], risk: float) -> dict[str, Split]:
    found: dict[str, Split] = {"same tasks": lambda rng: by_episode(test, rng)}
    for task in sorted({example.task for example in test}):
        alone = [example for example in test if example.task == task]
        if sum(example.success is False for example in alone) >= 2 * failures_needed(risk) + 1:
            found[f"each task alone: {task}"] = lambda rng, alone=alone: by_episode(alone, rng)  # type: ignore[misc]
    found["other tasks"] = lambda rng: by_task(test, rng)
    return found


def by_episode(
    pool: Sequence[CalibrationExample], rng: np.random.Generator
) -> tuple[list[CalibrationExample], list[CalibrationExample]]:
    """Halve the failures at random; all successes are measured, as calibration does not use them."""
    failures = [example for example in pool if example.success is False]
    chosen = set(rng.permutation(len(failures))[: (len(failures) + 1) // 2].tolist())
    inside = [example for place, example in enumerate(failures) if place in chosen]
    outside = [example for place, example in enumerate(failures) if place not in chosen]
    return inside, [*outside, *(example for example in pool if example.success)]


def by_task(
    pool: Sequence[CalibrationExample], rng: np.random.Generator
) -> tuple[list[CalibrationExample], list[CalibrationExample]]:
    tasks = sorted({example.task for example in pool})
    chosen = set(rng.permutation(tasks)[: len(tasks) // 2].tolist())
    return [example for example in pool if example.task in chosen], [
        example for example in pool if example.task not in chosen
    ]


def repeated(split: Split, risk: float, repeats: int) -> str:
    rng = np.random.default_rng(0)
    false, true = [], []
    for _ in range(repeats):
        inside, outside = split(rng)
        threshold = fit(inside, "conformal", risk).threshold
        assert threshold is not None, "too few failures in a split"
        false.append(share(outside, False, threshold))
        true.append(share(outside, True, threshold))
    mean, error = float(np.mean(false)), 1.96 * float(np.std(false)) / repeats**0.5
    low, high = np.quantile(false, [0.025, 0.975])
    kept = f"{mean:.2%} ({mean - error:.2%} to {mean + error:.2%})"
    return f"{kept} | {low:.1%} to {high:.1%} | {np.nanmean(true):.1%}"


def share(pool: Sequence[CalibrationExample], success: bool, threshold: float) -> float:
    passed = [example.score >= threshold for example in pool if example.success is success]
    return float(np.mean(passed)) if passed else float("nan")


def held_out_tasks(test: Sequence[CalibrationExample], risk: float) -> str:
    false, true = {}, []
    for task in sorted({example.task for example in test}):
        threshold = fit([example for example in test if example.task != task], "conformal", risk).threshold
        assert threshold is not None, "too few failures in the other tasks"
        alone = [example for example in test if example.task == task]
        false[task] = share(alone, False, threshold)
        true.append(share(alone, True, threshold))
    worst = max(false, key=lambda task: false[task])
    mean = f"{np.mean(list(false.values())):.2%} (each task once)"
    count = sum(example.success is False for example in test if example.task == worst)
    return f"{mean} | worst: {false[worst]:.1%} of the {count} of {worst} | {np.mean(true):.1%}"


def once(val: Sequence[CalibrationExample], test: Sequence[CalibrationExample], risk: float) -> str:
    threshold = fit(val, "conformal", risk).threshold
    assert threshold is not None, "too few failures in the validation split"
    judged = [example for example in test if example.success is not None]
    scores, success = [example.score for example in judged], [float(bool(example.success)) for example in judged]
    found = false_positive_rate(scores, success, threshold, clusters=[example.task for example in judged]).measure()
    kept = f"{found.value:.2%} ({found.low:.1%} to {found.high:.1%} over tasks)"
    return f"{kept} | one split | {share(test, True, threshold):.1%}"


if __name__ == "__main__":
    main()
