"""Trees of segments: nothing is lost, nothing is computed twice, every token sees exactly what it should."""

from __future__ import annotations

import copy
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.errors import BadInput
from demerit.models.vlm import cost
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.packed import Past, pack, picture_rows
from demerit.models.vlm.prompt import Block, Picture
from demerit.models.vlm.tree import Tree, separate, shared, trunk
from demerit.models.vlm.windows import window, windows
from fakes.tiny_vlm import ROWS, tiny_config

CONFIG = tiny_config(ROWS["qwen"])
SHAPE = VLMShape.from_config(CONFIG)
IMAGE = SHAPE.image_token


def shown(frame: int, depth: int, rows: int = 2, columns: int = 3) -> Block:
    """Some words, a picture, a word; the words tell the depth."""
    words = tuple(range(5 + depth % 3)) if depth == 0 else (100 + depth, 7)
    return Block((*words, *[IMAGE] * (rows * columns), 200 + depth), Picture(frame, rows, columns), len(words))


def sequences(frames: int, count: int, stride: int = 1) -> list[tuple[Block, ...]]:
    return [tuple(shown(frame, depth) for depth, frame in enumerate(each)) for each in windows(frames, count)[::stride]]


def path(tree: Tree, end: int) -> tuple[Block, ...]:
    """Walk up from a segment and read the blocks from the beginning: another way than packing goes."""
    segment = tree.segments[end]
    if segment.parent < 0:
        return segment.blocks
    above = tree.segments[segment.parent]
    whole = path(tree, segment.parent)
    return whole[: len(whole) - len(above.blocks) + segment.seen] + segment.blocks


@given(frames=st.integers(1, 60), count=st.integers(1, 9), stride=st.integers(1, 4))
@settings(max_examples=60)
def test_a_shared_tree_holds_every_sequence_and_no_beginning_twice_in_a_level(
    frames: int, count: int, stride: int
) -> None:
    asked = sequences(frames, count, stride)
    tree = shared(asked)
    assert [path(tree, end) for end in tree.ends] == asked
    assert tree.tokens <= separate(asked).tokens
    assert len({(path(tree, at)) for at in range(len(tree.segments))}) == len(tree.segments)


def test_eight_frame_windows_need_five_pictures_a_frame() -> None:
    tree = shared(sequences(700, 8))
    assert sum(len(segment.blocks) for segment in tree.segments) / 700 == pytest.approx(5.0, abs=0.05)
    groups = {(len(segment.blocks), len(path(tree, at))) for at, segment in enumerate(tree.segments)}
    assert len(groups) <= 5


def naive_positions(blocks: tuple[Block, ...]) -> np.ndarray:
    """Follow the rule word by word, over the whole sequence."""
    places, at = [], 0
    for block in blocks:
        start = block.at if block.picture else len(block.ids)
        for _ in block.ids[:start]:
            places.append((at, at, at))
            at += 1
        if block.picture is None:
            continue
        rows, columns = block.picture.rows, block.picture.columns
        places += [(at, at + row, at + column) for row in range(rows) for column in range(columns)]
        at += max(rows, columns)
        for _ in block.ids[start + rows * columns :]:
            places.append((at, at, at))
            at += 1
    return np.array(places).T


@given(frames=st.integers(1, 40), count=st.integers(1, 8), portion=st.integers(0, 30))
@settings(max_examples=40)
def test_every_wanted_token_sees_its_own_sequence_in_order(frames: int, count: int, portion: int) -> None:
    asked = sequences(frames, count)[portion % frames :]
    tree = shared(asked)
    rows = picture_rows([block for each in asked for block in each])
    last = [sum(len(block) for block in tree.segments[end].blocks) - 1 for end in tree.ends]
    packed = pack(tree, rows, list(zip(tree.ends, last, strict=True)))
    features = np.full(packed.tokens, -1)
    features[packed.seen_at] = packed.seen_row
    for reading in packed.readings:
        for row, sees in zip(reading.rows, reading.sees, strict=True):
            blocks = asked[row]
            assert packed.ids[sees].tolist() == [one for block in blocks for one in block.ids]
            assert np.array_equal(packed.positions[:, sees], naive_positions(blocks))
            wanted = [rows[block.picture.key] + at for block in blocks if block.picture for at in range(6)]
            assert features[sees][packed.ids[sees] == IMAGE].tolist() == wanted
            assert sees[-1] == packed.wanted[row]


@given(frames=st.integers(2, 40), count=st.integers(2, 8))
@settings(max_examples=30)
def test_groups_cover_all_tokens_once_and_end_with_themselves(frames: int, count: int) -> None:
    asked = sequences(frames, count)
    tree = shared(asked)
    packed = pack(tree, picture_rows([block for each in asked for block in each]), [(tree.ends[0], 0)])
    covered = np.concatenate(
        [np.arange(group.start, group.start + group.count * group.length) for group in packed.groups]
    )
    assert np.array_equal(np.sort(covered), np.arange(packed.tokens))
    for group in packed.groups:
        own = np.arange(group.start, group.start + group.count * group.length).reshape(group.count, group.length)
        assert np.array_equal(group.sees[:, -group.length :], own)


