"""The one web server: `serve`, `annotate`, `arena`, `view` and `watch` stand on it.

    with WebServer(make_app([Route("/", lambda request: HTMLResponse("<p>hello"))])) as server:
        print(server.url)

It listens at an address, demands TLS beyond this machine, refuses requests to a foreign host name (a web page elsewhere
could point its own name here and read along), adds safe headers, counts bodies while they are read, and ends with
SIGTERM or Ctrl-C. `doors` limits what strangers may send and how long they may take; `uploads` decodes their videos.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import ipaddress
import logging
import signal
import socket
import sys
import threading
from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from demerit.errors import BadInput, DemeritError
from demerit.web.doors import (
    HEAD_BYTES,
    IDLE_SECONDS,
    LOG,
    ONCE_PER_MINUTE,
    STRANGER_BYTES,
    Doors,
    HttpDoor,
    WebSocketDoor,
    is_known,
)

SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
SHORTEST_TOKEN = 16
LARGEST_MESSAGE = 64_000_000
"""of a WebSocket, in bytes"""
REFUSED = frozenset({400, 401, 403, 408, 411, 413, 421, 429, 503})
"""statuses of which the first in a minute is logged"""
CLIENT_GONE = 499
"""the status of a request whose client left, as in nginx; nobody reads it"""
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
Answer = TypeVar("Answer")


class _NumberConvertor(IntegerConvertor):
    """`{place:number}` in a route: nine digits at most, so that no address is slow to read."""

    regex = "[0-9]{1,9}"


register_url_convertor("number", _NumberConvertor())


class WebServer:
    """Serves an ASGI application; as a context manager it runs beside the program."""

    def __init__(
        self,
        app: ASGIApp,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        names: Collection[str] | None = (),
        tls: tuple[Path, Path] | None = None,
        behind_proxy: bool = False,
        has_token: bool = False,
        largest_message: int = LARGEST_MESSAGE,
        largest_first: int | None = None,
        grace: int = 5,
    ) -> None:
        """Listen at once. Beyond this machine, TLS, a proxy that does it, or a token is demanded.

        Args:
            app: what answers.
            host: the address to listen at.
            port: 0 = a free one.
            names: host names that requests may be addressed to, besides IP addresses and localhost; None = any.
            tls: files of the certificate and its key.
            behind_proxy: whether a proxy in front does TLS. It says last who asks (X-Forwarded-For, X-Forwarded-Proto).
            has_token: whether the application refuses everybody without a token.
            largest_message: of a WebSocket, in bytes.
            largest_first: the first message of a WebSocket, in bytes; None = as the others.
            grace: seconds in which requests that have arrived are answered at the end.
        """
        if not (is_loopback(host) or tls or behind_proxy or has_token):
            raise BadInput(f"host {host}", "--tls CERT KEY, or --behind-proxy if a proxy does TLS", "neither")
        self._app, self._behind_proxy, self._doors = app, behind_proxy, Doors()
        self._names = None if names is None else {"localhost", host.lower(), *(name.lower() for name in names)}
        options: dict[str, Any] = {"http": partial(HttpDoor, self._doors)}
        options["ws"] = partial(WebSocketDoor, self._doors, largest_first or largest_message)
        options |= {} if tls is None else {"ssl_certfile": str(tls[0]), "ssl_keyfile": str(tls[1])}
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=HEAD_BYTES,
            ws_max_size=largest_message,
            ws_per_message_deflate=False,
            ws_ping_interval=None,  # it would need a thread in each client; the connection is probed instead
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=grace,
            **options,
        )
        try:
            config.load()
        except OSError as error:
            raise BadInput("--tls", "a certificate and its key in PEM files", error) from error
        for name in (LOG.name, "asyncio"):
            logging.getLogger(name).addFilter(ONCE_PER_MINUTE)
        self._socket = _listen(host, port)
        shown = ANY_ADDRESS.get(host, host)
        shown = f"[{shown}]" if ":" in shown else shown
        self.url = f"{'https' if tls else 'http'}://{shown}:{self._socket.getsockname()[1]}"
        """the address, without a slash at the end"""
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C; only in the main thread."""
        with self:
            self.wait()

    def wait(self) -> None:
        """Wait until SIGTERM or Ctrl-C; the server runs in its thread."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            while self._thread.is_alive():
                self._thread.join(0.5)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to this server's own name, with safe headers."""

        async def send_safely(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    headers.setdefault(name, value)
                if message["status"] in REFUSED:
                    LOG.warning(f"Refused a request with {message['status']} (from %s)", (scope["client"] or ["?"])[0])
            await send(message)

        app = self._app
        if scope["type"] != "lifespan":
            if self._behind_proxy:
                _read_forwarded(scope)
            app = self._refuse(scope, Headers(scope=scope)) or app
        await app(scope, receive, send_safely)

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer to a request that the application does not get."""
        if not self._is_own(host := headers.get("host", "")):
            return JSONResponse({"error": f"expected a request to this server's name, got {host!r}"}, 421)
        if "content-length" in headers and "transfer-encoding" in headers:
            error = "expected Content-Length or Transfer-Encoding, got both"
            return JSONResponse({"error": error}, 400, {"Connection": "close"})
        if self._doors.is_full and scope["path"] != "/health":
            return JSONResponse({"error": "too many connections: try again later"}, 503, {"Retry-After": "1"})
        return None

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return self._names is None or name in self._names or _is_address(name)


def _listen(host: str, port: int) -> socket.socket:
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        problem = "one that another program uses" if error.errno == errno.EADDRINUSE else error.strerror or error
        raise BadInput(f"address {host}:{port}", "a free port of this machine (--port 0 finds one)", problem) from error
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # connections inherit it
    if sys.platform == "linux":
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_SECONDS)
    return listening


def _read_forwarded(scope: Scope) -> None:
    """Take the sender's address and scheme from the proxy: each adds to the end, so what is before may be made up."""
    headers = Headers(scope=scope)
    address = ",".join(headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()
    if _is_address(address):
        scope["client"] = (address, 0)
    if (scheme := headers.get("x-forwarded-proto", "")) in ("http", "https"):
        scope["scheme"] = scheme if scope["type"] == "http" else scheme.replace("http", "ws")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


# What applications share


def check_token(host: str, token: str | None) -> None:
    """Refuse a server that others can reach without a token, and a token that could be guessed."""
    if token is None and not is_loopback(host):
        raise BadInput("token", f"one for a server that others can reach at {host} (--token-file FILE)", "none")
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise BadInput("token", f"at least {SHORTEST_TOKEN} printable ASCII characters", f"{len(token)}")


def read_token(path: Path | None) -> str | None:
    """Read a token from a file, if there is one."""
    try:
        return None if path is None else path.read_text("utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise BadInput(str(path), "a file with a token", error) from error


def has_token(headers: Mapping[str, str], token: str | None) -> bool:
    """Whether a request has the token of this server, if it has one."""
    credential = headers.get("authorization", "").removeprefix("Bearer ").encode()
    return token is None or hmac.compare_digest(credential, token.encode())


def make_app(routes: Sequence[BaseRoute]) -> Starlette:
    """Make an application of pages; what a route cannot find is a sentence."""
    icon = Route("/favicon.ico", lambda request: Response(media_type="image/x-icon"))  # browsers ask for it
    refuse = {DemeritError: lambda request, error: PlainTextResponse(str(error), 404)}
    return Starlette(routes=[icon, *routes], exception_handlers=refuse)


def refusal(error: Exception) -> tuple[int, str]:
    """Return the status and the sentence with which a request is refused."""
    if isinstance(error, HTTPException):
        return error.status_code, error.detail
    if isinstance(error, DemeritError):
        return getattr(type(error), "status", 400), str(error)
    return 500, f"{type(error).__name__}: {error}"


async def read_body(request: Request, most: int) -> bytearray:
    """Read a body, of a stranger at most 64 kB; it is counted while it arrives. Raises HTTPException."""
    body, most = bytearray(), most if is_known(request) else min(most, STRANGER_BYTES)
    length = request.headers.get("content-length", "")
    try:
        if length.isdecimal() and int(length) > most:
            raise HTTPException(413, f"Expected at most {most} bytes.")
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise HTTPException(413, f"Expected at most {most} bytes.")
    except ClientDisconnect:
        raise HTTPException(400, "The body ended early.") from None
    return body


async def unless_gone(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """Do work for a request whose body is read; cancel it when the client is gone. Raises HTTPException."""
    task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HTTPException(CLIENT_GONE, "The client is gone.")
        return task.result()
    finally:
        task.cancel()
        disconnect.cancel()
        await asyncio.gather(task, disconnect, return_exceptions=True)


def send_file(request: Request, path: Path, kind: str, cache: str = "no-cache") -> Response:
    """Send a file that has not changed only once; the browser may ask for a part."""
    try:
        state = path.stat()
    except OSError as error:
        raise HTTPException(404, f"{path.name} cannot be read ({error.strerror})") from error
    response = FileResponse(path, headers={"Cache-Control": cache}, media_type=kind, stat_result=state)
    if request.headers.get("if-none-match") == response.headers["etag"]:
        return Response(status_code=304, headers={name: response.headers[name] for name in ("cache-control", "etag")})
    return response
