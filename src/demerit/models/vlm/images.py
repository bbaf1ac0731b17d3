"""Image preprocessing for Qwen's vision tower: resize to whole tokens, scale to -1..1, cut into patches.

    grid_size -> resize_frames -> cut_image_patches   an image (one frame, repeated to fill the tower's two moments)
    grid_size -> resize_frames -> cut_video_patches   a video (two frames per patch)

torchvision is not needed. The published models use two ways of resizing, which differ by a grey level here and there:
`pil` (Pillow's bicubic filter, before the processor) and `torch` (bicubic interpolation of bytes, in the processor).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from demerit.data.files import read_json
from demerit.data.frames import Images
from demerit.errors import BadInput
from demerit.models.vlm.config import PixelScale

How = Literal["pil", "torch"]

MOST_STRETCHED = 200
"""longest allowed ratio of the sides; Qwen's own limit"""
MIDDLE = 127.5
"""(value - MIDDLE) / MIDDLE maps bytes to -1..1"""
DIMENSIONS = 4
BATCH = 64
"""images per call of the vision tower"""
WORTH_PINNING = 1 << 20
"""bytes; pinning takes a millisecond, longer than copying less than this"""
FIXED_POINT_BITS = 22
BICUBIC_SUPPORT = 2.0


def grid_size(height: int, width: int, *, factor: int, low: int, high: int) -> tuple[int, int]:
    """Return the (height, width) in pixels that Qwen resizes an image to.

    Sides become the nearest multiples of `factor` (halves go to the even one). If that makes fewer than `low` or more
    than `high` pixels, the image is scaled into the range, keeping its proportions as well as multiples allow.
    """
    if min(height, width) < 1:
        raise BadInput("image size", "at least one pixel on each side", f"{height} x {width}")
    if max(height, width) / min(height, width) > MOST_STRETCHED:
        raise BadInput("image size", f"sides within {MOST_STRETCHED} times each other", f"{height} x {width}")
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
        raise BadInput("image size", f"sides that round to {factor} pixels or more", f"{height} x {width}")
    return tall, wide


def resize_frames(frames: Images, size: tuple[int, int], how: How) -> Images:
    """Resize (N, H, W, 3) uint8 frames to (N, *size, 3), in parallel; the same array comes back at the same size.

    Each frame is resized separately, so its pixels do not depend on the batch.
    """
    if how not in get_args(How):
        raise BadInput("resizing", f"one of {list(get_args(How))}", repr(how))
    _check_frames("frames", frames)
    if frames.shape[1:3] == size:
        return frames
    resize = _resize_by_pillow if how == "pil" else _resize_by_torch
    new = np.empty((len(frames), *size, 3), np.uint8)
    _run_parallel(lambda at: resize(frames[at], new[at]), len(frames))
    return new


def cut_image_patches(
    frames: Tensor, *, patch: int, merge: int, temporal: int, scale: PixelScale | None = None
) -> Tensor:
    """Cut images into the rows that the vision tower reads.

    A row is one patch: channel by channel, moment by moment, line by line. Rows come in blocks of merge x merge
    neighbours, because each block becomes one token. All moments of an image are the same.

    Args:
        frames: (N, height, width, 3) uint8 on any device; sides are multiples of patch * merge.
        patch: side of a patch.
        merge: patches per token along each side.
        temporal: moments in a patch.
        scale: of the channels; default: bytes become -1..1.

    Returns:
        (N, height / patch * width / patch, 3 * temporal * patch * patch) float32 on the frames' device.
    """
    _check_frames("frames", frames)
    rows = _cut(frames[:, None], patch, merge, scale)
    return rows.expand(*rows.shape[:3], temporal, rows.shape[-1]).reshape(*rows.shape[:2], -1)


def cut_pair_patches(
    first: Tensor, second: Tensor, *, patch: int, merge: int, scale: PixelScale | None = None
) -> Tensor:
    """Cut pairs of frames into rows of two moments, first[i] before second[i]; shapes as in `cut_image_patches`."""
    _check_frames("first frames", first)
    _check_frames("second frames", second)
    if first.shape != second.shape:
        raise BadInput("second frames", f"the shape of the first ones, {tuple(first.shape)}", tuple(second.shape))
    return _cut(torch.stack((first, second), 1), patch, merge, scale).flatten(2)


def cut_video_patches(frames: Tensor, *, patch: int, merge: int, temporal: int) -> Tensor:
    """Cut a video into rows of `temporal` successive frames, repeating the last frame to fill up.

    Returns:
        (moments, rows, values) as in `cut_image_patches`; moments = frames / temporal, rounded up.
    """
    _check_frames("frames", frames)
    if short := -len(frames) % temporal:
        frames = torch.cat((frames, frames[-1:].expand(short, *frames.shape[1:])))
    return _cut(frames.reshape(-1, temporal, *frames.shape[1:]), patch, merge).flatten(2)


