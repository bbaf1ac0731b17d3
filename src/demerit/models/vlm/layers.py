"""The layers of Qwen3-VL: attention and elementwise functions, the language model, and the vision tower.

Qwen2.5-VL's language model is the same but for biases, norms and the order of positions; its tower is in qwen25.py.

What lies between matrix products is done by torch on a CPU and by kernels on a GPU (kernels.py): eager functions move
as many bytes as the products around them. The language model runs over a packed prefix tree, layer by layer over all
tokens, so only one layer's keys are in memory. Only attention sees the tree; every matrix product runs over all tokens
of all windows at once. The vision tower runs over a batch of equal-sized images.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

from demerit.data.arrays import Ints
from demerit.errors import PerformanceWarning
from demerit.models.vlm.config import TextShape, VisionShape
from demerit.models.vlm.images import send
from demerit.models.vlm.prefix_tree import PackedTree


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
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=bool(q.shape[1] != k.shape[1])).transpose(1, 2)


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
    qkv: Tensor, q_norm: Tensor | None, k_norm: Tensor | None, cos: Tensor, sin: Tensor, groups: int, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Split (tokens, all heads) into queries (tokens, heads, size) and keys with values (tokens, 2, groups, size).

    Queries and keys are normed per head (Qwen3-VL) and rotated.
    """
    every = qkv.view(len(qkv), -1, cos.shape[-1])
    heads = every.shape[1] - 2 * groups
    q, k = every[:, :heads], every[:, heads : heads + groups]
    if q_norm is not None and k_norm is not None:
        q, k = rms_norm(q, q_norm, epsilon), rms_norm(k, k_norm, epsilon)
    return rotate(q, cos, sin), torch.stack([rotate(k, cos, sin), every[:, heads + groups :]], dim=1)


