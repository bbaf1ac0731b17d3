"""The door of every server: strangers get few bytes, little time and few connections; who is known is never hurried."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from demerit.web import doors
from demerit.web.doors import STRANGER_BYTES, Door, Doors, OncePerMinute, welcome
from demerit.web.server import WebServer, make_app, read_body

HEAD = b"POST /known HTTP/1.1\r\nHost: localhost\r\n"


async def count(request: Request) -> Response:
    if request.url.path == "/known":
        welcome(request)
    return PlainTextResponse(str(len(await read_body(request, 1_000_000))))


async def echo(live: WebSocket) -> None:
    await live.accept()
    while (message := await live.receive())["type"] == "websocket.receive":
        await live.send_text(str(len(message["text"])))


@pytest.fixture
def server() -> Iterator[WebServer]:
    routes = [
        Route("/", lambda request: PlainTextResponse(request.client.host)),
        Route("/health", lambda request: PlainTextResponse("ok")),
        Route("/large", lambda request: Response(bytes(50_000_000))),
        Route("/stranger", count, methods=["POST"]),
        Route("/known", count, methods=["POST"]),
        WebSocketRoute("/echo", echo),
    ]
    with WebServer(make_app(routes), behind_proxy=True, largest_message=3000, largest_first=100) as running:
        yield running


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let strangers' times be over at once."""
    for name in ("HEAD_SECONDS", "STRANGER_SECONDS", "LINGER_SECONDS", "SWEEP_SECONDS"):
        monkeypatch.setattr(doors, name, 0.01)


def open_raw(server: WebServer, sent: bytes = b"") -> socket.socket:
    address = urlsplit(server.url)
    raw = socket.create_connection((address.hostname, address.port), timeout=30)
    raw.sendall(sent)
    return raw


def read_all(raw: socket.socket) -> bytes:
    """Return what the server sends until it closes the connection."""
    found = b""
    try:
        while part := raw.recv(65536):
            found += part
    except ConnectionError:
        pass
    return found


def chunked(path: str, size: int) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{size:x}\r\n"
    return head.encode() + bytes(size) + b"\r\n0\r\n\r\n"


def test_strangers_may_send_little_and_others_more_however_they_announce_it(server: WebServer) -> None:
    for path, size, status in (
        ("/stranger", STRANGER_BYTES, b"200"),
        ("/stranger", STRANGER_BYTES + 1, b"413"),
        ("/known", STRANGER_BYTES + 1, b"200"),
        ("/known", 1_000_001, b"413"),
    ):
        with open_raw(server, chunked(path, size)) as raw:
            assert raw.recv(12).split()[1] == status
        assert httpx.post(server.url + path, content=bytes(size)).status_code == int(status)


