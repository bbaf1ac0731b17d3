"""`metaworld-bad@1` and `fetch-bad@1`: benchmarks defined by seeds, not by files.

`plan(split)` lists the episodes; `demerit simulate` reproduces them bit for bit. Ten tasks of Meta-World (with all
tasks of their scenes), three behaviours and all cameras that face the arm are held out for the test split. The Fetch
robot has a test split only: nothing that demerit ships is trained on it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from demerit.data.episode import Episode, Preference
from demerit.errors import UnknownName
from demerit.negatives.sim.arena import Setting
from demerit.negatives.sim.behaviours import BEHAVIOURS
from demerit.negatives.sim.rollout import EpisodeSpec
from demerit.negatives.sim.tasks import FETCH, Task, tasks
from demerit.negatives.sim.tasks import task as find_task

BENCHMARK, FETCH_BENCHMARK = "metaworld-bad@1", "fetch-bad@1"
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

# Tasks that share a scene are held out together.
HELD_OUT_TASKS = (
    "basketball",
    "bin-picking",
    "drawer-close",
    "drawer-open",
    "faucet-close",
    "faucet-open",
    "peg-insert-side",
    "peg-unplug-side",
    "window-close",
    "window-open",
)
HELD_OUT_BEHAVIOURS = ("missed-grasp", "overshoot", "slam")

OTHER_BEHAVIOURS = (
    *("drop", "early-stop", "hesitate", "missed-grasp", "never-closes", "noisy"),
    *("overshoot", "random", "slam", "undo", "wrong-object", "wrong-place"),
)
"""those of the benchmark besides the expert; further registered ones must not change it. Fetch has `idle` as well"""
SplitSeeds = tuple[int, int, int, Setting]
"""the first seed of a split, the number of seeds, the behaviours besides the expert at each seed, and the setting"""
PARTS: dict[Split, SplitSeeds] = {
    "train": (0, 15, 3, "varied"),
    "validation": (10_000, 2, 3, "varied"),
    "test": (20_000, 15, 4, "held-out"),
}
FETCH_TASKS = ("fetch-pick", "fetch-push", "fetch-reach", "fetch-slide")
"""those of `fetch-bad@1`; further tasks must not change it"""
FETCH_PARTS: dict[Split, SplitSeeds] = {"test": (30_000, 45, 1, "varied")}


def plan(split: str, size: int = 128, benchmark: str = BENCHMARK) -> list[EpisodeSpec]:
    """List the episodes of a split: per seed, the expert and some other behaviours in the same scene."""
    is_fetch = benchmark == FETCH_BENCHMARK
    chosen, parts = (FETCH_TASKS, FETCH_PARTS) if is_fetch else (tuple(tasks()), PARTS)
    if split not in parts:
        raise UnknownName(f"split of {benchmark}", split, parts)
    first_seed, seeds, others, setting = parts[split]
    specs = []
    for task in map(find_task, chosen):
        if not is_fetch and (task.name in HELD_OUT_TASKS) != (split == "test"):
            continue
        behaviours = _others(task, with_held_out=split == "test")
        for number in range(seeds):
            turn = [behaviours[(number * others + place) % len(behaviours)] for place in range(others)]
            specs += [
                EpisodeSpec(task.name, behaviour, first_seed + number, setting, size, split)
                for behaviour in ("expert", *turn)
            ]
    return specs


def _others(task: Task, with_held_out: bool) -> list[str]:
    return [
        name
        for name in (*OTHER_BEHAVIOURS, "idle")
        if (with_held_out or name not in HELD_OUT_BEHAVIOURS)
        and (name != "idle" or task.robot == FETCH)
        and not BEHAVIOURS.factory(name).why_not(task)  # type: ignore[attr-defined]
    ]


LONGEST_DIFFERENCE = 2
"""largest difference in frames within a matched pair"""
LARGEST_RATIO = 1.15
"""largest ratio of motion within a matched pair"""


def matched_pairs(episodes: Iterable[Episode]) -> list[Preference]:
    """Pair successes with failures of the same task, length and motion.

    Each episode is in at most one pair. In half of the pairs the success moves more, in half the failure, so motion and
    length are right half of the time. The success is `a` in every second pair.
    """
    by_task: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        by_task[episode.origin.tags["task"]].append(episode)
    pairs = [pair for task in sorted(by_task) for pair in _closest(by_task[task])]
    return [
        Preference(
            *((good, bad) if number % 2 == 0 else (bad, good)),
            verdict="a" if number % 2 == 0 else "b",
            source="simulator",
            why="done at the end, against not; matched by task, length and motion",
            by=BENCHMARK,
        )
        for number, (good, bad) in enumerate(sorted(_balance(pairs)))
    ]


_Pair = tuple[tuple[str, str], tuple[float, float]]
"""ids of a success and a failure; the log of the ratio of their motion, and how many frames the success is longer"""


def _closest(episodes: Sequence[Episode]) -> list[_Pair]:
    """Match greedily, the most similar first."""
    successes = [episode for episode in episodes if episode.outcome is not None and episode.outcome.success]
    failures = [episode for episode in episodes if episode.outcome is not None and episode.outcome.success is False]
    candidates = [_pair(success, failure) for success in successes for failure in failures]
    ids_in_use: set[str] = set()
    pairs = []
    for ids, (ratio, longer) in sorted(candidates, key=_similarity):
        is_fitting = abs(longer) <= LONGEST_DIFFERENCE and abs(ratio) <= math.log(LARGEST_RATIO)
        if is_fitting and not ids_in_use & set(ids):
            ids_in_use.update(ids)
            pairs.append((ids, (ratio, longer)))
    return pairs


def _pair(good: Episode, bad: Episode) -> _Pair:
    moves, frames = ([float(episode.origin.tags[name]) for episode in (good, bad)] for name in ("motion", "frames"))
    return (good.id, bad.id), (math.log(moves[0] / moves[1]), frames[0] - frames[1])


def _similarity(pair: _Pair) -> tuple[float, tuple[str, str]]:
    ids, (ratio, _) = pair
    return abs(ratio), ids


def _balance(pairs: Sequence[_Pair]) -> list[tuple[str, str]]:
    """Drop the least similar pairs of the larger side until both are equal, for motion, then for length."""
    kept = sorted(pairs, key=_similarity)
    for number in (0, 1):
        more = [pair for pair in kept if pair[1][number] > 0]
        less = [pair for pair in kept if pair[1][number] < 0]
        most = min(len(more), len(less))
        dropped = {*more[most:], *less[most:]}
        kept = [pair for pair in kept if pair not in dropped]
    return [ids for ids, _ in kept]
