"""Other cameras, other light, other colours: one change for all frames of a clip, made on the device."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

MIDDLE, SCALE = 127.0, 128.0
"""of pixel values: what the image network was first trained with"""
MIRRORED = 0.5


def as_input(pixels: Tensor) -> Tensor:
    """Turn (..., height, width, 3) uint8 into (..., 3, height, width), about -1 to 1; in half precision on a GPU."""
    kind = torch.float16 if pixels.is_cuda else torch.float32
    return (pixels.movedim(-1, -3).to(kind) - MIDDLE) / SCALE


def vary(clips: Tensor, generator: torch.Generator) -> Tensor:
    """Change each clip's camera and colours.

    Args:
        clips: (n, frames, 3, height, width), -1 to 1.
        generator: on the same device.
    """
    count, frames = clips.shape[:2]
    seen = _moved(clips.flatten(0, 1), _cameras(count, generator, clips.device).repeat_interleave(frames, dim=0))
    return _coloured(seen.reshape(clips.shape), generator)


def _uniform(
    shape: tuple[int, ...], low: float, high: float, generator: torch.Generator, device: torch.device
) -> Tensor:
    return torch.rand(shape, generator=generator, device=device) * (high - low) + low


def _cameras(count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Draw affine maps: mirrored half of the time, turned, nearer or farther, shifted, stretched."""

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


def _moved(images: Tensor, maps: Tensor) -> Tensor:
    grid = functional.affine_grid(maps, list(images.shape), align_corners=False).to(images.dtype)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _coloured(clips: Tensor, generator: torch.Generator) -> Tensor:
    count, device = clips.shape[0], clips.device

    def draw(low: float, high: float, width: int = 1) -> Tensor:
        return _uniform((count, 1, width, 1, 1), low, high, generator, device).to(clips.dtype)

    grey = clips.mean(dim=2, keepdim=True)
    clips = grey + (clips - grey) * draw(0.4, 1.4)
    clips = clips * draw(0.75, 1.3) * draw(0.85, 1.15, 3) + draw(-0.25, 0.25) + draw(-0.08, 0.08, 3)
    noise = torch.randn(clips.shape, generator=generator, device=device, dtype=clips.dtype)
    return (clips + noise * draw(0, 0.04)).clamp(-1.1, 1.1)
