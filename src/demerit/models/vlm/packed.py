"""A tree laid flat for the machine: every token once, and for every segment which tokens it sees."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from demerit.models.vlm.prompt import Block, Ints
from demerit.models.vlm.tree import Segment, Tree


@dataclass(frozen=True)
class Group:
    """Segments of one shape, side by side: `count` of them, `length` new tokens each."""

    start: int
    count: int
    length: int
    sees: Ints
    """(count, context + length) places in the pool of keys: what came before, then the segment itself"""


@dataclass(frozen=True)
class Reading:
    """Single tokens whose states are wanted, those that see equally many tokens together."""

    rows: Ints
    """places in the order they were asked for"""
    sees: Ints
    """(rows, tokens seen)"""


@dataclass(frozen=True)
class Packed:
    """All that a language model needs to know of a tree."""

    ids: Ints
    positions: Ints
    """(3, tokens)"""
    seen_at: Ints
    """tokens that are a piece of a picture"""
    seen_row: Ints
    """and the row of the picture's features that stands there"""
    groups: tuple[Group, ...]
    wanted: Ints
    """tokens whose last states are read"""
    readings: tuple[Reading, ...]

    @property
    def tokens(self) -> int:
        """Tokens that are computed."""
        return len(self.ids)


@dataclass
class _Laid:
    """Where a segment's tokens were put, and what it sees."""

    start: int
    sees: Ints
    """before the segment"""
    position: int
    """of the first token"""
    lengths: tuple[int, ...]


def pack(
    tree: Tree, pictures: Mapping[Hashable, int], wanted: Sequence[tuple[int, int]], past: Past | None = None
) -> Packed:
    """Lay a tree flat.

    Args:
        tree: the segments.
        pictures: the first row of each picture's features.
        wanted: (segment, token within the segment) pairs whose states are read.
        past: what was computed before; segments without a parent come after it. A tree's kept segments are its last
            tokens.
    """
    order = _by_shape(tree, past)
    places = _placed(tree, order, past)
    ids, positions, seen_at, seen_row = _tokens(tree, order, places, pictures, past)
    groups = tuple(_group(members, places, past) for members in order)
    at = np.array([places[segment].start + token for segment, token in wanted], np.int64)
    return Packed(ids, positions, seen_at, seen_row, groups, at, _readings(wanted, places, past))


@dataclass(frozen=True)
class Past:
    """Tokens whose keys and values are kept: how many there are, which of them come first, and the next position."""

    size: int
    sees: Ints
    position: int


def _context(tree: Tree, at: int, past: Past | None) -> int:
    """Count the tokens before a segment."""
    segment = tree.segments[at]
    if segment.parent < 0:
        return len(past.sees) if past else 0
    own = sum(len(block) for block in tree.segments[segment.parent].blocks[: segment.seen])
    return _context(tree, segment.parent, past) + own


def _by_shape(tree: Tree, past: Past | None) -> list[list[int]]:
    shapes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for at, segment in enumerate(tree.segments[tree.kept :], tree.kept):
        shapes[_context(tree, at, past), sum(len(block) for block in segment.blocks)].append(at)
    return [shapes[key] for key in sorted(shapes)]


def _placed(tree: Tree, order: list[list[int]], past: Past | None) -> dict[int, _Laid]:
    # kept segments are counted back from the first new token
    starts, total = {}, -sum(len(block) for segment in tree.segments[: tree.kept] for block in segment.blocks)
    for at in (*range(tree.kept), *(one for members in order for one in members)):
        starts[at] = total
        total += sum(len(block) for block in tree.segments[at].blocks)
    places: dict[int, _Laid] = {}
    for at, segment in enumerate(tree.segments):  # parents come first here
        places[at] = _laid(tree.segments, segment, starts[at], places, past)
    return places


def _laid(
    segments: Sequence[Segment], segment: Segment, start: int, places: Mapping[int, _Laid], past: Past | None
) -> _Laid:
    lengths = tuple(len(block) for block in segment.blocks)
    if segment.parent < 0:
        before = (past.sees, past.position) if past else (np.empty(0, np.int64), 0)
        return _Laid(start, before[0], before[1], lengths)
    parent, offset = places[segment.parent], past.size if past else 0
    own = np.arange(sum(parent.lengths[: segment.seen])) + parent.start + offset
    moved = sum(block.advance for block in segments[segment.parent].blocks[: segment.seen])
    return _Laid(start, np.concatenate([parent.sees, own]), parent.position + moved, lengths)


def _tokens(
    tree: Tree, order: list[list[int]], places: Mapping[int, _Laid], pictures: Mapping[Hashable, int], past: Past | None
) -> tuple[Ints, Ints, Ints, Ints]:
    ids, positions, at, row = [], [], [], []
    start = 0
    for segment in (one for members in order for one in members):
        position = places[segment].position
        for block in tree.segments[segment].blocks:
            ids.append(np.array(block.ids))
            positions.append(block.positions + position)
            if block.picture is not None:
                count = block.picture.rows * block.picture.columns
                at.append(np.arange(count) + start + block.at)
                row.append(np.arange(count) + pictures[block.picture.key])
            position += block.advance
            start += len(block)
    return np.concatenate(ids), np.concatenate(positions, axis=1), _joined(at), _joined(row)


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _group(members: list[int], places: Mapping[int, _Laid], past: Past | None) -> Group:
    first = places[members[0]]
    length = sum(first.lengths)
    offset = past.size if past else 0
    own = np.array([places[at].start for at in members])[:, None] + np.arange(length) + offset
    before = np.stack([places[at].sees for at in members])
    return Group(first.start, len(members), length, np.concatenate([before, own], axis=1))


def _readings(wanted: Sequence[tuple[int, int]], places: Mapping[int, _Laid], past: Past | None) -> tuple[Reading, ...]:
    """Group wanted tokens by how much they see: in the last layer nothing else is asked."""
    by_size: dict[int, list[int]] = defaultdict(list)
    for row, (segment, token) in enumerate(wanted):
        by_size[len(places[segment].sees) + token + 1].append(row)
    offset = past.size if past else 0
    readings = []
    for rows in by_size.values():
        sees = [
            np.concatenate([place.sees, np.arange(token + 1) + place.start + offset])
            for place, token in ((places[wanted[row][0]], wanted[row][1]) for row in rows)
        ]
        readings.append(Reading(np.array(rows), np.stack(sees)))
    return tuple(readings)


def picture_rows(blocks: Sequence[Block]) -> dict[Hashable, int]:
    """Give every picture in the blocks its rows, in the order they appear; for features laid end to end."""
    rows: dict[Hashable, int] = {}
    total = 0
    for block in blocks:
        if block.picture is not None and block.picture.key not in rows:
            rows[block.picture.key] = total
            total += block.picture.rows * block.picture.columns
    return rows
