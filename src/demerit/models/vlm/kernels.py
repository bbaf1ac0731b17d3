"""Triton kernels for the functions between matrix products, and attention over a prefix tree without copying keys.

Each computes what the function of the same name in `EagerOps` (layers.py) does, in one pass over memory, for every
dtype. One attention program holds some queries of all heads that share keys, and reads keys and values by their index.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from demerit.models.vlm.layers import EagerOps

LOG2E = 1.4426950408889634
TILES = {torch.bfloat16: (128, 64, 4, 3), torch.float32: (32, 32, 4, 1)}
"""queries and keys of a tile, warps, and tiles loaded ahead: the fastest of twelve on an H200"""
ROW_BLOCK = 2048
ROWS = 16
"""heads of a program"""
INT32 = 2**31
LARGEST = 448.0
"""of the eight-bit floats"""


@triton.jit
def _norm_rms(x, weight, out, width, epsilon, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    at = tl.arange(0, block)
    inside = at < width
    wide = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / width + epsilon)
    gain = tl.load(weight + at, mask=inside, other=0.0)
    tl.store(out + row + at, gain * (wide * scale).to(gain.dtype), mask=inside)


@triton.jit
def _gate(both, out, inner, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < inner
    gate = tl.load(both + row * 2 * inner + at, mask=inside, other=0.0)
    up = tl.load(both + row * 2 * inner + inner + at, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    tl.store(out + row * inner + at, (wide / (1 + tl.exp(-wide))).to(up.dtype) * up, mask=inside)


@triton.jit
def _round_row(x, out, scales, width, largest, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    at = tl.arange(0, block)
    wide = tl.load(x + row + at, mask=at < width, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(wide), 0), 1e-12) / largest
    tl.store(out + row + at, (wide / scale).to(tl.float8e4nv), mask=at < width)
    tl.store(scales + tl.program_id(0), scale)


@triton.jit
def _rotate(
    qkv, q_norm, k_norm, cos, sin, q, keys, heads, groups, half, epsilon,
    rows: tl.constexpr, block: tl.constexpr, normed: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head, at = tl.program_id(1) * rows + tl.arange(0, rows)[:, None], tl.arange(0, block)[None, :]
    every, size = heads + 2 * groups, 2 * half
    inside = (head < every) & (at < half)
    place = qkv + (token * every + head) * size + at
    first, second = tl.load(place, mask=inside, other=0.0), tl.load(place + half, mask=inside, other=0.0)
    kind = first.dtype
    is_key, is_value = head >= heads, head >= heads + groups
    wide, other = first.to(tl.float32), second.to(tl.float32)
    if normed:
        scale = tl.rsqrt((tl.sum(wide * wide, 1) + tl.sum(other * other, 1)) / size + epsilon)[:, None]
        there = at < half
        gain = tl.where(is_key, tl.load(k_norm + at, mask=there), tl.load(q_norm + at, mask=there)).to(tl.float32)
        more = tl.where(is_key, tl.load(k_norm + half + at, mask=there), tl.load(q_norm + half + at, mask=there))
        wide = (wide * scale).to(kind).to(tl.float32) * gain
        other = (other * scale).to(kind).to(tl.float32) * more.to(tl.float32)
    c = tl.load(cos + token * size + at, mask=at < half, other=0.0).to(tl.float32)
    s = tl.load(sin + token * size + at, mask=at < half, other=0.0).to(tl.float32)
    low = tl.where(is_value, first, (wide * c - other * s).to(kind))
    high = tl.where(is_value, second, (other * c + wide * s).to(kind))
    to = q + (token * heads + head) * size + at
    tl.store(to, low, mask=inside & (head < heads))
    tl.store(to + half, high, mask=inside & (head < heads))
    to = keys + (token * 2 * groups + head - heads) * size + at
    tl.store(to, low, mask=inside & is_key)
    tl.store(to + half, high, mask=inside & is_key)


@triton.jit(do_not_specialize=["patches", "total"])
def _rotate_patches(qkv, cos, sin, out, patches, total, heads, half, rows: tl.constexpr, block: tl.constexpr):
    patch = tl.program_id(0).to(tl.int64)
    head, at = tl.arange(0, rows)[:, None], tl.arange(0, block)[None, :]
    size = 2 * half
    inside = (head < 2 * heads) & (at < half)
    place = qkv + (patch * 3 * heads + head) * size + at
    first, second = tl.load(place, mask=inside, other=0.0), tl.load(place + half, mask=inside, other=0.0)
    angle = (patch % patches) * size + at
    c, s = tl.load(cos + angle, mask=at < half, other=0.0), tl.load(sin + angle, mask=at < half, other=0.0)
    wide, other = first.to(tl.float32), second.to(tl.float32)
    to = out + ((head // heads) * total + patch) * heads * size + (head % heads) * size + at
    tl.store(to, (wide * c - other * s).to(first.dtype), mask=inside)
    tl.store(to + half, (other * c + wide * s).to(first.dtype), mask=inside)


@triton.jit
def _add_norm(x, more, weight, bias, out, width, epsilon, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    at = tl.arange(0, block)
    inside = at < width
    total = tl.load(x + row + at, mask=inside, other=0.0) + tl.load(more + row + at, mask=inside, other=0.0)
    tl.store(x + row + at, total, mask=inside)
    wide = total.to(tl.float32)
    mean = tl.sum(wide, 0) / width
    off = tl.where(inside, wide - mean, 0.0)
    scale = tl.rsqrt(tl.sum(off * off, 0) / width + epsilon)
    gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + at, (off * scale * gain + shift).to(total.dtype), mask=inside)


@triton.jit(do_not_specialize=["context", "length", "seen"])  # or each new length would be compiled
def _attend(
    q, pool, sees, out, context, length, seen, scale,
    heads: tl.constexpr, groups: tl.constexpr, size: tl.constexpr, share: tl.constexpr,
    queries: tl.constexpr, keys: tl.constexpr,
):  # fmt: skip
    block, group, segment = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    rows = block * queries + tl.arange(0, queries)
    token = rows // share
    inside = (token < length)[:, None]
    at = tl.arange(0, size)
    head = group * share + rows % share
    place = ((segment * length + token) * heads + head)[:, None] * size + at[None, :]
    mine = tl.load(q + place, mask=inside, other=0.0)
    top = tl.full([queries], float("-inf"), tl.float32)
    total = tl.zeros([queries], tl.float32)
    mixed = tl.zeros([queries, size], tl.float32)
    pool += group * size
    sees += segment * seen
    for_all = (context + block * queries // share + 1) // keys * keys
    for start in range(0, for_all, keys):  # seen by every query of the tile
        row = tl.load(sees + start + tl.arange(0, keys)) * (2 * groups * size)
        score = tl.dot(mine, tl.load(pool + row[None, :] + at[:, None]), input_precision="ieee") * scale
        new = tl.maximum(top, tl.max(score, 1))
        part, shrink = tl.exp2(score - new[:, None]), tl.exp2(top - new)
        total = total * shrink + tl.sum(part, 1)
        value = tl.load(pool + groups * size + row[:, None] + at[None, :])
        mixed = tl.dot(part.to(value.dtype), value, mixed * shrink[:, None], input_precision="ieee")
        top = new
    last = context + tl.minimum((block * queries + queries - 1) // share + 1, length)
    for start in range(for_all, last, keys):
        number = start + tl.arange(0, keys)
        row = tl.load(sees + number, mask=number < seen, other=0) * (2 * groups * size)
        score = tl.dot(mine, tl.load(pool + row[None, :] + at[:, None]), input_precision="ieee") * scale
        score = tl.where(number[None, :] <= context + token[:, None], score, float("-inf"))
        new = tl.maximum(top, tl.max(score, 1))
        part, shrink = tl.exp2(score - new[:, None]), tl.exp2(top - new)
        total = total * shrink + tl.sum(part, 1)
        value = tl.load(pool + groups * size + row[:, None] + at[None, :], mask=(number < seen)[:, None], other=0.0)
        mixed = tl.dot(part.to(value.dtype), value, mixed * shrink[:, None], input_precision="ieee")
        top = new
    tl.store(out + place, (mixed / total[:, None]).to(mine.dtype), mask=inside)


class TritonOps(EagerOps):
    """The functions of `EagerOps`, as kernels."""

    @staticmethod
    def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """Divide by the root mean square, in float32, then scale."""
        out = torch.empty_like(x)
        _norm_rms[(len(x),)](x, weight, out, x.shape[1], epsilon, triton.next_power_of_2(x.shape[1]), num_warps=8)
        return out

    @staticmethod
    def silu_gate(both: Tensor) -> Tensor:
        """Multiply silu of the first half by the second half."""
        inner = both.shape[1] // 2
        out = both.new_empty(len(both), inner)
        _gate[(len(both), triton.cdiv(inner, ROW_BLOCK))](both, out, inner, ROW_BLOCK)
        return out

    @staticmethod
    def round_rows(x: Tensor) -> tuple[Tensor, Tensor]:
        """Round each row to eight-bit floats; return them and what to multiply each row with."""
        out, scales = torch.empty_like(x, dtype=torch.float8_e4m3fn), x.new_empty(len(x), 1, dtype=torch.float32)
        block = triton.next_power_of_2(x.shape[1])
        _round_row[(len(x),)](x, out, scales, x.shape[1], LARGEST, block, num_warps=8)
        return out, scales

    @staticmethod
    def multiply_eight_bits(rows: Tensor, scales: Tensor, weight: Tensor, gains: Tensor, dtype: torch.dtype) -> Tensor:
        """Multiply rounded rows by a rounded matrix, and undo both scales."""
        return torch._scaled_mm(rows, weight.T, scales, gains, out_dtype=dtype, use_fast_accum=True)

    @staticmethod
    def split_heads(
        qkv: Tensor, q_norm: Tensor | None, k_norm: Tensor | None, cos: Tensor, sin: Tensor, groups: int, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        """Split (tokens, all heads) into normed and rotated queries, and keys with values."""
        tokens, size = cos.shape
        every = qkv.shape[1] // size
        heads = every - 2 * groups
        q, keys = qkv.new_empty(tokens, heads, size), qkv.new_empty(tokens, 2, groups, size)
        blocks = ROWS, triton.next_power_of_2(size // 2)
        norms = (qkv, qkv) if q_norm is None else (q_norm, k_norm)
        _rotate[(tokens, triton.cdiv(every, ROWS))](
            qkv, *norms, cos, sin, q, keys, heads, groups, size // 2, epsilon, *blocks, q_norm is not None
        )
        return q, keys

    @staticmethod
    def rotate_patches(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """Split (images, patches, 3 x width) into queries and keys, rotated in float32, and values."""
        images, patches, _ = qkv.shape
        size = cos.shape[1]
        out = qkv.new_empty(2, images, patches, heads, size)
        blocks = triton.next_power_of_2(2 * heads), triton.next_power_of_2(size // 2)
        _rotate_patches[(images * patches,)](qkv, cos, sin, out, patches, images * patches, heads, size // 2, *blocks)
        return out[0], out[1], qkv.view(images, patches, 3, heads, size)[:, :, 2]

    @staticmethod
    def add_norm(x: Tensor, more: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """Add to x in place; return it, and it after a layer norm."""
        out, width = torch.empty_like(x), x.shape[-1]
        _add_norm[(x.numel() // width,)](
            x, more, weight, bias, out, width, epsilon, triton.next_power_of_2(width), num_warps=8
        )
        return x, out

    @staticmethod
    def attend(q: Tensor, pool: Tensor, sees: Tensor, out: Tensor) -> None:
        """Attend from the last tokens of each sequence to all tokens up to themselves; the pool is read in place."""
        count, length, heads, size = q.shape
        groups = pool.shape[2]
        sees = sees if pool.numel() < INT32 else sees.long()
        queries, keys, warps, ahead = TILES[q.dtype]
        share = heads // groups
        _attend[(triton.cdiv(length * share, queries), groups, count)](
            q, pool, sees, out, sees.shape[1] - length, length, sees.shape[1], size**-0.5 * LOG2E,
            heads, groups, size, share, queries, keys, num_warps=warps, num_stages=ahead,
        )  # fmt: skip
