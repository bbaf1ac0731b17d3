"""A fake chat-completions server: real HTTP, answers from a function, faults on purpose.

It counts the answers that it sent in full, which is what a real server would bill. A fault depends on the question and
on how often it was asked before, not on time: the same questions meet the same faults however many threads ask them.
"""

import base64
import hashlib
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TRANSPORT = ("timeout", "429", "429-date", "429-bare", "500", "503", "cut", "drop")
"""the answer is lost; the SDK asks again"""
LOST = ("garbage", "gateway")
"""status 200 without a completion; the SDK does not ask again"""
CONTENT = ("nonsense", "refusal", "length", "empty")
"""an answer that is billed and useless; the same question gets the same again"""
KINDS = (*TRANSPORT, *LOST, *CONTENT, "slow")
NONSENSE = "The frames show a robot. Frame 3 is blue, so {the progress"
REFUSAL = "I'm sorry, but I can't help with that."


@dataclass(frozen=True)
class Faults:
    """Which faults occur, at which rates or in which order."""

    rates: Mapping[str, float] = field(default_factory=dict)
    """share of requests per kind"""
    script: Sequence[str] = ()
    """kinds for the first requests in order of arrival ('' for none), before any rate"""
    seed: int = 0
    retry_after: float = 1.0
    """seconds that a 429 or 503 asks to wait"""
    delay: float = 1.0
    """seconds that `slow` adds"""

    def __post_init__(self) -> None:
        assert {*self.rates, *self.script} <= {*KINDS, ""} and sum(self.rates.values()) <= 1

    @classmethod
    def everything(cls, rate: float, retry_after: float = 1.0, delay: float = 1.0) -> "Faults":
        """Spread one rate evenly over all kinds but the lost ones."""
        kinds = [kind for kind in KINDS if kind not in LOST]
        return cls({kind: rate / len(kinds) for kind in kinds}, retry_after=retry_after, delay=delay)

    def pick(self, question: str, attempt: int, arrival: int) -> str:
        """The fault of a request; empty for none. Attempts and arrivals count from 0."""
        if arrival < len(self.script):
            return self.script[arrival]
        fault = self._draw(question, 0)
        if fault in CONTENT or not attempt:
            return fault
        again = self._draw(question, attempt)
        return "" if again in CONTENT else again  # a question that was answered well stays answered well

    def _draw(self, question: str, attempt: int) -> str:
        digest = hashlib.sha256(f"{self.seed} {attempt} {question}".encode()).digest()
        place = int.from_bytes(digest[:8], "little") / 2**64
        for kind, rate in self.rates.items():
            if place < rate:
                return kind
            place -= rate
        return ""


@dataclass(frozen=True)
class Request:
    """A question as it arrived."""

    body: dict[str, Any]
    number: int
    """how many requests came before it"""
    attempt: int
    """how many times the same question came before"""
    question: str
    """a hash of everything that can change the answer"""

    @property
    def parts(self) -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = []
        for message in self.body["messages"]:
            content = message["content"]
            out += [{"type": "text", "text": content}] if isinstance(content, str) else content
        return out

    @property
    def text(self) -> str:
        return "\n".join(part["text"] for part in self.parts if part["type"] == "text")

    @property
    def images(self) -> list[bytes]:
        urls = [part["image_url"]["url"] for part in self.parts if part["type"] == "image_url"]
        return [base64.b64decode(url.split(",", 1)[1]) for url in urls]

    @property
    def seed(self) -> int:
        return int(self.body.get("seed") or 0)


Answer = Callable[[Request], "dict[str, Any] | str"]
"""text; an object to be written as JSON; or a whole completion (an object with `choices`)"""


