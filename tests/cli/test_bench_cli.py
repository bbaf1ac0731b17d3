"""The bench command, as a user runs it."""

import json
from pathlib import Path

from fakes.command import demerit, demerit_here, error_sentence


def test_bench_on_a_folder_of_videos_and_again_without_the_models(sample: Path, tmp_path: Path) -> None:
    quick = ("--workers", "0", "--resamples", "50", "--embed", "1")
    done = demerit("bench", "own", "--data", sample, "--model", "clock", "--out", "here", *quick, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "own@1: 15 episodes, 3 tasks" in done.stdout and "here/report.json" in done.stdout
    path = tmp_path / "here" / "report.json"
    facts = json.loads(path.read_text())
    assert [card["name"] for card in facts["cards"]][:2] == ["clock", "constant"]
    assert (tmp_path / "here" / "report.html").is_file()
    assert demerit_here("bench", "--recompute", path).returncode == 0
    facts["lines"][0]["measure"]["value"] = 0.999  # somebody tampers with it
    path.write_text(json.dumps(facts))
    assert demerit_here("bench", "--recompute", path).returncode == 1


def test_mistakes_are_one_sentence_and_benchmarks_are_listed(tmp_path: Path) -> None:
    for arguments, word in (
        ((), "benchmark"),
        (("nothing@1",), "nothing@1"),
        (("rbm-eval",), "--data"),
        (("own", "--data", "nowhere"), "nowhere"),
    ):
        assert word in error_sentence(demerit_here("bench", *arguments, cwd=tmp_path))
    listed = demerit_here("list", "benchmarks").stdout
    assert "own@1" in listed and "roboarena@1" in listed
