"""Report files that somebody damaged: refused with a sentence."""

import json
import tracemalloc
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.errors import StoreError
from demerit.evaluate.reports import Report, build_leaderboard
from fakes.command import demerit_here
from fakes.paths import REPO

WHOLE = json.loads((REPO / "tests" / "golden" / "bench" / "report.json").read_text("utf-8"))
NOT_REPORTS = ("", "null", "[]", "[" * 100_000, "{}", '{"format": "demerit-report"}', "\x00")
JUNK: list[Any] = [None, [], {}, "x", -1, 1e300, True]


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the places in a JSON value, two of each list."""
    inside = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    return [at, *(path for key, inner in inside for path in paths(inner, (*at, key)))]


PLACES = [place for place in paths(WHOLE) if place]


@pytest.mark.parametrize("content", NOT_REPORTS, ids=range(len(NOT_REPORTS)))
def test_what_is_not_a_report_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "report.json").write_text(content, "utf-8")
    with pytest.raises(StoreError):
        Report.read(tmp_path / "report.json")


@pytest.mark.parametrize("place", [(name,) for name in WHOLE], ids=lambda place: place[0])
def test_a_field_of_another_type_or_missing_is_refused(tmp_path: Path, place: tuple[str]) -> None:
    shorter = {name: value for name, value in WHOLE.items() if name != place[0]}
    for damaged in ({**WHOLE, place[0]: 3}, {**WHOLE, place[0]: None}, shorter):
        if place == ("choices",) and damaged is shorter:
            continue  # reports of earlier versions have none
        (tmp_path / "report.json").write_text(json.dumps(damaged), "utf-8")
        with pytest.raises(StoreError):
            Report.read(tmp_path / "report.json")


@given(st.sampled_from(PLACES), st.sampled_from(JUNK), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_damaged_report_is_refused_or_shown(
    tmp_path_factory: pytest.TempPathFactory, place: tuple[Any, ...], junk: Any, remove: bool
) -> None:
    damaged = deepcopy(WHOLE)
    node = damaged
    for key in place[:-1]:
        node = node[key]
    if remove:
        del node[place[-1]]
    else:
        node[place[-1]] = junk
    folder = tmp_path_factory.getbasetemp()
    (folder / "report.json").write_text(json.dumps(damaged), "utf-8")
    try:
        report = Report.read(folder / "report.json")
    except StoreError:
        return
    build_leaderboard([report], folder / "site")


@pytest.mark.parametrize("command", [("bench", "--recompute"), ("leaderboard",)], ids=lambda words: words[0])
def test_commands_refuse_a_damaged_report(tmp_path: Path, command: tuple[str, ...]) -> None:
    labels = [{**WHOLE["episodes"][0], "quality": "x"}, *WHOLE["episodes"][1:]]
    for number, damaged in enumerate(({**WHOLE, "episodes": None}, {**WHOLE, "episodes": labels})):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(damaged), "utf-8")
        done = demerit_here(*command, path, cwd=tmp_path)
        assert done.returncode == 1
        assert str(path) in done.stderr
        assert "Traceback" not in done.stderr


def test_a_large_report_is_written_row_by_row(tmp_path: Path) -> None:
    small = Report.read(REPO / "tests" / "golden" / "bench" / "report.json")
    large = replace(small, rewards=small.rewards * 400)
    for report in (small, replace(small, rewards=(), episodes=(), preferences=())):
        report.write(tmp_path / "small.json")
        assert (tmp_path / "small.json").read_text("utf-8") == json.dumps(report.as_dict(), ensure_ascii=False) + "\n"
    tracemalloc.start()
    large.write(tmp_path / "large.json")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (tmp_path / "large.json").stat().st_size / 4
