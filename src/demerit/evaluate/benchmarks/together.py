"""Scoring several models at once, for those that spend their time waiting for a server.

While one model's batch runs dry or its next prompts are being put together, the others' requests fill the gap.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from demerit.models.score import ScoreProgress

Watch = Callable[[str, ScoreProgress], None]
"""called with what is being done and how far it is"""
T = TypeVar("T")


class Halt:
    """Stops jobs in other threads at their next sign of progress."""

    def __init__(self, stop: Callable[[], None], watch: Watch) -> None:
        """Take what else is to be stopped, and who is told of progress."""
        self._stop, self._watch, self._halted = stop, watch, threading.Event()

    def __call__(self) -> None:
        """Stop."""
        self._halted.set()
        self._stop()

    def watch(self, what: str, progress: ScoreProgress) -> None:
        """Pass progress on; a job that should stop leaves here, and its writer keeps what is done."""
        if self._halted.is_set():
            raise KeyboardInterrupt
        self._watch(what, progress)


def together(jobs: Sequence[Callable[[], T]], at_once: int, halt: Halt) -> list[T]:
    """Run jobs, so many at once; results come in the order of the jobs, and the first error stops the others."""
    if at_once == 1:
        return [job() for job in jobs]
    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            failed = next((one for one in futures if one.done() and one.exception() is not None), None)
            return [one.result() for one in ([failed] if failed else futures)]
        except BaseException:
            halt()
            for one in futures:
                one.cancel()
            raise
