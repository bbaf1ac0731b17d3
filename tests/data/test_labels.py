"""Label sources: what counts as validated, and what a choice of sources takes."""

import pytest

from demerit.data.episode import (
    NOT_A_MODEL,
    TRAINED_SOURCES,
    Outcome,
    Preference,
    SourceCounts,
    check_sources,
    is_taken,
    name_source,
    select_labels,
)
from demerit.errors import BadInput, UnknownName
from demerit.negatives.relabel.prompts import prompt_version


@pytest.mark.parametrize(
    ("by", "name"),
    [
        (f"qwen-4b, {prompt_version()}", "model:validated"),
        (f"author and reader, {prompt_version()}", "model:validated"),
        ("mine, validated by gpt-5", "model:validated"),
        ("gvl qwen-4b", "model"),
        ("", "model"),
        ("relabel", "model"),
        ("mine, not validated by anybody", "model"),
        ("mine, validated by ", "model"),
    ],
)
def test_what_counts_as_validated(by: str, name: str) -> None:
    assert name_source(Outcome("model", grade=2, by=by)) == name
    assert name_source(Preference("a", "b", "a", "model", by=by)) == name
    assert name_source(Outcome("human", grade=2, by=by)) == "human"


def test_a_choice_of_sources() -> None:
    checked, opinion = Outcome("model", grade=2, by="x, validated by y"), Outcome("model", grade=3, by="x")
    person = Outcome("human", grade=4)
    labels = (person, checked, opinion)
    assert select_labels(labels, NOT_A_MODEL) == (person,)
    assert select_labels(labels, TRAINED_SOURCES) == (person, checked)
    assert select_labels(labels, ("model",)) == (checked, opinion)
    assert not is_taken(person, ("model", "rule"))
    counts = SourceCounts()
    counts.add(labels, TRAINED_SOURCES)
    assert counts.as_dict() == {"taken": {"human": 1, "model:validated": 1}, "dropped": {"model": 1}}
    assert check_sources(["edit", "human", "edit"]) == ("edit", "human")
    with pytest.raises(UnknownName, match="model:validated"):
        check_sources(["model:validate"])
    with pytest.raises(BadInput):
        check_sources([])
