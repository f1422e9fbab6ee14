"""A connection to the store that refuses to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from weirbox.errors import NotPossible, ServiceError, UserError
from weirbox.store.engine import HEAD, Database, mismatch, schema_version


def open_reader(url: str) -> Database | None:
    """Connect without ever writing: not even a schema, or an empty file, is made.

    Returns:
        None where there is no store yet.

    Raises:
        UserError: When the URL is malformed.
        NotPossible: When the schema is of another version.
        ServiceError: When the database cannot be read.
    """
    try:
        parsed = make_url(url)
        file = parsed.database if parsed.get_backend_name() == "sqlite" else None
        if file and not Path(file).exists():
            return None
        database = Database(url)
        event.listen(database.engine, "connect", _refuse_writes(database.engine))
        found = schema_version(database)
    except (ArgumentError, ModuleNotFoundError) as error:
        raise UserError(
            f"WEIRBOX_DATABASE_URL is no URL of a SQLite or PostgreSQL database: {error}"
        ) from None
    except (DBAPIError, OSError) as error:
        reason = error.orig if isinstance(error, DBAPIError) else error
        raise ServiceError(f"the database {shown_url(url)} cannot be read: {reason}") from error
    if found is None:
        database.close()
        return None
    if found != HEAD:
        database.close()
        raise NotPossible(mismatch(found))
    return database


def shown_url(url: str) -> str:
    """A database's URL without its password."""
    return make_url(url).render_as_string(hide_password=True)


def _refuse_writes(engine: Engine) -> Any:
    sqlite = engine.dialect.name == "sqlite"

    def prepare(raw: Any, _: Any) -> None:
        if sqlite:
            raw.execute("PRAGMA query_only=ON")
        else:
            raw.read_only = True

    return prepare


__all__ = ["Database", "open_reader", "shown_url"]
