"""The tables as SQL expressions, and the two statements every writer needs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Column, Connection, Select, Table
from sqlalchemy.dialects import postgresql, sqlite

from weirbox.store import side_tables, tables


def table(model: type[Any]) -> Table:
    """The Core table of a model."""
    found: Table = model.__table__
    return found


RUN = table(tables.Run)
TRIAL = table(tables.Trial)
SCORE = table(tables.ScoreRow)
SCORE_TEXT = table(tables.ScoreText)
PAYLOAD = table(tables.Payload)
CALL = table(tables.JudgeCallRow)
RESERVATION = table(tables.Reservation)
EXPORT = table(tables.Export)
PROPOSAL = table(tables.ProposalRow)
EXECUTION = table(tables.Execution)
EVENT = table(tables.RunEvent)
SCORECARD = table(tables.ScorecardRow)
METRIC = table(tables.MetricRow)
CLAIM = table(tables.Claim)
DISPATCH = table(side_tables.Dispatch)
ATTEMPT = table(side_tables.AttemptRow)
SCORE_HISTORY = table(side_tables.ScoreHistory)
SUITE = table(side_tables.RegisteredSuite)
DATASET_VERSION = table(side_tables.DatasetVersion)
DATASET_CASE = table(side_tables.DatasetCase)
AUTO_RUN = table(side_tables.AutoRun)
ALERT = table(side_tables.Alert)


def add(
    connection: Connection, into: Table, rows: Sequence[dict[str, Any]], *, replace: bool = False
) -> None:
    """Insert rows; one that is there already is replaced, or stays as it is."""
    if rows:
        columns = tuple(rows[0]) if replace else ()
        connection.execute(_insert(connection.dialect.name, into, columns), list(rows))


def add_new(connection: Connection, into: Table, row: dict[str, Any]) -> bool:
    """Insert a row, unless it is there; gives whether this call made it."""
    statement = _insert(connection.dialect.name, into, ()).returning(*into.primary_key.columns)
    return connection.execute(statement, row).first() is not None


def add_unless(
    connection: Connection, into: Table, rows: Sequence[dict[str, Any]], key: Column[Any]
) -> list[Any]:
    """Insert rows but for those whose key is there already; gives the keys that are new."""
    statement = _insert(connection.dialect.name, into, ()).returning(key)
    return list(connection.execute(statement, list(rows)).scalars())


def add_from(connection: Connection, into: Table, rows: Select[Any]) -> None:
    """Insert what a query gives, in columns of the same names; what is there already stays."""
    names = [column.name for column in rows.selected_columns]
    statement = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(into)
    connection.execute(statement.from_select(names, rows).on_conflict_do_nothing())


@lru_cache(maxsize=64)
def _insert(dialect: str, into: Table, replaced: tuple[str, ...]) -> Any:
    """An insert with its conflict clause; cached, as building one costs more than running it."""
    statement = (sqlite if dialect == "sqlite" else postgresql).insert(into)
    keys = [column.name for column in into.primary_key.columns]
    others = {name: statement.excluded[name] for name in replaced if name not in keys}
    if others:
        return statement.on_conflict_do_update(index_elements=keys, set_=others)
    return statement.on_conflict_do_nothing()


def lock_rows(connection: Connection, statement: Any) -> Any:
    """Lock the selected rows on PostgreSQL; on SQLite the transaction holds the lock.

    The lock lets others refer to the rows by foreign keys: a stronger one would wait for
    every driver that adds a score to the run while it waits for us.
    """
    if connection.dialect.name == "sqlite":
        return statement
    return statement.with_for_update(key_share=True)
