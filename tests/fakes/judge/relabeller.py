"""The simulated judge as an author and as a strict reader of commands: answers the stages of relabelling.

It recognises the video by its pictures, reads the facts that the simulator measured, and grades by `predicates`; where
a stage shows no pictures it reads what it wrote itself at an earlier one. It is wrong at rates that are set:
`misread` facts are wrong in all its answers about an episode (nobody can catch that), `misjudged` ideas and verdicts
are wrong in one answer, `malformed` commands break the rules of form. This is a simulation: the rates are chosen, and
what is measured with it says how well validation catches such mistakes, not how often a real model makes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from demerit.errors import BadInput
from demerit.negatives.relabel.wording import STAGES, read_back
from fakes.judge.album import Seen
from fakes.judge.predicates import Facts, commands_for, facts_at, grade, task_named
from fakes.judge.scenes import SCENES

NO_SCENE = "This simulated judge has no words for the scene of this task."
NOTHING_SEEN = "This simulated judge knows only the pictures of its own dataset, and these are none of them."
CLOSENESS = {1: 0, 2: 20, 3: 50, 4: 80, 5: 100}
SPREAD = 9
"""percent by which closeness is spread around its grade's"""
MALFORMED: tuple[Callable[[str], str], ...] = (
    lambda command: f"{command}, " + "slowly and carefully and without any hurry, " * 5,
    lambda command: f"{command} — d\u00e9licatement",
    lambda command: f"The robot should {command}",
    lambda command: f"{command} so that the video deserves the lower mark",
)
"""how commands break the rules of form"""


@dataclass(frozen=True)
class Slips:
    """How often the simulated judge is wrong, as shares from 0 to 1."""

    misread: float = 0.02
    """facts of an episode that it sees wrongly, always the same ones"""
    misplanned: float = 0.3
    """ideas that deserve another grade than they are meant for"""
    malformed: float = 0.1
    """commands that break a rule of form"""
    misjudged: float = 0.1
    """verdicts with another grade than it sees"""
    blind: float = 0.0
    """verdicts given without looking: a grade by lot, and not a word about the start"""

    def __post_init__(self) -> None:
        """Refuse what is no share."""
        for one in fields(self):
            if not 0 <= getattr(self, one.name) <= 1:
                raise BadInput(f"simulated judge: {one.name}", "a share from 0 to 1", getattr(self, one.name))


