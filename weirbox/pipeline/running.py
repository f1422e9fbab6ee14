"""From a planned run to a completed one: preflight, drive, complete; engine-agnostic.

Safe to run any number of times, at once or after a crash: every step is derived from the
rows, and every change of status is a compare-and-set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from weirbox.domain.seams import ReadSecret
from weirbox.domain.words import RunStatus
from weirbox.errors import PreflightError
from weirbox.pipeline.driver import Driver, End
from weirbox.pipeline.ending import come_to_rest
from weirbox.pipeline.finalizing import run_header
from weirbox.pipeline.identity import is_dead
from weirbox.pipeline.kit import Kit, build_kit, preflight
from weirbox.pipeline.packets import StageRunner
from weirbox.settings import Settings
from weirbox.store import claims, queries
from weirbox.store.engine import Connection, Database
from weirbox.store.writes import change_status, hold_run, note

SET_UP_S = 60.0
"""How long a sink may take to be set up."""

POLL_S = 0.5
"""Pause before looking again at trials that other drivers hold."""


async def drive_run(
    database: Database,
    run_id: str,
    *,
    settings: Settings,
    read_secret: ReadSecret,
    make_runner: Callable[[Kit], StageRunner],
    on_driver: Callable[[Driver], None] = lambda driver: None,
    dispatch: int | None = None,
) -> RunStatus:
    """Drive a run until it has ended, or until this driver is told to drain.

    Args:
        make_runner: Gives the stage runner for the run's kit.
        on_driver: Is told of every driver, so that it can be drained.
        dispatch: The coordinator's dispatch that this comes from.

    Returns:
        The run's status; still running when the driver was drained. A run that ended early
        is at rest then, unless another driver has yet to settle.
    """
    status = await _go(database, run_id, settings, read_secret, make_runner, on_driver, dispatch)
    if status.ended_early:
        await come_to_rest(database, run_id, dashboard_url=run_url(settings, run_id))
    return status


async def _go(
    database: Database,
    run_id: str,
    settings: Settings,
    read_secret: ReadSecret,
    make_runner: Callable[[Kit], StageRunner],
    on_driver: Callable[[Driver], None],
    dispatch: int | None,
) -> RunStatus:
    status = await asyncio.to_thread(_begin, database, run_id)
    if status.terminal:
        return status
    try:
        kit = await asyncio.to_thread(build_kit, database, run_id, read_secret=read_secret)
    except PreflightError as error:
        return await asyncio.to_thread(_fail, database, run_id, str(error))
    try:
        preflight(kit)
        await _set_up_sinks(database, kit, settings)
        return await _drive(database, kit, settings, make_runner, on_driver, dispatch)
    except PreflightError as error:
        return await asyncio.to_thread(_fail, database, run_id, str(error))
    finally:
        await asyncio.shield(kit.aclose())


async def _drive(
    database: Database,
    kit: Kit,
    settings: Settings,
    make_runner: Callable[[Kit], StageRunner],
    on_driver: Callable[[Driver], None],
    dispatch: int | None,
) -> RunStatus:
    if kit.compute is not None:
        await kit.compute.reap()
    runner = make_runner(kit)
    while True:
        driver = Driver(
            database,
            kit,
            runner,
            lease_s=settings.lease_s,
            grace_s=settings.grace_s,
            dispatch=dispatch,
        )
        on_driver(driver)
        end = await driver.drive()
        status = await asyncio.to_thread(complete_if_done, database, kit.run_id)
        if status.terminal or end in (End.DRAINED, End.RUN_ENDED):
            return status
        await asyncio.sleep(POLL_S)


async def _set_up_sinks(database: Database, kit: Kit, settings: Settings) -> None:
    run = database.fetch(partial(queries.summary, run_id=kit.run_id))
    header = run_header(run, run_url(settings, run.run_id))
    for sink in kit.sinks:
        try:
            async with asyncio.timeout(SET_UP_S):
                await sink.set_up(header)
        except Exception as error:  # noqa: BLE001 - a failed sink never fails a run
            message = f"sink {sink.name!r} cannot be set up: {type(error).__name__}: {error}"
            database.persist(partial(note, run_id=kit.run_id, kind="warning", message=message))


def run_url(settings: Settings, run_id: str) -> str:
    """Where the dashboard shows a run."""
    return f"{settings.dashboard_url.rstrip('/')}/run?run={run_id}"


def complete_if_done(database: Database, run_id: str) -> RunStatus:
    """Complete a run whose trials are all done; safe to run twice and at the same time.

    The run is held first: trials that somebody opens again meanwhile are seen, or else
    their opening finds the run completed and sets it going again.
    """

    def complete(connection: Connection) -> RunStatus:
        hold_run(connection, run_id)
        if not queries.open_trials(connection, run_id):
            change_status(connection, run_id, to=RunStatus.COMPLETED)
        return queries.status_of(connection, run_id)

    return database.persist(complete)


def reap_dead(database: Database, run_id: str) -> int:
    """Take back at once what dead processes of this machine hold; gives how many claims.

    A lease would run out by itself; who resumes a run should not have to wait for it.
    """
    with database.write() as connection:
        drivers = claims.live_drivers(connection, run_id)
        dead = [driver for driver in drivers if is_dead(driver)]
        return claims.reap_drivers(connection, run_id, dead) if dead else 0


def _begin(database: Database, run_id: str) -> RunStatus:
    return _change(database, run_id, RunStatus.RUNNING)


def _fail(database: Database, run_id: str, reason: str) -> RunStatus:
    return _change(database, run_id, RunStatus.FAILED, reason)


def _change(database: Database, run_id: str, to: RunStatus, reason: str = "") -> RunStatus:
    def change(connection: Connection) -> RunStatus:
        change_status(connection, run_id, to=to, reason=reason)
        return queries.status_of(connection, run_id)

    return database.persist(change)
