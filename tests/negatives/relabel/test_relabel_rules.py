"""What code checks of commands, plans and repairs; the pictures; the splits; the prompts read back."""

from __future__ import annotations

import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.data.frames import Frames
from demerit.errors import BadInput
from demerit.negatives.relabel import RelabelSettings
from demerit.negatives.relabel.answers import Idea, Plan
from demerit.negatives.relabel.looking import each_second
from demerit.negatives.relabel.paraphrase import nearness, paraphrases
from demerit.negatives.relabel.repairs import COME_AND_GO, wrong_repair
from demerit.negatives.relabel.rules import is_imperative, wrong_command, wrong_ladder, wrong_plan
from demerit.negatives.relabel.spelling import is_known, is_same_word, slips
from demerit.negatives.relabel.wording import BLANKS, FOLDER, STAGES, VERSIONS, prompt_version, read_back, text, words

TASK = "put the cup on the shelf"


@pytest.mark.parametrize(
    ("command", "grade", "reason"),
    [
        ("Put the cup on the shelf and turn its handle to the left", 4, ""),
        ("Wipe the table", 1, ""),
        ("Stop", 1, "it has 1 words"),
        ("Put the cup on the shelf " + "now " * 20, 4, "it has 26 words"),
        ("Put the caf\u00e9 cup into the sink", 2, "plain ASCII"),
        ("Put the cup\ninto the sink", 2, "plain ASCII"),
        ('"Put the cup into the sink"', 2, "quotation marks"),
        ("The cup goes into the sink", 2, "does not begin with a verb, but with 'The'"),
        ("Carefully put the cup into the sink", 2, "does not begin with a verb"),
        ("Put the cup into the sink for a score of 2", 2, "'a score'"),
        ("Put the cup into the sink unlike the original task", 2, "'original task'"),
        ("Put the cup into the sink and release it", 2, "gripper's own workings"),
        ("Release the lamp", 1, ""),
        ("Put the spoon into the sink", 3, "not about the thing of the original"),
        ("Put the spoon into the sink", 2, ""),
        ("Put the cup on the shelf", 4, "it is the original"),
        ("Place the cup on the shelf.", 4, "the original entails it"),
        ("Set the mug on top of the rack", 2, ""),
        ("Put the cup on the shelf near the lamp (grade: 4)", 4, "brackets"),
        ("Put the cup on the shelf near the lamp, grade: 4", 4, "more than one sentence"),
        ("Put the cup on the shelf near the lamp, grade 4", 4, "it speaks of 'grade'"),
        ("Put the cup on the shelf near the lamp - rated 4/5", 4, "it speaks of 'rated'"),
        ("Put the cup on the lamp, 4/5", 4, "it speaks of '4/5'"),
        ("Put the cup on the lamp for partial credit", 4, "it speaks of 'credit'"),
        ("Score the cup 3 out of five", 3, "it speaks of 'out of five'"),
        ("Put the cup on the lamp and fail", 4, "it speaks of 'fail'"),
        ("Put the cup on the lamp. The robot stops.", 4, "more than one sentence"),
        ("Put the credit card on the cup", 4, ""),
        ("Score the dough beside the cup", 3, ""),
        ("Put the cup on the lamp and open the robot gripper", 4, "gripper's own workings ('open the robot gripper')"),
        ("Put the cup on the lamp then ungrasp", 4, "gripper's own workings"),
        ("Put the cup on the lamp and let it go", 4, "gripper's own workings"),
        ("Put the cup on the lamp and open your hand", 4, "gripper's own workings"),
        ("Open the left hand drawer beside the cup", 4, ""),
        ("Set the cup down on the shelf", 4, "the original entails it"),
        ("Put the cup somewhere on the shelf", 4, "the original entails it"),
        ("Push the cup down", 2, ""),
        ("Put the cup on the shelf or on the lamp", 3, "it leaves a choice"),
        ("Shut the box", 2, "a paraphrase of the command of grade 1"),
        ("close the box!", 2, "the command of grade 1 again"),
    ],
)
def test_commands(command: str, grade: int, reason: str) -> None:
    found = wrong_command(command, grade, TASK, {1: "Close the box"})
    assert reason in found and bool(found) == bool(reason)


