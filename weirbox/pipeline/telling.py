"""What a tick has told and started besides drivers: alerts, and runs that answer growth.

Both are rows first, so it is safe to run often, twice at once, and to kill anywhere: an alert
is written once and told until the engine has taken it; the growth of a dataset is answered
under one key, however often it is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from weirbox.domain.words import RunKind
from weirbox.pipeline import alerting, growing
from weirbox.pipeline.growing import DueRun
from weirbox.pipeline.planning import ANY_RUN
from weirbox.store import alerts
from weirbox.store.alerts import AlertRow
from weirbox.store.engine import Database

Work = dict[str, Callable[[], Awaitable[None]]]
"""What is to be done, by what a person calls it."""


class Tells(Protocol):
    """What takes alerts and starts evaluations."""

    async def emit(self, alert: AlertRow) -> None:
        """Have an alert told; returns once it is taken."""

    async def evaluate(self, suite: str, kind: str, since: str | None, key: str) -> str:
        """Have a suite evaluated; gives the flow run, the same one for the same key."""


def watching(database: Database, run_ids: Sequence[str]) -> Work:
    """Write the alerts that runs give cause for, each run in a transaction of its own."""
    return {run_id: partial(asyncio.to_thread, _watch, database, run_id) for run_id in run_ids}


def telling(database: Database, engine: Tells) -> Work:
    """Tell the alerts that the engine has not taken yet."""
    with database.read() as connection:
        untold = alerts.unsent(connection)
    return {f"{a.run_id}, {a.kind}": partial(_tell, database, engine, a) for a in untold}


def answering(database: Database, engine: Tells) -> Work:
    """Start the runs that the growth of datasets calls for."""
    with database.read() as connection:
        due = growing.due(connection)
    return {f"suite {run.suite}": partial(_answer, database, engine, run) for run in due}


def _watch(database: Database, run_id: str) -> None:
    with database.write() as connection:
        alerting.watch(connection, run_id)


async def _tell(database: Database, engine: Tells, alert: AlertRow) -> None:
    await engine.emit(alert)
    await asyncio.to_thread(_told, database, alert)


def _told(database: Database, alert: AlertRow) -> None:
    with database.write() as connection:
        alerts.sent(connection, alert.run_id, alert.kind)


async def _answer(database: Database, engine: Tells, run: DueRun) -> None:
    if await asyncio.to_thread(_take, database, run):
        flow_run = await engine.evaluate(run.suite, RunKind.DELTA, ANY_RUN, run.key)
        await asyncio.to_thread(_answered, database, run, flow_run)


def _take(database: Database, run: DueRun) -> bool:
    with database.write() as connection:
        return growing.take(connection, run)


def _answered(database: Database, run: DueRun, flow_run: str) -> None:
    with database.write() as connection:
        growing.answered(connection, run, flow_run)