class Busy:
    """How many requests were in flight, over time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now, self._area, self._first, self._last = 0, 0.0, math.nan, math.nan
        self.most = 0

    def change(self, by: int) -> None:
        with self._lock:
            now = time.monotonic()
            if math.isnan(self._first):
                self._first = self._last = now
            self._area += self._now * (now - self._last)
            self._now, self._last = self._now + by, now
            self.most = max(self.most, self._now)

    def share(self, slots: int) -> float:
        """The mean share of `slots` in use, from the first request to the end of the last."""
        with self._lock:
            return self._area / (slots * (self._last - self._first)) if self._last > self._first else 0.0


class ScriptedServer:
    """A fake chat server on a free local port, running inside `with`."""

    def __init__(
        self,
        answer: Answer,
        faults: Faults | None = None,
        *,
        key: str = "",
        latency: float = 0.0,
        formats: tuple[str, ...] = ("json_schema", "json_object"),
        counts_tokens: bool = True,
    ) -> None:
        """Prepare the server; it repeats a wrong key in its error, as some servers do, and waits `latency` seconds."""
        self.answer, self.faults, self.key, self.latency = answer, faults or Faults(), key, latency
        self.formats, self.counts_tokens = formats, counts_tokens
        self.asked: Counter[str] = Counter()
        """requests per question"""
        self.billed: Counter[str] = Counter()
        """answers that were sent in full, per question"""
        self.faulted: Counter[str] = Counter()
        """faults per kind"""
        self.busy, self.lock, self.closing = Busy(), threading.Lock(), threading.Event()
        self._http = _Http(("127.0.0.1", 0), type("Handler", (_Handler,), {"owner": self}))
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> "ScriptedServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def take(self, body: dict[str, Any]) -> tuple[Request, str]:
        """Number a request and choose its fault."""
        facts = [body.get(name) for name in ("model", "messages", "temperature", "seed")]
        question = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        with self.lock:
            request = Request(body, self.asked.total(), self.asked[question], question)
            self.asked[question] += 1
            fault = self.faults.pick(question, request.attempt, request.number)
            self.faulted.update([fault] if fault else [])
        return request, fault

    def completion(self, request: Request, fault: str) -> dict[str, Any]:
        """Make the body of an answer."""
        message: dict[str, Any] = {"role": "assistant", "content": NONSENSE}
        if fault == "refusal":
            message |= {"content": None, "refusal": REFUSAL}
        elif fault == "empty":
            message["content"] = ""
        elif fault != "nonsense":
            said = self.answer(request)
            if isinstance(said, dict) and "choices" in said:
                return said
            message["content"] = said if isinstance(said, str) else json.dumps(said)
        if fault == "length":
            message["content"] = message["content"][: len(message["content"]) // 2]
        choice = {"index": 0, "message": message, "finish_reason": "length" if fault == "length" else "stop"}
        out = {"id": str(request.number), "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        if self.counts_tokens:
            read = len(request.text) // 4 + 200 * len(request.images) + 1
            wrote = len(message["content"] or "") // 4 + 1
            out["usage"] = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
        return out


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    owner: ScriptedServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60

    def log_message(self, format: str, *args: Any) -> None:
        """Keep no log."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.owner.key and given != self.owner.key:
            return self.error(401, f"Incorrect API key provided: {given}")
        kind = (body.get("response_format") or {}).get("type", "text")
        if kind not in ("text", *self.owner.formats):
            return self.error(400, f"response_format of type {kind} is not supported by this model")
        self.owner.busy.change(1)
        try:
            self.converse(body)
        finally:
            self.owner.busy.change(-1)

    def converse(self, body: dict[str, Any]) -> None:
        request, fault = self.owner.take(body)
        if fault in (*TRANSPORT, *LOST):
            return self.fail(request, fault)
        end = time.monotonic() + self.owner.latency + (self.owner.faults.delay if fault == "slow" else 0.0)
        answer = self.owner.completion(request, fault)
        self.owner.closing.wait(max(0.0, end - time.monotonic()))
        with self.owner.lock:  # before the last byte: a client that has the whole answer must find it counted
            self.owner.billed[request.question] += 1
        self.send(200, json.dumps(answer).encode())

    def fail(self, request: Request, fault: str) -> None:
        seconds = self.owner.faults.retry_after
        date = formatdate(time.time() + seconds, usegmt=True)
        hints = {"429": f"{seconds:g}", "503": f"{seconds:g}", "429-date": date}
        if fault == "garbage":
            self.send(200, b"<html>Bad gateway</html>")
        elif fault == "gateway":
            self.error(200, "upstream overloaded")
        elif fault in ("timeout", "drop", "cut"):
            self.close_connection = True
            if fault == "timeout":
                self.wait_for_hang_up()
            if fault == "cut":
                whole = json.dumps(self.owner.completion(request, "")).encode()
                self.send(200, whole[: len(whole) // 2], {"Content-Length": str(len(whole))})
        else:
            self.error(int(fault[:3]), "try again", {"Retry-After": hints[fault]} if fault in hints else {})

    def wait_for_hang_up(self) -> None:
        self.connection.settimeout(0.05)
        while not self.owner.closing.is_set():
            try:
                self.connection.recv(1)
                return
            except TimeoutError:
                continue
            except OSError:
                return

    def error(self, status: int, message: str, headers: Mapping[str, str] = {}) -> None:
        self.send(status, json.dumps({"error": {"message": message, "type": "error", "code": None}}).encode(), headers)

    def send(self, status: int, data: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        kind = "text/html" if data.startswith(b"<") else "application/json"
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