def test_branches_on_a_trunk_see_as_much_of_it_as_they_are_told() -> None:
    stem = tuple(shown(frame, 1) for frame in range(6))
    tail = Block((1, 2, 3))
    tree = trunk(stem, [(seen, (tail,)) for seen in (1, 4, 6)])
    packed = pack(tree, picture_rows(stem), [(end, 2) for end in tree.ends])
    lengths = list(accumulate(len(block) for block in stem))
    assert sorted(len(reading.sees[0]) for reading in packed.readings) == [lengths[at - 1] + 3 for at in (1, 4, 6)]


def test_a_stem_that_was_computed_before_is_seen_but_not_computed_again() -> None:
    """New tokens are laid as if the stem stood before them; each sees what it sees where all is computed together."""
    stem = tuple(shown(frame, 1) for frame in range(6))
    branches = [(seen, (shown(9, 1), Block((1, 2, seen)))) for seen in (1, 4, 6, 4)]
    size = sum(map(len, stem))
    rows = picture_rows([*stem, *branches[0][1]])
    whole, later = trunk(stem, branches), trunk(stem, branches, kept=True)
    wanted = [(end, 2) for end in whole.ends]
    together = pack(whole, rows, wanted)
    after = pack(later, rows, wanted, Past(size, np.empty(0, np.int64), 0))
    assert after.tokens == later.tokens == whole.tokens - size
    pool = np.concatenate([[token for block in stem for token in block.ids], after.ids])
    places = np.concatenate([naive_positions(stem), after.positions], axis=1)
    seen = {row: sees for one in together.readings for row, sees in zip(one.rows, one.sees, strict=True)}
    for reading in after.readings:
        for row, sees in zip(reading.rows, reading.sees, strict=True):
            assert pool[sees].tolist() == together.ids[seen[row]].tolist()
            assert np.array_equal(places[:, sees], together.positions[:, seen[row]])
    for group in after.groups:
        own = np.arange(group.start, group.start + group.count * group.length).reshape(group.count, -1) + size
        assert np.array_equal(group.sees[:, -group.length :], own)


def test_going_on_from_the_past_comes_after_it() -> None:
    packed = pack(separate([(Block((1, 2, 3)),)]), {}, [(0, 2)], Past(10, np.array([0, 4, 7]), 20))
    assert packed.groups[0].sees.tolist() == [[0, 4, 7, 10, 11, 12]]
    assert packed.positions[0].tolist() == [20, 21, 22]


def test_positions_are_those_of_the_library() -> None:
    from transformers import Qwen3VLConfig, Qwen3VLModel

    blocks = tuple(shown(frame, depth, 2, 3) for depth, frame in enumerate(window(20, 5)))
    ids = torch.tensor([[one for block in blocks for one in block.ids]])
    with torch.device("meta"):
        library = Qwen3VLModel(Qwen3VLConfig(**copy.deepcopy(CONFIG)))  # the library writes into what it is given
    grid = torch.tensor([[1, 4, 6]] * 5)
    theirs, _ = library.get_rope_index(ids, (ids == IMAGE).int(), image_grid_thw=grid)
    assert np.array_equal(theirs[:, 0].numpy(), naive_positions(blocks))


def test_cost_counts_what_a_loop_over_tokens_counts() -> None:
    asked = sequences(13, 8)
    tree = shared(asked)
    last = [sum(len(block) for block in tree.segments[end].blocks) - 1 for end in tree.ends]
    packed = pack(tree, picture_rows([b for each in asked for b in each]), list(zip(tree.ends, last, strict=True)))
    text, total = SHAPE.text, 0
    seen = {}
    for group in packed.groups:
        for member in group.sees:
            for at in range(group.length):
                seen[member[len(member) - group.length + at]] = len(member) - group.length + at + 1
    q, kv = text.heads * text.head, text.groups * text.head
    for token in range(packed.tokens):
        for layer in range(text.layers):
            total += 2 * text.hidden * kv
            if layer < text.layers - 1 or token in packed.wanted:
                total += text.hidden * q + q * text.hidden + 3 * text.hidden * text.inner + 2 * q * seen[token]
    assert cost.of_tokens(text, packed).operations == pytest.approx(2 * total)


def test_cost_of_pictures_is_that_of_their_matrices() -> None:
    vision, patches, tokens = SHAPE.vision, 2 * 3 * 4, 2 * 3
    block = vision.hidden * (3 * vision.hidden + vision.hidden + 2 * vision.inner)
    wide = vision.hidden * 4
    each = patches * 3 * 2 * 16 * 16 * vision.hidden + vision.depth * patches * (block + 2 * patches * vision.hidden)
    each += (1 + len(vision.deep)) * tokens * (wide * wide + wide * vision.out)
    assert cost.of_pictures(vision, 5, 2, 3).operations == 2 * 5 * each


def test_a_config_of_another_family_is_refused() -> None:
    with pytest.raises(BadInput, match="qwen3_vl"):
        VLMShape.from_config({**CONFIG, "model_type": "llava"})
    text = {name: value for name, value in CONFIG["text_config"].items() if name != "rope_theta"}
    with pytest.raises(BadInput, match="rope_theta"):
        VLMShape.from_config({**CONFIG, "text_config": text})
