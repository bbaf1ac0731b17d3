"""Answers: what is accepted, and which labels they become."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.data.episode import Event, Outcome
from demerit.data.stages import StageSpan
from demerit.data.taxonomy import kinds
from demerit.errors import BadInput, DemeritError
from demerit.people.annotate.labels import (
    Answer,
    outcome_of,
    preference_of,
    read_answer,
    write_answer,
)

SPILL = kinds()[0].name


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("verify", {}),
        ("verify", {"verdict": "yes"}),
        ("verify", {"verdict": "correct"}),
        ("verify", {"verdict": "accept"}),
        ("verify", {"verdict": "reject"}),
        ("verify", {"verdict": "reject", "note": "  "}),
        ("verify", {"verdict": "correct", "grade": 6}),
        ("verify", {"verdict": "correct", "grade": True}),
        ("verify", {"verdict": "correct", "grade": 2.5}),
        ("verify", {"verdict": "correct", "success": 1}),
        ("verify", {"verdict": "correct", "progress": 1.1}),
        ("verify", {"verdict": "correct", "progress": float("nan")}),
        ("verify", {"verdict": "accept", "grade": 2, "kinds": ["no such kind"]}),
        ("verify", {"verdict": "accept", "grade": 2, "kinds": "spill"}),
        ("verify", {"verdict": "accept", "grade": 2, "note": "x" * 2001}),
        ("verify", {"verdict": "accept", "grade": 2, "person": "Eve"}),
        ("compare", {"verdict": "a"}),
        ("mark", {}),
        ("mark", {"points": [[10, 0.5]]}),
        ("mark", {"points": [[-1, 0.5]]}),
        ("mark", {"points": [[1.5, 0.5]]}),
        ("mark", {"points": [[1, None]]}),
        ("mark", {"points": [[1]]}),
        ("mark", {"events": [{"kind": SPILL, "first": 5, "last": 3}]}),
        ("mark", {"events": [{"kind": SPILL, "first": 0, "last": 10}]}),
        ("mark", {"events": [{"kind": "<script>", "first": 0, "last": 1}]}),
        ("mark", {"events": ["spill"]}),
        ("mark", {"stages": [{"name": "reach", "first": 0, "last": 10}]}),
        ("mark", {"stages": [{"name": "", "first": 0, "last": 1}]}),
        ("mark", {"stages": [{"name": "x" * 101, "first": 0, "last": 1}]}),
        ("mark", {"stages": [{"name": "reach", "first": 0, "last": 1, "stop": 1}]}),
        ("mark", {"stages": [{"name": "a", "first": 0, "last": 4}, {"name": "b", "first": 4, "last": 5}]}),
    ],
)
def test_what_is_not_an_answer_is_refused(kind: str, body: dict[str, Any]) -> None:
    with pytest.raises(DemeritError):
        read_answer(kind, body, 10)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1)), max_size=12),
    st.none() | st.booleans(),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted), max_size=3),
)
def test_a_mark_is_read_back_as_it_was_written(
    points: list[tuple[int, float]], success: bool | None, spans: list[list[int]]
) -> None:
    kinds = [SPILL, "unknown", SPILL]  # nobody has to name it
    events = [{"kind": kind, "first": a, "last": b} for kind, (a, b) in zip(kinds, spans, strict=False)]
    body = {"success": success, "points": points, "events": events}
    if success is None and not points and not spans:
        return
    answer = read_answer("mark", body, 10)
    assert read_answer("mark", write_answer(answer), 10) == answer
    assert dict(answer.points) == {frame: pytest.approx(p) for frame, p in points}


def test_an_accepted_label_becomes_the_persons() -> None:
    label = outcome_of("Ada", [Answer("verify", "accept", success=False, grade=2, note="clear")], 10)
    assert label == Outcome("human", success=False, grade=2, note="clear", by="Ada")


def test_a_correction_replaces_every_field_of_what_was_accepted() -> None:
    accepted = Answer("verify", "accept", success=True, grade=5, progress=1.0)
    label = outcome_of("Ada", [accepted, Answer("verify", "correct", success=False, grade=2, kinds=(SPILL,))], 10)
    assert label == Outcome("human", success=False, grade=2, note=SPILL, by="Ada")


def test_a_rejected_episode_gets_no_label_until_it_is_judged_again() -> None:
    rejected = Answer("verify", "reject", note="the camera is covered")
    assert outcome_of("Ada", [rejected], 10) is None
    assert outcome_of("Ada", [rejected, Answer("verify", "correct", grade=1)], 10) == Outcome(
        "human", success=False, grade=1, by="Ada"
    )


def test_marked_moments_become_a_curve_with_unknown_frames() -> None:
    marked = Answer("mark", success=False, points=((2, 0.5), (4, 0.75)), events=(Event(SPILL, 3, 4),))
    label = outcome_of("Ada", [marked], 6)
    assert label is not None and label.curve is not None and label.events == (Event(SPILL, 3, 4),)
    np.testing.assert_array_equal(label.curve, np.float32([np.nan, np.nan, 0.5, np.nan, 0.75, np.nan]))


def test_a_later_mark_replaces_the_earlier_curve_and_events() -> None:
    first = Answer("mark", points=((0, 0.1), (5, 1.0)), events=(Event(SPILL, 0, 1),))
    label = outcome_of("Ada", [first, Answer("mark", points=((5, 0.5),))], 6)
    assert label is not None and label.curve is not None and label.events == ()
    assert np.isnan(label.curve[:5]).all() and label.curve[5] == 0.5


def test_marked_stages_become_a_label_and_a_later_mark_replaces_them() -> None:
    body = {"stages": [{"name": " reach ", "first": 0, "last": 3}, {"name": "lift", "first": 4, "last": 9}]}
    answer = read_answer("mark", body, 10)
    assert read_answer("mark", write_answer(answer), 10) == answer
    label = outcome_of("Ada", [answer], 10)
    assert label == Outcome("human", by="Ada", stages=(StageSpan("reach", 0, 3), StageSpan("lift", 4, 9)))
    later = outcome_of("Ada", [answer, Answer("mark", success=True)], 10)
    assert later is not None and later.stages == ()


@pytest.mark.parametrize(
    ("verdict", "swapped", "better"),
    [("left", False, "x"), ("right", False, "y"), ("left", True, "y"), ("right", True, "x"), ("tie", True, None)],
)
def test_a_choice_counts_for_the_episode_that_was_shown_there(verdict: Any, swapped: bool, better: str | None) -> None:
    choice = preference_of("Ada", Answer("compare", verdict), "x", "y", swapped)
    assert choice is not None and choice.better == better and (choice.source, choice.by) == ("human", "Ada")


def test_who_cannot_tell_states_no_preference() -> None:
    assert preference_of("Ada", Answer("compare", "unknown"), "x", "y", False) is None


def test_an_empty_correction_says_what_is_missing() -> None:
    with pytest.raises(BadInput) as caught:
        Answer("verify", "correct")
    assert "grade" in caught.value.expected


def test_a_grade_alone_says_whether_it_succeeded() -> None:
    for grade in (1, 4, 5):
        made = outcome_of("Ada", [read_answer("verify", {"verdict": "correct", "grade": grade}, 4)], 4)
        assert made is not None and (made.grade, made.success) == (grade, grade == 5)
    with pytest.raises(BadInput, match="grade 5"):
        read_answer("verify", {"verdict": "correct", "success": False, "grade": 5}, 4)
