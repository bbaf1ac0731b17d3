"""A model on a reward server, used like any other: it scores, compares and follows live episodes.

    model = demerit.RemoteModel("http://127.0.0.1:8000")

When the server cannot be reached or is busy, the client tries again for `patience` seconds. A live episode goes on
after the server was restarted: its frames are kept and sent again. The server refuses to answer when its model is
another one than this client's card says.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, PayloadTooBig, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from demerit.data.episode import Episode
from demerit.data.files import parse_json
from demerit.data.reward import Reward
from demerit.data.splits import SeenEpisodes
from demerit.errors import BadInput, DemeritError, RemoteError, UnknownName
from demerit.models.protocol import LiveEpisode, LiveFrame, LiveReward, ModelCard, ShownModel
from demerit.use.serve.wire import Buffer, encode_episode, encode_frame, message_parts, read_live, read_reward

TOKEN = "DEMERIT_TOKEN"
AT_ONCE = 4
"""requests at once: one is decoded and one is sent while one is computed"""
MOST_ANSWER = 64 * 1024 * 1024
MOST_MESSAGE = 1024 * 1024
READ_BYTES = 65536
BUSY, GONE, TOO_LARGE = (429, 503), 410, 413
REFUSED = (400, TOO_LARGE)
"""this request is refused; others may be accepted"""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Transport:
    """The way to a server: HTTP, and WebSockets for live episodes.

    Give `RemoteModel` an object with other methods to test without a network, to sign or to record requests.
    """

    def __init__(self, url: str, timeout: float) -> None:
        """`timeout` is for each wait, in seconds."""
        parts = urlsplit(url)
        self._place, self._secure, self._timeout = parts.netloc, parts.scheme == "https", timeout

    def request(self, method: str, path: str, headers: Mapping[str, str], body: Sequence[Buffer]) -> tuple[int, bytes]:
        """Send a request; return the status and the body of the answer. Raises OSError without an answer."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._place, timeout=self._timeout)
        try:
            connection.request(method, path, iter(body), dict(headers))
            response = connection.getresponse()
            return response.status, response.read(MOST_ANSWER)
        except http.client.HTTPException as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
        finally:
            connection.close()

    def connect(self, path: str, headers: Mapping[str, str]) -> LiveSocket:
        """Open a connection for live episodes, one after the other. Raises OSError, or InvalidStatus when refused."""
        return LiveSocket(f"{'wss' if self._secure else 'ws'}://{self._place}{path}", headers, self._timeout)


