"""Ticks of the coordinator over real rows: twice at once, and cut off anywhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, insert, select, update

from tests.factories import (
    column,
    drive,
    driving,
    go_on,
    plan,
    records,
    settings,
    suite,
    summary,
    timeline,
    trials,
)
from weirbox.domain.spec import DatasetSpec
from weirbox.domain.words import AlertKind, RunStatus, TrialStage
from weirbox.pipeline import coordinating, growing
from weirbox.pipeline.coordinating import FlowState, TickReport
from weirbox.pipeline.run_decisions import STALLS, START_S
from weirbox.store import base, claims, coordination, registry
from weirbox.store import dispatches as dispatch_rows
from weirbox.store.engine import Database
from weirbox.store.types import utc_now
from weirbox.testing import MemoryEngine

LONG_AGO = utc_now() - timedelta(seconds=10 * START_S)


def tick(database: Database, engine: MemoryEngine) -> TickReport:
    """One tick, in which nothing went wrong."""
    report = asyncio.run(coordinating.tick(database, engine, settings()))
    assert report.troubles == {}
    return report


def change(database: Database, run_id: str, **values: Any) -> None:
    """Set columns of a run's row, as if time had passed."""
    with database.write() as connection:
        connection.execute(update(base.RUN).where(base.RUN.c.id == run_id).values(values))


def managed(database: Database, cases: int = 3, *, drivers: int = 1, **changes: Any) -> str:
    """A run that the coordinator has driven, and that was planned long ago."""
    planned = suite(cases, concurrency={"drivers": drivers}, **changes)
    run_id = plan(database, planned, managed=True)
    change(database, run_id, created_at=LONG_AGO)
    return run_id


def dispatches(database: Database, run_id: str) -> list[Any]:
    """A run's dispatches, oldest first."""
    with database.read() as connection:
        return list(
            connection.execute(
                select(base.DISPATCH)
                .where(base.DISPATCH.c.run_id == run_id)
                .order_by(base.DISPATCH.c.id)
            )
        )


def flow_runs(database: Database, run_id: str) -> list[str | None]:
    return [row.flow_run for row in dispatches(database, run_id)]


def begin(database: Database, dispatch: int) -> bool:
    with database.write() as connection:
        return dispatch_rows.begin_dispatch(connection, dispatch)


def end(database: Database, dispatch: int, message: str = "") -> bool:
    with database.write() as connection:
        return dispatch_rows.end_dispatch(connection, dispatch, message)


@pytest.fixture
def engine() -> MemoryEngine:
    return MemoryEngine()


# --- drivers ------------------------------------------------------------------------


def test_as_many_drivers_are_asked_for_as_the_run_may_have(
    database: Database, engine: MemoryEngine
) -> None:
    run_id = managed(database, drivers=3)

    tick(database, engine)
    tick(database, engine)

    assert flow_runs(database, run_id) == list(engine.drivers.values())
    assert sorted(engine.drivers) == [f"drive:{run_id}:{n}" for n in range(3)]


def test_a_run_that_somebody_drives_from_a_command_line_is_left_to_them(
    database: Database, engine: MemoryEngine
) -> None:
    run_id = plan(database, suite(2))
    change(database, run_id, created_at=LONG_AGO)

    tick(database, engine)

    assert engine.drivers == {}
    assert summary(database, run_id).status is RunStatus.PENDING


def test_a_driver_that_was_committed_and_not_asked_for_is_asked_for_by_the_next_tick(
    database: Database, engine: MemoryEngine
) -> None:
    run_id = managed(database)
    engine.down = True
    report = asyncio.run(coordinating.tick(database, engine, settings()))
    assert report.troubles == {run_id: "ConnectionError: the engine is down"}
    assert flow_runs(database, run_id) == [None]

    engine.down = False
    tick(database, engine)

    assert flow_runs(database, run_id) == ["flow-run-0"]
    assert list(engine.drivers) == [f"drive:{run_id}:0"]


