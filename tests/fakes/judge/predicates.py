"""Which grade a command deserves for a simulated episode, by what was measured: no model has a say in it.

A command is read clause by clause in the small language of `commands_for`; each clause is a requirement that is met,
begun or not there at a frame. The rubric is RoboReward's, in rules:

    every major requirement met: 5, or 4 with one minor one missed, or 3 with more
    some of them met: 3
    none met, but the thing was handled on the way there: 2
    otherwise: 1

The task's own words alone are graded by measured progress. A sentence outside of the language has no grade (None), and
so has one that needs a position which the episode does not hold: folders simulated before the thing's position was
stored know only hand, forces and whether the task is done; videos with a measured curve alone know only done and
touched, so that no grade 4 can be told there. Left and right are as seen from the robot's base, which
looks along +y: left is -x.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from demerit.data.episode import Episode
from demerit.errors import BadInput
from demerit.negatives.negative import DONE_GRADE, grade_of
from demerit.negatives.sim.tasks import tasks
from fakes.judge.scenes import SCENES, Scene

State = Literal["met", "begun", "no"]

SHIFTED, LIFTED = 0.05, 0.04
"""metres by which a thing must have come to be moved aside, or off the table"""
AT_HOME, ASIDE = 0.06, 0.08
"""metres: a hand nearer to its start is back; one further to a side is on that side"""
REACHED = 0.3
"""progress that an arm has at the thing: where only progress is stored, the thing was touched from there on"""
HIGH, LOW = 0.24, 0.12
"""metres above the table: a hand above the one is raised high, below the other low"""


MINOR: dict[str, str] = {
    "hand home": "bring the hand back to its start",
    "hand high": "raise the hand high above the table",
    "hand low": "lower the hand to the table",
    "hand left": "leave the hand left of its start",
    "hand right": "leave the hand right of its start",
}
SIDES: dict[str, tuple[str, str]] = {
    "left": ("thing left", "thing right"),
    "right": ("thing right", "thing left"),
    "towards the robot": ("thing near", "thing far"),
    "away from the robot": ("thing far", "thing near"),
}
"""words of a direction: the fact that they ask for, and the one that is the other way"""
UNMOVED = ("tip the {} over", "push the {} to the left edge", "turn the {} around", "lift the {} up high")
"""what could be done with the other things, and never is"""
OF_THING = ("turn the {} upside down", "lift the {} off the table", *(f"push the {{}} {side}" for side in SIDES))


@dataclass(frozen=True)
class Facts:
    """What is true of one frame of an episode."""

    task: str
    known: Mapping[str, bool]
    """by name: done, touched, thing left ..., hand home ...; what was not stored is not in it"""
    progress: float

    def is_known(self, *names: str) -> bool:
        """Whether all of these were measured."""
        return all(name in self.known for name in names)


def facts_at(episode: Episode, frame: int) -> Facts:
    """Read the facts of one frame; negative frames count from the end."""
    frame %= len(episode)
    signals, outcome = episode.signals, episode.outcome
    curve = None if outcome is None else outcome.curve
    if "state" not in signals:
        if curve is None:
            raise BadInput(f"episode {episode.id!r}", "one that the simulator measured", "none of those")
        told = {"done": bool(curve[frame] == 1), "touched": bool(np.nanmax(curve[: frame + 1]) >= REACHED)}
        return Facts(episode.origin.tags.get("task", ""), told, float(curve[frame]))
    hand = np.asarray(signals["state"], dtype=np.float64)[:, :3]
    way, force = hand[frame] - hand[0], np.asarray(signals["object_force"])[: frame + 1]
    known = {
        "done": bool(signals["done"][frame]),
        "touched": bool((force > 0).any()),
        "hand home": float(np.linalg.norm(way)) < AT_HOME,
        "hand left": way[0] < -ASIDE,
        "hand right": way[0] > ASIDE,
        "hand high": hand[frame][2] > HIGH,
        "hand low": hand[frame][2] < LOW,
    }
    if "object" in signals:
        places = np.asarray(signals["object"], dtype=np.float64)[:, :3]
        came = places[frame] - places[0]
        known["touched"] |= float(np.abs(places[: frame + 1] - places[0]).max()) > SHIFTED
        known |= {
            "thing left": came[0] < -SHIFTED,
            "thing right": came[0] > SHIFTED,
            "thing near": came[1] < -SHIFTED,
            "thing far": came[1] > SHIFTED,
            "thing lifted": came[2] > LIFTED,
        }
    progress = float(curve[frame]) if curve is not None else float(known["done"])
    return Facts(episode.origin.tags.get("task", ""), {name: bool(value) for name, value in known.items()}, progress)


def grade(command: str, facts: Facts) -> int | None:
    """Grade a command by the facts of a frame; None where the command cannot be read or the facts are not there."""
    found = _requirements(_plain(command), facts)
    if found is None:
        return None
    majors, minors = found
    if all(state == "met" for state in majors):
        missed = sum(state != "met" for state in minors)
        return DONE_GRADE - min(missed, 2)
    if any(state == "met" for state in majors):
        return 3
    if _plain(command) in _own_words(facts.task):
        return grade_of(facts.progress)
    return 2 if "begun" in majors else 1


def already_true(command: str, episode: Episode) -> bool:
    """Whether nothing had to be done for it: every requirement is met at the first frame."""
    return grade(command, facts_at(episode, 0)) == DONE_GRADE


def commands_for(task: str, instruction: str) -> Iterator[str]:
    """List sentences of the language about a task's scene, from far from done to nearly done; none has a grade yet."""
    scene = SCENES[task]
    yield from (what.format(other) for other in scene.others for what in UNMOVED)
    yield scene.contrary
    yield from (what.format(scene.thing) for what in OF_THING)
    yield scene.half
    for other in scene.others:
        yield f"{instruction} and push the {other} to the left edge"
        yield f"lift the {scene.thing} off the table and turn the {other} around"
    minors = list(MINOR.values())
    yield from (f"{instruction} and {minor}" for minor in minors)
    yield f"{instruction} and {minors[1]} and {minors[3]}"


