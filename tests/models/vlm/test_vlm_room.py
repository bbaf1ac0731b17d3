"""How much is computed together: portions hold every thing once, and shrink only as far as memory asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from demerit.errors import OutOfMemory
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.room import FEWEST_TOKENS, MOST_TOKENS, ON_A_CPU, SHARE, Room, numbers
from fakes.tiny_vlm import tiny_config

Lengths = st.lists(st.integers(1, 50), max_size=40)
SHAPE = VLMShape.from_config(tiny_config())


@given(Lengths, st.integers(1, 200))
def test_portions_hold_everything_once_and_fit(lengths: list[int], tokens: int) -> None:
    cut = list(Room(tokens).portions(lengths))
    assert [at for some in cut for at in range(some.start, some.stop)] == list(range(len(lengths)))
    for some in cut:
        assert sum(lengths[some]) <= tokens or some.stop - some.start == 1
        if some.stop < len(lengths):
            assert sum(lengths[some]) + lengths[some.stop] > tokens, "as many as fit"


@given(Lengths, st.integers(1, 2000), st.integers(50, 300))
def test_whatever_fits_alone_is_worked_through_in_order(lengths: list[int], tokens: int, memory: int) -> None:
    room, done = Room(tokens), []

    def work(some: slice) -> list[int]:
        if sum(lengths[some]) > memory:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        done.extend(range(some.start, some.stop))
        return list(range(some.start, some.stop))

    made = room.worked("Working", lengths, work)
    assert done == [at for part in made for at in part] == list(range(len(lengths)))
    assert room.tokens <= tokens
    assert room.tokens >= min(tokens, FEWEST_TOKENS)


def test_the_smaller_portions_are_remembered() -> None:
    room, tried = Room(100_000), []

    def work(some: slice) -> None:
        tried.append(some.stop - some.start)
        if tried[-1] > 20:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    room.worked("Working", [1000] * 80, work)
    assert tried == [80, 40, 20, 20, 20, 20]
    assert room.tokens == 20_000
    room.worked("Working", [1000] * 20, work)
    assert tried[-1] == 20


def test_one_thing_that_does_not_fit_is_the_sentence() -> None:
    def work(some: slice) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.")

    with pytest.raises(OutOfMemory, match=r"Asking ran out of memory \(Tried to allocate 9.00 GiB\)"):
        Room().worked("Asking", [10, 10, 10], work)
    with pytest.raises(ValueError, match="something else"):
        Room().worked("Asking", [10, 10], lambda some: int("something else"))


def test_what_fits_beside_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Free memory and what torch has in hand, over what a token takes, counted here number by number."""
    text = SHAPE.text
    key = 2 * text.groups * text.head
    passing = 2 * text.hidden + 3 * text.heads * text.head + 5 * key
    kept = 2 * text.layers * key
    for free, in_hand in ((40_000_000, 0), (30_000_000, 10_000_000)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 10**12))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _, in_hand=in_hand: 700 + in_hand)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 700)
        network: Any = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16, shape=SHAPE)
        assert Room.beside(network).tokens == int(SHARE * 40_000_000 / (2 * passing))
        assert Room.beside(network, keeping=True).tokens == int(SHARE * 40_000_000 / (2 * (passing + kept)))
        assert Room.beside(network, asked=77).tokens == 77
    assert numbers(SHAPE, keeping=True) - numbers(SHAPE, keeping=False) == kept
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10**12, 10**12))
    assert Room.beside(network).tokens == MOST_TOKENS
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10, 10**12))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 700)
    assert Room.beside(network).tokens == FEWEST_TOKENS
    plain: Any = SimpleNamespace(device=torch.device("cpu"), dtype=torch.float32, shape=SHAPE)
    assert Room.beside(plain).tokens == ON_A_CPU