def _cut(clips: Tensor, patch: int, merge: int, scale: PixelScale | None = None) -> Tensor:
    """(N, moments, height, width, 3) bytes -> (N, rows, 3, moments, patch * patch) floats."""
    n, moments, height, width, channels = clips.shape
    factor = patch * merge
    if height % factor or width % factor:
        raise BadInput("frames", f"sides that are multiples of {factor} (see grid_size)", f"{height} x {width}")
    blocks = clips.reshape(n, moments, height // factor, merge, patch, width // factor, merge, patch, channels)
    # to (N, block row, block column, row in block, column in block, channel, moment, line, pixel), still as bytes:
    # a quarter of the memory to move
    ordered = blocks.permute(0, 2, 5, 3, 6, 8, 1, 4, 7).contiguous()
    rows = ordered.view(n, height * width // patch**2, channels, moments, patch * patch)
    if scale is None:
        return rows.to(torch.float32).sub_(MIDDLE).div_(MIDDLE)
    mean, deviation = torch.tensor(scale, device=clips.device)[:, :, None, None] * (2 * MIDDLE)
    return rows.to(torch.float32).sub_(mean).div_(deviation)


def _resize_by_pillow(frame: Images, new: Images) -> None:
    """Resize rows, then columns: Pillow 13 chooses the order, earlier versions always took this one."""
    height, width, _ = new.shape
    wide = Image.fromarray(frame).resize((width, len(frame)), Image.Resampling.BICUBIC)
    new[:] = np.asarray(wide.resize((width, height), Image.Resampling.BICUBIC))


def _resize_by_torch(frame: Images, new: Images) -> None:
    planes = torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1)[None]
    size = list(new.shape[:2])
    better = torch.nn.functional.interpolate(planes, size, mode="bicubic", align_corners=False, antialias=True)
    new[:] = better[0].permute(1, 2, 0).numpy()


def _run_parallel(work: Callable[[int], None], count: int) -> None:
    cores = min(os.cpu_count() or 1, count)
    if cores <= 1:
        for at in range(count):
            work(at)
        return
    # both filters release the GIL
    with ThreadPoolExecutor(cores) as pool:
        for _ in pool.map(work, range(count)):
            pass


def _check_frames(what: str, frames: Any) -> None:
    kind = str(frames.dtype).removeprefix("torch.")
    if kind != "uint8" or frames.ndim != DIMENSIONS or frames.shape[-1] != 3:  # noqa: PLR2004
        raise BadInput(what, "uint8 of shape (N, height, width, 3)", f"{kind} of shape {tuple(frames.shape)}")


def to_pinned(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Make a tensor of an array; large arrays for a GPU go to pinned memory, so that the copy is asynchronous."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" and tensor.nbytes >= WORTH_PINNING else tensor


def send(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Send an array without waiting for the device."""
    return to_pinned(array, device).to(device, non_blocking=True)


def split_batches(frames: Images, count: int = BATCH) -> Iterator[Images]:
    """Split frames into batches."""
    for start in range(0, len(frames), count):
        yield frames[start : start + count]


def prefetch_frames(
    batches: Iterable[Images], size: tuple[int, int], how: How, device: torch.device
) -> Iterator[Tensor]:
    """Yield batches of (n, *size, 3) on the device; the next one is fetched, resized and sent in the background."""
    source = iter(batches)

    def prepare_next() -> Tensor | None:
        batch = next(source, None)
        if batch is None:
            return None
        later = device.type == "cuda" and how == "pil"  # then the device resizes
        return to_pinned(batch if later else resize_frames(batch, size, how), device)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(prepare_next)
        while (batch := waiting.result()) is not None:
            waiting = pool.submit(prepare_next)
            yield pillow_resize(batch.to(device, non_blocking=True), size)  # a no-op at the right size


def pillow_resize(frames: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize (n, height, width, 3) uint8 frames to (n, *size, 3), bit for bit as `Image.resize(..., BICUBIC)`.

    Pillow filters bytes with 22-bit fixed-point weights, rows first, then columns, rounding to bytes in between
    (Pillow 13 sometimes takes columns first; the published models were trained with earlier versions). Integer sums
    are the same on every device.
    """
    height, width = size
    if frames.shape[2] != width:
        frames = _filter_axis(frames, 2, width)
    if frames.shape[1] != height:
        frames = _filter_axis(frames, 1, height)
    return frames


def _filter_axis(frames: Tensor, axis: int, size: int) -> Tensor:
    places, weights = _taps(frames.shape[axis], size, frames.device)
    shape = [1] * frames.ndim
    shape[axis] = size
    total = torch.full((), 1 << (FIXED_POINT_BITS - 1), dtype=torch.int32, device=frames.device)
    for place, weight in zip(places, weights, strict=True):
        total = total + frames.index_select(axis, place) * weight.view(shape)
    return (total >> FIXED_POINT_BITS).clamp_(0, 255).to(torch.uint8)


@cache
def _taps(old: int, new: int, device: torch.device) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return, tap by tap, which old pixel each new one reads and with what integer weight."""
    scale = old / new
    wide = max(scale, 1.0)
    taps = math.ceil(BICUBIC_SUPPORT * wide) * 2 + 1
    places = torch.zeros(taps, new, dtype=torch.long)
    weights = torch.zeros(taps, new, dtype=torch.int32)
    for at in range(new):
        centre = (at + 0.5) * scale
        first = max(0, int(centre - BICUBIC_SUPPORT * wide + 0.5))
        last = min(old, int(centre + BICUBIC_SUPPORT * wide + 0.5))
        raw = [_bicubic((x - centre + 0.5) / wide) for x in range(first, last)]
        for tap, weight in enumerate(raw):
            places[tap, at] = first + tap
            exact = weight / sum(raw) * (1 << FIXED_POINT_BITS)
            weights[tap, at] = int(exact - 0.5 if exact < 0 else exact + 0.5)
    used = [tap for tap in range(taps) if weights[tap].any()]
    return tuple(places[tap].to(device) for tap in used), tuple(weights[tap].to(device) for tap in used)


def _bicubic(x: float, a: float = -0.5) -> float:
    x = abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < BICUBIC_SUPPORT else 0.0


SETTINGS = "video_preprocessor_config.json"
FEWEST, MOST = 4 * 32 * 32, 24_576 * 32 * 32
"""pixels of a whole video in the settings of the published Qwen3-VL checkpoints"""


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
