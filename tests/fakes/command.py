"""The command line as a user meets it: a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-c", "from demerit.cli import main; main()"]


def demerit(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `demerit ARGUMENTS` as a process of its own."""
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment,
        timeout=120,
    )


def error_sentence(run: subprocess.CompletedProcess[str]) -> str:
    """Return the sentence of a failed command: exit code 1, one line, no traceback."""
    assert run.returncode == 1, run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    assert run.stderr.startswith("demerit: ")
    assert run.stderr.count("\n") == 1, run.stderr
    return run.stderr
