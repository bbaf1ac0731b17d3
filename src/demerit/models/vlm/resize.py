"""Pillow's bicubic resizing in whole numbers, to the bit, for frames that are already on a GPU.

Pillow filters bytes with weights of 22 binary digits, first along rows, then along columns, rounding to bytes in
between (Pillow 13 sometimes takes columns first; the published models were made with earlier ones). Whole numbers add
up the same everywhere, so the same sums on another device give the same bytes.
"""

from __future__ import annotations

from functools import cache
from math import ceil

import torch
from torch import Tensor

DIGITS = 22
SUPPORT = 2.0
"""how far the bicubic filter reaches"""


def pillow_resized(frames: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize (n, height, width, 3) uint8 frames to (n, *size, 3) as `Image.resize(..., BICUBIC)` does."""
    height, width = size
    if frames.shape[2] != width:
        frames = _filtered(frames, 2, width)
    if frames.shape[1] != height:
        frames = _filtered(frames, 1, height)
    return frames


def _filtered(frames: Tensor, axis: int, size: int) -> Tensor:
    """Resize along one axis."""
    places, weights = _taps(frames.shape[axis], size, frames.device)
    shape = [1] * frames.ndim
    shape[axis] = size
    total = torch.full((), 1 << (DIGITS - 1), dtype=torch.int32, device=frames.device)
    for place, weight in zip(places, weights, strict=True):
        total = total + frames.index_select(axis, place) * weight.view(shape)
    return (total >> DIGITS).clamp_(0, 255).to(torch.uint8)


@cache
def _taps(old: int, new: int, device: torch.device) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return, tap by tap, which old pixel each new one takes and with what whole-number weight."""
    scale = old / new
    wide = max(scale, 1.0)
    taps = ceil(SUPPORT * wide) * 2 + 1
    places = torch.zeros(taps, new, dtype=torch.long)
    weights = torch.zeros(taps, new, dtype=torch.int32)
    for at in range(new):
        centre = (at + 0.5) * scale
        first = max(0, int(centre - SUPPORT * wide + 0.5))
        last = min(old, int(centre + SUPPORT * wide + 0.5))
        raw = [_bicubic((x - centre + 0.5) / wide) for x in range(first, last)]
        for tap, weight in enumerate(raw):
            places[tap, at] = first + tap
            exact = weight / sum(raw) * (1 << DIGITS)
            weights[tap, at] = int(exact - 0.5 if exact < 0 else exact + 0.5)
    used = [tap for tap in range(taps) if weights[tap].any()]
    return tuple(places[tap].to(device) for tap in used), tuple(weights[tap].to(device) for tap in used)


def _bicubic(x: float, a: float = -0.5) -> float:
    x = abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < SUPPORT else 0.0
