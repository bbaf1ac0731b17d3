"""Which episodes to label next: those from which the lesson would learn most, and no two alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from demerit.models.taught.head import Floats, Head
from demerit.training.teach.calibrate import Calibration
from demerit.training.teach.lesson import Lesson, Seen

MOST = 20
SHARES = {"torn": 0.4, "near": 0.3, "novel": 0.3}
"""how much each reason counts"""
NEAR = 0.2
"""how far from the threshold a probability is still near it"""
LITTLE = 0.15
"""an episode that is worth less than this would teach little"""


@dataclass(frozen=True)
class Suggestion:
    """One episode that is worth a label."""

    episode: str
    instruction: str
    probability: float
    """of success, as the model sees it now"""
    torn: float
    """how far the heads of the folds are apart, 0 to 1"""
    near: float
    """how near it is to the threshold, 0 to 1"""
    novel: float
    """how unlike it is to everything that was taught, 0 to 1"""
    reason: str

    def as_facts(self) -> dict[str, Any]:
        """Write it as plain values."""
        return asdict(self)


def suggest(
    lesson: Lesson,
    heads: Sequence[Head],
    head: Head,
    calibration: Calibration,
    unlabelled: Sequence[Seen],
    most: int = MOST,
) -> list[Suggestion]:
    """Rank unlabelled episodes by what a label would teach; each next one also by how unlike it is to those before."""
    if not unlabelled:
        return []
    calibrated = [replace(one, steep=calibration.steep, middle=calibration.middle) for one in (heads or [head])]
    features = [lesson.room.features(seen) for seen in unlabelled]
    probabilities = np.array(
        [[one.success(one.outputs(x[-1:], lesson.tasks.get(seen.words, "")))[0] for one in calibrated]
         for x, seen in zip(features, unlabelled, strict=True)]
    )  # fmt: skip
    ends = np.stack([_summary(head, x) for x in features])
    taught = np.stack([_summary(head, lesson.x(place)) for place in range(len(lesson))])
    threshold = calibration.threshold if calibration.threshold is not None else 0.5
    mean = probabilities.mean(axis=1)
    parts = {
        "torn": np.clip(2 * probabilities.std(axis=1), 0, 1),
        "near": np.exp(-(((mean - threshold) / NEAR) ** 2)),
        "novel": _novelty(ends, taught),
    }
    worth = np.sum([SHARES[name] * values for name, values in parts.items()], axis=0)
    chosen = list(_diverse(worth, ends, min(most, len(unlabelled))))
    return [_suggestion(unlabelled[i], float(mean[i]), {k: float(v[i]) for k, v in parts.items()}) for i in chosen]


def _suggestion(seen: Seen, probability: float, parts: dict[str, float]) -> Suggestion:
    words = {
        "torn": f"what was taught does not agree on it: heads of different folds are far apart ({parts['torn']:.2f})",
        "near": f"it is near the line between success and failure ({probability:.2f})",
        "novel": "it looks unlike anything that was taught",
    }
    top = max(parts, key=lambda name: SHARES[name] * parts[name])
    if sum(SHARES[name] * value for name, value in parts.items()) < LITTLE:
        words[top] = "little would be learned from it: what was taught covers it"
    return Suggestion(seen.id, seen.episode.instruction, round(probability, 4), reason=words[top],
                      **{name: round(value, 4) for name, value in parts.items()})  # fmt: skip


def _summary(head: Head, x: np.ndarray[Any, Any]) -> Floats:
    """What an episode looks like: its end and its middle, standardised."""
    z = head.standard(np.asarray(x, dtype=np.float64))
    return np.concatenate([z[-1], z[len(z) // 2]])


def _distances(a: Floats, b: Floats) -> Floats:
    squared = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
    return np.asarray(np.sqrt(np.maximum(squared, 0)))


def _novelty(ends: Floats, taught: Floats) -> Floats:
    """Distance to the nearest taught episode, against what is usual among the taught: d / (d + 2 usual)."""
    among = _distances(taught, taught)
    np.fill_diagonal(among, np.inf)
    usual = float(np.median(among.min(axis=1))) if len(taught) > 1 else 1.0
    nearest = _distances(ends, taught).min(axis=1)
    return np.asarray(nearest / (nearest + 2 * max(usual, 1e-9)))


def _diverse(worth: Floats, ends: Floats, count: int) -> Iterator[int]:
    apart = _distances(ends, ends)
    usual = max(float(np.median(apart)), 1e-9)
    to_chosen = np.full(len(worth), np.inf)
    left = np.ones(len(worth), dtype=bool)
    for _ in range(count):
        value = np.where(left, worth * (0.5 + 0.5 * np.minimum(1, to_chosen / usual)), -np.inf)
        best = int(np.argmax(value))
        yield best
        left[best] = False
        to_chosen = np.minimum(to_chosen, apart[best])
