"""Episodes of the tasks, models taught on 2 to 30 of them, with and without failures, and how good each model is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

import demerit
from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, Origin, Outcome
from demerit.data.files import write_json
from demerit.data.frames import Frames
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.ranking import spearman
from demerit.evaluate.metrics.success import auroc
from demerit.negatives.sim.behaviours import BEHAVIOURS
from demerit.negatives.sim.job import simulate
from demerit.negatives.sim.rollout import EpisodeSpec
from demerit.negatives.sim.splits import OTHER_BEHAVIOURS
from demerit.negatives.sim.tasks import task
from demerit.training.teach import TeachConfig, teach
from demerit.use.gym import find_success_threshold
from robot import FRAMES, STRIDE, TaskEnv

TASKS = ("window-close", "window-open", "drawer-close")
"""nothing that demerit ships was trained on them, and SAC can learn them in minutes with a true reward"""
SIZES = (2, 10, 30)
"""labelled episodes; teaching takes two or more"""
RISK = 0.1
"""share of failures that a threshold of success may let pass"""
CONFIG = TeachConfig(reader=False, kind="linear")
"""no torch, and a megabyte per model"""
TRUE, ENDS, EXACT, CLOCK = "true", "ends", "exact", "clock"
CONTINUOUS, FIVE, BINARY, SPARSE = "continuous", "five", "binary", "sparse"
"""kinds of reward: the environment's own, success at the end, measured progress, time; and of a taught model"""
NOT_TAUGHT = {EXACT: "nothing: the measured progress", CLOCK: "nothing: the time"}
LESSON, HELD_OUT = 700_000, 800_000
"""first seeds of the episodes to teach and to test"""


@dataclass(frozen=True)
class Lesson:
    """A number of labelled episodes of a task: successes alone, or half of them failures."""

    task: str
    episodes: int
    failures: bool
    curves: bool = False
    """labelled with progress at every frame, not with success alone"""
    shuffled: bool = False
    """the labels are dealt at random: a reward that depends on the picture and knows nothing"""

    @property
    def name(self) -> str:
        """The name of the model folder."""
        labels = "-shuffled" if self.shuffled else "-progress" if self.curves else ""
        return f"{self.task}-{self.episodes}-{'with' if self.failures else 'without'}-failures{labels}"

    @property
    def words(self) -> str:
        """What is taught, for people."""
        bad = self.episodes // 2 if self.failures else 0
        labels = ", labels shuffled" if self.shuffled else ", with progress" if self.curves else ""
        good = "1 success" if self.episodes - bad == 1 else f"{self.episodes - bad} successes"
        return good + (f", {bad} failure{'' if bad == 1 else 's'}" if bad else "") + labels

    def choose(self, pool: list[Episode]) -> list[Episode]:
        """Take the first successes, and as many failures or one less, of the pool."""
        bad = self.episodes // 2 if self.failures else 0
        wanted = {True: self.episodes - bad, False: bad}
        chosen = [one for flag, count in wanted.items() for one in [x for x in pool if is_done(x) == flag][:count]]
        assert len(chosen) == self.episodes, f"{self.name}: the pool is too small"
        done = [is_done(one) for one in chosen]
        if self.shuffled:
            np.random.default_rng(0).shuffle(done)
        flags = [
            replace(one, outcomes=(Outcome("simulator", success=flag),)) for one, flag in zip(chosen, done, strict=True)
        ]
        return chosen if self.curves else flags


def lessons(small: bool = False) -> list[Lesson]:
    """List the lessons, the most important first."""
    listed = [Lesson(name, max(SIZES), bad, curves=True) for bad in (True, False) for name in TASKS]
    listed += [Lesson(name, size, bad) for size in SIZES[::-1] for bad in (True, False) for name in TASKS]
    listed += [Lesson(name, max(SIZES), failures=True, shuffled=True) for name in TASKS]
    return [lesson for lesson in listed if lesson.episodes == 2 and lesson.task == TASKS[0]] if small else listed


def is_done(episode: Episode) -> bool:
    """Whether the task is done at the last frame."""
    return bool(episode.outcome and episode.outcome.success)


