"""`evaluate-run` within the caller's process: what `weirbox run` and the Python API do."""

from __future__ import annotations

from collections.abc import Callable

import httpx
from prefect.exceptions import PrefectException

from flows.driving import on_driver
from flows.evaluate_run import evaluate_run
from flows.outages import retries_as_before
from flows.requests import EvaluateRequest
from weirbox.pipeline.driver import Driver
from weirbox.runtime import using
from weirbox.settings import Settings


async def evaluate_here(
    run_id: str, settings: Settings, watch: Callable[[Driver], None]
) -> Exception | None:
    """Take a planned run as far as it goes.

    Returns:
        What Prefect failed with, however far the run had come; None where it did not.

    Raises:
        Exception: What the run itself failed with.
    """
    token = on_driver.set(watch)
    try:
        with using(settings), retries_as_before():
            state = await evaluate_run(EvaluateRequest(run_id=run_id), return_state=True)
    except (httpx.HTTPError, PrefectException, RuntimeError) as error:
        return error  # the flow's own errors are states: this is the engine's
    finally:
        on_driver.reset(token)
    if not (state.is_failed() or state.is_crashed()) or state.data is None:
        return None
    fault = await state.aresult(raise_on_failure=False)
    if isinstance(fault, httpx.HTTPError | PrefectException):
        return fault
    if isinstance(fault, Exception):
        raise fault
    return None
