"""The guard of every request: who asks, from where, and whether they may. Annotation and arena are built on it.

Each route names the roles that it answers, and does not exist for others. A change needs the session's CSRF token.
Pages load nothing from elsewhere and are shown in no frame of another site.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from demerit.errors import BadInput, DemeritError
from demerit.use.people.accounts import Accounts, NotAllowed, Person
from demerit.use.people.database import DatabaseAway

ANYBODY = ("anybody",)
"""the role of routes that need no session"""
LOGGED_IN = ("owner", "rater", "site")
COOKIE = "demerit_session"
MOST_BYTES = 8_000_000
"""largest body of a request, except uploads"""
POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self'; frame-ancestors 'none'; form-action 'self'"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
STATIC = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Asked:
    """A request whose sender is known and allowed."""

    person: Person | None
    request: Request
    body: bytes = b""

    @property
    def me(self) -> Person:
        """Who asks; only for routes that need a session."""
        if self.person is None:
            raise NotAllowed(401, "Log in first.")
        return self.person

    def json(self) -> Mapping[str, Any]:
        """Read the body as a JSON object."""
        try:
            found = json.loads(self.body, parse_constant=_refuse)
            text = json.dumps(found, ensure_ascii=False)
            text.encode()  # half a character cannot be stored
        except (ValueError, RecursionError) as error:
            raise BadInput("request", "JSON", error) from error
        if not isinstance(found, dict) or "\\u0000" in text:
            raise BadInput("request", "a JSON object without null characters", type(found).__name__)
        return found

    def form(self) -> Mapping[str, str]:
        """Read the body as a form; the last value of a name counts."""
        return {name: values[-1] for name, values in parse_qs(self.body.decode("utf-8", "replace")).items()}


Route = Callable[..., Response]


class Guard:
    """Routes behind accounts. `app` is the ASGI application."""

    def __init__(self, accounts: Accounts, names: Collection[str] = (), is_secure: bool = False) -> None:
        """Make an application without routes.

        Args:
            accounts: who may come in.
            names: host names that requests may be addressed to, besides IP addresses and localhost.
            is_secure: whether browsers reach it by HTTPS; cookies are then sent by HTTPS alone.
        """
        self.accounts, self._names, self._is_secure = accounts, {*names, "localhost"}, is_secure
        self.app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        self.app.middleware("http")(self._check_host)
        for kind in (HTTPException, DemeritError, NotAllowed):
            self.app.add_exception_handler(kind, self._on_error)
        self.roles: dict[tuple[str, str], tuple[str, ...]] = {}
        self.add("GET", "/static/{name}", ANYBODY, _send_static)

    def add(self, method: str, path: str, roles: Collection[str], answer: Route) -> None:
        """Answer a path for some roles: `answer(asked, **parts of the path)`."""
        self.roles[method, path] = tuple(roles)

        async def run(request: Request) -> Response:
            person = await run_in_threadpool(self._find, request)
            if person is None and ANYBODY[0] not in roles:
                if method == "GET" and "text/html" in request.headers.get("accept", ""):
                    return RedirectResponse("/login", 303)
                raise NotAllowed(401, "Log in first.")
            if person is not None and not {person.role, *ANYBODY} & set(roles):
                raise NotAllowed(404, f"There is nothing at {request.url.path}.")
            body = b"" if method == "GET" else await _read_body(request)
            asked = Asked(person, request, body)
            if method != "GET":
                self._check_change(asked, ANYBODY[0] not in roles)
            return await run_in_threadpool(partial(answer, asked, **request.path_params))

        self.app.add_route(path, run, methods=[method])

    def enter(self, secret: str, to: str = "/") -> Response:
        """Answer with the cookie of a new session."""
        response = RedirectResponse(to, 303)
        response.set_cookie(
            COOKIE, secret, max_age=30 * 24 * 3600, httponly=True, samesite="lax", secure=self._is_secure
        )
        return response

    def _find(self, request: Request) -> Person | None:
        secret = request.cookies.get(COOKIE, "")
        return self.accounts.find(secret) if secret else None

    def _check_change(self, asked: Asked, needs_token: bool) -> None:
        """Refuse a change that another site's page may have sent."""
        request, origin = asked.request, asked.request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
            raise NotAllowed(403, "This was sent by a page of another site.")
        if asked.person is None or not needs_token:  # to come in as somebody else needs no token
            return
        given = request.headers.get("x-csrf") or asked.form().get("csrf", "")
        if not hmac.compare_digest(given.encode(), asked.person.csrf.encode()):
            raise NotAllowed(403, "This page is from an earlier session: reload it.")

    async def _check_host(self, request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        host = _host_of(request.headers.get("host", ""))
        if host not in self._names and not _is_address(host):
            return JSONResponse({"error": f"expected a request to this server's name, got {host!r}"}, 421)
        response = await answer(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    async def _on_error(self, request: Request, error: Exception) -> Response:
        status = getattr(error, "status", getattr(error, "status_code", 400))
        sentence = error.detail if isinstance(error, HTTPException) else str(error)
        if isinstance(error, DatabaseAway):
            sentence = "The database cannot be used now: try again soon."  # its address is nobody's business
        if "text/html" in request.headers.get("accept", ""):
            return show("message.html.j2", status, title="This did not work", text=sentence)
        return JSONResponse({"error": sentence}, status)


class PeopleServer:
    """Serves a guard's application at an address; as a context manager it runs beside the program."""

    def __init__(
        self,
        app: FastAPI,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: tuple[Path, Path] | None = None,
        behind_proxy: bool = False,
    ) -> None:
        """Listen at once; port 0 = a free one. Beyond this machine, TLS or a proxy that does it is demanded.

        Args:
            app: what answers.
            host: the address to listen at.
            port: 0 = a free one.
            tls: files of the certificate and its key.
            behind_proxy: whether a proxy in front does TLS.
        """
        if not _is_loopback(host) and tls is None and not behind_proxy:
            raise BadInput(f"host {host}", "--tls-cert and --tls-key, or --behind-proxy if a proxy does TLS", "neither")
        options: dict[str, Any] = {"timeout_graceful_shutdown": 5}
        options |= {"proxy_headers": behind_proxy, "forwarded_allow_ips": "*" if behind_proxy else None}
        options |= {} if tls is None else {"ssl_certfile": str(tls[0]), "ssl_keyfile": str(tls[1])}
        try:
            config = uvicorn.Config(app, log_level="warning", access_log=False, **options)
            config.load()
        except OSError as error:
            raise BadInput("--tls-cert, --tls-key", "a certificate and its key in PEM files", error) from error
        try:
            self._socket = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            raise BadInput("address", "one that is free", f"{host}:{port} ({error.strerror})") from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if tls else 'http'}://{shown}:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C."""
        self._server.run(sockets=[self._socket])

    def wait(self) -> None:
        """Wait until Ctrl-C or SIGTERM; the server runs in its thread."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: what is waiting is written
        with suppress(KeyboardInterrupt):
            while self._thread.is_alive():
                self._thread.join(0.5)

    def __enter__(self) -> PeopleServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()


# Answers


def show(template: str, status: int = 200, **parts: Any) -> Response:
    """Render a page. Everything that it prints is escaped, and an undefined name is an error."""
    return HTMLResponse(_environment().get_template(template).render(me=None, **parts), status)


def show_to(person: Person, template: str, **parts: Any) -> Response:
    """Render a page for somebody who is logged in."""
    return HTMLResponse(_environment().get_template(template).render(me=person, **parts))


def send_file(path: Path, kind: str) -> Response:
    """Send a file; the browser may ask for a part."""
    return FileResponse(path, media_type=kind, headers={"Cache-Control": "private, max-age=3600"})


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("demerit", "assets/people"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _send_static(asked: Asked, name: str) -> Response:
    path = Path(name)
    found = files("demerit") / "assets" / "people" / name
    if path.name != name or path.suffix not in STATIC or not found.is_file():
        raise NotAllowed(404, f"There is no file {name!r}.")
    return Response(found.read_bytes(), media_type=STATIC[path.suffix], headers={"Cache-Control": "no-cache"})


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BYTES:
                raise NotAllowed(413, f"Expected at most {MOST_BYTES} bytes.")
    except ClientDisconnect:
        raise NotAllowed(400, "The request ended early.") from None
    return bytes(body)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _host_of(given: str) -> str:
    try:
        return urlsplit(f"//{given}").hostname or ""
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
