"""Writes of a plan, all within the one transaction that makes it a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, insert, select

from weirbox.store.base import PAYLOAD, RUN, TRIAL, add, add_from
from weirbox.store.staging import STAGED_TRIAL


def insert_run(connection: Connection, row: dict[str, Any]) -> None:
    """Insert a run."""
    connection.execute(insert(RUN), row)


def add_payloads(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Keep contents by digest; what is there already stays."""
    add(connection, PAYLOAD, rows)


def insert_staged_trials(connection: Connection) -> None:
    """Insert the trials of the plan that are staged on this connection."""
    add_from(connection, TRIAL, select(STAGED_TRIAL).order_by(STAGED_TRIAL.c.seq))
