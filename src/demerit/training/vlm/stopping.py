"""Ctrl-C and a cluster's request to end wait until the update that is being made is whole; a second one does not."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from demerit.errors import StoppedByUser

ASKED_BY = (signal.SIGINT, signal.SIGTERM)
STDERR = 2


class Requests:
    """How often somebody has asked to stop."""

    def __init__(self, answer: Callable[[], str], kept: Callable[[], str]) -> None:
        """`answer` says what becomes of the first request, `kept` what is left after the second."""
        self._answer, self._kept = answer, kept
        self._asked = 0
        self._held = False

    @property
    def is_asked(self) -> bool:
        """Whether to stop after this update."""
        return self._asked > 0

    @property
    def at_once(self) -> bool:
        """Whether to stop now and save nothing more."""
        return self._asked > 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let no request in before the block is through: what it writes is whole."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Answer the first request, raise the second, and hear no more: somebody is leaving already."""
        self._asked += 1
        if self._asked == 1:
            _say(self._answer())
        elif self._held:
            _say("the checkpoint that is being written is finished first")
        elif self._asked == 2:  # noqa: PLR2004
            raise StoppedByUser(self._kept())


@contextmanager
def patient(answer: Callable[[], str], kept: Callable[[], str]) -> Iterator[Requests]:
    """Keep requests to stop until somebody looks; outside the main thread there are none."""
    requests = Requests(answer, kept)
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in ASKED_BY}
    for number in ASKED_BY:
        signal.signal(number, requests.note)
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(sentence: str) -> None:
    """Write to the terminal, not print: a signal may come in the middle of one."""
    os.write(STDERR, f"\ndemerit: {sentence}\n".encode())
