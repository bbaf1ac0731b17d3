"""Prefix trees: nothing is lost or computed twice, and every token sees exactly what it should."""

import copy
from collections.abc import Hashable, Iterable

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3VLConfig, Qwen3VLModel

from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.prefix_tree import (
    PastTokens,
    PrefixTree,
    pack,
    separate_tree,
    shared_tree,
    trunk_tree,
    window,
    windows,
)
from demerit.models.vlm.prompt import ImageSlot, TokenBlock
from fakes.tiny_vlm import ROWS, tiny_config

CONFIG = tiny_config(ROWS["qwen"])
IMAGE = VLMShape.from_config(CONFIG).image_token


def shown(frame: int, depth: int, rows: int = 2, columns: int = 3) -> TokenBlock:
    """Some tokens, an image, a token; the tokens tell the depth."""
    lead = tuple(range(5 + depth % 3)) if depth == 0 else (100 + depth, 7)
    return TokenBlock((*lead, *[IMAGE] * (rows * columns), 200 + depth), ImageSlot(frame, rows, columns), len(lead))


def sequences(frames: int, count: int, stride: int = 1) -> list[tuple[TokenBlock, ...]]:
    every = windows(frames, count)[::stride]
    return [tuple(shown(frame, depth) for depth, frame in enumerate(chosen)) for chosen in every]


def image_rows(blocks: Iterable[TokenBlock]) -> dict[Hashable, int]:
    """Give every image its rows in order of appearance."""
    rows: dict[Hashable, int] = {}
    for block in blocks:
        if block.image is not None:
            rows.setdefault(block.image.key, 6 * len(rows))
    return rows


def path(tree: PrefixTree, end: int) -> tuple[TokenBlock, ...]:
    """Read the blocks from the root by walking up: another way than packing goes."""
    segment = tree.segments[end]
    if segment.parent < 0:
        return segment.blocks
    above = tree.segments[segment.parent]
    whole = path(tree, segment.parent)
    return whole[: len(whole) - len(above.blocks) + segment.seen] + segment.blocks


def test_windows_spread_over_the_past() -> None:
    assert window(0, 8) == (0,) * 8
    assert window(3, 8) == (0, 1, 2, 3, 3, 3, 3, 3)
    assert window(7, 8) == tuple(range(8))
    assert window(100, 8) == (0, 14, 29, 43, 57, 71, 86, 100)
    assert [chosen[-1] for chosen in windows(30, 8)] == list(range(30))


@given(frames=st.integers(1, 60), count=st.integers(1, 9), stride=st.integers(1, 4))
def test_a_shared_tree_holds_every_sequence_and_no_prefix_twice(frames: int, count: int, stride: int) -> None:
    asked = sequences(frames, count, stride)
    tree = shared_tree(asked)
    assert [path(tree, end) for end in tree.ends] == asked
    assert tree.tokens <= separate_tree(asked).tokens
    assert len({(path(tree, at)) for at in range(len(tree.segments))}) == len(tree.segments)


def naive_positions(blocks: tuple[TokenBlock, ...]) -> np.ndarray:
    """Follow the rule token by token over the whole sequence."""
    places, at = [], 0
    for block in blocks:
        start = block.at if block.image else len(block.ids)
        for _ in block.ids[:start]:
            places.append((at, at, at))
            at += 1
        if block.image is None:
            continue
        rows, columns = block.image.rows, block.image.columns
        places += [(at, at + row, at + column) for row in range(rows) for column in range(columns)]
        at += max(rows, columns)
        for _ in block.ids[start + rows * columns :]:
            places.append((at, at, at))
            at += 1
    return np.array(places).T


@given(frames=st.integers(1, 40), count=st.integers(1, 8), portion=st.integers(0, 30))
def test_every_wanted_token_sees_its_own_sequence_in_order(frames: int, count: int, portion: int) -> None:
    asked = sequences(frames, count)[portion % frames :]
    tree = shared_tree(asked)
    rows = image_rows([block for sequence in asked for block in sequence])
    packed = pack(tree, rows, tree.last_tokens())
    features = np.full(packed.tokens, -1)
    features[packed.image_at] = packed.image_row
    own = [np.arange(g.start, g.start + g.count * g.length).reshape(g.count, g.length) for g in packed.groups]
    assert np.array_equal(np.sort(np.concatenate([places.ravel() for places in own])), np.arange(packed.tokens))
    for group, places in zip(packed.groups, own, strict=True):
        assert np.array_equal(group.sees[:, -group.length :], places)
    for reading in packed.readings:
        for row, sees in zip(reading.rows, reading.sees, strict=True):
            blocks = asked[row]
            assert packed.ids[sees].tolist() == [token for block in blocks for token in block.ids]
            assert np.array_equal(packed.positions[:, sees], naive_positions(blocks))
            wanted = [rows[block.image.key] + at for block in blocks if block.image for at in range(6)]
            assert features[sees][packed.ids[sees] == IMAGE].tolist() == wanted
            assert sees[-1] == packed.wanted[row]


def test_a_kept_trunk_is_seen_but_not_computed_again() -> None:
    """New tokens see what they see when everything is computed together."""
    stem = tuple(shown(frame, 1) for frame in range(6))
    branches = [(seen, (shown(9, 1), TokenBlock((1, 2, seen)))) for seen in (1, 4, 6, 4)]
    size = sum(map(len, stem))
    rows = image_rows([*stem, *branches[0][1]])
    whole, later = trunk_tree(stem, branches), trunk_tree(stem, branches, kept=True)
    wanted = [(end, 2) for end in whole.ends]
    together = pack(whole, rows, wanted)
    after = pack(later, rows, wanted, PastTokens(size, np.empty(0, np.int64), 0))
    assert after.tokens == later.tokens == whole.tokens - size
    pool = np.concatenate([[token for block in stem for token in block.ids], after.ids])
    places = np.concatenate([naive_positions(stem), after.positions], axis=1)
    seen = {row: sees for group in together.readings for row, sees in zip(group.rows, group.sees, strict=True)}
    for reading in after.readings:
        for row, sees in zip(reading.rows, reading.sees, strict=True):
            assert pool[sees].tolist() == together.ids[seen[row]].tolist()
            assert np.array_equal(places[:, sees], together.positions[:, seen[row]])
    for group in after.groups:
        own = np.arange(group.start, group.start + group.count * group.length).reshape(group.count, -1) + size
        assert np.array_equal(group.sees[:, -group.length :], own)


def test_positions_equal_transformers() -> None:
    blocks = tuple(shown(frame, depth, 2, 3) for depth, frame in enumerate(window(20, 5)))
    ids = torch.tensor([[token for block in blocks for token in block.ids]])
    with torch.device("meta"):
        library = Qwen3VLModel(Qwen3VLConfig(**copy.deepcopy(CONFIG)))  # the library writes into what it is given
    grid = torch.tensor([[1, 4, 6]] * 5)
    theirs, _ = library.get_rope_index(ids, (ids == IMAGE).int(), image_grid_thw=grid)
    assert np.array_equal(theirs[:, 0].numpy(), naive_positions(blocks))
