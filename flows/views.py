"""What a run shows in the Prefect UI: progress, scorecard, link. Views, never the truth."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from prefect.artifacts import (
    acreate_link_artifact,
    acreate_markdown_artifact,
    acreate_progress_artifact,
    aupdate_progress_artifact,
)

from tasks.earlier import done_earlier
from weirbox.domain.run import Progress
from weirbox.pipeline.running import run_url
from weirbox.runtime import Runtime
from weirbox.stats.markdown import scorecard_markdown
from weirbox.store import queries

EVERY_S = 3.0
"""How often the progress artifact is renewed."""

log = logging.getLogger(__name__)


@asynccontextmanager
async def progress_artifact(runtime: Runtime, run_id: str) -> AsyncIterator[None]:
    """Keep a progress artifact up to date for the length of a block."""
    artifact = None
    try:
        await acreate_link_artifact(
            link=run_url(runtime.settings, run_id), key=f"dashboard-{_key(run_id)}"
        )
        artifact = await acreate_progress_artifact(0.0, key=f"progress-{_key(run_id)}")
    except Exception as error:  # noqa: BLE001 - a view must not end a run
        log.warning("run %s: no progress artifact: %s", run_id, error)
    task = asyncio.ensure_future(_renew(runtime, run_id, artifact))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await _show(runtime, run_id, artifact)


async def _renew(runtime: Runtime, run_id: str, artifact: Any) -> None:
    while True:
        await asyncio.sleep(EVERY_S)
        await _show(runtime, run_id, artifact)


async def _show(runtime: Runtime, run_id: str, artifact: Any) -> None:
    if artifact is None:
        return
    try:
        counts = await asyncio.to_thread(_progress, runtime, run_id)
        done = 100.0 * counts.exported / counts.planned if counts.planned else 100.0
        await aupdate_progress_artifact(artifact, done, description=describe(counts))
    except Exception as error:  # noqa: BLE001 - a view must not end a run
        log.warning("run %s: the progress artifact is stale: %s", run_id, error)


def describe(counts: Progress) -> str:
    """A run's progress in one line."""
    return (
        f"{counts.planned} planned, {counts.executed} executed, {counts.judged} judged, "
        f"{counts.exported} done, {counts.errored} errored, {counts.cached} cached"
    )


async def show_earlier(runtime: Runtime, run_id: str) -> None:
    """Stand for the stages that an earlier driver did, as cached task runs."""
    counts = await asyncio.to_thread(_progress, runtime, run_id)
    for stage, trials in (
        ("execute", counts.executed),
        ("judge", counts.judged),
        ("export", counts.exported),
    ):
        if trials:
            await done_earlier(stage, trials)


async def scorecard_artifact(run_id: str, body: dict[str, Any], url: str) -> None:
    """Publish a scorecard as markdown."""
    try:
        await acreate_markdown_artifact(
            scorecard_markdown(body, url=url), key=f"scorecard-{_key(run_id)}"
        )
    except Exception as error:  # noqa: BLE001 - a view must not end a run
        log.warning("run %s: no scorecard artifact: %s", run_id, error)


def _progress(runtime: Runtime, run_id: str) -> Progress:
    with runtime.database.read() as connection:
        return queries.progress(connection, run_id)


def _key(run_id: str) -> str:
    """Artifact keys are lower-case letters, digits and dashes."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in run_id.lower())
