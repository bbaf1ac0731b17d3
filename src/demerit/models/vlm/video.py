"""Videos as Qwen3-VL reads them: frames in pairs, each one picture with the second it stands for written before it.

    <0.2 seconds><|vision_start|><|video_pad|>...<|vision_end|><0.8 seconds><|vision_start|>...

An odd number of frames repeats the last one. This is the form of the time when the published checkpoints were trained;
the library has changed what it writes around a whole video since.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demerit.data.frames import Images, Times
from demerit.errors import BadInput
from demerit.models.vlm.images import MOST_STRETCHED, resized
from demerit.models.vlm.network import Network, Seen
from demerit.models.vlm.prompt import CUT, VIDEO, Picture, Piece
from demerit.models.vlm.sending import ready
from demerit.models.vlm.stored import read_json

SETTINGS = "video_preprocessor_config.json"
FEWEST, MOST = 4 * 32 * 32, 24_576 * 32 * 32
"""pixels of a whole video, as the published Qwen3-VL checkpoints have it in their settings"""
PAIR = 2
TOGETHER = 32
"""pairs that go through the vision tower at once"""

Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Bounds:
    """How many pixels a whole video may have, all frames together."""

    low: int = FEWEST
    high: int = MOST

    @classmethod
    def of(cls, folder: Path) -> Bounds:
        """Read what a checkpoint says; without a word of its own, the published ones' bounds hold."""
        path = folder / SETTINGS
        if not path.is_file():
            return cls()
        size = read_json(path).get("size")
        named = size if isinstance(size, dict) else {}
        low, high = (named.get(edge) for edge in ("shortest_edge", "longest_edge"))
        if not isinstance(low, int) or not isinstance(high, int) or not 0 < low <= high:
            raise BadInput(str(path), "size with shortest_edge and longest_edge, whole numbers of pixels", repr(size))
        return cls(low, high)


@dataclass(frozen=True, eq=False)
class Clip:
    """Frames of a video and the second at which each was taken."""

    frames: Images
    seconds: Times

    def __len__(self) -> int:
        """Count the frames."""
        return len(self.frames)


def video_size(count: int, height: int, width: int, *, factor: int, bounds: Bounds) -> tuple[int, int]:
    """Return the (height, width) that Qwen resizes the frames of a video to.

    As for a picture, with all frames together between the bounds; `count` is rounded to pairs, halves to even ones.
    """
    if min(height, width) < 1 or count < 1:
        raise BadInput("A video's size", "at least one frame of one pixel", f"{count} of {height} x {width}")
    if min(height, width) < factor:
        grow = max(factor / height, factor / width)
        height, width = int(height * grow), int(width * grow)
    if max(height, width) / min(height, width) > MOST_STRETCHED:
        raise BadInput("A video's size", f"sides within {MOST_STRETCHED} times each other", f"{height} x {width}")
    count = max(count, PAIR)
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    whole = round(count / PAIR) * PAIR * tall * wide
    if whole > bounds.high:
        shrink = math.sqrt(count * height * width / bounds.high)
        tall = max(factor, math.floor(height / shrink / factor) * factor)
        wide = max(factor, math.floor(width / shrink / factor) * factor)
    elif whole < bounds.low:
        grow = math.sqrt(bounds.low / (count * height * width))
        tall = math.ceil(height * grow / factor) * factor
        wide = math.ceil(width * grow / factor) * factor
    return tall, wide


def pairs_of(count: int) -> list[tuple[int, int]]:
    """Pair frames in their order; the last of an odd number goes with itself."""
    return [(at, min(at + 1, count - 1)) for at in range(0, count, PAIR)]


def stamped(pair: tuple[int, int], seconds: Times) -> str:
    """Write the second that stands before a pair: the middle of its two."""
    first, second = (float(seconds[at]) for at in pair)
    return f"<{(first + second) / 2:.1f} seconds>"


def video_pieces(pairs: Pairs, keys: Sequence[Hashable], seconds: Times, grid: tuple[int, int]) -> Iterator[Piece]:
    """Lay a video out: a block a pair, its second before it."""
    for pair, key in zip(pairs, keys, strict=True):
        yield from (stamped(pair, seconds), Picture(key, *grid, token=VIDEO), CUT)


def look_at_pairs(
    network: Network, frames: Images, pairs: Pairs, keys: Sequence[Hashable], size: tuple[int, int]
) -> Seen:
    """Encode pairs of frames, each frame resized once."""
    small, places = resized(frames, size, "torch"), np.asarray(pairs, dtype=np.int64)
    batches = (ready(small[places[at : at + TOGETHER]], network.device) for at in range(0, len(places), TOGETHER))
    return network.look(batches, keys)
