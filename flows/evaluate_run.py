"""Evaluate: plan where needed, drive, and have the run finalized."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from flows.finalize_run import finalize_run
from flows.requests import EvaluateRequest, FinalizeRequest
from flows.runner import PrefectRunner
from flows.secret_blocks import from_prefect_blocks
from flows.views import progress_artifact, show_earlier
from weirbox.domain.words import RunStatus
from weirbox.pipeline.driver import Driver
from weirbox.pipeline.planning import Selection, plan_run
from weirbox.pipeline.running import drive_run, reap_dead
from weirbox.runtime import Runtime, open_runtime
from weirbox.suites import load_suite

on_driver: ContextVar[Callable[[Driver], None]] = ContextVar("on_driver", default=lambda _: None)
"""Is told of each driver; whoever runs the flow embedded sets it, to drain on a signal."""


@flow(name="evaluate-run", flow_run_name="{request.label}", validate_parameters=True)
async def evaluate_run(request: EvaluateRequest) -> State[Any]:
    """Take a run as far as it goes; safe to run again, since its rows say what is left."""
    with open_runtime(None, from_prefect_blocks) as runtime:
        run_id = await asyncio.to_thread(_run_id, runtime, request)
        await asyncio.to_thread(reap_dead, runtime.database, run_id)
        await show_earlier(runtime, run_id)
        async with progress_artifact(runtime, run_id):
            status = await drive_run(
                runtime.database,
                run_id,
                settings=runtime.settings,
                read_secret=runtime.read_secret,
                make_runner=lambda kit: PrefectRunner(),
                on_driver=on_driver.get(),
            )
    if status is RunStatus.COMPLETED:
        await finalize_run(FinalizeRequest(run_id=run_id))
    return _state(run_id, status)


def _run_id(runtime: Runtime, request: EvaluateRequest) -> str:
    if request.run_id is not None:
        return request.run_id
    path = Path(str(request.suite)).absolute()
    planned = plan_run(
        runtime.database,
        load_suite(path),
        folder=str(path.parent),
        selection=Selection(
            kind=request.kind, cases=request.cases, since=request.since, size=request.size
        ),
        prompt_folders=runtime.prompt_folders,
    )
    return planned.run_id


def _state(run_id: str, status: RunStatus) -> State[Any]:
    message = f"run {run_id} is {status}"
    if status is RunStatus.FAILED:
        return Failed(message=message)
    if status in (RunStatus.CANCELLED, RunStatus.SUPERSEDED):
        return Cancelled(message=message)
    name = "Completed" if status is RunStatus.COMPLETED else "Drained"
    return Completed(name=name, message=message)
