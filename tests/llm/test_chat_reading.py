"""The tolerant reader: what models write instead of JSON is read, and what they did not write is not made up."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from demerit.llm import lenient
from demerit.llm.reading import read


class Frame(BaseModel):
    frame: int
    progress: float


class Frames(BaseModel):
    frames: list[Frame]


class Share(BaseModel):
    share: Annotated[float, Field(ge=0, le=1)]
    percent: float | None = None


def frames(text: str, finish: str = "stop") -> list[tuple[int, float]] | str:
    parsed, why_not = read(text, finish, "", Frames)
    assert (parsed is None) == bool(why_not)
    return [(each.frame, each.progress) for each in parsed.frames] if isinstance(parsed, Frames) else why_not


TWO = [(1, 45.0), (2, 80.0)]
STRICT = '{"frames": [{"frame": 1, "progress": 45}, {"frame": 2, "progress": 80}]}'


@pytest.mark.parametrize(
    "text",
    [
        STRICT,
        f"```json\n{STRICT}\n```",
        f"```\n{STRICT}```",
        f"Here is what I see: [frame 1] the robot {{moves}}.\n\n{STRICT}\n\nI hope that helps {{really}}!",
        "{'frames': [{'frame': 1, 'progress': 45}, {'frame': 2, 'progress': 80},],}",
        "{frames: [{frame: 1, progress: 45.0}, {frame: 2, progress: +80}]} // done",
        '{"frames": [{"frame": "1", "progress": "45%"}, {"frame": 2, "progress": "80 percent"}]}',
        '{"frames": [{"frame": 1, "progress": 45%}, {"frame": 2, "progress": 80 %}]}',
        '[{"frame": 1, "progress": 45}, {"frame": 2, "progress": 80}]',
        f'{{"answer": {STRICT}}}',
        f"<think>maybe {STRICT.replace('80', '7')}</think>{STRICT}",
        f"A first guess: {STRICT.replace('80', '70')}. No, it is rather: {STRICT}",
        "\ufeff{“frames”: [{“frame”: 1, “progress”: 45}, {“frame”: 2, “progress”: 80}]}",
        '{"frames": [ # two\n {"frame": 1, /* half */ "progress": 45}, {"frame": 2, "progress": 8e1}]}',
    ],
)
def test_what_models_write_is_read(text: str) -> None:
    assert frames(text) == TWO


@pytest.mark.parametrize(
    ("text", "finish", "why_not"),
    [
        ("", "stop", "unreadable: the answer is empty"),
        ("The robot is halfway.", "stop", "unreadable: no JSON in 'The robot is halfway.'"),
        ("I'm sorry, but I can't help with that.", "stop", "refused: \"I'm sorry, but I can't help with that.\""),
        (STRICT[:40], "length", "cut off: the answer reached max_tokens before its JSON was complete"),
        ('{"frames": [{"frame": 1}]}', "stop", "unreadable: frames.0.progress: field required in"),
        ('{"frames": [{"frame": 1, "progress": null}]}', "stop", "unreadable: frames.0.progress: input should be"),
        (
            '{"frames": [{"frame": 1, "progress": 3, "progress": 9}]}',
            "stop",
            "unreadable: the key 'progress' is written",
        ),
        (STRICT[:-2], "stop", "unreadable: it is cut off in"),
        ("[" * 5000, "stop", "unreadable: it is nested more than 100 deep"),
    ],
)
def test_what_cannot_be_read_says_why(text: str, finish: str, why_not: str) -> None:
    assert str(frames(text, finish)).startswith(why_not)


def test_a_whole_answer_at_the_limit_counts() -> None:
    assert frames(STRICT, "length") == TWO


def test_refusals_and_free_text() -> None:
    assert read("", "stop", "No.", Frames) == (None, "refused: 'No.'")
    assert read(STRICT, "content_filter", "", Frames)[1].startswith("refused: ")
    assert read("hello", "stop", "", None) == (None, "")
    assert read("hel", "length", "", None)[1].startswith("cut off")
    assert read(" ", "stop", "", None)[1].startswith("unreadable")


def test_a_percentage_is_what_the_schema_means_by_it() -> None:
    assert read('{"share": "45%", "percent": "45%"}', "stop", "", Share)[0] == Share(share=0.45, percent=45)


def test_nan_stays_nan_and_is_never_a_number() -> None:
    for word in ("NaN", "nan"):
        parsed, _ = read(f'{{"frames": [{{"frame": 1, "progress": {word}}}]}}', "stop", "", Frames)
        assert isinstance(parsed, Frames) and math.isnan(parsed.frames[0].progress)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values)
@settings(max_examples=200)
def test_strict_json_reads_the_same_leniently(value: Any) -> None:
    assert lenient.loads(json.dumps(value)) == value
    assert lenient.loads(json.dumps(value, ensure_ascii=False, indent=1)) == value


@given(st.text(alphabet="{}[]\"'\\:,1%.-eNaN tru/#*`\n“", max_size=60))
@settings(max_examples=500)
def test_nothing_makes_the_reader_fall_over(text: str) -> None:
    for schema in (Frames, Share):
        parsed, why_not = read(text, "stop", "", schema)
        assert (parsed is None) == bool(why_not)
