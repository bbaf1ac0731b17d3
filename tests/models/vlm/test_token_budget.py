"""Token budgets: portions hold every item once and shrink only when memory runs out."""

import gc
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from demerit.errors import BadInput, OutOfMemory
from demerit.models.vlm.backbone import FEWEST_TOKENS, MOST_TOKENS, ON_A_CPU, SHARE, TokenBudget, within_memory
from demerit.models.vlm.config import VLMShape
from fakes.tiny_vlm import tiny_config

Lengths = st.lists(st.integers(1, 50), max_size=40)
SHAPE = VLMShape.from_config(tiny_config())


@given(Lengths, st.integers(1, 200))
def test_portions_hold_everything_once_and_fit(lengths: list[int], tokens: int) -> None:
    cut = TokenBudget(tokens).run("Cutting", lengths, lambda some: some)
    assert [at for some in cut for at in range(some.start, some.stop)] == list(range(len(lengths)))
    for some in cut:
        assert sum(lengths[some]) <= tokens or some.stop - some.start == 1
        if some.stop < len(lengths):
            assert sum(lengths[some]) + lengths[some.stop] > tokens, "as many as fit"


@given(Lengths, st.integers(1, 2000), st.integers(50, 300))
def test_items_that_fit_alone_are_done_in_order(lengths: list[int], tokens: int, memory: int) -> None:
    budget, done = TokenBudget(tokens), []

    def work(some: slice) -> list[int]:
        if sum(lengths[some]) > memory:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        done.extend(range(some.start, some.stop))
        return list(range(some.start, some.stop))

    made = budget.run("Working", lengths, work)
    assert done == [at for part in made for at in part] == list(range(len(lengths)))
    assert budget.tokens <= tokens
    assert budget.tokens >= min(tokens, FEWEST_TOKENS)


def test_an_item_that_does_not_fit_is_an_error() -> None:
    def work(some: slice) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.")

    with pytest.raises(OutOfMemory) as caught:
        TokenBudget().run("Asking", [10, 10, 10], work)
    assert (caught.value.what, caught.value.detail) == ("Asking", "Tried to allocate 9.00 GiB")
    with pytest.raises(ValueError, match="something else"):
        TokenBudget().run("Asking", [10, 10], lambda some: int("something else"))
    with pytest.raises(BadInput, match="at_once"):
        TokenBudget(0)


def test_the_budget_fits_beside_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Free and reserved memory over what a token takes, counted here value by value."""
    text = SHAPE.text
    key = 2 * text.groups * text.head
    passing = 2 * text.hidden + 3 * text.heads * text.head + 5 * key
    kept = 2 * text.layers * key
    free = 30_000_000
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 10**12))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 700 + min(free, 10_000_000))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 700)
    network: Any = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16, shape=SHAPE)
    assert TokenBudget.choose(network).tokens == int(SHARE * 40_000_000 / (2 * passing))
    assert TokenBudget.choose(network, keeping=True).tokens == int(SHARE * 40_000_000 / (2 * (passing + kept)))
    assert TokenBudget.choose(network, asked=77).tokens == 77
    for free, tokens in ((10**12, MOST_TOKENS), (10, FEWEST_TOKENS)):  # noqa: B007 (the patched functions read it)
        assert TokenBudget.choose(network).tokens == tokens
    free = 390_000_000
    wide: Any = SimpleNamespace(**vars(network) | {"shape": replace(SHAPE, text=replace(text, inner=4096))})
    passing = 2 * text.hidden + 2 * text.heads * text.head + key + 3 * 4096  # as of real networks: the MLP takes most
    assert TokenBudget.choose(wide).tokens == int(SHARE * 400_000_000 / (2 * passing)) > FEWEST_TOKENS
    plain: Any = SimpleNamespace(device=torch.device("cpu"), dtype=torch.float32, shape=SHAPE)
    assert TokenBudget.choose(plain).tokens == ON_A_CPU


def test_tensors_are_freed_after_running_out_of_memory() -> None:
    class Held:
        pass

    kept: list[weakref.ref[Held]] = []

    def work() -> None:
        big = Held()
        kept.append(weakref.ref(big))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    with pytest.raises(OutOfMemory) as caught, within_memory("Scoring 'a' with robometer"):
        work()
    assert caught.value.what == "Scoring 'a' with robometer"
    gc.collect()
    assert kept[0]() is None
    with pytest.raises(OutOfMemory, match="Loading"), within_memory("Loading"):
        torch.empty(1 << 60, dtype=torch.uint8)
