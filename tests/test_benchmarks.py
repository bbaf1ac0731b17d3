"""Every benchmark runs in its small mode. The figures it prints there mean nothing; that it runs does."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demerit
from demerit.data.episode import Outcome
from demerit.models.protocol import example_card
from fakes.paths import REPO

# A module that is None in sys.modules cannot be imported.
EXTRAS = (
    "accelerate gymnasium gymnasium_robotics h5py mcap metaworld mujoco onnx openai peft pydantic rosbags scipy torch "
    "transformers"
).split()
SCRIPTS = sorted(path for path in (REPO / "benchmarks").glob("*.py") if not path.stem.startswith("_"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_small_mode_runs(script: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "NO_COLOR": "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(script), "--small"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.strip()


@pytest.fixture(scope="module")
def helps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """The exit status of `SCRIPT --help` without the extras, and what it prints, by script.

    Each runs in a process of its own, forked from one that has imported what nearly all of them import.
    """
    folder = tmp_path_factory.mktemp("helps")
    path = os.pathsep.join([str(Path(demerit.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", FORK_HELPS, str(folder), *map(str, SCRIPTS)]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return {name: (status, (folder / name).read_text()) for name, status in json.loads(run.stdout).items()}


FORK_HELPS = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS}))
import json, os, runpy, traceback
import numpy, pyarrow, demerit.data.formats, demerit.data.store, demerit.models.score, demerit.evaluate.benchmarks
folder, *scripts = sys.argv[1:]
codes = {{}}
for script in scripts:
    name = os.path.basename(script)[:-3]
    child = os.fork()
    if child == 0:
        with open(os.path.join(folder, name), "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.argv, sys.path[0] = [script, "--help"], os.path.dirname(script)
        code = 1
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    codes[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(codes))
"""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help_works_without_the_extras(script: Path, helps: dict[str, tuple[int, str]]) -> None:
    status, said = helps[script.stem]
    assert status == 0, said[-3000:]
    assert "--small" in said


class GivesGrades:
    """Grades of 1 to 5, by the episode's id: one too high, where that is still a grade."""

    card = example_card(name="grades", quantity="grade", low=1.0, high=5.0, causal=False)

    def score(self, episodes: Sequence[demerit.Episode]) -> list[demerit.Reward]:
        said = [min(5.0, int(episode.id) + 1.0) for episode in episodes]
        return [
            demerit.Reward("grades", one.id, np.array([0]), np.array([g]))
            for one, g in zip(episodes, said, strict=True)
        ]


def test_the_ablation_reads_grades_as_grades(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    spec = importlib.util.spec_from_file_location("ablation", REPO / "benchmarks" / "ablation.py")
    assert spec is not None and spec.loader is not None
    ablation: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ablation)
    pixels = np.zeros((1, 4, 4, 3), np.uint8)
    episodes = [
        replace(
            demerit.Episode.from_array(pixels, "do it", id=str(grade)),
            outcomes=(Outcome("human", success=grade == 5, grade=grade),),
        )
        for grade in (1, 2, 3, 4, 5)
    ]
    monkeypatch.setattr(ablation, "test_episodes", lambda given: episodes)
    monkeypatch.setattr("demerit.models.load_model", lambda address: GivesGrades())
    models = {(name, 0): "grades" for name in ablation.VARIANTS}
    ablation.print_table(models, argparse.Namespace(small=True, seeds=[0]))
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if "error in grades" in line]
    assert [float(row[2]) for row in rows] == [0.8] * len(models)  # 2, 3, 4, 5, 5 for 1 to 5: four of five are one off


def test_offline_rl_says_what_is_bought_and_what_a_control_buys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPO / "benchmarks")  # it uses another benchmark
    offline: Any = importlib.import_module("offline_rl")
    done = {("plain", ""): 4, ("filtered", "taught"): 7, ("filtered", "true"): 4, ("filtered", "random"): 6}
    lines = [
        {
            "task": "t",
            "failures": 0.3,
            "seed": seed,
            "use": use,
            "reward": reward,
            "gamma": 0,
            "done": [1] * (count + seed % 2) + [0] * (6 - count + 4 - seed % 2),
        }
        for (use, reward), count in done.items()
        for seed in range(5)
    ]
    rows = list(offline.tabulate(lines, replace(offline.SMALL, tasks=("t",)), offline.CLONED))[2:-1]
    cells = {tuple(row.split(" | ")[:2]): row.split(" | ")[3:6] for row in rows}
    assert cells == {
        ("| plain", ""): ["", "", ""],
        ("| filtered", "taught"): ["+30 (+30 to +30)", "yes", "+10 (+10 to +10)"],
        ("| filtered", "true"): ["+0 (+0 to +0)", "no", "-20 (-20 to -20)"],
        ("| filtered", "random"): ["+20 (+20 to +20)", "yes", ""],
    }


def test_the_standard_error_of_few_draws_is_not_too_small() -> None:
    spec = importlib.util.spec_from_file_location("signals_benchmark", REPO / "benchmarks" / "signals.py")
    assert spec is not None and spec.loader is not None
    signals: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(signals)
    assert signals.describe([0.5, 0.7]) == "0.600 ± 0.100"  # s = sqrt((0.1^2 + 0.1^2) / 1), over sqrt(2)
    assert signals.describe([0.5]) == "0.500"
