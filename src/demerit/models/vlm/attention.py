"""Attention of segments to what came before them and to themselves."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend from the last tokens of each sequence to all tokens up to themselves.

    Args:
        q: (sequences, new tokens, heads, size).
        k: (sequences, all tokens, groups, size): the new tokens are its last.
        v: as k.

    Returns:
        (sequences, new tokens, heads, size).
    """
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    new, all_tokens = q.shape[2], k.shape[2]
    if q.is_cuda and q.dtype != torch.float32:
        out = _flash(q, k, v)
    elif new == all_tokens:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    else:
        mask = torch.ones(new, all_tokens, dtype=torch.bool, device=q.device).tril(all_tokens - new)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2)


def _flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Let torch choose its flash kernel, which lines the triangle up with the last key."""
    bias = causal_lower_right(q.shape[2], k.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)


def full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend from every token to every token; shapes as in `causal`."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)
