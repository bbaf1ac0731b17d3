"""The reward server: models behind HTTP (`/score`, `/prefer`) and a WebSocket (`/live`); `wire` has the format.

The event loop only moves bytes. Models compute in their own threads (`model_threads`), uploaded videos are decoded in
processes of their own (`uploads`), so `/health` answers whatever they do.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import math
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI, Request, Response, WebSocket
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Message
from starlette.websockets import WebSocketDisconnect

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.data.seen import seen_by
from demerit.data.untrusted import parse_json
from demerit.errors import BadInput, DemeritError, UnknownName
from demerit.models.protocol import Comparer, LiveEpisode, LiveFrame, LiveReward, Online, Prepares, RewardModel
from demerit.use.serve.model_threads import ModelThreads, Overloaded
from demerit.use.serve.requests import SentEpisode, SentFrames, ServeLimits, read_episodes, read_frame
from demerit.use.serve.uploads import UploadDecoder
from demerit.use.serve.wire import encode_live, encode_reward, no_nan

VERSION = version("demerit")
LOG = logging.getLogger("uvicorn.error")
BINARY = "application/octet-stream"
PATHS = ("/health", "/metrics", "/models", "/score", "/prefer")
SCORE_PARAMETERS = frozenset({"model", "card", "instruction", "id"})
"""query parameters of /score; a misspelt instruction is refused, not scored as none"""
SHORTEST_TOKEN = 16
IN_FLIGHT = 4
"""how many requests of the largest size may be in memory at once"""
SWITCH_SECONDS = 0.002
"""how long a model's Python code may keep the event loop waiting; with 5 ms, Python's default, /health is slow, and
0.5 ms costs a tenth of the frames per second"""
KEEPALIVE_SECONDS = 60
"""until a silent connection is probed; WebSocket pings would need a thread in each client"""
RETRY_AFTER = {"Retry-After": "1"}
SENTENCE = {"type": "object", "properties": {"error": {"type": "string"}}}
REFUSED: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "Refused; `error` says why.", "content": {"application/json": {"schema": SENTENCE}}},
    "504": {"description": "The deadline has passed.", "content": {"application/json": {"schema": SENTENCE}}},
}
BODY = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in (BINARY, "video/mp4")}


class RewardApp:
    """The application: what each path answers."""

    def __init__(self, models: Sequence[RewardModel], limits: ServeLimits, token: str | None) -> None:
        """Start the threads of the models."""
        names = [model.card.name for model in models]
        if not names or len(set(names)) < len(names):
            raise BadInput("models", "models of different names", ", ".join(names) or "none")
        self.limits, self._token = limits, token
        self._models = {model.card.name: ModelThreads(model, limits.waiting, limits.deadline) for model in models}
        self._decoder = UploadDecoder(limits)
        self._decoding = ThreadPoolExecutor(self._decoder.processes, thread_name_prefix="demerit-upload")
        self._in_flight = self._live = 0
        self._make_metrics()
        self.asgi = FastAPI(title="demerit", version=VERSION, lifespan=self._end)
        add: Callable[..., None] = self.asgi.add_api_route
        guarded: dict[str, Any] = {"dependencies": [Depends(self._check_request)], "responses": REFUSED}
        sends_body: dict[str, Any] = {
            **guarded,
            "methods": ["POST"],
            "openapi_extra": {"requestBody": {"content": BODY}},
        }
        add("/health", self.health)
        add("/metrics", self.metrics, **guarded)
        add("/models", self.list_models, **guarded)
        add("/score", self.score, **sends_body)
        add("/prefer", self.prefer, **sends_body)
        self.asgi.add_api_websocket_route("/live", self.live)
        self.asgi.middleware("http")(self._count)
        for kind in (HTTPException, DemeritError):
            self.asgi.add_exception_handler(kind, self._on_error)

    async def health(self) -> dict[str, Any]:
        """Answer at once, whatever the models do."""
        models = {
            name: {"waiting": one.waiting, "busy_seconds": one.busy_seconds} for name, one in self._models.items()
        }
        return {"status": "ok", "version": VERSION, "live": self._live, "models": models}

    async def metrics(self) -> Response:
        """Return figures for Prometheus."""
        return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4")

    async def list_models(self, model: str = "", card: str = "") -> dict[str, Any]:
        """Return the card of each model, what it can do, and what the server accepts.

        With `model` and `card` (a hash), refuse as the other paths do if that model has another card.
        """
        if model:
            self._find(model, card)
        cards = [
            {
                "card": asdict(threads.model.card),
                "hash": threads.card_hash,
                "seen": seen_by(threads.model).as_facts(),
                "prefers": isinstance(threads.model, Comparer),
                "live": isinstance(threads.model, Online),
            }
            for threads in self._models.values()
        ]
        return {"models": cards, "limits": asdict(self.limits)}

    async def score(
        self, request: Request, model: str = "", card: str = "", instruction: str = "", id: str = "video"
    ) -> Response:
        """Score the episodes of a binary body, or a video (then `instruction` and `id` are query parameters).

        `model` may be left out if there is one; `card` is the hash of the card that the client knows.
        """
        if unknown := set(request.query_params) - SCORE_PARAMETERS:
            raise HTTPException(400, str(UnknownName("query parameter", min(unknown), SCORE_PARAMETERS)))
        threads = self._find(model, card)
        with ExitStack() as held:
            found, _ = await self._receive(request, threads.model, held, SentEpisode(id, instruction, {}))
            episodes = [one for one in found if isinstance(one, Episode)]
            rewards = iter(await self._wait(threads.score(episodes)) if episodes else [])
        answers = [encode_reward(one if isinstance(one, Reward) else next(rewards)) for one in found]
        return JSONResponse({"rewards": answers, "card": threads.card_hash})

    async def prefer(self, request: Request, model: str = "", card: str = "") -> Response:
        """Return the probability that the first episode of each pair is better; null when unknown."""
        threads = self._find(model, card)
        comparer = threads.model
        if not isinstance(comparer, Comparer):
            raise HTTPException(400, f"the model {comparer.card.name!r} does not compare episodes")
        with ExitStack() as held:
            found, places = await self._receive(request, comparer, held)
            pairs = [(found[first], found[second]) for first, second in places]
            asked = [(a, b) for a, b in pairs if isinstance(a, Episode) and isinstance(b, Episode)]
            answers = iter(await self._wait(threads.call(lambda: comparer.prefer(asked))))
        known = [math.nan if Reward in map(type, pair) else float(next(answers)) for pair in pairs]
        return JSONResponse({"first": no_nan(known), "card": threads.card_hash})

    async def live(self, socket: WebSocket, model: str = "", card: str = "") -> None:
        """Follow live episodes, one after the other: a text starts one, a binary message is a frame."""
        await socket.accept()
        try:
            self._check_token(socket.headers)
            threads = self._find(model, card)
            if not isinstance(threads.model, Online):
                raise HTTPException(400, f"the model {threads.model.card.name!r} does not score live episodes")
            if "origin" in socket.headers:
                raise HTTPException(403, "web pages may not use this server")
            if self._live >= self.limits.live:
                raise HTTPException(429, f"{self._live} live connections already: try again later")
        except HTTPException as refusal:
            with suppress(WebSocketDisconnect, TimeoutError):
                async with asyncio.timeout(self.limits.deadline):
                    await socket.receive_text()  # an answer before a question may get lost
                await socket.send_text(json.dumps({"error": refusal.detail, "status": refusal.status_code}))
                await socket.close()
            return
        self._live += 1
        run: LiveEpisode | None = None
        try:
            while (message := await socket.receive())["type"] == "websocket.receive":
                try:
                    run, answer = await self._answer_live(threads, threads.model, run, message)
                except Exception as error:  # third-party code may raise anything
                    answer = {"error": _sentence(error), "status": _status(error)}
                    if not isinstance(error, DemeritError | HTTPException):
                        LOG.warning("The model %s failed on a live frame", threads.model.card.name, exc_info=error)
                    run = run if isinstance(error, BadInput) else None  # it may have seen half a frame
                await socket.send_text(json.dumps(answer))
        except WebSocketDisconnect:
            pass  # the client is gone
        finally:
            self._live -= 1

    async def _answer_live(
        self, threads: ModelThreads, model: Online, run: LiveEpisode | None, message: Message
    ) -> tuple[LiveEpisode, dict[str, Any]]:
        if (text := message.get("text")) is not None:
            instruction = parse_json(text, "start").get("start")
            if not isinstance(instruction, str):
                raise BadInput("start", '{"start": "INSTRUCTION"}', text)
            return await self._wait(threads.call(lambda: model.start(instruction), live=True)), {}
        if run is None:
            raise BadInput("message", '{"start": "INSTRUCTION"} before the first frame', "a frame")
        frame = read_frame(message["bytes"], self.limits)
        reward, seconds = await self._wait(threads.call(partial(_time_step, run, frame), live=True))
        self._frames.labels(threads.model.card.name).inc()
        return run, {**encode_live(reward), "seconds": seconds}

    # What requests share

    def _find(self, name: str, card: str) -> ModelThreads:
        """Return a model by name (optional if there is only one); refuse a card that is not its own."""
        if not name and len(self._models) == 1:
            name = next(iter(self._models))
        if name not in self._models:
            raise HTTPException(404, str(UnknownName("model", name, self._models)))
        found = self._models[name]
        if card and card != found.card_hash:
            raise HTTPException(409, f"the model {name!r} is another one now (its card is {found.card_hash})")
        return found

    async def _check_request(self, request: Request) -> None:
        self._check_token(request.headers)

    def _check_token(self, headers: Mapping[str, str]) -> None:
        given = headers.get("authorization", "").removeprefix("Bearer ").encode()
        if self._token is not None and not hmac.compare_digest(given, self._token.encode()):
            raise HTTPException(
                401, "expected this server's token: RemoteModel(token=...), DEMERIT_TOKEN, or a Bearer header"
            )

    @contextmanager
    def _reserve(self, size: int) -> Iterator[None]:
        """Count bytes that a request holds; refuse more than the memory is meant for."""
        if size > self.limits.bytes:
            raise HTTPException(413, f"expected at most {self.limits.megabytes} MB, got {size} bytes")
        if self._in_flight + size > IN_FLIGHT * self.limits.bytes:
            raise HTTPException(429, "too many large requests at once: try again later")
        self._in_flight += size
        try:
            yield
        finally:
            self._in_flight -= size

    async def _receive(
        self, request: Request, model: RewardModel, held: ExitStack, video: SentEpisode | None = None
    ) -> tuple[list[Episode | Reward], list[tuple[int, int]]]:
        """Read the episodes and the pairs of a request. `held` is the memory that they take.

        An episode that cannot be decoded is a reward without values.
        """
        length = request.headers.get("content-length", "")
        if not length.isdecimal():
            raise HTTPException(411, "expected the header Content-Length")
        held.enter_context(self._reserve(int(length)))
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.deadline):
                async for chunk in request.stream():
                    body += chunk
        except TimeoutError:
            raise HTTPException(408, f"the body took longer than {self.limits.deadline:g} seconds") from None
        except ClientDisconnect:
            raise HTTPException(400, "the body ended early") from None
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == BINARY:
            sent, pairs = read_episodes(body, self.limits)
        elif kind.startswith("video/") and video is not None:
            sent, pairs = [replace(video, views={"main": memoryview(body)})], []
        else:
            raise HTTPException(415, f"expected the content type {BINARY} or video/..., got {kind or 'none'}")
        return [await self._decode(one, model, held) for one in sent], pairs

    async def _decode(self, sent: SentEpisode, model: RewardModel, held: ExitStack) -> Episode | Reward:
        """Decode an episode's videos."""
        prepare = model.prepare if isinstance(model, Prepares) else None
        views = dict(sent.views)
        try:
            for camera, view in sent.views.items():
                if not isinstance(view, SentFrames):
                    decode = partial(self._decoder.decode, view, model.card.frame_budget, prepare)
                    frames = await asyncio.get_running_loop().run_in_executor(self._decoding, decode)
                    held.enter_context(self._reserve(frames.images.nbytes))
                    views[camera] = frames
            return replace(sent, views=views).as_episode()
        except DemeritError as error:
            return Reward.unscored(model.card.name, sent.id, str(error).rstrip("."))

    async def _wait(self, future: Future[Any]) -> Any:
        """Wait for a model until the deadline."""
        try:
            async with asyncio.timeout(self.limits.deadline):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise HTTPException(504, f"no answer within {self.limits.deadline:g} seconds") from None

    async def _on_error(self, _: Request, error: Exception) -> Response:
        return _refuse(error)

    async def _count(self, request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        path, started = request.url.path if request.url.path in PATHS else "other", time.perf_counter()
        response = await answer(request)
        self._requests.labels(path, response.status_code).inc()
        self._seconds.labels(path).observe(time.perf_counter() - started)
        return response

    def _make_metrics(self) -> None:
        self._registry = known = CollectorRegistry()
        self._requests = Counter("demerit_requests", "Requests answered", ["path", "status"], registry=known)
        self._seconds = Histogram("demerit_request_seconds", "Time to answer", ["path"], registry=known)
        self._frames = Counter("demerit_live_frames", "Live frames answered", ["model"], registry=known)
        Gauge("demerit_live_connections", "Live connections", registry=known).set_function(lambda: self._live)
        waiting = Gauge("demerit_waiting", "Requests and frames that wait", ["model"], registry=known)
        for name, threads in self._models.items():
            waiting.labels(name).set_function(partial(getattr, threads, "waiting"))

    @asynccontextmanager
    async def _end(self, _: FastAPI) -> AsyncIterator[None]:
        yield
        self.stop()

    def stop(self) -> None:
        """End the threads and processes."""
        for threads in self._models.values():
            threads.stop()
        self._decoding.shutdown(wait=False, cancel_futures=True)
        self._decoder.close()


def _time_step(run: LiveEpisode, frame: LiveFrame) -> tuple[LiveReward, float]:
    """Return the reward of a frame and the seconds that the model took."""
    started = time.perf_counter()
    return run.step(frame), time.perf_counter() - started


def _status(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, Overloaded):
        return 429
    return 400 if isinstance(error, DemeritError) else 500


def _sentence(error: Exception) -> str:
    if isinstance(error, HTTPException):
        return error.detail
    return str(error) if isinstance(error, DemeritError) else f"{type(error).__name__}: {error}"


def _refuse(error: Exception) -> Response:
    status = _status(error)
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: RETRY_AFTER}.get(status)
    return JSONResponse({"error": _sentence(error)}, status, headers)