def test_a_length_and_chunks_together_are_refused(server: WebServer) -> None:
    body = b"Content-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n0\r\n\r\n"
    with open_raw(server, HEAD + body) as raw:
        assert read_all(raw).startswith(b"HTTP/1.1 400")


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHo",
        b"POST /stranger HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf",
        b"POST /stranger HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000000\r\n\r\nhalf",
        b"POST /stranger HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100,
    ],
)
def test_strangers_who_stop_half_way_are_cut(server: WebServer, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    with open_raw(server, sent) as raw:
        assert read_all(raw).count(b"200 OK") <= 1  # ends, after one answer
    monkeypatch.undo()  # an honest request on a busy machine takes longer than no time
    assert httpx.get(server.url).status_code == 200


@pytest.mark.usefixtures("hurry")
def test_a_stranger_who_does_not_read_is_cut(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(doors, "HEAD_SECONDS", 60)
    with open_raw(server, b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        while not server._doors._open:
            pass
        while server._doors._open:
            pass


class FakeTransport:
    """A transport whose peer has read everything."""

    unsent = 0
    is_cut = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str) -> None:
        return None

    def is_reading(self) -> bool:
        return True

    def abort(self) -> None:
        self.is_cut = True


def watch(phase: str, is_known: bool, minutes: float, unsent: int = 0) -> bool:
    """Return whether a connection is cut that is at a phase for so long, and moved every 50 seconds."""

    async def run() -> bool:
        transport: Any = FakeTransport()
        transport.unsent = unsent
        door = Doors().open(transport)
        if is_known:
            door.welcome()
        door.enter(phase)
        for now in range(0, int(minutes * 60), 50):
            door.check(door.began + now)
            door.moved = door.began + now if phase == doors.BODY else door.moved
        return bool(transport.is_cut)

    return asyncio.run(run())


def test_a_known_sender_may_be_as_slow_as_it_is_if_bytes_arrive() -> None:
    assert not watch(doors.BODY, True, 60) and watch(doors.BODY, False, 2)
    assert not watch(doors.ANSWER, False, 60) and not watch(doors.ANSWER, True, 60)
    assert watch(doors.ANSWER, False, 3, unsent=1) and not watch(doors.ANSWER, True, 60, unsent=1)
    assert watch(doors.HEAD, True, 2) and watch(doors.REST, True, 2)


def test_a_known_sender_who_sends_nothing_is_cut(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "SWEEP_SECONDS", 0.01)
    with open_raw(server, HEAD + b"Content-Length: 100\r\n\r\nhalf") as raw:
        while not any(door.is_known for door in list(server._doors._open)):
            pass
        monkeypatch.setattr(doors, "IDLE_SECONDS", 0.01)
        assert read_all(raw) == b""


def test_too_many_strangers_make_room_and_known_ones_stay(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "STRANGERS", 4)
    with ExitStack() as stack:
        person = stack.enter_context(httpx.Client(base_url=server.url))
        assert person.post("/known", content=b"1").text == "1"
        known = set(server._doors._open)
        oldest, *others = [stack.enter_context(open_raw(server, b"GET / HTTP/1.1\r\n")) for _ in range(4)]
        while len(server._doors.strangers) < 4:
            pass
        assert httpx.get(server.url).status_code == 200
        assert read_all(oldest) == b""
        for raw in others:
            raw.sendall(b"Host: localhost\r\nConnection: close\r\n\r\n")
            assert read_all(raw).startswith(b"HTTP/1.1 200")
        assert known <= server._doors._open and person.post("/known", content=b"12").text == "2"


def test_a_full_server_answers_health_alone(server: WebServer) -> None:
    server._doors.most = 0
    assert [httpx.get(server.url + path).status_code for path in ("/health", "/")] == [200, 503]
    server._doors.most = 5
    assert httpx.get(server.url).status_code == 200


def test_the_last_proxy_says_who_asks(server: WebServer) -> None:
    for sent, expected in (
        ([], "127.0.0.1"),
        (["10.0.0.1"], "10.0.0.1"),
        (["6.6.6.6, 10.0.0.2"], "10.0.0.2"),
        (["6.6.6.6", "7.7.7.7, 10.0.0.3"], "10.0.0.3"),
        (["6.6.6.6, nonsense"], "127.0.0.1"),
    ):
        assert httpx.get(server.url, headers=[("X-Forwarded-For", value) for value in sent]).text == expected
    with WebServer(make_app([Route("/", lambda request: PlainTextResponse(request.client.host))])) as plain:
        assert httpx.get(plain.url, headers={"X-Forwarded-For": "10.0.0.1"}).text == "127.0.0.1"


def test_the_first_message_of_a_websocket_is_small(server: WebServer) -> None:
    address = server.url.replace("http", "ws") + "/echo"
    with connect(address, proxy=None) as live:
        live.send("x" * 101)
        with pytest.raises(ConnectionClosedError):
            live.recv(30)
    with connect(address, proxy=None) as live:
        for size in (100, 3000):
            live.send("x" * size)
            assert live.recv(30) == str(size)
        assert all(door.is_known for door in list(server._doors._open))


def test_bytes_that_are_not_http_in_the_middle_of_a_request_are_no_error_here(
    server: WebServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doors.ONCE_PER_MINUTE, "_passed", {})
    chunks = b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nnonsense\r\n"
    for line in (b"POST /known", b"POST /stranger", b"POST /nothing", b"HEAD /", b"GET /large"):
        with open_raw(server, line + b" HTTP/1.1\r\n" + chunks) as raw:
            read_all(raw)
    assert httpx.get(server.url).status_code == 200
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("line", "more"),
    [("POST /stranger HTTP/1.1", ""), ("GET /echo HTTP/1.0", ""), ("GET /echo HTTP/1.1", f"X: {'y' * 9000}\r\n")],
)
def test_a_wrong_handshake_is_answered(server: WebServer, line: str, more: str) -> None:
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    head = f"{line}\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{key}{more}\r\n"
    with open_raw(server, head.encode()) as raw:
        assert raw.recv(9) == b"HTTP/1.1 "


def test_a_kind_of_refusal_is_logged_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    passes, now = OncePerMinute(), [0.0]
    monkeypatch.setattr(doors.time, "monotonic", lambda: now[0])

    def log(text: str, *facts: object) -> bool:
        return passes.filter(logging.LogRecord("uvicorn.error", logging.WARNING, "", 1, text, facts, None))

    assert [log("Closed from %s", 1), log("Closed from %s", 2), log("Refused", 1), log("Refused", 2)] == [
        True,
        False,
        True,
        False,
    ]
    now[0] += doors.LOG_SECONDS
    assert log("Closed from %s", 3)


def test_a_server_logs_through_that_filter(server: WebServer) -> None:
    for name in ("uvicorn.error", "asyncio"):
        assert doors.ONCE_PER_MINUTE in logging.getLogger(name).filters


def test_descriptors_are_left_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors.resource, "getrlimit", lambda _: (300, 4096))
    assert Doors().most == 150


def test_the_same_connection_may_carry_a_stranger_next() -> None:
    async def run() -> tuple[bool, bool]:
        transport: Any = FakeTransport()
        door: Door = Doors().open(transport)
        door.welcome()
        known = door.is_known
        door.forget()
        return known, door.is_known

    assert asyncio.run(run()) == (True, False)
