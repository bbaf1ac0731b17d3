"""Does a success threshold keep its promise in a running episode? Taught, calibrated and tested on different seeds.

    python benchmarks/success_threshold.py DATASET [--risk 0.05] [--models 3] [--cache DIR]
    python benchmarks/success_threshold.py --small        (drawn episodes, in seconds)

DATASET holds simulated episodes (`demerit simulate`). A fifth of its seeds teaches a model; every second seed of the
others calibrates `find_success_threshold`, the rest is tested; then another fifth teaches. An episode ends as a success
at the first frame that reaches the threshold, as in `RewardEnv`.

    false success    share of the failures that end as a success, with the 95% interval of a share (Wilson)
    found            share of the successes that end as a success
    early            share of those found that end before the simulator calls the task done for the first time
    delay            median frames between that moment and the end, of the others

A failure that was done for a moment is no failure here (see `find_success_threshold`). The lower table deals the
calibrating and tested seeds in 500 other ways.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from demerit.data.dataset import Dataset, ListReader
from demerit.data.episode import Episode, Outcome
from demerit.data.formats import open_dataset
from demerit.decide.interval import Share
from demerit.decide.threshold import conformal_threshold, highest_kept
from demerit.models.taught.model import TaughtModel
from demerit.training.teach import TeachConfig, teach
from demerit.training.teach.features import (
    EmbeddedEpisode,
    FeatureSpec,
    UnreadableEpisode,
    extract_features,
)
from fakes.drawn_sample import make_sample

HAND_SET = 0.65
PARTS = 5
SPLITS = 500


@dataclass(frozen=True, eq=False)
class Followed:
    """An episode and the live numbers of a model for its frames."""

    task: str
    seed: int
    success: bool
    value: np.ndarray
    probability: np.ndarray
    done: int | None
    """first frame at which the task is done"""

    def ends(self, threshold: float, rule: Rule) -> int | None:
        kept = sliding_window_view(getattr(self, rule.by) >= threshold, rule.in_a_row).all(axis=1)
        return int(np.argmax(kept)) + rule.in_a_row - 1 if kept.any() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?")
    parser.add_argument("--risk", type=float, default=0.05)
    parser.add_argument(
        "--models", type=int, default=3, help="parts of the seeds that teach a model, one after the other"
    )
    parser.add_argument("--cache", type=Path, help="folder of the features (default: a temporary folder)")
    parser.add_argument("--small", action="store_true", help="drawn episodes, a risk of 0.4")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = given.cache or Path(temporary)
        if given.small:
            given.dataset, given.risk = str(make_sample(Path(temporary) / "drawn")), 0.4
        elif not given.dataset:
            parser.error("DATASET or --small")
        episodes = [one for one in open_dataset(given.dataset) if one.outcome and one.outcome.success is not None]
        folds = [follow_fold(episodes, fold, work) for fold in range(given.models)]
    report(folds, given.risk)


def seed_of(episode: Episode) -> int:
    """The simulator's seed; the place in the data where there is none."""
    return int(episode.origin.tags.get("seed", sum(episode.id.encode())))


def follow_fold(episodes: list[Episode], fold: int, work: Path) -> list[Followed]:
    """Teach a model on one part of the seeds; return its numbers for all other episodes, frame by frame.

    They are computed as `score` does, from cached features; live they are the same up to rounding (`demerit check`).
    """
    part = {seed: place % PARTS for place, seed in enumerate(sorted({seed_of(one) for one in episodes}))}
    config = TeachConfig(reader=False)
    lesson = Dataset(ListReader("lesson", [one for one in episodes if part[seed_of(one)] == fold]), "")
    model = teach(lesson, workers=0, use_test_split=True, config=config, cache=work).model
    assert model.config.stride == 1, "live, it follows every frame"
    spec = FeatureSpec(model.network, model.config.cameras, 1, config)
    rest = [one for one in episodes if part[seed_of(one)] != fold]
    return [follow(model, spec, one) for one in extract_features(rest, spec, work, workers=0)]


def follow(model: TaughtModel, spec: FeatureSpec, embedded: EmbeddedEpisode | UnreadableEpisode) -> Followed:
    assert isinstance(embedded, EmbeddedEpisode), embedded
    outputs = model.head.outputs(spec.features(embedded), model.task(embedded.instruction), None)
    return describe(embedded.episode, model.head.value(outputs), model.head.success(outputs))


def describe(episode: Episode, value: np.ndarray, probability: np.ndarray) -> Followed:
    outcome = episode.outcome
    assert isinstance(outcome, Outcome)
    done = None
    if outcome.curve is not None and (outcome.curve >= 1).any():
        done = int(np.flatnonzero(outcome.curve >= 1)[0])
    task = episode.origin.tags.get("task", "all")
    return Followed(task, seed_of(episode), bool(outcome.success), value, probability, done)


