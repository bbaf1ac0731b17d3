"""Compute shared prefixes once: a tree of token segments, and how it is packed into flat arrays.

Dense scoring asks about one window of frames per time step, and neighbouring windows share their first frames. In a
causal network a token depends only on the tokens before it, so a shared prefix needs to be computed once. `pack` lists
every token once, and for every segment the tokens it sees.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from demerit.data.arrays import Ints
from demerit.models.vlm.prompt import TokenBlock

CALL = 512
"""the cost of one more group of segments, in tokens: cuts that save less are not made"""


def window(last: int, count: int) -> tuple[int, ...]:
    """Spread `count` frames over 0..last, both ends included; a shorter clip repeats its last frame."""
    if last < count:
        return (*range(last + 1), *[last] * (count - last - 1))
    return tuple(int(frame) for frame in np.rint(np.linspace(0, last, count)))


def windows(frames: int, count: int) -> list[tuple[int, ...]]:
    """Return one window per frame of a video, each ending at that frame."""
    return [window(last, count) for last in range(frames)]


@dataclass(frozen=True)
class TreeSegment:
    """Blocks that follow the first `seen` blocks of a parent segment (and all that the parent follows)."""

    blocks: tuple[TokenBlock, ...]
    parent: int = -1
    """index of the parent, always smaller than this segment's; -1 for a root"""
    seen: int = 0

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return sum(len(block) for block in self.blocks)


@dataclass(frozen=True)
class PrefixTree:
    """Segments, parents first, and the segment in which each sequence ends."""

    segments: tuple[TreeSegment, ...]
    ends: tuple[int, ...]
    """for every sequence, the segment whose last block is the sequence's last block"""
    kept: int = 0
    """the first `kept` segments were computed before and their keys are kept, in this order"""

    @property
    def tokens(self) -> int:
        """Number of tokens to compute."""
        return sum(segment.tokens for segment in self.segments[self.kept :])

    def last_tokens(self) -> list[tuple[int, int]]:
        """Return the (segment, token) of every sequence's last token."""
        return [(end, self.segments[end].tokens - 1) for end in self.ends]


def separate_tree(sequences: Sequence[tuple[TokenBlock, ...]]) -> PrefixTree:
    """Return sequences as a tree without any sharing."""
    return PrefixTree(tuple(TreeSegment(blocks) for blocks in sequences), tuple(range(len(sequences))))


def shared_tree(sequences: Sequence[tuple[TokenBlock, ...]]) -> PrefixTree:
    """Share the prefixes of sequences with equally many blocks, cutting all of them at the same depths.

    Equal depths give segments of equal shape, which run fast as one batch. The best depths are found by dynamic
    programming.
    """
    depth = {len(sequence) for sequence in sequences}
    if len(depth) != 1:
        raise ValueError(f"sequences of {sorted(depth)} blocks have no common depths")
    ends = [0, *_best_cuts(sequences)]
    segments: list[TreeSegment] = []
    parents = [-1] * len(sequences)
    for start, end in pairwise(ends):
        numbers: dict[tuple[TokenBlock, ...], int] = {}
        for at, sequence in enumerate(sequences):
            prefix = sequence[:end]
            if prefix not in numbers:
                parent = parents[at]
                count = len(segments[parent].blocks) if parent >= 0 else 0
                numbers[prefix] = len(segments)
                segments.append(TreeSegment(sequence[start:end], parent, count))
            parents[at] = numbers[prefix]
    return PrefixTree(tuple(segments), tuple(parents))


def _best_cuts(sequences: Sequence[tuple[TokenBlock, ...]]) -> list[int]:
    """Return the depths to cut at: fewest tokens, each group counting as CALL more."""
    depth = len(sequences[0])
    kinds = [len({sequence[:end] for sequence in sequences}) for end in range(depth + 1)]
    sizes = [max(len(sequence[at]) for sequence in sequences) for at in range(depth)]
    best: list[tuple[int, list[int]]] = [(0, [])]
    for end in range(1, depth + 1):
        ways = [(best[s][0] + kinds[end] * sum(sizes[s:end]) + CALL, [*best[s][1], end]) for s in range(end)]
        best.append(min(ways))
    return best[depth][1]


def trunk_tree(
    trunk: tuple[TokenBlock, ...], branches: Sequence[tuple[int, tuple[TokenBlock, ...]]], *, kept: bool = False
) -> PrefixTree:
    """Hang branches on one trunk; each branch is (number of trunk blocks it sees, own blocks).

    `kept`: the trunk was computed before.
    """
    segments = [TreeSegment(trunk), *(TreeSegment(blocks, 0, count) for count, blocks in branches)]
    return PrefixTree(tuple(segments), tuple(range(1, len(segments))), kept=int(kept))


@dataclass(frozen=True)
class SegmentGroup:
    """`count` segments of equal shape, `length` new tokens each, stored side by side from `start`."""

    start: int
    count: int
    length: int
    sees: Ints
    """(count, context + length) indices into the key pool: the context, then the segment itself"""


@dataclass(frozen=True)
class ReadGroup:
    """Wanted tokens that see equally many tokens."""

    rows: Ints
    """their places among the wanted tokens"""
    sees: Ints
    """(rows, tokens seen)"""


