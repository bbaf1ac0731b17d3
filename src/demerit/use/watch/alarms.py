"""Alarms: conditions over the newest episodes, and a webhook that never blocks scoring.

    MEASURE OP NUMBER over COUNT        success < 0.5 over 20

The measures are `success` and `failure` (shares of the judged), `value` and `familiarity` (means) and `unscored`
(share), over the newest COUNT episodes for which they are known. With fewer, there is no alarm. A detector knows
failures alone: of its episodes, `failure` is the share with an alarm.
"""

from __future__ import annotations

import http.client
import json
import queue
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any
from urllib.parse import urlsplit

from demerit.data.quality import COMPARE
from demerit.errors import BadInput
from demerit.use.watch.watcher import WatchedEpisode

MEASURES: Mapping[str, Callable[[WatchedEpisode], float | None]] = {
    "success": lambda row: None if row.success is None else float(row.success),
    "failure": lambda row: None if row.success is None and row.verdict.reason != "no alarm" else row.success is False,
    "value": lambda row: row.value,
    "familiarity": lambda row: row.familiarity,
    "unscored": lambda row: float(bool(row.unscored)),
}
GRAMMAR = re.compile(r"\s*([a-z]+)\s*(<=|>=|<|>)\s*(-?[0-9]*[.]?[0-9]+)\s+over\s+([1-9][0-9]{0,4})\s*")
TRIES, FIRST_WAIT, TIMEOUT, MOST_WAITING = 7, 1.0, 10.0, 100
"""a message is sent up to 7 times, 1, 2, 4 ... seconds apart: a minute in all"""


@dataclass(frozen=True)
class AlarmCondition:
    """A condition over the newest episodes."""

    text: str
    measure: str
    compare: str
    limit: float
    count: int

    @classmethod
    def parse(cls, text: str) -> AlarmCondition:
        """Read `success<0.5 over 20`."""
        match = GRAMMAR.fullmatch(text)
        if match is None or match[1] not in MEASURES:
            expected = (
                f"{'|'.join(MEASURES)}, one of < <= > >=, a number, `over` and a count, as in 'success<0.5 over 20'"
            )
            raise BadInput("--alarm", expected, repr(text))
        return cls(" ".join(text.split()), match[1], match[2], float(match[3]), int(match[4]))

    def measured(self, rows: Sequence[WatchedEpisode]) -> float | None:
        """Return the measure over the newest episodes; None = there are not enough."""
        values: list[float] = []
        for row in reversed(rows):
            value = MEASURES[self.measure](row)
            values += [] if value is None else [value]
            if len(values) == self.count:
                return fmean(values)
        return None

    def holds(self, rows: Sequence[WatchedEpisode]) -> bool:
        """Whether there is an alarm."""
        mean = self.measured(rows)
        return mean is not None and COMPARE[self.compare](mean, self.limit)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses to go on elsewhere: the message would be lost on the way."""

    def redirect_request(self, *_: Any) -> None:
        return None


OPENER = urllib.request.build_opener(_NoRedirects)


class Webhook:
    """Posts messages as JSON from a thread of its own. What cannot be delivered is counted, with the reason."""

    def __init__(self, url: str, first_wait: float = FIRST_WAIT) -> None:
        """`first_wait` is the pause after the first failure, in seconds; it doubles."""
        try:
            parts = urlsplit(url)
            is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_good = False
        if not is_good:  # the address is a secret: it is not repeated
            raise BadInput("--webhook", "an address such as https://chat.example/hook", "something else")
        self.host = parts.hostname
        """what may be shown: the rest of the address is a secret"""
        self._url, self.sent, self.delivered, self.failed, self.error = url, 0, 0, 0, ""
        self._first_wait, self._closing = first_wait, threading.Event()
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Put a message in the queue; return at once."""
        self.sent += 1
        try:
            self._waiting.put_nowait(json.dumps(message, ensure_ascii=False).encode())
        except queue.Full:
            self.failed, self.error = self.failed + 1, f"more than {MOST_WAITING} messages wait"

    def close(self, seconds: float = TIMEOUT) -> None:
        """Wait for what is in the queue, but not longer than so many seconds."""
        self._closing.set()  # no more pauses
        self._waiting.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        while (message := self._waiting.get()) is not None:
            for attempt in range(TRIES):
                if self._post(message):
                    self.delivered += 1
                    break
                if attempt + 1 < TRIES:
                    self._closing.wait(self._first_wait * 2**attempt)
            else:
                self.failed += 1

    def _post(self, message: bytes) -> bool:
        request = urllib.request.Request(self._url, message, {"Content-Type": "application/json"}, method="POST")
        try:
            with OPENER.open(request, timeout=TIMEOUT):
                return True
        except urllib.error.HTTPError as error:
            hint = " (it has moved: give the new address)" if 300 <= error.code < 400 else ""  # noqa: PLR2004
            self.error = f"HTTP status {error.code}{hint}"
        except urllib.error.URLError as error:  # refused, timed out
            self.error = str(error.reason)
        except (OSError, ValueError, http.client.HTTPException) as error:  # a bad answer; its text may have the address
            self.error = type(error).__name__
        return False
