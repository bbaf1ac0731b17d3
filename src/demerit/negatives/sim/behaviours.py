"""Behaviours: the scripted expert, and variants that go wrong.

A behaviour is a class made from a `Stage` that answers each `Moment` with an action. It decides only what the arm
tries; the result is measured. Experts can be unsteady, lazy, hesitant, violent or random, wrong about the world, or
unable to stop. At the end, `Ending` decides what the arm does when its behaviour is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from demerit.data.arrays import Floats
from demerit.negatives.sim.arena import METRES_PER_ACTION, StepFacts
from demerit.negatives.sim.tasks import Task
from demerit.registry import Registry

BEHAVIOURS = Registry(
    "behaviour",
    {
        "expert": "negatives.sim.behaviours:Expert",
        "noisy": "negatives.sim.behaviours:Noisy",
        "early-stop": "negatives.sim.behaviours:EarlyStop",
        "hesitate": "negatives.sim.behaviours:Hesitate",
        "slam": "negatives.sim.behaviours:Slam",
        "random": "negatives.sim.behaviours:RandomMotion",
        "missed-grasp": "negatives.sim.behaviours:MissedGrasp",
        "drop": "negatives.sim.behaviours:Drop",
        "never-closes": "negatives.sim.behaviours:NeverCloses",
        "wrong-place": "negatives.sim.behaviours:WrongPlace",
        "wrong-object": "negatives.sim.behaviours:WrongObject",
        "overshoot": "negatives.sim.behaviours:Overshoot",
        "undo": "negatives.sim.behaviours:Undo",
        "idle": "negatives.sim.behaviours:Idle",
        "press-hard": "negatives.sim.behaviours:PressHard",
        "jam": "negatives.sim.behaviours:Jam",
    },
)


@dataclass(frozen=True, eq=False)
class Stage:
    """What a behaviour gets at the start of an episode."""

    task: Task
    expert: Callable[[Floats], Floats]
    """observation (39 numbers) -> action (x, y, z, gripper; -1 to 1)"""
    rng: np.random.Generator
    first: StepFacts


@dataclass(frozen=True, eq=False)
class Moment:
    """What a behaviour gets at each step."""

    facts: StepFacts
    progress: float
    success: bool


class Expert:
    """Do the task with the scripted expert. The base class of the other behaviours."""

    ends_on_success = True
    """whether the episode's ending may start when the task is done"""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.rng, self.expert = stage, stage.rng, stage.expert
        self.over = False
        """whether the behaviour is finished"""
        self.waits = False
        """whether standing still now is intended"""
        self.grip: Floats | None = None
        """position of the object relative to the hand, once it wrongly believes to hold it"""

    @classmethod
    def why_not(cls, task: Task) -> str:
        """The reason why this behaviour makes no sense for a task; empty if it does."""
        return ""

    def act(self, now: Moment) -> Floats:
        """Return an action (x, y, z, gripper; -1 to 1)."""
        return self.expert(now.facts.observation)

    def carry_on(self, now: Moment, thing: Floats) -> Floats:
        """Act as if the object were at `thing`, or in the hand once it believes to hold it."""
        if self.grip is not None:
            return self.expert(_observe(now.facts.observation, now.facts.hand + self.grip, openness=CLOSED))
        return self.expert(_observe(now.facts.observation, thing))


class Noisy(Expert):
    """The expert with smooth noise, weak to strong."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.scale = float(self.rng.uniform(0.15, 0.7))
        self.noise = np.zeros(3)

    def act(self, now: Moment) -> Floats:
        """Add correlated noise; white noise would average out."""
        self.noise = 0.85 * self.noise + 0.5 * self.rng.normal(size=3)
        action = super().act(now)
        return np.array([*np.clip(action[:3] + self.scale * self.noise, -1, 1), action[3]])


class EarlyStop(Expert):
    """Do the first part and stop."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.until = float(self.rng.uniform(0.1, 0.6))

    def act(self, now: Moment) -> Floats:
        """Stop at the drawn progress."""
        self.over = self.over or now.progress >= self.until
        return super().act(now)