@dataclass(frozen=True)
class PackedTree:
    """A prefix tree as flat arrays, in the order in which the language model computes tokens."""

    ids: Ints
    positions: Ints
    """(3, tokens)"""
    image_at: Ints
    """tokens that belong to an image"""
    image_row: Ints
    """the row of the image features at each of them"""
    groups: tuple[SegmentGroup, ...]
    wanted: Ints
    """tokens whose final states are read"""
    readings: tuple[ReadGroup, ...]

    @property
    def tokens(self) -> int:
        """Number of tokens to compute."""
        return len(self.ids)


@dataclass(frozen=True)
class PastTokens:
    """Tokens whose keys and values are kept: their number, those that new roots see, and the next position."""

    size: int
    sees: Ints
    position: int


NO_PAST = PastTokens(0, np.empty(0, np.int64), 0)


@dataclass
class _PackedSegment:
    start: int
    """index of the first token among the new ones"""
    sees: Ints
    """before the segment"""
    position: int
    """of the first token"""
    lengths: tuple[int, ...]


def pack(
    tree: PrefixTree,
    images: Mapping[Hashable, int],
    wanted: Sequence[tuple[int, int]],
    past: PastTokens | None = None,
) -> PackedTree:
    """Pack a tree into flat arrays.

    Args:
        tree: the segments.
        images: the first feature row of each image.
        wanted: (segment, token within the segment) pairs whose states are read.
        past: tokens computed before; root segments follow them. A tree's kept segments are the last of them.
    """
    past = past or NO_PAST
    order = _group_by_shape(tree, past)
    segments = _place_segments(tree, order, past)
    ids, positions, image_at, image_row = _list_tokens(tree, order, segments, images)
    groups = tuple(_make_group(members, segments, past) for members in order)
    at = np.array([segments[segment].start + token for segment, token in wanted], np.int64)
    return PackedTree(ids, positions, image_at, image_row, groups, at, _group_readings(wanted, segments, past))


def _context(tree: PrefixTree, at: int, past: PastTokens) -> int:
    """Count the tokens before a segment."""
    segment = tree.segments[at]
    if segment.parent < 0:
        return len(past.sees)
    own = sum(len(block) for block in tree.segments[segment.parent].blocks[: segment.seen])
    return _context(tree, segment.parent, past) + own


def _group_by_shape(tree: PrefixTree, past: PastTokens) -> list[list[int]]:
    shapes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for at, segment in enumerate(tree.segments[tree.kept :], tree.kept):
        shapes[_context(tree, at, past), segment.tokens].append(at)
    return [shapes[key] for key in sorted(shapes)]


def _place_segments(tree: PrefixTree, order: list[list[int]], past: PastTokens) -> dict[int, _PackedSegment]:
    # kept segments count back from the first new token
    starts, total = {}, -sum(segment.tokens for segment in tree.segments[: tree.kept])
    for at in (*range(tree.kept), *(member for members in order for member in members)):
        starts[at] = total
        total += tree.segments[at].tokens
    placed: dict[int, _PackedSegment] = {}
    for at, segment in enumerate(tree.segments):  # parents come first
        lengths = tuple(len(block) for block in segment.blocks)
        if segment.parent < 0:
            placed[at] = _PackedSegment(starts[at], past.sees, past.position, lengths)
            continue
        parent = placed[segment.parent]
        own = np.arange(sum(parent.lengths[: segment.seen])) + parent.start + past.size
        moved = sum(block.advance for block in tree.segments[segment.parent].blocks[: segment.seen])
        sees = np.concatenate([parent.sees, own])
        placed[at] = _PackedSegment(starts[at], sees, parent.position + moved, lengths)
    return placed


def _list_tokens(
    tree: PrefixTree,
    order: list[list[int]],
    segments: Mapping[int, _PackedSegment],
    images: Mapping[Hashable, int],
) -> tuple[Ints, Ints, Ints, Ints]:
    ids, positions = [], []
    at, row = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    start = 0
    for segment in (member for members in order for member in members):
        position = segments[segment].position
        for block in tree.segments[segment].blocks:
            ids.append(np.array(block.ids))
            positions.append(block.positions + position)
            if block.image is not None:
                count = block.image.rows * block.image.columns
                at.append(np.arange(count) + start + block.at)
                row.append(np.arange(count) + images[block.image.key])
            position += block.advance
            start += len(block)
    return np.concatenate(ids), np.concatenate(positions, axis=1), np.concatenate(at), np.concatenate(row)


def _make_group(members: list[int], segments: Mapping[int, _PackedSegment], past: PastTokens) -> SegmentGroup:
    first = segments[members[0]]
    length = sum(first.lengths)
    own = np.array([segments[at].start for at in members])[:, None] + np.arange(length) + past.size
    before = np.stack([segments[at].sees for at in members])
    return SegmentGroup(first.start, len(members), length, np.concatenate([before, own], axis=1))


def _group_readings(
    wanted: Sequence[tuple[int, int]], segments: Mapping[int, _PackedSegment], past: PastTokens
) -> tuple[ReadGroup, ...]:
    """Group wanted tokens by how many tokens they see."""
    by_size: dict[int, list[int]] = defaultdict(list)
    for row, (segment, token) in enumerate(wanted):
        by_size[len(segments[segment].sees) + token + 1].append(row)
    readings = []
    for rows in by_size.values():
        sees = [
            np.concatenate([segment.sees, np.arange(token + 1) + segment.start + past.size])
            for segment, token in ((segments[wanted[row][0]], wanted[row][1]) for row in rows)
        ]
        readings.append(ReadGroup(np.array(rows), np.stack(sees)))
    return tuple(readings)
