"""What a run shows in the Prefect UI: names, progress, scorecard, link. Views, never the truth.

Whatever Prefect's server makes of them, the run goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from prefect.artifacts import (
    acreate_link_artifact,
    acreate_markdown_artifact,
    acreate_progress_artifact,
    aupdate_progress_artifact,
)
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext

from tasks.earlier import done_earlier
from weirbox.domain.run import Progress
from weirbox.pipeline.running import run_url
from weirbox.runtime import Runtime
from weirbox.stats.markdown import scorecard_markdown
from weirbox.store import queries

EVERY_S = 3.0
"""How often the progress artifact is renewed."""

PATIENCE_S = 10.0
"""How long a view may take: a server that died answers none, and a run has many."""

T = TypeVar("T")

log = logging.getLogger(__name__)


async def label_flow_run(run_id: str, name: str, tags: set[str]) -> None:
    """Give the flow run a name that tells its run, and tags to find it by."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    flow_run = context.flow_run
    async with get_client() as client:
        update = client.update_flow_run(
            flow_run.id, name=name, tags=sorted({*flow_run.tags, *tags})
        )
        await _shown(run_id, "name", update)


@asynccontextmanager
async def progress_artifact(runtime: Runtime, run_id: str) -> AsyncIterator[None]:
    """Keep a progress artifact up to date for the length of a block."""
    link = acreate_link_artifact(
        link=run_url(runtime.settings, run_id),
        link_text=f"{run_id} in the dashboard",
        key=f"dashboard-{_key(run_id)}",
    )
    await _shown(run_id, "dashboard link", link)
    artifact = await _shown(
        run_id, "progress", acreate_progress_artifact(0.0, key=progress_key(run_id))
    )
    if artifact is None:
        yield
        return
    renewing = asyncio.ensure_future(_renew(runtime, run_id, artifact))
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        await _show(runtime, run_id, artifact)


async def _renew(runtime: Runtime, run_id: str, artifact: Any) -> None:
    while True:
        await asyncio.sleep(EVERY_S)
        await _show(runtime, run_id, artifact)


async def _show(runtime: Runtime, run_id: str, artifact: Any) -> None:
    await _shown(run_id, "progress", _update(runtime, run_id, artifact))


async def _update(runtime: Runtime, run_id: str, artifact: Any) -> None:
    counts = await asyncio.to_thread(_progress, runtime, run_id)
    await aupdate_progress_artifact(artifact, percent_done(counts), description=describe(counts))


async def _shown(run_id: str, what: str, update: Awaitable[T]) -> T | None:
    try:
        return await asyncio.wait_for(update, PATIENCE_S)
    except Exception as error:  # noqa: BLE001 - a view must not end a run
        log.warning("run %s: Prefect does not show its %s: %r", run_id, what, error)
        return None


def percent_done(counts: Progress) -> float:
    """How much of a run is done, in percent."""
    return 100.0 * counts.exported / counts.planned if counts.planned else 100.0


def progress_key(run_id: str) -> str:
    """The key of the artifact that shows a run's progress, whoever publishes it."""
    return f"progress-{_key(run_id)}"


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
    markdown = scorecard_markdown(body, url=url)
    artifact = acreate_markdown_artifact(markdown, key=f"scorecard-{_key(run_id)}")
    await _shown(run_id, "scorecard", artifact)


def _progress(runtime: Runtime, run_id: str) -> Progress:
    with runtime.database.read() as connection:
        return queries.progress(connection, run_id)


def _key(run_id: str) -> str:
    """Artifact keys are lower-case letters, digits and dashes."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in run_id.lower())
