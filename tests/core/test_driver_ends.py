"""Drained, cancelled, superseded, its claim or its database lost: a driver loses nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from tests.factories import Fakes, drive, driving, go_on, judged, plan, suite, summary, trials
from tests.fakes import SINK, Harness, Watched, limits, number, passing
from tests.results import claimed, executed, write
from weirbox.domain.case import Case
from weirbox.domain.words import RunStatus
from weirbox.pipeline import lease
from weirbox.store import base, claims, engine, queries, writer
from weirbox.store.engine import Database
from weirbox.testing import MemoryCompute, MemorySink

# --- draining and cancelling -------------------------------------------------------


def test_a_draining_driver_starts_nothing_ends_what_it_began_and_gives_the_rest_back(
    shared_database: Database,
) -> None:
    watched, sink = Watched(), MemorySink()

    def answer(case: Case) -> str:
        if number(case) == 6:
            watched.drivers[0].drain()
        return str(case.input)

    harness = Harness(answer=answer, delay_s=0.05)
    fakes = Fakes(harness=harness, provider=passing(delay_s=0.01), sink=sink)
    run_id = plan(shared_database, judged(40, sinks=SINK, concurrency=limits(2, 2)))

    asyncio.run(driving(shared_database, run_id, on_driver=watched, fakes=fakes))

    stopped = summary(shared_database, run_id)
    rows = trials(shared_database, run_id)
    assert stopped.status is RunStatus.RUNNING
    assert stopped.progress.executed == len(harness.runs) < 12
    assert {row.claim for row in rows} == {None}
    run = go_on(shared_database, run_id, fakes=fakes)
    assert (run.status, run.progress.exported) == (RunStatus.COMPLETED, 40)
    assert set(harness.runs.values()) == {1}
    assert len(sink.sent) == 40


def test_what_outlasts_the_grace_is_cut_off_and_given_back(shared_sqlite: Database) -> None:
    watched, place = Watched(), MemoryCompute()

    def delay(case: Case) -> float:
        if number(case) == 1:
            watched.drivers[0].drain()
        return 60.0

    harness = Harness(delay_of=delay, needs_compute=True)
    run_id = plan(shared_sqlite, suite(2, concurrency=limits(2)))

    asyncio.run(
        driving(
            shared_sqlite,
            run_id,
            on_driver=watched,
            grace_s=0.1,
            fakes=Fakes(harness=harness, compute=place),
        )
    )

    rows = trials(shared_sqlite, run_id)
    assert [(row.stage, row.claim) for row in rows] == [("execute", None)] * 2
    assert [handle.released for handle in place.handles] == [1, 1]
    assert go_on(shared_sqlite, run_id, fakes=Fakes(harness=Harness())).progress.scored == 2


@pytest.mark.parametrize("status", [RunStatus.CANCELLED, RunStatus.SUPERSEDED])
def test_a_run_that_is_ended_from_outside_starts_nothing_more_and_keeps_what_it_has(
    status: RunStatus, shared_database: Database
) -> None:
    from weirbox.store.writes import change_status

    def answer(case: Case) -> str:
        if number(case) == 3:
            with shared_database.write() as connection:
                change_status(connection, run_id, to=status, reason="enough")
        return str(case.input)

    harness = Harness(answer=answer, delay_s=0.03)
    run_id = plan(shared_database, suite(400, concurrency=limits(2, 2)))

    with patch.object(lease, "WATCH_S", 0.05):
        run = go_on(shared_database, run_id, fakes=Fakes(harness=harness))

    assert (run.status, run.reason) == (status, "enough")
    assert 4 <= run.progress.executed == len(harness.runs) < 200
    assert run.finalized_at is None
    assert {row.claim for row in trials(shared_database, run_id)} == {None}
    assert go_on(shared_database, run_id, fakes=Fakes(harness=harness)).status is status
    assert set(harness.runs.values()) == {1}


def test_the_watch_on_a_runs_status_is_no_slower_than_people_expect() -> None:
    assert lease.WATCH_S <= 1.0


# --- trouble around the driver -----------------------------------------------------


def tokens(database: Database, run_id: str) -> list[int]:
    """The claims that are held on a run."""
    with database.read() as connection:
        statement = select(base.CLAIM.c.token).where(
            base.CLAIM.c.run_id == run_id, base.CLAIM.c.released_at.is_(None)
        )
        return list(connection.execute(statement).scalars())


def test_a_driver_that_loses_its_claim_stops_and_goes_on_under_a_new_one(
    shared_database: Database,
) -> None:
    lost: list[int] = []

    def answer(case: Case) -> str:
        if number(case) == 5 and not lost:
            lost.extend(tokens(shared_database, run_id))
            with shared_database.write() as connection:
                claims.release_claim(connection, lost[0])
        return str(case.input)

    sink, watched = MemorySink(), Watched()
    harness = Harness(answer=answer, delay_s=0.05)
    run_id = plan(shared_database, judged(30, sinks=SINK, concurrency=limits(2, 2)))

    run = go_on(
        shared_database,
        run_id,
        lease_s=0.3,
        on_driver=watched,
        fakes=Fakes(harness=harness, provider=passing(), sink=sink),
    )

    assert (run.status, run.progress.scored) == (RunStatus.COMPLETED, 30)
    assert len(watched.drivers) == 2
    assert run.progress.exported == len(sink.sent) == 30
    assert max(harness.runs.values()) == 2
    assert tokens(shared_database, run_id) == []


def test_a_database_that_fails_midway_ends_the_driver_and_loses_nothing(
    shared_database: Database,
) -> None:
    original = writer._apply
    calls = 0

    def failing(connection: Any, records: list[Any]) -> list[Any]:
        nonlocal calls
        calls += 1
        if 3 < calls < 8:
            raise OperationalError("gone", None, Exception("gone"))
        return original(connection, records)

    fakes = Fakes(harness=Harness(delay_s=0.01), provider=passing())
    run_id = plan(shared_database, judged(30, concurrency=limits(2, 2)))

    with (
        patch.object(engine, "ATTEMPTS", 1),
        patch.object(writer, "_apply", failing),
        pytest.raises(OperationalError),
    ):
        asyncio.run(asyncio.wait_for(driving(shared_database, run_id, fakes=fakes), 30))

    assert summary(shared_database, run_id).status is RunStatus.RUNNING
    assert {row.claim for row in trials(shared_database, run_id)} == {None}
    run = go_on(shared_database, run_id, fakes=fakes)
    assert (run.status, run.progress.scored) == (RunStatus.COMPLETED, 30)


def test_a_database_that_is_locked_when_trials_are_claimed_is_waited_for(
    shared_sqlite: Database,
) -> None:
    locked = [OperationalError("locked", None, Exception("locked")) for _ in range(3)]
    original = claims.claim_trials

    def claim(*arguments: Any) -> Any:
        if locked:
            raise locked.pop()
        return original(*arguments)

    with patch.object(claims, "claim_trials", claim):
        run = drive(shared_sqlite, suite(3))

    assert (run.status, run.progress.scored, locked) == (RunStatus.COMPLETED, 3, [])


def test_a_database_that_cannot_be_read_is_no_trials_fault(sqlite: Database) -> None:
    run_id = plan(sqlite, judged(3))
    write(sqlite, *[executed(ticket) for ticket in claimed(sqlite, run_id)])
    with sqlite.write() as connection:
        claims.reap_drivers(connection, run_id, ["here:1:1"])
    gone = OperationalError("gone", None, Exception("gone"))
    fakes = Fakes(provider=passing())

    with (
        patch.object(queries, "load_observation", side_effect=gone),
        patch.object(engine, "ATTEMPTS", 2),
        pytest.raises(OperationalError),
    ):
        asyncio.run(driving(sqlite, run_id, fakes=fakes))

    assert [(row.stage, row.attempt) for row in trials(sqlite, run_id)] == [("judge", 1)] * 3
    assert go_on(sqlite, run_id, fakes=fakes).progress.scored == 3


def test_a_database_that_is_gone_for_good_ends_the_driver_with_its_error(
    shared_sqlite: Database,
) -> None:
    def answer(case: Case) -> str:
        if number(case) == 3:
            broken.start()
        return str(case.input)

    gone = OperationalError("gone", None, Exception("gone"))
    broken = patch.object(Database, "write", side_effect=gone)
    run_id = plan(shared_sqlite, suite(20, concurrency=limits(2, 2)))

    work = driving(shared_sqlite, run_id, fakes=Fakes(harness=Harness(answer=answer)))
    try:
        with patch.object(engine, "ATTEMPTS", 2), pytest.raises(OperationalError):
            asyncio.run(asyncio.wait_for(work, 30))
    finally:
        broken.stop()


def test_no_thread_of_a_driver_outlives_it(shared_sqlite: Database) -> None:
    drive(shared_sqlite, suite(5))

    names = {thread.name for thread in threading.enumerate()}
    assert not {"weirbox-writer", "weirbox-lease"} & names
