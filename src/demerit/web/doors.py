"""The door of every server: who may keep a connection open, for how long, and with how many bytes.

A connection is a stranger's until the application knows who asks (`welcome`): by a session, a token, or because only
this machine can ask. Strangers get few bytes and little time. When there are too many of them, the one that the server
has waited for longest is cut. For people and programs that are known, only a connection without progress is cut, so a
slow network never ends a request that moves. A refusal is logged once a minute for each kind.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import h11
from starlette.requests import HTTPConnection
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

LOG = logging.getLogger("uvicorn.error")
HEAD_BYTES = 16_384
"""of a request's line and headers"""
STRANGER_BYTES = 64_000
"""of a stranger's body, and of the first message of a live connection"""
STRANGERS = 256
"""connections of strangers"""
CONNECTIONS = 1_000
"""connections in all; half of the file descriptors that the process may open, if that is less"""
ROOM = 16
"""connections beyond that, which get an answer from /health alone"""
HEAD_SECONDS = 20.0
"""from the first byte of a request to the end of its headers"""
STRANGER_SECONDS = 30.0
"""for a stranger's body"""
IDLE_SECONDS = 60
"""without a request, without a byte of a known sender's body, or without a stranger reading the answer"""
LINGER_SECONDS = 2.0
"""in which the rest of a refused body is thrown away, so that its sender can read why"""
SWEEP_SECONDS = 1.0
LOG_SECONDS = 60.0
HEAD, BODY, ANSWER, REST, IDLE = "head", "body", "answer", "rest", "idle"
"""what a connection is at: headers arrive, a body arrives, the application works, a refused body arrives, nothing"""


class OncePerMinute(logging.Filter):
    """Passes each kind of message once a minute: an attack does not fill the disk."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[object, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log a message; those of one template are one kind, errors of one line too."""
        trace = record.exc_info[2] if isinstance(record.exc_info, tuple) else None
        kind = (str(record.msg).partition("\n")[0], trace and trace.tb_lineno)
        now = time.monotonic()
        if now - self._passed.get(kind, -LOG_SECONDS) < LOG_SECONDS:
            return False
        self._passed[kind] = now
        return True


ONCE_PER_MINUTE = OncePerMinute()


@dataclass(eq=False)
class Door:
    """A connection: what it is at, since when, and when it last moved (seconds of the event loop)."""

    doors: Doors
    transport: asyncio.Transport
    began: float
    moved: float
    phase: str = HEAD
    is_known: bool = False
    unsent: int = 0
    """bytes of the answer that the peer has not read"""

    def enter(self, phase: str) -> None:
        """Note a phase, which may be the one that it is at."""
        self.moved = self.doors.now()
        if phase != self.phase:
            self.phase, self.began = phase, self.moved
            if not self.is_known:
                self.doors.wait_last(self)

    def welcome(self) -> None:
        """Note that the application knows who asks."""
        self.is_known = True
        self.doors.strangers.pop(self, None)

    def forget(self) -> None:
        """Note a new request: behind a proxy, another person's may come by the same connection."""
        self.is_known = False
        self.doors.wait_last(self)

    @property
    def waits_for_peer(self) -> bool:
        """Whether the peer, and not the application, is to act."""
        return self.phase != ANSWER or self.transport.get_write_buffer_size() > 0

    def cut(self, reason: str, *facts: object) -> None:
        """Close it at once."""
        peer = (self.transport.get_extra_info("peername") or ["?"])[0]
        LOG.warning(f"Closed a connection: {reason} (from %s)", *facts, peer)
        self.transport.abort()

    def check(self, now: float) -> None:
        """Cut it if it took too long."""
        unsent = self.transport.get_write_buffer_size()
        if unsent != self.unsent:
            self.unsent, self.moved = unsent, now
        if self.phase == HEAD and now - self.began > HEAD_SECONDS:
            self.cut("no whole request after %g seconds", HEAD_SECONDS)
        elif self.phase == REST and now - self.began > LINGER_SECONDS:
            self.cut("it sends more after it was refused")
        elif self.phase == BODY and not self.is_known and now - self.began > STRANGER_SECONDS:
            self.cut("a stranger's body took more than %g seconds", STRANGER_SECONDS)
        elif self.phase == BODY and self.transport.is_reading() and now - self.moved > IDLE_SECONDS:
            self.cut("no byte of a body for %g seconds", IDLE_SECONDS)
        elif unsent and not self.is_known and now - self.moved > IDLE_SECONDS:
            self.cut("a stranger does not read the answer")


