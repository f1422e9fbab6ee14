"""Coordinate: one look at every run, on a schedule; safe to run often, and twice at once."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.dispatching import PrefectEngine
from weirbox.pipeline.coordinating import tick
from weirbox.runtime import open_runtime


@flow(name="coordinate", flow_run_name="coordinate")
async def coordinate() -> State[Any]:
    """Look at every run once, and have done what is missing.

    A tick that met trouble, of one run or of the server, has done all the rest, and is shown
    as failed with what went wrong; the next one tries again.
    """
    with open_runtime() as runtime:
        engine = PrefectEngine(runtime.settings.deployment)
        report = await tick(runtime.database, engine, runtime.settings)
    return (Failed if report.troubles else Completed)(message=report.describe())
