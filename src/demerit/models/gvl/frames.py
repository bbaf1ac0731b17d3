"""Which frames a prompt shows, in which order, and as which bytes."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from demerit.data.episode import Episode
from demerit.data.frames import RGB, Images, Indices, short_hash, spread
from demerit.errors import BadInput
from demerit.llm import ChatImage

QUALITY = 90


@dataclass(frozen=True, eq=False)
class Shown:
    """The frames of one attempt as a prompt shows them."""

    anchor: int
    """index of the frame that is worth 0 by definition: the episode's first"""
    order: Indices
    """indices of the other frames in the order shown; picture number n is order[n - 1]"""

    def __len__(self) -> int:
        """How many pictures are to be judged."""
        return len(self.order)

    def at(self) -> Indices:
        """Every index that was shown, growing, the anchor first."""
        return np.sort(np.append(self.order, np.int32(self.anchor))).astype(np.int32)


def choose(length: int, budget: int, seed: str) -> Shown:
    """Spread a budget of frames over an episode and shuffle all but the first, which is the anchor.

    Args:
        length: frames in the episode.
        budget: frames to show, the anchor included.
        seed: text that decides the order; the same text gives the same order on every machine.
    """
    if budget < 2:  # noqa: PLR2004  # an anchor alone asks nothing
        raise BadInput("frame budget", "at least 2 (the anchor and a frame to judge)", budget)
    if length < 1:
        raise BadInput("episode", "at least one frame", length)
    chosen = spread(length, budget)
    return Shown(int(chosen[0]), shuffled(chosen[1:], seed))


def shuffled(indices: Indices, seed: str) -> Indices:
    """Sort indices by a hash of the seed and the index: no generator whose stream may change between versions."""
    order = sorted(indices.tolist(), key=lambda index: short_hash(seed.encode(), str(index).encode()))
    return np.array(order, dtype=np.int32)


def pictures(episode: Episode, indices: Indices, size: int) -> list[ChatImage]:
    """Decode frames of the main camera and encode each as a JPEG of at most `size` pixels a side."""
    return [jpeg(image, size) for image in episode.main.take(indices)]


def jpeg(image: Images, size: int) -> ChatImage:
    """Encode one (height, width, 3) uint8 RGB image, made smaller where it is larger than `size`, never larger.

    Colours are kept at full resolution: a small red cube is a matter of a few pixels.
    """
    if image.ndim != RGB or image.shape[-1] != RGB or image.dtype != np.uint8:
        raise BadInput("image", "uint8 of shape (height, width, 3)", f"{image.dtype} of shape {image.shape}")
    picture = Image.fromarray(np.ascontiguousarray(image))
    picture.thumbnail((size, size), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=QUALITY, subsampling=0)
    return ChatImage(buffer.getvalue())
