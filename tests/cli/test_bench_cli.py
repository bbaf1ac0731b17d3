"""The bench command, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.command import demerit, error_sentence


def test_bench_and_recompute(sample: Path, tmp_path: Path) -> None:
    quick = ("--workers", "0", "--resamples", "200", "--embed", "1")
    done = demerit("bench", "own", "--data", str(sample), "--model", "clock", "--out", "here", *quick, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "own@1: 15 episodes, 3 tasks" in done.stdout and "here/report.json" in done.stdout
    facts = json.loads((tmp_path / "here" / "report.json").read_text())
    assert [card["name"] for card in facts["cards"]][:2] == ["clock", "constant"]
    assert (tmp_path / "here" / "report.html").is_file()
    assert demerit("bench", "--recompute", "here/report.json", cwd=tmp_path).returncode == 0


def test_recompute_notices_a_changed_number(sample: Path, tmp_path: Path) -> None:
    quick = ("--workers", "0", "--resamples", "50", "--embed", "0", "--no-controls", "--as-recorded", "--limit", "15")
    demerit("bench", "failure-detection", "--data", str(sample), "-m", "random", "--out", "t", *quick, cwd=tmp_path)
    path = tmp_path / "t" / "report.json"
    facts = json.loads(path.read_text())
    facts["lines"][0]["measure"]["value"] = 0.999
    path.write_text(json.dumps(facts))
    again = demerit("bench", "--recompute", str(path), cwd=tmp_path)
    assert again.returncode == 1 and "Not the numbers" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "own@1"),
        (("nothing@1",), "nothing@1"),
        (("rbm-eval",), "--data"),
        (("own", "--data", "nowhere"), "nowhere"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], word: str, tmp_path: Path) -> None:
    assert word in error_sentence(demerit("bench", *arguments, cwd=tmp_path))


def test_benchmarks_are_listed(tmp_path: Path) -> None:
    done = demerit("list", "benchmarks", cwd=tmp_path)
    assert done.returncode == 0 and "own@1" in done.stdout and "roboarena@1" in done.stdout
