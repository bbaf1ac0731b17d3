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
    bad = lesson.episodes // 2 if lesson.failures else 0
    return {**vars(lesson), "successes": lesson.episodes - bad, "auroc": area, "progress": area, "threshold": 0.5}


def test_correlation_is_within_tasks(rl: dict[str, ModuleType]) -> None:
    """A task that is easier and better understood makes no correlation."""
    rng = np.random.default_rng(0)
    points = [
        {"task": name, "auroc": level + x, "success": level + y}
        for name, level in (("a", 0.0), ("b", 10.0))
        for x, y in rng.normal(size=(40, 2))
    ]
    value, low, high, count = rl["page"].correlate(points)
    parts = [np.array([[p["auroc"], p["success"]] for p in points if p["task"] == name]) for name in "ab"]
    expected = np.concatenate([part - part.mean(axis=0) for part in parts])
    assert value == pytest.approx(np.corrcoef(expected.T)[0, 1])
    assert low < value < high and count == 80
    assert low < 0 < high


def test_too_few_models_give_no_correlation(rl: dict[str, ModuleType]) -> None:
    assert rl["page"].correlate([{"task": "a", "auroc": 0.5, "success": 0.1}] * 2) is None


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
