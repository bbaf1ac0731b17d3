"""Greedy decoding of several prompts side by side: each goes on from its own tokens, and stops when it has finished."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from demerit.errors import NonFiniteOutput
from demerit.models.vlm.language import Keys
from demerit.models.vlm.network import Network, Seen
from demerit.models.vlm.packed import Group, Packed, Reading
from demerit.models.vlm.prompt import Ints
from demerit.models.vlm.tree import Tree


@dataclass(frozen=True)
class Answer:
    """What a model said, without the token that ended it."""

    ids: tuple[int, ...]
    finished: bool
    """it ended by itself, not because it was cut off"""


@dataclass
class _Open:
    """An answer that is being written: which computed tokens it sees, and where it goes on."""

    number: int
    sees: Ints
    position: int
    said: list[int] = field(default_factory=list)


@torch.inference_mode()
def greedy(network: Network, tree: Tree, seen: Seen | None, *, stops: Collection[int], most: int) -> list[Answer]:
    """Continue every sequence of a tree with the likeliest token, again and again.

    Args:
        network: with words.
        tree: the prompts; what they share is computed once.
        seen: their pictures.
        stops: tokens that end an answer.
        most: tokens of an answer at which it is cut off.

    Returns:
        One answer a sequence.
    """
    wanted = [(end, sum(map(len, tree.segments[end].blocks)) - 1) for end in tree.ends]
    states, keys, packed = network.states_and_keys(tree, seen, wanted)
    writing = _begun(tree, packed)
    done: dict[int, Answer] = {}
    while True:
        likeliest = network.language.words(states).max(-1)
        if bool(likeliest.values.isnan().any()):
            raise NonFiniteOutput  # any token would do, and some would be read as a grade
        following = likeliest.indices.tolist()
        for one, token in zip(writing, following, strict=True):
            if token in stops:
                done[one.number] = Answer(tuple(one.said), finished=True)
            else:
                one.said.append(token)
                if len(one.said) == most:
                    done[one.number] = Answer(tuple(one.said), finished=False)
        writing = [one for one in writing if one.number not in done]
        if not writing:
            return [done[number] for number in range(len(tree.ends))]
        states, keys = _step(network, writing, keys)


def _begun(tree: Tree, packed: Packed) -> list[_Open]:
    sees: dict[int, Ints] = {}
    for reading in packed.readings:
        sees |= {int(row): reading.sees[at] for at, row in enumerate(reading.rows)}
    return [_Open(number, sees[number], _next_position(tree, end)) for number, end in enumerate(tree.ends)]


def _next_position(tree: Tree, at: int) -> int:
    """Where the token after a segment stands: all that was seen before it has moved the positions on."""
    segment = tree.segments[at]
    position, blocks = 0, segment.blocks
    while True:
        position += sum(block.advance for block in blocks)
        if segment.parent < 0:
            return position
        parent = tree.segments[segment.parent]
        blocks, segment = parent.blocks[: segment.seen], parent


def _step(network: Network, writing: Sequence[_Open], keys: Keys) -> tuple[torch.Tensor, Keys]:
    """Compute the newest token of every open answer."""
    size = len(keys.layers[0])
    alike: dict[int, list[_Open]] = defaultdict(list)
    for one in writing:
        alike[len(one.sees)].append(one)
    ordered = [one for length in sorted(alike) for one in alike[length]]
    for place, one in enumerate(ordered):
        one.sees = np.append(one.sees, size + place)
    states, more = network.language.states_and_keys(_one_token_each(ordered, writing), None, keys)
    for one in ordered:
        one.position += 1
    return states, keys.joined(more)


def _one_token_each(ordered: Sequence[_Open], writing: Sequence[_Open]) -> Packed:
    """Lay one new token a sequence; those that see equally many tokens lie together."""
    ids = np.array([one.said[-1] for one in ordered], np.int64)
    positions = np.tile(np.array([one.position for one in ordered], np.int64), (3, 1))
    place = {one.number: at for at, one in enumerate(ordered)}
    row = {one.number: at for at, one in enumerate(writing)}
    groups, readings, start = [], [], 0
    while start < len(ordered):
        together = [one for one in ordered[start:] if len(one.sees) == len(ordered[start].sees)]
        sees = np.stack([one.sees for one in together])
        groups.append(Group(start, len(together), 1, sees))
        readings.append(Reading(np.array([row[one.number] for one in together]), sees))
        start += len(together)
    wanted = np.array([place[one.number] for one in writing], np.int64)
    nothing = np.empty(0, np.int64)
    return Packed(ids, positions, nothing, nothing, tuple(groups), wanted, tuple(readings))
