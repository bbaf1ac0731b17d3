"""Resize any image to a small square, with the same pixels on every machine, in training and in use.

Each axis is resized separately: by area averages where it shrinks, by linear interpolation where it grows. All
arithmetic is on integers with one rounded division at the end, so no processor or library version changes a pixel.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.frames import IMAGES_DIMENSIONS, RGB, Images
from demerit.errors import BadInput

BRIGHTEST = 255
IntArray = npt.NDArray[Any]


def resize_square(images: Images, side: int) -> Images:
    """Resize (n, height, width, 3) uint8 images to (n, side, side, 3); images of that size are returned as they are."""
    good = images.ndim == IMAGES_DIMENSIONS and images.shape[-1] == RGB and images.dtype == np.uint8
    if not good or 0 in images.shape[1:]:
        got = f"{images.dtype} of shape {images.shape}"
        raise BadInput("images", "uint8 of shape (n, height, width, 3), none of them empty", got)
    if images.shape[1:3] == (side, side):
        return images
    rows, columns = _resampling(images.shape[1], side), _resampling(images.shape[2], side)
    out = np.empty((len(images), side, side, RGB), dtype=np.uint8)
    for image, small in zip(images, out, strict=True):
        _resize_one(image, small, rows, columns)
    return out


@dataclass(frozen=True, eq=False)
class _AxisResampling:
    """New pixels of one axis: the sum over taps of weight * old pixel, divided by `total`."""

    taps: tuple[tuple[npt.NDArray[np.intp], npt.NDArray[np.uint32]], ...]
    """per tap: the old index and the weight for every new pixel"""
    total: int
    """sum of the weights of each new pixel"""


@lru_cache(maxsize=64)
def _resampling(old: int, new: int) -> _AxisResampling:
    indices, weights = _area_weights(old, new) if old > new else _linear_weights(old, new)
    weights //= int(np.gcd.reduce(weights, axis=None))
    used = [tap for tap in range(weights.shape[1]) if weights[:, tap].any()]
    taps = tuple((indices[:, tap].astype(np.intp), weights[:, tap].astype(np.uint32)) for tap in used)
    return _AxisResampling(taps, int(weights[0].sum()))


def _area_weights(old: int, new: int) -> tuple[IntArray, IntArray]:
    """New pixel i covers old/new * [i, i + 1]; weights are overlaps in units of 1/new."""
    step = gcd(old, new)
    wide, narrow = old // step, new // step
    i = np.arange(new)[:, None]
    indices = i * wide // narrow + np.arange(-(-wide // narrow) + 1)
    overlap = np.minimum((indices + 1) * narrow, (i + 1) * wide) - np.maximum(indices * narrow, i * wide)
    return np.minimum(indices, old - 1), np.maximum(overlap, 0)


def _linear_weights(old: int, new: int) -> tuple[IntArray, IntArray]:
    """New pixel i is centred at (i + 1/2) old/new, between two old centres; weights in units of 1/(2 new)."""
    centre = (2 * np.arange(new) + 1) * old - new
    left, part = np.divmod(centre, 2 * new)
    indices = np.clip(np.stack([left, left + 1], axis=1), 0, old - 1)
    return indices, np.stack([2 * new - part, part], axis=1)


class _Scratch(threading.local):
    """Work arrays, reused from image to image: allocating them would take most of the time."""

    def __init__(self) -> None:
        self._arrays: dict[str, IntArray] = {}

    def array(self, name: str, shape: tuple[int, int], kind: np.dtype[Any]) -> IntArray:
        found = self._arrays.get(name)
        if found is None or found.shape != shape or found.dtype != kind:
            found = self._arrays[name] = np.empty(shape, dtype=kind)
        return found


_scratch = _Scratch()


def _resize_one(image: Images, small: Images, rows: _AxisResampling, columns: _AxisResampling) -> None:
    height, width, _ = image.shape
    side, total = len(small), rows.total * columns.total
    # the smallest type that holds the largest possible sum is the fastest
    kind = np.promote_types(np.min_scalar_type(BRIGHTEST * total + total // 2), np.uint16)
    tall = _resample("rows", image.reshape(height, width * RGB), rows, kind)
    across = _scratch.array("across", (width, RGB * side), kind)
    across.reshape(width, RGB, side)[...] = tall.reshape(side, width, RGB).transpose(1, 2, 0)
    sums = _resample("columns", across, columns, kind)
    sums += kind.type(total // 2)
    sums //= kind.type(total)
    small[...] = sums.reshape(side, RGB, side).transpose(2, 0, 1)


def _resample(name: str, lines: IntArray, axis: _AxisResampling, kind: np.dtype[Any]) -> IntArray:
    """Return the weighted sums, not divided; the array is reused for the next image."""
    shape = (len(axis.taps[0][0]), lines.shape[1])
    taken = _scratch.array(f"{name} taken", shape, lines.dtype)
    part, total = (_scratch.array(f"{name} {what}", shape, kind) for what in ("part", "total"))
    for number, (indices, weights) in enumerate(axis.taps):
        np.take(lines, indices, axis=0, out=taken, mode="clip")
        np.multiply(taken, weights.astype(kind)[:, None], out=part if number else total)
        if number:
            total += part
    return total
