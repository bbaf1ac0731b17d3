"""Run the command line: as a process, or quickly inside this one."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

from demerit.cli import app

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
    )


def demerit_here(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `demerit ARGUMENTS` in this process: no start-up time."""
    out, err = io.StringIO(), io.StringIO()
    words = [str(argument) for argument in arguments]
    place = contextlib.chdir(cwd) if cwd is not None else contextlib.nullcontext()
    with place, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app(words, prog_name="demerit")
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def error_sentence(run: subprocess.CompletedProcess[str]) -> str:
    """Return the message of a failed command: exit code 1, one line, no traceback."""
    assert run.returncode == 1, run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    assert run.stderr.startswith("demerit: ")
    assert run.stderr.count("\n") == 1, run.stderr
    return run.stderr
