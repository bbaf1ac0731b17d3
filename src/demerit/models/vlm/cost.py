"""What exactness costs: the multiplications that no way of computing the same answers can leave out.

Counted are matrix products and attention, two operations for a multiplication and its addition; norms, rotations and
other small sums are left out. Shared beginnings are counted once, every picture once, and in the last layer only what
the wanted states need.
"""

from __future__ import annotations

from dataclasses import dataclass

from demerit.models.vlm.config import TextShape, VisionShape, VLMShape
from demerit.models.vlm.packed import Packed


@dataclass(frozen=True)
class Cost:
    """Operations, and the fewest bytes to move: every weight once, every picture and every answer once."""

    operations: float
    bytes: float

    def __add__(self, other: Cost) -> Cost:
        """Add two."""
        return Cost(self.operations + other.operations, self.bytes + other.bytes)


def of_pictures(shape: VisionShape, count: int, rows: int, columns: int) -> Cost:
    """Count the vision tower over pictures of rows x columns tokens."""
    patches, tokens = rows * columns * shape.merge**2, rows * columns
    wide = shape.hidden * shape.merge**2
    block = 4 * shape.hidden**2 + 2 * shape.hidden * shape.inner
    linear = patches * (shape.pixels * shape.hidden + shape.depth * block)
    mergers = tokens * (1 + len(shape.deep)) * (wide * wide + wide * shape.out)
    attention = 2 * shape.depth * patches**2 * shape.hidden
    weights = shape.depth * block + (1 + len(shape.deep)) * (wide * wide + wide * shape.out)
    return Cost(
        2.0 * count * (linear + mergers + attention), 2.0 * weights + count * patches * shape.pixels / shape.temporal
    )


def of_tokens(shape: TextShape, packed: Packed) -> Cost:
    """Count the language model over a packed tree."""
    wide, narrow = shape.heads * shape.head, shape.groups * shape.head
    whole = shape.hidden * (2 * wide + 2 * narrow) + 3 * shape.hidden * shape.inner
    keys_alone = 2 * shape.hidden * narrow
    wanted = len(packed.wanted)
    linear = packed.tokens * ((shape.layers - 1) * whole + keys_alone) + wanted * (whole - keys_alone)
    pairs = sum(_pairs(group.count, group.length, group.sees.shape[1]) for group in packed.groups)
    last = sum(reading.sees.size for reading in packed.readings)
    attention = 2 * wide * ((shape.layers - 1) * pairs + last)
    return Cost(2.0 * (linear + attention), 2.0 * shape.layers * whole + 4.0 * wanted)


def _pairs(count: int, length: int, sees: int) -> int:
    """Count the pairs of a token and one it sees: all that came before, and half of its own segment."""
    before = sees - length
    return count * (length * before + length * (length + 1) // 2)


def of_windows(shape: VLMShape, windows: int, frames: int, tokens: int, rows: int, columns: int) -> Cost:
    """Count the straightforward way: every window's pictures and tokens anew, all layers in full."""
    text = shape.text
    wide, narrow = text.heads * text.head, text.groups * text.head
    whole = text.hidden * (2 * wide + 2 * narrow) + 3 * text.hidden * text.inner
    language = text.layers * (tokens * whole + wide * tokens * (tokens + 1))
    seen = of_pictures(shape.vision, windows * frames, rows, columns)
    return Cost(2.0 * windows * language + seen.operations, seen.bytes + 2.0 * text.layers * whole)
