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
        "missed-grasp": "negatives.sim.behaviours:MissedGrasp",
        "drop": "negatives.sim.behaviours:Drop",
        "never-closes": "negatives.sim.behaviours:NeverCloses",
        "wrong-place": "negatives.sim.behaviours:WrongPlace",
        "wrong-object": "negatives.sim.behaviours:WrongObject",
        "overshoot": "negatives.sim.behaviours:Overshoot",
        "undo": "negatives.sim.behaviours:Undo",
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


OPEN, CLOSED = 1.0, 0.5
"""the gripper's openness as experts read it: wide open, and around an object"""
CLOSED_BY_NOW = 6
"""steps of closing after which an expert thinks that it has the object"""
AT_HAND = 0.075
"""a hand this near (m) to where it thinks the object is can close on it"""
READ_THE_GOAL = frozenset(
    "pick-place push push-wall pick-place-wall push-back coffee-push hand-insert pick-out-of-hole reach reach-wall "
    "peg-insert-side".split()
)
"""tasks whose expert looks where the goal is: shown another goal, it goes there"""


def believing(
    observation: Floats, thing: Floats | None = None, goal: Floats | None = None, openness: float | None = None
) -> Floats:
    """Change what an expert sees: where the object is, where the goal is, how open the gripper is."""
    seen = observation.copy()
    if thing is not None:
        seen[4:7] = thing
    if goal is not None:
        seen[-3:] = goal
    if openness is not None:
        seen[3] = openness
    return seen


