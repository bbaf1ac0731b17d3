"""Measure the scripted experts: duration, forces, and whether the task stays done.

python tools/measure_experts.py src/demerit/assets/sim/experts.json
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from demerit.negatives.sim.arena import Arena, StepFacts, silence_warnings
from demerit.negatives.sim.behaviours import Ending
from demerit.negatives.sim.rollout import open_arena
from demerit.negatives.sim.tasks import Task, all_tasks

SEEDS = range(100, 106)
LONGEST = 260
CHECK_EVERY = 4
LINGER = 12
"""steps that the expert continues after success"""
SWAYS = 120
"""steps of the sway ending, in a task that force spoils"""
MARGIN_SHARE, MARGIN = 1.25, 20.0
"""limits are a quarter and 20 N above the largest force of any expert"""


@dataclass(frozen=True)
class Trial:
    """An episode of an expert; `first` = step of success, None without."""

    first: int | None
    lasted: bool
    stayed: bool
    object_force: float
    scene_force: float


def measure_task(task: Task) -> dict[str, Any]:
    """Measure a task's expert over the seeds."""
    arena = open_arena(task)
    trials = [_trial(arena, seed) for seed in SEEDS]
    good = [trial for trial in trials if trial.first is not None]
    return {
        "steps": int(median(trial.first for trial in good if trial.first is not None)),
        "stays": sum(trial.stayed for trial in good) >= 0.8 * len(SEEDS),
        "settles": all(trial.lasted for trial in good),
        "object_force": round(max(trial.object_force for trial in trials) * MARGIN_SHARE + MARGIN),
        "scene_force": round(max(trial.scene_force for trial in trials) * MARGIN_SHARE + MARGIN),
    }


def _trial(arena: Arena, seed: int) -> Trial:
    facts = arena.reset(seed, np.random.default_rng(seed))
    expert = arena.expert()
    seen: list[StepFacts] = [facts]
    first: int | None = None
    action = np.zeros(4)
    with silence_warnings():
        for step in range(LONGEST):
            action = expert(facts.observation)
            facts = arena.step(action)
            seen.append(facts)
            if first is None and step % CHECK_EVERY == CHECK_EVERY - 1 and arena.succeeded(facts):
                first = step
            if first is not None and step >= first + LINGER:
                break
    if arena.task.gentle:  # what endings press counts as well
        sway = Ending("sway", 0, np.zeros(6), np.zeros((6, 3)))
        sway.start(arena.home, float(action[3]), np.zeros(3))
        for _ in range(SWAYS):
            facts = arena.step(sway.act(facts.hand))
            seen.append(facts)
    lasted = arena.succeeded(facts)
    ending = Ending("retreat", 0, np.zeros(6), np.zeros((6, 3)))
    ending.start(arena.home, float(action[3]), np.zeros(3))
    for _ in range(90):
        facts = arena.step(ending.act(facts.hand))
    forces = (max(getattr(facts, name) for facts in seen) for name in ("object_force", "scene_force"))
    return Trial(first, lasted, arena.succeeded(facts), *forces)


def main(path: Path) -> None:
    """Measure all tasks and write the file, one task per line."""
    lines = [f' "{name}": {json.dumps(measure_task(task))}' for name, task in all_tasks().items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
