"""Benchmarks through the real readers, as a user runs them; every expected number is worked out by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demerit.data.video import write_video
from demerit.errors import DemeritError
from demerit.evaluate.benchmarks.scores import read_categories
from demerit.evaluate.reports.report import Report
from fakes.command import demerit

QUICK = ("--workers", "0", "--set", "resamples=100", "--set", "embed=0", "--out", "out")


def make_video(path: Path, frames: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_video(path, np.random.default_rng(frames).integers(0, 255, (frames, 32, 32, 3), dtype=np.uint8))


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(folder: Path, benchmark: str, data: Path, *more: str) -> Report:
    done = demerit("bench", benchmark, "--data", str(data), "-m", "length", *QUICK, *more, cwd=folder)
    assert done.returncode == 0, done.stderr
    again = demerit("bench", "--recompute", "out/report.json", cwd=folder)
    assert again.returncode == 0, again.stdout
    return Report.read(folder / "out" / "report.json")


def values(report: Report, measure: str) -> dict[str, float]:
    return {line.model: line.measure.value for line in report.lines if line.measure.name == measure and not line.part}


@pytest.mark.slow
def test_roboarena(tmp_path: Path) -> None:
    root = tmp_path / "dump"
    sessions = {
        # the longer the worse: all three pairs are wrong by length
        "s1": ({"A": (0.9, 4), "B": (0.5, 6), "C": (0.1, 8)}, "A", "put the cup on the plate"),
        # the longer the better: one pair, right by length
        "s2": ({"A": (0.2, 4), "B": (0.8, 8)}, "B", "open the drawer"),
        "s3": ({"A": (0.5, 4), "B": (0.5, 8)}, "TIE", "open the drawer"),
    }
    for uuid, (rollouts, preference, instruction) in sessions.items():
        session, policies = root / "evaluation_sessions" / uuid, {}
        for letter, (done, frames) in rollouts.items():
            policies[letter] = {"policy_name": "p", "binary_success": int(done > 0.7), "partial_success": done}
            make_video(session / f"{letter}_p" / "u_video_left.mp4", frames)
        facts = {"language_instruction": instruction, "preference": preference, "policies": policies}
        (session / "metadata.yaml").write_text(json.dumps(facts))
    report = run(tmp_path, "own:roboarena@1", root, "-m", "clock")
    by_sum = values(report, "preference_ordering_by_sum")
    # 0.5 T, (T + 1) / 2 and T T / (T + 100) all grow with the length T
    assert [by_sum[name] for name in ("length", "clock", "constant")] == [0.25] * 3
    measure = report.line("length", "preference_ordering_by_sum")
    assert measure is not None and (measure.n, measure.counts["human ties"], measure.counts["contexts"]) == (4, 1, 2)
    as_printed = values(report, report.about.headline[0])  # no sums are equal
    assert report.about.headline[0] == "strict_preference_ordering_by_sum" and as_printed == by_sum
    by_final = values(report, "preference_ordering_by_final")
    assert (by_final["length"], by_final["clock"], by_final["constant"]) == (0.25, 0.5, 0.5)
    agreement = values(report, "judgement_agreement")
    # people said A of (4, 6) frames and B of (4, 8): the longer one is right once; A was said once
    assert (agreement["length"], agreement["clock"], agreement["always-a"]) == (0.5, 0.5, 0.5)
    # successes have 4 and 8 frames, failures 6, 8, 4, 4, 8: (0 + 2 * 1/2) + (3 + 2 * 1/2) of 10 pairs
    assert values(report, "auroc")["length"] == pytest.approx(0.5)
    assert by_sum.keys() == {card.name for card in report.cards} - {"always-a"}


@pytest.mark.slow
def test_roborewardbench(tmp_path: Path) -> None:
    root = tmp_path / "data"
    grades = {"bridge": (5, 5), "RoboArena": (1, 3), "fractal": (2, 4, 5)}
    rows = []
    for subset, given in grades.items():
        for number, grade in enumerate(given):
            make_video(root / "test" / subset / f"{number}.mp4", 4)
            rows.append({"file_name": f"{subset}/{number}.mp4", "task": f"lift the cup {number}", "reward": grade})
    make_video(root / "val" / "bridge" / "9.mp4", 4)
    write_lines(root / "test" / "metadata.jsonl", rows)
    # not of the measured split
    write_lines(root / "val" / "metadata.jsonl", [{"file_name": "bridge/9.mp4", "task": "lift the cup", "reward": 1}])
    report = run(tmp_path, "own:roborewardbench@1", root, "-m", "clock", "-m", "constant", "--no-controls")
    assert len(report.episodes) == 7
    # the clock ends at 1 and grades 5, a constant 1/2 grades 3, and 4 / 104 of the range is grade 1
    errors = {
        "clock": {"bridge": 0.0, "RoboArena": 3.0, "fractal": 4 / 3},
        "constant": {"bridge": 2.0, "RoboArena": 1.0, "fractal": 4 / 3},
        "length": {"bridge": 4.0, "RoboArena": 1.0, "fractal": 8 / 3},
    }
    for model, by_subset in errors.items():
        assert values(report, "mae_group_wise")[model] == pytest.approx(sum(by_subset.values()) / 3)
        assert values(report, "mae_roboarena")[model] == pytest.approx(by_subset["RoboArena"])
        rest = (by_subset["bridge"] + by_subset["fractal"]) / 2
        assert values(report, "mae_group_wise_without_roboarena")[model] == pytest.approx(rest)
        for subset, error in by_subset.items():
            measure = report.line(model, "mae", f"subset: {subset}")
            assert measure is not None and (measure.value, measure.n) == (pytest.approx(error), len(grades[subset]))


@pytest.mark.slow
def test_rbm_eval(tmp_path: Path) -> None:
    root = tmp_path / "rows"
    # by length: rising in one task (three pairs right), in the other one right, one tied, one wrong
    lengths = {"lift the cup": (4, 6, 8), "open the drawer": (6, 9, 6)}
    rows = []
    for task, frames in lengths.items():
        for quality, count in zip(("failure", "suboptimal", "successful"), frames, strict=True):
            name = f"{task.split()[0]}-{quality}"
            make_video(root / "videos" / f"{name}.mp4", count)
            rows.append({"id": name, "task": task, "frames": f"videos/{name}.mp4", "quality_label": quality})
    write_lines(root / "rows.jsonl", rows)
    report = run(tmp_path, "own:rbm-eval@1", root, "-m", "clock")
    assert values(report, "kendall_tau_a")["length"] == pytest.approx((1 + 0) / 2)
    assert values(report, "kendall_tau_a")["clock"] == 0.0
    assert values(report, "voc_pearson")["clock"] == pytest.approx(1.0)
    assert values(report, "voc_pearson_reversed")["clock"] == pytest.approx(-1.0)
    assert values(report, "instruction_diagonal_share")["constant"] == pytest.approx(0.5)
    # videos of 8 and 6 frames under two instructions that nobody reads: both columns are 8/108 and 6/106
    assert values(report, "instruction_diagonal_share")["length"] == pytest.approx(0.5)
    assert values(report, "right_instruction_accuracy")["length"] == 0.5
    assert np.isnan(values(report, "voc_pearson")["constant"])
    assert not [warning for warning in report.warnings if "theory" in warning]


@pytest.mark.slow
def test_categories_from_a_table(tmp_path: Path, sample: Path) -> None:
    quick = (*QUICK, "--no-controls", "--set", "as-recorded=true", "-m", "clock", "--data", str(sample))
    assert demerit("bench", "failure-detection", *quick, cwd=tmp_path).returncode == 0
    before = {row.instruction: row.category for row in Report.read(tmp_path / "out" / "report.json").episodes}
    first = min(before)
    (tmp_path / "kinds.csv").write_text(f'instruction,category\n"  {first.upper()}.",Tool use\n')
    done = demerit("bench", "failure-detection", *quick, "--set", "categories=kinds.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = Report.read(tmp_path / "out" / "report-2.json")
    assert any(f"{len(before) - 1} of {len(before)} instructions" in warning for warning in report.warnings)
    after = {row.instruction: row.category for row in report.episodes}
    assert after == {**before, first: "tool use"} != before
    assert report.line("clock", "auroc", "category: tool use") is not None
    assert report.environment["categories"] == "by a table"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("instruction,category\nlift it,pourr\n", "Did you mean 'pour'"),
        ("instruction,category\nlift it,pour\nLift it.,stack\n", "pour and stack"),
        ("words,kind\n", "columns instruction and category"),
        ("instruction,category\nlift it\n", "no category"),
        (None, "columns instruction and category"),
    ],
)
def test_a_bad_table_is_an_error(text: str | None, word: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "kinds.csv").write_text(text)
    with pytest.raises(DemeritError, match=word):
        read_categories(tmp_path / "kinds.csv")