def test_an_answer_that_was_lost_leads_to_the_same_driver(
    database: Database, engine: MemoryEngine
) -> None:
    run_id = managed(database)
    tick(database, engine)
    with database.write() as connection:
        connection.execute(update(base.DISPATCH).values(flow_run=None))

    tick(database, engine)

    assert flow_runs(database, run_id) == ["flow-run-0"]
    assert len(engine.drivers) == 1


def test_two_coordinators_at_once_ask_for_each_driver_once(
    database: Database, engine: MemoryEngine
) -> None:
    runs = [managed(database, drivers=2) for _ in range(5)]
    with ThreadPoolExecutor(4) as threads:
        for report in threads.map(lambda _: tick(database, engine), range(4)):
            assert report.looked_at == 5

    assert [len(dispatches(database, run_id)) for run_id in runs] == [2] * 5
    assert len(engine.drivers) == 10


def test_a_driver_that_was_given_up_must_not_begin(
    database: Database, engine: MemoryEngine
) -> None:
    run_id = managed(database)
    tick(database, engine)
    (given_up,) = dispatches(database, run_id)
    engine.state["flow-run-0"] = FlowState.ENDED

    tick(database, engine)

    assert begin(database, given_up.id) is False
    assert dispatches(database, run_id)[0].message == "its flow run is ended"
    assert ("driver", "a driver is gone: its flow run is ended") in timeline(database, run_id)


def test_beginning_and_ending_twice_changes_nothing(
    database: Database, engine: MemoryEngine
) -> None:
    run_id = managed(database)
    tick(database, engine)
    number = dispatches(database, run_id)[0].id

    assert [begin(database, number), begin(database, number)] == [True, True]
    started = dispatches(database, run_id)[0].started_at
    begin(database, number)
    assert dispatches(database, run_id)[0].started_at == started
    assert [end(database, number, "done"), end(database, number, "again")] == [True, False]
    assert dispatches(database, run_id)[0].message == "done"


def test_a_driver_of_a_flow_that_planned_the_run_itself_counts_as_one(
    database: Database, engine: MemoryEngine
) -> None:
    run_id = managed(database)
    with database.write() as connection:
        first = dispatch_rows.adopt_dispatch(connection, run_id, "flow-run-of-its-own")
        assert dispatch_rows.adopt_dispatch(connection, run_id, "flow-run-of-its-own") == first
    engine.state["flow-run-of-its-own"] = FlowState.RUNNING

    tick(database, engine)

    assert engine.drivers == {}
    assert flow_runs(database, run_id) == ["flow-run-of-its-own"]


def test_a_killed_driver_is_replaced_and_what_it_held_is_finished(
    database: Database, engine: MemoryEngine
) -> None:
    run_id = managed(database, 4)
    tick(database, engine)
    number = dispatches(database, run_id)[0].id
    begin(database, number)
    with database.write() as connection:
        token = claims.open_claim(
            connection, run_id, driver="gone:1:1", lease_s=-1, dispatch=number
        )
        assert len(claims.claim_trials(connection, run_id, token, 3)) == 3
    with database.write() as connection:
        long_ago = {"requested_at": LONG_AGO, "started_at": LONG_AGO}
        connection.execute(update(base.DISPATCH).values(long_ago))
        connection.execute(update(base.CLAIM).values(lease_until=LONG_AGO))
    engine.state["flow-run-0"] = FlowState.RUNNING

    tick(database, engine)

    assert column(database, run_id, "claim") == [None] * 4
    assert sorted(engine.drivers) == [f"drive:{run_id}:0", f"drive:{run_id}:1"]
    assert go_on(database, run_id).status is RunStatus.COMPLETED


def test_a_run_without_a_worker_says_since_when_it_waits(
    database: Database, engine: MemoryEngine
) -> None:
    run_id = managed(database)
    assert summary(database, run_id).waiting_since is None

    tick(database, engine)
    report = tick(database, engine)

    asked = dispatches(database, run_id)[0].requested_at
    assert summary(database, run_id).waiting_since == asked
    assert report.lines == {}
    begin(database, dispatches(database, run_id)[0].id)
    assert summary(database, run_id).waiting_since is None


