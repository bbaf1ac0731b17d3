"""The bench command, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MAIN = "from demerit.cli import main; main()"


def demerit(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MAIN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_bench_on_a_folder_of_videos_and_again_without_the_models(sample: Path, tmp_path: Path) -> None:
    quick = ("--workers", "0", "--resamples", "200", "--embed", "1")
    done = demerit("bench", "own", "--data", str(sample), "--model", "clock", "--out", "here", *quick, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "own@1: 15 episodes, 3 tasks" in done.stdout
    assert "shown nothing" in done.stdout and "here/report.json" in done.stdout
    facts = json.loads((tmp_path / "here" / "report.json").read_text())
    assert [card["name"] for card in facts["cards"]][:2] == ["clock", "constant"]
    assert (tmp_path / "here" / "report.html").is_file()
    again = demerit("bench", "--recompute", "here/report.json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "The same numbers as in the file." in again.stdout


def test_a_report_that_was_tampered_with_is_noticed(sample: Path, tmp_path: Path) -> None:
    quick = ("--workers", "0", "--resamples", "50", "--embed", "0", "--no-controls", "--as-recorded", "--limit", "15")
    demerit("bench", "failure-detection", "--data", str(sample), "-m", "random", "--out", "t", *quick, cwd=tmp_path)
    path = tmp_path / "t" / "report.json"
    facts = json.loads(path.read_text())
    facts["lines"][0]["measure"]["value"] = 0.999
    path.write_text(json.dumps(facts))
    again = demerit("bench", "--recompute", str(path), cwd=tmp_path)
    assert again.returncode == 1 and "Not the numbers of the file." in again.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("bench",), "benchmark: expected one of"),
        (("bench", "nothing@1"), "There is no benchmark named 'nothing@1'."),
        (("bench", "rbm-eval"), "rbm-eval@1: expected --data PATH"),
        (("bench", "own", "--data", "nowhere"), "expected a folder or file that exists"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    done = demerit(*arguments, cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert sentence in " ".join(done.stderr.split())


def test_benchmarks_are_listed(tmp_path: Path) -> None:
    done = demerit("list", "benchmarks", cwd=tmp_path)
    assert done.returncode == 0 and "own@1" in done.stdout and "roboarena@1" in done.stdout
