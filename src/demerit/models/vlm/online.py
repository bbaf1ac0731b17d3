"""Robometer live: one new frame a step, exactly what dense scoring says of it, at a cost that does not grow.

The window of step t shares its first frames with the window of the step before; their keys and values are kept, so a
step encodes one picture and runs at most a window's tokens. Of past frames only features are kept, and only as long
as a later window can show them again; of a long episode, the older ones wait beside the device and not on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from demerit.data.frames import RGB, Images
from demerit.errors import BadInput
from demerit.models.vlm.language import Features, Keys
from demerit.models.vlm.network import Seen
from demerit.models.vlm.packed import Past
from demerit.models.vlm.prompt import Block
from demerit.models.vlm.robometer import Asked, RobometerEngine
from demerit.models.vlm.tree import separate
from demerit.models.vlm.windows import window

ROOM = 2 << 30
"""bytes of past frames that stay on the device: about 1,400 frames of 240x320 for a network of 4B"""


@dataclass
class Remembered:
    """Features of past frames: the newest on the device, older ones in the machine's own memory."""

    device: torch.device
    room: int = ROOM
    _near: dict[int, Features] = field(default_factory=dict)
    _far: dict[int, Features] = field(default_factory=dict)

    def __len__(self) -> int:
        """Count the frames."""
        return len(self._near) + len(self._far)

    def put(self, frame: int, features: Features) -> None:
        """Keep a frame, newer than all others."""
        self._near[frame] = features
        if len(self._near) * features.nbytes > self.room:
            oldest = next(iter(self._near))
            self._far[oldest] = self._near.pop(oldest).to(torch.device("cpu"))

    def of(self, frame: int) -> Features:
        """Return a frame's features, on the device."""
        return self._near[frame] if frame in self._near else self._far[frame].to(self.device)

    def forget(self, before: int) -> None:
        """Let go of the frames before this one, but for the first."""
        for kept in (self._near, self._far):
            for frame in [one for one in kept if 0 < one < before]:
                del kept[frame]


@dataclass
class Following:
    """An episode that is being watched."""

    engine: RobometerEngine
    instruction: str
    room: int = ROOM
    """bytes of past frames that stay on the device"""
    _asked: Asked | None = None
    _size: tuple[int, ...] = ()
    _frames: int = 0
    _features: Remembered = field(init=False)
    _shown: tuple[Block, ...] = ()
    """blocks of the last window"""
    _keys: Keys | None = None
    """and the keys of their tokens"""

    def __post_init__(self) -> None:
        """Begin with nothing seen."""
        self._features = Remembered(self.engine.network.device, self.room)

    def step(self, frame: Images) -> tuple[float, float]:
        """Take the next (height, width, 3) frame; return progress and the probability of success."""
        self._look(frame)
        judged = self.engine.judged(self._state(), np.array([self._frames], np.int32))
        self._frames += 1
        self._forget()
        return float(judged.progress[0]), float(judged.success[0])

    def _look(self, frame: Images) -> None:
        wanted = f"uint8 of shape {self._size}, as before" if self._size else "uint8 of shape (height, width, 3)"
        fits = frame.shape == self._size if self._size else frame.ndim == RGB and frame.shape[-1] == RGB
        if frame.dtype != np.uint8 or not fits:
            raise BadInput("frame", wanted, f"{frame.dtype} of shape {frame.shape}")
        seen, grid = self.engine.look(frame[None])
        if self._asked is None:
            self._asked, self._size = Asked(self.engine, self.instruction, grid), frame.shape
        self._features.put(self._frames, seen.features)

    def _state(self) -> Tensor:
        """Run the blocks that are new since the last step, on top of the keys of those that are not."""
        assert self._asked is not None
        count = self.engine.protocol.frames
        frames = window(self._frames, count)
        blocks = self._asked.blocks(frames)
        same = _shared(self._shown, blocks)
        new, kept = blocks[same:], sum(len(block) for block in blocks[:same])
        past = None
        if kept and self._keys is not None:
            advance = sum(block.advance for block in blocks[:same])
            past = (Past(kept, np.arange(kept), advance), Keys(tuple(layer[:kept] for layer in self._keys.layers)))
        last = sum(len(block) for block in new) - 1
        state, made, _ = self.engine.network.states_and_keys(
            separate([new]), self._seen(frames[same:]), [(0, last)], past
        )
        self._keys = made if past is None else past[1].joined(made)
        self._shown = blocks
        return state

    def _seen(self, frames: tuple[int, ...]) -> Seen:
        chosen = sorted(set(frames))
        parts = [self._features.of(frame) for frame in chosen]
        each = len(parts[0])
        features = Features(
            torch.cat([part.rows for part in parts]),
            tuple(torch.cat(layer) for layer in zip(*(part.deep for part in parts), strict=True)),
        )
        return Seen(features, {("", frame): at * each for at, frame in enumerate(chosen)})

    def _forget(self) -> None:
        """Let go of frames that no later window shows: the second picture of a window only ever moves on."""
        second = (
            window(self._frames, self.engine.protocol.frames)[1] if self.engine.protocol.frames > 1 else self._frames
        )
        self._features.forget(second)
        if self._asked is not None:
            self._asked.forget(second)


def _shared(old: tuple[Block, ...], new: tuple[Block, ...]) -> int:
    """Count the blocks at the beginning that are the same; the last one is always run, as it is read."""
    same = 0
    while same < min(len(old), len(new) - 1) and old[same] == new[same]:
        same += 1
    return same
