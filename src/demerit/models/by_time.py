"""Frames by time: choose one every N seconds; clips with the time of each frame."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from demerit.data.frames import Images, Indices, Times, spread

MOST_A_SECOND = 1000.0
"""the fastest camera that is believed"""


@dataclass(frozen=True, eq=False)
class TimedClip:
    """Frames of a video and the time of each in seconds."""

    frames: Images
    seconds: Times

    def __len__(self) -> int:
        """Count the frames."""
        return len(self.frames)


@dataclass(frozen=True)
class ByTime:
    """One frame every `step` seconds from the first, and always the last; at most `most`."""

    step: float
    most: int

    def __call__(self, length: int) -> Indices:
        """Choose without times: spread over the video."""
        return spread(length, self.most)

    def by_time(self, times: Times) -> Indices:
        """Choose the frames nearest to 0, step, 2 step ... and the last; spread evenly if those are too many."""
        if not len(times):
            return np.empty(0, np.int32)
        end = float(times[-1]) + 1e-9
        if end / self.step > self.most - 1:  # counted, not made: there may be more than memory holds
            ticks = np.linspace(0.0, float(times[-1]), self.most)
        else:
            ticks = np.arange(0.0, end, self.step)
        middles = (times[1:] + times[:-1]) / 2
        return np.unique([*np.searchsorted(middles, ticks), len(times) - 1]).astype(np.int32)
