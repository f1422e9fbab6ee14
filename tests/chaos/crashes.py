"""A whole run's life that ends at one commit: ``python -m tests.chaos.crashes FOLDER URL``.

Reads a line ``WHEN NUMBER`` for each life, and answers with the exit status of the process
that lived it. Each is forked from this one, which has loaded everything and started no thread.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy.engine.default import DefaultDialect

from tests.chaos.process import drive_dispatch
from tests.chaos.suite import PRICE, suite
from weirbox import runtime
from weirbox.domain.words import RunStatus
from weirbox.pipeline import coordinating, reopening
from weirbox.pipeline.coordinating import FlowState
from weirbox.pipeline.planning import plan_run
from weirbox.settings import Settings
from weirbox.store import queries
from weirbox.store.base import DISPATCH
from weirbox.testing import MemoryEngine

CRASHED, DONE = 77, 0

CASES = 4

SETTINGS = {"WEIRBOX_LEASE_S": "0.3", "WEIRBOX_REPAIR_S": "0", "WEIRBOX_GRACE_S": "1"}


class Fuse:
    """Ends the process at one of its commits that wrote anything: before it, or after it."""

    def __init__(self, when: str, number: int) -> None:
        self._when, self._number = when, number
        self._commits = count(1)
        self._changes: dict[int, int] = {}
        self._lock = threading.Lock()
        self._commit = DefaultDialect.do_commit

    def __call__(self, dialect: Any, connection: Any) -> None:
        """Commit, or not."""
        if not self._wrote(connection):
            self._commit(dialect, connection)
            return
        with self._lock:
            burns = next(self._commits) == self._number
            if burns and self._when == "before":
                os._exit(CRASHED)
            self._commit(dialect, connection)
            if burns:
                os._exit(CRASHED)

    def _wrote(self, connection: Any) -> bool:
        if hasattr(connection, "total_changes"):
            before = self._changes.get(id(connection), 0)
            self._changes[id(connection)] = connection.total_changes
            return bool(connection.total_changes > before)
        row = connection.execute("SELECT pg_current_xact_id_if_assigned()").fetchone()
        return row[0] is not None


class Engine(MemoryEngine):
    """Its flow runs ended with the life before: only those of this one wait."""

    async def states(self, flow_runs: Any) -> Mapping[str, FlowState]:
        """Those that were not started in this life have ended."""
        mine = self.drivers.values()
        return {name: FlowState.RUNNING if name in mine else FlowState.ENDED for name in flow_runs}

    async def drive(self, order: coordinating.DriverOrder) -> str:
        """A name that no other life gives."""
        return self.drivers.setdefault(order.key, f"{os.getpid()}:{order.key}")


async def live(folder: Path, opened: runtime.Runtime) -> None:
    """Plan, coordinate, drive and finalize; then judge again, and all of it once more.

    Each step looks at the rows, so that a life goes on wherever the one before ended.
    """
    with opened.database.read() as connection:
        known = queries.summaries(connection)
    if not known:
        planned = suite(folder, cases=CASES, drivers=1, usd=8 * PRICE * CASES)
        plan_run(opened.database, planned, folder="/", managed=True)
    with opened.database.read() as connection:
        run_id = queries.summaries(connection)[0].run_id
    engine = Engine()
    await _finish(opened, engine, run_id)
    with opened.database.read() as connection:
        rounds = {row.round for row in queries.trial_page(connection, run_id)}
    if rounds == {1}:
        await asyncio.to_thread(reopening.rejudge, opened.database, run_id, "second")
        await _finish(opened, engine, run_id)


async def _finish(opened: runtime.Runtime, engine: Engine, run_id: str) -> None:
    database, settings = opened.database, opened.settings
    while True:
        report = await coordinating.tick(database, engine, settings)
        assert report.troubles == {}, report.troubles
        with database.read() as connection:
            run = queries.summary(connection, run_id)
            waiting = connection.execute(
                DISPATCH.select().where(
                    DISPATCH.c.ended_at.is_(None), DISPATCH.c.flow_run.in_(engine.drivers.values())
                )
            ).all()
        if run.status is RunStatus.COMPLETED and not run.finalizing:
            return
        if engine.finalized:
            engine.finalized.clear()
            await runtime.conclude(opened, run_id)
        for dispatch in waiting:
            await drive_dispatch(opened, run_id, dispatch.id)
        await asyncio.sleep(0.05)


def _child(folder: Path, when: str, number: int) -> None:
    os.environ.update(SETTINGS)
    fuse = Fuse(when, number)
    DefaultDialect.do_commit = lambda dialect, connection: fuse(dialect, connection)  # type: ignore[method-assign]
    coordinating_now(folder)


def coordinating_now(folder: Path) -> None:
    """Live in this process, as if planned long ago: nobody else is about to drive."""
    from weirbox.pipeline import run_decisions

    run_decisions.START_S = 0.3
    run_decisions.BACK_OFF_S = 0.05
    with runtime.open_runtime(Settings()) as opened:
        asyncio.run(live(folder, opened))


def main(folder: str, url: str) -> None:
    """Fork a life for each line."""
    os.environ.update({"WEIRBOX_HOME": folder, "WEIRBOX_DATABASE_URL": url})
    for line in sys.stdin:
        when, number = line.split()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                _child(Path(folder), when, int(number))
                status = DONE
            except BaseException:  # noqa: BLE001 - told, and given as the status
                traceback.print_exc()
            finally:
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
