"""Reading answers: by number, entry by entry, nothing filled in."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from demerit.llm import ChatResponse, Usage
from demerit.llm.reading import read as chat_read
from demerit.models.gvl.answer import FrameAnswers, align, percentage, read, scan


def said(text: str, finish: str = "stop") -> ChatResponse:
    parsed, why_not = chat_read(text, finish, "", FrameAnswers)
    return ChatResponse(text, parsed, why_not, Usage(), None)


ENTRY = st.tuples(
    st.one_of(st.integers(-2, 9), st.integers(1, 6).map(str), st.none(), st.text(max_size=3)),
    st.one_of(st.integers(-20, 130), st.floats(), st.integers(0, 100).map("{}%".format), st.none(), st.booleans()),
)


@given(st.lists(ENTRY, max_size=12), st.integers(1, 6))
def test_every_picture_has_a_value_from_its_own_entry_or_a_reason(listed: list[tuple[Any, Any]], count: int) -> None:
    reading = align(listed, count)
    assert len(reading.value) == count
    for number in range(1, count + 1):
        value = reading.value[number - 1]
        assert math.isnan(value) == (number in reading.why)
        if not math.isnan(value):
            mine = [percent for name, percent in listed if name == number or name == str(number)]
            assert len(mine) == 1 and percentage(mine[0]) == pytest.approx(100 * value)
    assert all(reading.why.values())
    assert reading.complete == (not np.isnan(reading.value).any())


@given(st.permutations(range(1, 8)))
def test_the_order_of_the_entries_does_not_matter(order: list[int]) -> None:
    assert align([(n, 10 * n) for n in order], 7).value == pytest.approx(np.arange(1, 8) / 10)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (45, 45.0),
        (0, 0.0),
        (45.5, 45.5),
        ("45", 45.0),
        (" 45 % ", 45.0),
        ("45/100", 45.0),
        ("45 percent", 45.0),
        ("-3", -3.0),
        ("about 45", None),
        ("", None),
        (True, None),
        (None, None),
        (math.nan, None),
        (math.inf, None),
        ([45], None),
    ],
)
def test_percentages(text: Any, value: float | None) -> None:
    assert percentage(text) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"frames": [{"frame": 1, "description": "a", "percent": 10}, {"frame": 2, "percent": 20}]}',
        '[{"frame_number": 2, "frame_description": "b", "task_reward": 20}, {"frame_number": 1, "task_reward": 10}]',
        'Sure!\n```json\n{"frames": [{"frame": "Frame 1", "percent": "10%"}, {"frame": 2, "percent": 20,},]}\n```',
        '{"frame": 1, "percent": 10}\n{"frame": 2, "percent": 20}',
        "Frame 1: the gripper opens, 10%\nFrame 2: it closes. Task completion: 20%",
        "- **Frame 2** closing [seen] 20 %\n- **Frame 1** opening 10 %",
        '{"result": [{"frame": 1, "percent": 10}, {"frame": 2, "percent": 20}]}',
    ],
)
def test_tolerated_ways_of_writing_it(text: str) -> None:
    reading = read(said(text), 2)
    assert reading.value == pytest.approx([0.1, 0.2]), reading.why


def test_a_line_with_two_percentages_is_not_guessed_at() -> None:
    reading = read(said("Frame 1: 10% or maybe 30%\nFrame 2: 20%"), 2)
    assert math.isnan(reading.value[0]) and reading.value[1] == pytest.approx(0.2)
    assert "no percentage can be read" in reading.why[1]


def test_counting_from_zero_is_not_shifted() -> None:
    reading = align([(n, 10 * n) for n in range(5)], 5)
    assert np.isnan(reading.value).all()
    assert "counts from 0 to 4 where 1 to 5 were shown" in reading.why[1]
    with_anchor = align([(n, 10 * n) for n in range(6)], 5)
    assert with_anchor.value == pytest.approx(np.arange(1, 6) / 10), "the anchor as number 0 does no harm"
    assert with_anchor.ignored == 0


def test_fractions_are_not_taken_for_percentages() -> None:
    reading = align([(1, 0.1), (2, 0.9), (3, 1.0)], 3)
    assert np.isnan(reading.value).all() and "fractions" in reading.why[2]
    assert align([(1, 0), (2, 1), (3, 0)], 3).value == pytest.approx([0, 0.01, 0]), "whole numbers are percentages"
    assert align([(1, 0.5), (2, 40)], 2).value == pytest.approx([0.005, 0.4])


def test_a_cut_off_answer_is_read_as_far_as_it_is_whole() -> None:
    whole = json.dumps({"frames": [{"frame": n, "description": "d", "percent": 10 * n} for n in range(1, 5)]})
    reading = read(said(whole[: whole.index('"frame": 3') + 30], "length"), 4)
    assert reading.value[:2] == pytest.approx([0.1, 0.2])
    assert np.isnan(reading.value[2:]).all()
    assert "cut off" in reading.why[4]


def test_nothing_is_read_from_a_refusal_or_a_failure() -> None:
    for why in ("refused: no", "failed: 6 tries, the last one: timeout", "not asked: the budget is used up"):
        reading = read(ChatResponse("Frame 1: 10%", None, why, Usage(), None), 1)
        assert reading.why == {1: why}


def test_scan_finds_nothing_in_nonsense() -> None:
    assert scan("The frames show a robot. {the progress") == []


def test_the_schema_is_strict_and_the_reading_is_not() -> None:
    schema = FrameAnswers.model_json_schema()
    entry = schema["$defs"]["FrameAnswer"]
    assert entry["required"] == ["frame", "description", "percent"] and entry["additionalProperties"] is False
    assert {name: one["type"] for name, one in entry["properties"].items()} == {
        "frame": "integer",
        "description": "string",
        "percent": "number",
    }
    assert FrameAnswers.model_validate({"frames": [{"frame": 1}]}).frames[0].percent is None
    with pytest.raises(ValidationError, match="no entry names a frame"):
        FrameAnswers.model_validate([1, 2])
