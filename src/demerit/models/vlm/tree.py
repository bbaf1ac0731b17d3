"""Sequences that begin alike are computed once: a tree of segments, each seeing the tokens of its ancestors.

Dense scoring asks for one window of frames per time step. Neighbouring windows share their first frames, and what a
causal network computes for a token depends on nothing after it, so shared beginnings need no second look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from demerit.models.vlm.prompt import Block

CALL = 512
"""what one more group of segments costs, counted in tokens: cuts that save less are not made"""


@dataclass(frozen=True)
class Segment:
    """Blocks that come after the first `seen` blocks of a parent segment (and all that the parent comes after)."""

    blocks: tuple[Block, ...]
    parent: int = -1
    """its place in the list of segments, always before this one; -1 = nothing comes before"""
    seen: int = 0


@dataclass(frozen=True)
class Tree:
    """Segments in an order in which parents come first, and where each sequence ends."""

    segments: tuple[Segment, ...]
    ends: tuple[int, ...]
    """for every sequence, the segment that holds its last block (it is that segment's last block too)"""
    kept: int = 0
    """so many segments, from the first on, were computed before: their keys are at hand, in this order"""

    @property
    def tokens(self) -> int:
        """Tokens that are computed."""
        return sum(len(block) for segment in self.segments[self.kept :] for block in segment.blocks)


def separate(sequences: Sequence[tuple[Block, ...]]) -> Tree:
    """Share nothing: one segment a sequence."""
    return Tree(tuple(Segment(each) for each in sequences), tuple(range(len(sequences))))


def shared(sequences: Sequence[tuple[Block, ...]]) -> Tree:
    """Share the beginnings of sequences with equally many blocks, cutting all of them at the same depths.

    Equal depths keep segments of one shape together, which is what makes them fast; where to cut is found by trying
    every way, cheapest first (there are as many depths as frames in a window: few).
    """
    depth = {len(each) for each in sequences}
    if len(depth) != 1:
        raise ValueError(f"sequences of {sorted(depth)} blocks have no common depths")
    ends = [0, *_cuts(sequences)]
    segments: list[Segment] = []
    parents = [-1] * len(sequences)
    for start, end in pairwise(ends):
        known: dict[tuple[Block, ...], int] = {}
        for at, sequence in enumerate(sequences):
            beginning = sequence[:end]
            if beginning not in known:
                parent = parents[at]
                seen = len(segments[parent].blocks) if parent >= 0 else 0
                known[beginning] = len(segments)
                segments.append(Segment(sequence[start:end], parent, seen))
            parents[at] = known[beginning]
    return Tree(tuple(segments), tuple(parents))


def _cuts(sequences: Sequence[tuple[Block, ...]]) -> list[int]:
    """Find the depths to cut at: least tokens, counting each group as CALL more."""
    depth = len(sequences[0])
    kinds = [len({each[:end] for each in sequences}) for end in range(depth + 1)]
    sizes = [max(len(each[at]) for each in sequences) for at in range(depth)]
    best: list[tuple[int, list[int]]] = [(0, [])]
    for end in range(1, depth + 1):
        ways = [(best[s][0] + kinds[end] * sum(sizes[s:end]) + CALL, [*best[s][1], end]) for s in range(end)]
        best.append(min(ways))
    return best[depth][1]


def trunk(stem: tuple[Block, ...], branches: Sequence[tuple[int, tuple[Block, ...]]], *, kept: bool = False) -> Tree:
    """Hang branches on one stem, which may be computed already: each sees its first so many blocks, then itself."""
    segments = [Segment(stem), *(Segment(blocks, 0, seen) for seen, blocks in branches)]
    return Tree(tuple(segments), tuple(range(1, len(segments))), kept=int(kept))