def test_a_person_who_cancels_the_driver_before_it_began_cancels_the_run(
    database: Database, engine: MemoryEngine
) -> None:
    run_id = managed(database)
    tick(database, engine)
    engine.state["flow-run-0"] = FlowState.CANCELLED

    tick(database, engine)

    found = summary(database, run_id)
    assert found.status is RunStatus.CANCELLED
    assert found.reason == "its driver was cancelled in Prefect"


# --- completion and repair ------------------------------------------------------------


def test_a_run_whose_driver_died_before_it_completed_it_is_completed_and_finalized_once(
    database: Database, engine: MemoryEngine
) -> None:
    run_id = managed(database)
    go_on(database, run_id)
    change(database, run_id, status=RunStatus.RUNNING, completed_at=None, finalized_at=None)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda _: tick(database, engine), range(3)))

    found = summary(database, run_id)
    assert (found.status, found.finalizing) == (RunStatus.COMPLETED, True)
    assert list(engine.finalized.values()) == [run_id]


def test_a_completed_run_without_its_scorecard_is_finalized_after_a_while(
    database: Database, engine: MemoryEngine
) -> None:
    run_id = drive(database, suite(2)).run_id
    change(database, run_id, finalized_at=None)
    tick(database, engine)
    assert engine.finalized == {}

    change(database, run_id, completed_at=utc_now() - timedelta(seconds=61))
    tick(database, engine)
    tick(database, engine)
    assert list(engine.finalized.values()) == [run_id]

    change(database, run_id, completed_at=utc_now() - timedelta(seconds=661))
    tick(database, engine)
    assert list(engine.finalized.values()) == [run_id, run_id]


def test_a_finalized_run_is_not_looked_at(database: Database, engine: MemoryEngine) -> None:
    drive(database, suite(2))

    assert tick(database, engine).looked_at == 0


# --- stalls -------------------------------------------------------------------------------


def test_a_run_whose_drivers_never_come_to_work_fails_with_the_reason(
    database: Database, engine: MemoryEngine
) -> None:
    run_id = managed(database)
    tick(database, engine)
    engine.state["flow-run-0"] = FlowState.ENDED
    tick(database, engine)
    for stall in range(1, STALLS + 1):
        seconds = stall * settings().stall_s
        change(database, run_id, seen_at=utc_now() - timedelta(seconds=seconds))
        with database.write() as connection:
            connection.execute(update(base.DISPATCH).values(requested_at=utc_now()))
        tick(database, engine)

    found = summary(database, run_id)
    assert found.status is RunStatus.FAILED
    assert found.reason == (
        "nothing changed 3 times in a row for 120 s; the last driver: its flow run is ended"
    )
    stalls = [message for kind, message in timeline(database, run_id) if kind == "stalled"]
    assert stalls == ["nothing changed (1 of 3)", "nothing changed (2 of 3)"]


def test_any_change_of_a_row_ends_the_count_of_stalls(
    database: Database, engine: MemoryEngine
) -> None:
    run_id = managed(database)
    tick(database, engine)
    change(database, run_id, seen_at=utc_now() - timedelta(seconds=130))
    engine.state["flow-run-0"] = FlowState.RUNNING
    begin(database, dispatches(database, run_id)[0].id)
    with database.write() as connection:
        connection.execute(update(base.RUN).values(stalls=2))
        number = dispatches(database, run_id)[0].id
        claims.open_claim(connection, run_id, driver="a", lease_s=60, dispatch=number)

    tick(database, engine)

    assert summary(database, run_id).stalls == 0
    assert summary(database, run_id).status is not RunStatus.FAILED


def test_a_run_that_kills_its_drivers_fails(database: Database, engine: MemoryEngine) -> None:
    run_id = managed(database)
    with database.write() as connection:
        for number in range(10):
            token = claims.open_claim(connection, run_id, driver=f"gone:{number}:1", lease_s=-1)
            claims.claim_trials(connection, run_id, token, 1)
            claims.reap_expired(connection, run_id)

    tick(database, engine)

    found = summary(database, run_id)
    assert found.status is RunStatus.FAILED
    assert found.reason.startswith("10 drivers in a row died")


