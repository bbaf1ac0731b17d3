"""The Qwen3-VL vision tower over a batch of equal-sized images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from demerit.models.vlm.config import VisionShape
from demerit.models.vlm.kernels import Pointwise, full_attention
from demerit.models.vlm.language import VisionFeatures

EPSILON = 1e-6
THETA = 10000.0


@dataclass(frozen=True)
class _Affine:
    weight: Tensor
    bias: Tensor

    def linear(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def norm(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, EPSILON)


class Vision:
    """A Qwen3-VL vision tower."""

    def __init__(self, shape: VisionShape, weights: Mapping[str, Tensor], pointwise: Pointwise) -> None:
        """Take weights by their names below `visual.`, all on one device."""
        self.shape = shape
        self._do = pointwise
        self._weights = weights
        embed = weights["patch_embed.proj.weight"]
        self._embed = _Affine(embed.flatten(1), weights["patch_embed.proj.bias"])
        self._cache: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}

    def features(self, patches: Tensor, rows: int, columns: int) -> VisionFeatures:
        """Encode images.

        Args:
            patches: (images, rows * columns * merge², values of a patch), in blocks of merge x merge.
            rows: token rows of an image.
            columns: token columns of an image.

        Returns:
            rows * columns tokens per image, concatenated.
        """
        learned, cos, sin = self._positions(rows, columns)
        x = self._embed.linear(patches.to(self._embed.weight.dtype)) + learned
        deep = []
        for number in range(self.shape.depth):
            x = self._block(number, x, cos, sin)
            if number in self.shape.deep:
                at = self.shape.deep.index(number)
                deep.append(self._merge_patches(x, f"deepstack_merger_list.{at}", norm_after=True))
        return VisionFeatures(self._merge_patches(x, "merger", norm_after=False), tuple(deep))

    def _block(self, number: int, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        heads = self.shape.heads
        qkv = self._part(number, "attn.qkv").linear(self._part(number, "norm1").norm(x))
        q, k, v = qkv.view(*qkv.shape[:2], 3, heads, -1).unbind(2)
        q, k = self._do.rotate_in_float32(q, cos, sin), self._do.rotate_in_float32(k, cos, sin)
        x = x + self._part(number, "attn.proj").linear(full_attention(q, k, v).flatten(2))
        inner = self._part(number, "mlp.linear_fc1").linear(self._part(number, "norm2").norm(x))
        return x + self._part(number, "mlp.linear_fc2").linear(self._do.gelu_tanh(inner))

    def _merge_patches(self, x: Tensor, name: str, *, norm_after: bool) -> Tensor:
        """Merge merge x merge patches into one token."""
        wide = self.shape.hidden * self.shape.merge**2
        norm = self._affine(f"{name}.norm")
        x = norm.norm(x.reshape(-1, wide)) if norm_after else norm.norm(x).reshape(-1, wide)
        return self._affine(f"{name}.linear_fc2").linear(F.gelu(self._affine(f"{name}.linear_fc1").linear(x)))

    def _part(self, number: int, name: str) -> _Affine:
        return self._affine(f"blocks.{number}.{name}")

    def _affine(self, name: str) -> _Affine:
        return _Affine(self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _positions(self, rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return learned positions, cosines and sines for every patch; cached per image size."""
        if (rows, columns) not in self._cache:
            merge, device = self.shape.merge, self._embed.weight.device
            tall, wide = _grid(rows * merge, columns * merge, merge, device)
            learned = self._interpolate(tall, rows * merge, wide, columns * merge)
            cos, sin = _angles(tall, wide, self.shape.hidden // self.shape.heads)
            self._cache[rows, columns] = learned, cos, sin
        return self._cache[rows, columns]

    def _interpolate(self, tall: Tensor, height: int, wide: Tensor, width: int) -> Tensor:
        """Interpolate the learned grid bilinearly."""
        table, side = self._weights["pos_embed.weight"], self.shape.side
        top, up = _between(tall, height, side)
        left, across = _between(wide, width, side)
        total = torch.zeros(len(tall), table.shape[1], device=table.device, dtype=torch.float32)
        for down, tall_part in ((0, 1 - up), (1, up)):
            for right, wide_part in ((0, 1 - across), (1, across)):
                at = (top + down).clamp(max=side - 1) * side + (left + right).clamp(max=side - 1)
                total += table[at].float() * (tall_part * wide_part)[:, None]
        return total.to(table.dtype)


def _grid(height: int, width: int, merge: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the row and column of every patch, in blocks of merge x merge."""

    def in_blocks(x: Tensor) -> Tensor:
        blocks = x.reshape(height // merge, merge, width // merge, merge)
        return blocks.transpose(1, 2).flatten()

    tall, wide = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return in_blocks(tall).to(device), in_blocks(wide).to(device)


def _between(at: Tensor, count: int, side: int) -> tuple[Tensor, Tensor]:
    """Map patch `at` of `count` onto `side` points with matching ends: return the point below and the fraction."""
    step = (side - 1) / (count - 1) if count > 1 else 0.0
    place = at.float() * step
    before = place.floor().clamp(max=side - 1)
    return before.long(), place - before


def _angles(tall: Tensor, wide: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (patches, size): a quarter of the frequencies for each direction, then repeated."""
    spread = size // 2
    # computed on the CPU: powers differ in their last digits between devices
    frequencies = (1.0 / (THETA ** (torch.arange(0, spread, 2, dtype=torch.float) / spread))).to(tall.device)
    angles = torch.cat([tall[:, None] * frequencies, wide[:, None] * frequencies], dim=-1)
    both = torch.cat([angles, angles], dim=-1)
    return both.cos(), both.sin()
