"""Episodes with a different colour per frame, and a scripted model that reads the colours: for tests of prompts."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from demerit.data.episode import Episode, Origin
from demerit.data.labels import Outcome
from demerit.models.gvl.model import GVL
from fakes.judge.prompt_reader import ImageLabel, read_prompt
from fakes.judge.server import Request, ScriptedServer


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
    """One image of a request."""

    label: ImageLabel
    rgb: tuple[int, int, int]
    size: tuple[int, int]
    mode: str

    @property
    def index(self) -> int:
        """The frame that it shows, read from its colour."""
        return round((self.rgb[0] - 10) / 8)

    @property
    def blue(self) -> int:
        return self.rgb[2]


def images_of(request: Request) -> list[PromptImage]:
    """Every image with the label before it."""
    found, label = [], None
    images = iter(request.images)
    for part in request.parts:
        if part["type"] == "text":
            label = ImageLabel.read(part["text"])
            continue
        assert label is not None, "an image without a label"
        image = Image.open(io.BytesIO(next(images)))
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3).mean(axis=0).round().astype(int)
        found.append(PromptImage(label, tuple(pixels.tolist()), image.size, image.mode))
    return found


def frames_to_rate(request: Request) -> dict[int, PromptImage]:
    return {one.label.number: one for one in images_of(request) if one.label.role == "frame"}


def is_feedback(request: Request) -> bool:
    return bool(read_prompt(request.body).remarks)


class Watcher:
    """A scripted model that records its requests. By default it answers the truth: percent = 4 x frame index."""

    def __init__(self, percents: Callable[[Request, dict[int, PromptImage]], Any] | None = None) -> None:
        self.requests: list[Request] = []
        self.percents = percents or (lambda request, shown: entries({n: 4 * one.index for n, one in shown.items()}))

    def __call__(self, request: Request) -> dict[str, Any] | str:
        self.requests.append(request)
        if is_feedback(request):
            return {"failures": ["The cup is dropped.", "The robot stops half-way."]}
        said = self.percents(request, frames_to_rate(request))
        return said if isinstance(said, str) else json.dumps(said)

    @property
    def about_rollouts(self) -> list[Request]:
        return [one for one in self.requests if not is_feedback(one)]


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