def test_deaths_are_counted_from_the_last_stage_that_ended(
    database: Database, engine: MemoryEngine
) -> None:
    run_id = managed(database)
    with database.write() as connection:
        for number in range(11):
            token = claims.open_claim(connection, run_id, driver=f"gone:{number}:1", lease_s=-1)
            stages = 1 if number == 5 else 0
            of_claim = update(base.CLAIM).where(base.CLAIM.c.token == token)
            connection.execute(of_claim.values(stages=stages))
            claims.reap_expired(connection, run_id)
        assert coordination.fact(connection, run_id).deaths == 5

    tick(database, engine)

    assert summary(database, run_id).status is not RunStatus.FAILED


# --- alerts and growth ----------------------------------------------------------------------


def test_an_alert_is_told_once_and_again_only_where_the_engine_did_not_take_it(
    database: Database, engine: MemoryEngine
) -> None:
    run_id = managed(database)
    tick(database, engine)
    change(database, run_id, stalls=1, seen_at=utc_now() - timedelta(seconds=240))
    engine.state["flow-run-0"] = FlowState.RUNNING
    begin(database, dispatches(database, run_id)[0].id)
    with database.write() as connection:
        found = coordination.fact(connection, run_id)
        connection.execute(update(base.RUN).values(seen=found.signature))
    engine.down = True
    report = asyncio.run(coordinating.tick(database, engine, settings()))
    assert "engine" in report.troubles

    engine.down = False
    tick(database, engine)
    tick(database, engine)

    told = [(alert.run_id, alert.kind, alert.value) for alert in engine.emitted]
    assert told == [(run_id, AlertKind.STALLED, 2.0)]


def test_the_growth_of_a_dataset_is_answered_once(database: Database, engine: MemoryEngine) -> None:
    named = suite(2, dataset={"name": "events"}, auto_run="delta")
    with database.write() as connection:
        registry.register_suite(connection, named, folder="/")
    grown = DatasetSpec.model_validate({"records": records(2)})
    growing.add_dataset(database, grown, name="events", folder="/", append=False)
    engine.down = True
    report = asyncio.run(coordinating.tick(database, engine, settings()))
    assert report.troubles == {"suite tested": "ConnectionError: the engine is down"}

    engine.down = False
    with database.write() as connection:
        connection.execute(update(base.AUTO_RUN).values(at=LONG_AGO))
    for _ in range(3):
        tick(database, engine)

    assert list(engine.evaluated.values()) == ["tested"]


# --- trouble ------------------------------------------------------------------------------


class Picky(MemoryEngine):
    """An engine that fails, or hangs, for one run."""

    def __init__(self, bad: str, *, hangs: bool) -> None:
        super().__init__()
        self._bad, self._hangs = bad, hangs

    async def drive(self, order: coordinating.DriverOrder) -> str:
        if order.run_id == self._bad and self._hangs:
            await asyncio.sleep(3600)
        if order.run_id == self._bad:
            raise ValueError("not this one")
        return await super().drive(order)


@pytest.mark.parametrize(
    ("hangs", "trouble"), [(False, "ValueError: not this one"), (True, "TimeoutError: ")]
)
def test_a_run_that_makes_trouble_holds_no_other(
    database: Database, monkeypatch: pytest.MonkeyPatch, hangs: bool, trouble: str
) -> None:
    monkeypatch.setattr(coordinating, "RUN_S", 0.5)
    bad, *good = [managed(database) for _ in range(12)]

    engine = Picky(bad, hangs=hangs)
    report = asyncio.run(coordinating.tick(database, engine, settings()))

    assert report.troubles == {bad: trouble}
    assert [flow_runs(database, run_id) != [None] for run_id in good] == [True] * 11


