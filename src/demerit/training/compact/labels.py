"""What a dataset says of its episodes, and which of them another one has too: no frame is decoded for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.frames import short_hash
from demerit.data.labels import Outcome, Preference
from demerit.errors import BadInput, DemeritError

SHOWN = 3
"""episodes that a refusal names"""


def labels_of(data: Dataset) -> str:
    """Hash every id, instruction, label and preference: a corpus that was made from others is another corpus."""
    digest = hashlib.blake2b(digest_size=16)
    for record in data.records():
        digest.update(json.dumps(_said(record)).encode() + b"\n")
    return digest.hexdigest()


def check_apart(trained: Iterable[tuple[str, Dataset]], held_out: Iterable[tuple[str, Dataset]]) -> None:
    """Refuse held-out episodes that are trained on: the same id under the same name, or the same words and pixels."""
    known = {key for name, data in trained for episode in data for key in _keys(name, episode)}
    both = [
        f"{name}: {episode.id}"
        for name, data in held_out
        for episode in data
        if any(key in known for key in _keys(name, episode))
    ]
    if both:
        more = f" and {len(both) - SHOWN} more" if len(both) > SHOWN else ""
        expected = "episodes that are not trained on (equal ids of another dataset go under another NAME)"
        raise BadInput("--held-out", expected, f"{len(both)} that are ({', '.join(both[:SHOWN])}{more})")


def _said(record: Episode | Preference) -> list[Any]:
    if isinstance(record, Preference):
        return ["preference", record.a, record.b, record.verdict, record.source]
    return [record.id, record.instruction, [_label(one) for one in record.outcomes]]


def _label(outcome: Outcome) -> list[Any]:
    """Tell what can be learned from; who wrote it down and in which words changes nothing."""
    curve = None if outcome.curve is None else short_hash(np.ascontiguousarray(outcome.curve, "<f4").tobytes())
    return [outcome.source, outcome.success, outcome.progress, outcome.grade, curve]


def _keys(name: str, episode: Episode) -> Iterator[tuple[str, str, str]]:
    """Yield what an episode is known by; one whose video cannot be read has its id alone, and is left out later."""
    yield "id", name, episode.id
    try:
        yield "pixels", episode.instruction, episode.main.identity()
    except (DemeritError, OSError):
        return
