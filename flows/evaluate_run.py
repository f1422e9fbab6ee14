"""Evaluate: plan where needed, drive, and have the run finalized."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import httpx
from prefect import flow, tags
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectException
from prefect.states import Cancelled, Completed, Failed

from flows.finalize_run import finalize_run
from flows.requests import EvaluateRequest, FinalizeRequest
from flows.runner import PrefectRunner
from flows.secret_blocks import prefect_secrets
from flows.views import name_flow_run, progress_artifact, show_earlier
from tasks import tagging
from weirbox.domain.run import RunSummary
from weirbox.domain.words import RunStatus
from weirbox.pipeline.driver import Driver
from weirbox.pipeline.planning import Selection, plan_run
from weirbox.pipeline.running import drive_run, reap_dead
from weirbox.runtime import Runtime, finalize, open_runtime
from weirbox.store import queries
from weirbox.suites import load_suite

log = logging.getLogger(__name__)

on_driver: ContextVar[Callable[[Driver], None]] = ContextVar("on_driver", default=lambda _: None)
"""Is told of each driver; whoever runs the flow embedded sets it, to drain on a signal."""


@flow(name="evaluate-run", flow_run_name="{request.label}", validate_parameters=True)
async def evaluate_run(request: EvaluateRequest) -> State[Any]:
    """Take a run as far as it goes; safe to run again, since its rows say what is left."""
    with open_runtime(None, prefect_secrets()) as runtime:
        run_id = await asyncio.to_thread(_run_id, runtime, request)
        labels = await asyncio.to_thread(_labels, runtime, run_id)
        await name_flow_run(run_id, labels)
        tagging.labels.set(frozenset(labels))
        await _drive(runtime, run_id)
        run = await asyncio.to_thread(_summary, runtime, run_id)
        if run.status is RunStatus.COMPLETED:
            with tags(*labels):
                await _finalize(runtime, run_id)
    return _state(run)


async def _drive(runtime: Runtime, run_id: str) -> None:
    await asyncio.to_thread(reap_dead, runtime.database, run_id)
    await show_earlier(runtime, run_id)
    async with progress_artifact(runtime, run_id):
        await drive_run(
            runtime.database,
            run_id,
            settings=runtime.settings,
            read_secret=runtime.read_secret,
            make_runner=lambda kit: PrefectRunner(),
            on_driver=on_driver.get(),
        )


async def _finalize(runtime: Runtime, run_id: str) -> None:
    """Finalize as a flow run of its own, or without one where the server died."""
    try:
        await finalize_run(FinalizeRequest(run_id=run_id))
    except (httpx.HTTPError, PrefectException) as error:
        log.warning("run %s is finalized without Prefect, which failed: %r", run_id, error)
        await finalize(runtime, run_id)


def _labels(runtime: Runtime, run_id: str) -> set[str]:
    """What tags the flow runs and task runs of a run."""
    with runtime.database.read() as connection:
        suite = queries.load_plan(connection, run_id).suite
    return {"weirbox", f"suite:{suite.suite}", *suite.tags}


def _summary(runtime: Runtime, run_id: str) -> RunSummary:
    with runtime.database.read() as connection:
        return queries.summary(connection, run_id)


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


def _state(run: RunSummary) -> State[Any]:
    message = f"run {run.run_id} is {run.status}{run.reason and f': {run.reason}'}"
    if run.status is RunStatus.FAILED:
        return Failed(message=message)
    if run.status in (RunStatus.CANCELLED, RunStatus.SUPERSEDED):
        return Cancelled(message=message)
    name = "Completed" if run.status is RunStatus.COMPLETED else "Drained"
    return Completed(name=name, message=message)
