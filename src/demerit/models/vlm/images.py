"""Pictures as Qwen's vision tower wants them: sides rounded to whole tokens, colours in -1..1, cut into patches.

    grid_size -> resized -> patches           a picture (one frame, repeated to fill the tower's two moments)
    grid_size -> resized -> video_patches     a video (two frames a patch)

Nothing of it needs torchvision. Two ways of resizing exist among the published models, and they differ by a grey level
here and there, so a model says which one it was trained with: `pil` (Pillow's bicubic filter, before the processor) or
`torch` (bicubic interpolation of bytes, inside the processor).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from demerit.errors import BadInput

How = Literal["pil", "torch"]

MOST_STRETCHED = 200
"""longer side over shorter side; Qwen's own limit"""
MIDDLE = 127.5
"""byte values lie within this distance of it, so that (value - MIDDLE) / MIDDLE lies in -1..1"""
DIMENSIONS = 4


def grid_size(height: int, width: int, *, factor: int, low: int, high: int) -> tuple[int, int]:
    """Return the (height, width) that Qwen resizes a picture to.

    Sides become the nearest multiples of `factor` (halves go to the even one). If that makes fewer than `low` or more
    than `high` pixels, the picture is scaled until it is inside, keeping its proportions as well as multiples allow.
    """
    if min(height, width) < 1:
        raise BadInput("A picture's size", "at least one pixel on each side", f"{height} x {width}")
    if max(height, width) / min(height, width) > MOST_STRETCHED:
        raise BadInput("A picture's size", f"sides within {MOST_STRETCHED} times each other", f"{height} x {width}")
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    if tall * wide > high:
        shrink = math.sqrt((height * width) / high)
        tall = max(factor, math.floor(height / shrink / factor) * factor)
        wide = max(factor, math.floor(width / shrink / factor) * factor)
    elif tall * wide < low:
        grow = math.sqrt(low / (height * width))
        tall = math.ceil(height * grow / factor) * factor
        wide = math.ceil(width * grow / factor) * factor
    if not tall or not wide:
        raise BadInput("A picture's size", f"sides that round to {factor} pixels or more", f"{height} x {width}")
    return tall, wide


def resized(frames: NDArray[np.uint8], size: tuple[int, int], how: How) -> NDArray[np.uint8]:
    """Resize (N, H, W, 3) frames to (N, *size, 3); the same array comes back if there is nothing to do.

    Each frame is resized by itself, so a frame looks the same whatever it is batched with. Frames are spread over the
    processor's cores.
    """
    if how not in get_args(How):
        raise BadInput("A way of resizing", f"one of {list(get_args(How))}", repr(how))
    _check("Frames", frames)
    if frames.shape[1:3] == size:
        return frames
    one = _by_pillow if how == "pil" else _by_torch
    new = np.empty((len(frames), *size, 3), np.uint8)

    def fill(at: int) -> None:
        one(frames[at], new[at])

    _everywhere(fill, len(frames))
    return new


def patches(frames: torch.Tensor, *, patch: int, merge: int, temporal: int) -> torch.Tensor:
    """Cut pictures into the rows that the vision tower reads.

    A row is one patch: channel by channel, moment by moment, line by line. Rows come in blocks of merge x merge
    neighbours, because each block becomes one token. All moments of a picture are the same.

    Args:
        frames: (N, height, width, 3) uint8 on any device; sides are multiples of patch * merge.
        patch: side of a patch.
        merge: patches that make a token, along each side.
        temporal: moments in a patch.

    Returns:
        (N, height / patch * width / patch, 3 * temporal * patch * patch) float32 in -1..1 on the frames' device.
    """
    _check("Frames", frames)
    rows = _cut(frames[:, None], patch, merge)
    return rows.expand(*rows.shape[:3], temporal, rows.shape[-1]).reshape(*rows.shape[:2], -1)


def pair_patches(first: torch.Tensor, second: torch.Tensor, *, patch: int, merge: int) -> torch.Tensor:
    """Cut pairs of frames into rows of two moments: like `patches`, with first[i] before second[i]."""
    _check("First frames", first)
    _check("Second frames", second)
    if first.shape != second.shape:
        raise BadInput("Second frames", f"the shape of the first ones, {tuple(first.shape)}", tuple(second.shape))
    return _cut(torch.stack((first, second), 1), patch, merge).flatten(2)


def video_patches(frames: torch.Tensor, *, patch: int, merge: int, temporal: int) -> torch.Tensor:
    """Cut a video into rows of `temporal` successive frames; the last frame is repeated where they run out.

    Returns:
        (moments, rows, numbers) as `patches` has them; moments = frames / temporal, rounded up.
    """
    _check("Frames", frames)
    if short := -len(frames) % temporal:
        frames = torch.cat((frames, frames[-1:].expand(short, *frames.shape[1:])))
    return _cut(frames.reshape(-1, temporal, *frames.shape[1:]), patch, merge).flatten(2)


def _cut(clips: torch.Tensor, patch: int, merge: int) -> torch.Tensor:
    """(N, moments, height, width, 3) bytes -> (N, rows, 3, moments, patch * patch) floats."""
    n, moments, height, width, channels = clips.shape
    factor = patch * merge
    if height % factor or width % factor:
        raise BadInput("Frames", f"sides that are multiples of {factor} (see grid_size)", f"{height} x {width}")
    blocks = clips.reshape(n, moments, height // factor, merge, patch, width // factor, merge, patch, channels)
    # to (N, block row, block column, row in block, column in block, channel, moment, line, pixel), still as bytes:
    # a quarter of the memory to move
    ordered = blocks.permute(0, 2, 5, 3, 6, 8, 1, 4, 7).contiguous()
    rows = ordered.view(n, height * width // patch**2, channels, moments, patch * patch)
    return rows.to(torch.float32).sub_(MIDDLE).div_(MIDDLE)


def _by_pillow(frame: NDArray[np.uint8], new: NDArray[np.uint8]) -> None:
    """Resize rows, then columns: Pillow 13 chooses between the two orders, earlier ones always took this one."""
    height, width, _ = new.shape
    wide = Image.fromarray(frame).resize((width, len(frame)), Image.Resampling.BICUBIC)
    new[:] = np.asarray(wide.resize((width, height), Image.Resampling.BICUBIC))


def _by_torch(frame: NDArray[np.uint8], new: NDArray[np.uint8]) -> None:
    planes = torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1)[None]
    size = list(new.shape[:2])
    better = torch.nn.functional.interpolate(planes, size, mode="bicubic", align_corners=False, antialias=True)
    new[:] = better[0].permute(1, 2, 0).numpy()


def _everywhere(work: Callable[[int], None], count: int) -> None:
    cores = min(os.cpu_count() or 1, count)
    if cores <= 1:
        for at in range(count):
            work(at)
        return
    # both filters let go of Python's lock while they work
    with ThreadPoolExecutor(cores) as pool:
        for _ in pool.map(work, range(count)):
            pass


def _check(what: str, frames: Any) -> None:
    kind = str(frames.dtype).removeprefix("torch.")
    if kind != "uint8" or frames.ndim != DIMENSIONS or frames.shape[-1] != 3:  # noqa: PLR2004
        raise BadInput(what, "uint8 of shape (N, height, width, 3)", f"{kind} of shape {tuple(frames.shape)}")
