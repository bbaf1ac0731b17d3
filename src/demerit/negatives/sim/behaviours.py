"""Ways to act: the scripted expert, and the expert made nervous, lazy, hesitant, violent or replaced by chance.

A behaviour is a class made from a `Stage`: it answers each moment with an action. It says only what the arm tries; what
came of it is measured. More of them in `beliefs.py` (an expert that is wrong about the world) and `afterwards.py` (an
expert that does not stop when it is done). Third parties add theirs under the entry point group `demerit.behaviours`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demerit.negatives.sim.arena import Facts
from demerit.negatives.sim.tasks import Task
from demerit.registry import Registry

Floats = npt.NDArray[np.float64]

BEHAVIOURS = Registry(
    "behaviour",
    {
        "expert": "negatives.sim.behaviours:Expert",
        "noisy": "negatives.sim.behaviours:Noisy",
        "early-stop": "negatives.sim.behaviours:EarlyStop",
        "hesitate": "negatives.sim.behaviours:Hesitate",
        "slam": "negatives.sim.behaviours:Slam",
        "random": "negatives.sim.behaviours:Random",
        "missed-grasp": "negatives.sim.beliefs:MissedGrasp",
        "drop": "negatives.sim.beliefs:Drop",
        "never-closes": "negatives.sim.beliefs:NeverCloses",
        "wrong-place": "negatives.sim.beliefs:WrongPlace",
        "wrong-object": "negatives.sim.beliefs:WrongObject",
        "overshoot": "negatives.sim.afterwards:Overshoot",
        "undo": "negatives.sim.afterwards:Undo",
    },
)


@dataclass(frozen=True, eq=False)
class Stage:
    """What a behaviour is given at the start of an episode."""

    task: Task
    expert: Callable[[Floats], Floats]
    """observation (39 numbers) to action: three moves and the gripper, -1 to 1"""
    rng: np.random.Generator
    first: Facts


@dataclass(frozen=True, eq=False)
class Moment:
    """What a behaviour sees at a step."""

    step: int
    facts: Facts
    progress: float
    success: bool


class Expert:
    """Do the task as the script does. The other behaviours are this one, changed."""

    ends_on_success = True
    """whether the ending may begin when the task is done"""

    def __init__(self, stage: Stage) -> None:
        """Take the stage."""
        self.stage, self.rng, self.expert = stage, stage.rng, stage.expert
        self.over = False
        """whether the script has nothing more to do"""
        self.waits = False
        """whether standing still right now is part of the script"""

    @classmethod
    def why_not(cls, task: Task) -> str:
        """Say why this behaviour makes no sense for a task; empty when it does."""
        return ""

    def act(self, now: Moment) -> Floats:
        """Return an action: three moves and the gripper, -1 to 1."""
        return self.expert(now.facts.observation)


class Noisy(Expert):
    """The expert with an unsteady hand: smooth noise, from a tremble to a stagger."""

    def __init__(self, stage: Stage) -> None:
        """Draw how unsteady."""
        super().__init__(stage)
        self.scale = float(self.rng.uniform(0.15, 0.7))
        self.noise = np.zeros(3)

    def act(self, now: Moment) -> Floats:
        """Add noise that lasts some steps: white noise would average out."""
        self.noise = 0.85 * self.noise + 0.5 * self.rng.normal(size=3)
        action = super().act(now)
        return np.array([*np.clip(action[:3] + self.scale * self.noise, -1, 1), action[3]])


class EarlyStop(Expert):
    """Do the first part and stop."""

    def __init__(self, stage: Stage) -> None:
        """Draw how far it goes."""
        super().__init__(stage)
        self.until = float(self.rng.uniform(0.1, 0.6))

    def act(self, now: Moment) -> Floats:
        """Give up for good when that far."""
        self.over = self.over or now.progress >= self.until
        return super().act(now)


class Hesitate(Expert):
    """Stop to think on the way, once or several times, then go on."""

    def __init__(self, stage: Stage) -> None:
        """Draw where and for how long."""
        super().__init__(stage)
        self.where = sorted(self.rng.uniform(0.05, 0.7, size=int(self.rng.choice([1, 1, 2]))).tolist())
        long = stage.task.long_pause
        self.pauses = self.rng.integers(long + 4, long + long // 2 + 5, size=len(self.where)).tolist()
        self.left = 0

    def act(self, now: Moment) -> Floats:
        """Stand still while thinking."""
        if self.left == 0 and self.where and now.progress >= self.where[0]:
            self.where.pop(0)
            self.left = int(self.pauses.pop(0))
        self.waits = self.left > 0
        if self.waits:
            self.left -= 1
            return np.array([0, 0, 0, super().act(now)[3]])
        return super().act(now)


class Slam(Expert):
    """Drive the hand down or aside at full speed, into whatever is there; then go on, or not."""

    def __init__(self, stage: Stage) -> None:
        """Draw when, where to, for how long, and whether it goes on."""
        super().__init__(stage)
        self.when = float(self.rng.uniform(0.1, 0.6))
        aside = self.rng.uniform(-1, 1, size=2)
        self.push = np.array([*aside, -1.0])
        self.left = int(self.rng.integers(20, 40))
        self.goes_on = bool(self.rng.random() < 0.5)  # noqa: PLR2004

    def act(self, now: Moment) -> Floats:
        """Push when the moment has come."""
        if now.progress < self.when or self.left == 0:
            return super().act(now)
        self.when = 0.0
        self.left -= 1
        self.over = self.left == 0 and not self.goes_on
        return np.array([*self.push, 1.0])


class Random(Expert):
    """Go from one place above the table to another, opening and closing the gripper, with no aim."""

    def __init__(self, stage: Stage) -> None:
        """Start with a place to go to."""
        super().__init__(stage)
        self.gripper = -1.0
        self._choose()

    def act(self, now: Moment) -> Floats:
        """Go there; then choose another place."""
        away = self.place - now.facts.hand
        self.left -= 1
        if np.linalg.norm(away) < 0.03 or self.left == 0:  # noqa: PLR2004
            self._choose()
        return np.array([*np.clip(away * 10, -self.speed, self.speed), self.gripper])

    def _choose(self) -> None:
        self.place = self.rng.uniform([-0.25, 0.45, 0.05], [0.25, 0.8, 0.3])
        self.speed = float(self.rng.uniform(0.4, 1.0))
        self.left = int(self.rng.integers(20, 60))
        self.gripper = float(self.rng.choice([-1.0, 1.0]))
