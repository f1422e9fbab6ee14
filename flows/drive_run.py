"""Drive: one more driver for a run, which the coordinator asks for."""

from __future__ import annotations

import asyncio
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.driving import adopt, drive, finish
from flows.requests import DriveRequest
from flows.secret_blocks import prefect_secrets
from flows.stopping import give_back, stopping
from weirbox.runtime import Runtime, open_runtime
from weirbox.store import dispatches


@flow(
    name="drive-run",
    flow_run_name="drive · {request.run_id}",
    validate_parameters=True,
    on_cancellation=[give_back],
    on_crashed=[give_back],
)
async def drive_run(request: DriveRequest) -> State[Any]:
    """Take a run as far as it goes, beside its other drivers; safe to run again.

    A driver that was given up before it began, since no worker had taken it up, does nothing:
    another one was asked for in its place.
    """
    run_id = request.run_id
    with open_runtime(None, prefect_secrets()) as runtime:
        async with stopping(runtime.database) as stop:
            dispatch = await asyncio.to_thread(_begin, runtime, request)
            if dispatch is None and request.dispatch is not None:
                message = f"run {run_id}: the driver was given up before it began"
                return Completed(name="NotNeeded", message=message)
            await drive(runtime, run_id, stop, name=f"drive · {run_id}", dispatch=dispatch)
        return await finish(runtime, run_id, stop)


def _begin(runtime: Runtime, request: DriveRequest) -> int | None:
    if request.dispatch is None:
        return adopt(runtime, request.run_id)
    with runtime.database.write() as connection:
        begun = dispatches.begin_dispatch(connection, request.dispatch)
    return request.dispatch if begun else None
