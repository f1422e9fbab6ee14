"""Group commit: one thread per process writes what arrives together in one transaction."""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection

from weirbox.store.engine import Database, is_trouble
from weirbox.store.rows import StageResult
from weirbox.store.spending import ReserveRequest, Settlement, release, reserve, settle
from weirbox.store.writes import write_stage_results

GATHER_S = 0.002
"""How long the first record waits for others: trials come in clusters, and a transaction
costs about as much CPU for ten records as for one (a third less per case, measured)."""

MOST = 500
"""The most records in one transaction: bounds how long other writers wait."""

Handler = Callable[[Connection, Sequence[Any]], Sequence[Any] | None]


@dataclass(frozen=True)
class Release:
    """A reservation to void."""

    reservation: int


def _release(connection: Connection, records: Sequence[Release]) -> None:
    release(connection, [record.reservation for record in records])


_HANDLERS: dict[type, Handler] = {
    Settlement: settle,
    Release: _release,
    ReserveRequest: reserve,
    StageResult: write_stage_results,
}
"""In the order in which one transaction applies them."""


class Writer:
    """Takes records from any thread and gives a future for each.

    A record whose transaction fails is tried again alone, so that one that the
    database refuses does not take the others with it. When the database itself is in
    trouble, all fail together: one by one, each would wait for it as long.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: queue.SimpleQueue[tuple[Any, Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="weirbox-writer", daemon=True)
        self._thread.start()

    def submit(self, record: StageResult | Settlement | ReserveRequest | Release) -> Future[Any]:
        """Hand a record over; the future has the handler's answer once it is committed.

        What was handed over is written: the future cannot be cancelled, so who stops
        waiting for it does not keep it, or what shares its transaction, from the rows.
        """
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        self._queue.put((record, future))
        return future

    def close(self) -> None:
        """Write what was handed over, then end."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            batch, last = self._take()
            if batch:
                self._commit(batch)
            if last:
                return

    def _take(self) -> tuple[list[tuple[Any, Future[Any]]], bool]:
        batch: list[tuple[Any, Future[Any]]] = []
        item = self._queue.get()
        time.sleep(GATHER_S)
        while item is not None:
            batch.append(item)
            if len(batch) >= MOST:
                return batch, False
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _commit(self, batch: list[tuple[Any, Future[Any]]]) -> None:
        try:
            answers = self._database.persist(partial(_apply, records=[r for r, _ in batch]))
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            if len(batch) == 1 or is_trouble(error):
                for _, future in batch:
                    future.set_exception(error)
                return
            for item in batch:
                self._commit([item])
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            future.set_result(answer)


def _apply(connection: Connection, records: list[Any]) -> list[Any]:
    places: dict[type, list[int]] = defaultdict(list)
    for index, record in enumerate(records):
        places[type(record)].append(index)
    answers: list[Any] = [None] * len(records)
    for kind, handler in _HANDLERS.items():
        indexes = places.get(kind)
        if not indexes:
            continue
        given = handler(connection, [records[index] for index in indexes])
        for index, answer in zip(indexes, given or [None] * len(indexes), strict=True):
            answers[index] = answer
    return answers
