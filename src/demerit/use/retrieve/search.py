"""Ranking windows by an instruction or by examples, and merging overlapping hits to segments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.files import atomic_folder, write_json
from demerit.data.importing import import_dataset
from demerit.data.instructions import normalize_instruction
from demerit.errors import BadInput
from demerit.models.compact.engine import Engine
from demerit.use.retrieve.index import PlayWindows, Vectors

SEGMENTS = "segments.json"
LONGEST = 2.0
"""the longest segment, in windows"""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PlaySegment:
    """A part of a recording."""

    episode: Episode
    """the recording"""
    first: int
    last: int
    score: float
    """standard deviations above the mean window"""
    gain: float = math.nan
    """a model's value at the end minus that at the start; NaN = unscored, or no model"""

    def cut(self, instruction: str) -> Episode:
        """Make an episode of it; the recording's labels are not its labels."""
        whole, origin = self.episode, self.episode.origin
        part = whole.select(np.arange(self.first, self.last + 1))
        tags = {**origin.tags, "retrieved": f"{self.score:.3f}"}
        origin = replace(origin, parent=whole.id, group=origin.group or whole.id, tags=tags)
        name = f"{whole.id}/{self.first}-{self.last}"
        return replace(part, id=name, instruction=instruction, outcomes=(), origin=origin)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        times = self.episode.main.times()
        seconds = [round(float(times[at]), 3) for at in (self.first, self.last)]
        span = {"episode": self.episode.id, "first": self.first, "last": self.last, "seconds": seconds}
        return {**span, "score": self.score, "gain": None if math.isnan(self.gain) else self.gain}


def score_by_text(windows: PlayWindows, engine: Engine, instruction: str) -> Floats:
    """Rank windows by how well they end as episodes of the instruction, for the default network."""
    return _standardize(engine.rank_clips(windows.vectors, instruction))


def score_by_examples(windows: PlayWindows, examples: Vectors) -> Floats:
    """Rank windows by how they look and what changes in them, as in the examples (n, 8, columns).

        x = mean of a window's frames, or last minus first; m and C = mean and covariance over all windows, d columns
        s(x) = (x - m) . (C + tr(C)/d I)^-1 (mean over the examples - m), in standard deviations
        score = s(mean) + s(change)

    s is Fisher's discriminant of the examples against all windows, of which few show the task.
    """
    pairs = zip(_summarize(windows.vectors), _summarize(examples), strict=True)
    return _standardize(np.sum([_discriminate(x, shown.mean(axis=0)) for x, shown in pairs], axis=0))


def _discriminate(x: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32]) -> Floats:
    mean = x.mean(axis=0)
    centred = x - mean
    covariance = centred.T @ centred / len(x)
    ridge = max(float(np.trace(covariance)) / len(covariance), 1e-9) * np.eye(len(covariance))
    return _standardize(centred @ np.linalg.solve(covariance + ridge, wanted - mean))


def _summarize(vectors: Vectors) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the mean of the frames, and the last minus the first."""
    change = vectors[:, -1].astype(np.float32) - vectors[:, 0].astype(np.float32)
    return vectors.mean(axis=1, dtype=np.float32), change


def pick_examples_of(instruction: str, dataset: Dataset) -> list[Episode]:
    """Return the episodes of the instruction, or of none, that are not labelled failures."""
    wanted, others = normalize_instruction(instruction), set[str]()
    found = []
    for episode in dataset:
        own = normalize_instruction(episode.instruction)
        others |= {episode.instruction} if own not in ("", wanted) else set()
        if own in ("", wanted) and (episode.outcome is None or episode.outcome.success is not False):
            found.append(episode)
    if not found:
        got = f"those of {', '.join(map(repr, sorted(others)[:3]))}" if others else "failures or nothing"
        raise BadInput(f"examples in {dataset.name}", f"some of {instruction!r} (in these words) that succeed", got)
    return found


def merge_hits(windows: PlayWindows, scores: Floats, top: int) -> list[PlaySegment]:
    """Return the best segments, best first. A hit that overlaps a better one extends it, up to twice its length."""
    found: list[PlaySegment] = []
    by_owner: dict[int, list[int]] = {}
    lengths: list[int] = []
    for at in np.argsort(-scores, kind="stable"):
        owner, (first, last) = int(windows.owner[at]), (int(x) for x in windows.spans[at])
        near = [i for i in by_owner.get(owner, ()) if first <= found[i].last and last >= found[i].first]
        if near:
            i = near[0]  # the best one
            low, high = min(first, found[i].first), max(last, found[i].last)
            others = [found[k] for k in by_owner[owner] if k != i]
            is_free = all(high < other.first or low > other.last for other in others)
            if is_free and high - low + 1 <= LONGEST * lengths[i]:
                found[i] = replace(found[i], first=low, last=high)
        elif len(found) < top:
            by_owner.setdefault(owner, []).append(len(found))
            lengths.append(last - first + 1)
            found.append(PlaySegment(windows.episodes[owner], first, last, float(scores[at])))
        else:
            break
    return found


def write_segments(segments: Sequence[PlaySegment], instruction: str, dataset: Dataset, dest: str | Path) -> None:
    """Write the segments as episodes of a new demerit folder that refers to the videos: whole, or nothing."""
    with atomic_folder(dest) as folder:
        cut = [segment.cut(instruction) for segment in segments]
        view = Dataset.from_episodes(cut, dataset.name)
        view.address = f"retrieve:{dataset.address}"
        import_dataset(view, folder)
        facts = [segment.as_dict() for segment in segments]
        write_json(folder / SEGMENTS, {"source": dataset.address, "instruction": instruction, "segments": facts})


def _standardize(scores: npt.NDArray[Any]) -> Floats:
    wide = scores.astype(np.float64)
    return np.asarray((wide - wide.mean()) / max(float(wide.std()), 1e-9))
