"""Small networks on top of single states: progress in bins, success, preference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

HEADS = ("progress", "success", "preference")


@dataclass(frozen=True)
class Head:
    """Two linear layers with a norm and gelu between them (dropout is for training alone)."""

    into: tuple[Tensor, Tensor]
    norm: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]

    @classmethod
    def named(cls, name: str, weights: Mapping[str, Tensor]) -> Head:
        """Take the weights of `progress_head`, `success_head` or `preference_head`."""

        def part(at: int) -> tuple[Tensor, Tensor]:
            return weights[f"{name}_head.{at}.weight"], weights[f"{name}_head.{at}.bias"]

        return cls(part(0), part(1), part(4))

    def __call__(self, states: Tensor) -> Tensor:
        """Return (states, outputs)."""
        x = F.linear(states, *self.into)
        x = F.gelu(F.layer_norm(x, x.shape[-1:], *self.norm))
        return F.linear(x, *self.out)


def expected_heads(hidden: int, bins: int) -> dict[str, tuple[int, ...]]:
    """Name the weights of Robometer's heads with their shapes; the pooling weights are in the file but never used."""
    half = hidden // 2
    shapes: dict[str, tuple[int, ...]] = {"frame_pool_attn.weight": (1, hidden)}
    for name, out in zip(HEADS, (bins, 1, 1), strict=True):
        shapes |= {f"{name}_head.0.weight": (half, hidden), f"{name}_head.0.bias": (half,)}
        shapes |= {f"{name}_head.1.weight": (half,), f"{name}_head.1.bias": (half,)}
        shapes |= {f"{name}_head.4.weight": (out, half), f"{name}_head.4.bias": (out,)}
    return shapes


def progress_of(logits: Tensor) -> Tensor:
    """Return the mean of the bins' places, from 0 to 1, weighted as the softmax of (states, bins) says."""
    places = torch.linspace(0, 1, logits.shape[-1], device=logits.device)
    return logits.float().softmax(-1) @ places
