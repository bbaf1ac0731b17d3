"""The reward server: models behind HTTP (`/score`, `/prefer`) and a WebSocket (`/live`); `wire` has the format.

The event loop only moves bytes. Models compute in their own threads (`model_threads`), uploaded videos are decoded in
processes of their own (`web.uploads`), so `/health` answers whatever they do.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from functools import cached_property, partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from demerit.data.episode import Episode
from demerit.data.files import parse_json
from demerit.data.reward import Reward
from demerit.data.splits import seen_by
from demerit.errors import BadInput, DemeritError, UnknownName
from demerit.models.protocol import Comparer, LiveEpisode, Online, Prepares, RewardModel
from demerit.use.serve import wire
from demerit.use.serve.model_threads import ModelThreads
from demerit.use.serve.requests import SentEpisode, read_episodes, read_frame
from demerit.use.serve.wire import encode_live, encode_reward, no_nan
from demerit.web.doors import LOG, STRANGER_BYTES, welcome
from demerit.web.metrics import send_metrics
from demerit.web.server import WebServer, check_token, has_token, read_body, refusal, unless_gone
from demerit.web.uploads import DecoderAway, SentFrames, ServeLimits, UploadDecoder

VERSION = version("demerit")
BINARY = "application/octet-stream"
PATHS = ("/health", "/metrics", "/models", "/score", "/prefer")
OPEN_PATHS = ("/health", "/docs", "/openapi.json")
"""answered without the token"""
SCORE_PARAMETERS = frozenset({"model", "card", "instruction", "id"})
"""query parameters of /score; a misspelt instruction is refused, not scored as none"""
IN_FLIGHT = 4
"""how many requests of the largest size may be in memory at once"""
SWITCH_SECONDS = 0.002
"""how long a model's Python code may keep the event loop waiting; with 5 ms, Python's default, /health is slow, and
0.5 ms costs a tenth of the frames per second"""
HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}
"""of refusals, by status"""
SENTENCE = {"type": "object", "properties": {"error": {"type": "string"}}}
REFUSED: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "Refused; `error` says why.", "content": {"application/json": {"schema": SENTENCE}}},
    "504": {"description": "The deadline has passed.", "content": {"application/json": {"schema": SENTENCE}}},
}
Found = list[Episode | Reward]
Pairs = list[tuple[int, int]]
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
        # Its own pages of documentation load scripts from another site.
        self.asgi = FastAPI(title="demerit", version=VERSION, lifespan=self._run, docs_url=None, redoc_url=None)
        add: Callable[..., None] = self.asgi.add_api_route
        guarded: dict[str, Any] = {"responses": REFUSED}
        sends_body: dict[str, Any] = {
            **guarded,
            "methods": ["POST"],
            "openapi_extra": {"requestBody": {"content": BODY}},
        }
        add("/health", self.health)
        add("/docs", self.docs, include_in_schema=False)
        add("/metrics", self.metrics, **guarded)
        add("/models", self.list_models, **guarded)
        add("/score", self.score, **sends_body)
        add("/prefer", self.prefer, **sends_body)
        self.asgi.add_api_websocket_route("/live", self.live)
        self.asgi.add_middleware(lambda app: partial(self._enter, app))
        for kind in (HTTPException, DemeritError):
            self.asgi.add_exception_handler(kind, self._on_error)

    async def health(self) -> dict[str, Any]:
        """Answer at once, whatever the models do."""
        models = {
            name: {"waiting": threads.waiting, "busy_seconds": threads.busy_seconds}
            for name, threads in self._models.items()
        }
        return {"status": "ok", "version": VERSION, "live": self._live, "models": models}

    async def docs(self) -> Response:
        """Return what each path takes and answers, as text; /openapi.json is for programs."""
        return PlainTextResponse(self._docs)

    @cached_property
    def _docs(self) -> str:
        paths = [
            f"{method.upper()} {path}\n\n{facts.get('description', '')}\n"
            for path, methods in self.asgi.openapi()["paths"].items()
            for method, facts in methods.items()
        ]
        live = f"WS /live\n\n{self.live.__doc__}\n"
        return "\n".join([*paths, live, wire.__doc__ or ""])

    async def metrics(self) -> Response:
        """Return figures for Prometheus."""
        return send_metrics(generate_latest(self._registry))

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
                "seen": seen_by(threads.model).as_dict(),
                "prefers": isinstance(threads.model, Comparer),
                "live": isinstance(threads.model, Online) and not threads.model.card.reads_signals,
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

        async def compute(records: Found, _: Pairs) -> Response:
            episodes = [record for record in records if isinstance(record, Episode)]
            scored: list[Reward] = await asyncio.wrap_future(threads.score(episodes)) if episodes else []
            rewards = iter(scored)
            answers = [encode_reward(record if isinstance(record, Reward) else next(rewards)) for record in records]
            return JSONResponse({"rewards": answers, "card": threads.card_hash})

        return await self._answer(request, threads.model, compute, SentEpisode(id, instruction, {}))

    async def prefer(self, request: Request, model: str = "", card: str = "") -> Response:
        """Return the probability that the first episode of each pair is better; null when unknown."""
        threads = self._find(model, card)
        comparer = threads.model
        if not isinstance(comparer, Comparer):
            raise HTTPException(400, f"the model {comparer.card.name!r} does not compare episodes")

        async def compute(records: Found, places: Pairs) -> Response:
            pairs = [(records[first], records[second]) for first, second in places]
            questions = [(a, b) for a, b in pairs if isinstance(a, Episode) and isinstance(b, Episode)]
            answers = iter(await asyncio.wrap_future(threads.call(lambda: comparer.prefer(questions))))
            chances = [math.nan if Reward in map(type, pair) else float(next(answers)) for pair in pairs]
            return JSONResponse({"first": no_nan(chances), "card": threads.card_hash})

        return await self._answer(request, comparer, compute)

    async def live(self, socket: WebSocket, model: str = "", card: str = "") -> None:
        """Follow live episodes, one after the other: a text starts one, a binary message is a frame."""
        try:
            threads = self._find(model, card)
            if not isinstance(threads.model, Online) or threads.model.card.reads_signals:
                raise HTTPException(400, f"the model {threads.model.card.name!r} does not score live episodes")
            if "origin" in socket.headers:
                raise HTTPException(403, "web pages may not use this server")
            if self._live >= self.limits.live:
                raise HTTPException(429, f"{self._live} live connections already: try again later")
        except HTTPException as refused:
            return await socket.send_denial_response(await self._on_error(socket, refused))
        self._live += 1
        run: LiveEpisode | None = None
        try:
            await socket.accept()
            while (message := await self._next_message(socket, run))["type"] == "websocket.receive":
                try:
                    run, answer = await self._answer_live(threads, threads.model, run, message)
                except Exception as error:  # third-party code may raise anything
                    status, sentence = refusal(error)
                    answer = {"error": sentence, "status": status}
                    if not isinstance(error, DemeritError | HTTPException):
                        LOG.warning("The model %s failed on a live frame", threads.model.card.name, exc_info=error)
                    run = run if isinstance(error, BadInput) else None  # it may have seen half a frame
                await socket.send_text(json.dumps(answer))
        except TimeoutError:
            await socket.close(1008, "no episode was started")
        except WebSocketDisconnect:
            pass  # the client is gone
        finally:
            self._live -= 1

    async def _next_message(self, socket: WebSocket, run: LiveEpisode | None) -> Message:
        """Wait for a message: a robot may pause in an episode, but a client without one may not keep its place."""
        async with asyncio.timeout(self.limits.deadline if run is None else None):
            return await socket.receive()

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
        reward, seconds = await self._wait(threads.step(run, frame))
        self._frames.labels(threads.model.card.name).inc()
        return run, {**encode_live(reward), "seconds": seconds}

    # What requests share

    def _find(self, name: str, card: str) -> ModelThreads:
        """Return a model by name (optional if there is only one); refuse a card that is not its own."""
        if not name and len(self._models) == 1:
            name = next(iter(self._models))
        if name not in self._models:
            raise HTTPException(404, str(UnknownName("model", name, self._models)))
        model = self._models[name]
        if card and card != model.card_hash:
            raise HTTPException(409, f"the model {name!r} is another one now (its card is {model.card_hash})")
        return model

    def _check_token(self, headers: Mapping[str, str]) -> None:
        if not has_token(headers, self._token):
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

    async def _answer(
        self,
        request: Request,
        model: RewardModel,
        compute: Callable[[Found, Pairs], Awaitable[Response]],
        video: SentEpisode | None = None,
    ) -> Response:
        """Read the episodes and pairs of a request, decode them and compute: until the deadline, or the client leaves.

        An episode that cannot be decoded is a reward without values.
        """
        with ExitStack() as stack:
            try:
                async with asyncio.timeout(self.limits.deadline):
                    messages, pairs = await self._receive(request, stack, video)

                    async def work() -> Response:
                        return await compute([await self._decode(message, model, stack) for message in messages], pairs)

                    return await unless_gone(request, work())
            except TimeoutError:
                raise HTTPException(504, f"no answer within {self.limits.deadline:g} seconds") from None

    async def _receive(
        self, request: Request, held: ExitStack, video: SentEpisode | None
    ) -> tuple[list[SentEpisode], Pairs]:
        """Read a request. `held` is the memory that it takes."""
        length = request.headers.get("content-length", "")
        if not length.isdecimal():
            raise HTTPException(411, "expected the header Content-Length")
        held.enter_context(self._reserve(int(length)))
        body = await read_body(request, int(length))
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == BINARY:
            return read_episodes(body, self.limits)
        if kind.startswith("video/") and video is not None:
            return [replace(video, views={"main": memoryview(body)})], []
        raise HTTPException(415, f"expected the content type {BINARY} or video/..., got {kind or 'none'}")

    async def _decode(self, sent: SentEpisode, model: RewardModel, held: ExitStack) -> Episode | Reward:
        """Decode an episode's videos; when nobody waits for them any more, the decoder is stopped."""
        prepare = model.prepare if isinstance(model, Prepares) else None
        views, stop = dict(sent.views), threading.Event()
        try:
            for camera, view in sent.views.items():
                if not isinstance(view, SentFrames):
                    decode = partial(self._decoder.decode, view, model.card.frame_budget, prepare, stop)
                    frames = await asyncio.get_running_loop().run_in_executor(self._decoding, decode)
                    held.enter_context(self._reserve(frames.images.nbytes))
                    views[camera] = frames
            return replace(sent, views=views).as_episode()
        except DecoderAway:
            raise
        except DemeritError as error:
            return Reward.unscored(model.card.name, sent.id, str(error).rstrip("."))
        finally:
            stop.set()

    async def _wait(self, future: Future[Any]) -> Any:
        """Wait for a live frame's reward until the deadline."""
        try:
            async with asyncio.timeout(self.limits.deadline):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise HTTPException(504, f"no answer within {self.limits.deadline:g} seconds") from None

    async def _on_error(self, _: HTTPConnection, error: Exception) -> Response:
        status, sentence = refusal(error)
        return JSONResponse({"error": sentence}, status, HEADERS.get(status))

    async def _enter(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse strangers before anything else is done for them, and count requests and answers."""
        if scope["type"] == "lifespan":
            return await app(scope, receive, send)
        path, started = scope["path"] if scope["path"] in PATHS else "other", time.perf_counter()

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._requests.labels(path, message["status"]).inc()
                self._seconds.labels(path).observe(time.perf_counter() - started)
            await send(message)

        request = HTTPConnection(scope)
        if scope["path"] not in OPEN_PATHS:
            try:
                self._check_token(request.headers)
            except HTTPException as refused:
                return await (await self._on_error(request, refused))(scope, receive, send_counted)
            if scope["type"] == "http":
                welcome(request)
        await app(scope, receive, send_counted)

    def _make_metrics(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("demerit_requests", "Requests answered", ["path", "status"], registry=registry)
        self._seconds = Histogram("demerit_request_seconds", "Time to answer", ["path"], registry=registry)
        self._frames = Counter("demerit_live_frames", "Live frames answered", ["model"], registry=registry)
        Gauge("demerit_live_connections", "Live connections", registry=registry).set_function(lambda: self._live)
        waiting = Gauge("demerit_waiting", "Requests and frames that wait", ["model"], registry=registry)
        for name, threads in self._models.items():
            waiting.labels(name).set_function(partial(getattr, threads, "waiting"))

    @asynccontextmanager
    async def _run(self, _: FastAPI) -> AsyncIterator[None]:
        sys.setswitchinterval(SWITCH_SECONDS)
        yield
        self.stop()

    def stop(self) -> None:
        """End the threads and processes."""
        for threads in self._models.values():
            threads.stop()
        self._decoding.shutdown(wait=False, cancel_futures=True)
        self._decoder.close()


def serve_models(
    models: Sequence[RewardModel],
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    limits: ServeLimits | None = None,
) -> WebServer:
    """Return a server of models that listens; a server that other machines can reach needs a token.

    Without a token, only requests to an address of this machine are answered: no web page can use it by another name.
    """
    check_token(host, token)
    limits = limits or ServeLimits()
    app = RewardApp(models, limits, token)
    try:
        return WebServer(
            app.asgi,
            host,
            port,
            names=() if token is None else None,
            has_token=token is not None,
            largest_message=limits.bytes // IN_FLIGHT,
            largest_first=min(STRANGER_BYTES, limits.bytes // IN_FLIGHT),
            grace=math.ceil(limits.deadline),
        )
    except BadInput:
        app.stop()
        raise
