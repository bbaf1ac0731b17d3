"""The database of people's work: a SQLite file, or PostgreSQL by URL.

Answers are rows that are only ever added: the newest of a person and item counts. Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from demerit.data.files import make_folder
from demerit.errors import BadInput, StoreError

TABLES = sa.MetaData()

PEOPLE = sa.Table(
    "people",
    TABLES,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(60), nullable=False, unique=True),
    sa.Column("role", sa.String(12), nullable=False),
    sa.Column("password", sa.Text),  # an argon2 hash; none = enters by a link only
    sa.Column("is_active", sa.Boolean, nullable=False, default=True),
)
LINKS = sa.Table(
    "links",
    TABLES,
    sa.Column("hash", sa.String(64), primary_key=True),
    sa.Column("role", sa.String(12), nullable=False),
    sa.Column("person", sa.ForeignKey("people.id")),  # whom the link lets in; none = an invitation
    sa.Column("expires", sa.Float, nullable=False),
)
SESSIONS = sa.Table(
    "sessions",
    TABLES,
    sa.Column("hash", sa.String(64), primary_key=True),
    sa.Column("person", sa.ForeignKey("people.id"), nullable=False),
    sa.Column("csrf", sa.String(64), nullable=False),
    sa.Column("expires", sa.Float, nullable=False),
)
AUDIT = sa.Table(
    "audit",
    TABLES,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("person", sa.ForeignKey("people.id")),
    sa.Column("action", sa.String(40), nullable=False),
    sa.Column("detail", sa.Text, nullable=False, default=""),
)
ITEMS = sa.Table(
    "items",
    TABLES,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("kind", sa.String(12), nullable=False),  # verify, compare or mark
    sa.Column("dataset", sa.Text, nullable=False),  # the folder that its labels go to
    sa.Column("episode", sa.Text, nullable=False),
    sa.Column("other", sa.Text, nullable=False, default=""),  # the second of a comparison
    sa.Column("wanted", sa.Integer, nullable=False),  # people who are to answer
    sa.Column("given", sa.Integer, nullable=False, default=0),  # people who have answered or are about to
    sa.Column("urgency", sa.Float, nullable=False, default=0.0),  # the highest comes first
    sa.Column("gold", sa.JSON(none_as_null=True)),  # the known answer, to check raters
    sa.UniqueConstraint("kind", "dataset", "episode", "other"),
    sa.Index("next_item", "kind", "urgency"),
)
ASSIGNMENTS = sa.Table(
    "assignments",
    TABLES,
    sa.Column("item", sa.ForeignKey("items.id"), primary_key=True),
    sa.Column("person", sa.ForeignKey("people.id"), primary_key=True, index=True),
    sa.Column("since", sa.Float, nullable=False),
    sa.Column("swapped", sa.Boolean, nullable=False, default=False),  # the second of a comparison is shown first
    sa.Column("is_done", sa.Boolean, nullable=False, default=False),
    sa.Column("draft", sa.JSON(none_as_null=True)),
)
ANSWERS = sa.Table(
    "answers",
    TABLES,
    sa.Column("number", sa.Integer, primary_key=True),  # the order of arrival
    sa.Column("id", sa.String(36), nullable=False, unique=True),  # made by the page: sent twice, it is stored once
    sa.Column("item", sa.ForeignKey("items.id"), nullable=False, index=True),
    sa.Column("person", sa.ForeignKey("people.id"), nullable=False, index=True),
    sa.Column("body", sa.JSON, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("is_stored", sa.Boolean, nullable=False, default=False, index=True),  # it is in the dataset folder
)

# The arena
POLICIES = sa.Table(
    "policies",
    TABLES,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(100), nullable=False, unique=True),
    sa.Column("address", sa.Text, nullable=False, default=""),  # ws://... of its server; sites never see it
    sa.Column("is_active", sa.Boolean, nullable=False, default=True),
)
TRIALS = sa.Table(
    "trials",
    TABLES,
    sa.Column("id", sa.String(36), primary_key=True),
    sa.Column("site", sa.ForeignKey("people.id"), nullable=False, index=True),
    sa.Column("first", sa.ForeignKey("policies.id"), nullable=False),  # runs first; the order is random
    sa.Column("second", sa.ForeignKey("policies.id"), nullable=False),
    sa.Column("started", sa.Float, nullable=False),
    sa.Column("ended", sa.Float),
    sa.Column("instruction", sa.Text, nullable=False, default=""),
    sa.Column("is_safe", sa.Boolean, nullable=False, default=False),  # the safety checklist is done
    sa.Column("is_reset", sa.Boolean, nullable=False, default=False),  # the scene looks like the photo again
    sa.Column("verdict", sa.String(6)),  # first, second or tie
    sa.Column("first_progress", sa.Float),
    sa.Column("second_progress", sa.Float),
    sa.Column("first_success", sa.Boolean),
    sa.Column("second_success", sa.Boolean),
    sa.Column("feedback", sa.Text, nullable=False, default=""),
    sa.Column("excluded", sa.Text, nullable=False, default=""),  # why it does not count
)
UPLOADS = sa.Table(
    "uploads",
    TABLES,
    sa.Column("id", sa.String(36), primary_key=True),
    sa.Column("trial", sa.ForeignKey("trials.id"), nullable=False, index=True),
    sa.Column("part", sa.String(6), nullable=False),  # photo, first or second
    sa.Column("camera", sa.String(5), nullable=False),  # left, right or wrist
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("is_complete", sa.Boolean, nullable=False, default=False),
    sa.UniqueConstraint("trial", "part", "camera"),
)


class DatabaseAway(StoreError):
    """The database does not answer now. What was asked for can be asked for again."""

    status = 503


class Database:
    """A database that is open. Every `begin` is one transaction: all of it happens, or nothing."""

    def __init__(self, url: str) -> None:
        """Open `sqlite:///FILE` or `postgresql://USER:PASSWORD@HOST/NAME`, and create the tables that it lacks."""
        try:
            parsed = make_url(url)
        except sa.exc.ArgumentError as error:
            raise BadInput("database", "sqlite:///FILE or postgresql://USER@HOST/NAME", error) from error
        self.is_file = parsed.get_backend_name() == "sqlite"
        if self.is_file:
            make_folder(Path(parsed.database or "").parent)
        elif parsed.get_backend_name() == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        else:
            raise BadInput("database", "sqlite or postgresql", parsed.get_backend_name())
        pool: dict[str, Any] = {} if self.is_file else {"pool_size": 10, "max_overflow": 20, "pool_pre_ping": True}
        self.name = parsed.render_as_string(hide_password=True)
        self._engine = sa.create_engine(parsed, **pool)
        if self.is_file:
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            sa.event.listen(self._engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        try:
            TABLES.create_all(self._engine)
        except sa.exc.DBAPIError as error:
            raise StoreError(self.name, f"the database cannot be used ({str(error.orig).strip()})") from error

    @contextmanager
    def begin(self) -> Iterator[sa.Connection]:
        """Run a transaction; it is durable when the block ends, and undone when it raises."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError) as error:
            reason = str(getattr(error, "orig", error)).strip()
            raise DatabaseAway(self.name, f"the database cannot be used now ({reason})") from error
        except (sa.exc.DataError, OverflowError) as error:
            raise BadInput("request", "values that a database can hold", type(error).__name__) from error

    def queue_up(self, db: sa.Connection) -> None:
        """Let one transaction after the other go on from here. With SQLite all of them do."""
        if not self.is_file:
            db.execute(sa.select(sa.func.pg_advisory_xact_lock(1)))

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # our BEGIN IMMEDIATE, not the driver's: two writers wait instead of failing
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
        connection.execute(f"PRAGMA {pragma}")
