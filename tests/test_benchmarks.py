"""Every benchmark runs in its small mode. The figures it prints there mean nothing; that it runs does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import demerit
from fakes.paths import REPO

# A module that is None in sys.modules cannot be imported.
EXTRAS = (
    "accelerate gymnasium gymnasium_robotics h5py metaworld mujoco onnx openai peft pydantic scipy torch transformers"
).split()
SCRIPTS = sorted(path for path in (REPO / "benchmarks").glob("*.py") if not path.stem.startswith("_"))


SLOW = "annotate detect offline_rl ray_score roboreward_recipe".split()
RUN = [pytest.param(path, marks=pytest.mark.slow) if path.stem in SLOW else path for path in SCRIPTS]


@pytest.mark.parametrize("script", RUN, ids=lambda path: path.stem)
def test_small_mode_runs(script: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "NO_COLOR": "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(script), "--small"]
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.strip()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help_works_without_the_extras(script: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({EXTRAS}))\n")
    path = os.pathsep.join([str(tmp_path), str(Path(demerit.__file__).parents[1])])
    command = [sys.executable, str(script), "--help"]
    run = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=100
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert "--small" in run.stdout
