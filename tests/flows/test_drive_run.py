"""One driver that the coordinator asked for, in a real Prefect server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prefect.client.schemas.objects import StateType
from sqlalchemy import select

from flows.drive_run import drive_run
from flows.requests import DriveRequest
from tests import factories
from tests.factories import Fakes
from tests.flows.conftest import Evaluations, Shown
from weirbox.domain.words import RunStatus
from weirbox.runtime import open_runtime, using
from weirbox.store import coordination, dispatches
from weirbox.store.base import CLAIM, DISPATCH
from weirbox.testing import ScriptedHarness


def dispatched(evaluations: Evaluations, run_id: str, *, given_up: bool = False) -> int:
    """A driver that was asked for."""
    with open_runtime(evaluations.settings) as runtime, runtime.database.write() as connection:
        known = coordination.fact(connection, run_id).dispatched
        ((dispatch, _),) = dispatches.request_dispatches(connection, run_id, known=known, count=1)
        if given_up:
            dispatches.end_dispatch(connection, dispatch, "no worker took it up")
        return dispatch


def drive(
    evaluations: Evaluations, run_id: str, *dispatches: int | None, **fakes: Any
) -> list[Any]:
    """Drive a run by some drivers at once; gives their states."""

    async def all_at_once() -> list[Any]:
        requests = [DriveRequest(run_id=run_id, dispatch=dispatch) for dispatch in dispatches]
        return await asyncio.gather(
            *(drive_run(request, return_state=True) for request in requests)
        )

    with Fakes(**fakes).in_place(), using(evaluations.settings):
        return asyncio.run(all_at_once())


def rows(evaluations: Evaluations, table: Any) -> list[Any]:
    """All rows of a table, oldest first."""
    statement = select(table).order_by(*table.primary_key.columns)
    with open_runtime(evaluations.settings) as runtime, runtime.database.read() as connection:
        return list(connection.execute(statement))


def test_a_dispatched_driver_completes_and_finalizes_its_run(
    evaluations: Evaluations, shown: Shown
) -> None:
    run_id = evaluations.plan(factories.suite(3))
    dispatch = dispatched(evaluations, run_id)

    (state,) = drive(evaluations, run_id, dispatch)

    run = evaluations.summary(run_id)
    (row,) = rows(evaluations, DISPATCH)
    (claim,) = rows(evaluations, CLAIM)
    assert (run.status, run.progress.scored) == (RunStatus.COMPLETED, 3)
    assert run.finalized_at is not None
    assert row.started_at <= claim.acquired_at <= claim.released_at <= row.ended_at
    assert (row.message, claim.dispatch) == ("nothing was left to claim", dispatch)
    assert state.message == f"run {run_id} is completed"
    flow_run = shown.flow_run(f"drive · {run_id}")
    assert {"weirbox", "suite:tested"} <= set(flow_run.tags)
    assert shown.flow_run(f"finalize · {run_id}").state_type is StateType.COMPLETED


def test_a_driver_that_was_given_up_before_it_began_drives_nothing(
    evaluations: Evaluations,
) -> None:
    harness = ScriptedHarness()
    run_id = evaluations.plan(factories.suite(3))
    dispatch = dispatched(evaluations, run_id, given_up=True)

    (state,) = drive(evaluations, run_id, dispatch, harness=harness)

    assert (state.type, state.name) == (StateType.COMPLETED, "NotNeeded")
    assert evaluations.summary(run_id).status is RunStatus.PENDING
    assert (harness.runs, rows(evaluations, CLAIM)) == ({}, [])
    assert rows(evaluations, DISPATCH)[0].message == "no worker took it up"


def test_a_driver_of_a_run_that_has_ended_does_nothing(evaluations: Evaluations) -> None:
    run_id = evaluations.plan(factories.suite(1))
    evaluations.drive(run_id)
    before = evaluations.summary(run_id)

    (state,) = drive(evaluations, run_id, dispatched(evaluations, run_id))

    assert state.type is StateType.COMPLETED
    assert evaluations.summary(run_id) == before
    assert rows(evaluations, DISPATCH)[0].ended_at is not None


def test_two_drivers_share_a_run(evaluations: Evaluations) -> None:
    harness = ScriptedHarness(delay_s=0.2)
    run_id = evaluations.plan(factories.suite(40, concurrency={"execute": 2}))
    dispatches = [dispatched(evaluations, run_id) for _ in range(2)]

    drive(evaluations, run_id, *dispatches, harness=harness)

    run = evaluations.summary(run_id)
    assert (run.status, run.progress.scored) == (RunStatus.COMPLETED, 40)
    assert harness.runs == {f"case-{n}": 1 for n in range(40)}
    claims = [claim for claim in rows(evaluations, CLAIM) if claim.stages]
    assert {claim.dispatch for claim in claims} == set(dispatches)
    assert all(row.ended_at is not None for row in rows(evaluations, DISPATCH))


def test_a_driver_that_fails_says_why(
    evaluations: Evaluations, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*arguments: Any, **options: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("flows.driving.drive_run", broken)
    run_id = evaluations.plan(factories.suite(3))

    (state,) = drive(evaluations, run_id, dispatched(evaluations, run_id))

    (row,) = rows(evaluations, DISPATCH)
    assert state.type is StateType.FAILED
    assert row.message == "OSError: no space left on device"
    assert row.ended_at is not None
    assert evaluations.summary(run_id).status is RunStatus.PENDING


def test_a_driver_by_hand_that_is_embedded_is_unknown_to_the_coordinator(
    evaluations: Evaluations,
) -> None:
    run_id = evaluations.plan(factories.suite(2))

    drive(evaluations, run_id, None)

    assert evaluations.summary(run_id).status is RunStatus.COMPLETED
    assert rows(evaluations, DISPATCH) == []
