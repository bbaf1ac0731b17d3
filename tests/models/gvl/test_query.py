"""Reading answers: by number, entry by entry, nothing filled in."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.llm import ChatResponse
from demerit.models.gvl.model import FrameAnswers, align, read_percent, read_ratings

ENTRY = st.tuples(
    st.one_of(st.integers(-2, 9), st.integers(1, 6).map(str), st.none(), st.text(max_size=3)),
    st.one_of(st.integers(-20, 130), st.floats(), st.integers(0, 100).map("{}%".format), st.none(), st.booleans()),
)


@given(st.lists(ENTRY, max_size=12), st.integers(1, 6))
def test_every_frame_has_a_value_from_its_own_entry_or_a_reason(listed: list[tuple[Any, Any]], count: int) -> None:
    reading = align(listed, count)
    assert len(reading.value) == count
    for number in range(1, count + 1):
        value = reading.value[number - 1]
        assert math.isnan(value) == (number in reading.why)
        if not math.isnan(value):
            mine = [percent for name, percent in listed if name == number or name == str(number)]
            assert len(mine) == 1 and read_percent(mine[0]) == pytest.approx(100 * value)
    assert all(reading.why.values())
    assert (not reading.why) == (not np.isnan(reading.value).any())


@given(st.permutations(range(1, 8)))
def test_the_order_of_the_entries_does_not_matter(order: list[int]) -> None:
    assert align([(n, 10 * n) for n in order], 7).value == pytest.approx(np.arange(1, 8) / 10)


@pytest.mark.parametrize("value", [45, 0, 45.5, "45", " 45 % ", "-3"])
def test_percentages(value: Any) -> None:
    assert read_percent(value) == float(str(value).strip(" %"))


@pytest.mark.parametrize("value", ["about 45", "", True, None, math.nan, math.inf, [45]])
def test_values_that_are_not_percentages(value: Any) -> None:
    assert read_percent(value) is None


def test_counting_from_zero_is_not_shifted() -> None:
    reading = align([(n, 10 * n) for n in range(5)], 5)
    assert np.isnan(reading.value).all()
    assert "counts from 0" in reading.why[1]
    with_anchor = align([(n, 10 * n) for n in range(6)], 5)
    assert with_anchor.value == pytest.approx(np.arange(1, 6) / 10), "the anchor as number 0 does no harm"
    assert with_anchor.ignored == 0


def test_fractions_are_not_taken_for_percentages() -> None:
    reading = align([(1, 0.1), (2, 0.9), (3, 1.0)], 3)
    assert np.isnan(reading.value).all() and "fractions" in reading.why[2]
    assert align([(1, 0), (2, 1), (3, 0)], 3).value == pytest.approx([0, 0.01, 0]), "whole numbers are percentages"
    assert align([(1, 0.5), (2, 40)], 2).value == pytest.approx([0.005, 0.4])


def test_an_answer_that_cannot_be_used_leaves_its_reason() -> None:
    ratings = read_ratings(ChatResponse("Frame 1: 10%", None, "refused: no"), 2)
    assert ratings.why == {1: "refused: no", 2: "refused: no"} and np.isnan(ratings.value).all()


def test_the_schema_is_strict_and_the_reading_is_not() -> None:
    """The schema is part of the prompt and of every cache key: it must not change."""
    schema = FrameAnswers.model_json_schema()
    entry = schema["$defs"]["FrameAnswer"]
    assert schema["description"] == "The whole answer." and entry["description"].startswith("One picture's entry. The")
    assert entry["required"] == ["frame", "description", "percent"] and entry["additionalProperties"] is False
    kinds = {name: one["type"] for name, one in entry["properties"].items()}
    assert kinds == {"frame": "integer", "description": "string", "percent": "number"}
    assert FrameAnswers.model_validate({"frames": [{"frame": 1}]}).frames[0].percent is None
