"""How much is computed together: what fits in a device's memory, and less once that turned out to be too much."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from demerit.errors import BadInput, OutOfMemory
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.memory import within_memory
from demerit.models.vlm.network import Network

MOST_TOKENS = 131_072
"""computed together on a large GPU"""
FEWEST_TOKENS = 4096
"""what is chosen or remembered is never less; below this a layer is slow and saves no memory that counts"""
ON_A_CPU = 8192
SHARE = 0.6
"""of the free memory that tokens may take"""

Made = TypeVar("Made")


@dataclass
class Room:
    """Tokens that an engine computes together."""

    tokens: int = MOST_TOKENS

    def __post_init__(self) -> None:
        """Refuse a number that means nothing."""
        if self.tokens < 1:
            raise BadInput("at_once", "a number of tokens from 1 on", self.tokens)

    @classmethod
    def beside(cls, network: Network, *, asked: int | None = None, keeping: bool = False) -> Room:
        """Choose what fits in a GPU's memory beside the weights, few tokens on a CPU; what was asked for wins.

        Args:
            network: its weights are on the device already.
            asked: so many tokens, whatever fits.
            keeping: the keys of all layers are kept, as answers are written token by token.
        """
        if asked is not None:
            return cls(asked)
        if network.device.type != "cuda":
            return cls(ON_A_CPU)
        size = torch.finfo(network.dtype).bits // 8
        fits = int(SHARE * _free(network.device) / (numbers(network.shape, keeping=keeping) * size))
        return cls(max(FEWEST_TOKENS, min(MOST_TOKENS, fits)))

    def portion(self, lengths: Sequence[int], start: int = 0) -> slice:
        """Put things together from `start` on until they have so many tokens; one is always in."""
        total, end = 0, start
        while end < len(lengths) and (end == start or total + lengths[end] <= self.tokens):
            total += lengths[end]
            end += 1
        return slice(start, end)

    def portions(self, lengths: Sequence[int]) -> Iterator[slice]:
        """Cut all things, in their order, into what is computed together."""
        start = 0
        while start < len(lengths):
            some = self.portion(lengths, start)
            yield some
            start = some.stop

    def worked(self, what: str, lengths: Sequence[int], work: Callable[[slice], Made]) -> list[Made]:
        """Work through things portion by portion; where memory runs out, on with half as much.

        What was done before is not done again, and later calls begin with the smaller portions. Only where one thing
        alone does not fit is it an error.

        Args:
            what: what is being done, for the error's sentence.
            lengths: how many tokens each thing has.
            work: does one portion; it may be asked again for a part of a portion in which memory ran out.
        """
        made: list[Made] = []
        start, less = 0, Room(self.tokens)
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


def _free(device: torch.device) -> int:
    """Bytes that nobody has, and those that torch keeps in hand for itself."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def numbers(shape: VLMShape, *, keeping: bool) -> int:
    """Count the numbers that a token takes while its layer is computed."""
    text = shape.text
    wide, narrow = text.heads * text.head, text.groups * text.head
    # states twice, queries thrice (raw, turned, mixed), keys with what each token sees of others gathered around it
    passing = 2 * text.hidden + 3 * wide + 2 * narrow * 5
    # keys and values of every layer, twice for the moment in which the next token's are put behind them
    return passing + (2 * text.layers * 2 * narrow if keeping else 0)
