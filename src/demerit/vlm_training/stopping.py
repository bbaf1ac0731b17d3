"""Ctrl-C and a cluster's request to end wait until the update that is being made is whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ASKED_BY = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def patient() -> Iterator[threading.Event]:
    """Keep a request to stop until somebody looks at the event; a second one is not kept."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in ASKED_BY}

    def note(number: int, frame: FrameType | None) -> None:
        asked.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in ASKED_BY:
        signal.signal(number, note)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
