"""The strict loader of configuration: types, nesting, unknown and doubled keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from demerit.config import build_config, change_config, parse_changes, parse_yaml, read_yaml
from demerit.errors import BadInput, UnknownName


@dataclass(frozen=True)
class Inner:
    path: str
    cap: int | None = None


@dataclass(frozen=True)
class Outer:
    name: str
    rate: float = 0.1
    fast: bool = False
    mode: Literal["slow", "quick"] = "slow"
    inner: Inner | None = None
    several: tuple[Inner, ...] = ()
    grades: tuple[int, ...] = (1,)
    shares: Mapping[str, float] = field(default_factory=dict)


def test_nested_values_get_the_types_of_their_fields(tmp_path: Path) -> None:
    text = "name: x\nrate: 6e-4\ninner: {path: a}\nseveral: [{path: b, cap: 3}]\ngrades: [2, 3]\nshares: {a: 1}\n"
    (tmp_path / "config.yaml").write_text(text)
    found = build_config(Outer, read_yaml(tmp_path / "config.yaml"))
    rest: dict[str, Any] = {"several": (Inner("b", 3),), "grades": (2, 3), "shares": {"a": 1.0}}
    assert found == Outer("x", 6e-4, inner=Inner("a"), **rest)
    assert change_config(found, parse_changes(["rate=1", "inner=null", "mode=quick"])) == Outer(
        "x", 1.0, mode="quick", **rest
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("rate: 1", "recipe"),
        ("name: 3", "recipe, name"),
        ("name: x\nfast: 1", "recipe, fast"),
        ("name: x\nrate: true", "recipe, rate"),
        ("name: x\ngrades: [a]", "recipe, grades 1"),
        ("name: x\nseveral: [{path: a, cap: true}]", "recipe, several 1, cap"),
        ("name: x\nseveral: [{}]", "recipe, several 1"),
        ("name: x\ninner: 3", "recipe, inner"),
        ("name: x\nshares: {a: b}", "recipe, shares, a"),
        ("name: x\nname: y", "recipe"),
        ("1: x", "recipe"),
        ("- a", "recipe"),
        ("name: [", "recipe"),
    ],
)
def test_a_wrong_value_is_named_by_its_place(text: str, what: str) -> None:
    with pytest.raises(BadInput) as error:
        build_config(Outer, parse_yaml(text))
    assert error.value.what == what


@pytest.mark.parametrize(
    ("wrong", "right"), [({"severl": []}, "several"), ({"inner": {"pat": ""}}, "path"), ({"mode": "quik"}, "quick")]
)
def test_unknown_keys_get_a_suggestion(wrong: dict[str, Any], right: str) -> None:
    with pytest.raises(UnknownName, match=f"'{right}'"):
        build_config(Outer, {"name": "x", **wrong})


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xff")
    for name in ("none.yaml", "bytes.yaml"):
        with pytest.raises(BadInput, match=name):
            read_yaml(tmp_path / name)
