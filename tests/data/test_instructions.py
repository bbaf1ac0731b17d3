"""Instruction text: normalization, word forms, and which instructions may ask for the same task."""

import pytest

from demerit.data.instructions import normalize_instruction, objects, plain_words, same_task, word_forms


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
