"""Rows that gather beside the database, until one short transaction takes them over.

They stand in temporary tables of one connection: nobody else sees them or waits for them,
they may be larger than memory, and they are gone with the connection, whatever it ends on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Column, Connection, Integer, MetaData, Table, insert, select

from weirbox.store.base import DATASET_CASE, PAYLOAD, TRIAL, add_from
from weirbox.store.engine import Database

BATCH = 500
"""Contents that are taken over in one transaction: bounds how long other writers wait."""

CACHE_KIB = 32 * 1024
"""SQLite's page cache of the connection: rows that go to many places of an index at once would
otherwise be written out again and again while others wait (six times as long, measured)."""

_METADATA = MetaData()


def _beside(table: Table, names: Sequence[str], *, key: str) -> Table:
    """A temporary table of some columns of another one."""
    columns = [Column(name, table.c[name].type, primary_key=name == key) for name in names]
    return Table(f"staged_{table.name}", _METADATA, *columns, prefixes=["TEMPORARY"])


STAGED_TRIAL = _beside(
    TRIAL,
    (
        *("run_id", "seq", "case_id", "case_key", "trial", "entry_digest", "case_digest"),
        *("category", "stage", "attempt", "state", "verdict", "cached"),
    ),
    key="seq",
)
STAGED_CASE = _beside(DATASET_CASE, ("position", "case_key", "case_digest"), key="case_key")
_STAGED_PAYLOAD = Table(
    "staged_payload",
    _METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),
    *(Column(column.name, column.type) for column in PAYLOAD.c),
    prefixes=["TEMPORARY"],
)


class Staging:
    """One connection's staged rows, with the contents that they name."""

    def __init__(self, connection: Connection, database: Database, rows: Table) -> None:
        self._connection = connection
        self._database = database
        self._rows = rows
        self._contents = 0
        with connection.begin():
            if database.sqlite:
                connection.exec_driver_sql(f"PRAGMA cache_size=-{CACHE_KIB}")
            rows.create(connection)
            _STAGED_PAYLOAD.create(connection)

    def add(self, contents: Sequence[tuple[str, bytes]], rows: Sequence[dict[str, Any]]) -> None:
        """Stage some rows.

        Args:
            contents: Digest and body of each.
        """
        numbered = [
            {"number": number, "digest": digest, "body": body}
            for number, (digest, body) in enumerate(contents, self._contents)
        ]
        if rows:
            with self._connection.begin():
                self._connection.execute(insert(_STAGED_PAYLOAD), numbered)
                self._connection.execute(insert(self._rows), list(rows))
            self._contents += len(numbered)

    def publish(self) -> None:
        """Have the contents kept, which are harmless without the rows that name them.

        In the order of their digests, or two that keep the same ones could wait for each
        other; and with breaks, in which other writers get on.
        """
        staged = _STAGED_PAYLOAD.c
        for first in range(0, self._contents, BATCH):
            batch = select(staged.digest, staged.body).where(
                staged.number >= first, staged.number < first + BATCH
            )
            with self.write() as connection:
                begun = time.monotonic()
                add_from(connection, PAYLOAD, batch.order_by(staged.digest))
            time.sleep(time.monotonic() - begun)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A writing transaction of the database that sees the staged rows, too."""
        with self._database.writing(self._connection):
            yield self._connection


@contextmanager
def staging(database: Database, rows: Table) -> Iterator[Staging]:
    """Stage rows of one of the temporary tables for the length of a block."""
    with database.engine.connect() as connection:
        connection.detach()
        yield Staging(connection, database, rows)
