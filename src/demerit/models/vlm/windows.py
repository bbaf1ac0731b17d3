"""Which frames a question about time t shows: so many, spread from the first to t."""

from __future__ import annotations

import numpy as np


def window(last: int, count: int) -> tuple[int, ...]:
    """Spread `count` frames over 0..last, both ends in; a shorter clip is shown whole and its last frame repeated."""
    if last < count:
        return (*range(last + 1), *[last] * (count - last - 1))
    return tuple(int(each) for each in np.rint(np.linspace(0, last, count)))


def windows(frames: int, count: int) -> list[tuple[int, ...]]:
    """Return one window for every frame of a video, each ending there: nothing later is ever shown."""
    return [window(last, count) for last in range(frames)]
