"""The connection to the database: one behaviour on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError
from tenacity import (
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from weirbox.errors import ServiceError, UserError

__all__ = [
    "Connection",
    "Database",
    "DatabaseTrouble",
    "Migrated",
    "in_words",
    "is_trouble",
    "migrate",
    "mismatch",
    "open_database",
    "schema_version",
    "upgrade",
]

T = TypeVar("T")

HEAD = "0002"
"""The newest migration: the version of the schema that this code reads and writes."""

DRIVERS = ("sqlite", "sqlite+pysqlite", "postgresql+psycopg")
"""What a database is reached by."""

BUSY_MS = 30_000
"""How long SQLite waits for another process's write."""

CACHE_KIB = 512
"""SQLite's page cache per connection: a pool of them at the default 2 MiB was the largest
part of a driver's memory, and the system caches the file anyway."""

ATTEMPTS = 13
"""Attempts at a transaction that a lock or a dead connection ended: with the pauses between
them, a server that is restarted is waited for half a minute."""

CONNECT_S = 10
"""How long a PostgreSQL server may take to accept a connection."""

SILENT_MS = 30_000
"""After how long a PostgreSQL server whose machine acknowledges nothing counts as gone."""

DatabaseTrouble = SQLAlchemyError
"""What a caller outside the store catches when the database fails."""

_TOO_LARGE = "54"
"""PostgreSQL's class of errors about a row or an index entry beyond what it can hold."""

_WRITE = "weirbox_write"
_MIGRATION_LOCK = 0x77656972  # any constant: PostgreSQL's advisory lock for migrations


def is_trouble(error: BaseException) -> bool:
    """Whether the database is in trouble (locked, full, gone), rather than what it was given."""
    if not isinstance(error, OperationalError):
        return False
    return not str(getattr(error.orig, "sqlstate", None) or "").startswith(_TOO_LARGE)


def in_words(error: SQLAlchemyError) -> str:
    """What the database itself says, in one line."""
    said = str(error.orig if isinstance(error, DBAPIError) else error)
    return " ".join(said.split())


class Database:
    """An engine with two kinds of transactions, reading and writing."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = _make_engine(url)
        self.sqlite = self.engine.dialect.name == "sqlite"
        self._reading = self.engine
        if not self.sqlite:
            self._reading = self.engine.execution_options(isolation_level="REPEATABLE READ")

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one consistent state."""
        with self._reading.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that may write: on SQLite it takes the write lock at once,
        so that it can never fail half-way on a lock that it needs to upgrade."""
        with self.engine.connect() as connection, self.writing(connection):
            yield connection

    @contextmanager
    def writing(self, connection: Connection) -> Iterator[None]:
        """The same, on a connection that the caller keeps."""
        with connection.execution_options(**{_WRITE: True}).begin():
            yield

    def persist(self, work: Callable[[Connection], T]) -> T:
        """Do work in a writing transaction, again from its start while the database is in
        trouble that may pass: locked for long, full, or gone for seconds.

        A commit whose acknowledgement was lost stands, and the work is done once more: it
        must be safe to run twice.
        """
        return _insist(self.write, work)

    def fetch(self, work: Callable[[Connection], T]) -> T:
        """Read, again from the start while the database is in trouble that may pass."""
        return _insist(self.read, work)

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()


def _insist(
    transaction: Callable[[], AbstractContextManager[Connection]], work: Callable[[Connection], T]
) -> T:
    for attempt in Retrying(
        retry=retry_if_exception(is_trouble),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(multiplier=0.05, max=5) + wait_random(0, 0.2),
        reraise=True,
    ):
        with attempt, transaction() as connection:
            return work(connection)
    raise AssertionError("Retrying always returns or raises")


class Migrated(NamedTuple):
    """The versions of a database's schema; None before it had one."""

    before: str | None
    after: str


def open_database(url: str) -> Database:
    """Connect, and make the tables of an empty database. Safe to run from many processes at
    once.

    Raises:
        UserError: When the URL is malformed.
        ServiceError: When the database cannot be reached or written, or its schema is of
            another version than the code.
    """
    with _told(url):
        database = Database(url)
        found = schema_version(database)
        if found is None:
            upgrade(database)
        elif found != HEAD:
            database.close()
            raise ServiceError(mismatch(found))
    return database


def migrate(url: str) -> Migrated:
    """Bring the schema up to date: what `open_database` does not do unasked.

    Safe to run twice, and from many processes at once: one migrates, the others wait and
    find it done. A migration that fails or is killed leaves everything as it was.

    Raises:
        UserError, ServiceError: As `open_database`; a newer schema is not taken back.
    """
    with _told(url):
        database = Database(url)
        try:
            return Migrated(upgrade(database), HEAD)
        finally:
            database.close()


def upgrade(database: Database) -> str | None:
    """Apply the migrations that are missing, in one transaction.

    Returns:
        The version that it had before.

    Raises:
        ServiceError: When the schema is newer than this version of the code.
    """
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    with database.write() as connection:
        if not database.sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        before = _version(connection)
        if before is not None and before > HEAD:
            raise ServiceError(mismatch(before))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        return before


def mismatch(found: str) -> str:
    """That a schema is not the code's, and the way out; versions are numbers of one width."""
    if found > HEAD:
        return (
            f"the database belongs to another version of weirbox: its schema is {found}, and "
            f"this weirbox, {HEAD}, is older; upgrade weirbox"
        )
    return (
        f"the database's schema is {found}, and this weirbox needs {HEAD}: "
        "back the database up, then run: weirbox migrate"
    )


def schema_version(database: Database) -> str | None:
    """The version of a database's schema; None where there is none yet."""
    with database.read() as connection:
        return _version(connection)


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Say in one message what is wrong with a database, or with its address."""
    try:
        yield
    except (ArgumentError, ModuleNotFoundError) as error:
        raise UserError(
            f"WEIRBOX_DATABASE_URL is no URL of a SQLite or PostgreSQL database: {error}"
        ) from None
    except (DBAPIError, OSError) as error:
        shown = make_url(url).render_as_string(hide_password=True)
        reason = error.orig if isinstance(error, DBAPIError) else error
        raise ServiceError(f"the database {shown} cannot be used: {reason}") from error


def _make_engine(url: str) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql" and "+" not in parsed.drivername:
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in DRIVERS:
        raise ArgumentError(
            f"{parsed.drivername}:// is none of sqlite://, postgresql:// and postgresql+psycopg://"
        )
    if parsed.get_backend_name() != "sqlite":
        given = {"connect_timeout": str(CONNECT_S), "tcp_user_timeout": str(SILENT_MS)}
        return create_engine(parsed.set(query={**given, **parsed.query}), pool_pre_ping=True)
    if parsed.database:
        Path(parsed.database).absolute().parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(parsed, connect_args={"timeout": BUSY_MS / 1000})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(raw: Any, _: Any) -> None:
    raw.isolation_level = None
    cursor = raw.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get(_WRITE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