class Hesitate(Expert):
    """Pause on the way, once or twice, then continue."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.where = sorted(self.rng.uniform(0.05, 0.7, size=int(self.rng.choice([1, 1, 2]))).tolist())
        long = stage.task.long_pause
        self.pauses = self.rng.integers(long + 4, long + long // 2 + 5, size=len(self.where)).tolist()
        self.left = 0

    def act(self, now: Moment) -> Floats:
        """Stand still during a pause."""
        if self.left == 0 and self.where and now.progress >= self.where[0]:
            self.where.pop(0)
            self.left = int(self.pauses.pop(0))
        self.waits = self.left > 0
        if self.waits:
            self.left -= 1
            return np.array([0, 0, 0, super().act(now)[3]])
        return super().act(now)


class Slam(Expert):
    """Drive the hand down or aside at full speed into anything that is there; then continue or stop."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.when = float(self.rng.uniform(0.1, 0.6))
        aside = self.rng.uniform(-1, 1, size=2)
        self.push = np.array([*aside, -1.0])
        self.left = int(self.rng.integers(20, 40))
        self.continues = bool(self.rng.random() < 0.5)  # noqa: PLR2004

    def act(self, now: Moment) -> Floats:
        """Push at the drawn progress."""
        if now.progress < self.when or self.left == 0:
            return super().act(now)
        self.when = 0.0
        self.left -= 1
        self.over = self.left == 0 and not self.continues
        return np.array([*self.push, 1.0])


class RandomMotion(Expert):
    """Move between random places above the table, opening and closing the gripper."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.gripper = -1.0
        self._choose()

    def act(self, now: Moment) -> Floats:
        """Move to the place, then draw another."""
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


CLOSED = 0.5
"""openness of a gripper around an object, in an expert's observation"""
CLOSED_BY_NOW = 6
"""steps of closing after which an expert believes that it holds the object"""
AT_HAND = 0.075
"""a hand this close (m) to the believed position of the object can grasp it"""
READ_THE_GOAL = frozenset(
    "pick-place push push-wall pick-place-wall push-back coffee-push hand-insert pick-out-of-hole reach reach-wall "
    "peg-insert-side fetch-insert fetch-pick fetch-push fetch-reach fetch-slide".split()
)
"""tasks whose expert reads the goal from the observation"""


def _observe(
    observation: Floats, thing: Floats | None = None, goal: Floats | None = None, openness: float | None = None
) -> Floats:
    """Change an observation: position of the object, position of the goal, openness of the gripper."""
    copy = observation.copy()
    if thing is not None:
        copy[4:7] = thing
    if goal is not None:
        copy[-3:] = goal
    if openness is not None:
        copy[3] = openness
    return copy


class MissedGrasp(Expert):
    """Grasp next to the object and carry nothing to the goal."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        angle = self.rng.uniform(0, 2 * np.pi)
        self.offset = self.rng.uniform(0.05, 0.09) * np.array([np.cos(angle), np.sin(angle), 0.0])
        self.closing = 0

    def act(self, now: Moment) -> Floats:
        """Act as if the object were next to its true position."""
        thing = now.facts.object + self.offset
        action = self.carry_on(now, thing)
        near = float(np.linalg.norm(now.facts.hand - thing)) < AT_HAND
        self.closing = self.closing + 1 if near and action[3] > 0 else 0
        if self.stage.task.grasps and self.grip is None and self.closing > CLOSED_BY_NOW:
            self.grip = thing - now.facts.hand
        return action


class Drop(Expert):
    """Grasp the object, drop it on the way, and continue without it."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.until = float(self.rng.uniform(0.35, 0.65))

    @classmethod
    def why_not(cls, task: Task) -> str:
        """The task must involve a grasp."""
        return "" if task.grasps else f"nothing is held in {task.name}"

    def act(self, now: Moment) -> Floats:
        """Open the gripper for good at the drawn progress."""
        if self.grip is None and now.facts.held and now.progress >= self.until:
            self.grip = now.facts.object - now.facts.hand
        action = self.carry_on(now, now.facts.object)
        return action if self.grip is None else np.array([*action[:3], -1.0])


