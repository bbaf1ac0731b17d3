"""The rules on commands and plans, the frames that a prompt shows, and the prompt files."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.data.frames import Frames
from demerit.negatives.relabel.prompts import (
    FOLDER,
    VERSIONS,
    FailureIdea,
    FailurePlan,
    choose_frames,
    fill_prompt,
    prompt_version,
    read_prompt,
)
from demerit.negatives.relabel.rules import check_closeness, check_command, check_plan, is_imperative, is_paraphrase

TASK = "put the cup on the shelf"


@pytest.mark.parametrize(
    ("command", "grade", "reason"),
    [
        ("Put the cup on the shelf and turn its handle to the left", 4, ""),
        ("Put the cup on the shelf " + "now " * 20, 4, "it has 26 words"),
        ("Put the caf\u00e9 cup into the sink", 2, "plain ASCII"),
        ('"Put the cup into the sink"', 2, "quotation"),
        ("The cup goes into the sink", 2, "'The'"),
        ("Carefully put the cup into the sink", 2, "does not begin with a verb"),
        ("Put the cup into the sink for a score of 2", 2, "'a score'"),
        ("Put the cup into the sink and release it", 2, "gripper"),
        ("Release the lamp", 1, ""),
        ("Put the spoon into the sink", 3, "not about an object"),
        ("Put the spoon into the sink", 2, ""),
        ("Put the cup on the shelf", 4, "it is the original"),
        ("Place the cup on the shelf.", 4, "the original entails it"),
        ("Put the cup on the shelf near the lamp, grade: 4", 4, "more than one sentence"),
        ("Put the cup on the shelf near the lamp - rated 4/5", 4, "it mentions 'rated'"),
        ("Put the cup on the lamp, 4/5", 4, "it mentions '4/5'"),
        ("Score the cup 3 out of five", 3, "it mentions 'out of five'"),
        ("Put the cup on the lamp. The robot stops.", 4, "more than one sentence"),
        ("Put the credit card on the cup", 4, ""),
        ("Score the dough beside the cup", 3, ""),
        ("Put the cup on the lamp and open the robot gripper", 4, "'open the robot gripper'"),
        ("Put the cup on the lamp and open your hand", 4, "gripper"),
        ("Open the left hand drawer beside the cup", 4, ""),
        ("Put the cup somewhere on the shelf", 4, "the original entails it"),
        ("Push the cup down", 2, ""),
        ("Put the cup on the shelf or on the lamp", 3, "choice"),
        ("Shut the box", 2, "a paraphrase of the command of grade 1"),
        ("close the box!", 2, "the command of grade 1 again"),
    ],
)
def test_command_rules(command: str, grade: int, reason: str) -> None:
    found = check_command(command, grade, TASK, {1: "Close the box"})
    assert reason in found and bool(found) == bool(reason)


def test_an_easier_part_of_the_original_is_rejected() -> None:
    task = "pick up the cup and put it on the shelf"
    assert "entails" in check_command("Pick up the cup", 3, task, {})
    assert not check_command("Pick up the cup and put it on the stove", 3, task, {})
    assert not check_command("Push the cup down", 3, "push the cup", {}), "down is a direction here"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("close the drawer", "shut the drawer", True),
        ("put the cup on the plate", "place the mug on top of the plate", True),
        ("close the drawer", "open the drawer", False),
        ("put the cup on the plate", "put the cup next to the plate", False),
        ("push the block to the left", "push the block to the right", False),
        ("close the drawer", "close the drawer and raise the arm high above the table", False),
    ],
)
def test_paraphrases(one: str, other: str, same: bool) -> None:
    assert is_paraphrase(one, other) is is_paraphrase(other, one) is same
    assert not is_paraphrase(one, "???")


@settings(max_examples=50)
@given(st.dictionaries(st.integers(1, 4), st.floats(0, 100), max_size=3), st.integers(1, 4), st.floats(0, 100))
def test_closeness_must_grow_strictly_with_the_grade(known: dict[int, float], grade: int, value: float) -> None:
    known.pop(grade, None)
    steps = [closeness for _, closeness in sorted({**known, grade: value}.items())]
    place = sorted([*known, grade]).index(grade)
    below, above = steps[:place], steps[place + 1 :]
    assert (not check_closeness(known, grade, value)) == (max(below, default=-1) < value < min(above, default=101))


def plan(*ideas: tuple[int, str, float]) -> FailurePlan:
    return FailurePlan(thoughts="", ideas=[FailureIdea(grade=g, idea=i, failure="", closeness=c) for g, i, c in ideas])


def test_plan_rules() -> None:
    good = ((1, "a", 0.0), (2, "b", 20.0), (3, "c", 50.0), (4, "d", 80.0))
    assert not check_plan(plan(*good), (1, 2, 3, 4)) and not check_plan(plan(*reversed(good)), (1, 2, 3, 4))
    assert "ideas for the grades [1, 2, 3]" in check_plan(plan(*good[:3]), (1, 2, 3, 4))
    assert "the grades [1, 1, 2, 3, 4]" in check_plan(plan(*good, good[0]), (1, 2, 3, 4))
    assert "the same" in check_plan(plan(*good[:3], (4, "C!", 80.0)), (1, 2, 3, 4))
    assert "empty" in check_plan(plan(*good[:3], (4, " ", 80.0)), (1, 2, 3, 4))
    assert "does not grow" in check_plan(plan(*good[:3], (4, "d", 50.0)), (1, 2, 3, 4))
    assert "below 100" in check_plan(plan(*good[:3], (4, "d", 100.0)), (1, 2, 3, 4))


@settings(max_examples=50)
@given(st.integers(1, 120), st.floats(1, 60), st.floats(0.2, 3), st.integers(2, 40))
def test_frames_are_one_per_second_and_the_last(frames: int, fps: float, wanted: float, most: int) -> None:
    images = np.zeros((frames, 2, 2, 3), np.uint8)
    video = Frames.from_array(images, fps)
    chosen = choose_frames(video, wanted, most)
    assert chosen[0] == 0 and chosen[-1] == frames - 1 and len(chosen) <= most and np.all(np.diff(chosen) > 0)
    if len(chosen) < most:  # nothing was thinned out: look for each tick one by one
        times, expected, tick = video.times(), {frames - 1}, 0.0
        for number in range(10_000):
            tick = number / wanted
            if tick > times[-1] + 1e-9:
                break
            expected.add(next(i for i, time in enumerate(times) if time >= tick - 1e-9))
        assert set(chosen.tolist()) == expected


def test_filled_in_text_is_not_searched_for_blanks() -> None:
    assert '"$task costs 5$"' in fill_prompt("analyse", task="$task costs 5$")
    assert read_prompt("rubric") in fill_prompt("validate", command="x", task="y")


def test_every_prompt_file_has_a_version() -> None:
    files = {path.name for path in FOLDER.iterdir()}  # type: ignore[attr-defined]
    assert files == {f"{name}-{version}.txt" for name, version in VERSIONS.items()}
    assert prompt_version().startswith("relabel-2.") and len(prompt_version()) == len("relabel-2.") + 8
    verbs = read_prompt("verbs").split()
    assert len(set(verbs)) == len(verbs) > 200 and is_imperative("Put it there") and not is_imperative("it")
