"""The scripted server: it speaks the protocol, and its faults are the ones it promises."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import pytest

from demerit.errors import BadInput, UnknownName
from fakes.judge.faults import CONTENT, KINDS, LOST, Faults
from fakes.judge.server import Busy, Request, ScriptedServer

HELLO = {"model": "simulated", "messages": [{"role": "user", "content": "hello"}]}


def echo(request: Request) -> str:
    return request.text.upper()


def post(server: ScriptedServer, body: Any, timeout: float = 5.0) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=timeout)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def test_it_speaks_the_protocol() -> None:
    from openai import OpenAI

    with ScriptedServer(echo, key="a-long-key") as server:
        with OpenAI(api_key="a-long-key", base_url=server.url, max_retries=0) as client:
            answer = client.chat.completions.create(model="simulated", messages=[{"role": "user", "content": "hello"}])
            assert answer.choices[0].message.content == "HELLO"
            assert answer.choices[0].finish_reason == "stop"
            assert answer.usage and answer.usage.total_tokens == answer.usage.prompt_tokens + 2
        assert post(server, HELLO)[0] == 401
        assert server.billed.total() == 1


def test_images_arrive_in_order() -> None:
    seen: list[list[bytes]] = []

    def look(request: Request) -> dict[str, int]:
        seen.append(request.images)
        return {"images": len(request.images)}

    parts = [{"type": "text", "text": "a"}]
    parts += [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}} for data in ("AAEC", "AwQF")]  # type: ignore[dict-item]
    with ScriptedServer(look) as server:
        _, _, raw = post(server, {**HELLO, "messages": [{"role": "user", "content": parts}]})
    assert seen == [[b"\x00\x01\x02", b"\x03\x04\x05"]]
    assert json.loads(json.loads(raw)["choices"][0]["message"]["content"]) == {"images": 2}


def test_every_fault_does_what_it_says() -> None:
    kinds = [
        "429",
        "429-date",
        "429-bare",
        "500",
        "503",
        "garbage",
        "gateway",
        "nonsense",
        "refusal",
        "length",
        "empty",
    ]
    with ScriptedServer(echo, Faults(script=kinds, retry_after=7)) as server:
        got = {kind: post(server, HELLO) for kind in kinds}
        assert [got[kind][0] for kind in kinds] == [429, 429, 429, 500, 503, 200, 200, 200, 200, 200, 200]
        assert got["429"][1]["Retry-After"] == got["503"][1]["Retry-After"] == "7"
        assert parsedate_to_datetime(got["429-date"][1]["Retry-After"]).year >= 2020
        assert "Retry-After" not in got["429-bare"][1]
        assert got["garbage"][2].startswith(b"<html>")
        choice = {kind: json.loads(got[kind][2])["choices"][0] for kind in CONTENT}
        assert choice["refusal"]["message"]["content"] is None and "sorry" in choice["refusal"]["message"]["refusal"]
        assert choice["length"]["finish_reason"] == "length" and choice["length"]["message"]["content"] == "HE"
        assert choice["empty"]["message"]["content"] == ""
        assert server.billed.total() == len(CONTENT)
        assert server.faulted == Counter(kinds)


@pytest.mark.parametrize("fault", ["drop", "cut", "timeout"])
def test_broken_connections_are_really_broken(fault: str) -> None:
    with ScriptedServer(echo, Faults(script=[fault])) as server:
        with pytest.raises((http.client.HTTPException, OSError)):
            post(server, HELLO, timeout=0.3)
        assert not server.billed


def test_what_is_refused_is_named() -> None:
    with ScriptedServer(echo, formats=("json_object",), refuses=("seed", "max_tokens")) as server:
        status, _, raw = post(server, {**HELLO, "response_format": {"type": "json_schema"}})
        assert status == 400 and b"response_format" in raw
        assert post(server, {**HELLO, "response_format": {"type": "json_object"}})[0] == 200
        assert b"seed" in post(server, {**HELLO, "seed": 1})[2]
        assert post(server, "nonsense")[0] == 400


def test_faults_follow_the_question_and_not_the_order() -> None:
    faults = Faults.everything(0.3, seed=1)
    first = [faults.pick(f"q{i}", 0, i) for i in range(2000)]
    assert first == [faults.pick(f"q{i}", 0, 5000 - i) for i in range(2000)]
    assert 0.26 < sum(map(bool, first)) / 2000 < 0.34
    assert set(first) == {*KINDS, ""} - {*LOST}
    for i, fault in enumerate(first):
        second = faults.pick(f"q{i}", 1, 0)
        assert second == fault if fault in CONTENT else second not in CONTENT
    assert [fault for fault in first if fault] != [fault for fault in map(str, Faults().rates) if fault]


def test_impossible_faults_are_refused() -> None:
    with pytest.raises(UnknownName, match=r"'tiemout'.*'timeout'"):
        Faults({"tiemout": 0.1})
    with pytest.raises(BadInput, match="add up to at most 1"):
        Faults({"500": 0.6, "cut": 0.6})


def test_busy_is_the_mean_number_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 4.0])
    monkeypatch.setattr("fakes.judge.server.time.monotonic", lambda: next(times))
    busy = Busy()
    for by in (1, 1, -1, -1):
        busy.change(by)
    monkeypatch.undo()
    # One for a second, two for two seconds, one for a second, of two slots for four seconds.
    assert busy.share(2) == pytest.approx(6 / 8)
    assert busy.most == 2
