"""How the simulated judge reads a request: which pictures are to be judged, and which examples stand before them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from demerit.models.gvl.wording import Label, words

DATA_URL = "base64,"


@dataclass
class Prompt:
    """What a request to judge an attempt, or to distil remarks, holds."""

    anchor: bytes | None = None
    frames: dict[int, bytes] = field(default_factory=dict)
    """pictures to judge by their number"""
    failed: dict[int, list[bytes]] = field(default_factory=dict)
    """pictures of failed attempts, by the number of the attempt"""
    rejected: dict[int, list[tuple[bytes, float]]] = field(default_factory=dict)
    """pictures with their value (0 to 1) of rejected attempts, by the number of the attempt"""
    descriptions: str = ""
    """failures in words"""
    remarks: str = ""
    """what people said, in a request to distil it"""
    most: int = 0
    """how many descriptions may be distilled"""


def read_prompt(body: Mapping[str, Any]) -> Prompt:
    """Read the body of a chat-completions request made from demerit's prompts."""
    prompt = Prompt()
    label: Label | None = None
    for part in _parts(body):
        if isinstance(part, bytes):
            _take(prompt, label, part)
            label = None
            continue
        label = Label.read(part.strip().rpartition("\n")[2])
        if found := _blanks("failures", part, "failures"):
            prompt.descriptions = found["failures"]
        if found := _blanks("feedback", part, "task", "remarks", "count"):
            prompt.remarks = found["remarks"]
            prompt.most = int(found["count"]) if found["count"].isdigit() else 0
    return prompt


def read_parts(body: Mapping[str, Any]) -> tuple[list[str], tuple[bytes, ...]]:
    """Return the texts and the pictures of a request, each in their order."""
    parts = list(_parts(body))
    return [part for part in parts if isinstance(part, str)], tuple(part for part in parts if isinstance(part, bytes))


def _take(prompt: Prompt, label: Label | None, picture: bytes) -> None:
    if label is None:
        return
    if label.role == "anchor":
        prompt.anchor = picture
    elif label.role == "frame":
        prompt.frames[label.number] = picture
    elif label.role == "failure":
        prompt.failed.setdefault(label.example, []).append(picture)
    else:
        prompt.rejected.setdefault(label.example, []).append((picture, label.percent / 100))


def _parts(body: Mapping[str, Any]) -> Iterator[str | bytes]:
    """Texts and pictures in the order of the request."""
    for message in body.get("messages", ()):
        content = message.get("content") or ""
        parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for part in parts:
            if part.get("type") == "image_url":
                yield _picture(part["image_url"]["url"])
            else:
                yield str(part.get("text", ""))


def _picture(url: str) -> bytes:
    try:
        return base64.b64decode(url.partition(DATA_URL)[2], validate=True)
    except binascii.Error:
        return b""


def _blanks(name: str, text: str, *blanks: str) -> dict[str, str]:
    """Read back what was filled into a prompt; nothing when the text does not hold that prompt."""
    pieces = words(name, **{blank: "\0" for blank in blanks}).split("\0")
    found = []
    _, there, rest = text.partition(pieces[0])
    for piece in pieces[1:]:
        if not there:
            return {}
        filled, there, rest = rest.partition(piece) if piece else (rest, "end", "")
        found.append(filled)
    return dict(zip(blanks, found, strict=True)) if there else {}
