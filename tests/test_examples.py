"""The RL example: its driver in small mode, its statistics, and that a finished run is never repeated."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fakes.paths import REPO

RL = REPO / "examples" / "rl"
pytest.importorskip("gymnasium")


@pytest.fixture
def rl(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    pytest.importorskip("mujoco")
    monkeypatch.syspath_prepend(str(RL))
    import page
    import train

    return {"page": page, "train": train}


def make_run(case: Any, success: float, value: float) -> dict[str, Any]:
    clip = {"values": [0.0, value], "progress": [0.0, success], "video": ""}
    curve = [{"step": 10 * step, "ever": success, "end": success, "return": 0.0} for step in (1, 2, 3)]
    return {**vars(case), "curve": curve, "ever": success, "end": success, "clips": [clip], "seconds": 1.0}


def make_quality(lesson: Any, area: float) -> dict[str, Any]:
    return {**vars(lesson), "taught": lesson.words, "auroc": area, "mae": 1 - area, "progress": area, "threshold": 0.5}


def test_correlation_is_pearsons_and_its_interval_is_of_rewards_and_seeds(rl: dict[str, ModuleType]) -> None:
    rng = np.random.default_rng(0)
    points = [
        {"task": name, "auroc": 0.5, "mae": error, "each": (1 - error + noise).tolist()}
        for name in "ab"
        for error, noise in zip(rng.uniform(size=8), rng.normal(0, 0.2, size=(8, 3)), strict=True)
    ]
    points = [{**point, "success": float(np.mean(point["each"]))} for point in points]
    link = rl["page"].correlate(points, "mae")
    accuracy, success = ([f(p) for p in points] for f in (lambda p: 1 - p["mae"], lambda p: p["success"]))
    assert link["r"] == pytest.approx(np.corrcoef(accuracy, success)[0, 1])
    assert link["low"] < link["r"] < link["high"] and link["low"] > 0.3 and link["points"] == 16
    assert set(link["within"]) == {"a", "b"}
    assert rl["page"].correlate(points, "auroc") is None  # the same for all


def test_quality_that_says_nothing_has_an_interval_around_zero(rl: dict[str, ModuleType]) -> None:
    rng = np.random.default_rng(1)
    points = [
        {"task": "a", "mae": error, "each": [one], "success": one} for error, one in rng.uniform(size=(20, 2)).tolist()
    ]
    link = rl["page"].correlate(points, "mae")
    assert link["low"] < 0 < link["high"]


def test_shuffled_labels_are_as_many_and_not_the_true_ones(rl: dict[str, ModuleType]) -> None:
    from demerit.data.episode import Episode, Outcome
    from demerit.data.frames import Frames

    frames = Frames.from_array(np.zeros((2, 8, 8, 3), np.uint8))
    pool = [Episode(str(n), "x", {"main": frames}, outcomes=(Outcome("human", success=n % 2 == 0),)) for n in range(60)]
    lesson = next(lesson for lesson in rl["train"].lessons() if lesson.shuffled)
    chosen = lesson.choose(pool)
    true = [int(episode.id) % 2 == 0 for episode in chosen]
    flags = [bool(episode.outcome and episode.outcome.success) for episode in chosen]
    assert sum(flags) == sum(true) == 15 and 8 <= sum(a == b for a, b in zip(flags, true, strict=True)) <= 22


def test_page_pairs_the_exploited_run_with_the_one_taught_failures(rl: dict[str, ModuleType], tmp_path: Path) -> None:
    train, page = rl["train"], rl["page"]
    taught = [case for case in train.cases() if case.task == "window-close" and case.reward == "continuous"]
    lessons = {lesson.name: lesson for lesson in train.lessons()}
    quality = {name: make_quality(lesson, 0.9) for name, lesson in lessons.items()}
    for case in [*taught, train.cases()[0]]:
        alone = case.lesson and not lessons[case.lesson].failures
        folder = tmp_path / "runs" / case.name
        folder.mkdir(parents=True)
        run = make_run(case, 0.0 if alone else 1.0, 0.9)
        (folder / "result.json").write_text(json.dumps(run if case.lesson else {**run, "clips": []}))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "quality.json").write_text(json.dumps(quality))
    page.write_page(tmp_path, lambda text: None)
    html = (tmp_path / "page.html").read_text()
    assert html.count("<video") == 6 and "http" not in html.replace("http://www.w3.org", "")
    (run, other), *_ = page.find_hacks(page.read_results(tmp_path), quality)
    assert not quality[run["lesson"]]["failures"] and quality[other["lesson"]]["failures"]
    assert quality[run["lesson"]]["episodes"] == quality[other["lesson"]]["episodes"] and run["seed"] == other["seed"]


def test_a_figure_shows_its_own_correlation(rl: dict[str, ModuleType], tmp_path: Path) -> None:
    train, page = rl["train"], rl["page"]
    lessons = {lesson.name: lesson for lesson in train.lessons()}
    quality = {name: make_quality(lesson, 0.5 + number / 60) for number, (name, lesson) in enumerate(lessons.items())}
    quality = {name: {**facts, "mae": 0.5} for name, facts in quality.items()}  # the same for all: no correlation
    for case in train.cases():
        if case.task == "window-open" and case.seed == 0 and case.reward == "continuous":
            folder = tmp_path / "runs" / case.name
            folder.mkdir(parents=True)
            (folder / "result.json").write_text(json.dumps(make_run(case, quality[case.lesson]["auroc"], 0.9)))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "quality.json").write_text(json.dumps(quality))
    page.write_page(tmp_path, lambda text: None)
    by_mae, by_auroc = (tmp_path / "figure.html").read_text().split("<b>success by quality")[1:]
    assert "r = 1.00" in by_auroc and "r = " not in by_mae


def test_rewards_that_are_all_right_are_at_the_right_end(rl: dict[str, ModuleType]) -> None:
    chart = rl["page"].draw_quality([{"name": "a", "task": "a", "auroc": 1.0, "success": 0.5}], ["a"], "auroc")
    assert '<circle cx="442.0" ' in chart


def test_every_run_has_a_folder_of_its_own_and_the_truth_comes_first(rl: dict[str, ModuleType]) -> None:
    listed = rl["train"].cases()
    assert len({case.name for case in listed}) == len(listed)
    assert listed[0].reward == "true"
    assert {case.seed for case in listed} == {0, 1, 2}


@pytest.mark.slow
def test_driver_runs_and_goes_on(tmp_path: Path) -> None:
    for module in ("mujoco", "metaworld", "stable_baselines3"):
        pytest.importorskip(module)
    command = [sys.executable, str(RL / "rl.py"), "all", str(tmp_path / "out"), "--small", "--jobs", "2"]

    def run() -> str:
        done = subprocess.run(command, env={**os.environ}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    first = run()
    results = sorted((tmp_path / "out" / "runs").glob("*/result.json"))
    assert len(results) == 3 and "failed" not in first
    before = [path.stat().st_mtime_ns for path in results]
    results[0].unlink()
    run()
    assert [path.stat().st_mtime_ns for path in results][1:] == before[1:] and results[0].exists()
    assert (tmp_path / "out" / "page.html").exists()
