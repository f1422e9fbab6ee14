"""Finalize a run that has ended, as a flow run of its own."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.requests import FinalizeRequest
from flows.views import scorecard_artifact
from tasks.finalize import finalize
from weirbox.pipeline.running import run_url
from weirbox.runtime import current_settings


@flow(name="finalize-run", flow_run_name="finalize · {request.run_id}")
async def finalize_run(request: FinalizeRequest) -> dict[str, Any] | None:
    """Compute and stamp a run's scorecard, or have a run that ended early come to rest; safe
    to run twice, with the same result."""
    body = await finalize(request.run_id)
    if body is not None:
        await scorecard_artifact(request.run_id, body, run_url(current_settings(), request.run_id))
    return body
