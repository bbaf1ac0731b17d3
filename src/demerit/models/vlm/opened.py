"""A Robometer checkpoint: found and checked at once, its weights on a device when first needed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from demerit.errors import BadInput
from demerit.models.vlm.checkpoint import Checkpoint, read_checkpoint, tokenizer_path
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.heads import expected_heads
from demerit.models.vlm.identity import identity
from demerit.models.vlm.layouts import HEAD
from demerit.models.vlm.memory import within_memory
from demerit.models.vlm.network import Network
from demerit.models.vlm.places import device_named, dtype_named, said_of, warn_of_a_slow_place
from demerit.models.vlm.prompt import TEMPLATE, Tokens, check_added_tokens, check_tokens
from demerit.models.vlm.robometer import Protocol, RobometerEngine
from demerit.models.vlm.room import Room
from demerit.models.vlm.words import words


@dataclass(frozen=True, eq=False)
class Opened:
    """A checkpoint with heads and tokenizer, and where it runs."""

    checkpoint: Checkpoint
    shape: VLMShape
    tokens: Tokens
    protocol: Protocol
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def robometer(
        cls,
        name_or_path: str,
        revision: str | None = None,
        *,
        adapter: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
    ) -> Opened:
        """Find a checkpoint and check its every name and shape; no weights are read yet."""
        where = device_named(device)
        kind = dtype_named(dtype, where)  # before gigabytes are fetched
        checkpoint = read_checkpoint(name_or_path, revision, adapter=adapter)
        if checkpoint.facts is None:
            raise BadInput(
                name_or_path, "a Robometer checkpoint, with heads for progress, success, preference", "a plain one"
            )
        shape = VLMShape.from_config(checkpoint.config)
        expected = shape.expected(read_out=False) | expected_heads(shape.text.hidden, checkpoint.facts.bins)
        checkpoint.check(expected, gaps=("frame_pool_attn.weight",))
        warn_of_a_slow_place(expected, where, device)
        added = words("robometer")["added_tokens"]
        tokens = Tokens.read(tokenizer_path(checkpoint), added)
        check_added_tokens(tokens, added, shape, name_or_path)
        check_tokens(tokens, shape, name_or_path)
        protocol = Protocol(checkpoint.facts.frames, checkpoint.facts.also_progress)
        return cls(checkpoint, shape, tokens, protocol, where, kind)

    def engine(self, at_once: int | None = None, *, in_eight_bits: bool = False) -> RobometerEngine:
        """Load the weights and put the parts together."""
        expected = self.shape.expected(read_out=False)
        heads = expected_heads(self.shape.text.hidden, self.checkpoint.facts.bins if self.checkpoint.facts else 0)
        with within_memory(f"Loading {self.checkpoint.folder}"):
            weights = dict(
                self.checkpoint.tensors(self.device, self.dtype, expected | heads, gaps=("frame_pool_attn.weight",))
            )
            own = {name: weights.pop(name) for name in list(weights) if HEAD.match(name)}
            network = Network(self.shape, weights, in_eight_bits=in_eight_bits)
        weights.clear()  # the network has joined many of them into its own; the rest is room
        room = Room.beside(network, asked=at_once)
        return RobometerEngine(network, own, self.tokens, self.protocol, room.tokens)

    @property
    def revision(self) -> str:
        """The hub's commit and the version of everything around the prompt."""
        return f"{self.checkpoint.commits} {TEMPLATE}"

    @property
    def exact_to_the_digit(self) -> bool:
        """Whether it computes in float32, where rounding does not show."""
        return self.dtype == torch.float32

    @property
    def facts(self) -> dict[str, str]:
        """Where and how it runs, for what is said of a reward."""
        return said_of(self.device, self.dtype)

    def identity(self, *more: str) -> str:
        """Identify weights and way of asking."""
        return identity(self.checkpoint, self.shape, self.tokens, self.dtype, repr(self.protocol), *more)
