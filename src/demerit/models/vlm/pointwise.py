"""The small sums between matrix products, written once: as they are on a CPU, melted into single kernels on a GPU.

Alone they move as many bytes as the products they stand between; compiled, each reads and writes once.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from demerit.errors import PerformanceWarning

EIGHT = torch.float8_e4m3fn
LARGEST = 448.0
"""the largest number that eight bits of this kind hold"""
TINY = 1e-12


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Divide by the root mean square, in float32, then scale."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype)


def gated(both: Tensor) -> Tensor:
    """Multiply silu of the first half with the second."""
    gate, up = both.chunk(2, dim=-1)
    return F.silu(gate) * up


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate (tokens, heads, size) by angles (tokens, size), halves as pairs."""
    one, other = x.chunk(2, dim=-1)
    c, s = (each.chunk(2, dim=-1)[0][:, None] for each in (cos, sin))  # both halves turn alike
    return torch.cat((one * c - other * s, other * c + one * s), dim=-1)


def heads_of(
    qkv: Tensor, q_norm: Tensor, k_norm: Tensor, cos: Tensor, sin: Tensor, groups: int, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Part (tokens, all heads) into queries (tokens, heads, size) and keys with values (tokens, 2, groups, size).

    Queries and keys are normed head by head and turned.
    """
    each = qkv.view(len(qkv), -1, len(q_norm))
    heads = each.shape[1] - 2 * groups
    q = turned(rms_norm(each[:, :heads], q_norm, epsilon), cos, sin)
    k = turned(rms_norm(each[:, heads : heads + groups], k_norm, epsilon), cos, sin)
    return q, torch.stack([k, each[:, heads + groups :]], dim=1)


def turned_in_float(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate (pictures, patches, heads, size) by angles (patches, size) in float32, as vision towers do."""
    one, other = x.float().chunk(2, dim=-1)
    c, s = (each.chunk(2, dim=-1)[0][:, None] for each in (cos, sin))
    return torch.cat((one * c - other * s, other * c + one * s), dim=-1).to(x.dtype)


def gelu_tanh(x: Tensor) -> Tensor:
    """Return gelu by its tanh form."""
    return F.gelu(x, approximate="tanh")


def eight_bits(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round (rows, numbers) to eight bits; return them and the (rows, 1) float32 scales to multiply by."""
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True).clamp(min=TINY) / LARGEST
    return (wide / scale).to(EIGHT), scale


def can_compile() -> bool:
    """Whether kernels can be made here; where they cannot, it is said once that everything runs slower."""
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    triton = importlib.util.find_spec("triton") is not None
    if not (compiler and triton):
        missing = "C compiler" if triton else "triton"
        said = f"There is no {missing} here to make kernels with: scoring takes about 1.4 times as long."
        warnings.warn(said, PerformanceWarning, stacklevel=2)
    return bool(compiler and triton)


class Pointwise:
    """The functions of this module, compiled or not."""

    def __init__(self, compiled: bool) -> None:
        """Choose; compiling costs some seconds at first use and then serves every shape."""
        wrap = _compiled if compiled else _as_it_is
        self.compiled = compiled
        self.rms_norm = wrap(rms_norm)
        self.gated = wrap(gated)
        self.heads_of = wrap(heads_of)
        self.turned_in_float = wrap(turned_in_float)
        self.gelu_tanh = wrap(gelu_tanh)
        self.eight_bits = wrap(eight_bits)


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile for any number of rows; everything else about the shapes is known, which makes the kernels good."""
    compiled: Callable[..., Any] = torch.compile(function)

    def call(first: Tensor, *rest: Any) -> Any:
        rows = len(first)
        for each in (first, *rest):
            if isinstance(each, Tensor) and len(each) == rows:
                torch._dynamo.maybe_mark_dynamic(each, 0)
        return compiled(first, *rest)

    return call