class Doors:
    """The connections of a server."""

    def __init__(self) -> None:
        self.most = min(CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self.strangers: dict[Door, None] = {}
        """the one that has been at its phase for longest first"""
        self._open: set[Door] = set()
        self._sweep_at: asyncio.TimerHandle | None = None

    @property
    def is_full(self) -> bool:
        """Whether only /health is answered."""
        return len(self._open) > self.most

    def now(self) -> float:
        """Return the event loop's time in seconds."""
        return asyncio.get_running_loop().time()

    def open(self, transport: asyncio.Transport) -> Door:
        """Note a connection; one that has waited for longest may have to go for it."""
        door = Door(self, transport, self.now(), self.now())
        if len(self.strangers) >= STRANGERS or len(self._open) >= self.most:
            if oldest := next((stranger for stranger in self.strangers if stranger.waits_for_peer), None):
                oldest.cut("too many strangers, and this one waited for longest")
                self.close(oldest)
        self._open.add(door)
        self.strangers[door] = None
        if len(self.strangers) > STRANGERS + ROOM or len(self._open) > self.most + ROOM:
            door.cut("too many connections")
        if self._sweep_at is None:
            self._sweep_at = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
        return door

    def close(self, door: Door) -> None:
        """Forget a connection."""
        self._open.discard(door)
        self.strangers.pop(door, None)

    def wait_last(self, door: Door) -> None:
        """Put a stranger's connection behind the others, if it is open."""
        if door in self._open:
            self.strangers.pop(door, None)
            self.strangers[door] = None

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for door in list(self._open):
            door.check(loop.time())
        self._sweep_at = loop.call_later(SWEEP_SECONDS, self._sweep) if self._open else None


class HttpDoor(H11Protocol):
    """An HTTP connection that its door watches."""

    def __init__(self, doors: Doors, **given: Any) -> None:
        super().__init__(**given)
        self._doors = doors

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Open the door; requests find it in their state."""
        super().connection_made(transport)
        self.door = self._doors.open(transport)
        self.app_state = {**self.app_state, "door": self.door}

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the door."""
        super().connection_lost(exc)
        self._doors.close(self.door)

    def handle_events(self) -> None:
        """Read what has arrived, and note what the connection is at."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self.door.forget()
        self.door.enter(self._phase())

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP, also in the middle of a body: the application's answer is not sent then."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        with suppress(h11.LocalProtocolError):  # an answer has begun
            super().send_400_response(msg)
        self.transport.close()

    def on_response_complete(self) -> None:
        """Note that the connection is free, or that the rest of a refused body arrives."""
        if not self.door.is_known and self.conn.trailing_data[0] and self.conn.their_state is h11.DONE:
            self.transport.close()  # when this answer is sent: strangers may not send one request behind the other
        super().on_response_complete()
        phase = self._phase()
        self.door.enter(IDLE if phase == HEAD and not self.conn.trailing_data[0] else phase)

    def _should_upgrade(self) -> bool:
        """Whether it is a request for a WebSocket; one by another method is a plain request."""
        return self.scope["method"] == "GET" and self.scope["http_version"] == "1.1" and super()._should_upgrade()

    def _phase(self) -> str:
        if self.conn.their_state is h11.IDLE:
            return HEAD
        if self.conn.their_state is h11.SEND_BODY:
            return REST if self.conn.our_state is h11.DONE else BODY
        return ANSWER


class WebSocketDoor(WebSocketsSansIOProtocol):
    """A WebSocket: known when the application accepts it; its first message is small if the server says so."""

    def __init__(self, doors: Doors, largest_first: int, **given: Any) -> None:
        super().__init__(**given)
        self._doors, self.door = doors, given["app_state"]["door"]
        self.conn.max_message_size = largest_first

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the door."""
        super().connection_lost(exc)
        self._doors.close(self.door)

    def data_received(self, data: bytes) -> None:
        """Read what has arrived; the request comes first and whole."""
        super().data_received(data)
        if not self.handshake_initiated:
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            self.transport.close()

    def send_receive_event_to_app(self) -> None:
        """Pass a message on; later ones may be large."""
        super().send_receive_event_to_app()
        self.conn.max_message_size = self.config.ws_max_size

    async def send(self, message: Any) -> None:
        """Send; who is accepted is known."""
        if message["type"] == "websocket.accept":
            self.door.welcome()
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True  # it was refused; without this, uvicorn logs an error


# What applications say


def welcome(connection: HTTPConnection) -> None:
    """Note that the application knows who sends this request: it may be large, and slow."""
    connection.scope["demerit.known"] = True
    door = connection.scope.get("state", {}).get("door")
    if door is not None:
        door.welcome()


def is_known(connection: HTTPConnection) -> bool:
    """Whether the application knows who sends this request."""
    return bool(connection.scope.get("demerit.known"))
