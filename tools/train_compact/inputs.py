"""What a step reads on the device: frames, augmented clips, and instruction vectors."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from demerit.errors import BadInput
from demerit.training.prepared import PreparedCorpus

MIDDLE, SCALE = 127.0, 128.0
"""pixel scaling that the image network was first trained with"""
MIRRORED = 0.5
LOADED_TOGETHER = 20_000


class FrameTable:
    """The frames of a corpus: in GPU memory if there is a GPU, otherwise read from the file as needed."""

    def __init__(self, corpus: PreparedCorpus, device: torch.device, size: int) -> None:
        """Load the frames onto a GPU."""
        self.file = corpus.images
        if self.file.shape[1:3] != (size, size):
            raise BadInput("size", f"the {self.file.shape[1]} pixels per side that the corpus was prepared with", size)
        self.loaded: Tensor | None = None
        if device.type != "cpu":
            starts = range(0, len(self.file), LOADED_TOGETHER)
            parts = [np.array(self.file[start : start + LOADED_TOGETHER]) for start in starts]
            self.loaded = torch.cat([torch.from_numpy(part).to(device) for part in parts])

    def take(self, numbers: Tensor) -> Tensor:
        """Return (..., 3, height, width), about -1 to 1; float16 on a GPU."""
        pixels = torch.from_numpy(self.file[numbers.numpy()]) if self.loaded is None else self.loaded[numbers]
        kind = torch.float16 if pixels.is_cuda else torch.float32
        return (pixels.movedim(-1, -3).to(kind) - MIDDLE) / SCALE


def augment(clips: Tensor, generator: torch.Generator) -> Tensor:
    """Change camera and colours, in the same way for all frames of a clip.

    Args:
        clips: (n, frames, 3, height, width), -1 to 1.
        generator: on the same device.
    """
    count, frames = clips.shape[:2]
    maps = _sample_cameras(count, generator, clips.device).repeat_interleave(frames, dim=0)
    flat = clips.flatten(0, 1)
    grid = functional.affine_grid(maps, list(flat.shape), align_corners=False).to(flat.dtype)
    moved = functional.grid_sample(flat, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return _change_colours(moved.reshape(clips.shape), generator)


def _uniform(
    shape: tuple[int, ...], low: float, high: float, generator: torch.Generator, device: torch.device
) -> Tensor:
    return torch.rand(shape, generator=generator, device=device) * (high - low) + low


def _sample_cameras(count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Sample (count, 2, 3) affine maps: mirrored half of the time, rotated, zoomed, shifted, stretched."""

    def draw(low: float, high: float) -> Tensor:
        return _uniform((count,), low, high, generator, device)

    angle = draw(-0.2, 0.2)
    zoom, stretch, shear = draw(math.log(0.75), math.log(1.1)).exp(), draw(-0.12, 0.12).exp(), draw(-0.12, 0.12)
    mirror = torch.where(draw(0, 1) < MIRRORED, -1.0, 1.0)
    wide, high = zoom * stretch, zoom / stretch
    rows = [
        torch.stack([mirror * wide * angle.cos(), mirror * (shear - wide * angle.sin()), draw(-0.12, 0.12)], dim=1),
        torch.stack([high * angle.sin(), high * angle.cos(), draw(-0.12, 0.12)], dim=1),
    ]
    return torch.stack(rows, dim=1)


def _change_colours(clips: Tensor, generator: torch.Generator) -> Tensor:
    count, device = clips.shape[0], clips.device

    def draw(low: float, high: float, width: int = 1) -> Tensor:
        return _uniform((count, 1, width, 1, 1), low, high, generator, device).to(clips.dtype)

    grey = clips.mean(dim=2, keepdim=True)
    clips = grey + (clips - grey) * draw(0.4, 1.4)
    clips = clips * draw(0.75, 1.3) * draw(0.85, 1.15, 3) + draw(-0.25, 0.25) + draw(-0.08, 0.08, 3)
    noise = torch.randn(clips.shape, generator=generator, device=device, dtype=clips.dtype)
    return (clips + noise * draw(0, 0.04)).clamp(-1.1, 1.1)
