"""A fake server for the chat-completions protocol: real HTTP, answers from a function, faults on purpose.

It counts the answers that it sent in full, which is what a real server would bill.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fakes.judge.faults import LOST, TRANSPORT, Faults

NONSENSE = "The frames show a robot. Frame 3 is blue, so {the progress"
REFUSAL = "I'm sorry, but I can't help with that."
_HUNG = 3600.0


@dataclass(frozen=True)
class Request:
    """One question as it arrived."""

    body: dict[str, Any]
    number: int
    """how many requests came before it"""
    attempt: int
    """how many times the same question came before"""
    question: str
    """a hash of everything that can change the answer"""

    @property
    def text(self) -> str:
        return "\n".join(part["text"] for part in self.parts if part.get("type") == "text")

    @property
    def images(self) -> list[bytes]:
        urls = [part["image_url"]["url"] for part in self.parts if part.get("type") == "image_url"]
        return [base64.b64decode(url.split(",", 1)[1]) for url in urls]

    @property
    def parts(self) -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = []
        for message in self.body["messages"]:
            content = message["content"]
            out += [{"type": "text", "text": content}] if isinstance(content, str) else content
        return out

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
        """The share of `slots` that was in use on average, from the first request to the end of the last."""
        with self._lock:
            return self._area / (slots * (self._last - self._first)) if self._last > self._first else 0.0


def question_hash(body: dict[str, Any]) -> str:
    """Name a question by what decides its answer; the same one in another response format is still the same."""
    mark = "It must fit this JSON Schema"
    messages = [
        message
        for message in body["messages"]
        if not (isinstance(message["content"], str) and mark in message["content"])
    ]
    facts = [body.get("model"), messages, body.get("temperature"), body.get("seed")]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


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
        refuses: tuple[str, ...] = (),
        counts_tokens: bool = True,
    ) -> None:
        """Prepare the server.

        Args:
            answer: makes the answer to a request.
            faults: what goes wrong.
            key: the expected key; empty for none. A wrong one is repeated in the error, as some servers do.
            latency: seconds per answer.
            formats: the kinds of `response_format` that it accepts.
            refuses: other fields that it answers with 400, for example seed.
            counts_tokens: whether answers carry `usage`.
        """
        self.answer, self.faults, self.key, self.latency = answer, faults or Faults(), key, latency
        self.formats, self.refuses, self.counts_tokens = formats, refuses, counts_tokens
        self.asked: Counter[str] = Counter()
        """requests per question"""
        self.billed: Counter[str] = Counter()
        """answers that were sent in full, per question"""
        self.faulted: Counter[str] = Counter()
        """faults per kind"""
        self.busy = Busy()
        self._lock, self.closing = threading.Lock(), threading.Event()
        self._http = _Http(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def take(self, body: dict[str, Any]) -> tuple[Request, str]:
        """Number a request and choose its fault."""
        question = question_hash(body)
        with self._lock:
            request = Request(body, self.asked.total(), self.asked[question], question)
            self.asked[question] += 1
            fault = self.faults.pick(question, request.attempt, request.number)
            if fault:
                self.faulted[fault] += 1
        return request, fault

    def bill(self, request: Request) -> None:
        with self._lock:
            self.billed[request.question] += 1

    def refusal(self, body: dict[str, Any]) -> str:
        """Say what of a request this server does not take; empty when it takes it."""
        kind = (body.get("response_format") or {}).get("type", "text")
        if kind != "text" and kind not in self.formats:
            return f"response_format of type {kind} is not supported by this model"
        found = [name for name in self.refuses if name in body]
        return f"Unsupported parameter: {found[0]}." if found else ""

    def completion(self, request: Request, fault: str) -> dict[str, Any]:
        """Make the answer as the protocol wants it."""
        message: dict[str, Any] = {"role": "assistant", "content": NONSENSE}
        finish = "stop"
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
            message["content"], finish = message["content"][: len(message["content"]) // 2], "length"
        out = {"id": f"chatcmpl-{request.number}", "object": "chat.completion", "created": int(time.time())}
        out |= {
            "model": request.body.get("model", ""),
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        }
        if self.counts_tokens:
            out["usage"] = self._usage(request, message["content"] or "")
        return out

    def _usage(self, request: Request, text: str) -> dict[str, int]:
        images = sum(part.get("type") == "image_url" for part in request.parts)
        read, wrote = len(request.text) // 4 + 200 * images + 1, len(text) // 4 + 1
        return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing when a client hangs up: that is what these tests are about."""


def _handler(server: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    return type("Handler", (_Handler,), {"owner": server})


class _Handler(BaseHTTPRequestHandler):
    owner: ScriptedServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60

    def log_message(self, format: str, *args: Any) -> None:
        """Keep no log: its lines would mix with the client's."""

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.path != "/v1/chat/completions":
            return self.error(404, f"there is nothing at {self.path}")
        if self.owner.key and given != self.owner.key:
            return self.error(401, f"Incorrect API key provided: {given}")
        try:
            body = json.loads(raw)
            refused = self.owner.refusal(body)
        except (ValueError, AttributeError):
            return self.error(400, "the request is not JSON")
        if refused:
            return self.error(400, refused)
        self.owner.busy.change(1)
        try:
            self.converse(body)
        finally:
            self.owner.busy.change(-1)

    def converse(self, body: dict[str, Any]) -> None:
        request, fault = self.owner.take(body)
        wait = self.owner.latency + (self.owner.faults.delay if fault == "slow" else 0.0)
        if fault in TRANSPORT or fault in LOST:
            return self.fail(request, fault)
        start = time.monotonic()
        answer = self.owner.completion(request, fault)
        self.owner.closing.wait(max(0.0, wait - (time.monotonic() - start)))
        # Before the last byte: a client that has the whole answer must find it counted.
        self.owner.bill(request)
        self.send(200, answer)

    def fail(self, request: Request, fault: str) -> None:
        if fault in ("timeout", "drop", "cut"):
            return self.hang_up(request, fault)
        if fault == "garbage":
            return self.send_bytes(200, b"<html>Bad gateway</html>", {"Content-Type": "text/html"})
        if fault == "gateway":
            return self.send(200, {"error": {"message": "upstream overloaded", "code": 502}})
        if fault == "500":
            return self.error(500, "internal error")
        seconds = self.owner.faults.retry_after
        hints = {
            "429": f"{seconds:g}",
            "503": f"{seconds:g}",
            "429-date": formatdate(time.time() + seconds, usegmt=True),
        }
        headers = {"Retry-After": hints[fault]} if fault in hints else {}
        self.error(int(fault[:3]), "slow down", headers)

    def hang_up(self, request: Request, fault: str) -> None:
        self.close_connection = True
        if fault == "timeout":
            self.gone(_HUNG)
        if fault in ("timeout", "drop"):
            return
        whole = json.dumps(self.owner.completion(request, "")).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        self.wfile.write(whole[: len(whole) // 2])

    def gone(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        self.connection.settimeout(0.05)
        while time.monotonic() < end and not self.owner.closing.is_set():
            try:
                return not self.connection.recv(1)
            except TimeoutError:
                continue
            except OSError:
                return True
        return True

    def error(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        self.send(status, {"error": {"message": message, "type": "error", "code": None}}, headers)

    def send(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        self.send_bytes(status, json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})})

    def send_bytes(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
