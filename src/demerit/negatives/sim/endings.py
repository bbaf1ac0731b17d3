"""What an arm does when its script is over.

An episode goes on for a length that was drawn before anything happened. If successes rested and failures did not, or
the other way round, motion alone would give the label away: so the ending is drawn from the task and the seed, never
from the behaviour or the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demerit.negatives.sim.tasks import Task

Floats = npt.NDArray[np.float64]

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