def highest(one: Followed, by: str, in_a_row: int) -> float:

    return highest_kept(getattr(one, by), in_a_row)


def is_failure(one: Followed) -> bool:
    return not one.success and one.done is None


@dataclass(frozen=True)
class Rule:
    """When an episode ends as a success."""

    name: str
    by: str
    confidence: float | None = None
    in_a_row: int = 1
    fixed: float | None = None

    def threshold(self, pool: list[Followed], risk: float) -> float:
        if self.fixed is not None:
            return self.fixed
        tops = [highest(one, self.by, self.in_a_row) for one in pool if is_failure(one)]
        return conformal_threshold(tops, risk, self.confidence).at


RULES = [
    Rule(f"value from {HAND_SET}, set by hand", "value", fixed=HAND_SET),
    Rule(f"probability from {HAND_SET}, set by hand", "probability", fixed=HAND_SET),
    Rule("guaranteed on average", "probability"),
    Rule("guaranteed on average, 2 frames in a row", "probability", in_a_row=2),
    Rule("guaranteed with 90% confidence", "probability", 0.9),
    Rule("guaranteed with 90% confidence, 2 frames in a row (the default)", "probability", 0.9, 2),
    Rule("guaranteed with 90% confidence, 3 frames in a row", "probability", 0.9, 3),
]


def report(folds: list[list[Followed]], risk: float) -> None:
    print(f"promised: at most {risk:.1%} of failures end as a success\n")
    print("| rule | thresholds | false success | found | early | delay |\n|---|---|---|---|---|---|")
    for rule in RULES:
        thresholds, ends = [], []
        for fold in folds:
            seeds = sorted({one.seed for one in fold})
            inside, outside = deal(fold, set(seeds[::2]))
            thresholds.append(rule.threshold(inside, risk))
            ends += [(one, one.ends(thresholds[-1], rule)) for one in outside]
        print(f"| {rule.name} | {', '.join(f'{number:.3f}' for number in thresholds)} | {summary(ends)} |")
    print(f"\n{SPLITS} other ways to deal the seeds:\n")
    print("| rule | mean false success | ways above the promise | worst task | mean found | early |")
    print("|---|---|---|---|---|---|")
    for rule in RULES:
        dealt = [(outside, rule.threshold(inside, risk)) for inside, outside in splits(folds)]
        ends = [[(one, one.ends(threshold, rule)) for one in outside] for outside, threshold in dealt]
        print(f"| {rule.name} | {many(ends, risk)} |")


def many(ways: list[list[tuple[Followed, int | None]]], risk: float) -> str:
    false = [np.mean([end is not None for one, end in way if is_failure(one)]) for way in ways]
    found = [np.mean([end is not None for one, end in way if one.success] or [np.nan]) for way in ways]
    rows = [row for way in ways for row in way]
    by_task = {
        task: np.mean([end is not None for one, end in rows if is_failure(one) and one.task == task])
        for task in sorted({one.task for one, _ in rows if is_failure(one)})
    }
    worst = max(by_task, key=lambda task: by_task[task])
    early = [end < one.done for one, end in rows if one.success and end is not None and one.done is not None]
    shares = f"{np.mean(false):.1%} | {np.mean(np.array(false) > risk):.0%} | {by_task[worst]:.1%} ({worst})"
    return f"{shares} | {np.nanmean(found):.0%} | {np.mean(early):.0%}" if early else f"{shares} | - | -"


def summary(ends: list[tuple[Followed, int | None]]) -> str:
    failures = [end is not None for one, end in ends if is_failure(one)]
    found = [(one, end) for one, end in ends if one.success and end is not None]
    early = [end < one.done for one, end in found if one.done is not None]
    late = [end - one.done for one, end in found if one.done is not None and end >= one.done]
    rate = Share.count(sum(failures), len(failures))
    share = f"{rate.value:.1%} of {rate.n} ({rate.low:.1%} to {rate.high:.1%})"
    count = sum(one.success for one, _ in ends)
    told = f"{np.mean(early):.0%} | {np.median(late):.0f}" if early and late else "- | -"
    return f"{share} | {len(found) / count:.0%} of {count} | {told}"


def deal(fold: list[Followed], seeds: set[int]) -> tuple[list[Followed], list[Followed]]:
    return [one for one in fold if one.seed in seeds], [one for one in fold if one.seed not in seeds]


def splits(folds: list[list[Followed]]) -> Iterator[tuple[list[Followed], list[Followed]]]:
    rng = np.random.default_rng(0)
    for way in range(SPLITS):
        fold = folds[way % len(folds)]
        seeds = rng.permutation(sorted({one.seed for one in fold}))
        yield deal(fold, set(seeds[: len(seeds) // 2].tolist()))


if __name__ == "__main__":
    main()
