"""Small simulated scenes for tests of the simulated judge: moving squares with a measured curve."""

from __future__ import annotations

from typing import Any

import numpy as np

from demerit.data.episode import Episode, Origin
from demerit.data.frames import Frames
from demerit.data.labels import Event, Outcome
from demerit.llm import ChatImage, Message
from demerit.models.gvl.prompt import (
    ANCHOR_LABEL,
    failure_label,
    fill_prompt,
    frame_label,
    reference_label,
)
from fakes.judge.truth import NAME

FRAMES = 16


def scene(group: int, size: int = 64) -> np.ndarray:
    """Paint the background of a scene: soft blotches, others in every scene."""
    blotches = np.random.default_rng(group).integers(40, 215, (4, 4, 3)).astype(np.uint8)
    return blotches.repeat(size // 4, axis=0).repeat(size // 4, axis=1)


def attempt(group: int, curve: np.ndarray, kind: str = "", task: str = "push the square") -> Episode:
    """Make an attempt: a square as far to the right as the task is done, and an arm that goes its own way.

    All attempts in a scene begin with the same picture.
    """
    images = np.stack([scene(group)] * len(curve))
    lift = 3 * len(kind) % 13
    for time, (image, done) in enumerate(zip(images, curve, strict=True)):
        left, along = int(4 + 40 * done), time / (len(curve) - 1)
        image[28:44, left : left + 16] = (250, 20, 20)
        top, front = 2 + round(lift * min(1.0, 4 * along)), round(48 * along)
        image[top : top + 8, front : front + 16] = (10, 10, 10)
    success = bool(curve[-1] == 1)
    events = (Event(kind, len(curve) // 2, len(curve) - 1),) if kind else ()
    outcome = Outcome("simulator", success=success, progress=float(curve[-1]), curve=curve, events=events, by="test")
    name = kind or ("success" if success else "failure")
    return Episode(
        f"{group}/{name}",
        task,
        {"main": Frames.from_array(images)},
        outcomes=(outcome,),
        origin=Origin(group=str(group), tags={"task": task}),
    )


def done() -> np.ndarray:
    return np.linspace(0, 1, FRAMES, dtype=np.float32)


def dropped() -> np.ndarray:
    return np.minimum(done(), 0.9) * (np.arange(FRAMES) < FRAMES // 2).astype(np.float32)


def stopped() -> np.ndarray:
    return np.minimum(done(), 0.25).astype(np.float32)


def attempts(groups: int = 6) -> list[Episode]:
    """In each scene a success, a drop and an attempt that stops early."""
    found = []
    for group in range(groups):
        found += [
            attempt(group, done()),
            attempt(group, dropped(), "dropped"),
            attempt(group, stopped(), "incomplete"),
        ]
    return found


def request(
    episode: Episode,
    at: list[int],
    descriptions: list[str] | None = None,
    failed: list[Episode] | None = None,
    rejected: list[tuple[Episode, list[float]]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Write the body of a request as the prompts do: frames `at`, and whatever examples there are."""
    parts: list[str | ChatImage] = [fill_prompt("task", task=episode.instruction), ANCHOR_LABEL]
    parts.append(ChatImage.encode(episode.main.take([0])[0], 64))
    if descriptions:
        parts.append(fill_prompt("failures", failures="\n".join(descriptions)))
    for number, (other, values) in enumerate(rejected or [], 1):
        for picture, value in enumerate(values):
            parts.append(reference_label(number, picture + 1, round(100 * value)))
            parts.append(ChatImage.encode(other.main.take([picture])[0], 64))
    for number, other in enumerate(failed or [], 1):
        for picture in (4, 8, 12):
            parts += [failure_label(number, picture), ChatImage.encode(other.main.take([picture])[0], 64)]
    parts.append(fill_prompt("frames", count=len(at)))
    for number, frame in enumerate(at, 1):
        parts += [frame_label(number), ChatImage.encode(episode.main.take([frame])[0], 64)]
    messages = [Message.system(fill_prompt("system")).as_json(), Message.user(*parts).as_json()]
    return {"model": NAME, "messages": messages, **more}
