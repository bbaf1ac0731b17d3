"""The fake chat server does what tests of the client rely on."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import pytest

from fakes.chat_server import CONTENT, KINDS, LOST, Busy, Faults, ScriptedServer

HELLO = {"model": "simulated", "messages": [{"role": "user", "content": "hello"}]}


def post(server: ScriptedServer, body: Any = HELLO) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=0.5)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def test_every_fault_does_what_it_says_and_only_whole_answers_are_billed() -> None:
    statuses = {"429": 429, "429-date": 429, "429-bare": 429, "500": 500, "503": 503, "garbage": 200, "gateway": 200}
    statuses |= dict.fromkeys(CONTENT, 200)
    broken = ("drop", "cut", "timeout")
    faults = Faults(script=[*statuses, *broken], retry_after=7)
    with ScriptedServer(lambda request: request.text.upper(), faults) as server:
        got = {kind: post(server) for kind in statuses}
        for _ in broken:
            with pytest.raises((http.client.HTTPException, OSError)):
                post(server)
        assert {kind: answer[0] for kind, answer in got.items()} == statuses
        assert [kind for kind in statuses if "Retry-After" in got[kind][1]] == ["429", "429-date", "503"]
        choices = {kind: json.loads(got[kind][2])["choices"][0] for kind in CONTENT}
        assert choices["refusal"]["message"]["content"] is None
        assert (choices["length"]["finish_reason"], choices["length"]["message"]["content"]) == ("length", "HE")
        assert server.billed.total() == len(CONTENT) and server.faulted == Counter([*statuses, *broken])


def test_faults_follow_the_question_and_not_the_order() -> None:
    faults = Faults.everything(0.3)
    first = [faults.pick(f"q{i}", 0, i) for i in range(2000)]
    assert first == [faults.pick(f"q{i}", 0, 5000 - i) for i in range(2000)]
    assert 0.26 < sum(map(bool, first)) / 2000 < 0.34
    assert set(first) == {*KINDS, ""} - {*LOST}
    for i, fault in enumerate(first):
        second = faults.pick(f"q{i}", 1, 0)
        assert second == fault if fault in CONTENT else second not in CONTENT


def test_busy_is_the_mean_number_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 4.0])
    monkeypatch.setattr("fakes.chat_server.time.monotonic", lambda: next(times))
    busy = Busy()
    for by in (1, 1, -1, -1):
        busy.change(by)
    monkeypatch.undo()
    # One for a second, two for two seconds, one for a second, of two slots for four seconds.
    assert busy.share(2) == pytest.approx(6 / 8) and busy.most == 2
