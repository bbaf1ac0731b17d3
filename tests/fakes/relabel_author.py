"""A scripted author and validator for tests of relabelling, and tiny originals whose brightness is their progress.

`author` answers every stage correctly. `SloppyAuthor` makes mistakes at given rates. The true grade of a command is
known from its text (`true_grade`), so that tests can count wrong labels.
"""

import io
import random
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, Origin, Outcome
from demerit.data.frames import Frames
from demerit.data.video import VideoClip, write_video
from demerit.negatives.negative import grade_of
from demerit.negatives.relabel.prompts import MAX_TOKENS, read_prompt
from fakes.chat_server import Request
from fakes.coded_episodes import Listed

COMMANDS = {
    1: ("Turn the lamp around", "Wipe the sink", "Open the window"),
    2: ("Tip the cup over onto its side", "Push the cup off the table", "Fill the cup with water"),
    3: ("Lift the cup and put it into the sink", "Carry the cup over to the window", "Put the cup below the lamp"),
    4: (
        "Put the cup on shelf {} and bring the arm back to the wall",
        "Put the cup on shelf {} with its handle to the left",
        "Put the cup on shelf {} upside down",
    ),
}
"""commands by their true grade; {} is the number of the shelf"""
FRAMES, FPS = 41, 10.0


def originals(folder: Path, count: int, split: str = "") -> Dataset:
    """Successes that share one tiny video (4 s, from black to white) and differ in their instruction."""
    clip = video(folder / "rising.mp4")
    episodes = [
        Episode(
            f"e{number}",
            f"put the cup on shelf {number}",
            {"main": clip},
            outcomes=(Outcome("human", success=True),),
            origin=Origin("listed", split=split),
        )
        for number in range(count)
    ]
    return Dataset(Listed(episodes), "listed")


def video(path: Path, brightest: int = 255) -> Frames:
    """Write a tiny video, from black to white."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        grey = np.linspace(0, brightest, FRAMES).astype(np.uint8)
        write_video(path, np.broadcast_to(grey[:, None, None, None], (FRAMES, 32, 32, 3)).copy(), FPS)
    return Frames(VideoClip(str(path), length=FRAMES))


def originals_apart(folder: Path, count: int) -> list[Episode]:
    """The same with a video each."""
    return [
        replace(episode, views={"main": video(folder / f"rising-{number}.mp4", 255 - number)})
        for number, episode in enumerate(originals(folder, count))
    ]


def parse_request(request: Request) -> tuple[str, dict[str, str]]:
    """Find the stage of a request and what was filled into its prompt."""
    texts = [part["text"] for part in request.parts if part["type"] == "text"]
    for stage in MAX_TOKENS:
        for text in texts:
            found = re.fullmatch(_pattern(stage), text, re.DOTALL)
            if found:
                return stage, found.groupdict()
    raise AssertionError(f"not a prompt of relabelling: {texts}")


def _pattern(stage: str) -> str:
    pattern, seen = "", set[str]()
    for place, piece in enumerate(re.split(r"\$(\w+)", read_prompt(stage).replace("$rubric", read_prompt("rubric")))):
        if place % 2 == 0:
            pattern += re.escape(piece)
        else:
            pattern += f"(?P={piece})" if piece in seen else f"(?P<{piece}>.*?)"
            seen.add(piece)
    return pattern


def command_for(grade: int, task: str, choice: int = 0) -> str:
    return COMMANDS[grade][choice].format(task.rsplit(maxsplit=1)[-1])


def true_grade(command: str, task: str) -> int | None:
    """The grade that a command deserves for the whole video; None for a sentence that nobody here wrote."""
    known = {command_for(grade, task, n): grade for grade, texts in COMMANDS.items() for n in range(len(texts))}
    return known.get(command)


def author(request: Request) -> dict[str, Any]:
    """Answer every stage correctly."""
    stage, found = parse_request(request)
    if stage == "analyse":
        return {"objects": ["cup", "shelf", "lamp", "sink"], "start": "dark", "actions": ["it rises"], "end": "bright"}
    if stage == "plan":
        ideas = [
            {"grade": grade, "idea": command_for(grade, found["task"]), "failure": "it is not", "closeness": 20 * grade}
            for grade in map(int, found["grades"].split(", "))
        ]
        return {"thoughts": "", "ideas": ideas}
    if stage == "command":
        return {"command": command_for(int(found["grade"]), found["task"])}
    grade = true_grade(found["command"], found["task"])
    if grade is None:  # the task itself: a clip, whose last frame shows how far it got
        with Image.open(io.BytesIO(request.images[-1])) as image:
            frame = round(float(np.asarray(image.convert("L"), dtype=np.float64).mean()) / 255 * (FRAMES - 1))
        grade = grade_of(frame / (FRAMES - 1))
    return verdict(grade)


def verdict(grade: int, **changes: Any) -> dict[str, Any]:
    facts = {"reasons": "seen", "sound": True, "already_true": False, "grade": grade}
    return {**facts, "closeness": 20 * grade, "entailed": False, **changes}


@dataclass(frozen=True)
class SloppyAuthor:
    """Writes commands of the wrong grade, breaks rules of form and misjudges, each at a rate from 0 to 1."""

    wrong_grade: float = 0.3
    malformed: float = 0.1
    misjudged: float = 0.1
    """validations that give another grade than the true one"""

    def __call__(self, request: Request) -> dict[str, Any]:
        """Answer; the same request gets the same answer."""
        stage, found = parse_request(request)
        chance = random.Random(request.question)
        if stage == "command":
            grade = int(found["grade"])
            if chance.random() < self.wrong_grade:
                grade = chance.choice([other for other in COMMANDS if other != grade])
            command = command_for(grade, found["task"], chance.randrange(len(COMMANDS[grade])))
            return {"command": f"The robot should {command}" if chance.random() < self.malformed else command}
        if stage == "validate" and chance.random() < self.misjudged:
            right = true_grade(found["command"], found["task"])
            return verdict(chance.choice([grade for grade in range(1, 6) if grade != right]))
        return author(request)
