"""The simulated benchmark: its own split, its own pairs, tasks by what is done and not by the words."""

import numpy as np

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, Origin, Outcome
from demerit.data.frames import Frames
from demerit.evaluate.benchmarks.benchmark import load_benchmark
from demerit.evaluate.benchmarks.run import RunOptions, load_data, run_benchmark
from demerit.evaluate.benchmarks.scores import MeasureSettings
from demerit.evaluate.metrics import Resampling
from fakes.coded_episodes import Listed


def simulated() -> Dataset:
    """Episodes tagged as by the simulator: two tasks in two wordings each, and a train split."""
    episodes = []
    for number in range(48):
        success, task = number % 2 == 0, f"task-{number // 24}"
        curve = np.linspace(0, 1 if success else 0.4, 12, dtype=np.float32)
        frames = Frames.from_array(np.full((12, 8, 8, 3), number, dtype=np.uint8))
        tags = {"task": task, "frames": "12", "motion": f"{0.01 + 0.0001 * (number % 5):.6f}"}
        origin = Origin(split="train" if number % 12 > 9 else "test", tags=tags)
        outcome = Outcome("simulator", success=success, progress=float(curve[-1]), curve=curve)
        wording = f"wording {number % 4 // 2} of {task}"
        episodes.append(Episode(f"e{number}", wording, {"main": frames}, (outcome,), origin))
    return Dataset(Listed(episodes), "simulated:x")


def test_metaworld_measures_its_split_by_task() -> None:
    gathered = load_data(load_benchmark("metaworld-bad@1"), simulated())
    assert len(gathered.episodes) == 40
    assert {row.split for row in gathered.labels} == {"test"}
    assert {row.task for row in gathered.labels} == {"task-0", "task-1"}
    ids = {row.id: row for row in gathered.labels}
    assert gathered.preferences
    for pair in gathered.preferences:
        better, other = (pair.a, pair.b) if pair.verdict == "a" else (pair.b, pair.a)
        assert ids[better].success and not ids[other].success
        assert ids[better].task == ids[other].task


def test_controls_score_half_on_matched_pairs(tmp_path) -> None:
    options = RunOptions(settings=MeasureSettings(Resampling(resamples=100)), workers=0)
    report = run_benchmark(load_benchmark("metaworld-bad@1"), ["clock"], simulated(), tmp_path, options)
    for name in ("clock", "constant", "length"):
        assert report.line(name, "matched_pairs").value == 0.5
        assert report.line(name, "auroc").value == 0.5
