"""The language model over a packed tree: layer by layer over all tokens, so that it keeps the keys of one layer only.

Only attention knows of the tree. Everything else is one matrix product over every token of every window, which is the
shape that hardware likes best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from demerit.models.vlm import attention
from demerit.models.vlm.config import TextShape
from demerit.models.vlm.packed import Packed
from demerit.models.vlm.pointwise import Pointwise, rms_norm
from demerit.models.vlm.products import Exact, InEightBits, Product
from demerit.models.vlm.sending import sent

AT_ONCE = 16384
"""tokens that go through the wide middle of a layer together"""


@dataclass(frozen=True)
class Features:
    """What the vision tower says of pictures: rows of tokens, and what is added in the first layers."""

    rows: Tensor
    deep: tuple[Tensor, ...]

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes that they take."""
        return self.rows.nbytes + sum(layer.nbytes for layer in self.deep)

    def to(self, device: torch.device) -> Features:
        """Return them on a device."""
        return Features(self.rows.to(device), tuple(layer.to(device) for layer in self.deep))


@dataclass(frozen=True)
class Keys:
    """Keys and values of computed tokens, layer by layer: (tokens, 2, groups, size)."""

    layers: tuple[Tensor, ...]

    def joined(self, more: Keys) -> Keys:
        """Append another's tokens."""
        return Keys(tuple(torch.cat(pair) for pair in zip(self.layers, more.layers, strict=True)))

    def chosen(self, tokens: Tensor) -> Keys:
        """Keep some tokens, in this order."""
        return Keys(tuple(layer[tokens] for layer in self.layers))


@dataclass(frozen=True)
class _Layer:
    before: Tensor
    after: Tensor
    q_norm: Tensor
    k_norm: Tensor
    qkv: Product
    out: Product
    wide: Product
    """gate and up"""
    down: Product


@dataclass(frozen=True)
class _Laid:
    """A packed tree's numbers on the device."""

    ids: Tensor
    positions: Tensor
    seen_at: Tensor
    seen_row: Tensor
    wanted: Tensor
    sees: tuple[Tensor, ...]
    readings: tuple[tuple[Tensor, Tensor], ...]

    @classmethod
    def on(cls, packed: Packed, device: torch.device) -> _Laid:
        """Send everything at once, without waiting for the device."""
        return cls(
            ids=sent(packed.ids, device),
            positions=sent(packed.positions, device),
            seen_at=sent(packed.seen_at, device),
            seen_row=sent(packed.seen_row, device),
            wanted=sent(packed.wanted, device),
            sees=tuple(sent(group.sees, device) for group in packed.groups),
            readings=tuple((sent(one.rows, device), sent(one.sees, device)) for one in packed.readings),
        )


