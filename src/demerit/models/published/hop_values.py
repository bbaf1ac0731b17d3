"""From signed steps to progress: what is said of single hops, added up; a hop that nobody could read ends the sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Hops = Sequence[float | None]
"""shares from -1 to 1, None where the answer could not be read"""


def of_what_remains(before: float, hop: float) -> float:
    """Gain a share of what remained, or lose a share of what there was: p + (1 - p) h, or p + p h for h < 0.

    Robo-Dopamine's rule. Its public code takes a negative first hop as it is, so that progress begins below 0; here
    there is nothing to lose at the start.
    """
    return before + (1 - before) * hop if hop >= 0 else before + before * hop


def of_the_rest(before: float, hop: float) -> float:
    """Gain or lose a share of what remained: p + (1 - p) h, also for h < 0, so that it may fall below 0."""
    return before + (1 - before) * hop


def added_up(hops: Hops, step: Callable[[float, float], float]) -> Floats:
    """Progress at every frame, from 0 at the first; NaN from the first unreadable hop on, as nobody knows it there."""
    values = [0.0]
    for hop in hops:
        values.append(float("nan") if hop is None else step(values[-1], hop))
    return np.array(values)


def each_by_itself(hops: Hops, first: float) -> Floats:
    """Progress at every frame where each was compared with one that stays the same."""
    return np.array([first, *(float("nan") if hop is None else hop for hop in hops)])


def unread(said: Sequence[str], hops: Hops) -> str:
    """Say which answers could not be read; the empty string if all could."""
    odd = [f"hop {at}: {text!r}" for at, (text, hop) in enumerate(zip(said, hops, strict=True), 1) if hop is None]
    if not odd:
        return ""
    more = f" and {len(odd) - 2} more" if len(odd) > 2 else ""  # noqa: PLR2004
    return f"no signed percentage in the answer to {', '.join(odd[:2])}{more}"
