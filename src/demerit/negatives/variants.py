"""Edits that keep the label: one labelled episode becomes several. They take failures too, as nothing else here does.

The label is copied from the trusted one (a person's, a simulator's or a rule's, never a model's); its source becomes
`edit`, and its note says why it stays true. A label is about what happened, and the world is not edited: only the
camera, the light and the clock are. Events are what can be *seen* from frame to frame, so `crop` and `cover`, which may
hide one, drop them. Nothing is mirrored (left would be right).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from demerit.data.arrays import Ints
from demerit.data.episode import Episode, Event, Outcome, plain_words
from demerit.data.frames import alter
from demerit.data.stages import StageSpan
from demerit.errors import NotApplicable
from demerit.negatives.edits import build_edited, move_spans
from demerit.negatives.negative import load_negative, negative, require_label

LEAST_KEPT = 0.88
"""of each side of the picture, after a crop"""
COLOUR, BALANCE, LIGHT = 0.15, 0.03, 0.06
"""most that all channels are multiplied by more or less, one channel beyond that, and light that is added"""
SMALLEST_COVER, LARGEST_COVER = 0.1, 0.2
"""of each side of the picture: at most a twenty-fifth of it is covered"""
LEAST_PACE, MOST_PACE = 1.15, 1.4
"""how many times as long it takes, or as short"""
LEAST_HELD, MOST_HELD = 0.05, 0.15
"""of the episode's length; a held success is done in its last fifth, where `teach` looks for it"""
SPEED_WORDS = frozenset(
    "fast faster quick quickly rapidly slow slower slowly gently second seconds minute minutes".split()
)


@negative("crop", keeps="the camera looks closer, what happened is the same")
def crop(episode: Episode, rng: np.random.Generator, *, box: Sequence[float] | None = None) -> Episode:
    """Cut off up to 12% of the width and the height, and enlarge the rest: a shift and a zoom. The label stays."""
    if box is None:
        sides = rng.uniform(LEAST_KEPT, 1, 2)
        box = _numbers(*(rng.uniform(0, 1, 2) * (1 - sides)), *sides)
    return _alter(episode, "crop", "box", box, may_hide=True)


@negative("recolour", keeps="light and camera differ, what happened is the same")
def recolour(episode: Episode, rng: np.random.Generator, *, levels: Sequence[float] | None = None) -> Episode:
    """Change brightness and contrast, and the colours a little. The label stays."""
    if levels is None:
        gains = rng.uniform(1 - COLOUR, 1 + COLOUR) * rng.uniform(1 - BALANCE, 1 + BALANCE, 3)
        levels = _numbers(*gains, rng.uniform(-LIGHT, LIGHT))
    return _alter(episode, "recolour", "levels", levels)


@negative("cover", keeps="something small hides an edge of the picture, what happened is the same")
def cover(episode: Episode, rng: np.random.Generator, *, box: Sequence[float] | None = None) -> Episode:
    """Paint a grey box of at most 4% of the picture at one of its edges. The label stays."""
    if box is None:
        sides, corner, edge = rng.uniform(SMALLEST_COVER, LARGEST_COVER, 2), rng.uniform(0, 1, 2), int(rng.integers(4))
        corner[edge % 2] = edge // 2
        box = _numbers(*(corner * (1 - sides)), *sides, rng.uniform(0, 1))
    return _alter(episode, "cover", "box", box, may_hide=True)


@negative("pace", keeps="the same frames, faster or slower: it ends as it did")
def pace(episode: Episode, rng: np.random.Generator, *, factor: float | None = None) -> Episode:
    """All of it, from the first to the last frame, 1.15 to 1.4 times as slow or as fast. The label stays."""
    if SPEED_WORDS & set(plain_words(episode.instruction)):
        raise NotApplicable("its instruction asks for a speed")
    if factor is None:
        factor = round(float(rng.uniform(LEAST_PACE, MOST_PACE) ** rng.choice([-1, 1])), 3)
    length = len(episode)
    indices = np.rint(np.linspace(0, length - 1, max(0, round(length * factor)))).astype(np.int64)
    lone = _lone_frames(require_label(episode), length)
    indices = np.sort(np.concatenate([indices, np.setdiff1d(lone, indices)]))
    if len(indices) in (0, 1, length):
        raise NotApplicable("it has too few frames to play them at another pace")
    return _keep_label(episode, "pace", {"factor": factor}, indices)


@negative("hold", keeps="the last frame stays: nothing more happens, and the end decides the label")
def hold(episode: Episode, rng: np.random.Generator, *, frames: int | None = None) -> Episode:
    """Repeat the last frame for 5 to 15% more time. The label stays."""
    length = len(episode)
    frames = max(1, round(length * rng.uniform(LEAST_HELD, MOST_HELD))) if frames is None else frames
    if frames < 1 or not length:
        raise NotApplicable("there is no frame to hold")
    return _keep_label(episode, "hold", {"frames": frames}, np.minimum(np.arange(length + frames), length - 1))


def _lone_frames(label: Outcome, length: int) -> Ints:
    """Return the frames that are alone in having a mark, an event or a stage: a faster pace must not leave them out."""
    known = np.zeros(0, dtype=bool) if label.curve is None else np.pad(~np.isnan(label.curve[:length]), 1)
    marks = np.flatnonzero(known[1:-1] & ~known[:-2] & ~known[2:]).tolist()
    spans: tuple[Event | StageSpan, ...] = (*label.events, *label.stages)
    alone = [span.first for span in spans if span.first == span.last < length]
    return np.array([*marks, *alone], dtype=np.int64)


def _numbers(*values: float) -> list[float]:
    return [round(float(value), 4) for value in values]


def _alter(episode: Episode, name: str, param: str, numbers: Sequence[float], may_hide: bool = False) -> Episode:
    """Change the pictures of every camera in the same way."""
    views = {camera: alter(frames, name, numbers) for camera, frames in episode.views.items()}
    seen = replace(_keep_label(episode, name, {param: list(numbers)}), views=views)
    (label,) = seen.outcomes
    return replace(seen, outcomes=(replace(label, events=()),)) if may_hide else seen


def _keep_label(episode: Episode, name: str, params: dict[str, object], indices: Ints | None = None) -> Episode:
    """Build the edited episode, of these frames of every camera, with the label of the original."""
    label = require_label(episode)
    views = episode.views
    curve, events, stages = label.curve, label.events, label.stages
    if indices is not None:
        if len({len(frames) for frames in views.values()}) > 1:
            raise NotApplicable("its cameras have different numbers of frames")
        views = {camera: frames.select(indices) for camera, frames in views.items()}
        curve = None if curve is None or len(curve) != len(episode) else curve[indices]
        events, stages = tuple(move_spans(events, indices)), tuple(move_spans(stages, indices))
    note = f"{load_negative(name).keeps} (label: {f'{label.source} {label.by}'.strip()})"
    kept = replace(label, source="edit", by=name, note=note, curve=curve, events=events, stages=stages)
    return build_edited(episode, name, params, kept, views=views)
