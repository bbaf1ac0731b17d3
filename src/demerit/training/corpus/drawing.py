"""Which episodes of a source are taken: at most so many, spread over its tasks, the same ones every time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from demerit.data.splits import seed_of


def drawn(episodes: Iterable[tuple[str, str]], cap: int, seed: int) -> set[str]:
    """Choose at most `cap` of (id, task): the first of every task by lot, then the second of every task, and so on.

    No task that has episodes left over is more than one behind another. With 0 all are taken.
    """
    by_task: dict[str, list[str]] = defaultdict(list)
    for id, task in episodes:
        by_task[task].append(id)
    ranked: list[tuple[int, int, str]] = []
    for task, ids in by_task.items():
        turn = seed_of(seed, "turn", task)
        lots = sorted(ids, key=lambda id: (seed_of(seed, "drawn", id), id))
        ranked += [(rank, turn, id) for rank, id in enumerate(lots)]
    ranked.sort()
    return {id for _, _, id in (ranked[:cap] if cap else ranked)}