def test_an_easier_part_of_the_original_is_turned_down() -> None:
    task = "pick up the cup and put it on the shelf"
    assert "entails" in wrong_command("Pick up the cup", 3, task, {})
    assert not wrong_command("Pick up the cup and put it on the stove", 3, task, {})
    assert not wrong_command("Push the cup down", 3, "push the cup", {}), "down is a direction here"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("close the drawer", "shut the drawer", True),
        ("put the cup on the plate", "place the mug on top of the plate", True),
        ("wipe the table", "clean the table", True),
        ("close the drawer", "open the drawer", False),
        ("put the cup on the plate", "put the plate on the cup", False),
        ("put the cup on the plate", "put the cup next to the plate", False),
        ("push the block to the left", "push the block to the right", False),
        ("slide the window shut", "slide the window half way shut", False),
        ("close the drawer", "close the drawer and raise the arm high above the table", False),
    ],
)
def test_paraphrases(one: str, other: str, same: bool) -> None:
    assert paraphrases(one, other) is paraphrases(other, one) is same
    assert nearness(one, "???") is None and not paraphrases(one, "???")


@settings(max_examples=200)
@given(st.dictionaries(st.integers(1, 4), st.floats(0, 100), max_size=3), st.integers(1, 4), st.floats(0, 100))
def test_the_ladder_holds_exactly_when_sorting_by_grade_sorts_strictly(
    known: dict[int, float], grade: int, value: float
) -> None:
    known.pop(grade, None)
    steps = [closeness for _, closeness in sorted({**known, grade: value}.items())]
    place = sorted([*known, grade]).index(grade)
    below, above = steps[:place], steps[place + 1 :]
    assert (not wrong_ladder(known, grade, value)) == (max(below, default=-1) < value < min(above, default=101))


def plan(*ideas: tuple[int, str, float]) -> Plan:
    return Plan(thoughts="", ideas=[Idea(grade=g, idea=i, failure="", closeness=c) for g, i, c in ideas])


