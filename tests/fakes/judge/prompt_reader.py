"""How the simulated judge reads a request: the frames to rate and the examples before them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from demerit.models.gvl.prompt import ANCHOR_LABEL, fill_prompt

_LABELS = {
    "anchor": re.compile(re.escape(ANCHOR_LABEL)),
    "frame": re.compile(r"Frame (?P<number>\d+):"),
    "failure": re.compile(r"Failed attempt (?P<example>\d+), picture (?P<number>\d+):"),
    "reference": re.compile(r"Rejected attempt (?P<example>\d+), picture (?P<number>\d+), (?P<percent>\d+) percent:"),
}


@dataclass(frozen=True)
class ImageLabel:
    """The text before an image: anchor, frame, failure or reference, and its numbers."""

    role: str
    number: int = 0
    example: int = 0
    percent: int = 0

    @classmethod
    def read(cls, text: str) -> ImageLabel | None:
        """Read a label; None for any other text."""
        for role, pattern in _LABELS.items():
            if match := pattern.fullmatch(text.strip()):
                return cls(role, **{name: int(value) for name, value in match.groupdict().items()})
        return None


@dataclass
class ReadPrompt:
    """What a request to rate frames, or to distil remarks, holds."""

    anchor: bytes | None = None
    frames: dict[int, bytes] = field(default_factory=dict)
    """images to rate by their number"""
    failed: dict[int, list[bytes]] = field(default_factory=dict)
    """images of failed attempts, by the number of the attempt"""
    rejected: dict[int, list[tuple[bytes, float]]] = field(default_factory=dict)
    """images with their value (0 to 1) of rejected attempts, by the number of the attempt"""
    descriptions: str = ""
    remarks: str = ""
    most: int = 0
    """how many descriptions may be distilled"""


def read_prompt(body: Mapping[str, Any]) -> ReadPrompt:
    """Read the body of a chat-completions request made from demerit's prompts."""
    prompt = ReadPrompt()
    label: ImageLabel | None = None
    for part in _parts(body):
        if isinstance(part, bytes):
            _place_image(prompt, label, part)
            label = None
            continue
        label = ImageLabel.read(part.strip().rpartition("\n")[2])
        if found := _read_blanks("failures", part, "failures"):
            prompt.descriptions = found["failures"]
        if found := _read_blanks("feedback", part, "task", "remarks", "count"):
            prompt.remarks, prompt.most = found["remarks"], int(found["count"])
    return prompt


def _place_image(prompt: ReadPrompt, label: ImageLabel | None, image: bytes) -> None:
    if label is None:
        return
    if label.role == "anchor":
        prompt.anchor = image
    elif label.role == "frame":
        prompt.frames[label.number] = image
    elif label.role == "failure":
        prompt.failed.setdefault(label.example, []).append(image)
    else:
        prompt.rejected.setdefault(label.example, []).append((image, label.percent / 100))


def _parts(body: Mapping[str, Any]) -> Iterator[str | bytes]:
    for message in body.get("messages", ()):
        content = message.get("content") or ""
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if part.get("type") == "image_url":
                yield _decode(part["image_url"]["url"])
            else:
                yield str(part.get("text", ""))


def _decode(url: str) -> bytes:
    try:
        return base64.b64decode(url.partition("base64,")[2], validate=True)
    except binascii.Error:
        return b""


def _read_blanks(name: str, text: str, *blanks: str) -> dict[str, str]:
    """Read what was filled into a prompt; empty if the text is not that prompt."""
    pieces = fill_prompt(name, **{blank: "\0" for blank in blanks}).split("\0")
    found = []
    _, there, rest = text.partition(pieces[0])
    for piece in pieces[1:]:
        if not there:
            return {}
        filled, there, rest = rest.partition(piece) if piece else (rest, "end", "")
        found.append(filled)
    return dict(zip(blanks, found, strict=True)) if there else {}
