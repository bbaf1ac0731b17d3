"""The text and images of the prompts: prompt files, image labels, and which frames are shown in which order.

A changed prompt is another model: a hash of all prompt files is on the card. After editing a file in
`assets/prompts/gvl`, give it the next number, in its name and in `VERSIONS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import Indices, short_hash, spread
from demerit.errors import BadInput
from demerit.llm import ChatImage

FOLDER = Path(__file__).parents[2] / "assets" / "prompts" / "gvl"
VERSIONS = {
    "system": 1,
    "task": 1,
    "failures": 1,
    "failure_frames": 1,
    "references": 1,
    "frames": 1,
    "feedback": 1,
}
ANCHOR_LABEL = "The first scene, worth 0 percent by definition:"

PromptPart = str | ChatImage


def frame_label(number: int) -> str:
    """Label a frame to rate, numbered from 1 in the order shown."""
    return f"Frame {number}:"


def failure_label(example: int, number: int) -> str:
    """Label an image of a failed attempt; both count from 1."""
    return f"Failed attempt {example}, picture {number}:"


def reference_label(example: int, number: int, percent: int) -> str:
    """Label an image of a rejected attempt with its known value; example and number count from 1."""
    return f"Rejected attempt {example}, picture {number}, {percent} percent:"


def fill_prompt(name: str, **blanks: object) -> str:
    """Fill the blanks of a prompt file; `$` in the values is left alone."""
    return Template(_read_prompt(name)).substitute({blank: str(value) for blank, value in blanks.items()})


def prompts_hash() -> str:
    """Hash all prompt files."""
    return short_hash(*(f"{name}-{VERSIONS[name]}\0{_read_prompt(name)}".encode() for name in sorted(VERSIONS)))


@dataclass(frozen=True, eq=False)
class FrameOrder:
    """The frames of an episode that a prompt shows."""

    anchor: int
    """index of the first frame, which has the value 0 by definition"""
    order: Indices
    """indices of the other frames in the order shown; frame number n is order[n - 1]"""

    def __len__(self) -> int:
        """How many frames are rated."""
        return len(self.order)

    def at(self) -> Indices:
        """All indices shown, increasing, the anchor first."""
        return np.sort(np.append(self.order, np.int32(self.anchor))).astype(np.int32)


def choose_frames(length: int, budget: int, seed: str) -> FrameOrder:
    """Spread a budget of frames over an episode and shuffle all but the first, which is the anchor.

    Args:
        length: frames in the episode.
        budget: frames to show, the anchor included.
        seed: decides the order; the same text gives the same order on every machine.
    """
    if budget < 2:  # noqa: PLR2004  # the anchor alone asks nothing
        raise BadInput("frame budget", "at least 2 (the anchor and a frame to rate)", budget)
    if length < 1:
        raise BadInput("episode", "at least one frame", length)
    chosen = spread(length, budget)
    return FrameOrder(int(chosen[0]), shuffle(chosen[1:], seed))


def shuffle(indices: Indices, seed: str) -> Indices:
    """Sort indices by a hash of seed and index: random generators may change between versions."""
    order = sorted(indices.tolist(), key=lambda index: short_hash(seed.encode(), str(index).encode()))
    return np.array(order, dtype=np.int32)


def encode_frames(episode: Episode, indices: Indices, size: int) -> list[ChatImage]:
    """Decode frames of the main camera and encode each as a JPEG of at most `size` pixels a side."""
    return [ChatImage.encode(image, size) for image in episode.main.take(indices)]


@cache
def _read_prompt(name: str) -> str:
    return (FOLDER / f"{name}-{VERSIONS[name]}.txt").read_text(encoding="utf-8").strip()
