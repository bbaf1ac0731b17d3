"""Questions as tensors: tokens side by side, where pictures stand, what is read and what should come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from demerit.models.vlm.images import How
from demerit.models.vlm.prompt import Block

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shot:
    """A picture of the corpus as the tower sees it: one frame, or two of a video."""

    row: int
    frames: tuple[int, ...]
    height: int
    width: int
    how: How
    """it is resized to this height and width, and so"""


@dataclass(frozen=True, eq=False)
class Example:
    """One question with its answers."""

    ids: Ints
    positions: Ints
    """(3, tokens)"""
    seen: npt.NDArray[np.bool_]
    """tokens that are a piece of a picture"""
    shots: tuple[Shot, ...]
    """the pictures in their order"""
    wanted: Ints
    """tokens whose states are read"""
    targets: Mapping[str, npt.NDArray[Any]]
    """by name, in the order of what is read"""

    def __len__(self) -> int:
        """Count the tokens."""
        return len(self.ids)


def example_of(blocks: Sequence[Block], wanted: Sequence[int], targets: Mapping[str, npt.NDArray[Any]]) -> Example:
    """Lay blocks end to end; each picture's key is its `Shot`."""
    positions, seen, shots = [], [], []
    position = 0
    for block in blocks:
        positions.append(block.positions + position)
        position += block.advance
        here = np.zeros(len(block), np.bool_)
        if block.picture is not None:
            here[block.at : block.at + block.picture.rows * block.picture.columns] = True
            if not isinstance(block.picture.key, Shot):
                raise TypeError(f"a picture of a training example is a Shot, not {block.picture.key!r}")
            shots.append(block.picture.key)
        seen.append(here)
    ids = np.concatenate([np.array(block.ids, np.int64) for block in blocks])
    places = np.array(wanted, np.int64)
    return Example(ids, np.concatenate(positions, axis=1), np.concatenate(seen), tuple(shots), places, targets)


def last_tokens(blocks: Sequence[Block]) -> list[int]:
    """Return where each block ends."""
    return [int(end) - 1 for end in np.cumsum([len(block) for block in blocks])]


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples on a device, shorter ones filled up at their end: nothing that is read comes after the filling."""

    ids: Tensor
    positions: Tensor
    """(3, examples, tokens)"""
    seen: Tensor
    wanted: tuple[Tensor, Tensor]
    """examples and tokens of the states that are read"""
    targets: Mapping[str, Tensor]
    """by name, all examples end to end"""

    @classmethod
    def of(cls, examples: Sequence[Example], device: torch.device) -> Batch:
        """Put examples side by side."""
        longest = max(len(one) for one in examples)
        ids = np.zeros((len(examples), longest), np.int64)
        positions = np.zeros((3, len(examples), longest), np.int64)
        seen = np.zeros((len(examples), longest), np.bool_)
        for at, one in enumerate(examples):
            ids[at, : len(one)], seen[at, : len(one)] = one.ids, one.seen
            positions[:, at, : len(one)] = one.positions
        which = np.repeat(np.arange(len(examples)), [len(one.wanted) for one in examples])
        where = np.concatenate([one.wanted for one in examples])

        def there(values: npt.NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(values).to(device)

        targets = {name: there(np.concatenate([one.targets[name] for one in examples])) for name in examples[0].targets}
        return cls(there(ids), there(positions), there(seen), (there(which), there(where)), targets)