@contextmanager
def locked(database: Database, run_id: str) -> Iterator[None]:
    """Somebody holds a run's row and does not let go."""
    with database.write() as connection:
        coordination.lock_run(connection, run_id)
        yield


def test_a_run_that_is_locked_holds_no_other(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.sqlite:
        pytest.skip("SQLite has one lock for all rows")
    monkeypatch.setattr(coordination, "LOCK_WAIT_MS", 300)
    bad, *good = [managed(database) for _ in range(12)]
    engine = MemoryEngine()

    with locked(database, bad):
        report = asyncio.run(coordinating.tick(database, engine, settings()))

    assert list(report.troubles) == [bad]
    assert len(engine.drivers) == len(good)


def test_while_the_engine_is_down_claims_are_taken_back_and_runs_complete(
    database: Database, engine: MemoryEngine
) -> None:
    held, done = managed(database), managed(database)
    tick(database, engine)
    with database.write() as connection:
        token = claims.open_claim(connection, held, driver="gone:1:1", lease_s=-1)
        claims.claim_trials(connection, held, token, 3)
    asyncio.run(driving(database, done))
    change(database, done, status=RunStatus.RUNNING, finalized_at=None)
    engine.down = True

    report = asyncio.run(coordinating.tick(database, engine, settings()))

    assert set(report.troubles) == {"engine", done}
    assert column(database, held, "claim") == [None] * 3
    assert summary(database, done).status is RunStatus.COMPLETED
    assert summary(database, held).status is RunStatus.PENDING


def test_progress_is_published_after_the_commit_that_found_it(
    database: Database, engine: MemoryEngine
) -> None:
    run_id = managed(database, 4)

    tick(database, engine)

    assert engine.shown[run_id].planned == 4


def test_every_run_that_changes_has_its_turn_to_be_looked_into(
    database: Database, engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinating, "SHOWN", 2)
    runs = {managed(database) for _ in range(6)}
    for _ in range(60):
        with database.write() as connection:
            connection.execute(update(base.RUN).values(seen_at=LONG_AGO, seen="before"))
        tick(database, engine)

    assert set(engine.shown) == runs


# --- size -----------------------------------------------------------------------------------

RUNS = 1000
TRIALS = 100


@pytest.mark.slow
def test_a_tick_over_a_thousand_live_runs_takes_at_most_two_seconds(
    database: Database, engine: MemoryEngine
) -> None:
    runs = _many(database)
    first = tick(database, engine)
    assert len(engine.drivers) == RUNS
    durations = []
    for _ in range(3):
        _one_stage_each(database, runs)
        begun = time.perf_counter()
        report = tick(database, engine)
        durations.append(time.perf_counter() - begun)
        assert report.looked_at == first.looked_at == RUNS

    print(f"ticks over {RUNS} live runs: {durations}")
    assert min(durations) <= 2.0


def _many(database: Database) -> list[str]:
    """Live runs with trials, copied by SQL from one that was planned."""
    template = managed(database, TRIALS)
    with database.write() as connection:
        run = dict(connection.execute(select(base.RUN)).mappings().one())
        rows = [dict(row) for row in connection.execute(select(base.TRIAL)).mappings()]
        names = [template, *(f"{template}-{n}" for n in range(1, RUNS))]
        for name in names[1:]:
            connection.execute(insert(base.RUN), [run | {"id": name}])
            connection.execute(insert(base.TRIAL), [row | {"run_id": name} for row in rows])
        assert connection.execute(select(func.count()).select_from(base.RUN)).scalar() == RUNS
    return names


def _one_stage_each(database: Database, runs: list[str]) -> None:
    """A driver of each run holds a claim, and has ended one more stage."""
    with database.write() as connection:
        for run_id in runs:
            token = claims.open_claim(connection, run_id, driver=f"{run_id}:1:1", lease_s=60)
            connection.execute(
                update(base.CLAIM).where(base.CLAIM.c.token == token).values(stages=1)
            )
        connection.execute(update(base.RUN).values(seen_at=LONG_AGO))
        assert trials(database, runs[0])[0].stage == TrialStage.EXECUTE