class _EmptyHanded(Expert):
    """An expert that goes on as if it held the object."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.grip: Floats | None = None
        """where in the hand it thinks the object is, once it thinks so"""

    def carry_on(self, now: Moment, thing: Floats) -> Floats:
        """Act on a belief about where the object is, and on the belief to hold it once the gripper is closed."""
        hand = now.facts.hand
        if self.grip is not None:
            seen = believing(now.facts.observation, hand + self.grip, openness=CLOSED)
            return self.expert(seen)
        return self.expert(believing(now.facts.observation, thing))


class MissedGrasp(_EmptyHanded):
    """Reach beside the object, close, and carry nothing to the goal."""

    def __init__(self, stage: Stage) -> None:
        """Draw how far beside."""
        super().__init__(stage)
        angle = self.rng.uniform(0, 2 * np.pi)
        self.beside = self.rng.uniform(0.05, 0.09) * np.array([np.cos(angle), np.sin(angle), 0.0])
        self.closing = 0

    def act(self, now: Moment) -> Floats:
        """Think that the object is beside where it is."""
        thing = now.facts.object + self.beside
        action = self.carry_on(now, thing)
        near = float(np.linalg.norm(now.facts.hand - thing)) < AT_HAND
        self.closing = self.closing + 1 if near and action[3] > 0 else 0
        if self.stage.task.grasps and self.grip is None and self.closing > CLOSED_BY_NOW:
            self.grip = thing - now.facts.hand
        return action


class Drop(_EmptyHanded):
    """Take the object, lose it on the way, and go on without it."""

    def __init__(self, stage: Stage) -> None:
        """Draw how far it gets."""
        super().__init__(stage)
        self.until = float(self.rng.uniform(0.35, 0.65))

    @classmethod
    def why_not(cls, task: Task) -> str:
        """Only what is held can be dropped."""
        return "" if task.grasps else f"nothing is held in {task.name}"

    def act(self, now: Moment) -> Floats:
        """Open the gripper for good when that far."""
        if self.grip is None and now.facts.held and now.progress >= self.until:
            self.grip = now.facts.object - now.facts.hand
        action = self.carry_on(now, now.facts.object)
        return action if self.grip is None else np.array([*action[:3], -1.0])


class NeverCloses(_EmptyHanded):
    """Do everything with an open gripper."""

    def __init__(self, stage: Stage) -> None:
        """Start with an open hand."""
        super().__init__(stage)
        self.closing = 0

    @classmethod
    def why_not(cls, task: Task) -> str:
        """Where the gripper plays no part, leaving it open is no mistake."""
        return "" if task.grasps else f"the gripper plays no part in {task.name}"

    def act(self, now: Moment) -> Floats:
        """Leave the gripper open and think that it closed."""
        action = self.carry_on(now, now.facts.object)
        self.closing = self.closing + 1 if action[3] > 0 else 0
        if self.grip is None and self.closing > CLOSED_BY_NOW:
            self.grip = now.facts.object - now.facts.hand
        return np.array([*action[:3], -1.0])


class WrongPlace(Expert):
    """Bring the object near the goal, not to it."""

    def __init__(self, stage: Stage) -> None:
        """Draw where instead: beside the goal where the expert looks for it, else short of it."""
        super().__init__(stage)
        angle = self.rng.uniform(0, 2 * np.pi)
        away = stage.task.within + self.rng.uniform(0.03, 0.10)
        self.goal = stage.first.observation[-3:] + away * np.array([np.cos(angle), np.sin(angle), 0.0])
        self.until = float(self.rng.uniform(0.45, 0.8))
        self.releasing = 0
        self.reads = stage.task.name in READ_THE_GOAL

    def act(self, now: Moment) -> Floats:
        """Go to the other place, or as far as it goes, and let go there."""
        if self.releasing or (self._is_there(now) if self.reads else now.progress >= self.until):
            self.releasing += 1
            self.over = self.releasing > 12  # noqa: PLR2004
            return np.array([0, 0, 0, -1.0])
        return self.expert(believing(now.facts.observation, goal=self.goal)) if self.reads else super().act(now)

    def _is_there(self, now: Moment) -> bool:
        thing = now.facts.object if self.stage.task.loose else now.facts.hand
        return float(np.linalg.norm(thing - self.goal)) < 0.6 * self.stage.task.within


class WrongObject(Expert):
    """Do the task with the other object."""

    @classmethod
    def why_not(cls, task: Task) -> str:
        """There must be another object."""
        return "" if task.spare else f"there is no second object in {task.name}"

    def act(self, now: Moment) -> Floats:
        """Take the other object for the right one."""
        return self.expert(believing(now.facts.observation, now.facts.spare))


NEARLY = 0.9


class Overshoot(Expert):
    """Do not stop at the goal: go on in the direction of travel."""

    ends_on_success = False

    def __init__(self, stage: Stage) -> None:
        """Draw how far."""
        super().__init__(stage)
        self.left = int(self.rng.integers(12, 30))
        self.velocity = np.zeros(3)
        self.before: Floats | None = None
        self.past = False

    def act(self, now: Moment) -> Floats:
        """Follow the expert, then the direction it had."""
        hand = now.facts.hand
        if self.before is not None and not self.past:
            self.velocity = 0.9 * self.velocity + 0.1 * (hand - self.before)
        self.before = hand
        self.past = self.past or now.success or now.progress >= NEARLY
        action = super().act(now)
        if not self.past:
            return action
        self.left -= 1
        self.over = self.left <= 0
        direction = self.velocity / (np.linalg.norm(self.velocity) + 1e-9)
        return np.array([*np.clip(direction * 1.2, -1, 1), action[3]])


class Undo(Expert):
    """Do the task, then take it back the way it came."""

    ends_on_success = False

    def __init__(self, stage: Stage) -> None:
        """Draw how long it stays done, and how far back it goes."""
        super().__init__(stage)
        self.path: list[Floats] = []
        self.rest = int(self.rng.integers(6, 20))
        self.back = float(self.rng.uniform(0.5, 0.9))
        self.done_for = 0
        self.target = 0

    def act(self, now: Moment) -> Floats:
        """Do it; wait; go back along the path, gripper closed."""
        if self.done_for == 0 and not now.success:
            self.path.append(now.facts.hand)
            return super().act(now)
        self.done_for += 1
        if self.done_for < self.rest:
            self.waits = True
            return super().act(now)
        self.waits = False
        if self.done_for == self.rest:
            self.target = len(self.path) - 1
        end = int(len(self.path) * (1 - self.back))
        if self.target <= end:
            self.over = True
            return np.array([0, 0, 0, 1.0 if self.stage.task.grasps else -1.0])
        # skip ahead on the path so that the hand moves at a working speed
        while self.target > end and np.linalg.norm(self.path[self.target] - now.facts.hand) < 0.02:  # noqa: PLR2004
            self.target -= 1
        move = (self.path[self.target] - now.facts.hand) / METRES_PER_ACTION
        return np.array([*np.clip(move, -0.9, 0.9), 1.0])


METRES_PER_ACTION = 0.01
"""an action of 1 moves the hand by so much in a step"""
SWAY = 0.007
"""the size (m) of the small motion with which an arm may wait: what is done stays done"""
STAYING = ("hold", "sway")
LEAVING = ("retreat", "wander")
LOW, HIGH = np.array([-0.25, 0.45, 0.16]), np.array([0.25, 0.75, 0.32])
"""the box above the table in which an arm may wander"""


@dataclass(frozen=True)
class Ending:
    """How an episode ends after its script: the kind, how many steps after, and the numbers of its motion."""

    kind: str
    patience: int
    """steps that the script goes on after the task is done"""
    phases: tuple[float, ...]
    spots: tuple[tuple[float, float, float], ...]


def draw_ending(task: Task, rng: np.random.Generator) -> Ending:
    """Draw an ending; an arm leaves only where the task would stay done."""
    kinds = (*STAYING, *LEAVING) if task.stays else STAYING
    spots = rng.uniform(LOW, HIGH, size=(6, 3))
    return Ending(
        kind=str(rng.choice(kinds)),
        patience=int(rng.integers(6, 14)) if task.settles else 0,
        phases=tuple(rng.uniform(0, 2 * np.pi, size=6).tolist()),
        spots=tuple(tuple(spot) for spot in spots.tolist()),
    )


class Finisher:
    """Plays an ending, starting from where the hand is."""

    def __init__(self, ending: Ending, hand: Floats, home: Floats, gripper: float, lead: Floats) -> None:
        """Remember the place; `lead` is how far the controller is ahead of the hand, to be taken back to stop it."""
        self.ending, self.place, self.home, self.gripper = ending, hand.copy(), home, gripper
        self.lead = lead.copy()
        self.step = 0
        self.spot = 0

    def act(self, hand: Floats) -> Floats:
        """Return the next action."""
        self.step += 1
        kind = self.ending.kind
        if kind in STAYING:
            back = np.clip(-self.lead / METRES_PER_ACTION, -1, 1)
            self.lead += back * METRES_PER_ACTION
            sway = self._swaying() if kind == "sway" else 0.0
            return np.array([*np.clip(back + sway, -1, 1), self.gripper])
        return np.array([*self._leaving(hand), self.gripper if self.step < 4 else -1.0])  # noqa: PLR2004

    def _swaying(self) -> Floats:
        """Move to and fro by `SWAY`, as steps: differences of sines, so that a firm push stays one."""
        phases = np.array(self.ending.phases[:3])
        pace = np.array([0.11, 0.13, 0.17])
        places = [np.sin((self.step + ahead) * pace + phases) for ahead in (0, 1)]
        return np.asarray(SWAY * (places[1] - places[0]) / METRES_PER_ACTION)

    def _leaving(self, hand: Floats) -> Floats:
        """Let go, rise, then go home, or from one spot above the table to the next."""
        if self.step < 10:  # noqa: PLR2004  # the fingers open first
            return np.zeros(3)
        if hand[2] < LOW[2] and self.spot == 0:
            return np.array([0.0, 0.0, 0.8])
        spots = [self.home] if self.ending.kind == "retreat" else [np.array(spot) for spot in self.ending.spots]
        wanted = spots[self.spot % len(spots)]
        if np.linalg.norm(wanted - hand) < 0.03:  # noqa: PLR2004
            self.spot += 1
        return np.clip((wanted - hand) * 10, -0.8, 0.8)