class NeverCloses(Expert):
    """Do everything with an open gripper."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.closing = 0

    @classmethod
    def why_not(cls, task: Task) -> str:
        """The task must involve a grasp."""
        return "" if task.grasps else f"the gripper plays no part in {task.name}"

    def act(self, now: Moment) -> Floats:
        """Keep the gripper open and act as if it closed."""
        action = self.carry_on(now, now.facts.object)
        self.closing = self.closing + 1 if action[3] > 0 else 0
        if self.grip is None and self.closing > CLOSED_BY_NOW:
            self.grip = now.facts.object - now.facts.hand
        return np.array([*action[:3], -1.0])


class WrongPlace(Expert):
    """Bring the object to a place near the goal."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        angle = self.rng.uniform(0, 2 * np.pi)
        away = stage.task.within + self.rng.uniform(0.03, 0.10)
        self.goal = stage.first.observation[-3:] + away * np.array([np.cos(angle), np.sin(angle), 0.0])
        self.until = float(self.rng.uniform(0.45, 0.8))
        self.releasing = 0
        self.reads = stage.task.name in READ_THE_GOAL

    def act(self, now: Moment) -> Floats:
        """Move to the other place and release there."""
        if self.releasing or (self._is_there(now) if self.reads else now.progress >= self.until):
            self.releasing += 1
            self.over = self.releasing > 12  # noqa: PLR2004
            return np.array([0, 0, 0, -1.0])
        return self.expert(_observe(now.facts.observation, goal=self.goal)) if self.reads else super().act(now)

    def _is_there(self, now: Moment) -> bool:
        thing = now.facts.object if self.stage.task.loose else now.facts.hand
        return float(np.linalg.norm(thing - self.goal)) < 0.6 * self.stage.task.within


class WrongObject(Expert):
    """Do the task with the other object."""

    @classmethod
    def why_not(cls, task: Task) -> str:
        """The task must have a second object."""
        return "" if task.spare else f"there is no second object in {task.name}"

    def act(self, now: Moment) -> Floats:
        """Act on the second object."""
        return self.expert(_observe(now.facts.observation, now.facts.spare))


NEARLY = 0.9


class Overshoot(Expert):
    """Do not stop at the goal: continue in the direction of travel."""

    ends_on_success = False

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.left = int(self.rng.integers(12, 30))
        self.velocity = np.zeros(3)
        self.before: Floats | None = None
        self.past = False

    @classmethod
    def why_not(cls, task: Task) -> str:
        """There must be a way past the goal."""
        return "the hole has a bottom" if task.gentle else ""

    def act(self, now: Moment) -> Floats:
        """Follow the expert, then its last direction."""
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


class PressHard(Expert):
    """Do the task, press down, and stop pressing."""

    ends_on_success = False

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.presses = int(self.rng.integers(10, 20))
        self.speed = float(self.rng.uniform(0.3, 0.5))
        self.done_for = 0

    @classmethod
    def why_not(cls, task: Task) -> str:
        """Force must matter."""
        return "" if task.gentle else "no force spoils the task"

    def act(self, now: Moment) -> Floats:
        """Press from the moment of success on, then take it back."""
        if self.done_for == 0 and not now.success:
            return super().act(now)
        self.waits = True
        self.done_for += 1
        self.over = self.done_for >= 2 * self.presses
        return np.array([0, 0, self.speed if self.done_for > self.presses else -self.speed, 1.0])


class Jam(Expert):
    """Force the object down on the rim of its hole."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        angle = self.rng.uniform(0, 2 * np.pi)
        away = self.rng.uniform(0.012, 0.03) * np.array([np.cos(angle), np.sin(angle), 0.0])
        self.goal = stage.first.observation[-3:] + away

    @classmethod
    def why_not(cls, task: Task) -> str:
        """Force must matter."""
        return PressHard.why_not(task)

    def act(self, now: Moment) -> Floats:
        """Act as if the hole were there."""
        return self.expert(_observe(now.facts.observation, goal=self.goal))


class Idle(Expert):
    """Do not even begin."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.over = True


