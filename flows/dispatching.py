"""The coordinator's engine: flow runs of weirbox's deployments in the Prefect server."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from uuid import UUID

from prefect.artifacts import acreate_progress_artifact, aupdate_progress_artifact
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterKey,
    FlowRunFilter,
    FlowRunFilterId,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import ArtifactSort
from prefect.events import Event, Resource
from prefect.events.clients import get_events_client
from prefect.exceptions import ObjectNotFound

from flows.requests import DriveRequest, EvaluateRequest, FinalizeRequest
from flows.stopping import was_cancelled_by_hand
from flows.views import describe, percent_done, progress_key
from weirbox.domain.base import Frozen
from weirbox.domain.run import Progress
from weirbox.errors import ServiceError
from weirbox.pipeline.coordinating import DriverOrder, FlowState
from weirbox.store.alerts import AlertRow

PAGE = 200
"""Flow runs that are read with one request: the most that the server gives."""

EVENTS = uuid.UUID("5d3f1f6c-5f0b-4b38-9d7c-6b7f7c1a9a1e")
"""What the ids of events are derived from, so that one that is sent twice is one."""

STATES = {
    StateType.SCHEDULED: FlowState.WAITING,
    StateType.PENDING: FlowState.WAITING,
    StateType.PAUSED: FlowState.WAITING,
    StateType.RUNNING: FlowState.RUNNING,
    StateType.CANCELLING: FlowState.CANCELLED,
}
"""Where a flow run stands that has not ended."""


class PrefectEngine:
    """Flow runs of the deployments that have one name; raises where the server does not answer.

    Everything is safe to ask for twice: a key always gives the same flow run. For the server
    keys are those of a flow, so other deployments of it are told apart by their name.
    """

    def __init__(self, deployment: str) -> None:
        self._deployment = deployment
        self._ids: dict[str, UUID] = {}

    async def states(self, flow_runs: Sequence[str]) -> Mapping[str, FlowState]:
        """Where flow runs stand; those that the server does not know are left out."""
        found: dict[str, FlowState] = {}
        async with get_client() as client:
            for start in range(0, len(flow_runs), PAGE):
                ids = [UUID(flow_run) for flow_run in flow_runs[start : start + PAGE]]
                wanted = FlowRunFilter(id=FlowRunFilterId(any_=ids))
                for run in await client.read_flow_runs(flow_run_filter=wanted, limit=PAGE):
                    found[str(run.id)] = await _state(client, run)
        return found

    async def drive(self, order: DriverOrder) -> str:
        """Have a driver started."""
        request = DriveRequest(run_id=order.run_id, dispatch=order.dispatch)
        name = f"drive · {order.run_id}"
        return await self._start("drive-run", request, key=order.key, name=name)

    async def finalize(self, run_id: str, key: str) -> str:
        """Have a completed run finalized."""
        request = FinalizeRequest(run_id=run_id)
        return await self._start("finalize-run", request, key=key, name=f"finalize · {run_id}")

    async def evaluate(self, suite: str, kind: str, since: str | None, key: str) -> str:
        """Have a suite evaluated."""
        request = EvaluateRequest.model_validate({"suite": suite, "kind": kind, "since": since})
        return await self._start("evaluate-run", request, key=key, name=request.label)

    async def show(self, run_id: str, progress: Progress) -> None:
        """Publish a run's progress, in the place where it was published before."""
        key = progress_key(run_id)
        wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[key]))
        async with get_client() as client:
            newest = await client.read_artifacts(
                artifact_filter=wanted, sort=ArtifactSort.CREATED_DESC, limit=1
            )
            done, text = percent_done(progress), describe(progress)
            if newest:
                await aupdate_progress_artifact(newest[0].id, done, text, client)
            else:
                await acreate_progress_artifact(done, key=key, description=text)

    async def emit(self, alert: AlertRow) -> None:
        """Have an alert told as an event; returns once the server has it."""
        event = Event(
            id=uuid.uuid5(EVENTS, f"{alert.run_id}:{alert.kind}:{alert.at.isoformat()}"),
            occurred=alert.at,
            event=f"weirbox.alert.{alert.kind}",
            resource=Resource.model_validate(
                {
                    "prefect.resource.id": f"weirbox.run.{alert.run_id}",
                    "prefect.resource.name": alert.run_id,
                }
            ),
            payload={**alert._asdict(), "at": alert.at.isoformat()},
        )
        async with get_events_client(reconnection_attempts=1, checkpoint_every=1) as client:
            await client.emit(event)

    async def _start(self, flow: str, request: Frozen, *, key: str, name: str) -> str:
        async with get_client() as client:
            run = await client.create_flow_run_from_deployment(
                await self._id(client, flow),
                parameters={"request": request.model_dump(mode="json", exclude_defaults=True)},
                idempotency_key=f"{self._deployment}:{key}",
                name=name,
                tags=["weirbox"],
            )
        return str(run.id)

    async def _id(self, client: PrefectClient, flow: str) -> UUID:
        """A deployment's id, which is asked for once."""
        if flow not in self._ids:
            name = f"{flow}/{self._deployment}"
            try:
                self._ids[flow] = (await client.read_deployment_by_name(name)).id
            except ObjectNotFound as error:
                raise ServiceError(
                    f"the Prefect server has no deployment {name!r}; register it with: "
                    "weirbox deploy (or, on this machine, weirbox up)"
                ) from error
        return self._ids[flow]


async def _state(client: PrefectClient, run: FlowRun) -> FlowState:
    if run.state_type is StateType.CANCELLED and await was_cancelled_by_hand(client, run):
        return FlowState.CANCELLED
    if run.state_type is None:
        return FlowState.WAITING
    return STATES.get(run.state_type, FlowState.ENDED)