def make_episodes(folder: Path, name: str, small: bool, workers: int) -> list[Episode]:
    """Simulate the expert, as often behaviours that go wrong, and half as often a robot that explores."""
    others = [other for other in (*OTHER_BEHAVIOURS, "idle") if not BEHAVIOURS.factory(other).why_not(task(name))]  # type: ignore[attr-defined]
    each = 4 if small else 36
    specs = [
        EpisodeSpec(name, behaviour, first + number, "plain")
        for first in (LESSON, HELD_OUT)
        for number in range(each)
        for behaviour in ("expert", others[number % len(others)])
    ]
    simulate(folder, specs, workers)
    words = task(name).instructions[0]
    made = [replace(episode, instruction=words) for episode in demerit.open_dataset(str(folder))]
    env = TaskEnv(name)
    explored = [explore(env, first + number) for first in (LESSON, HELD_OUT) for number in range(each // 2)]
    env.close()
    # by turns, so that a lesson of few failures has both kinds
    return [one for pair in zip_longest(made, explored) for one in pair if one is not None]


def explore(env: TaskEnv, seed: int) -> Episode:
    """Move from place to place in all of the robot's reach, as a policy does that begins to learn."""
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    place, frames, curve = env.facts.hand, [env.render()], [0.0]
    while len(curve) <= FRAMES:
        if rng.random() < 0.15 or len(curve) == 1:
            place = rng.uniform(*env.reach)
        action = np.array([*np.clip((place - env.facts.hand) * 10, -1, 1), rng.choice([-1.0, 1.0])])
        env.step(action.astype(np.float32))
        frames.append(env.render())
        curve.append(env.progress)
    outcome = Outcome("simulator", success=env.is_done, progress=curve[-1], curve=np.array(curve, np.float32))
    origin = Origin(dataset="explored", licence="MIT", group=str(seed), tags={"seed": str(seed)})
    views = {"main": Frames.from_array(np.stack(frames))}
    return Episode(f"{env.arena.task.name}/explored/{seed}", env.words, views, outcomes=(outcome,), origin=origin)


def seed_of(episode: Episode) -> int:
    """The seed of an episode's scene."""
    return int(episode.origin.tags["seed"])


def measure_quality(values: list[Any], episodes: list[Episode]) -> dict[str, Any]:
    """Compare the values of held-out episodes with what the simulator measured."""
    curves = [one.outcome.curve for one in episodes if one.outcome is not None and one.outcome.curve is not None]
    final, done = np.array([value[-1] for value in values]), np.array([is_done(one) for one in episodes])
    return {
        "auroc": auroc(final, done.astype(float)).measure(Resampling(resamples=1)).value,
        "mae": float(np.abs(final - [curve[-1] for curve in curves]).mean()),
        "progress": spearman(np.concatenate(values), np.concatenate(curves)),
        "end_of_successes": float(final[done].mean()),
        "end_of_failures": float(final[~done].mean()),
        "held_out": len(episodes),
    }


def rate_without_model(reward: str, episode: Episode) -> Any:
    """Return the values of the true progress or of the clock."""
    assert episode.outcome is not None and episode.outcome.curve is not None
    return episode.outcome.curve if reward == EXACT else np.linspace(0, 1, len(episode.outcome.curve))


def prepare(out: Path, jobs: int, small: bool, say: Callable[[str], None]) -> None:
    """Make the episodes and the models; what is there already is kept."""
    path = out / "models" / "quality.json"
    table: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    pools: dict[str, list[Episode]] = {}
    features: dict[str, list[Any]] = {}
    for lesson in lessons(small):
        if lesson.name in table:
            continue
        if lesson.task not in pools:
            say(f"{lesson.task}: episodes")
            pools[lesson.task] = make_episodes(out / "episodes" / lesson.task, lesson.task, small, jobs)
        pool = pools[lesson.task]
        taught = lesson.choose([one for one in pool if seed_of(one) < HELD_OUT])
        held_out = [one for one in pool if seed_of(one) >= HELD_OUT]
        folder = out / "models" / lesson.name
        data = Dataset.from_episodes(taught, lesson.name)
        model = teach(data, folder, config=CONFIG, tower="none", workers=jobs, cache=out / "features").model
        for report in folder.glob("report.*"):
            report.unlink()
        if lesson.task not in features:  # the same for every model of a task
            features[lesson.task] = [model.features(one)[1] for one in held_out]
            for reward in (EXACT, CLOCK):
                rated = measure_quality([rate_without_model(reward, one) for one in held_out], held_out)
                table[f"{lesson.task}-{reward}"] = {"task": lesson.task, "taught": NOT_TAUGHT[reward], **rated}
        values = [
            model.head.progress(x, model.task(one.instruction))
            for one, x in zip(held_out, features[lesson.task], strict=True)
        ]
        facts = measure_quality(values, held_out)
        if lesson.curves and lesson.failures:
            facts["threshold"] = asdict(find_success_threshold(model, held_out, RISK, None, STRIDE))
        table[lesson.name] = {**vars(lesson), "taught": lesson.words, **facts}
        say(f"{lesson.name}: AUROC {facts['auroc']:.3f}, MAE {facts['mae']:.3f}")
        write_json(path, table)
