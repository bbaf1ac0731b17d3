"""Processes of tests, always ended."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def running(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a command with its output in a pipe; whatever happens, it and a session of its own are gone at the end.

    Tests wait for it without a limit of their own: pytest's limit ends a test that hangs, and a busy machine ends none.

    `with subprocess.Popen` waits there for a process that may never end, also when the test has failed long ago.
    """
    run = subprocess.Popen(command, text=True, **{"stdout": subprocess.PIPE, **options})
    try:
        yield run
    finally:
        if options.get("start_new_session"):
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
        run.kill()
        for pipe in (run.stdin, run.stdout, run.stderr):
            if pipe is not None and not pipe.closed:
                pipe.close()
        run.wait()
