"""`metaworld-bad@1` and `fetch-bad@1`: benchmarks defined by seeds, not by files.

`plan(split)` lists the episodes; `demerit simulate` reproduces them bit for bit. Ten tasks of Meta-World (with all
tasks of their scenes), three behaviours and all cameras that face the arm are held out for the test split. The Fetch
robot has a test split only: nothing that demerit ships is trained on it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from demerit.data.episode import Episode
from demerit.data.labels import Preference
from demerit.errors import UnknownName
from demerit.negatives.sim.arena import Setting
from demerit.negatives.sim.rollout import EpisodeSpec
from demerit.negatives.sim.tasks import FETCH, SAWYER, Task, tasks
from demerit.registry import load_attribute

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

# Registered behaviours must not change the benchmark: these are its own, by class.
BEHAVIOUR_CLASSES = {
    "drop": "demerit.negatives.sim.behaviours:Drop",
    "early-stop": "demerit.negatives.sim.behaviours:EarlyStop",
    "hesitate": "demerit.negatives.sim.behaviours:Hesitate",
    "missed-grasp": "demerit.negatives.sim.behaviours:MissedGrasp",
    "never-closes": "demerit.negatives.sim.behaviours:NeverCloses",
    "noisy": "demerit.negatives.sim.behaviours:Noisy",
    "overshoot": "demerit.negatives.sim.behaviours:Overshoot",
    "random": "demerit.negatives.sim.behaviours:RandomMotion",
    "slam": "demerit.negatives.sim.behaviours:Slam",
    "undo": "demerit.negatives.sim.behaviours:Undo",
    "wrong-object": "demerit.negatives.sim.behaviours:WrongObject",
    "wrong-place": "demerit.negatives.sim.behaviours:WrongPlace",
}
FETCH_CLASSES = {**BEHAVIOUR_CLASSES, "idle": "demerit.negatives.sim.behaviours:Idle"}


@dataclass(frozen=True)
class SplitSeeds:
    """The seeds of a split, the number of behaviours besides the expert at each seed, and the setting."""

    first_seed: int
    seeds: int
    others: int
    setting: Setting


PARTS: dict[Split, SplitSeeds] = {
    "train": SplitSeeds(0, 15, 3, "varied"),
    "validation": SplitSeeds(10_000, 2, 3, "varied"),
    "test": SplitSeeds(20_000, 15, 4, "held-out"),
}
FETCH_PARTS: dict[Split, SplitSeeds] = {"test": SplitSeeds(30_000, 45, 1, "varied")}


def plan(split: str, size: int = 128, benchmark: str = BENCHMARK) -> list[EpisodeSpec]:
    """List the episodes of a split: per seed, the expert and some other behaviours in the same scene."""
    robot, parts = (FETCH, FETCH_PARTS) if benchmark == FETCH_BENCHMARK else (SAWYER, PARTS)
    if split not in parts:
        raise UnknownName(f"split of {benchmark}", split, parts)
    part = parts[split]
    listed = []
    for task in tasks(robot).values():
        if robot == SAWYER and (task.name in HELD_OUT_TASKS) != (split == "test"):
            continue
        others = _others(task, with_held_out=split == "test")
        for number in range(part.seeds):
            turn = [others[(number * part.others + place) % len(others)] for place in range(part.others)]
            listed += [
                EpisodeSpec(task.name, behaviour, part.first_seed + number, part.setting, size, split)
                for behaviour in ("expert", *turn)
            ]
    return listed


def _others(task: Task, with_held_out: bool) -> list[str]:
    return [
        name
        for name, address in (FETCH_CLASSES if task.robot == FETCH else BEHAVIOUR_CLASSES).items()
        if (with_held_out or name not in HELD_OUT_BEHAVIOURS) and not load_attribute(address, name).why_not(task)  # type: ignore[attr-defined]
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


@dataclass(frozen=True)
class _Pair:
    good: str
    bad: str
    ratio: float
    """log of motion of the success / motion of the failure"""
    longer: int
    """frames of the success - frames of the failure"""


def _closest(episodes: Sequence[Episode]) -> list[_Pair]:
    """Match greedily, the most similar first."""
    good = [episode for episode in episodes if episode.outcome is not None and episode.outcome.success]
    bad = [episode for episode in episodes if episode.outcome is not None and episode.outcome.success is False]
    candidates = [_pair(success, failure) for success in good for failure in bad]
    fitting = [
        pair
        for pair in candidates
        if abs(pair.longer) <= LONGEST_DIFFERENCE and abs(pair.ratio) <= math.log(LARGEST_RATIO)
    ]
    used: set[str] = set()
    chosen = []
    for pair in sorted(fitting, key=lambda pair: (abs(pair.ratio), pair.good, pair.bad)):
        if not used & {pair.good, pair.bad}:
            used |= {pair.good, pair.bad}
            chosen.append(pair)
    return chosen


def _pair(good: Episode, bad: Episode) -> _Pair:
    moves, frames = ([float(episode.origin.tags[name]) for episode in (good, bad)] for name in ("motion", "frames"))
    return _Pair(good.id, bad.id, math.log(moves[0] / moves[1]), int(frames[0] - frames[1]))


def _balance(pairs: Sequence[_Pair]) -> list[tuple[str, str]]:
    """Drop the least similar pairs of the larger side until both are equal, for motion, then for length."""
    kept = sorted(pairs, key=lambda pair: (abs(pair.ratio), pair.good))
    for side in ("ratio", "longer"):
        more = [pair for pair in kept if getattr(pair, side) > 0]
        less = [pair for pair in kept if getattr(pair, side) < 0]
        most = min(len(more), len(less))
        dropped = {*more[most:], *less[most:]}
        kept = [pair for pair in kept if pair not in dropped]
    return [(pair.good, pair.bad) for pair in kept]
