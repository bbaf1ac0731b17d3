"""Splits: whatever shares a task, words, a video or a recording goes together; shares as near as that allows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from demerit.data.episode import Episode
from demerit.data.splits import Bundles, ties
from demerit.negatives.mix import seed_of
from demerit.training.corpus.recipe import Splits


@dataclass
class SplitPlan:
    """A split for every episode."""

    of: dict[str, str] = field(default_factory=dict)
    """id to split"""
    tasks: Counter[str] = field(default_factory=Counter)
    """how many tasks each split has"""
    inseparable: int = 0
    """how many bundles there were to deal: each is tasks that share a video, a recording or words"""


def plan_splits(episodes: Iterable[Episode], splits: Splits, seed: int) -> SplitPlan:
    """Choose a split for every episode; `source` leaves what the datasets say."""
    plan, bundles = SplitPlan(), Bundles()
    task_names: dict[str, str] = {}
    source_of: dict[str, str] = {}
    for episode in episodes:
        first, *others = ties(episode)
        for other in others:
            bundles.join(first, other)
        task_names[episode.id], source_of[episode.id] = first, episode.origin.dataset
        plan.of[episode.id] = episode.origin.split
    members: dict[str, list[str]] = defaultdict(list)
    for id, task in task_names.items():
        members[bundles.first(task)].append(id)
    plan.inseparable = len(members)
    if splits.by == "task":
        homes: dict[str, dict[str, int]] = defaultdict(dict)
        for bundle, ids in members.items():
            homes[min(source_of[id] for id in ids)][bundle] = len(ids)
        for sizes in homes.values():
            for bundle, split in dealt(sizes, splits.shares, seed).items():
                plan.of |= dict.fromkeys(members[bundle], split)
    seen = {(plan.of[id], task) for id, task in task_names.items()}
    plan.tasks.update(split for split, _ in seen)
    return plan


def dealt(sizes: Mapping[str, int], shares: Mapping[str, float], seed: int) -> dict[str, str]:
    """Deal bundles out in an order by lot, each to the split that is furthest behind its share of what was dealt.

    With s the size of the bundle, d what was dealt before and g what a split got, it goes where share * (d + s) - g is
    largest: a bundle of most of the episodes goes to the largest split, and the others come out near their shares.
    """
    total = sum(shares.values())
    got = dict.fromkeys(shares, 0)
    result: dict[str, str] = {}
    before = 0
    for bundle in sorted(sizes, key=lambda name: (seed_of(seed, "split", name), name)):
        before += sizes[bundle]
        split = max(shares, key=lambda name: shares[name] / total * before - got[name])
        got[split] += sizes[bundle]
        result[bundle] = split
    return result
