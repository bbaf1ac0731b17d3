"""A scripted author for tests of relabelling, and tiny originals whose brightness is their progress."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, Origin
from demerit.data.frames import Frames
from demerit.data.labels import Outcome
from demerit.data.video import VideoClip, write_video
from demerit.negatives.negative import grade_of
from demerit.negatives.relabel.wording import STAGES, read_back
from fakes.judge.server import Request

COMMANDS = {
    1: "Turn the lamp around",
    2: "Tip the cup over onto its side",
    3: "Lift the cup and put it into the sink",
    4: "Put the cup on shelf {} and bring the arm back to the wall",
}
FRAMES, FPS = 41, 10.0


class Listed:
    """A reader of episodes that are there already."""

    name = "listed"

    def __init__(self, episodes: list[Episode]) -> None:
        self.episodes = episodes

    def expected(self) -> int:
        return len(self.episodes)

    def records(self) -> Any:
        return iter(self.episodes)


def originals(folder: Path, count: int, split: str = "") -> Dataset:
    """Successes that share one tiny video (4 s, from black to white) and differ in their words."""
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
    """Make a tiny video, from black to white."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        grey = np.linspace(0, brightest, FRAMES).astype(np.uint8)
        write_video(path, np.broadcast_to(grey[:, None, None, None], (FRAMES, 32, 32, 3)).copy(), FPS)
    return Frames(VideoClip(str(path), length=FRAMES))


def apart(folder: Path, count: int) -> list[Episode]:
    """The same with a video each."""
    return [
        replace(one, views={"main": video(folder / f"rising-{number}.mp4", 255 - number)})
        for number, one in enumerate(originals(folder, count))
    ]


def stage_of(request: Request) -> tuple[str, dict[str, str]]:
    texts = [part["text"] for part in request.parts if part["type"] == "text"]
    for stage in STAGES:
        for text in texts:
            found = read_back(stage, text)
            if found is not None:
                return stage, found
    raise AssertionError(f"no stage: {texts}")


def command_for(grade: int, task: str) -> str:
    return COMMANDS[grade].format(task.rsplit(maxsplit=1)[-1])


def author(request: Request) -> dict[str, Any]:
    """Answer every stage rightly."""
    stage, found = stage_of(request)
    if stage == "clean":
        return {"text": found["task"].capitalize()}
    if stage == "analyse":
        return {"objects": ["cup", "shelf", "lamp", "sink"], "start": "dark", "actions": ["it rises"], "end": "bright"}
    if stage == "plan":
        ideas = [
            {"grade": g, "idea": command_for(g, found["task"]), "failure": "it is not", "closeness": 20 * g}
            for g in map(int, found["grades"].split(", "))
        ]
        return {"thoughts": "", "ideas": ideas}
    if stage == "command":
        return {"command": command_for(int(found["grade"]), found["task"])}
    grade = next((g for g in COMMANDS if found["command"] == command_for(g, found["task"])), None)
    if grade is None:  # the task itself: a clip, whose last picture tells how far it got
        with Image.open(io.BytesIO(request.images[-1])) as image:
            frame = round(float(np.asarray(image.convert("L"), dtype=np.float64).mean()) / 255 * (FRAMES - 1))
        grade = grade_of(frame / (FRAMES - 1))
    return verdict(grade)


def verdict(grade: int, **changes: Any) -> dict[str, Any]:
    facts = {"reasons": "seen", "sound": True, "already_true": False, "grade": grade}
    return {**facts, "closeness": 20 * grade, "entailed": False, **changes}
