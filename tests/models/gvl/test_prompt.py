"""The prompt files, a user's own prompt, and the choice of frames."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.data.frames import spread
from demerit.errors import BadInput, StoreError
from demerit.llm import ChatImage, Message
from demerit.llm.template import fill_placeholders
from demerit.models.gvl import GVLConfig
from demerit.models.gvl.config import (
    CONTEXT_KINDS,
    FOLDER,
    VERSIONS,
    ShownParts,
    choose_frames,
    prompts_hash,
    write_feedback,
    write_prompt,
)
from fakes.prompted import read_label

OWN = """System:
Be strict about {task}.
---
Rate {count} frames of: {task}
Start: {first_frame} is worth 0.
---
Bad ways:

{number}) {failure}
Beware.
---
Bad frame {number} of {example}: {failure_frame}
---
Worth {percent}, frame {number} of {example}: {reference_frame}
---
Answer as [{"frame_number": 1, "task_reward": 0}].
Frame {number}: {frame}
"""
IMAGE = [ChatImage.encode(np.full((4, 4, 3), value, dtype=np.uint8)) for value in range(0, 250, 50)]
FRAMES: ShownParts = {"first_frame": [({}, IMAGE[0])], "frame": [({"number": 1}, IMAGE[1]), ({"number": 2}, IMAGE[2])]}


def test_the_shipped_prompts() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}-{number}.txt" for name, number in VERSIONS.items()}
    shipped = GVLConfig().read_prompt()
    assert prompts_hash(shipped) == "2a9c2892c2651ebf54cb8d1c7fec3fc4", (
        "another prompt is another model: give the file a new number"
    )
    system, user = write_prompt(shipped, {"task": "put $count {cups} {task}", "count": 2}, FRAMES)
    assert (system.role, user.role) == ("system", "user")
    assert 'told: "put $count {cups} {task}"' in str(user.parts[0]), "what is filled in is not filled again"
    labels = [read_label(str(before)) for before, image in pairwise(user.parts) if image in IMAGE]
    assert labels == [("anchor", {}), ("frame", {"number": 1}), ("frame", {"number": 2})]
    assert "{remarks}" in write_feedback("{remarks}", "- it fell", 3)


def test_lines_are_repeated_and_sections_without_examples_left_out(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text(OWN)
    prompt = GVLConfig(prompt=str(path), context="dense").read_prompt()
    system = Message.system("Be strict about a {count}.")
    start = ("Rate 2 frames of: a {count}", "Start:", IMAGE[0], "is worth 0.")
    end = ('Answer as [{"frame_number": 1, "task_reward": 0}].', "Frame 1:", IMAGE[1], "Frame 2:", IMAGE[2])
    values = {"task": "a {count}", "count": 2}
    assert write_prompt(prompt, values, FRAMES) == (system, Message.user(*start, *end))
    more: ShownParts = {
        **FRAMES,
        "failure": [({"number": 1}, "it {task} fell"), ({"number": 2}, "it slid")],
        "failure_frame": [({"example": 1, "number": 3}, IMAGE[3])],
        "reference_frame": [({"example": 2, "number": 4, "percent": 70}, IMAGE[4])],
    }
    ways = "Bad ways:\n\n1) it {task} fell\n2) it slid\nBeware."
    shown = (ways, "Bad frame 3 of 1:", IMAGE[3], "Worth 70, frame 4 of 2:", IMAGE[4])
    assert write_prompt(prompt, values, more) == (system, Message.user(*start, *shown, *end))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("{task}", "it", "{task}"),
        ("{first_frame}", "it", "{first_frame}"),
        ("{frame}", "it", "{frame}"),
        ("{failure}", "it", "{failure}"),
        ("{failure_frame}", "it", "{failure_frame}"),
        ("{reference_frame}", "it", "{reference_frame}"),
        ("Beware.", "Beware of {failures}.", "{failures}"),
        ("Beware.", "Beware of {number}.", "{number}"),
        ("Beware.", "Beware of {frame} {number} {failure}.", "{frame}"),
        ("Frame {number}: {frame}", "Frame: {frame}", "{number}"),
        ("Frame {number}: {frame}", "Frame {number} {percent}: {frame}", "{percent}"),
        ("Be strict about", "Be strict about {first_frame}", "System:"),
        (OWN, " \n", "empty"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_refused(old: str, new: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text(OWN.replace(old, new))
    with pytest.raises(BadInput) as error:
        GVLConfig(prompt=str(path), context="dense").read_prompt()
    assert named in str(error.value) and "own.txt" in str(error.value) and "\n" not in str(error.value)


def test_the_prompt_of_the_guide_can_be_used(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "prompted.md").read_text("utf-8")
    path = tmp_path / "guide.txt"
    path.write_text(guide.split("```text\n")[1].split("```")[0])
    for context in CONTEXT_KINDS:
        assert GVLConfig(prompt=str(path), context=context).read_prompt()


def test_only_what_the_context_shows_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("{task} {first_frame}\n{number}: {frame}")
    assert GVLConfig(prompt=str(path)).read_prompt()
    with pytest.raises(BadInput, match="failure"):
        GVLConfig(prompt=str(path), context="text").read_prompt()


def test_a_prompt_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"{task} \xe9")
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "latin", "a\0b", "~nobody-of-that-name/x"):
        with pytest.raises(StoreError):
            GVLConfig(prompt=str(path)).read_prompt()


@given(st.text("{}ab", max_size=12), st.text("{}ab", max_size=6))
def test_filling_is_one_pass(text: str, value: str) -> None:
    pieces = text.split("{a}")
    assert fill_placeholders(text, {"a": value}) == value.join(pieces)


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
