"""A program in a terminal of its own: what a person types and sees."""

import fcntl
import os
import pty
import select
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fakes.processes import running

PATIENCE = 120
"""seconds for a busy machine; a test that passes does not wait"""


class Terminal:
    """The person's side: `type` presses keys, `read_until` reads what is shown."""

    def __init__(self, run: Any, screen: int, keyboard: int) -> None:
        self.run, self.screen, self.keyboard, self.shown = run, screen, keyboard, ""

    def type(self, keys: str) -> None:
        os.write(self.screen, keys.encode())

    def read_until(self, words: str) -> str:
        """Return what was shown since the last call, up to these words."""
        until = time.monotonic() + PATIENCE
        while words not in self.shown:
            assert time.monotonic() < until, f"{words!r} is not in {self.shown!r}; exit code {self.run.poll()}"
            if select.select([self.screen], [], [], 1)[0]:
                self.shown += os.read(self.screen, 4096).decode("utf-8", "replace")
        before, _, self.shown = self.shown.partition(words)
        return before + words

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self.keyboard)

    def wait(self) -> int:
        return self.run.wait(PATIENCE)


@contextmanager
def in_terminal(command: Sequence[str | Path], **options: Any) -> Iterator[Terminal]:
    """Run a command with stdin and stderr at a terminal; its stdout is a pipe."""
    screen, keyboard = pty.openpty()
    own = {"stdin": keyboard, "stderr": keyboard, "start_new_session": True}
    try:
        with running(command, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), **own, **options) as run:
            yield Terminal(run, screen, keyboard)
    finally:
        os.close(screen)
        os.close(keyboard)
