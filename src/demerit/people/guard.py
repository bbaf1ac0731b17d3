"""The guard of every request: who asks, and whether they may. Annotation and arena are built on it.

Each route names the roles that it answers, and does not exist for others. A change needs the session's CSRF token.
Pages load nothing from elsewhere. People come in by a password, an invitation or their own link.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from demerit.errors import BadInput, DemeritError
from demerit.people.accounts import Accounts, NotAllowed, Person
from demerit.people.database import DatabaseAway
from demerit.web.doors import welcome
from demerit.web.pages import fill
from demerit.web.server import read_body, refusal, send_file

ANYBODY = ("anybody",)
"""the role of routes that need no session"""
LOGGED_IN = ("owner", "rater", "site")
COOKIE = "demerit_session"
MOST_BYTES = 8_000_000
"""largest body of somebody who is logged in"""
POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self'; frame-ancestors 'none'; form-action 'self'"
STATIC = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
KEEP_AN_HOUR = "private, max-age=3600"


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
            facts = json.loads(self.body, parse_constant=_refuse_constant)
            text = json.dumps(facts, ensure_ascii=False)
            text.encode()  # half a character cannot be stored
        except (ValueError, RecursionError) as error:
            raise BadInput("request", "JSON", error) from error
        if not isinstance(facts, dict) or "\\u0000" in text:
            raise BadInput("request", "a JSON object without null characters", type(facts).__name__)
        return facts

    def form(self) -> Mapping[str, str]:
        """Read the body as a form; the last value of a name counts."""
        return {name: values[-1] for name, values in parse_qs(self.body.decode("utf-8", "replace")).items()}

    def send_file(self, path: Path, kind: str) -> Response:
        """Send a file; the browser may ask for a part, and keeps it for an hour."""
        return send_file(self.request, path, kind, KEEP_AN_HOUR)


class Guard:
    """Routes behind accounts, and the pages by which people come in. `app` is the ASGI application."""

    def __init__(self, accounts: Accounts, is_secure: bool = False) -> None:
        """Make an application with the pages of coming in. If `is_secure`, cookies are sent by HTTPS alone."""
        self.accounts, self._is_secure = accounts, is_secure
        self.app = Starlette(exception_handlers=dict.fromkeys((HTTPException, DemeritError), _refuse))
        self.roles: dict[tuple[str, str], tuple[str, ...]] = {}
        self.add("GET", "/static/{name}", ANYBODY, _send_static)
        self.add("GET", "/login", ANYBODY, lambda asked: show("login.html.j2"))
        self.add("POST", "/login", ANYBODY, self.log_in)
        self.add("POST", "/logout", LOGGED_IN, self.log_out)
        self.add("GET", "/enter/{secret}", ANYBODY, lambda asked, secret: self._let_in(accounts.enter(secret)))
        self.add("GET", "/join/{secret}", ANYBODY, self.show_invitation)
        self.add("POST", "/join/{secret}", ANYBODY, self.join)

    def add(
        self, method: str, path: str, roles: Collection[str], answer: Callable[..., Response], most: int = MOST_BYTES
    ) -> None:
        """Answer a path for some roles: `answer(asked, **parts of the path)`. `most` is the largest body in bytes."""
        self.roles[method, path] = tuple(roles)

        async def run(request: Request) -> Response:
            person = await run_in_threadpool(self._find, request)
            if person is None and ANYBODY[0] not in roles:
                if method == "GET" and "text/html" in request.headers.get("accept", ""):
                    return RedirectResponse("/login", 303)
                raise NotAllowed(401, "Log in first.")
            if person is not None and not {person.role, *ANYBODY} & set(roles):
                raise NotAllowed(404, f"There is nothing at {request.url.path}.")
            if person is not None:
                welcome(request)
            body = b"" if method == "GET" else bytes(await read_body(request, most))
            asked = Asked(person, request, body)
            if method != "GET":
                self._check_change(asked, ANYBODY[0] not in roles)
            return await run_in_threadpool(partial(answer, asked, **request.path_params))

        self.app.router.routes.append(Route(path, run, methods=[method]))

    # Coming in

    def log_in(self, asked: Asked) -> Response:
        """Check name and password."""
        form = asked.form()
        address = asked.request.client.host if asked.request.client else ""
        return self._let_in(self.accounts.log_in(form.get("name", ""), form.get("password", ""), address))

    def log_out(self, asked: Asked) -> Response:
        """End the session."""
        self.accounts.log_out(asked.request.cookies[COOKIE])
        return RedirectResponse("/login", 303)

    def show_invitation(self, asked: Asked, secret: str) -> Response:
        """Ask for a pseudonym and a password."""
        role, person = self.accounts.find_link(secret)
        if person is not None:
            raise NotAllowed(404, "This link is not an invitation.")
        return show("join.html.j2", role=role, secret=secret, error="", name="")

    def join(self, asked: Asked, secret: str) -> Response:
        """Make an account."""
        form = asked.form()
        try:
            return self._let_in(self.accounts.join(secret, form.get("name", ""), form.get("password", "")))
        except BadInput as error:
            role, _ = self.accounts.find_link(secret)
            return show("join.html.j2", 400, role=role, secret=secret, error=str(error), name=form.get("name", ""))

    def _let_in(self, secret: str) -> Response:
        """Answer with the cookie of a new session."""
        response = RedirectResponse("/", 303)
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
        token = request.headers.get("x-csrf") or asked.form().get("csrf", "")
        if not hmac.compare_digest(token.encode(), asked.person.csrf.encode()):
            raise NotAllowed(403, "This page is from an earlier session: reload it.")


# Answers


def show(template: str, status: int = 200, me: Person | None = None, **parts: Any) -> Response:
    """Render a page, for `me` if somebody is logged in."""
    return HTMLResponse(fill(template, me=me, **parts), status, {"Content-Security-Policy": POLICY})


def show_to(person: Person, template: str, **parts: Any) -> Response:
    """Render a page for somebody who is logged in."""
    return show(template, me=person, **parts)


def _refuse(request: Request, error: Exception) -> Response:
    status, sentence = refusal(error)
    if isinstance(error, DatabaseAway):
        sentence = "The database cannot be used now: try again soon."  # its address is nobody's business
    if "text/html" in request.headers.get("accept", ""):
        return show("message.html.j2", status, title="This did not work", text=sentence)
    return JSONResponse({"error": sentence}, status)


def _send_static(asked: Asked, name: str) -> Response:
    path = Path(name)
    file = files("demerit") / "assets" / "people" / name
    if path.name != name or path.suffix not in STATIC or not file.is_file():
        raise NotAllowed(404, f"There is no file {name!r}.")
    return Response(file.read_bytes(), media_type=STATIC[path.suffix], headers={"Cache-Control": "no-cache"})


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")
