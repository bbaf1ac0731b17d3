"""`metaworld-bad@1`: a benchmark defined by seeds, not by files.

`plan(split)` lists its episodes; `demerit simulate` makes them again, bit for bit. Ten tasks, whole scenes with all
their tasks, three behaviours and all cameras that face the arm are kept for the test.
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
from demerit.negatives.sim.tasks import Task, tasks
from demerit.registry import load_attribute

BENCHMARK = "metaworld-bad@1"
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

# Twins share a scene and differ in direction only: to hold out one of them is to hold out both.
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

# The benchmark must not change when somebody registers a behaviour: these are its own, by class.
BEHAVIOUR_CLASSES = {
    "drop": "demerit.negatives.sim.behaviours:Drop",
    "early-stop": "demerit.negatives.sim.behaviours:EarlyStop",
    "hesitate": "demerit.negatives.sim.behaviours:Hesitate",
    "missed-grasp": "demerit.negatives.sim.behaviours:MissedGrasp",
    "never-closes": "demerit.negatives.sim.behaviours:NeverCloses",
    "noisy": "demerit.negatives.sim.behaviours:Noisy",
    "overshoot": "demerit.negatives.sim.behaviours:Overshoot",
    "random": "demerit.negatives.sim.behaviours:Random",
    "slam": "demerit.negatives.sim.behaviours:Slam",
    "undo": "demerit.negatives.sim.behaviours:Undo",
    "wrong-object": "demerit.negatives.sim.behaviours:WrongObject",
    "wrong-place": "demerit.negatives.sim.behaviours:WrongPlace",
}


@dataclass(frozen=True)
class Part:
    """One split: which seeds, how many other behaviours beside the expert at each, seen from where."""

    first_seed: int
    seeds: int
    others: int
    setting: Setting


PARTS: dict[Split, Part] = {
    "train": Part(0, 15, 3, "varied"),
    "validation": Part(10_000, 2, 3, "varied"),
    "test": Part(20_000, 15, 4, "held-out"),
}


def plan(split: str, size: int = 128) -> list[EpisodeSpec]:
    """List the episodes of a split: at each seed the expert, and other behaviours in turn, in the same scene."""
    if split not in PARTS:
        raise UnknownName(f"split of {BENCHMARK}", split, SPLITS)
    part = PARTS[split]
    listed = []
    for task in tasks().values():
        if (task.name in HELD_OUT_TASKS) != (split == "test"):
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
        for name, address in BEHAVIOUR_CLASSES.items()
        if (with_held_out or name not in HELD_OUT_BEHAVIOURS) and not load_attribute(address, name).why_not(task)  # type: ignore[attr-defined]
    ]


LONGEST_DIFFERENCE = 2
"""frames by which the two episodes of a matched pair may differ"""
LARGEST_RATIO = 1.15
"""how many times as much one of them may move as the other"""


def matched_pairs(episodes: Iterable[Episode]) -> list[Preference]:
    """Pair successes with failures of the same task that are as long and move as much.

    Each episode is in one pair at most, and in half of the pairs the success moves more, in half the failure does: who
    prefers the one that moves more, or the longer one, is right half of the time. Every second pair has the success
    first, by name, so that the order tells nothing either.
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
        for number, (good, bad) in enumerate(sorted(_balanced(pairs)))
    ]


@dataclass(frozen=True)
class _Pair:
    good: str
    bad: str
    ratio: float
    """log of how many times as much the success moves"""
    longer: int
    """frames by which the success is longer"""


def _closest(episodes: Sequence[Episode]) -> list[_Pair]:
    """Match greedily, the most alike first."""
    good = [episode for episode in episodes if episode.outcome is not None and episode.outcome.success]
    bad = [episode for episode in episodes if episode.outcome is not None and episode.outcome.success is False]
    candidates = [_pair(one, other) for one in good for other in bad]
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
    moves, frames = ([float(one.origin.tags[name]) for one in (good, bad)] for name in ("motion", "frames"))
    return _Pair(good.id, bad.id, math.log(moves[0] / moves[1]), int(frames[0] - frames[1]))


def _balanced(pairs: Sequence[_Pair]) -> list[tuple[str, str]]:
    """Drop the least alike of the more frequent side until both sides are equally many, for motion, then for length."""
    kept = sorted(pairs, key=lambda pair: (abs(pair.ratio), pair.good))
    for side in ("ratio", "longer"):
        more = [pair for pair in kept if getattr(pair, side) > 0]
        less = [pair for pair in kept if getattr(pair, side) < 0]
        most = min(len(more), len(less))
        dropped = {*more[most:], *less[most:]}
        kept = [pair for pair in kept if pair not in dropped]
    return [(pair.good, pair.bad) for pair in kept]
