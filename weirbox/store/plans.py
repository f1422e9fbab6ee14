"""Writes of a plan, all within the one transaction that freezes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, insert, update

from weirbox.store.base import PAYLOAD, RUN, TRIAL, add


def insert_run(connection: Connection, row: dict[str, Any]) -> None:
    """Insert a run whose plan follows in the same transaction."""
    connection.execute(insert(RUN), row)


def add_payloads(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Keep contents by digest; what is there already stays."""
    add(connection, PAYLOAD, rows)


def insert_trials(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert trials of the plan."""
    if rows:
        connection.execute(insert(TRIAL), list(rows))


def set_plan(connection: Connection, run_id: str, **columns: Any) -> None:
    """Complete a run's row with what is known once its cases are frozen."""
    connection.execute(update(RUN).where(RUN.c.id == run_id).values(**columns))
