"""A decoding process: takes frames to decode from a pipe, writes them into shared memory, answers with their shape."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from demerit.data.frames import DecodesInto, Frames, Images, Indices, Prepare
from demerit.errors import DemeritError


@dataclass(frozen=True, eq=False)
class Look:
    """What is to be decoded of an episode: which frames of which cameras, and what becomes of them at once."""

    views: Mapping[str, Frames]
    wanted: Callable[[int], Indices]
    """tells from a camera's number of frames which of them, or by its method `by_time` from their times"""
    prepare: Prepare | None = None

    def chosen(self, frames: Frames) -> Indices:
        """Return the frames of a camera that are to be decoded."""
        by_time = getattr(self.wanted, "by_time", None)
        indices: Indices = self.wanted(len(frames)) if by_time is None else by_time(frames.times())
        return indices


@dataclass(frozen=True, eq=False)
class Decoded:
    """What a worker found out and did about one camera."""

    length: int
    """frames of the camera, a view's own where it is one"""
    indices: Indices
    """the decoded ones"""
    shape: tuple[int, ...] = ()
    offset: int = 0
    """where in the block they begin"""


def work(pipe: int, slots: Sequence[int]) -> None:
    """Be a worker: decode what comes in until the pipe closes."""
    connection: Connection[Any, Any] = Connection(pipe)
    blocks = [_Block(handle) for handle in slots]
    with suppress(EOFError, ConnectionError):  # whoever asked is gone, perhaps without having read the last answer
        while True:
            slot, look = connection.recv()
            connection.send(_answer(blocks[slot], look))


def _answer(block: _Block, look: Look) -> tuple[dict[str, Decoded] | None, str]:
    try:
        return block.fill(look), ""
    except (DemeritError, OSError, MemoryError, ValueError) as error:
        return None, str(error) or type(error).__name__


class _Block:
    """A block of shared memory as a worker sees it."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._map: mmap.mmap | None = None

    def fill(self, look: Look) -> dict[str, Decoded]:
        """Decode every camera into the block, one behind the other."""
        done: dict[str, Decoded] = {}
        end = 0
        for camera, frames in look.views.items():
            length = len(frames)
            indices = look.chosen(frames)
            shape = self._fill(frames, indices, look.prepare, end)
            done[camera] = Decoded(length, indices, shape, end)
            end += int(np.prod(shape))
        return done

    def _fill(self, frames: Frames, indices: Indices, prepare: Prepare | None, offset: int) -> tuple[int, ...]:
        """Decode one camera, straight into the block where the source can, and return the shape."""

        def room(shape: tuple[int, ...]) -> Images:
            return self._room(shape, offset)

        if prepare is not None:
            images = frames.take_prepared(indices, prepare, room)
        elif isinstance(frames.source, DecodesInto):
            of_source = indices if frames.indices is None else frames.indices[indices]
            images = frames.source.take_into(of_source.tolist(), room)
        else:
            images = frames.take(indices)
        place = room(images.shape)
        if not np.shares_memory(place, images):
            place[...] = images
        return images.shape

    def _room(self, shape: tuple[int, ...], offset: int) -> Images:
        size = int(np.prod(shape))
        if self._map is None or len(self._map) < offset + size:
            os.ftruncate(self._handle, max(offset + size, os.fstat(self._handle).st_size, 1))
            self._map = mmap.mmap(self._handle, os.fstat(self._handle).st_size)
        return np.frombuffer(self._map, np.uint8, size, offset).reshape(shape)
