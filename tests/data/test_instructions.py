"""Instruction text: normalization, word forms, and which instructions may ask for the same task."""

import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.data.episode import (
    differ_by_typo,
    is_typo,
    normalize_instruction,
    objects,
    plain_words,
    same_task,
    word_forms,
)
from demerit.data.splits import group_typos


def test_words() -> None:
    assert normalize_instruction("  Put the Cup, there! ") == "put the cup there"
    assert plain_words("Café_au-lait") == ["cafe", "au", "lait"]
    assert "wipe" in word_forms("wiping") and "cut" in word_forms("cutting") and "push" in word_forms("pushes")
    assert objects("put the red mugs in the top drawer") == {"red", "cup", "top", "drawer"}


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("Put the mug on the plate.", "place the cup onto plate", True),
        ("pick up the cup and put it on the shelf", "pick up the cup", True),
        ("stack the blocks", "stack the block", True),
        ("put the cup on the plate", "put the plate on the cup", True),  # the same words: we cannot tell
        ("turn on the toaster", "push the toaster lever down", True),
        ("put the blue marker in the glass cup", "move the marker to the right", True),
        ("put the golden object in the cup", "put the spoon in the cup", True),
        ("close the drawer", "push the open drawer closed", True),
        ("open the drawer", "close the drawer", False),
        ("lift the cup", "lower the cup", False),
        ("close lower drawer", "close the upper drawer", False),
        ("close the lower drawer", "close lower drawer", True),
        ("open the drawer", "shut the open drawer", False),
        ("open the closed drawer", "close the drawer", False),
        ("open the closed drawer", "open the drawer", True),
        ("close the drawer", "push the open drawer in", True),
        ("pick up the open book", "pick up the closed book", False),
        ("open the drawer", "open the drwaer", True),
        ("open the top drawer", "open the bottom drawer", False),
        ("take the pen out of the cup", "put the pen in the cup", False),
        ("put the red block on top of the box", "put the blue block on the box", False),
        ("put the cup in the sink", "put the cup on the shelf", False),
        ("move the pen to the left", "move the pen to the right", False),
        ("the", "put the cup on the shelf", True),
    ],
)
def test_same_task(first: str, second: str, same: bool) -> None:
    assert same_task(first, second) is same


WORD = st.text(string.ascii_lowercase[:4], min_size=1, max_size=6)
SENTENCE = st.lists(
    st.one_of(WORD, st.sampled_from("the open close drawer cup put on cups 2".split())), max_size=5
).map(" ".join)


@given(SENTENCE, SENTENCE)
def test_closeness_is_reflexive_and_symmetric(first: str, second: str) -> None:
    for close in (same_task, differ_by_typo):
        assert close(first, first) and close(first, f" {first.upper()}. ")
        assert close(first, second) == close(second, first)
    assert same_task(first, second) or not differ_by_typo(first, second)


def distance(a: str, b: str) -> int:
    """Count letters added, left out or changed and neighbours swapped, by dynamic programming."""
    table = {(i, 0): i for i in range(len(a) + 1)} | {(0, j): j for j in range(len(b) + 1)}
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            changed = a[i - 1] != b[j - 1]
            table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + changed)
            if i > 1 and j > 1 and a[i - 2 : i] == b[j - 2 : j][::-1]:
                table[i, j] = min(table[i, j], table[i - 2, j - 2] + 1)
    return table[len(a), len(b)]


@given(WORD, WORD)
def test_a_typo_is_one_edit(a: str, b: str) -> None:
    if a == b:
        return
    letters = min(len(a), len(b))
    swapped = sorted(a) == sorted(b) and letters >= 3
    expected = distance(a, b) == 1 and (swapped or (a[0] == b[0] and letters >= 4))
    assert is_typo(a, b) is expected


@pytest.mark.parametrize(
    ("first", "second", "typo"),
    [
        ("put the marker in the bowl", "put teh marker in the bowl", True),
        ("open the microwave door", "Open the micowave door.", True),
        ("pick up the cup", "pickup the cup", True),
        ("take the cup from the shelf", "take the cup fom teh shelf", True),
        ("pick up the cups", "pick up cup", True),
        ("mix the purée", "mix the puree", True),
        ("pick up the cup", "pick up the cup and put it on the shelf", False),
        ("put the cup on the shelf", "put the cap on the shelf", False),
        ("put the fork away", "put the cork away", False),
        ("put block 1 on the shelf", "put block 2 on the shelf", False),
        ("turn the knob left", "lift the knob left", False),
        ("打开左边抽屉", "打开右边抽屉", False),
        ("открой ящик стола", "окрой ящик стола", True),
        ("put the cup in the box", "put the cup on the box", False),
        ("open teh drawr", "open the drawer", True),
        ("opne teh drawr", "open the drawer", False),
        ("open the drawer", "close the drawer", False),
    ],
)
def test_typos(first: str, second: str, typo: bool) -> None:
    assert differ_by_typo(first, second) is typo


@given(st.lists(SENTENCE, max_size=12))
def test_groups_are_what_comparing_all_pairs_gives(texts: list[str]) -> None:
    texts = [normalize_instruction(text) for text in texts]
    found = group_typos(texts)
    reached = {text: {text} for text in texts}
    for _ in texts:
        for text, others in reached.items():
            reached[text] = others | {b for a in others for b in texts if differ_by_typo(a, b)}
    assert found == {text: min(others) for text, others in reached.items()}


def test_thousands_of_instructions_are_compared_in_seconds() -> None:
    nouns = [
        a + b + c for a in ("bra", "stu", "pla", "cho") for b in ("ndi", "lte", "rgo", "mpu", "ssa") for c in "klmno"
    ]
    texts = [f"put the {a} next to the {b}" for a in nouns for b in nouns if a != b][:5000]
    started = time.process_time()
    found = group_typos([*texts, "put the brandik nxet to the stultel"])
    assert time.process_time() - started < 20
    assert len(found) == 5001