class Undo(Expert):
    """Do the task, then undo it: push the object back, or move back along the path."""

    ends_on_success = False

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.path: list[Floats] = []
        self.rest = int(self.rng.integers(6, 20))
        self.back = float(self.rng.uniform(0.5, 0.9))
        self.done_for = 0
        self.target = 0
        task, start = stage.task, stage.first.object
        goal = stage.first.target
        pushes = task.loose and not task.grasps and task.name in READ_THE_GOAL
        self.push_to = goal + self.back * (start - goal) if pushes else None

    @classmethod
    def why_not(cls, task: Task) -> str:
        """The object must stay in reach."""
        return "the puck is out of reach at the goal of fetch-slide" if task.name == "fetch-slide" else ""

    def act(self, now: Moment) -> Floats:
        """Do the task, wait, then push back, or go back along the path with a closed gripper."""
        if self.done_for == 0 and not now.success:
            self.path.append(now.facts.hand)
            return super().act(now)
        self.done_for += 1
        if self.done_for < self.rest:
            self.waits = True
            return super().act(now)
        self.waits = False
        if self.push_to is not None:
            self.over = float(np.linalg.norm(now.facts.object - self.push_to)) < 0.02  # noqa: PLR2004
            return self.expert(_observe(now.facts.observation, goal=self.push_to))
        if self.done_for == self.rest:
            self.target = len(self.path) - 1
        end = int(len(self.path) * (1 - self.back))
        if self.target <= end:
            self.over = True
            return np.array([0, 0, 0, 1.0 if self.stage.task.grasps else -1.0])
        # skip path points so that the hand moves at a normal speed
        while self.target > end and np.linalg.norm(self.path[self.target] - now.facts.hand) < 0.02:  # noqa: PLR2004
            self.target -= 1
        move = (self.path[self.target] - now.facts.hand) / METRES_PER_ACTION
        return np.array([*np.clip(move, -0.9, 0.9), 1.0])


SWAY = 0.007
"""amplitude (m) of the sway ending: small enough for the task to stay done"""
STAYING = ("hold", "sway")
LEAVING = ("retreat", "wander")
LOW, HIGH = np.array([-0.25, 0.45, 0.16]), np.array([0.25, 0.75, 0.32])
"""corners of the box above the table for the wander ending"""


class Ending:
    """The motion of the arm after its behaviour is over, played from where the hand is then.

    Drawn from task and seed, never from behaviour or outcome: otherwise motion alone would reveal the label.
    """

    def __init__(self, kind: str, patience: int, phases: Floats, spots: Floats) -> None:
        """`patience`: steps that the behaviour continues after the task is done."""
        self.kind, self.patience, self.phases, self.spots = kind, patience, phases, spots
        self.step = self.spot = 0

    def start(self, home: Floats, gripper: float, lead: Floats) -> None:
        """Start to play. `lead` is how far the controller is ahead of the hand; it is undone to stop the hand."""
        self.home, self.gripper, self.lead = home, gripper, lead.copy()

    def act(self, hand: Floats) -> Floats:
        """Return the next action."""
        self.step += 1
        if self.kind in STAYING:
            back = np.clip(-self.lead / METRES_PER_ACTION, -1, 1)
            self.lead += back * METRES_PER_ACTION
            sway = self._sway() if self.kind == "sway" else 0.0
            return np.array([*np.clip(back + sway, -1, 1), self.gripper])
        return np.array([*self._leave(hand), self.gripper if self.step < 4 else -1.0])  # noqa: PLR2004

    def _sway(self) -> Floats:
        """Small oscillation: differences of sines, so that a firm push stays one."""
        pace = np.array([0.11, 0.13, 0.17])
        places = [np.sin((self.step + ahead) * pace + self.phases[:3]) for ahead in (0, 1)]
        return np.asarray(SWAY * (places[1] - places[0]) / METRES_PER_ACTION)

    def _leave(self, hand: Floats) -> Floats:
        """Release, rise, then go home or from one spot above the table to the next."""
        if self.step < 10:  # noqa: PLR2004  # the fingers open first
            return np.zeros(3)
        if hand[2] < LOW[2] and self.spot == 0:
            return np.array([0.0, 0.0, 0.8])
        spots = self.home[None] if self.kind == "retreat" else self.spots
        wanted = spots[self.spot % len(spots)]
        if np.linalg.norm(wanted - hand) < 0.03:  # noqa: PLR2004
            self.spot += 1
        return np.asarray(np.clip((wanted - hand) * 10, -0.8, 0.8))


def draw_ending(task: Task, rng: np.random.Generator) -> Ending:
    """Draw an ending; the arm leaves only if the task stays done."""
    kinds = (*STAYING, *LEAVING) if task.stays else STAYING
    spots = rng.uniform(LOW, HIGH, size=(6, 3))
    kind = str(rng.choice(kinds))
    patience = int(rng.integers(6, 14)) if task.settles else 0
    return Ending(kind, patience, rng.uniform(0, 2 * np.pi, size=6), spots)
