"""The Qwen3-VL language model over a packed prefix tree.

It runs layer by layer over all tokens, so only one layer's keys are in memory. Only attention sees the tree; every
matrix product runs over all tokens of all windows at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from demerit.models.vlm.config import TextShape
from demerit.models.vlm.images import send
from demerit.models.vlm.kernels import Pointwise, causal_attention, full_attention, rms_norm
from demerit.models.vlm.prefix_tree import PackedTree

AT_ONCE = 16384
"""tokens per pass through a layer's MLP"""


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

    def to(self, device: torch.device) -> VisionFeatures:
        """Return a copy on a device."""
        return VisionFeatures(self.rows.to(device), tuple(layer.to(device) for layer in self.deep))


@dataclass(frozen=True)
class KeyValues:
    """Keys and values of computed tokens, one (tokens, 2, groups, size) tensor per layer."""

    layers: tuple[Tensor, ...]

    def append(self, more: KeyValues) -> KeyValues:
        """Return these tokens followed by more."""
        return KeyValues(tuple(torch.cat(pair) for pair in zip(self.layers, more.layers, strict=True)))


@dataclass(frozen=True)
class _Layer:
    before: Tensor
    after: Tensor
    q_norm: Tensor
    k_norm: Tensor
    qkv: Tensor
    out: Tensor
    wide: Tensor
    """gate and up"""
    down: Tensor


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
            sees=tuple(send(group.sees, device) for group in packed.groups),
            readings=tuple((send(group.rows, device), send(group.sees, device)) for group in packed.readings),
        )


class Language:
    """Embeddings, layers, the last norm, and an output matrix over the vocabulary."""

    def __init__(self, shape: TextShape, weights: Mapping[str, Tensor], pointwise: Pointwise) -> None:
        """Take weights by their names below `language_model.` (and `lm_head.weight`), all on one device."""
        self.shape = shape
        self.embeddings = weights["embed_tokens.weight"]
        self.norm = weights["norm.weight"]
        self.read_out = weights.get("lm_head.weight")
        self._do = pointwise
        self._layers = [_layer(weights, f"layers.{at}.") for at in range(shape.layers)]
        self._frequencies = _frequencies(shape).to(self.embeddings.device)
        self._direction = _direction(shape).to(self.embeddings.device)

    def states(self, packed: PackedTree, features: VisionFeatures | None, past: KeyValues | None = None) -> Tensor:
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
        self, packed: PackedTree, features: VisionFeatures | None, past: KeyValues | None, *, keep: bool
    ) -> tuple[Tensor, list[Tensor]]:
        there = _DeviceTree.on(packed, self.embeddings.device)
        h = self.embeddings[there.ids]
        if features is not None:
            h[there.image_at] = features.rows[there.image_row]
        angles = self._angles(there.positions, h.dtype)
        kept = []
        for number, layer in enumerate(self._layers):
            q, keys = self._project(layer, h, angles)
            pool = keys if past is None else torch.cat([past.layers[number], keys])
            if number == len(self._layers) - 1:
                h, mixed = h[there.wanted], self._read(q[there.wanted], pool, there)
            else:
                mixed = self._attend(q, pool, packed, there)
            h = self._mlp(layer, h.addmm_(mixed.flatten(1), layer.out.T))
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
            mine = q[part].view(group.count, group.length, *q.shape[1:])
            k, v = _gather(pool, sees).unbind(2)
            mixed[part] = causal_attention(mine, k, v).reshape(-1, *q.shape[1:])
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
        qkv = F.linear(do.rms_norm(h, layer.before, shape.epsilon), layer.qkv)
        q, keys = do.split_heads(qkv, layer.q_norm, layer.k_norm, *angles, shape.groups, shape.epsilon)
        return q, keys

    def _mlp(self, layer: _Layer, h: Tensor) -> Tensor:
        """Add the MLP in place, some tokens at a time: its middle is eight times as wide as the states."""
        for start in range(0, len(h), AT_ONCE):
            some = h[start : start + AT_ONCE]
            x = self._do.rms_norm(some, layer.after, self.shape.epsilon)
            some.addmm_(self._do.silu_gate(F.linear(x, layer.wide)), layer.down.T)
        return h

    def _angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (tokens, size): each frequency belongs to time, height or width."""
        angles = positions.float()[self._direction].T * self._frequencies
        both = torch.cat([angles, angles], dim=-1)
        return both.cos().to(dtype), both.sin().to(dtype)


def _gather(pool: Tensor, sees: Tensor) -> Tensor:
    """Return (sequences, tokens seen, 2, groups, size)."""
    return pool.flatten(1).index_select(0, sees.flatten()).view(*sees.shape, *pool.shape[1:])


def _layer(weights: Mapping[str, Tensor], prefix: str) -> _Layer:
    def join_weights(*names: str) -> Tensor:
        parts = [weights[f"{prefix}{name}.weight"] for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    return _Layer(
        before=join_weights("input_layernorm"),
        after=join_weights("post_attention_layernorm"),
        qkv=join_weights("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        q_norm=join_weights("self_attn.q_norm"),
        k_norm=join_weights("self_attn.k_norm"),
        out=join_weights("self_attn.o_proj"),
        wide=join_weights("mlp.gate_proj", "mlp.up_proj"),
        down=join_weights("mlp.down_proj"),
    )


def _frequencies(shape: TextShape) -> Tensor:
    return 1.0 / (shape.theta ** (torch.arange(0, shape.head, 2, dtype=torch.float) / shape.head))


def _direction(shape: TextShape) -> Tensor:
    """Return for every frequency its direction: time (0), height (1) or width (2), interleaved by threes."""
    direction = torch.zeros(shape.head // 2, dtype=torch.long)
    for which in (1, 2):
        direction[which : shape.sections[which] * 3 : 3] = which
    return direction
