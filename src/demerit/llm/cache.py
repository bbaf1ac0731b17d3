"""Answers that were paid for, in one SQLite file that several processes may share.

An answer is written before anybody sees it, so what was reported is never asked again, also after `kill -9`. The
question is not stored, only its hash, and neither is any key. Before a question is sent its row in `claims` is taken:
another process that has the same question waits for the answer instead of paying too. A claim ends with its answer,
with its failure, at once when its process is gone, and otherwise when its time is up.

WAL keeps readers and the writer apart; it needs a local disk, not a network share.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from demerit.errors import StoreError

T = TypeVar("T")
VERSION = 1
WAIT_SECONDS = 60.0
DIALECT_LASTS = 24 * 3600.0
"""after a day a server is asked again what it understands: it may have been updated"""

_TABLES = """
CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, model TEXT NOT NULL, text TEXT NOT NULL, finish TEXT NOT NULL,
    refusal TEXT NOT NULL, tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL, estimated INTEGER NOT NULL,
    cost REAL, tag TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS claims (key TEXT PRIMARY KEY, owner TEXT NOT NULL, place TEXT NOT NULL, pid INTEGER NOT NULL,
    until REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS dialects (endpoint TEXT PRIMARY KEY, facts TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Reply:
    """A server's whole answer, as it is kept."""

    text: str
    finish: str
    refusal: str
    tokens_in: int
    tokens_out: int
    estimated: bool


class Cache:
    """One file of answers; without a path they are kept in memory for as long as this object lives."""

    def __init__(self, path: Path | None) -> None:
        """Open the file, making it where there is none."""
        self.path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0
        self._place = _place()
        with self._open():
            pass

    def get(self, key: str) -> Reply | None:
        """Look an answer up."""
        with self._open() as db:
            row = db.execute(
                "SELECT text, finish, refusal, tokens_in, tokens_out, estimated FROM answers WHERE key = ?", (key,)
            ).fetchone()
        return Reply(row[0], row[1], row[2], row[3], row[4], bool(row[5])) if row else None

    def claim(self, key: str, seconds: float) -> str:
        """Take the right to ask; returns the claim's name, empty when somebody alive has it."""
        owner, now = uuid.uuid4().hex, time.time()

        def take(db: sqlite3.Connection) -> str:
            if db.execute("SELECT 1 FROM answers WHERE key = ?", (key,)).fetchone():
                return ""
            row = db.execute("SELECT place, pid, until FROM claims WHERE key = ?", (key,)).fetchone()
            if row and row[2] > now and not (row[0] == self._place and not _alive(row[1])):
                return ""
            values = (key, owner, self._place, os.getpid(), now + seconds)
            db.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?)", values)
            return owner

        return self._write(take)

    def renew(self, key: str, owner: str, seconds: float) -> bool:
        """Keep a claim for longer; false when it ran out and is somebody else's now."""
        values, sql = (time.time() + seconds, key, owner), "UPDATE claims SET until = ? WHERE key = ? AND owner = ?"
        return self._write(lambda db: db.execute(sql, values).rowcount) == 1

    def release(self, key: str, owner: str) -> None:
        """Give a claim up: there will be no answer from here."""
        self._write(lambda db: db.execute("DELETE FROM claims WHERE key = ? AND owner = ?", (key, owner)))

    def put(self, key: str, reply: Reply, model: str, cost: float | None, tag: str) -> None:
        """Keep an answer for good. The first one stays: what somebody has seen never changes."""
        facts = (reply.text, reply.finish, reply.refusal, reply.tokens_in, reply.tokens_out, int(reply.estimated))

        def keep(db: sqlite3.Connection) -> None:
            values = (key, model, *facts, cost, tag, time.time())
            db.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
            db.execute("DELETE FROM claims WHERE key = ?", (key,))

        self._write(keep)

    def dialect(self, endpoint: str) -> dict[str, Any] | None:
        """What was learnt about a server, unless that is too long ago."""
        with self._open() as db:
            row = db.execute("SELECT facts, at FROM dialects WHERE endpoint = ?", (endpoint,)).fetchone()
        return json.loads(row[0]) if row and 0 <= time.time() - row[1] < DIALECT_LASTS else None

    def learn(self, endpoint: str, facts: dict[str, Any]) -> None:
        """Remember what a server understands."""
        values = (endpoint, json.dumps(facts), time.time())
        self._write(lambda db: db.execute("INSERT OR REPLACE INTO dialects VALUES (?, ?, ?)", values))

    def __len__(self) -> int:
        """Count the answers."""
        with self._open() as db:
            return int(db.execute("SELECT COUNT(*) FROM answers").fetchone()[0])

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do something in one transaction that nobody else's can come between."""
        with self._open() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                result = work(db)
                db.execute("COMMIT")
                return result
            except BaseException:
                # Some errors (a full disk) have rolled back already.
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection to one thread at a time. A forked child must not use its parent's: it opens its own."""
        with self._lock:
            try:
                if self._connection is None or self._pid != os.getpid():
                    self._connection, self._pid = self._connect(), os.getpid()
                yield self._connection
            except sqlite3.Error as error:
                raise StoreError(self.path or "answers in memory", f"the cache cannot be used ({error})") from error

    def _connect(self) -> sqlite3.Connection:
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreError(self.path, f"the cache's folder cannot be made ({error.strerror})") from error
        name = ":memory:" if self.path is None else str(self.path)
        db = sqlite3.connect(name, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, VERSION):
            raise StoreError(self.path or "", f"the cache has format {version}, this demerit reads {VERSION}")
        foreign = db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
        if version == 0 and foreign:
            # Two processes that start together both find 0; the one that comes second finds the other's tables.
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'answers'").fetchone():
                raise StoreError(self.path or "", "this is somebody else's SQLite file; give the cache another name")
        if version == VERSION:
            db.execute("PRAGMA synchronous = NORMAL")
            return
        _wal(db)
        # Survives kill -9 whole; only a power cut may take the last answers, and never the file.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("BEGIN IMMEDIATE")
        for statement in _TABLES.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")


def _wal(db: sqlite3.Connection) -> None:
    """Switch to WAL. Two that switch at once are refused without waiting, so this waits itself."""
    end = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)


def _place() -> str:
    """Where process numbers mean the same: this host and, in a container, its own numbering."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
