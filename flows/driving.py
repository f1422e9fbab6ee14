"""What `evaluate-run` and `drive-run` have in common: to drive a run, and to have it finalized."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import httpx
from prefect import tags
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectException
from prefect.states import Cancelled, Completed, Failed

from flows.finalize_run import finalize_run
from flows.outages import spare_events, spare_requests
from flows.requests import FinalizeRequest
from flows.runner import PrefectRunner
from flows.stopping import Stop, is_deployed, own_flow_run, within_patience
from flows.views import label_flow_run, progress_artifact, show_earlier
from tasks import tagging
from weirbox.domain.run import RunSummary
from weirbox.domain.words import RunStatus
from weirbox.pipeline.driver import Driver
from weirbox.pipeline.running import drive_run, reap_dead
from weirbox.runtime import Runtime, finalize
from weirbox.store import dispatches, queries

log = logging.getLogger(__name__)

on_driver: ContextVar[Callable[[Driver], None]] = ContextVar("on_driver", default=lambda _: None)
"""Is told of each driver; whoever runs the flow embedded sets it, to drain on a signal."""


async def drive(
    runtime: Runtime, run_id: str, stop: Stop, *, name: str, dispatch: int | None
) -> None:
    """Drive a run as far as it goes, or until the flow run is told to stop.

    Safe to run again, and beside other drivers: the rows say what is left, and claims share it.

    Args:
        name: What the flow run is called in the Prefect UI.
        dispatch: What the coordinator knows this driver by; it ends here, whatever happens.
    """
    message = "it was cut off"
    spare_events()
    try:
        stop.follow(run_id)
        labels = await asyncio.to_thread(labels_of, runtime, run_id)
        await label_flow_run(run_id, name, labels)
        tagging.labels.set(frozenset(labels))
        await _drive(runtime, run_id, stop, dispatch)
        message = "drained" if stop.signalled else "nothing was left to claim"
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        raise
    finally:
        if dispatch is not None:
            await asyncio.to_thread(_end, runtime, dispatch, message)


async def _drive(runtime: Runtime, run_id: str, stop: Stop, dispatch: int | None) -> None:
    deployed = is_deployed(own_flow_run())
    settings = within_patience(runtime.settings) if deployed else runtime.settings
    watch = on_driver.get()

    def begun(driver: Driver) -> None:
        watch(driver)
        stop.watch(driver)

    await asyncio.to_thread(reap_dead, runtime.database, run_id)
    await show_earlier(runtime, run_id)
    async with progress_artifact(runtime, run_id):
        await drive_run(
            runtime.database,
            run_id,
            settings=settings,
            read_secret=runtime.read_secret,
            make_runner=lambda kit: PrefectRunner(),
            on_driver=begun,
            dispatch=dispatch,
        )
        if not deployed:
            await spare_requests()


def _end(runtime: Runtime, dispatch: int, message: str) -> None:
    with runtime.database.write() as connection:
        dispatches.end_dispatch(connection, dispatch, message)


def adopt(runtime: Runtime, run_id: str) -> int | None:
    """Make this flow run known to the coordinator as a driver of the run; None where it is
    embedded, and nobody coordinates it. Safe to run twice."""
    flow_run = own_flow_run()
    if flow_run is None or not is_deployed(flow_run):
        return None
    with runtime.database.write() as connection:
        return dispatches.adopt_dispatch(connection, run_id, str(flow_run.id))


async def finish(runtime: Runtime, run_id: str, stop: Stop) -> State[Any]:
    """Have a completed run finalized, and tell what became of it.

    Safe to run twice, and where other drivers do it as well: finalizing is idempotent.
    """
    run = await asyncio.to_thread(summary_of, runtime, run_id)
    if run.finalizing:
        with tags(*await asyncio.to_thread(labels_of, runtime, run_id)):
            await _finalize(runtime, run_id)
    return state_of(run, stop)


async def _finalize(runtime: Runtime, run_id: str) -> None:
    """Finalize as a flow run of its own, or without one where the server died."""
    try:
        await finalize_run(FinalizeRequest(run_id=run_id))
    except (httpx.HTTPError, PrefectException) as error:
        log.warning("run %s is finalized without Prefect, which failed: %r", run_id, error)
        await finalize(runtime, run_id)


def labels_of(runtime: Runtime, run_id: str) -> set[str]:
    """What tags the flow runs and task runs of a run."""
    with runtime.database.read() as connection:
        suite = queries.load_plan(connection, run_id).suite
    return {"weirbox", f"suite:{suite.suite}", *suite.tags}


def summary_of(runtime: Runtime, run_id: str) -> RunSummary:
    """A run at a glance."""
    with runtime.database.read() as connection:
        return queries.summary(connection, run_id)


def state_of(run: RunSummary, stop: Stop) -> State[Any]:
    """The state of a flow run that has driven a run; one that was cancelled is so, whatever
    the run has come to, since Prefect lets it end in no other way."""
    message = f"run {run.run_id} is {run.status}{run.reason and f': {run.reason}'}"
    if run.status is RunStatus.FAILED and not stop.cancelled:
        return Failed(message=message)
    if stop.cancelled or run.status in (RunStatus.CANCELLED, RunStatus.SUPERSEDED):
        return Cancelled(message=message)
    name = "Completed" if run.status is RunStatus.COMPLETED else "Drained"
    return Completed(name=name, message=message)
