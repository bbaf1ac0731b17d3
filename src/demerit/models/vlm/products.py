"""Matrix products with a network's weights: exact, or in eight bits, which is an approximation and named so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from demerit.models.vlm.pointwise import Pointwise, eight_bits


class Product(Protocol):
    """A weight, and how to multiply by it."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return (tokens, out) of (tokens, in)."""
        ...

    def onto(self, h: Tensor, x: Tensor) -> Tensor:
        """Return h plus the product."""
        ...


@dataclass(frozen=True)
class Exact:
    """The weight as it is."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply."""
        return F.linear(x, self.weight)

    def onto(self, h: Tensor, x: Tensor) -> Tensor:
        """Multiply and add in one go, into h itself."""
        return h.addmm_(x, self.weight.T)


@dataclass(frozen=True)
class InEightBits:
    """A weight in eight bits with a scale for every row; what it multiplies is rounded likewise, token by token."""

    weight: Tensor
    scale: Tensor
    """(1, out)"""
    pointwise: Pointwise

    @classmethod
    def of(cls, weight: Tensor, pointwise: Pointwise) -> InEightBits:
        """Round a weight."""
        rounded, scale = eight_bits(weight)
        return cls(rounded, scale.T.contiguous(), pointwise)

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply; where there are no units for it, the same numbers are multiplied in float32."""
        rounded: Tensor
        scale: Tensor
        rounded, scale = self.pointwise.eight_bits(x)
        if x.is_cuda:
            product: Tensor = torch._scaled_mm(
                rounded, self.weight.T, scale_a=scale, scale_b=self.scale, out_dtype=x.dtype, use_fast_accum=True
            )
            return product
        return ((rounded.float() * scale) @ (self.weight.float() * self.scale.T).T).to(x.dtype)

    def onto(self, h: Tensor, x: Tensor) -> Tensor:
        """Multiply, then add."""
        return h.add_(self(x))
