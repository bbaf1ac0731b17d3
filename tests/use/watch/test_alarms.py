"""Alarms: a closed grammar, measures over the newest episodes, and a webhook that never blocks."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from demerit.data.reward import Verdict
from demerit.errors import BadInput
from demerit.use.watch.alarms import TRIES, AlarmCondition, Webhook
from demerit.use.watch.watcher import WatchedEpisode


def make_row(
    place: int, value: float | None = 0.5, success: bool | None = None, familiarity: float | None = None
) -> WatchedEpisode:
    unscored = "unreadable" if value is None else ""
    verdict = Verdict(success, None if success is not None else "no threshold")
    return WatchedEpisode(f"e{place}", "push", place, float(place), value, verdict, familiarity, unscored)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("success<0.5 over 20", ("success", "<", 0.5, 20)),
        ("  value >= .25   over 3 ", ("value", ">=", 0.25, 3)),
        ("unscored > 0 over 1", ("unscored", ">", 0.0, 1)),
        ("value < -1.5 over 10", ("value", "<", -1.5, 10)),
    ],
)
def test_conditions_are_read(text: str, parts: tuple[str, str, float, int]) -> None:
    found = AlarmCondition.parse(text)
    assert (found.measure, found.compare, found.limit, found.count) == parts


@pytest.mark.parametrize(
    "text",
    [
        *("", "success", "success<0.5", "speed<1 over 5", "success<0.5 over 0", "success = 1 over 5"),
        *("success<x over 5", "success<0.5 over 20; import os", "success<0.5 over 20 or value<1 over 2"),
        "success<0.5 over 100000",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        AlarmCondition.parse(text)


def test_only_the_newest_known_episodes_count() -> None:
    condition = AlarmCondition.parse("success<0.5 over 3")
    old = [make_row(i, success=False) for i in range(5)]
    rows = [*old, make_row(5, success=True), make_row(6), make_row(7, success=True), make_row(8, success=False)]
    assert condition.measured(rows) == pytest.approx(2 / 3) and not condition.holds(rows)
    assert condition.holds([*rows, make_row(9, success=False)])
    assert condition.measured(rows[-3:]) is None and not condition.holds([])


def test_unscored_and_familiarity_are_measures() -> None:
    rows = [make_row(0, None), make_row(1, familiarity=0.2), make_row(2, familiarity=0.4)]
    assert AlarmCondition.parse("unscored>0.3 over 3").holds(rows)
    assert AlarmCondition.parse("familiarity<0.5 over 2").measured(rows) == pytest.approx(0.3)
    assert AlarmCondition.parse("value<0.6 over 2").holds(rows)


@contextmanager
def listening(failures: int, status: int = 500) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers with a failure so many times, then 200; yields its address and the bodies it got."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status if len(bodies) <= failures else 200)
            if 300 <= status < 400:
                self.send_header("Location", f"http://127.0.0.1:{server.server_port}/elsewhere")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_message_is_sent_again_until_it_arrives() -> None:
    with listening(failures=2) as (url, bodies):
        hook = Webhook(url, first_wait=0.001)
        hook.send({"text": "ärger"})
        hook.close()
    assert (hook.delivered, hook.failed, len(bodies)) == (1, 0, 3)
    assert json.loads(bodies[-1]) == {"text": "ärger"} and "500" in hook.error


def test_a_webhook_that_is_down_is_counted_and_ends() -> None:
    with listening(failures=0) as (url, _):
        pass  # nobody listens there any more
    hook = Webhook(url, first_wait=0.001)
    for _ in range(3):
        hook.send({"text": "x"})  # returns at once
    hook.close()
    assert (hook.delivered, hook.failed) == (0, 3) and hook.error


def test_a_server_that_always_fails_gets_a_limited_number_of_requests() -> None:
    with listening(failures=100) as (url, bodies):
        hook = Webhook(url, first_wait=0.001)
        hook.send({"text": "x"})
        hook.close()
    assert (hook.failed, len(bodies)) == (1, TRIES)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_an_address_that_has_moved_is_a_failure(status: int) -> None:
    with listening(failures=100, status=status) as (url, bodies):
        hook = Webhook(url, first_wait=0.001)
        hook.send({"text": "x"})
        hook.close()
    assert (hook.delivered, hook.failed, len(bodies)) == (0, 1, TRIES) and str(status) in hook.error


def test_an_answer_that_is_not_http_is_a_failure_and_the_address_stays_secret() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nonsense:
        hook = Webhook(f"http://127.0.0.1:{nonsense.getsockname()[1]}/se cret", first_wait=0.001)
        hook.send({"text": "x"})
        hook.close()
    assert hook.failed == 1 and "cret" not in hook.error


@pytest.mark.parametrize(
    "url", ["http://x:y/", "http://[/", "file:///etc/passwd", "ftp://host/x", "example.org", "http://"]
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(BadInput) as refused:
        Webhook(url)
    assert url not in str(refused.value)
