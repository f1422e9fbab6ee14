"""What the coordinator asks of a real Prefect server, and what it gets for an answer."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.events.filters import EventFilter, EventResourceFilter
from prefect.states import (
    Cancelled,
    Cancelling,
    Completed,
    Crashed,
    Failed,
    Paused,
    Pending,
    Running,
    Scheduled,
)

from flows.dispatching import PAGE, PrefectEngine
from flows.drive_run import drive_run
from tests.flows import deployed as deploying
from tests.flows.conftest import Shown
from tests.flows.deployed import Deployed, wait_until
from weirbox.domain.run import Progress
from weirbox.domain.words import AlertKind
from weirbox.errors import ServiceError
from weirbox.pipeline.coordinating import DriverOrder, FlowState
from weirbox.services import free_port
from weirbox.store.alerts import AlertRow

ORDER = DriverOrder(run_id="a-run", dispatch=7, key="drive:a-run:0")


@pytest.fixture
def engine(deployed: Deployed) -> PrefectEngine:
    """An engine of deployments that nobody serves."""
    deployed.register("drive-run", "finalize-run", "evaluate-run")
    return PrefectEngine(deployed.settings.deployment)


def in_state(*states: State[Any]) -> str:
    """A flow run that has gone through states."""
    with get_client(sync_client=True) as client:
        run = client.create_flow_run(drive_run, parameters={}, state=states[0])
        for state in states[1:]:
            client.set_flow_run_state(run.id, state, force=True)
    return str(run.id)


def states(*flow_runs: str) -> list[FlowState | None]:
    """What the engine says about flow runs."""
    found = asyncio.run(PrefectEngine("any").states(flow_runs))
    return [found.get(flow_run) for flow_run in flow_runs]


def test_flow_runs_stand_where_the_server_says(prefect_api: str) -> None:
    waiting = [in_state(state) for state in (Scheduled(), Pending(), Paused())]
    ended = [in_state(Running(), state) for state in (Completed(), Failed(), Crashed())]

    assert states(*waiting) == [FlowState.WAITING] * 3
    assert states(in_state(Running())) == [FlowState.RUNNING]
    assert states(*ended) == [FlowState.ENDED] * 3
    assert states(str(uuid4())) == [None]


def test_only_what_somebody_cancelled_counts_as_cancelled(prefect_api: str) -> None:
    by_hand = [
        in_state(Running(), Cancelling()),
        in_state(Running(), Cancelling(), Cancelled(message="Flow run was cancelled.")),
        in_state(Scheduled(), Cancelled()),
    ]
    shut_down = in_state(Pending(), Cancelled(message="Runner is shutting down."))
    at_its_limit = in_state(Scheduled(), Cancelled(message="Deployment concurrency limit reached."))

    assert states(*by_hand) == [FlowState.CANCELLED] * 3
    assert states(shut_down, at_its_limit) == [FlowState.ENDED] * 2


def test_a_flow_run_that_is_cancelled_before_it_starts_is_cancelled(
    engine: PrefectEngine,
) -> None:
    flow_run = asyncio.run(engine.drive(ORDER))

    deploying.cancel(UUID(flow_run))

    assert states(flow_run) == [FlowState.CANCELLED]


def test_more_flow_runs_than_the_server_gives_at_once_are_all_found(prefect_api: str) -> None:
    one = in_state(Running())
    unknown = [str(uuid4()) for _ in range(PAGE)]

    assert states(*unknown, one)[-1] is FlowState.RUNNING


def test_a_key_gives_the_same_driver_however_often_it_is_asked_for(engine: PrefectEngine) -> None:
    async def ask() -> list[str]:
        asked = await asyncio.gather(*(engine.drive(ORDER) for _ in range(3)))
        return [*asked, await engine.drive(ORDER._replace(key="drive:a-run:1"))]

    *same, other = asyncio.run(ask())

    assert len(set(same)) == 1
    assert other != same[0]
    flow_run = deploying.flow_run(UUID(same[0]))
    assert flow_run.parameters == {"request": {"run_id": "a-run", "dispatch": 7}}
    assert flow_run.name == "drive · a-run"
    assert flow_run.state_name == "Scheduled"


def test_finalize_and_evaluate_are_asked_for_with_their_parameters(engine: PrefectEngine) -> None:
    finalizing = asyncio.run(engine.finalize("a-run", "finalize:a-run"))
    evaluating = asyncio.run(engine.evaluate("nightly", "delta", "latest", "auto:nightly:1"))

    assert deploying.flow_run(UUID(finalizing)).parameters == {"request": {"run_id": "a-run"}}
    assert deploying.flow_run(UUID(evaluating)).parameters == {
        "request": {"suite": "nightly", "kind": "delta", "since": "latest"}
    }


def test_a_deployment_that_is_not_registered_is_told_with_the_way_out(prefect_api: str) -> None:
    with pytest.raises(ServiceError, match=r"no deployment 'drive-run/nowhere'.*weirbox deploy"):
        asyncio.run(PrefectEngine("nowhere").drive(ORDER))


@pytest.mark.filterwarnings("ignore:Artifact creation outside of a flow")
def test_progress_is_published_in_one_place_across_ticks(
    engine: PrefectEngine, shown: Shown
) -> None:
    run_id = f"shown-{uuid4().hex[:8]}"
    halfway = Progress(planned=4, executed=3, judged=2, exported=2, pending=2, scored=2)

    asyncio.run(engine.show(run_id, Progress(planned=4, pending=4)))
    first = shown.artifact(f"progress-{run_id}")
    asyncio.run(PrefectEngine("another").show(run_id, halfway))
    second = shown.artifact(f"progress-{run_id}")

    assert (first.data, second.data) == (0.0, 50.0)
    assert second.id == first.id
    assert second.description == "4 planned, 3 executed, 2 judged, 2 done, 0 errored, 0 cached"


def test_an_alert_is_an_event_that_is_the_same_when_it_is_sent_twice(
    engine: PrefectEngine,
) -> None:
    run_id = f"alert-{uuid4().hex[:8]}"
    alert = AlertRow(
        run_id=run_id,
        suite="nightly",
        run_kind="full",
        kind=AlertKind.REVIEW_RATE,
        message="15 of 20 judged trials need a review",
        value=0.75,
        threshold=0.5,
        at=datetime.now(UTC),
    )

    asyncio.run(engine.emit(alert))
    asyncio.run(engine.emit(alert))

    wait_until(lambda: events(run_id), seconds=30)
    (event,) = events(run_id)
    assert event["event"] == "weirbox.alert.review_rate"
    assert event["payload"] == {
        **{"run_id": run_id, "suite": "nightly", "run_kind": "full", "kind": "review_rate"},
        **{"message": alert.message, "value": 0.75, "threshold": 0.5},
        "at": alert.at.isoformat(),
    }


def events(run_id: str) -> list[dict[str, Any]]:
    """The events about a run that the server has stored."""
    wanted = EventFilter(resource=EventResourceFilter(id=[f"weirbox.run.{run_id}"]))
    with get_client(sync_client=True) as client:
        answer = client.request(
            "POST", "/events/filter", json={"filter": wanted.model_dump(mode="json")}
        )
    found: list[dict[str, Any]] = answer.json()["events"]
    return found


def test_a_server_that_is_not_there_raises(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.context import refresh_global_settings_context

    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")
    monkeypatch.setenv("PREFECT_CLIENT_MAX_RETRIES", "0")
    refresh_global_settings_context()

    with pytest.raises(Exception, match="connection"):
        states(str(uuid4()))
