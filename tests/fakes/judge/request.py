"""A question as it arrives at the simulated server, and how busy questions keep it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Request:
    """One question as it arrived."""

    body: dict[str, Any]
    number: int
    """how many requests came before it"""
    attempt: int
    """how many times the same question came before"""
    question: str
    """a hash of everything that can change the answer"""

    @property
    def text(self) -> str:
        """All its words, in order, a line per part."""
        return "\n".join(part["text"] for part in self.parts if part.get("type") == "text")

    @property
    def images(self) -> list[bytes]:
        """The bytes of its images, in order."""
        urls = [part["image_url"]["url"] for part in self.parts if part.get("type") == "image_url"]
        return [base64.b64decode(url.split(",", 1)[1]) for url in urls]

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Text and images of all messages in the order in which a model would see them."""
        out: list[dict[str, Any]] = []
        for message in self.body["messages"]:
            content = message["content"]
            out += [{"type": "text", "text": content}] if isinstance(content, str) else content
        return out

    @property
    def seed(self) -> int:
        """The number of the sample, 0 where none was sent."""
        return int(self.body.get("seed") or 0)


Answer = Callable[[Request], "dict[str, Any] | str"]
"""text; an object to be written as JSON; or a whole completion (an object with `choices`)"""


class Busy:
    """How many requests were under way, over time."""

    def __init__(self) -> None:
        """Start with none."""
        self._lock = threading.Lock()
        self._now, self._area, self._first, self._last = 0, 0.0, math.nan, math.nan
        self.most = 0

    def change(self, by: int) -> None:
        """Note that a request came or went."""
        with self._lock:
            now = time.monotonic()
            if math.isnan(self._first):
                self._first = self._last = now
            self._area += self._now * (now - self._last)
            self._now, self._last = self._now + by, now
            self.most = max(self.most, self._now)

    def share(self, slots: int) -> float:
        """The share of `slots` that was in use on average, from the first request to the end of the last."""
        with self._lock:
            return self._area / (slots * (self._last - self._first)) if self._last > self._first else 0.0


def question_hash(body: dict[str, Any]) -> str:
    """Name a question by what decides its answer; the same one in another response format is still the same."""
    mark = "It must fit this JSON Schema"
    messages = [
        message
        for message in body["messages"]
        if not (isinstance(message["content"], str) and mark in message["content"])
    ]
    facts = [body.get("model"), messages, body.get("temperature"), body.get("seed")]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
