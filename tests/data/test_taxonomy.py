"""The failure taxonomy: complete, extensible, and its page up to date."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from demerit.data import taxonomy
from demerit.data.taxonomy import FailureKind, kind, load_kinds, register_kind
from demerit.errors import BadInput, UnknownName
from fakes import drawn_sample as sample
from fakes.paths import REPO
from taxonomy_page import taxonomy_page

OWN = """
[[kind]]
name = "left the lid off"
definition = "The jar is open at the end."
"""


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    before = dict(taxonomy._added)
    yield
    taxonomy._added.clear()
    taxonomy._added.update(before)


def test_known_and_unknown_kinds() -> None:
    named = (
        "wrong object,wrong place,missed grasp,dropped,not released,hovering,incomplete,overshoot,undone,collision,"
        "excessive force,spill,shortcut,forbidden contact,hesitation"
    )
    drawn = [behaviour.event for behaviour in sample.BEHAVIOURS.values() if behaviour.event]
    assert all(kind(name) for name in (*named.split(","), *drawn))
    with pytest.raises(UnknownName, match="dropped"):
        kind("droped")


def test_adding_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = FailureKind("left the lid off", "The jar is open at the end.")
    assert register_kind(mine) is mine
    register_kind(mine)
    assert kind("left the lid off") is mine
    with pytest.raises(BadInput, match="dropped"):
        register_kind(FailureKind("dropped", "Something else."))
    taxonomy._added.clear()
    (tmp_path / "own.toml").write_text(OWN)
    monkeypatch.setenv("DEMERIT_TAXONOMY", str(tmp_path / "own.toml"))
    assert kind("left the lid off").grades == (1, 5)
    assert kind("dropped")
    assert "left the lid off" not in taxonomy_page()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("nonsense", "TOML"),
        ("a = 1", "at least one"),
        ("[[kind]]\nname = 'x'", "definition"),
        ("[[kind]]\nname = 'X'\ndefinition = 'y'", "lower case"),
        ("[[kind]]\nname = 'x'\ndefinition = ''", "definition"),
        ("[[kind]]\nname = 'x'\ndefinition = 'y'\ngrades = [4, 2]", "1 to 5"),
        ("[[kind]]\nname = 'x'\ndefinition = 'y'\ngrades = [4]", "two whole numbers"),
        ("[[kind]]\nname = 'x'\ndefinition = 'y'\ngrade = 1", "grades"),
        (OWN + OWN, "twice"),
        (None, "No such file"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str | None, word: str) -> None:
    if text is not None:
        (tmp_path / "own.toml").write_text(text)
    with pytest.raises((BadInput, UnknownName), match=word):
        load_kinds(tmp_path / "own.toml")


def test_the_page_is_up_to_date() -> None:
    page = REPO / "docs" / "taxonomy.md"
    assert page.read_text("utf-8") == taxonomy_page(), "python tools/taxonomy_page.py > docs/taxonomy.md"
