"""Answers that were paid for, in one SQLite file, and what requests cost.

An answer is stored before it is returned, so it is never paid for twice, also after `kill -9`. Stored are a hash of the
request and the answer, never the request or a key. Several processes may share the file; two that ask the same question
at the same moment both pay, and the first answer stays.

`Budget` reserves and books money, `Spending` is the sum so far, `Estimate` a look ahead.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from demerit.data.episode import count_episodes
from demerit.errors import BadInput, StoreError
from demerit.llm.request import Endpoint

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


@dataclass(frozen=True)
class Spending:
    """What a client sent, received and paid since it was made."""

    requests: int = 0
    """without the SDK's retries"""
    answers: int = 0
    """answers received, each billed once"""
    from_cache: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    estimated: int = 0
    """answers whose tokens the server did not count; ours are estimates"""
    cost: float | None = None
    """dollars for `answers`; None without prices"""
    unsure: int = 0
    """requests that broke off without an answer; the server may have billed them"""
    unsure_cost: float | None = None
    """their estimated cost in dollars, counted against the budget"""

    def __str__(self) -> str:
        """One line."""
        price = "no prices given" if self.cost is None else f"${self.cost:.4f}"
        if self.estimated:
            price += f" ({self.estimated} answers estimated)"
        line = f"{self.answers} answers, {self.from_cache} from the cache, {self.requests} requests, "
        line += f"{self.tokens_in} tokens in, {self.tokens_out} out, {price}"
        if self.unsure:
            most = "" if self.unsure_cost is None else f", at most about ${self.unsure_cost:.4f}"
            line += f"; {self.unsure} broken requests may be billed too{most}"
        return line


@dataclass(frozen=True)
class Estimate:
    """What requests would cost, computed without sending anything."""

    requests: int
    cached: int
    """free: already answered, or repeated in this list"""
    images: int
    tokens_in: int
    tokens_out: int
    """upper limit: every answer as long as its `max_tokens`"""
    cost: float | None
    """dollars for `tokens_in` and `tokens_out`; None without prices"""

    def __str__(self) -> str:
        """One line, with the rule."""
        price = "cost unknown without prices" if self.cost is None else f"at most about ${self.cost:.2f}"
        return (
            f"{self.requests} requests, {self.cached} of them free (cached or repeated); about {self.tokens_in} tokens "
            f"in ({self.images} images), at most {self.tokens_out} out; {price}. Estimated: 3 bytes of text per token, "
            "images at the larger of 85 + 170 per 512-pixel tile and one token per 28x28 pixels."
        )


@dataclass(frozen=True)
class ScoringEstimate:
    """What scoring would cost."""

    estimate: Estimate
    episodes: int
    looked_at: int
    """the estimate is scaled up from this many episodes"""

    @classmethod
    def scaled(cls, found: Estimate, episodes: int, looked_at: int) -> ScoringEstimate:
        """Scale the estimate for `looked_at` episodes up to all of them."""
        factor = episodes / max(looked_at, 1)
        requests, cached, images, tokens_in, tokens_out = (
            round(number * factor)
            for number in (found.requests, found.cached, found.images, found.tokens_in, found.tokens_out)
        )
        cost = None if found.cost is None else found.cost * factor
        return cls(Estimate(requests, cached, images, tokens_in, tokens_out, cost), episodes, looked_at)

    def __str__(self) -> str:
        """One line."""
        scaled = "" if self.looked_at == self.episodes else f" (scaled up from {self.looked_at})"
        return f"{count_episodes(self.episodes)}{scaled}: {self.estimate}"


class Budget:
    """Counts the requests of one client; thread-safe.

    Each request reserves its estimated cost before it is sent, so that spent + reserved never exceeds the limit. A
    request that does not fit waits for those in flight, which mostly cost less than reserved. If nothing is in flight
    and it still does not fit, the budget is used up and the client stops.
    """

    def __init__(self, endpoint: Endpoint, limit: float | None) -> None:
        """Take the limit in dollars; None for no limit."""
        if limit is not None and not 0 <= limit < float("inf"):
            raise BadInput("budget", "dollars, 0 or more", limit)
        if limit is not None and endpoint.cost(1, 1) is None:
            raise BadInput("budget", "the endpoint's price_in and price_out", "no prices")
        self._endpoint, self._limit = endpoint, limit
        self._sum = Spending(cost=endpoint.cost(0, 0), unsure_cost=endpoint.cost(0, 0))
        self._reserved = 0.0
        self._in_flight = 0
        self._count_ratio = 1.0
        """largest ratio of counted to estimated input tokens so far; scales later estimates"""
        self._changed = threading.Condition()
        self.stopped = ""
        """why nothing more is sent; empty while requests may be sent"""

    @property
    def spending(self) -> Spending:
        """Everything so far."""
        return self._sum

    def stop(self, reason: str) -> None:
        """Send nothing more; the first reason stays."""
        with self._changed:
            self.stopped = self.stopped or reason
            self._changed.notify_all()

    def count_cached(self) -> None:
        """Count an answer from the cache."""
        with self._changed:
            self._add(from_cache=1)

    def reserve(self, tokens_in: int, tokens_out: int, cancelled: threading.Event) -> float | str:
        """Reserve a request's estimated cost and return it, or return the reason why nothing may be sent."""
        with self._changed:
            while True:
                if self.stopped or cancelled.is_set():
                    return self.stopped or "interrupted"
                need = self._endpoint.cost(tokens_in * self._count_ratio, tokens_out) or 0.0
                spent = (self._sum.cost or 0.0) + (self._sum.unsure_cost or 0.0)
                if self._limit is None or spent + self._reserved + need <= self._limit:
                    self._reserved += need
                    self._in_flight += 1
                    self._add(requests=1)
                    return need
                if not self._in_flight:
                    self.stopped = (
                        f"the budget of ${self._limit:.4f} is used up (${spent:.4f} spent, "
                        f"the next request may cost ${need:.4f})"
                    )
                    return self.stopped
                self._changed.wait(0.5)

    def settle(self, reserved: float, estimated_in: int, answer: StoredAnswer) -> float | None:
        """Book one answer at the tokens the server counted; returns its cost in dollars."""
        cost = self._endpoint.cost(answer.tokens_in, answer.tokens_out)
        with self._changed:
            if not answer.estimated and estimated_in:
                self._count_ratio = max(self._count_ratio, answer.tokens_in / estimated_in)
            tokens = {"tokens_in": answer.tokens_in, "tokens_out": answer.tokens_out}
            self._add(answers=1, estimated=int(answer.estimated), **tokens)
            if cost is not None:
                self._sum = replace(self._sum, cost=(self._sum.cost or 0.0) + cost)
            self._release(reserved)
        return cost

    def fail(self, reserved: float, maybe_billed: int) -> None:
        """Give a reservation back; count as spent each attempt that the server may have billed."""
        with self._changed:
            if maybe_billed:
                self._add(unsure=1)
            if self._sum.unsure_cost is not None:
                self._sum = replace(self._sum, unsure_cost=self._sum.unsure_cost + maybe_billed * reserved)
            self._release(reserved)

    def _add(self, **counts: int) -> None:
        self._sum = replace(self._sum, **{name: getattr(self._sum, name) + more for name, more in counts.items()})

    def _release(self, reserved: float) -> None:
        self._in_flight -= 1
        self._reserved = self._reserved - reserved if self._in_flight else 0.0
        self._changed.notify_all()
