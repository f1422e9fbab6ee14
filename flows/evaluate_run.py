"""Evaluate: plan where needed, drive, and have the run finalized."""

from __future__ import annotations

import asyncio
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.driving import adopt, drive, finish
from flows.requests import EvaluateRequest
from flows.secret_blocks import prefect_secrets
from flows.stopping import give_back, is_deployed, own_flow_run, stopping
from weirbox import api
from weirbox.runtime import Runtime, open_runtime
from weirbox.store import queries


@flow(
    name="evaluate-run",
    flow_run_name="{request.label}",
    validate_parameters=True,
    on_cancellation=[give_back],
    on_crashed=[give_back],
)
async def evaluate_run(request: EvaluateRequest) -> State[Any]:
    """Take a run as far as it goes; safe to run again, since its rows say what is left.

    As a deployment it plans a run that the coordinator looks after, and is its first driver.
    """
    with open_runtime(None, prefect_secrets()) as runtime:
        async with stopping(runtime.database) as stop:
            run_id = await asyncio.to_thread(_run_id, runtime, request)
            dispatch = await asyncio.to_thread(adopt, runtime, run_id)
            await drive(runtime, run_id, stop, name=run_id, dispatch=dispatch)
        return await finish(runtime, run_id, stop)


def _run_id(runtime: Runtime, request: EvaluateRequest) -> str:
    """The run to drive: a given one, the one that this flow run has planned before it was
    started again, or else a new one."""
    if request.run_id is not None:
        return request.run_id
    flow_run = own_flow_run()
    if flow_run is not None and is_deployed(flow_run):
        with runtime.database.read() as connection:
            found = queries.dispatches_of(connection, str(flow_run.id))
        if found:
            return found[-1].run_id
    planned = api.plan_suite(
        runtime,
        str(request.suite),
        api.selection(request.kind, cases=request.cases, since=request.since, size=request.size),
        origin=request.origin,
        managed=is_deployed(flow_run),
    )
    return planned.run_id
