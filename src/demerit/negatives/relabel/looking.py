"""The pictures of a video as a prompt shows them: one a second, in the order of time, and the true last frame."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import Frames, Indices, spread
from demerit.llm import ChatImage
from demerit.models.gvl.frames import pictures


@dataclass(eq=False)
class Looker:
    """Decodes pictures, one video at a time: threads that wait for answers share one decoder."""

    fps: float
    most: int
    size: int
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def look(self, episode: Episode) -> tuple[str | ChatImage, ...]:
        """Return what a message holds: before each picture the second that it shows."""
        with self._one_at_a_time:
            chosen = each_second(episode.main, self.fps, self.most)
            times = episode.main.times()[chosen]
            seen = pictures(episode, chosen, self.size)
        parts: list[str | ChatImage] = []
        for place, (time, picture) in enumerate(zip(times, seen, strict=True)):
            last = ", the last" if place == len(seen) - 1 else ""
            parts += [f"Picture {place + 1}{last}, at {time:.1f} s:", picture]
        return tuple(parts)


def each_second(frames: Frames, fps: float, most: int) -> Indices:
    """Choose the first frame at or after each tick 0, 1/fps, 2/fps ..., and the last frame.

    More than `most` of them are thinned evenly; the first and the last always stay.
    """
    times = frames.times()
    ticks = np.arange(0, float(times[-1]) + 1e-9, 1 / fps)
    chosen = np.unique(np.append(np.searchsorted(times, ticks - 1e-9), len(times) - 1))
    return np.asarray(chosen[spread(len(chosen), most)], dtype=np.int32)
