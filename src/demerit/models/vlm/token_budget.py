"""Pick a token batch that fits in memory; halve it after an out-of-memory error."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

from demerit.errors import BadInput, OutOfMemory
from demerit.models.vlm.config import VLMShape

if TYPE_CHECKING:
    from demerit.models.vlm.network import VLMNetwork

MOST_TOKENS = 131_072
"""computed together on a large GPU"""
FEWEST_TOKENS = 4096
"""smallest budget to choose or remember; below this a layer is slow and saves little memory"""
ON_A_CPU = 8192
SHARE = 0.6
"""of the free memory that tokens may take"""
CPU_OUT_OF_MEMORY = "can't allocate memory"
"""torch's message on a CPU"""

Made = TypeVar("Made")


@contextmanager
def within_memory(what: str) -> Iterator[None]:
    """Turn an out-of-memory error inside the block into OutOfMemory(what, ...); other errors pass.

    The failed attempt's tensors are freed, so that the caller may retry with less.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        detail = _detail(error)
        # the traceback keeps every local tensor of the failed frames alive
        traceback.clear_frames(error.__traceback__)
        failed = OutOfMemory(what, detail)
    else:
        return
    # raised outside the handler, so that the old error is not kept as its context
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    raise failed


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on a GPU or a CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and CPU_OUT_OF_MEMORY in str(error)


def _detail(error: BaseException) -> str:
    """Keep the allocator's figures (its first two sentences), not its advice."""
    sentences = " ".join(str(error).split()).removeprefix("CUDA out of memory. ").split(". ")
    return ". ".join(sentences[:2]).rstrip(".") or type(error).__name__


@dataclass
class TokenBudget:
    """How many tokens are computed together."""

    tokens: int = MOST_TOKENS

    def __post_init__(self) -> None:
        """Require at least one token."""
        if self.tokens < 1:
            raise BadInput("at_once", "a number of tokens >= 1", self.tokens)

    @classmethod
    def choose(cls, network: VLMNetwork, *, asked: int | None = None, keeping: bool = False) -> TokenBudget:
        """Choose what fits in a GPU's memory next to the weights; few tokens on a CPU.

        Args:
            network: its weights are on the device already.
            asked: a number of tokens that overrides the choice.
            keeping: the keys of all layers are kept, for decoding.
        """
        if asked is not None:
            return cls(asked)
        if network.device.type != "cuda":
            return cls(ON_A_CPU)
        size = torch.finfo(network.dtype).bits // 8
        fits = int(SHARE * _free_bytes(network.device) / (numbers_per_token(network.shape, keeping=keeping) * size))
        return cls(max(FEWEST_TOKENS, min(MOST_TOKENS, fits)))

    def portion(self, lengths: Sequence[int], start: int = 0) -> slice:
        """Return the items from `start` on that fit together; at least one."""
        total, end = 0, start
        while end < len(lengths) and (end == start or total + lengths[end] <= self.tokens):
            total += lengths[end]
            end += 1
        return slice(start, end)

    def run(self, what: str, lengths: Sequence[int], work: Callable[[slice], Made]) -> list[Made]:
        """Work through items portion by portion; after an out-of-memory error, continue with half as much.

        Finished portions are kept, and later calls start with the smaller budget. It is an error only if a single item
        does not fit.

        Args:
            what: names the work in the error.
            lengths: tokens of each item.
            work: computes one portion; may be called again for part of a portion that ran out of memory.
        """
        made: list[Made] = []
        start, less = 0, TokenBudget(self.tokens)
        while start < len(lengths):
            some = less.portion(lengths, start)
            try:
                with within_memory(what):
                    made.append(work(some))
            except OutOfMemory:
                if some.stop - some.start == 1:
                    raise
                less.tokens = sum(lengths[some]) // 2
                self.tokens = min(self.tokens, max(FEWEST_TOKENS, less.tokens))
            else:
                start = some.stop
        return made


def _free_bytes(device: torch.device) -> int:
    """Free memory, including what torch has reserved and not allocated."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def numbers_per_token(shape: VLMShape, *, keeping: bool) -> int:
    """Count the values that a token takes while its layer is computed."""
    text = shape.text
    wide, narrow = text.heads * text.head, text.groups * text.head
    # states twice, queries three times (raw, rotated, mixed), keys with the gathered context
    passing = 2 * text.hidden + 3 * wide + 2 * narrow * 5
    # keys and values of every layer, twice while the next token's are appended
    return passing + (2 * text.layers * 2 * narrow if keeping else 0)
