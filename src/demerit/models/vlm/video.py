"""Videos as Qwen3-VL reads them: pairs of frames, each pair one image with its timestamp before it.

    <0.2 seconds><|vision_start|><|video_pad|>...<|vision_end|><0.8 seconds><|vision_start|>...

An odd number of frames repeats the last one. This is the format that the published checkpoints were trained with; the
library has changed what it writes around a whole video since.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demerit.data.frames import Images, Times
from demerit.data.untrusted import read_json
from demerit.errors import BadInput
from demerit.models.vlm.images import MOST_STRETCHED, resize_frames, to_pinned
from demerit.models.vlm.network import ImageFeatures, VLMNetwork
from demerit.models.vlm.prompt import CUT, VIDEO, ImageSlot, Piece

SETTINGS = "video_preprocessor_config.json"
FEWEST, MOST = 4 * 32 * 32, 24_576 * 32 * 32
"""pixels of a whole video in the settings of the published Qwen3-VL checkpoints"""
PAIR = 2
TOGETHER = 32
"""pairs per call of the vision tower"""

Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class VideoBounds:
    """How many pixels a whole video may have, all frames together."""

    low: int = FEWEST
    high: int = MOST

    @classmethod
    def from_folder(cls, folder: Path) -> VideoBounds:
        """Read a checkpoint's settings; without any, use the published checkpoints' bounds."""
        path = folder / SETTINGS
        if not path.is_file():
            return cls()
        size = read_json(path).get("size")
        named = size if isinstance(size, dict) else {}
        low, high = (named.get(edge) for edge in ("shortest_edge", "longest_edge"))
        if not isinstance(low, int) or not isinstance(high, int) or not 0 < low <= high:
            raise BadInput(str(path), "size with shortest_edge and longest_edge in pixels", repr(size))
        return cls(low, high)

    @property
    def identity(self) -> str:
        """The text that stands for the bounds in a model's identity; changing it makes stored rewards stale."""
        return f"Bounds(low={self.low}, high={self.high})"


def video_size(count: int, height: int, width: int, *, factor: int, bounds: VideoBounds) -> tuple[int, int]:
    """Return the (height, width) in pixels that Qwen resizes the frames of a video to.

    As for an image, with all frames together within the bounds; `count` is rounded to pairs, halves to even ones.
    """
    if min(height, width) < 1 or count < 1:
        raise BadInput("video size", "at least one frame of one pixel", f"{count} of {height} x {width}")
    if min(height, width) < factor:
        grow = max(factor / height, factor / width)
        height, width = int(height * grow), int(width * grow)
    if max(height, width) / min(height, width) > MOST_STRETCHED:
        raise BadInput("video size", f"sides within {MOST_STRETCHED} times each other", f"{height} x {width}")
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


def frame_pairs(count: int) -> list[tuple[int, int]]:
    """Pair frames in order; the last of an odd number is paired with itself."""
    return [(at, min(at + 1, count - 1)) for at in range(0, count, PAIR)]


def timestamp(pair: tuple[int, int], seconds: Times) -> str:
    """Return the text before a pair: the mean of its two times."""
    first, second = (float(seconds[at]) for at in pair)
    return f"<{(first + second) / 2:.1f} seconds>"


def video_pieces(pairs: Pairs, keys: Sequence[Hashable], seconds: Times, grid: tuple[int, int]) -> Iterator[Piece]:
    """Yield a video's prompt pieces: one block per pair, its timestamp first."""
    for pair, key in zip(pairs, keys, strict=True):
        yield from (timestamp(pair, seconds), ImageSlot(key, *grid, token=VIDEO), CUT)


def encode_pairs(
    network: VLMNetwork, frames: Images, pairs: Pairs, keys: Sequence[Hashable], size: tuple[int, int]
) -> ImageFeatures:
    """Encode pairs of frames; each frame is resized once."""
    small, places = resize_frames(frames, size, "torch"), np.asarray(pairs, dtype=np.int64)
    batches = (to_pinned(small[places[at : at + TOGETHER]], network.device) for at in range(0, len(places), TOGETHER))
    return network.encode(batches, keys)
