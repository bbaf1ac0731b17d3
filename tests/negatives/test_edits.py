"""Every edit: its label follows its frames, its record replays it, and it gives a reason when it does not apply."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.data.episode import Edit, Episode, Event, Origin, Outcome
from demerit.data.frames import frame_source
from demerit.data.store import Store
from demerit.data.taxonomy import kind
from demerit.errors import BadEpisode, NotApplicable, UnknownName
from demerit.evaluate.metrics.grades import grade_by_range
from demerit.negatives import NEGATIVES, apply_edit, load_negative
from demerit.negatives.edits import select_frames
from demerit.negatives.mix import Pool
from demerit.negatives.negative import VARIANTS, grade_of, targets_of

SUCCESS = Outcome("human", success=True)
VIEWS = ("clip", "rewind", "reverse", "undo", "freeze", "slow", "stall", "jump")
SCENE = Origin(dataset="d", split="train", group="kitchen")


def coded(frames: int, id: str = "one", instruction: str = "put the cup on the shelf", *outcomes: Outcome) -> Episode:
    """An episode whose images encode their frame numbers."""
    images = np.zeros((frames, 1, 1, 3), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = np.arange(frames) % 256, np.arange(frames) // 256
    return replace(Episode.from_array(images, instruction, id), outcomes=outcomes or (SUCCESS,), origin=SCENE)


def numbers(episode: Episode) -> np.ndarray:
    images = episode.main.all().astype(int)
    return images[:, 0, 0, 0] + 256 * images[:, 0, 0, 1]


def pool() -> Pool:
    others = [coded(9, "partner"), coded(9, "far", "wipe the table"), coded(9, "near", "put the cup in the sink")]
    return Pool.of(others, keep_partners=True)


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    """Successes of any length; half of them with a measured curve that ends at its maximum."""
    frames = draw(st.integers(1, 70))
    if draw(st.booleans()):
        return coded(frames)
    values = draw(st.lists(st.floats(0, 0.875, width=32) | st.just(float("nan")), min_size=frames, max_size=frames))
    values[-1] = draw(st.sampled_from([0.9375, 1.0]))
    events = (Event("hesitation", 0, draw(st.integers(0, frames - 1))),)
    return coded(frames, "one", "put it there", Outcome("simulator", success=True, curve=values, events=events))


@settings(max_examples=50)
@given(episodes(), st.sampled_from(VIEWS), st.integers(0, 2**32), st.sampled_from([None, 1, 2, 3, 4]))
def test_labels_follow_the_frames(original: Episode, name: str, seed: int, grade: int | None) -> None:
    aims = {"grade": grade} if grade and len(load_negative(name).grades) > 1 else {}
    try:
        made = load_negative(name).make_with_seed(original, seed, **aims)
    except NotApplicable as no:
        assert no.reason
        return
    outcome = made.outcomes[0]
    source = targets_of(original).curve
    seen = numbers(made)
    assert np.array_equal(outcome.curve, source[seen], equal_nan=True)
    assert outcome.progress == source[seen[-1]]
    assert outcome.success == (source[seen[-1]] >= source[-1])
    assert outcome.grade == (5 if outcome.success else grade_of(float(source[seen[-1]])))
    assert outcome.success == (name in ("slow", "stall", "jump"))
    assert not aims or outcome.grade == grade
    assert (outcome.source, outcome.by, made.outcomes) == ("edit", name, (outcome,))
    assert (made.origin.parent, made.origin.group, made.origin.split) == ("one", "kitchen", "train")
    for event in outcome.events:
        assert event.last < len(made)
    assert made.main.source is original.main.source  # a view: nothing was copied
    assert len(made.signals) == 0


@settings(max_examples=50)
@given(episodes(), st.sampled_from(sorted(NEGATIVES)), st.integers(0, 2**32))
def test_recorded_edits_replay(original: Episode, name: str, seed: int) -> None:
    original = replace(original, instruction="put the cup on the shelf")
    try:
        made = load_negative(name).make_with_seed(original, seed, pool=pool())
    except NotApplicable:
        return
    edit = made.edits[-1]
    stored = Edit(edit.name, json.loads(json.dumps(dict(edit.params))), edit.seed)  # as a store gives it back
    again = apply_edit(original, stored, pool=pool())
    assert (again.id, again.instruction, again.edits) == (made.id, made.instruction, made.edits)
    assert again.outcomes == made.outcomes
    assert np.array_equal(numbers(again), numbers(made))
    assert again.origin == made.origin
    elsewhere = apply_edit(original, replace(stored, seed=1), pool=pool())
    assert elsewhere.id == made.id  # everything is in the parameters; the seed is a record


def test_frames_of_each_edit() -> None:
    rng = np.random.default_rng(0)
    original = coded(5)
    expected = {
        ("reverse", ()): [4, 3, 2, 1, 0],
        ("undo", ()): [0, 1, 2, 3, 4, 3, 2, 1, 0],
        ("clip", (("last", 2),)): [0, 1, 2],
        ("rewind", (("turn", 3), ("last", 1))): [0, 1, 2, 3, 2, 1],
        ("freeze", (("at", 1),)): [0, 1, 1, 1, 1],
        ("slow", (("factor", 2.0),)): [0, 0, 1, 1, 2, 2, 3, 3, 4, 4],
        ("stall", (("at", 2), ("frames", 3))): [0, 1, 2, 2, 2, 2, 3, 4],
        ("jump", (("before", 1), ("after", 4))): [0, 1, 4],
    }
    for (name, params), frames in expected.items():
        made = load_negative(name)(original, rng, **dict(params))
        assert numbers(made).tolist() == frames, name
        for event in made.outcomes[0].events:
            low, high = kind(event.kind).grades
            assert low <= (made.outcomes[0].grade or 0) <= high


def test_requested_grades() -> None:
    original = coded(33)
    last = {
        g: load_negative("clip").make_with_seed(original, 1, grade=g).edits[-1].params["last"] for g in (1, 2, 3, 4)
    }
    assert last[1] < 4 <= last[2] < 12 <= last[3] < 20 <= last[4] < 28  # 1 + 4p rounded: eighths of 32
    with pytest.raises(NotApplicable, match="the cut"):
        load_negative("clip").make_with_seed(original, 1, last=30)  # a demonstration may be done by then
    measured = coded(4, "m", "do it", Outcome("simulator", success=True, curve=[0, 0.5, 0.95, 1.0]))
    assert load_negative("clip").make_with_seed(measured, 1, grade=4).edits[-1].params == {"last": 2}
    done_early = coded(4, "m", "do it", Outcome("simulator", success=True, curve=[0, 0.5, 1.0, 1.0]))
    with pytest.raises(NotApplicable, match="grade 4"):
        load_negative("clip").make_with_seed(done_early, 1, grade=4)


UNUSABLE = [
    ((Outcome("rule"),), "no trusted source"),
    ((Outcome("model", success=True),), "no trusted source"),
    ((Outcome("edit", success=True),), "no trusted source"),
    ((Outcome("human", success=False), Outcome("rule", success=True)), "did not succeed"),
]


@pytest.mark.parametrize("name", sorted({*NEGATIVES} - {*VARIANTS}))
def test_only_trusted_successes_that_are_long_enough(name: str) -> None:
    for outcomes, reason in UNUSABLE:
        with pytest.raises(NotApplicable, match=reason):
            load_negative(name).make_with_seed(coded(9, "one", "put the cup on the shelf", *outcomes), 0, pool=pool())
    if name != "wrong-instruction":
        with pytest.raises(NotApplicable, match="fewer than"):
            load_negative(name).make_with_seed(coded(1), 0, pool=pool())


def test_cameras_groups_and_curves() -> None:
    one, two = coded(5), coded(6)
    with pytest.raises(NotApplicable, match="cameras"):
        load_negative("clip").make_with_seed(replace(one, views={"a": one.main, "b": two.main}), 0)
    same = replace(one, views={"a": one.main, "b": one.main})
    assert {len(frames) for frames in load_negative("clip").make_with_seed(same, 0, last=2).views.values()} == {3}
    alone = replace(coded(9), origin=Origin())
    assert load_negative("undo").make_with_seed(alone, 0).origin.group == "one"  # the original is the group
    guess = Outcome("model", curve=np.full(5, 0.5))  # a model's curve is not a target
    assert targets_of(coded(5, "one", "go", SUCCESS, guess)).curve.tolist() == [0, 0.25, 0.5, 0.75, 1]


def test_unknown_names_and_registered_functions() -> None:
    with pytest.raises(UnknownName, match="rewind"):
        load_negative("rewnd")
    with pytest.raises(BadEpisode, match="clip"):
        apply_edit(coded(5), Edit("clip", {"first": 1}))

    def blink(episode: Episode, rng: np.random.Generator) -> Episode:
        return select_frames(episode, "blink", {"at": int(rng.integers(3))}, np.arange(2), targets_of(episode))

    NEGATIVES.add("blink", blink)
    try:
        assert load_negative("blink").make_with_seed(coded(9), 3).edits[0].seed == 3
    finally:
        NEGATIVES._added.clear()


# instructions


def test_wrong_instructions_are_similar_and_of_the_same_split() -> None:
    others = [
        coded(3, "a", "Put the cup in the sink"),
        coded(3, "b", "Wipe the table"),
        replace(coded(3, "c", "Open the drawer"), origin=replace(SCENE, group="office")),
        coded(3, "d", "Place the cup on a shelf!"),
        replace(coded(3, "e", "Throw the cup away"), origin=replace(SCENE, split="test")),
    ]
    drawn = [
        load_negative("wrong-instruction").make_with_seed(coded(4), seed, pool=Pool.of(others)) for seed in range(200)
    ]
    instructions = [made.instruction for made in drawn]
    assert set(instructions) == {"Put the cup in the sink", "Wipe the table", "Open the drawer"}
    assert instructions.count("Put the cup in the sink") > 140
    nearness = {made.instruction: made.edits[0].params["near"] for made in drawn}
    assert nearness["Put the cup in the sink"] == "same scene and objects"
    assert nearness["Open the drawer"] == "another task"
    outcome = drawn[0].outcomes[0]
    assert (outcome.success, outcome.progress, outcome.grade) == (False, 0.0, 1)
    assert outcome.curve is not None and outcome.curve.tolist() == [0, 0, 0, 0]
    assert numbers(drawn[0]).tolist() == [0, 1, 2, 3]


def test_another_wording_of_the_same_task_is_no_wrong_instruction() -> None:
    named = replace(SCENE, tags={"task": "assembly"})
    others = [
        replace(coded(3, "a", "put the nut on the peg"), origin=named),
        replace(coded(3, "b", "Open the drawer"), origin=replace(SCENE, tags={"task": "drawer-open"})),
    ]
    wrench = replace(coded(4, "c", "fit the ring of the wrench over the upright peg"), origin=named)
    made = [load_negative("wrong-instruction").make_with_seed(wrench, seed, pool=Pool.of(others)) for seed in range(50)]
    assert {one.instruction for one in made} == {"Open the drawer"}


def test_no_other_instruction() -> None:
    same = Pool.of([coded(3, "a"), coded(3, "b", "Put the cup on the shelf.")])
    for instruction, options, reason in [
        ("put the cup on the shelf", {"pool": same}, "no other task"),
        ("put the cup on the shelf", {"words": "place the mug on the shelf"}, "same task"),
        (" ", {"pool": pool()}, "no instruction"),
    ]:
        with pytest.raises(NotApplicable, match=reason):
            load_negative("wrong-instruction").make_with_seed(coded(4, "one", instruction), 0, **options)


# splices


def test_a_splice_follows_both_attempts() -> None:
    failed = Outcome("human", success=False, progress=0.25, curve=np.linspace(0, 0.25, 8))
    partner = coded(8, "failed", "Put the cup on the shelf", failed)
    made = load_negative("splice").make_with_seed(coded(8), 0, pool=Pool.of([partner], keep_partners=True), before=3)
    outcome = made.outcomes[0]
    assert numbers(made).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert outcome.curve is not None
    assert np.allclose(outcome.curve, [*np.arange(4) / 7, *np.linspace(0, 0.25, 8)[4:]])
    assert (outcome.success, outcome.progress, outcome.grade) == (False, 0.25, 2)
    times = made.main.times()
    assert np.allclose(np.diff(times), 0.1)

    unmeasured = coded(8, "unmeasured", "put the cup on the shelf", Outcome("human", success=False))
    made = load_negative("splice").make_with_seed(coded(8), 0, pool=Pool.of([unmeasured], keep_partners=True))
    assert made.outcomes[0].curve is not None and np.isnan(made.outcomes[0].curve[-1])
    assert (made.outcomes[0].progress, made.outcomes[0].grade) == (None, None)  # nothing is invented


def test_a_splice_needs_an_attempt_of_its_split_and_size() -> None:
    other = replace(coded(8, "b"), origin=replace(SCENE, split="test"))
    undecided = [replace(coded(8, name), origin=Origin(group=name)) for name in "ab"]
    large = replace(coded(8, "b"), views={"main": Episode.from_array(np.zeros((8, 2, 2, 3), np.uint8)).main})
    for original, others, reason in [
        (coded(8), [other, coded(8)], "no other attempt"),
        (undecided[0], undecided, "no other attempt"),
        (coded(8), [large], "different sizes"),
    ]:
        with pytest.raises(NotApplicable, match=reason):
            load_negative("splice").make_with_seed(original, 0, pool=Pool.of(others, keep_partners=True))


def test_a_splice_in_a_store(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    one, two = (
        replace(make_episode(name, 10, seed), instruction="go", outcomes=(SUCCESS,), origin=SCENE)
        for seed, name in enumerate(("one", "two"))
    )
    made = load_negative("splice").make_with_seed(one, 0, pool=Pool.of([two], keep_partners=True), before=4)
    assert np.array_equal(made.main.take([4, 5]), np.concatenate([one.main.take([4]), two.main.take([5])]))
    source = made.main.source
    with Store.create(tmp_path / "set", "set").writer() as writer:
        writer.add(made)
    back = Store(tmp_path / "set").episode(made.id)
    assert back.main.source == source
    assert back.fingerprint() == made.fingerprint()
    assert np.array_equal(back.main.all(), made.main.all())
    moved = frame_source("splice", {**source.describe(), "path": str(tmp_path / "other" / "one.mp4")})
    assert moved.describe()["rest"] == source.describe()["rest"]  # named relative to the first


@given(st.floats(0, 1, width=32))
def test_grades_are_those_of_the_metrics_until_done(progress: float) -> None:
    assert grade_of(progress) == min(grade_by_range([progress], 0, 1)[0], 4)
    ends = targets_of(coded(3, "one", "go", Outcome("human", success=True, curve=[0, progress, 1.0]))).ends(first=1)
    assert len(ends) == (progress < 1)