class Language:
    """A Qwen3-VL language model: embeddings, layers, the last norm, and words when it has them."""

    def __init__(
        self, shape: TextShape, weights: Mapping[str, Tensor], pointwise: Pointwise, *, in_eight_bits: bool = False
    ) -> None:
        """Take weights by their names within `language_model.` (and `lm_head.weight`), all on one device.

        Args:
            shape: the network's.
            weights: by name.
            pointwise: the small sums.
            in_eight_bits: multiply in eight bits: faster where the hardware has units for it, and not exact.
        """
        self.shape = shape
        self.embeddings = weights["embed_tokens.weight"]
        self.norm = weights["norm.weight"]
        self.read_out = weights.get("lm_head.weight")
        self._do = pointwise
        make = partial(InEightBits.of, pointwise=pointwise) if in_eight_bits else Exact
        self._layers = [_layer(weights, f"layers.{at}.", make) for at in range(shape.layers)]
        self._frequencies = _frequencies(shape).to(self.embeddings.device)
        self._direction = _direction(shape).to(self.embeddings.device)

    def states(self, packed: Packed, features: Features | None, past: Keys | None = None) -> Tensor:
        """Return the last, normed states of the wanted tokens: (wanted, hidden)."""
        return self._run(packed, features, past, keep=False)[0]

    def states_and_keys(
        self, packed: Packed, features: Features | None, past: Keys | None = None
    ) -> tuple[Tensor, Keys]:
        """Return the wanted states and the keys of all new tokens, to go on from."""
        states, keys = self._run(packed, features, past, keep=True)
        return states, Keys(tuple(keys))

    def words(self, states: Tensor) -> Tensor:
        """Return logits over the vocabulary."""
        return F.linear(states, self.embeddings if self.read_out is None else self.read_out).float()

    def _run(
        self, packed: Packed, features: Features | None, past: Keys | None, *, keep: bool
    ) -> tuple[Tensor, list[Tensor]]:
        laid = _Laid.on(packed, self.embeddings.device)
        h = self.embeddings[laid.ids]
        if features is not None:
            h[laid.seen_at] = features.rows[laid.seen_row]
        turns = self._angles(laid.positions, h.dtype)
        kept = []
        for number, layer in enumerate(self._layers):
            q, keys = self._projected(layer, h, turns)
            pool = keys if past is None else torch.cat([past.layers[number], keys])
            if number == len(self._layers) - 1:
                h, mixed = h[laid.wanted], self._read(q[laid.wanted], pool, laid)
            else:
                mixed = self._mixed(q, pool, packed, laid)
            h = self._widened(layer, layer.out.onto(h, mixed.flatten(1)))
            if features is not None and number < len(features.deep):
                h[laid.seen_at] += features.deep[number][laid.seen_row]
            if keep:
                kept.append(keys)
        return rms_norm(h, self.norm, self.shape.epsilon), kept

    def _mixed(self, q: Tensor, pool: Tensor, packed: Packed, laid: _Laid) -> Tensor:
        """Let every segment attend to what it sees."""
        mixed = torch.empty_like(q)
        for group, sees in zip(packed.groups, laid.sees, strict=True):
            part = slice(group.start, group.start + group.count * group.length)
            mine = q[part].view(group.count, group.length, *q.shape[1:])
            k, v = _gathered(pool, sees).unbind(2)
            mixed[part] = attention.causal(mine, k, v).reshape(-1, *q.shape[1:])
        return mixed

    def _read(self, q: Tensor, pool: Tensor, laid: _Laid) -> Tensor:
        """Let the wanted tokens attend, in the last layer: the others are only there to be seen."""
        mixed = torch.empty_like(q)
        for rows, sees in laid.readings:
            k, v = _gathered(pool, sees).unbind(2)
            mixed[rows] = attention.full(q[rows][:, None], k, v)[:, 0]
        return mixed

    def _projected(self, layer: _Layer, h: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return queries (tokens, heads, size) and keys with values (tokens, 2, groups, size)."""
        shape, do = self.shape, self._do
        qkv = layer.qkv(do.rms_norm(h, layer.before, shape.epsilon))
        q, keys = do.heads_of(qkv, layer.q_norm, layer.k_norm, *turns, shape.groups, shape.epsilon)
        return q, keys

    def _widened(self, layer: _Layer, h: Tensor) -> Tensor:
        """Do the wide middle, some tokens at a time: it is eight times as wide as the states, in place."""
        for start in range(0, len(h), AT_ONCE):
            some = h[start : start + AT_ONCE]
            x = self._do.rms_norm(some, layer.after, self.shape.epsilon)
            layer.down.onto(some, self._do.gated(layer.wide(x)))
        return h

    def _angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (tokens, size): each frequency turns with time, height or width."""
        angles = positions.float()[self._direction].T * self._frequencies
        both = torch.cat([angles, angles], dim=-1)
        return both.cos().to(dtype), both.sin().to(dtype)


def _gathered(pool: Tensor, sees: Tensor) -> Tensor:
    """Return (sequences, tokens seen, 2, groups, size)."""
    return pool.flatten(1).index_select(0, sees.flatten()).view(*sees.shape, *pool.shape[1:])


def _layer(weights: Mapping[str, Tensor], prefix: str, make: Callable[[Tensor], Product]) -> _Layer:
    def named(*names: str) -> Tensor:
        parts = [weights[f"{prefix}{name}.weight"] for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    return _Layer(
        before=named("input_layernorm"),
        after=named("post_attention_layernorm"),
        qkv=make(named("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
        q_norm=named("self_attn.q_norm"),
        k_norm=named("self_attn.k_norm"),
        out=make(named("self_attn.o_proj")),
        wide=make(named("mlp.gate_proj", "mlp.up_proj")),
        down=make(named("mlp.down_proj")),
    )


def _frequencies(shape: TextShape) -> Tensor:
    return 1.0 / (shape.theta ** (torch.arange(0, shape.head, 2, dtype=torch.float) / shape.head))


def _direction(shape: TextShape) -> Tensor:
    """Say for every frequency which of time (0), height (1) and width (2) it turns with: interleaved by threes."""
    direction = torch.zeros(shape.head // 2, dtype=torch.long)
    for which in (1, 2):
        direction[which : shape.sections[which] * 3 : 3] = which
    return direction
