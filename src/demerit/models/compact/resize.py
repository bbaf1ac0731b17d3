"""Any picture becomes a small square: the same numbers on every machine, in training and in use.

A plain stretch, each axis by itself: where it shrinks, a new pixel is the average of the area that it covers; where it
grows, it lies between its two neighbours. Everything is whole numbers until one rounded division at the end, so no
processor and no version of a library changes a pixel.
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
Whole = npt.NDArray[Any]


def resized(images: Images, side: int) -> Images:
    """Stretch (n, height, width, 3) uint8 pictures to (n, side, side, 3); pictures of that size are left alone."""
    good = images.ndim == IMAGES_DIMENSIONS and images.shape[-1] == RGB and images.dtype == np.uint8
    if not good or 0 in images.shape[1:]:
        got = f"{images.dtype} of shape {images.shape}"
        raise BadInput("pictures", "uint8 of shape (n, height, width, 3), none of them empty", got)
    if images.shape[1:3] == (side, side):
        return images
    rows, columns = _axis(images.shape[1], side), _axis(images.shape[2], side)
    out = np.empty((len(images), side, side, RGB), dtype=np.uint8)
    for picture, small in zip(images, out, strict=True):
        _one(picture, small, rows, columns)
    return out


@dataclass(frozen=True, eq=False)
class _Axis:
    """How the new pixels of one axis are made: sum over taps of weight x old pixel, divided by `total`."""

    taps: tuple[tuple[npt.NDArray[np.intp], npt.NDArray[np.uint32]], ...]
    """for each tap: where it reads (one place a new pixel) and with what weight"""
    total: int
    """the sum of the weights of every new pixel"""


@lru_cache(maxsize=64)
def _axis(old: int, new: int) -> _Axis:
    places, weights = _areas(old, new) if old > new else _neighbours(old, new)
    shared = int(np.gcd.reduce(weights, axis=None))
    weights //= shared
    used = [tap for tap in range(weights.shape[1]) if weights[:, tap].any()]
    taps = tuple((places[:, tap].astype(np.intp), weights[:, tap].astype(np.uint32)) for tap in used)
    return _Axis(taps, int(weights[0].sum()))


def _areas(old: int, new: int) -> tuple[Whole, Whole]:
    """Let new pixel i cover the old axis from i old/new to (i+1) old/new; weights are overlaps, in units of 1/new."""
    step = gcd(old, new)
    wide, narrow = old // step, new // step
    i = np.arange(new)[:, None]
    places = i * wide // narrow + np.arange(-(-wide // narrow) + 1)
    overlap = np.minimum((places + 1) * narrow, (i + 1) * wide) - np.maximum(places * narrow, i * wide)
    return np.minimum(places, old - 1), np.maximum(overlap, 0)


def _neighbours(old: int, new: int) -> tuple[Whole, Whole]:
    """Put new pixel i's centre at (i + 1/2) old/new, between the centres of two old pixels; weights in 1/(2 new)."""
    centre = (2 * np.arange(new) + 1) * old - new
    left, part = np.divmod(centre, 2 * new)
    places = np.clip(np.stack([left, left + 1], axis=1), 0, old - 1)
    return places, np.stack([2 * new - part, part], axis=1)


class _Desk(threading.local):
    """Arrays to work on, kept from picture to picture: fresh memory for each would take most of the time."""

    def __init__(self) -> None:
        self._arrays: dict[str, Whole] = {}

    def array(self, name: str, shape: tuple[int, int], kind: np.dtype[Any]) -> Whole:
        """Hand out the array of that name, whatever it holds."""
        found = self._arrays.get(name)
        if found is None or found.shape != shape or found.dtype != kind:
            found = self._arrays[name] = np.empty(shape, dtype=kind)
        return found


_desk = _Desk()


def _one(picture: Images, small: Images, rows: _Axis, columns: _Axis) -> None:
    height, width, _ = picture.shape
    side, total = len(small), rows.total * columns.total
    # The smallest type that holds the largest possible sum is the quickest one.
    kind = np.promote_types(np.min_scalar_type(BRIGHTEST * total + total // 2), np.uint16)
    tall = _weighted("rows", picture.reshape(height, width * RGB), rows, kind)
    across = _desk.array("across", (width, RGB * side), kind)
    across.reshape(width, RGB, side)[...] = tall.reshape(side, width, RGB).transpose(1, 2, 0)
    sums = _weighted("columns", across, columns, kind)
    sums += kind.type(total // 2)
    sums //= kind.type(total)
    small[...] = sums.reshape(side, RGB, side).transpose(2, 0, 1)


def _weighted(name: str, lines: Whole, axis: _Axis, kind: np.dtype[Any]) -> Whole:
    """Sum the lines that each new line is made of; the result is on the desk until the next picture."""
    shape = (len(axis.taps[0][0]), lines.shape[1])
    taken = _desk.array(f"{name} taken", shape, lines.dtype)
    part, total = (_desk.array(f"{name} {what}", shape, kind) for what in ("part", "total"))
    for number, (places, weights) in enumerate(axis.taps):
        np.take(lines, places, axis=0, out=taken, mode="clip")
        np.multiply(taken, weights.astype(kind)[:, None], out=part if number else total)
        if number:
            total += part
    return total
