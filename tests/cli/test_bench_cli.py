"""The bench command, as a user runs it."""

import json
from pathlib import Path

from fakes.command import demerit, demerit_here, error_sentence


def test_bench_on_a_folder_of_videos_and_again_without_the_models(sample: Path, tmp_path: Path) -> None:
    quick = ("--workers", "0", "--set", "resamples=50", "--set", "embed=1")
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
        ((".", "--model", "clock"), "own --data ."),
    ):
        assert word in error_sentence(demerit_here("bench", *arguments, cwd=tmp_path))
    listed = demerit_here("list", "benchmarks").stdout
    assert "own@1" in listed and "roboarena@1" in listed


def test_a_second_bench_keeps_the_first_report(sample: Path, tmp_path: Path) -> None:
    quick = (
        "--workers",
        "0",
        "--set",
        "resamples=50",
        "--set",
        "embed=0",
        "--out",
        "here",
        "--set",
        "as-recorded=true",
    )

    def bench(*more: object) -> str:
        done = demerit_here("bench", "own", "--data", sample, *quick, *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def reports() -> list[str]:
        return sorted(path.name for path in (tmp_path / "here").glob("report*"))

    bench("--model", "clock")
    first = (tmp_path / "here" / "report.json").read_bytes()
    assert "report-2.json" in bench("--model", "change")
    assert (tmp_path / "here" / "report.json").read_bytes() == first
    assert reports() == ["report-2.html", "report-2.json", "report.html", "report.json"]
    bench("--model", "change")  # the same run again: the same place
    bench("--model", "clock")
    assert len(reports()) == 4
    (tmp_path / "here" / "report.json").write_text("damaged")
    bench("--model", "clock")
    assert (tmp_path / "here" / "report.json").read_text() == "damaged"
    assert "report-3.json" in reports()
    (tmp_path / "here" / "report.json").write_bytes(first)
    done = demerit_here("bench", "--leaderboard", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3 reports" in done.stdout
