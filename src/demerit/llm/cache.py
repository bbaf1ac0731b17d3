"""Answers that were paid for, in one SQLite file.

An answer is stored before it is returned, so it is never paid for twice, also after `kill -9`. Stored are a hash of the
request and the answer, never the request or a key. Several processes may share the file; two that ask the same question
at the same moment both pay, and the first answer stays.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from demerit.errors import StoreError

VERSION = 1
WAIT_SECONDS = 60.0

_TABLE = """
CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, model TEXT NOT NULL, text TEXT NOT NULL, finish TEXT NOT NULL,
    refusal TEXT NOT NULL, tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL, estimated INTEGER NOT NULL,
    cost REAL, tag TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID
"""


@dataclass(frozen=True)
class StoredAnswer:
    """A server's answer, as stored."""

    text: str
    finish: str
    """why it ended: stop, length, content_filter, ..."""
    refusal: str
    """the server's words when it declines; else empty"""
    tokens_in: int
    tokens_out: int
    estimated: bool
    """the server did not count tokens; these are estimates"""


class AnswerCache:
    """One file of answers, for many threads and processes; without a path it lives in memory."""

    def __init__(self, path: Path | None) -> None:
        """Open or create the file."""
        self.path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        with self._open():
            pass

    def get(self, key: str) -> StoredAnswer | None:
        """Look an answer up."""
        columns = "text, finish, refusal, tokens_in, tokens_out, estimated"
        with self._open() as db:
            row = db.execute(f"SELECT {columns} FROM answers WHERE key = ?", (key,)).fetchone()
        return StoredAnswer(row[0], row[1], row[2], row[3], row[4], bool(row[5])) if row else None

    def put(self, key: str, answer: StoredAnswer, model: str, cost: float | None, tag: str) -> None:
        """Store an answer; durable once this returns. An answer that is already there stays."""
        facts = (answer.text, answer.finish, answer.refusal, answer.tokens_in, answer.tokens_out, int(answer.estimated))
        values = (key, model, *facts, cost, tag, time.time())
        with self._open() as db:
            db.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def __len__(self) -> int:
        """Count the answers."""
        with self._open() as db:
            return int(db.execute("SELECT COUNT(*) FROM answers").fetchone()[0])

    def close(self) -> None:
        """Close the file; the next use opens it again. In memory the answers are lost."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection to one thread at a time."""
        with self._lock:
            try:
                self._connection = self._connection or self._connect()
                yield self._connection
            except sqlite3.Error as error:
                raise StoreError(self.path or "answers in memory", f"the cache cannot be used ({error})") from error

    def _connect(self) -> sqlite3.Connection:
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreError(self.path, f"cannot create the cache's folder ({error.strerror})") from error
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
        if version == VERSION:
            return
        if version != 0:
            raise StoreError(self.path or "", f"the cache has format {version}, this demerit reads {VERSION}")
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables - {"answers"}:
            raise StoreError(self.path or "", "this is another program's SQLite file; choose another cache file")
        db.execute(_TABLE)
        db.execute(f"PRAGMA user_version = {VERSION}")
