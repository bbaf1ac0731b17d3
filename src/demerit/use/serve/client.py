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
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from websockets.exceptions import WebSocketException

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.data.seen import SeenEpisodes
from demerit.data.untrusted import parse_json
from demerit.errors import BadInput, DemeritError, RemoteError, UnknownName
from demerit.models.protocol import LiveEpisode, LiveFrame, LiveReward, ModelCard
from demerit.use.serve.live_socket import LiveSocket
from demerit.use.serve.wire import Buffer, encode_episode, encode_frame, message_parts, read_live, read_reward

TOKEN = "DEMERIT_TOKEN"
AT_ONCE = 4
"""requests at once: one is decoded and one is sent while one is computed"""
MOST_ANSWER = 64 * 1024 * 1024
BUSY, GONE, TOO_LARGE = (429, 503), 410, 413
REFUSED = (400, TOO_LARGE)
"""this request is refused; others may be accepted"""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class RemoteModel:
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
        """
        try:
            parts = urlsplit(url)
            is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_good = False
        if not is_good:
            raise BadInput("server", "an address such as http://127.0.0.1:8000", repr(url))
        self._secure, self._place = parts.scheme == "https", parts.netloc.rpartition("@")[2]
        self.url = f"{parts.scheme}://{self._place}"
        token = os.environ.get(TOKEN) if token is None else token
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.patience, self.timeout, self.history = patience, timeout, history_megabytes * 1024 * 1024
        self._idle: list[LiveSocket] = []
        answer = self._request("GET", "/models")
        with self.reading():
            found = {one["card"]["name"]: one for one in answer["models"]}
            self._most = int(answer["limits"]["megabytes"]) * 1024 * 1024
        name = model or parts.path.strip("/") or (next(iter(found)) if len(found) == 1 else "")
        if name not in found:
            raise UnknownName(f"model at {self.url} (as in {self.url}/NAME)", name, found)
        with self.reading():
            self.card = ModelCard(**found[name]["card"])
            self.seen = SeenEpisodes.from_facts(found[name]["seen"], f"{self.url}/models")
            self._query = urlencode({"model": name, "card": found[name]["hash"]})
            if found[name]["prefers"]:
                self.prefer = self._prefer
            if found[name]["live"]:
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
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(sum(map(len, body)))}

        def ask() -> Any:
            connection = kind(self._place, timeout=self.timeout)
            try:
                connection.request(method, path, iter(body), self._headers | headers)
                response = connection.getresponse()
                return self._read(response.status, response.read(MOST_ANSWER))
            except OSError:
                if body:  # a server that refuses does not read the body: ask for the reason alone
                    self._request("GET", f"/models?{self._query}")
                raise
            finally:
                connection.close()

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
        until, pause, tried = time.monotonic() + self.patience, FIRST_PAUSE, False
        while True:
            try:
                return ask()
            except RemoteError as error:
                if error.status not in BUSY or (tried and time.monotonic() + pause > until):
                    raise
            except (OSError, http.client.HTTPException, WebSocketException) as error:
                self.close()  # connections of a server that is gone
                if tried and time.monotonic() + pause > until:
                    raise RemoteError(self.url, 0, str(error) or type(error).__name__) from error
            time.sleep(pause)
            pause, tried = min(2 * pause, LONGEST_PAUSE), True

    def connect(self) -> LiveSocket:
        """Return a connection for a live episode: that of an ended one, or a new one."""
        if self._idle:
            return self._idle.pop()
        address = f"{'wss' if self._secure else 'ws'}://{self._place}/live?{self._query}"
        return LiveSocket(address, self._headers, self.timeout)

    def ask(self, socket: LiveSocket, message: str | bytes) -> dict[str, Any]:
        """Send a message of a live episode; return the answer."""
        return self._read(200, socket.ask(message))

    def keep(self, socket: LiveSocket) -> None:
        """Keep the connection of an ended live episode for the next one."""
        self._idle.append(socket)

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
        self._socket: LiveSocket | None = None
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
        if self._socket is None:
            self._connect()
        return self._exchange(message, REFUSED)

    def _connect(self) -> None:
        """Start the episode on the server and send the frames so far."""
        if len(self._kept) <= self._frames:
            lost = f"the connection was lost, and its {self._frames} frames were too many to keep (history_megabytes)"
            raise RemoteError(self._model.url, GONE, f"the live episode cannot go on: {lost}")
        self._socket = self._model.connect()
        for message in self._kept:
            self._exchange(message)

    def _exchange(self, message: str | bytes, harmless: Collection[int] = ()) -> dict[str, Any]:
        """Ask; an error other than the harmless ones ends the connection, and the next step starts with a new one."""
        socket, self._socket = self._socket, None
        assert socket is not None
        try:
            answer = self._model.ask(socket, message)
        except BaseException as error:
            if isinstance(error, RemoteError) and error.status in harmless:
                self._socket = socket
            else:
                socket.close()
            raise
        self._socket = socket
        return answer

    def __del__(self) -> None:
        if getattr(self, "_socket", None) is not None:
            self._model.keep(self._socket)  # type: ignore[arg-type]


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