@dataclass(frozen=True, eq=False)
class Relabeller:
    """Answers the prompts of relabelling; the same question gets the same answer."""

    recognise: Callable[[tuple[bytes, ...]], Seen | None]
    random: Callable[..., np.random.Generator]
    """a generator for a purpose in words"""
    slips: Slips

    def answer(self, texts: Sequence[str], pictures: tuple[bytes, ...], question: str) -> str | None:
        """Write an answer; None when none of the texts is a prompt of relabelling."""
        for text in texts:
            for stage in STAGES:
                # Of a message with pictures each part is a text of its own; without any, all is one text.
                found = read_back(stage, text)
                if found is not None:
                    return str(getattr(self, f"_{stage}")(found, pictures, question))
        return None

    def _clean(self, found: dict[str, str], pictures: tuple[bytes, ...], question: str) -> str:
        text = " ".join(found["task"].split())
        return json.dumps({"text": text[:1].upper() + text[1:]})

    def _analyse(self, found: dict[str, str], pictures: tuple[bytes, ...], question: str) -> str:
        seen = self.recognise(pictures)
        if seen is None:
            return NOTHING_SEEN
        start, end = (self._perceived(seen, frame) for frame in (0, seen.frames[-1]))
        if end.task not in SCENES:
            return NO_SCENE
        scene = SCENES[end.task]
        actions = [f"The robot handles the {scene.thing}."] if end.known["touched"] else ["The robot moves."]
        objects = [scene.thing, *scene.others, "hand"]
        return json.dumps({"objects": objects, "start": _said(start), "actions": actions, "end": _said(end)})

    def _plan(self, found: dict[str, str], pictures: tuple[bytes, ...], question: str) -> str:
        facts = _understood(found["task"], found["end"])
        if facts is None:
            return NO_SCENE
        rng = self.random("plan", question)
        ideas: list[dict[str, Any]] = []
        for wanted in map(int, found["grades"].split(", ")):
            used = {idea["idea"] for idea in ideas}
            command = self._choice(found["task"], facts, wanted, used, rng)
            if command is None:
                continue
            failure = f"it deserves {wanted} for what is there at the end"
            ideas.append({"grade": wanted, "idea": command, "failure": failure, "closeness": CLOSENESS[wanted]})
        return json.dumps({"thoughts": "simulated", "ideas": ideas})

    def _command(self, found: dict[str, str], pictures: tuple[bytes, ...], question: str) -> str:
        rng, command = self.random("command", question), found["idea"]
        facts = _understood(found["task"], found["end"])
        taken = found["history"].lower() + found["rejected"].lower()
        if facts is not None and command.lower() in taken:
            used = {one for one in commands_for(facts.task, found["task"]) if one.lower() in taken}
            command = self._choice(found["task"], facts, int(found["grade"]), used, rng) or command
        if rng.random() < self.slips.malformed:
            command = MALFORMED[int(rng.integers(len(MALFORMED)))](command)
        return json.dumps({"command": command[:1].upper() + command[1:]})

    def _validate(self, found: dict[str, str], pictures: tuple[bytes, ...], question: str) -> str:
        seen = self.recognise(pictures)
        if seen is None:
            return NOTHING_SEEN
        start, end = (self._perceived(seen, frame) for frame in (0, seen.frames[-1]))
        right, before = grade(found["command"], end), grade(found["command"], start)
        rng = self.random("validate", question)
        if right is None:
            return _verdict("It cannot be told from the pictures.", sound=False, grade_=1, closeness=0)
        if self.slips.blind and rng.random() < self.slips.blind:
            right, before = int(rng.choice(list(CLOSENESS))), None
        elif rng.random() < self.slips.misjudged:
            right = int(rng.choice([other for other in CLOSENESS if other != right]))
        # Closeness is a matter of the episode and the command, as a reader who looks twice would see it twice.
        off = self.random("closeness", seen.episode.id, found["command"]).uniform(-SPREAD, SPREAD)
        closeness = float(np.clip(CLOSENESS[right] + off, 0, 100))
        return _verdict("simulated", grade_=right, closeness=closeness, already=before == 5, entailed=right == 5)

    def _perceived(self, seen: Seen, frame: int) -> Facts:
        """Read the facts of a frame, some of them wrongly: the same ones whenever the episode is looked at."""
        facts = facts_at(seen.episode, frame)
        moods = {name: self.random("misread", seen.episode.id, name).random() for name in facts.known}
        known = {name: value != (moods[name] < self.slips.misread) for name, value in facts.known.items()}
        return Facts(facts.task, known, facts.progress)

    def _choice(self, task: str, facts: Facts, wanted: int, used: set[str], rng: np.random.Generator) -> str | None:
        """Choose a sentence that deserves a grade, or, at the rate of such mistakes, one that deserves another."""
        graded = {one: grade(one, facts) for one in commands_for(facts.task, task) if one not in used}
        wrong = rng.random() < self.slips.misplanned
        fitting = [one for one, value in graded.items() if value is not None and (value == wanted) != wrong]
        return str(rng.choice(fitting)) if fitting else None


def _said(facts: Facts) -> str:
    """Put facts into words that `_understood` reads."""
    return " ".join(f"{name.capitalize()}: {'yes' if value else 'no'}." for name, value in facts.known.items())


def _understood(task: str, said: str) -> Facts | None:
    """Read the facts that an earlier answer told of; None for a task without a scene."""
    name = task_named(task)
    parts = [part.partition(": ") for part in said.split(".") if ": " in part]
    known = {fact.strip().lower(): value.strip() == "yes" for fact, _, value in parts}
    if not name or not {"done", "touched"} <= set(known):
        return None
    return Facts(name, known, 1.0 if known["done"] else 0.0)


def _verdict(
    reasons: str, *, sound: bool = True, grade_: int, closeness: float, already: bool = False, entailed: bool = False
) -> str:
    facts = {"reasons": reasons, "sound": sound, "already_true": already, "grade": grade_}
    return json.dumps({**facts, "closeness": round(closeness, 1), "entailed": entailed})
