"""The finalize stage as a Prefect task."""

from __future__ import annotations

from typing import Any

from prefect import task

from tasks.tagging import tag_task_run
from weirbox import runtime


@task(name="finalize", task_run_name="finalize · {run_id}")
async def finalize(run_id: str) -> dict[str, Any] | None:
    """Compute and store the scorecard of a completed run, or have one that ended early come
    to rest; safe to run twice."""
    tag_task_run("finalize")
    with runtime.open_runtime() as opened:
        return await runtime.conclude(opened, run_id)