class RemoteModel(ShownModel):
    """A model on a reward server. It has `prefer` and `start` if the server's model has them."""

    prefer: Callable[[Sequence[tuple[Episode, Episode]]], list[float]]
    start: Callable[[str], LiveEpisode]
    reads_files = True
    """videos are sent as they are: the scoring job does not decode them"""

    def __init__(
        self,
        url: str,
        model: str = "",
        *,
        token: str | None = None,
        patience: float = 30.0,
        timeout: float = 120.0,
        history_megabytes: int = 256,
        transport: Transport | None = None,
    ) -> None:
        """Connect to a server and read its model's card.

        Args:
            url: `http://HOST:PORT`, or `http://HOST:PORT/MODEL` for one of several models.
            model: which of several models, if the address does not say it.
            token: the server's token; by default, the environment variable DEMERIT_TOKEN.
            patience: seconds to try again while the server cannot be reached or is busy.
            timeout: seconds to wait for an answer.
            history_megabytes: frames of a live episode that are kept, to be sent again after a restart of the server.
                A longer episode cannot go on then.
            transport: the way to the server; None = the network.
        """
        try:
            parts = urlsplit(url)
            is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_good = False
        if not is_good:
            raise BadInput("server", "an address such as http://127.0.0.1:8000", repr(url))
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        token = os.environ.get(TOKEN) if token is None else token
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.patience, self.history = patience, history_megabytes * 1024 * 1024
        self._transport = transport or Transport(self.url, timeout)
        self._idle: list[LiveSocket] = []
        answer = self._request("GET", "/models")
        with self.reading():
            models = {facts["card"]["name"]: facts for facts in answer["models"]}
            self._most = int(answer["limits"]["megabytes"]) * 1024 * 1024
        name = model or parts.path.strip("/") or (next(iter(models)) if len(models) == 1 else "")
        if name not in models:
            raise UnknownName(f"model at {self.url} (as in {self.url}/NAME)", name, models)
        facts = models[name]
        with self.reading():
            self.card = ModelCard(**facts["card"])
            self.seen = SeenEpisodes.from_dict(facts["seen"], f"{self.url}/models")
            self._query = urlencode({"model": name, "card": facts["hash"]})
            if facts["prefers"]:
                self.prefer = self._prefer
            if facts["live"]:
                self.start = self._start

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Score episodes on the server. An episode that cannot be read or sent is unscored with the reason."""
        return _ask_all(self._score, episodes)

    def _score(self, episode: Episode) -> Reward:
        try:
            answer = self._send("/score", [episode])
        except DemeritError as error:
            return Reward.unscored(self.card.name, episode.id, _why_refused(error))
        with self.reading():
            (facts,) = answer["rewards"]
            return read_reward(facts)

    def _prefer(self, pairs: Sequence[tuple[Episode, Episode]]) -> list[float]:
        """Return the probability that the first of each pair is better; NaN when unknown."""
        return _ask_all(self._compare, pairs)

    def _compare(self, pair: tuple[Episode, Episode]) -> float:
        try:
            answer = self._send("/prefer", pair, pairs=[[0, 1]])
        except DemeritError as error:
            _why_refused(error)
            return math.nan
        with self.reading():
            (number,) = answer["first"]
            return math.nan if number is None else float(number)

    def _start(self, instruction: str) -> RemoteEpisode:
        """Start a live episode; many may run at once."""
        return RemoteEpisode(self, instruction)

    def _send(self, path: str, episodes: Sequence[Episode], **more: Any) -> Any:
        encoded = [encode_episode(episode, self.card, self._most) for episode in episodes]
        header = {"episodes": [facts for facts, _ in encoded], **more}
        body = message_parts(header, [part for _, parts in encoded for part in parts])
        if sum(map(len, body)) > self._most:
            raise RemoteError(self.url, TOO_LARGE, f"it accepts at most {self._most} bytes")
        return self._request("POST", f"{path}?{self._query}", body)

    def _request(self, method: str, path: str, body: Sequence[Buffer] = ()) -> Any:
        size = str(sum(map(len, body)))
        headers = {**self._headers, "Content-Type": "application/octet-stream", "Content-Length": size}

        def ask() -> Any:
            try:
                status, content = self._transport.request(method, path, headers, body)
            except OSError:
                if body:  # a server that refuses does not read the body: ask for the reason alone
                    self._request("GET", f"/models?{self._query}")
                raise
            return self._read(status, content)

        return self.try_again(ask)

    def _read(self, status: int, content: bytes) -> dict[str, Any]:
        with self.reading(status):
            answer = parse_json(content, "answer")
        if "error" in answer:
            raise RemoteError(self.url, answer.get("status", status), str(answer["error"]).rstrip("."))
        return answer

    @contextmanager
    def reading(self, status: int = 200) -> Iterator[None]:
        """Raise RemoteError for an answer that cannot be understood."""
        try:
            yield
        except (KeyError, TypeError, ValueError, DemeritError) as error:
            raise RemoteError(self.url, status, f"not as a reward server does ({error!r})") from error

    def try_again(self, ask: Callable[[], Answer]) -> Answer:
        """Call it until it answers; raises RemoteError when patience is over."""
        return keep_asking(ask, self.url, self.patience, self.close)

    def connect(self) -> LiveSocket:
        """Return a connection for a live episode: that of an ended one, or a new one."""
        if self._idle:
            return self._idle.pop()
        try:
            return self._transport.connect(f"/live?{self._query}", self._headers)
        except InvalidStatus as refused:
            self._read(refused.response.status_code, bytes(refused.response.body or b""))
            raise ConnectionError(str(refused)) from refused

    def ask(self, line: LiveSocket, message: str | bytes) -> dict[str, Any]:
        """Send a message of a live episode; return the answer."""
        return self._read(200, line.ask(message))

    def keep(self, line: LiveSocket) -> None:
        """Keep the connection of an ended live episode for the next one."""
        self._idle.append(line)

    def close(self) -> None:
        """Close the connections that no live episode uses."""
        while self._idle:
            self._idle.pop().close()


class RemoteEpisode:
    """A live episode on a server. A frame is sent once, and again only after the connection was lost."""

    def __init__(self, model: RemoteModel, instruction: str) -> None:
        """Start it."""
        self._model = model
        self._kept: list[str | bytes] = [json.dumps({"start": instruction})]
        self._frames = self._size = 0
        self.model_seconds = 0.0
        """what the model itself took for the last frame"""
        self._line: LiveSocket | None = None
        model.try_again(self._connect)

    def step(self, frame: LiveFrame) -> LiveReward:
        """Send the next frame; return its reward."""
        message = encode_frame(frame)
        answer = self._model.try_again(lambda: self._send(message))
        self._frames += 1
        self._size += len(message)
        if self._size <= self._model.history:
            self._kept.append(message)
        else:
            del self._kept[1:]
        with self._model.reading():
            self.model_seconds = float(answer["seconds"])
            return read_live(answer)

    def _send(self, message: bytes) -> dict[str, Any]:
        if self._line is None:
            self._connect()
        return self._exchange(message, REFUSED)

    def _connect(self) -> None:
        """Start the episode on the server and send the frames so far."""
        if len(self._kept) <= self._frames:
            reason = f"the connection was lost, and its {self._frames} frames were too many to keep (history_megabytes)"
            raise RemoteError(self._model.url, GONE, f"the live episode cannot go on: {reason}")
        self._line = self._model.connect()
        for message in self._kept:
            self._exchange(message)

    def _exchange(self, message: str | bytes, harmless: Collection[int] = ()) -> dict[str, Any]:
        """Ask; an error other than the harmless ones ends the connection, and the next step starts with a new one."""
        line, self._line = self._line, None
        assert line is not None
        try:
            answer = self._model.ask(line, message)
        except BaseException as error:
            if isinstance(error, RemoteError) and error.status in harmless:
                self._line = line
            else:
                line.close()
            raise
        self._line = line
        return answer

    def __del__(self) -> None:
        if getattr(self, "_line", None) is not None:
            self._model.keep(self._line)  # type: ignore[arg-type]


class LiveSocket:
    """The client's end of a WebSocket: it waits for answers in the caller's thread. Not for several threads at once.

    `websockets.sync` reads in a thread of its own, and waking the caller takes as long as the frame's way there.
    """

    def __init__(self, address: str, headers: Mapping[str, str], timeout: float, most: int = MOST_MESSAGE) -> None:
        """Connect; raises OSError, or InvalidStatus when the server refuses.

        `timeout` is for each wait, in seconds; `most` is the largest message accepted, in bytes.
        """
        uri = parse_uri(address)
        self._address, self._most, self._protocol = address, most, ClientProtocol(uri, max_size=most)
        self._events, self._parts, self._is_text = deque[object](), list[bytes](), False
        self._socket = socket.create_connection((uri.host, uri.port), timeout)
        try:
            if uri.secure:
                self._socket = ssl.create_default_context().wrap_socket(self._socket, server_hostname=uri.host)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request = self._protocol.connect()
            request.headers.update(headers)
            self._protocol.send_request(request)
            while not self._events and self._protocol.handshake_exc is None:
                self._events.extend(self._exchange_bytes())
            refused = self._protocol.handshake_exc
            if isinstance(refused, InvalidStatus):
                raise refused
            if refused is not None:
                raise ConnectionError(str(refused)) from refused
        except BaseException:
            self._socket.close()
            raise

    def ask(self, message: str | bytes) -> bytes:
        """Send a message and return the next one of the server."""
        self.send(message)
        return self.receive()[1]

    def send(self, message: str | bytes) -> None:
        """Send a message."""
        try:
            if isinstance(message, str):
                self._protocol.send_text(message.encode())
            else:
                self._protocol.send_binary(message)
        except WebSocketException as error:
            raise ConnectionError(str(error)) from error

    def receive(self) -> tuple[bool, bytes]:
        """Return the next message of the server, and whether it is text."""
        while True:
            while self._events:
                event = self._events.popleft()
                if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                    self._is_text = event.opcode is Opcode.TEXT if event.opcode is not Opcode.CONT else self._is_text
                    self._parts.append(bytes(event.data))
                    if event.fin:
                        message, self._parts = b"".join(self._parts), []
                        return self._is_text, message
            self._events.extend(self._exchange_bytes())

    def close(self) -> None:
        """Close it, without waiting for the server."""
        self._socket.close()

    def __del__(self) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()

    def _exchange_bytes(self) -> list[object]:
        """Send what is to be sent, wait for bytes, and return the events in them."""
        for data in self._protocol.data_to_send():
            self._socket.sendall(data)
        received = self._socket.recv(READ_BYTES)
        if not received or self._protocol.close_rcvd is not None:
            raise ConnectionError(f"the server closed the connection ({self._protocol.close_rcvd or 'without a word'})")
        self._protocol.receive_data(received)
        if isinstance(self._protocol.parser_exc, PayloadTooBig):
            raise RemoteError(self._address, TOO_LARGE, f"its message is larger than {self._most} bytes")
        return list(self._protocol.events_received())


def keep_asking(ask: Callable[[], Answer], url: str, patience: float, forget: Callable[[], None]) -> Answer:
    """Call it until it answers, for `patience` seconds; raises RemoteError after that.

    `forget` is called where the server cannot be reached: it closes connections that are gone.
    """
    until, pause, tried = time.monotonic() + patience, FIRST_PAUSE, False
    while True:
        try:
            return ask()
        except RemoteError as error:
            if error.status not in BUSY or (tried and time.monotonic() + pause > until):
                raise
        except OSError as error:
            forget()
            if tried and time.monotonic() + pause > until:
                raise RemoteError(url, 0, str(error) or type(error).__name__) from error
        time.sleep(pause)
        pause, tried = min(2 * pause, LONGEST_PAUSE), True


def _ask_all(ask: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
    """Ask about each, some at once; after an error or Ctrl-C nothing more is asked."""
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        return list(pool.map(ask, items))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _why_refused(error: DemeritError) -> str:
    """Return why an episode cannot be read or is refused; raise what is wrong with the server or the connection."""
    if not isinstance(error, RemoteError):
        return str(error)
    if error.status not in REFUSED:
        raise error
    return error.message
