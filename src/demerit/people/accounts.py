"""Accounts: links that let people in, passwords, sessions, and the log of what was done.

A link is a secret: an invitation makes a person and works once; the link of a person lets in whoever started the
program. Secrets are stored as hashes.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections import Counter, deque
from dataclasses import dataclass
from threading import Lock, Semaphore
from typing import Any, Literal, get_args

import sqlalchemy as sa
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError
from starlette.exceptions import HTTPException

from demerit.errors import BadInput
from demerit.people.database import AUDIT, LINKS, PEOPLE, SESSIONS, Database

Role = Literal["owner", "rater", "site"]
"""owners see and manage everything; raters see what is assigned to them, sites of an arena their own trials"""
LINK_SECONDS, SESSION_SECONDS = 7 * 24 * 3600.0, 30 * 24 * 3600.0
SHORTEST_PASSWORD, LONGEST_PASSWORD = 10, 200
LONGEST_NAME = 60
NAME = re.compile(rf"[\w][\w .-]{{0,{LONGEST_NAME - 2}}}[\w]|\w")
NotAllowed = HTTPException
"""a request that is refused: its HTTP status and a sentence"""
TRIES, TRY_SECONDS = {"name": 5, "address": 60}, 60.0
"""tries to log in with one name and from one address (a lab may share one) in that time"""
MOST_TRIES = 20_000
"""of the newest tries are known"""
HASHING = 2
"""passwords that are checked at the same time, with 64 MB each"""


@dataclass(frozen=True)
class Person:
    """Somebody who is logged in."""

    id: int
    name: str
    role: Role
    csrf: str = ""
    """what a page must send back with every change"""

    @property
    def is_owner(self) -> bool:
        """Whether everything is allowed."""
        return self.role == "owner"


class Accounts:
    """People, and how they get in."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._hasher = PasswordHasher()
        self._nobody = self._hasher.hash(secrets.token_urlsafe())
        self._tries: deque[tuple[float, bytes]] = deque(maxlen=MOST_TRIES)
        self._lock, self._hashing = Lock(), Semaphore(HASHING)

    def ensure_owner(self, name: str) -> int:
        """Return the id of the owner of that name; create the account if there is none."""
        _check_name(name)
        with self.database.begin() as db:
            owner = db.execute(sa.select(PEOPLE.c.id, PEOPLE.c.role).where(PEOPLE.c.name == name)).first()
            if owner is None:
                return _add_person(db, name, "owner", None)
            if owner.role != "owner":
                raise BadInput("name", "an owner's", f"{name!r}, who is a {owner.role}")
            return int(owner.id)

    def make_link(self, role: Role, person: int | None = None, by: Person | None = None) -> str:
        """Return a new secret for a link; with `person` it lets that person in."""
        if role not in get_args(Role):
            raise BadInput("role", " or ".join(get_args(Role)), repr(role))
        secret = secrets.token_urlsafe(24)
        with self.database.begin() as db:
            row = {"hash": _hash(secret), "role": role, "person": person, "expires": time.time() + LINK_SECONDS}
            db.execute(sa.insert(LINKS).values(row))
            if by is not None:
                record(db, by, "invite", role)
        return secret

    def find_link(self, secret: str) -> tuple[Role, int | None]:
        """Return the role of a link, and the person that it lets in; none = an invitation."""
        with self.database.begin() as db:
            row = db.execute(sa.select(LINKS).where(LINKS.c.hash == _hash(secret))).first()
        if row is None or row.expires < time.time():
            raise NotAllowed(404, "This link is not valid: it was used already, or it has expired.")
        return row.role, row.person

    def enter(self, secret: str) -> str:
        """Let in the person of a link; return the secret of the session."""
        _, person = self.find_link(secret)
        if person is None:
            raise NotAllowed(404, "This link is an invitation.")
        return self._start_session(person)

    def join(self, secret: str, name: str, password: str) -> str:
        """Make the account of an invited person; return the secret of the session. An invitation works once."""
        role, person = self.find_link(secret)
        if person is not None:
            raise NotAllowed(404, "This link is not an invitation.")
        _check_name(name)
        _check_password(password)
        with self._hashing:
            hashed = self._hasher.hash(password)
        with self.database.begin() as db:
            if db.execute(sa.delete(LINKS).where(LINKS.c.hash == _hash(secret))).rowcount != 1:
                raise NotAllowed(404, "This link was used already.")
            if db.execute(sa.select(PEOPLE.c.id).where(PEOPLE.c.name == name)).first() is not None:
                raise BadInput("name", "one that is free", f"{name!r}, which is taken")
            id = _add_person(db, name, role, hashed)
            record(db, Person(id, name, role), "join")
        return self._start_session(id)

    def log_in(self, name: str, password: str, address: str) -> str:
        """Check a password; return the secret of the session."""
        if not NAME.fullmatch(name) or len(password) > LONGEST_PASSWORD:
            raise NotAllowed(403, "The name or the password is wrong.")
        self._count_try({"name": name, "address": address})
        with self.database.begin() as db:
            account = db.execute(sa.select(PEOPLE).where(PEOPLE.c.name == name, PEOPLE.c.is_active)).first()
        try:  # as much work for a name that does not exist
            with self._hashing:
                self._hasher.verify(account.password if account and account.password else self._nobody, password)
        except (Argon2Error, InvalidHashError):
            raise NotAllowed(403, "The name or the password is wrong.") from None
        if account is None or not account.password:
            raise NotAllowed(403, "The name or the password is wrong.")
        return self._start_session(account.id)

    def find(self, secret: str) -> Person | None:
        """Return the person of a session."""
        columns = (PEOPLE.c.id, PEOPLE.c.name, PEOPLE.c.role, SESSIONS.c.csrf)
        query = sa.select(*columns).join(SESSIONS, SESSIONS.c.person == PEOPLE.c.id)
        valid = (SESSIONS.c.hash == _hash(secret), SESSIONS.c.expires > time.time(), PEOPLE.c.is_active)
        with self.database.begin() as db:
            row = db.execute(query.where(*valid)).first()
        return None if row is None else Person(*row)

    def log_out(self, secret: str) -> None:
        """End a session."""
        with self.database.begin() as db:
            db.execute(sa.delete(SESSIONS).where(SESSIONS.c.hash == _hash(secret)))

    def list_people(self) -> list[sa.Row[Any]]:
        """List everybody: id, name, role, is_active."""
        with self.database.begin() as db:
            return list(db.execute(sa.select(PEOPLE.c.id, PEOPLE.c.name, PEOPLE.c.role, PEOPLE.c.is_active)))

    def read_audit(self, most: int = 300) -> list[sa.Row[Any]]:
        """List what was done, newest first: at, name, action, detail."""
        columns = (AUDIT.c.at, PEOPLE.c.name, AUDIT.c.action, AUDIT.c.detail)
        query = sa.select(*columns).join(PEOPLE, isouter=True).order_by(AUDIT.c.id.desc()).limit(most)
        with self.database.begin() as db:
            return list(db.execute(query))

    def set_active(self, id: int, is_active: bool, by: Person) -> None:
        """Close or open an account. Its answers stay; its sessions end."""
        if id == by.id:
            raise BadInput("person", "somebody else", "yourself")
        with self.database.begin() as db:
            db.execute(sa.update(PEOPLE).where(PEOPLE.c.id == id).values(is_active=is_active))
            db.execute(sa.delete(SESSIONS).where(SESSIONS.c.person == id))
            record(db, by, "open account" if is_active else "close account", str(id))

    def _start_session(self, person: int) -> str:
        secret = secrets.token_urlsafe(32)
        row = {"hash": _hash(secret), "person": person, "csrf": secrets.token_urlsafe(24)}
        with self.database.begin() as db:
            db.execute(sa.delete(SESSIONS).where(SESSIONS.c.expires < time.time()))
            db.execute(sa.insert(SESSIONS).values(**row, expires=time.time() + SESSION_SECONDS))
        return secret

    def _count_try(self, given: dict[str, str]) -> None:
        """Refuse a try after too many; tries are kept as hashes, and refused ones are not kept."""
        now, hashes = time.monotonic(), {key: _hash(f"{key} {value}").encode() for key, value in given.items()}
        with self._lock:
            while self._tries and self._tries[0][0] <= now - TRY_SECONDS:
                self._tries.popleft()
            counts = Counter(hash for _, hash in self._tries)
            if any(counts[hash] >= TRIES[key] for key, hash in hashes.items()):
                raise NotAllowed(429, "Too many tries: wait a minute.")
            self._tries.extend((now, hash) for hash in hashes.values())


def record(db: sa.Connection, person: Person | None, action: str, detail: str = "") -> None:
    """Write down who did what, in the transaction that does it."""
    row = {"at": time.time(), "person": None if person is None else person.id, "action": action, "detail": detail}
    db.execute(sa.insert(AUDIT).values(row))


def _add_person(db: sa.Connection, name: str, role: Role, password: str | None) -> int:
    query = sa.insert(PEOPLE).values(name=name, role=role, password=password).returning(PEOPLE.c.id)
    return int(db.execute(query).scalar_one())


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise BadInput(
            "name", f"1 to {LONGEST_NAME} letters, digits, spaces, dots or hyphens (a pseudonym)", repr(name[:80])
        )


def _check_password(password: str) -> None:
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        raise BadInput("password", f"{SHORTEST_PASSWORD} characters or more", f"{len(password)} characters")
