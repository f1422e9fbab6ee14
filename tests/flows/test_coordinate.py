"""Ticks of the coordinator's flow against a real Prefect server."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from prefect.client.schemas.objects import State, StateType
from sqlalchemy import update

from flows.coordinate import coordinate
from flows.drive_run import drive_run
from flows.requests import DriveRequest
from tests import factories
from tests.flows import deployed as deploying
from tests.flows.deployed import Deployed
from weirbox.domain.run import RunSummary
from weirbox.domain.words import RunStatus
from weirbox.pipeline import coordinating
from weirbox.runtime import open_runtime, using
from weirbox.store import coordination
from weirbox.store.base import RUN
from weirbox.store.types import utc_now


def managed(deployed: Deployed) -> str:
    """A run that the coordinator looks after, and whose planner is long gone."""
    with open_runtime(deployed.settings) as runtime:
        run_id = factories.plan(runtime.database, factories.suite(3), managed=True)
        with runtime.database.write() as connection:
            long_ago = utc_now() - timedelta(hours=1)
            connection.execute(update(RUN).where(RUN.c.id == run_id).values(created_at=long_ago))
            coordination.remember(connection, [coordination.fact(connection, run_id)])
    return run_id


def tick(deployed: Deployed) -> State[Any]:
    """One tick; gives its flow run's state."""
    with using(deployed.settings):
        state: State[Any] = asyncio.run(coordinate(return_state=True))
    return state


def summary(deployed: Deployed, run_id: str) -> RunSummary:
    """A run at a glance."""
    with open_runtime(deployed.settings) as runtime:
        return factories.summary(runtime.database, run_id)


def waiting(deployed: Deployed, run_id: str) -> Any:
    """The dispatch that waits for a worker."""
    (row,) = [row for row in deployed.dispatches(run_id) if row.ended_at is None]
    return row


def test_a_tick_asks_for_a_driver_once_and_the_driver_completes_the_run(
    deployed: Deployed,
) -> None:
    deployed.register("drive-run")
    run_id = managed(deployed)

    first, second = tick(deployed), tick(deployed)
    dispatch = waiting(deployed, run_id)
    asked = deploying.flow_run(UUID(dispatch.flow_run))
    with using(deployed.settings):
        request = DriveRequest.model_validate(asked.parameters["request"])
        asyncio.run(drive_run(request, return_state=True))

    assert first.type is StateType.COMPLETED
    assert f"{run_id}: a driver is asked for" in str(first.message)
    assert second.type is StateType.COMPLETED
    assert (request.run_id, request.dispatch) == (run_id, dispatch.id)
    assert summary(deployed, run_id).status is RunStatus.COMPLETED
    assert summary(deployed, run_id).finalized_at is not None


def test_a_driver_that_is_cancelled_before_it_starts_cancels_the_run(deployed: Deployed) -> None:
    deployed.register("drive-run")
    run_id = managed(deployed)
    tick(deployed)
    deploying.cancel(UUID(waiting(deployed, run_id).flow_run))

    state = tick(deployed)

    run = summary(deployed, run_id)
    assert run.status is RunStatus.CANCELLED
    assert "in Prefect" in run.reason
    assert f"{run_id}: cancelled" in str(state.message)


def test_trouble_is_shown_as_a_failed_tick_and_stops_no_other_run(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed.register("drive-run")
    broken, *others = [managed(deployed) for _ in range(3)]
    fact = coordination.fact

    def troubled(connection: Any, run_id: str) -> Any:
        if run_id == broken:
            raise OSError("its rows are not readable")
        return fact(connection, run_id)

    monkeypatch.setattr(coordinating.coordination, "fact", troubled)
    state = tick(deployed)

    assert state.type is StateType.FAILED
    assert f"{broken}: trouble: OSError: its rows are not readable" in str(state.message)
    assert [waiting(deployed, run_id).flow_run is not None for run_id in others] == [True, True]


def test_a_missing_deployment_is_shown_and_its_driver_is_asked_for_later(
    deployed: Deployed,
) -> None:
    run_id = managed(deployed)

    failed = tick(deployed)
    unsent = waiting(deployed, run_id)
    deployed.register("drive-run")
    mended = tick(deployed)

    assert failed.type is StateType.FAILED
    assert "weirbox deploy" in str(failed.message)
    assert unsent.flow_run is None
    assert mended.type is StateType.COMPLETED
    sent = waiting(deployed, run_id)
    assert (sent.id, sent.flow_run is not None) == (unsent.id, True)
    assert summary(deployed, run_id).status is RunStatus.PENDING
