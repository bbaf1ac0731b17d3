"""Every benchmark runs in its small mode. The figures it prints there mean nothing; that it runs does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.paths import REPO

SCRIPTS = sorted(path for path in (REPO / "benchmarks").glob("*.py") if not path.stem.startswith("_"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_small_mode_runs(script: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "NO_COLOR": "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(script), "--small"]
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.strip()
