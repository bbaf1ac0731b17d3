"""Episodes with a different colour per frame, and a scripted model that reads the colours: for tests of prompts."""

import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from demerit.data.episode import Episode, Origin, Outcome
from demerit.models.gvl.config import write_feedback
from demerit.models.gvl.model import GVL
from fakes.chat_server import Request, ScriptedServer

LABELS = {
    "anchor": "The first scene, worth 0 percent by definition:",
    "frame": r"Frame (?P<number>\d+):",
    "failure": r"Failed attempt (?P<example>\d+), picture (?P<number>\d+):",
    "reference": r"Rejected attempt (?P<example>\d+), picture (?P<number>\d+), (?P<percent>\d+) percent:",
}
FEEDBACK = write_feedback("\0", "", 0).split("\0")[0]


def colour(index: int, blue: int = 40) -> tuple[int, int, int]:
    """Red rises with time, green falls: neither survives a swap of channels."""
    return (10 + 8 * index, 250 - 8 * index, blue)


def coloured(
    id: str, frames: int = 20, blue: int = 40, instruction: str = "put the cup away", group: str = "", **changes: Any
) -> Episode:
    images = np.stack([np.full((24, 32, 3), colour(i, blue), dtype=np.uint8) for i in range(frames)])
    made = Episode.from_array(images, instruction, id=id)
    return replace(made, origin=Origin(group=group or f"session of {id}"), **changes)


def failed(note: str = "", **changes: Any) -> Outcome:
    return Outcome("human", success=False, note=note, by="us", **changes)


@dataclass(frozen=True)
class PromptImage:
    """One image of a request, and the label before it: anchor, frame, failure or reference, and its numbers."""

    role: str
    rgb: tuple[int, int, int]
    size: tuple[int, int]
    mode: str
    number: int = 0
    example: int = 0
    percent: int = 0

    @property
    def index(self) -> int:
        """The frame that it shows, read from its colour."""
        return round((self.rgb[0] - 10) / 8)

    @property
    def blue(self) -> int:
        return self.rgb[2]


def read_label(text: str) -> tuple[str, dict[str, int]]:
    for role, pattern in LABELS.items():
        if match := re.fullmatch(pattern, text):
            return role, {name: int(value) for name, value in match.groupdict().items()}
    raise AssertionError(f"not a label: {text}")


def images_of(request: Request) -> list[PromptImage]:
    found, text, images = [], "", iter(request.images)
    for part in request.parts:
        if part["type"] == "text":
            text = part["text"]
            continue
        role, numbers = read_label(text)
        image = Image.open(io.BytesIO(next(images)))
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3).mean(axis=0).round().astype(int)
        found.append(PromptImage(role, tuple(pixels.tolist()), image.size, image.mode, **numbers))
    return found


def frames_to_rate(request: Request) -> dict[int, PromptImage]:
    return {image.number: image for image in images_of(request) if image.role == "frame"}


def is_feedback(request: Request) -> bool:
    return FEEDBACK in request.text


class Watcher:
    """A scripted model that records its requests. By default it answers the truth: percent = 4 x frame index."""

    def __init__(self, percents: Callable[[Request, dict[int, PromptImage]], Any] | None = None) -> None:
        self.requests: list[Request] = []
        self.percents = percents or (lambda request, shown: entries({n: 4 * image.index for n, image in shown.items()}))

    def __call__(self, request: Request) -> dict[str, Any] | str:
        self.requests.append(request)
        if is_feedback(request):
            return {"failures": ["The cup is dropped.", "The robot stops half-way."]}
        said = self.percents(request, frames_to_rate(request))
        return said if isinstance(said, str) else json.dumps(said)

    @property
    def about_rollouts(self) -> list[Request]:
        return [request for request in self.requests if not is_feedback(request)]


def entries(percents: dict[int, Any]) -> dict[str, Any]:
    return {"frames": [{"frame": n, "description": "seen", "percent": value} for n, value in percents.items()]}


def gvl(server: ScriptedServer, folder: Path, options: str = "", **changes: Any) -> GVL:
    settings = {"url": server.url, "model": "simulated", "cache": str(folder / "answers.sqlite"), **changes}
    OPENED.append(GVL(options, **settings))
    return OPENED[-1]


OPENED: list[GVL] = []


@pytest.fixture(autouse=True)
def close_models() -> Iterator[None]:
    """Close every model of a test; import it where `gvl` is used."""
    yield
    while OPENED:
        OPENED.pop().close()
