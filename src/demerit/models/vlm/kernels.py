"""Attention, and the elementwise functions between matrix products: eager on a CPU, compiled into kernels on a GPU.

Uncompiled, the elementwise functions move as many bytes as the products around them.
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
from torch.nn.attention.bias import causal_lower_right

from demerit.errors import PerformanceWarning


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend from the last tokens of each sequence to all tokens up to themselves.

    Args:
        q: (sequences, new tokens, heads, size).
        k: (sequences, all tokens, groups, size); the new tokens are the last ones.
        v: same shape as k.

    Returns:
        (sequences, new tokens, heads, size).
    """
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    new, all_tokens = q.shape[2], k.shape[2]
    if q.is_cuda and q.dtype != torch.float32:
        bias = causal_lower_right(new, all_tokens)  # lets torch choose its flash kernel
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)
    elif new == all_tokens:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    else:
        mask = torch.ones(new, all_tokens, dtype=torch.bool, device=q.device).tril(all_tokens - new)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2)


def full_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend from every token to every token; shapes as in `causal_attention`."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Divide by the root mean square, in float32, then scale."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype)


def silu_gate(both: Tensor) -> Tensor:
    """Multiply silu of the first half by the second half."""
    gate, up = both.chunk(2, dim=-1)
    return F.silu(gate) * up


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to (tokens, heads, size); cos and sin are (tokens, size) with equal halves."""
    first, second = x.chunk(2, dim=-1)
    c, s = (angles.chunk(2, dim=-1)[0][:, None] for angles in (cos, sin))
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1)


def split_heads(
    qkv: Tensor, q_norm: Tensor, k_norm: Tensor, cos: Tensor, sin: Tensor, groups: int, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Split (tokens, all heads) into queries (tokens, heads, size) and keys with values (tokens, 2, groups, size).

    Queries and keys are normed per head and rotated.
    """
    every = qkv.view(len(qkv), -1, len(q_norm))
    heads = every.shape[1] - 2 * groups
    q = rotate(rms_norm(every[:, :heads], q_norm, epsilon), cos, sin)
    k = rotate(rms_norm(every[:, heads : heads + groups], k_norm, epsilon), cos, sin)
    return q, torch.stack([k, every[:, heads + groups :]], dim=1)


def rotate_in_float32(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions (patches, size) to (images, patches, heads, size) in float32, as the vision tower does."""
    first, second = x.float().chunk(2, dim=-1)
    c, s = (angles.chunk(2, dim=-1)[0][:, None] for angles in (cos, sin))
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1).to(x.dtype)


def gelu_tanh(x: Tensor) -> Tensor:
    """Return gelu in its tanh approximation."""
    return F.gelu(x, approximate="tanh")


def can_compile() -> bool:
    """Whether triton and a C compiler are installed; warns if not, because scoring is slower then."""
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    triton = importlib.util.find_spec("triton") is not None
    if not (compiler and triton):
        missing = "C compiler" if triton else "triton"
        said = f"No {missing} found: kernels are not compiled and scoring takes about 1.4 times as long."
        warnings.warn(said, PerformanceWarning, stacklevel=2)
    return bool(compiler and triton)


class Pointwise:
    """The elementwise functions above, compiled or eager."""

    def __init__(self, compiled: bool) -> None:
        """Compiling takes some seconds at the first call and then serves every number of rows."""
        wrap = _compile if compiled else _keep_eager
        self.compiled = compiled
        self.rms_norm = wrap(rms_norm)
        self.silu_gate = wrap(silu_gate)
        self.split_heads = wrap(split_heads)
        self.rotate_in_float32 = wrap(rotate_in_float32)
        self.gelu_tanh = wrap(gelu_tanh)


def _keep_eager(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


@functools.cache
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile for any number of rows; all other sizes stay fixed, because dynamic ones make slow kernels."""
    compiled: Callable[..., Any] = torch.compile(function)

    def call(first: Tensor, *rest: Any) -> Any:
        rows = len(first)
        for argument in (first, *rest):
            if isinstance(argument, Tensor) and len(argument) == rows:
                torch._dynamo.maybe_mark_dynamic(argument, 0)
        return compiled(first, *rest)

    return call
