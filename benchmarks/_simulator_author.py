"""A scripted chat model for `demerit relabel` on simulated successes: it sees nothing and knows its own commands.

A command's grade follows from how it is made, by the rubric of the prompts: 4 = the task and one small demand that no
video meets, 3 = the task and two demands, 2 = another deed with the task's object, 1 = another task.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from demerit.data.episode import Episode, objects
from fakes.chat_server import Request
from fakes.relabel_author import parse_request, verdict

SMALL = ("fold the arm flat", "park the arm outside", "tuck the arm away")
DEMANDS = ("add a blue cloth", "fetch a red cup", "wipe the table")
DEEDS = (
    "Throw the {} into the sink",
    "Wrap the {} in a blue cloth",
    "Carry the {} over to the window sill",
    "Hide the {} under the table",
)
THINGS = frozenset(
    "ball block box button cabinet dial disc door flask hammer handle knob lever lid lock machine mug nut peg plate "
    "puck robot shelf stick thermos wrench".split()
)


class SimulatorAuthor:
    """Writes a command for each grade and validates it without an error."""

    def __init__(self, episodes: Iterable[Episode]) -> None:
        """`episodes` to train on; grade 1 is the instruction of another scene of theirs."""
        self.scenes = {episode.instruction: episode.origin.tags["task"].split("-")[0] for episode in episodes}

    def commands(self, task: str) -> dict[int, list[str]]:
        """All commands that can be written for a task, by grade."""
        thing = next((word for word in task.split() if word in THINGS), "robot")
        others = [
            text
            for text, scene in sorted(self.scenes.items())
            if scene != self.scenes[task] and not objects(text) & objects(task)
        ]
        return {
            1: others or ["Iron the shirt"],
            2: [deed.format(thing) for deed in DEEDS],
            3: [f"{task}, then {demand} and {small}" for demand in DEMANDS for small in SMALL],
            4: [f"{task}, then {small}" for small in SMALL],
        }

    def __call__(self, request: Request) -> dict[str, Any]:
        """Answer a stage; the same request gets the same answer."""
        stage, found = parse_request(request)
        chance = random.Random(request.question)
        if stage == "analyse":  # the number makes the next questions of two videos of one task different
            seen = f"video {chance.randrange(10**6)}"
            return {"objects": sorted(objects(found["task"])), "start": seen, "actions": ["moves"], "end": "done"}
        commands = self.commands(found["task"])
        if stage == "plan":
            grades = [int(grade) for grade in found["grades"].split(", ")]
            facts = {grade: {"idea": f"idea {grade}", "failure": "not asked for"} for grade in grades}
            return {
                "thoughts": "",
                "ideas": [{"grade": grade, "closeness": 20 * grade, **facts[grade]} for grade in grades],
            }
        if stage == "command":
            return {"command": chance.choice(commands[int(found["grade"])])}
        return verdict(next((grade for grade, texts in commands.items() if found["command"] in texts), 5))
