"""The prompt files, the labels of images, and the choice of frames."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.data.frames import spread
from demerit.errors import BadInput
from demerit.models.gvl.prompt import (
    ANCHOR_LABEL,
    FOLDER,
    VERSIONS,
    choose_frames,
    failure_label,
    fill_prompt,
    frame_label,
    prompts_hash,
    reference_label,
)
from fakes.prompted import read_label

PROMPTS_HASH = "de7f2090e1c20fc0519b9f604b4e2097"


def test_labels() -> None:
    """The fake model reads them with its own patterns."""
    assert read_label(frame_label(12)) == ("frame", {"number": 12})
    assert read_label(failure_label(2, 3)) == ("failure", {"example": 2, "number": 3})
    assert read_label(reference_label(2, 3, 45)) == ("reference", {"example": 2, "number": 3, "percent": 45})
    assert read_label(ANCHOR_LABEL) == ("anchor", {})


def test_every_prompt_is_a_file_with_its_version_and_every_blank_is_filled() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}-{number}.txt" for name, number in VERSIONS.items()}
    for name in VERSIONS:
        assert not re.search(r"\$\w", fill_prompt(name, task="T", failures="F", count=3, remarks="R"))
    assert 'told: "put $count {cups} $task"' in fill_prompt("task", task="put $count {cups} $task")
    assert prompts_hash() == PROMPTS_HASH, "another prompt is another model: give the file a new number"


@given(st.integers(1, 300), st.integers(2, 40), st.text(max_size=5))
def test_chosen_frames(length: int, budget: int, seed: str) -> None:
    shown = choose_frames(length, budget, seed)
    assert shown.anchor == 0
    assert shown.at().tolist() == spread(length, budget).tolist(), "what the card says is decoded"
    assert len(shown) == min(length, budget) - 1
    assert choose_frames(length, budget, seed).order.tolist() == shown.order.tolist()


def test_orders_are_spread_evenly_and_the_same_on_every_machine() -> None:
    assert choose_frames(8, 8, "seed").order.tolist() == [4, 7, 5, 2, 6, 3, 1]
    places = np.array([choose_frames(5, 5, str(seed)).order for seed in range(4000)])
    for place in range(4):
        shares = np.bincount(places[:, place], minlength=5)[1:] / 4000
        assert shares == pytest.approx([0.25] * 4, abs=0.03)
    with pytest.raises(BadInput):
        choose_frames(5, 1, "")
