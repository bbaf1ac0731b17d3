"""A decoding process: takes frames to decode from a pipe, writes them into shared memory, answers with their shape."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from demerit.errors import DemeritError
from demerit.frames import Frames, Images, Indices
from demerit.video import VideoClip


@dataclass(frozen=True, eq=False)
class Decoded:
    """What a worker found out and did."""

    length: int
    """frames of the main camera, a view's own where it is one"""
    indices: Indices
    """the decoded ones"""
    shape: tuple[int, ...] = ()


def work(pipe: int, slots: Sequence[int]) -> None:
    """Be a worker: decode what comes in until the pipe closes."""
    connection: Connection[Any, Any] = Connection(pipe)
    blocks = [_Block(handle) for handle in slots]
    while True:
        try:
            slot, frames, wanted = connection.recv()
        except EOFError:
            return
        try:
            length = len(frames)
            indices = wanted(length)
            connection.send((Decoded(length, indices, blocks[slot].fill(frames, indices)), ""))
        except (DemeritError, OSError, MemoryError, ValueError) as error:
            connection.send((None, str(error) or type(error).__name__))


class _Block:
    """A block of shared memory as a worker sees it."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._map: mmap.mmap | None = None

    def fill(self, frames: Frames, indices: Indices) -> tuple[int, ...]:
        """Decode into the block, straight where the source can, and return the shape."""
        if isinstance(frames.source, VideoClip):
            of_source = indices if frames.indices is None else frames.indices[indices]
            images = frames.source.take_into(of_source.tolist(), self._room)
        else:
            images = frames.take(indices)
        room = self._room(images.shape)
        if not np.shares_memory(room, images):
            room[...] = images
        return images.shape

    def _room(self, shape: tuple[int, ...]) -> Images:
        size = int(np.prod(shape))
        if self._map is None or len(self._map) < size:
            os.ftruncate(self._handle, max(size, os.fstat(self._handle).st_size, 1))
            self._map = mmap.mmap(self._handle, os.fstat(self._handle).st_size)
        return np.frombuffer(self._map, np.uint8, size).reshape(shape)