def test_plans() -> None:
    good = ((1, "a", 0.0), (2, "b", 20.0), (3, "c", 50.0), (4, "d", 80.0))
    assert not wrong_plan(plan(*good), (1, 2, 3, 4)) and not wrong_plan(plan(*reversed(good)), (1, 2, 3, 4))
    assert "ideas for the grades [1, 2, 3]" in wrong_plan(plan(*good[:3]), (1, 2, 3, 4))
    assert "the grades [1, 1, 2, 3, 4]" in wrong_plan(plan(*good, good[0]), (1, 2, 3, 4))
    assert "the same" in wrong_plan(plan(*good[:3], (4, "C!", 80.0)), (1, 2, 3, 4))
    assert "empty" in wrong_plan(plan(*good[:3], (4, " ", 80.0)), (1, 2, 3, 4))
    assert "does not grow" in wrong_plan(plan(*good[:3], (4, "d", 50.0)), (1, 2, 3, 4))
    assert "below 100" in wrong_plan(plan(*good[:3], (4, "d", 100.0)), (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("palce dishes in the dish rack", "Place the dishes in the dish rack", ""),
        ("put cup on teh plate", "Put the cup on the plate", ""),
        ("open drawer", "Open the drawer", ""),
        ("opne the drawer", "Open the drawer", ""),
        ("open the drawer", "Close the drawer", "open was lost"),
        ("push the red block", "Push the block", "red was lost"),
        ("push the block", "Push the block to the left", "left was added"),
        ("pick one cup", "Pick two cups", "one was lost"),
        ("push the block", "Push the block " + "gently " * 9, "12 words for 3"),
        ("take the spoon from the bowl", "Take the fork from the pan", "spoon, bowl were lost"),
        ("push the block", " ", "not one line"),
        ("pik up teh cup", "Pick up the cup", ""),
        ("pickup the botle", "Pick up the bottle", ""),
        ("put cup into dishrack", "Put the cup in the dish rack.", ""),
        ("push the blok lft", "Push the block to the left", ""),
        ("moves two block", "Move two blocks", ""),
        ("closing the door 2 times", "Close the door 2 times", ""),
        ("put the cofee in the caf\u00e9", "Put the coffee in the cafe", ""),
        ("turn the drawer knob 90 degrees", "Turn the draw knob 90 degrees", "drawer was lost"),
        ("turn the knob 90 degrees", "Turn the knob 60 degrees", "the numbers changed (90 became 60)"),
        ("move the cup -2.5 cm", "Move the cup 2.5 cm", "-2.5 became 2.5"),
        ("take cups", "Take 2 cups", "none became 2"),
        ("take ten cups", "Take tens of cups", "ten was lost"),
        ("take tne cups", "Take ten cups", "tne was lost"),
        ("pick up the can", "Pick up the pan", "can was lost"),
        ("put the bowl on table", "Put the ball on the table", "bowl was lost"),
        ("push the button", "Push the bottom", "button was lost"),
        ("open the door", "Open the floor", "door was lost"),
        ("put the mug on the shelf", "Put the jug on the shelf", "mug was lost"),
        ("pick up the carrot", "Pick up the parrot", "carrot was lost"),
        ("lift the botle", "Lift the battle", "botle was lost"),
        ("lift the pot lid", "Lift the pot", "lid was lost"),
        ("move it up", "Move it up slowly", "slowly was added"),
        ("move to the drawer", "Move the drawer", "to was lost"),
        ("put the cup on the plate", "Put the plate on the cup", "another order"),
        ("give the cup to Jon", "Give the cup to Joan", "jon was lost"),
        ("uncap the bottle", "Cap the bottle", "uncap was lost"),
        ("clip the bag", "Unclip the bag", "clip was lost"),
        ("depress the button", "Press the button", "depress was lost"),
        ("unhok the strap", "Unhook the strap", ""),
        ("put the cup away", "Put the cups away", "cup became cups"),
        ("put the cups away", "Put the cup away", "cups became cup"),
        ("take them out", "Take it out", "them became it"),
        ("pick up 3 cup", "Pick up 3 cups", ""),
        ("picks up the cup", "Pick up the cup", ""),
        ("\u628a\u676f\u5b50\u7ed9\u5c0f\u660e", "\u628a\u676f\u5b50\u7ed9\u5c0f\u7ea2", "was lost"),
    ],
)
def test_repairs(before: str, after: str, reason: str) -> None:
    found = wrong_repair(before, after)
    assert reason in found and bool(found) == bool(reason)


THINGS = "cup mug bowl ball can pan pot lid lip door floor button bottom drawer draw red left two seven slowly".split()


@settings(max_examples=150)
@given(st.lists(st.sampled_from(THINGS), min_size=2, max_size=6), st.data())
def test_no_repair_drops_adds_or_exchanges_a_word(things: list[str], data: st.DataObject) -> None:
    told, place = " the ".join(["move", *things]), data.draw(st.integers(0, len(things) - 1))
    other = data.draw(st.sampled_from([word for word in THINGS if word not in things]))
    assert not wrong_repair(told, told.capitalize() + ".") and not wrong_repair(told.replace("the ", ""), told)
    for changed in ([*things[:place], other, *things[place + 1 :]], [*things[:place], *things[place + 1 :]]):
        there = " the ".join(["move", *changed])
        assert wrong_repair(told, there) and wrong_repair(there, told)


