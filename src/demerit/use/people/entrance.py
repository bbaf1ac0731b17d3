"""The pages by which people come in: log in, join by an invitation, enter by one's own link, log out."""

from __future__ import annotations

from fastapi import Response
from fastapi.responses import RedirectResponse

from demerit.errors import BadInput
from demerit.use.people.accounts import NotAllowed
from demerit.use.people.guard import ANYBODY, COOKIE, LOGGED_IN, Asked, Guard, show


class Entrance:
    """The routes of coming in."""

    def __init__(self, guard: Guard) -> None:
        """Add the routes."""
        self.guard, self.accounts = guard, guard.accounts
        guard.add("GET", "/login", ANYBODY, lambda asked: show("login.html.j2"))
        guard.add("POST", "/login", ANYBODY, self.log_in)
        guard.add("POST", "/logout", LOGGED_IN, self.log_out)
        guard.add("GET", "/enter/{secret}", ANYBODY, self.enter)
        guard.add("GET", "/join/{secret}", ANYBODY, self.show_invitation)
        guard.add("POST", "/join/{secret}", ANYBODY, self.join)

    def log_in(self, asked: Asked) -> Response:
        """Check name and password."""
        form = asked.form()
        address = asked.request.client.host if asked.request.client else ""
        return self.guard.enter(self.accounts.log_in(form.get("name", ""), form.get("password", ""), address))

    def log_out(self, asked: Asked) -> Response:
        """End the session."""
        self.accounts.log_out(asked.request.cookies[COOKIE])
        return RedirectResponse("/login", 303)

    def enter(self, asked: Asked, secret: str) -> Response:
        """Let in the person of a link."""
        return self.guard.enter(self.accounts.enter(secret))

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
            return self.guard.enter(self.accounts.join(secret, form.get("name", ""), form.get("password", "")))
        except BadInput as error:
            role, _ = self.accounts.find_link(secret)
            return show("join.html.j2", 400, role=role, secret=secret, error=str(error), name=form.get("name", ""))
