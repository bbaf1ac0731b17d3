"""When to try again, how long to wait before it, and when to stop trying."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

from demerit.llm.ledger import Ledger
from demerit.llm.wire import Trouble

FIRST_WAIT, LONGEST_BACKOFF = 0.5, 30.0
PATIENCE = 600.0
"""seconds that one question may spend waiting because the server said how long; waiting as told is no failed try"""
_TOLD_FLOOR = 0.05


@dataclass
class Attempts:
    """How one question went so far."""

    failures: int = 0
    told: int = 0
    """times that the server said how long to wait"""
    waited: float = 0.0
    """seconds waited because it said so"""

    def delay(self, trouble: Trouble) -> float:
        """Count a failed request and say how long to wait before the next.

        As long as the server asks, a little longer so that not everybody comes back at once, and never so short that
        a hint of 0 becomes a storm. Without a hint twice as long each time, jittered.
        """
        if trouble.wait is None:
            self.failures += 1
            return min(FIRST_WAIT * 2.0 ** (self.failures - 1), LONGEST_BACKOFF) * random.uniform(0.5, 1.0)
        self.told += 1
        delay = max(trouble.wait, min(_TOLD_FLOOR * 2.0**self.told, LONGEST_BACKOFF)) * random.uniform(1.0, 1.1)
        self.waited += delay
        return delay


class Pace:
    """What all questions to one server share: a moment before which it wants peace, and whether it lives at all."""

    def __init__(self, ledger: Ledger, tries: int, concurrency: int) -> None:
        """Start at full speed."""
        self._ledger, self._tries, self._most_lost = ledger, tries, max(3 * concurrency, 10)
        self._lock = threading.Lock()
        self._lost_in_a_row = 0
        self.not_before = 0.0

    def hold(self, leaving: threading.Event) -> None:
        """Wait while the server wants to be left alone, and not all to the same moment."""
        while (rest := self.not_before - time.monotonic()) > 0 and not self._ledger.stopped:
            if leaving.wait(rest * random.uniform(1.0, 1.1)):
                return

    def heed(self, trouble: Trouble) -> None:
        """Let everybody wait when the server says that it is too much; stop when it is hopeless."""
        if trouble.hopeless:
            self._ledger.stop(trouble.reason)
        elif trouble.wait is not None and trouble.wait > PATIENCE:
            self._ledger.stop(f"the server asks to wait {trouble.wait:.0f} s ({trouble.reason})")
        elif trouble.wait is not None:
            with self._lock:
                self.not_before = max(self.not_before, time.monotonic() + trouble.wait)

    def answered(self) -> None:
        """The server lives."""
        self._lost_in_a_row = 0

    def give_up(self, trouble: Trouble, so_far: Attempts) -> str:
        """Say why a question is not tried again; empty while it is."""
        if not trouble.again:
            return trouble.reason
        if trouble.wait is not None and trouble.wait > PATIENCE:
            return f"the server asks to wait {trouble.wait:.0f} s ({trouble.reason})"
        if so_far.failures < self._tries and so_far.waited <= PATIENCE:
            return ""
        with self._lock:
            self._lost_in_a_row += 1
            if self._lost_in_a_row >= self._most_lost:
                self._ledger.stop(f"the last {self._lost_in_a_row} questions all failed ({trouble.reason})")
        if so_far.waited > PATIENCE:
            return f"the server keeps asking to wait, {so_far.waited:.0f} s by now ({trouble.reason})"
        return f"{so_far.failures} tries, the last one: {trouble.reason}"
