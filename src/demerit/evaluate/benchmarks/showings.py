"""How episodes are shown to a model: as recorded, reversed, shuffled, or under another instruction.

A showing is named in the report, and what it does follows from the name and the episode alone: whoever recomputes a
report knows which frame stood where without being told.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.frames import short_hash
from demerit.errors import BadInput
from demerit.evaluate.reports.report import AS_RECORDED, Judged

REVERSED = "reversed"
SHUFFLED = "shuffled"
TOLD = "told"
KINDS = (REVERSED, SHUFFLED, TOLD)
"""what a benchmark can ask for beyond as recorded"""
MOST_TASKS = 8
"""size of the video x instruction matrix: 8 x 7 further queries of a model, whatever the size of the dataset"""


@dataclass(frozen=True)
class Showing:
    """One way of showing some of the episodes."""

    name: str
    episodes: frozenset[str]

    def show(self, episode: Episode) -> Episode:
        """Make the episode that the model gets; it keeps its id."""
        if self.name == AS_RECORDED:
            return episode
        if self.name.startswith(f"{TOLD}: "):
            return replace(episode, instruction=self.name.removeprefix(f"{TOLD}: "))
        one_camera = replace(episode, views={episode.main_camera: episode.main})
        return one_camera.select(frame_order(self.name, episode.id, len(episode)))


@dataclass(frozen=True)
class Probe:
    """A video of one task, with the words that belong to it."""

    episode: str
    task: str
    words: str


def frame_order(showing: str, episode: str, frames: int) -> npt.NDArray[np.int64]:
    """Return the true index of each presented frame.

    A shuffle sorts the frames by a hash of the episode's id and their number: the same on every machine. The first
    frame stays in its place: a model of progress may well need to know where it began.
    """
    if showing == REVERSED:
        return np.arange(frames, dtype=np.int64)[::-1]
    if showing == SHUFFLED:
        keys = [short_hash(f"{episode}\0{i}".encode()) for i in range(frames)]
        mixed = sorted(range(1, frames), key=keys.__getitem__)
        return np.array([*range(min(1, frames)), *mixed], dtype=np.int64)
    return np.arange(frames, dtype=np.int64)


def demonstrations(episodes: Sequence[Judged]) -> list[Judged]:
    """Episodes in which the value should rise: the successes; where nobody judged any, all of them."""
    if all(one.success is None for one in episodes):
        return list(episodes)
    return [one for one in episodes if one.success]


def probes(episodes: Sequence[Judged]) -> list[Probe]:
    """Choose one demonstration for each of at most 8 tasks, in an order that depends on their names only."""
    chosen: dict[str, Judged] = {}
    for one in sorted(demonstrations(episodes), key=lambda one: short_hash(one.id.encode())):
        if one.instruction:
            chosen.setdefault(one.instruction.strip().lower(), one)
    tasks = sorted(chosen, key=lambda task: short_hash(task.encode()))[:MOST_TASKS]
    return [Probe(chosen[task].id, task, chosen[task].instruction) for task in tasks]


def told(words: str) -> str:
    """Name the showing under other words."""
    return f"{TOLD}: {words}"


def showings(kinds: Collection[str], episodes: Sequence[Judged]) -> list[Showing]:
    """List every showing that a benchmark asks for, as recorded first."""
    unknown = set(kinds) - set(KINDS)
    if unknown:
        raise BadInput("showings of a benchmark", f"some of {', '.join(KINDS)}", sorted(unknown))
    found = [Showing(AS_RECORDED, frozenset(one.id for one in episodes))]
    seen = frozenset(one.id for one in demonstrations(episodes))
    found += [Showing(kind, seen) for kind in (REVERSED, SHUFFLED) if kind in kinds and seen]
    if TOLD in kinds:
        asked = probes(episodes)
        for words in asked:
            others = frozenset(probe.episode for probe in asked if probe.task != words.task)
            found += [Showing(told(words.words), others)] if others else []
    return found