class RewardServer:
    """A server at an address: `run` serves until SIGTERM, `with` serves in a thread."""

    def __init__(
        self,
        models: Sequence[RewardModel],
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        limits: ServeLimits | None = None,
    ) -> None:
        """Bind the address; port 0 = a free one. A server that other machines can reach needs a token."""
        if not _is_loopback(host) and token is None:
            raise BadInput("token", f"one for a server that others can reach at {host} (--token-file FILE)", "none")
        if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
            raise BadInput("token", f"at least {SHORTEST_TOKEN} printable ASCII characters", f"{len(token)}")
        limits = limits or ServeLimits()
        app = RewardApp(models, limits, token)
        try:
            self._socket = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            app.stop()
            raise BadInput("address", "one that is free", f"{host}:{port} ({error.strerror})") from error
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # connections inherit it
        if sys.platform == "linux":
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            app.asgi,
            log_level="warning",
            access_log=False,
            ws="websockets-sansio",
            ws_max_size=limits.bytes // IN_FLIGHT,
            ws_per_message_deflate=False,
            ws_ping_interval=None,
            timeout_graceful_shutdown=math.ceil(limits.deadline),
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C; requests that have arrived are answered."""
        sys.setswitchinterval(SWITCH_SECONDS)
        self._server.run(sockets=[self._socket])

    def __enter__(self) -> RewardServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