@settings(max_examples=200)
@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_slips_are_the_fewest_steps_from_word_to_word(one: str, other: str) -> None:
    def fewest(a: str, b: str) -> int:
        """Compute the same by trying every first step."""
        if not a or not b:
            return len(a) + len(b)
        ways = [fewest(a[1:], b[1:]) + (a[0] != b[0]), 1 + fewest(a[1:], b), 1 + fewest(a, b[1:])]
        if len(a) > 1 and len(b) > 1 and a[:2] == b[1::-1]:
            ways.append(1 + fewest(a[2:], b[2:]))
        return min(ways)

    assert slips(one, other) == slips(other, one) == fewest(one, other)


def test_known_words_and_their_forms() -> None:
    assert all(map(is_known, "cup knives berries grabbed placing opens saucepan dishrack".split()))
    assert not any(map(is_known, "teh pik palce botle cofee".split()))
    assert all(map(is_known, COME_AND_GO))
    same = "grab grabbing, knife knives, berry berries, place placed, box boxes, tape taping"
    for one, other in map(str.split, same.split(",")):
        assert is_same_word(one, other) and is_same_word(other, one)
    for one, other in map(str.split, "tap taping, see seed, cloth clothes, pin ping, bar bare".split(",")):
        assert is_known(one) and is_known(other) and not is_same_word(one, other)


@settings(max_examples=100)
@given(st.integers(1, 120), st.floats(1, 60), st.floats(0.2, 3), st.integers(2, 40))
def test_one_picture_a_second_and_the_last(frames: int, fps: float, wanted: float, most: int) -> None:
    images = np.zeros((frames, 2, 2, 3), np.uint8)
    video = Frames.from_array(images, fps)
    chosen = each_second(video, wanted, most)
    assert chosen[0] == 0 and chosen[-1] == frames - 1 and len(chosen) <= most and np.all(np.diff(chosen) > 0)
    if len(chosen) < most:  # nothing was thinned out: look for each tick one by one
        times, expected, tick = video.times(), {frames - 1}, 0.0
        for number in range(10_000):
            tick = number / wanted
            if tick > times[-1] + 1e-9:
                break
            expected.add(next(i for i, time in enumerate(times) if time >= tick - 1e-9))
        assert set(chosen.tolist()) == expected


LINES = st.text(string.ascii_letters + string.digits + " .,:;?!'$-\u00e9", min_size=0, max_size=60)


@settings(max_examples=60)
@given(st.sampled_from(STAGES), st.data())
def test_what_was_filled_in_is_read_back(stage: str, data: st.DataObject) -> None:
    given_ = {blank: data.draw(LINES) for blank in dict.fromkeys(BLANKS[stage]) if blank != "rubric"}
    found = read_back(stage, words(stage, **given_))
    assert found is not None and {**given_, "rubric": text("rubric")} == {"rubric": text("rubric"), **found}
    assert all(read_back(other, words(stage, **given_)) is None for other in STAGES if other != stage)


def test_every_prompt_file_has_a_version_and_counts() -> None:
    files = {path.name for path in FOLDER.iterdir()}  # type: ignore[attr-defined]
    assert files == {f"{name}-{version}.txt" for name, version in VERSIONS.items()}
    assert prompt_version().startswith("relabel-1.") and len(prompt_version()) == len("relabel-1.") + 8
    verbs = text("verbs").split()
    assert len(set(verbs)) == len(verbs) > 200 and is_imperative("Put it there") and not is_imperative("it")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grades": (0, 1)}, "different grades from 1 to 4"),
        ({"clips": (3, 2)}, "growing"),
        ({"grades": (), "clips": ()}, "at least one of the two"),
        ({"rounds": 0}, "rounds"),
        ({"fps": 0}, "fps"),
        ({"split": "scene"}, "'task' or 'source'"),
        ({"shares": {}}, "a share above 0"),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_settings_refuse_what_cannot_be_made(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        RelabelSettings(**changes)  # type: ignore[arg-type]