def rotate_in_float32(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions (patches, size) to (images, patches, heads, size) in float32, as the vision tower does."""
    first, second = x.float().chunk(2, dim=-1)
    c, s = (angles.chunk(2, dim=-1)[0][:, None] for angles in (cos, sin))
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1).to(x.dtype)


class EagerOps:
    """What the layers compute between matrix products, by torch; `TritonOps` has the same as kernels for a GPU."""

    rms_norm = staticmethod(rms_norm)
    silu_gate = staticmethod(silu_gate)
    split_heads = staticmethod(split_heads)

    @staticmethod
    def rotate_patches(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """Split (images, patches, 3 x width) into queries and keys, rotated in float32, and values."""
        q, k, v = qkv.view(*qkv.shape[:2], 3, heads, -1).unbind(2)
        return rotate_in_float32(q, cos, sin), rotate_in_float32(k, cos, sin), v

    @staticmethod
    def add_norm(x: Tensor, more: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """Add to x in place; return it, and it after a layer norm."""
        x = x.add_(more)
        return x, F.layer_norm(x, weight.shape, weight, bias, epsilon)

    @staticmethod
    def round_rows(x: Tensor) -> tuple[Tensor, Tensor]:
        """Round each row to eight-bit floats; return them and what to multiply each row with."""
        scales = x.float().abs().amax(1, keepdim=True).clamp(min=1e-12) / torch.finfo(EIGHT_BITS).max
        return (x.float() / scales).to(EIGHT_BITS), scales

    @staticmethod
    def multiply_eight_bits(rows: Tensor, scales: Tensor, weight: Tensor, gains: Tensor, dtype: torch.dtype) -> Tensor:
        """Multiply rounded rows by a rounded matrix, and undo both scales."""
        return ((rows.float() @ weight.float().T) * scales * gains).to(dtype)

    @staticmethod
    def attend(q: Tensor, pool: Tensor, sees: Tensor, out: Tensor) -> None:
        """Attend from the last tokens of each sequence to all tokens up to themselves.

        Args:
            q: (sequences, new tokens, heads, size).
            pool: keys and values (tokens, 2, groups, size).
            sees: (sequences, all tokens) places in the pool; the new tokens are the last ones.
            out: as q; written.
        """
        out[:] = causal_attention(q, *_gather(pool, sees).unbind(2))


def choose_ops(device: torch.device, shape: TextShape | None = None) -> EagerOps:
    """Return kernels on a GPU; elsewhere, on old GPUs, for odd heads, or without a compiler, torch's functions."""
    head = shape.head if shape else LEAST_HEAD
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < HAS_BFLOAT16:
        return EagerOps()
    if head < LEAST_HEAD or head & (head - 1) or not can_compile():
        return EagerOps()
    from demerit.models.vlm.kernels import TritonOps  # noqa: PLC0415  needs triton

    return TritonOps()


def can_compile() -> bool:
    """Whether triton and a C compiler are installed; warns if not, because scoring is slower then.

    Not with TRITON_INTERPRET=1, as in tests: interpreted kernels take minutes, and bfloat16 products are wrong.
    """
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    triton = importlib.util.find_spec("triton") is not None
    if not (compiler and triton):
        missing = "C compiler" if triton else "triton"
        message = f"No {missing} found: kernels are not compiled and scoring takes about 1.6 times as long."
        warnings.warn(message, PerformanceWarning, stacklevel=2)
    return bool(compiler and triton) and os.environ.get("TRITON_INTERPRET") != "1"


EIGHT_BITS = torch.float8_e4m3fn
HAS_BFLOAT16 = (8, 0)
"""compute capability of the GPUs that the kernels are for; on older ones they need more memory than there is"""
LEAST_HEAD = 16
"""smallest head that the kernels take; it must be a power of two"""


@dataclass(frozen=True)
class VisionFeatures:
    """The vision tower's output: (tokens, hidden) rows, and what is added in the first layers (deepstack)."""

    rows: Tensor
    deep: tuple[Tensor, ...]

    def __len__(self) -> int:
        """Count the tokens."""
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.rows.nbytes + sum(layer.nbytes for layer in self.deep)

    def copy_rows(self, start: int, count: int) -> VisionFeatures:
        """Return a copy of some rows, which does not keep the others in memory."""
        part = slice(start, start + count)
        return VisionFeatures(self.rows[part].clone(), tuple(layer[part].clone() for layer in self.deep))

    def to(self, device: torch.device) -> VisionFeatures:
        """Return a copy on a device."""
        return VisionFeatures(self.rows.to(device), tuple(layer.to(device) for layer in self.deep))


@dataclass(frozen=True)
class KeyValues:
    """Keys and values of computed tokens, one (tokens, 2, groups, size) tensor per layer."""

    layers: tuple[Tensor, ...]

    def join(self, layer: int, keys: Tensor) -> Tensor:
        """Return a layer's keys and values followed by those of new tokens."""
        return torch.cat([self.layers[layer], keys])

    def append(self, more: KeyValues) -> KeyValues:
        """Return these tokens followed by more."""
        return KeyValues(tuple(torch.cat(pair) for pair in zip(self.layers, more.layers, strict=True)))


@dataclass(frozen=True)
class SlotKeys:
    """Layers of slots, and the slots that new tokens take."""

    layers: Sequence[Tensor]
    new: Tensor

    def join(self, layer: int, keys: Tensor) -> Tensor:
        """Put keys and values of new tokens into their slots; return all slots."""
        self.layers[layer].flatten(1).index_copy_(0, self.new, keys.flatten(1))
        return self.layers[layer]


class KeySlots:
    """Keys and values of live episodes: one tensor per layer, whose rows are slots that are taken and given back."""

    def __init__(self, shape: TextShape, device: torch.device, dtype: torch.dtype) -> None:
        """Start without slots."""
        self._layers = [torch.zeros(0, 2, shape.groups, shape.head, device=device, dtype=dtype)] * shape.layers
        self._free: list[int] = []

    def __len__(self) -> int:
        """Count the slots, free and taken."""
        return len(self._layers[0])

    def take(self, count: int) -> Ints:
        """Return free slots; when there are too few, twice as many are made, and where all are free, those needed."""
        if len(self._free) == len(self):
            self._layers, self._free = [layer[:0].clone() for layer in self._layers], []
        if count > len(self._free):
            old, more = len(self), max(len(self), count)
            self._layers = [torch.cat([layer, layer.new_zeros(more, *layer.shape[1:])]) for layer in self._layers]
            self._free += range(old, old + more)
        return np.array([self._free.pop() for _ in range(count)], np.int64)

    def give_back(self, slots: Ints) -> None:
        """Make slots free again; any thread may call this."""
        self._free.extend(slots.tolist())

    def at(self, new: Ints) -> SlotKeys:
        """Return the slots for a run of the network whose new tokens go to these ones."""
        return SlotKeys(self._layers, send(new, self._layers[0].device))


@dataclass(frozen=True)
class _Layer:
    before: Tensor
    after: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    qkv: Matrix
    bias: Tensor | None
    """of queries, keys and values: Qwen2.5-VL has it instead of the two norms"""
    out: Matrix
    wide: Matrix
    """gate and up"""
    down: Matrix


@dataclass(frozen=True)
class _DeviceTree:
    """The index arrays of a packed tree, on the device."""

    ids: Tensor
    positions: Tensor
    image_at: Tensor
    image_row: Tensor
    wanted: Tensor
    sees: tuple[Tensor, ...]
    readings: tuple[tuple[Tensor, Tensor], ...]

    @classmethod
    def on(cls, packed: PackedTree, device: torch.device) -> _DeviceTree:
        """Send everything without waiting for the device."""
        return cls(
            ids=send(packed.ids, device),
            positions=send(packed.positions, device),
            image_at=send(packed.image_at, device),
            image_row=send(packed.image_row, device),
            wanted=send(packed.wanted, device),
            sees=tuple(send(group.sees.astype(np.int32), device) for group in packed.groups),
            readings=tuple((send(group.rows, device), send(group.sees, device)) for group in packed.readings),
        )


class Matrix:
    """Weights (outputs, inputs) to multiply with."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def multiply(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x times the weights, plus a bias."""
        return F.linear(x, self._weight, bias)

    def add_product(self, h: Tensor, x: Tensor) -> Tensor:
        """Add x times the weights to h in place."""
        return h.addmm_(x, self._weight.T)


class EightBitMatrix(Matrix):
    """Weights of eight-bit floats with a scale for each output, times rows that are rounded likewise."""

    def __init__(self, weight: Tensor, ops: EagerOps) -> None:
        rounded, gains = ops.round_rows(weight)
        super().__init__(rounded)
        self._gains, self._do = gains.T, ops

    def multiply(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x times the weights, plus a bias."""
        product = self._do.multiply_eight_bits(*self._do.round_rows(x), self._weight, self._gains, x.dtype)
        return product if bias is None else product.add_(bias)

    def add_product(self, h: Tensor, x: Tensor) -> Tensor:
        """Add x times the weights to h in place."""
        return h.add_(self.multiply(x))


class Language:
    """Embeddings, layers, the last norm, and an output matrix over the vocabulary."""

    def __init__(self, shape: TextShape, weights: Mapping[str, Tensor], ops: EagerOps, *, eight_bits: bool) -> None:
        """Take weights by their names below `language_model.` (and `lm_head.weight`), all on one device.

        `eight_bits` rounds the layers' matrices, and what is multiplied with them, to eight-bit floats.
        """
        self.shape = shape
        self.embeddings = weights["embed_tokens.weight"]
        self.norm = weights["norm.weight"]
        self.read_out = weights.get("lm_head.weight")
        self._do = ops
        make = (lambda weight: EightBitMatrix(weight, ops)) if eight_bits else Matrix
        self._layers = [_layer(weights, f"layers.{at}.", make) for at in range(shape.layers)]
        self._frequencies = _frequencies(shape).to(self.embeddings.device)
        self._direction = _direction(shape, self._layers[0].bias is None).to(self.embeddings.device)

    def states(
        self, packed: PackedTree, features: VisionFeatures | None, past: KeyValues | SlotKeys | None = None
    ) -> Tensor:
        """Return the final normed states of the wanted tokens: (wanted, hidden)."""
        return self._run(packed, features, past, keep=False)[0]

    def states_and_keys(
        self, packed: PackedTree, features: VisionFeatures | None, past: KeyValues | None = None
    ) -> tuple[Tensor, KeyValues]:
        """Return the wanted states and the keys and values of all new tokens."""
        states, keys = self._run(packed, features, past, keep=True)
        return states, KeyValues(tuple(keys))

    def logits(self, states: Tensor) -> Tensor:
        """Return float32 logits over the vocabulary."""
        return F.linear(states, self.embeddings if self.read_out is None else self.read_out).float()

    def _run(
        self, packed: PackedTree, features: VisionFeatures | None, past: KeyValues | SlotKeys | None, *, keep: bool
    ) -> tuple[Tensor, list[Tensor]]:
        there = _DeviceTree.on(packed, self.embeddings.device)
        h = self.embeddings[there.ids]
        if features is not None:
            h[there.image_at] = features.rows[there.image_row]
        angles = self._angles(there.positions, h.dtype)
        kept = []
        for number, layer in enumerate(self._layers):
            q, keys = self._project(layer, h, angles)
            pool = keys if past is None else past.join(number, keys)
            if number == len(self._layers) - 1:
                h, mixed = h[there.wanted], self._read(q[there.wanted], pool, there)
            else:
                mixed = self._attend(q, pool, packed, there)
            h = self._mlp(layer, layer.out.add_product(h, mixed.flatten(1)))
            if features is not None and number < len(features.deep):
                h[there.image_at] += features.deep[number][there.image_row]
            if keep:
                kept.append(keys)
        return rms_norm(h, self.norm, self.shape.epsilon), kept

    def _attend(self, q: Tensor, pool: Tensor, packed: PackedTree, there: _DeviceTree) -> Tensor:
        """Attend from every segment to the tokens it sees."""
        mixed = torch.empty_like(q)
        for group, sees in zip(packed.groups, there.sees, strict=True):
            part = slice(group.start, group.start + group.count * group.length)
            mine, out = (tensor[part].view(group.count, group.length, *q.shape[1:]) for tensor in (q, mixed))
            self._do.attend(mine, pool, sees, out)
        return mixed

    def _read(self, q: Tensor, pool: Tensor, there: _DeviceTree) -> Tensor:
        """Attend in the last layer, where only the wanted tokens are computed."""
        mixed = torch.empty_like(q)
        for rows, sees in there.readings:
            k, v = _gather(pool, sees).unbind(2)
            mixed[rows] = full_attention(q[rows][:, None], k, v)[:, 0]
        return mixed

    def _project(self, layer: _Layer, h: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return queries (tokens, heads, size) and keys with values (tokens, 2, groups, size)."""
        shape, do = self.shape, self._do
        qkv = layer.qkv.multiply(do.rms_norm(h, layer.before, shape.epsilon), layer.bias)
        q, keys = do.split_heads(qkv, layer.q_norm, layer.k_norm, *angles, shape.groups, shape.epsilon)
        return q, keys

    def _mlp(self, layer: _Layer, h: Tensor) -> Tensor:
        """Add the MLP in place."""
        x = self._do.rms_norm(h, layer.after, self.shape.epsilon)
        return layer.down.add_product(h, self._do.silu_gate(layer.wide.multiply(x)))

    def _angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (tokens, size): each frequency belongs to time, height or width."""
        angles = positions.float()[self._direction].T * self._frequencies
        both = torch.cat([angles, angles], dim=-1)
        return both.cos().to(dtype), both.sin().to(dtype)


def _gather(pool: Tensor, sees: Tensor) -> Tensor:
    """Return (sequences, tokens seen, 2, groups, size)."""
    return pool.flatten(1).index_select(0, sees.flatten()).view(*sees.shape, *pool.shape[1:])


def _layer(weights: Mapping[str, Tensor], prefix: str, make: Callable[[Tensor], Matrix]) -> _Layer:
    def join_weights(*names: str) -> Tensor:
        parts = [weights[f"{prefix}{name}.weight"] for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    places = [f"{prefix}self_attn.{name}_proj.bias" for name in "qkv"]
    biases = [weights[place] for place in places if place in weights]
    return _Layer(
        before=join_weights("input_layernorm"),
        after=join_weights("post_attention_layernorm"),
        qkv=make(join_weights("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
        q_norm=weights.get(f"{prefix}self_attn.q_norm.weight"),
        k_norm=weights.get(f"{prefix}self_attn.k_norm.weight"),
        bias=torch.cat(biases) if biases else None,
        out=make(join_weights("self_attn.o_proj")),
        wide=make(join_weights("mlp.gate_proj", "mlp.up_proj")),
        down=make(join_weights("mlp.down_proj")),
    )


def _frequencies(shape: TextShape) -> Tensor:
    return 1.0 / (shape.theta ** (torch.arange(0, shape.head, 2, dtype=torch.float) / shape.head))


def _direction(shape: TextShape, interleaved: bool) -> Tensor:
    """Return for every frequency its direction: time (0), height (1) or width (2).

    They are interleaved by threes (Qwen3-VL), or stand one after another (Qwen2.5-VL).
    """
    if not interleaved:
        return torch.arange(3).repeat_interleave(torch.tensor(shape.sections))
    direction = torch.zeros(shape.head // 2, dtype=torch.long)
    for which in (1, 2):
        direction[which : shape.sections[which] * 3 : 3] = which
    return direction


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

    def __init__(self, shape: VisionShape, weights: Mapping[str, Tensor], ops: EagerOps) -> None:
        """Take weights by their names below `visual.`, all on one device."""
        self.shape = shape
        self._do = ops
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
        normed = self._part(0, "norm1").norm(x)
        deep = []
        for number in range(self.shape.depth):
            x, normed = self._block(number, x, normed, cos, sin)
            if number in self.shape.deep:
                at = self.shape.deep.index(number)
                deep.append(self._merge_patches(x, f"deepstack_merger_list.{at}", norm_after=True))
        return VisionFeatures(self._merge_patches(x, "merger", norm_after=False), tuple(deep))

    def _block(self, number: int, x: Tensor, normed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Add a block to x in place; return it, and it after the next block's first norm."""
        qkv = self._part(number, "attn.qkv").linear(normed)
        q, k, v = self._do.rotate_patches(qkv, cos, sin, self.shape.heads)
        mixed = self._part(number, "attn.proj").linear(full_attention(q, k, v).flatten(2))
        x, normed = self._add_norm(x, mixed, self._part(number, "norm2"))
        inner = F.gelu(self._part(number, "mlp.linear_fc1").linear(normed), approximate="tanh")
        more = self._part(number, "mlp.linear_fc2").linear(inner)
        if number + 1 == self.shape.depth:
            return x.add_(more), x
        return self._add_norm(x, more, self._part(number + 1, "norm1"))

    def _add_norm(self, x: Tensor, more: Tensor, norm: _Affine) -> tuple[Tensor, Tensor]:
        return self._do.add_norm(x, more, norm.weight, norm.bias, EPSILON)

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


def assign_weights(network: Any, weights: Mapping[str, Tensor]) -> Any:
    """Give a network of transformers, built on the meta device, its weights, without copying them.

    Every weight of the network must be given, and no other.
    """
    network.load_state_dict(weights, strict=True, assign=True)
    device = next(iter(weights.values())).device
    for module in network.modules():  # rotary frequencies are in no file: compute them where the weights are
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and buffer.is_meta:
                axial = getattr(module, "compute_axial_rope_parameters", None)
                frequencies, _ = (axial or module.compute_default_rope_parameters)(module.config)
                module._buffers[name] = frequencies.to(device)
    return network.eval()