def task_named(instruction: str) -> str:
    """Find the task with a scene whose words these are; empty for none."""
    plain = _plain(instruction)
    return next((task for task in SCENES if plain in _own_words(task)), "")


def _requirements(command: str, facts: Facts) -> tuple[list[State], list[State]] | None:
    """States of the major and of the minor requirements; None where one is not known."""
    if facts.task not in SCENES:
        return None
    majors: list[State] = []
    minors: list[State] = []
    rest = command
    for words in sorted(_own_words(facts.task), key=len, reverse=True):
        if rest == words or rest.startswith(f"{words} and "):
            majors.append(_is(facts.known["done"]))
            rest = rest[len(words) :].removeprefix(" and ")
            break
    for clause in filter(None, re.split(r" and ", rest)):
        name = next((name for name, words in MINOR.items() if words == clause), "")
        if name:
            if not facts.is_known(name):
                return None
            minors.append(_is(facts.known[name]))
            continue
        states = _major(clause, facts, SCENES[facts.task])
        if states is None:
            return None
        majors += states
    return (majors, minors) if majors else None


def _major(clause: str, facts: Facts, scene: Scene) -> list[State] | None:
    """Read a clause about the thing or another one."""
    known = facts.known
    handled: State = "begun" if known["touched"] else "no"
    if clause == scene.contrary:
        return [_is(not known["done"])]
    if clause == scene.half:
        # The right motion of the right thing, and not stopped where it should be.
        return [_is(known["done"]), "no"] if known["done"] else [handled]
    if clause == f"turn the {scene.thing} upside down":
        return [handled]
    if clause == f"lift the {scene.thing} off the table":
        if not facts.is_known("thing lifted"):
            return None
        return ["met" if known["thing lifted"] else handled]
    for side, (wanted, opposite) in SIDES.items():
        if clause == f"push the {scene.thing} {side}":
            if not facts.is_known(wanted, opposite):
                return None
            return ["met" if known[wanted] else "no" if known[opposite] else handled]
    unmoved = {what.format(other) for other in scene.others for what in UNMOVED}
    return ["no"] if clause in unmoved else None


def _is(true: bool) -> State:
    return "met" if true else "no"


def _plain(command: str) -> str:
    return " ".join(re.findall(r"[a-z0-9'-]+", command.lower()))


@lru_cache(maxsize=128)
def _own_words(task: str) -> frozenset[str]:
    return frozenset(_plain(words) for words in tasks()[task].instructions) if task in tasks() else frozenset()
