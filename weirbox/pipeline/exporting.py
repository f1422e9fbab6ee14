"""The export stage of one trial: every sink is sent the trial, and none can fail the run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

from weirbox.domain.case import Case
from weirbox.domain.score import Judged
from weirbox.domain.seams import Sink, TrialExport
from weirbox.domain.trace import Observation
from weirbox.domain.words import ExportStatus
from weirbox.pipeline.kit import Kit
from weirbox.store.rows import ExportRecord, Ticket

SEND_S = 60.0
"""How long a sink may take to answer about one trial."""

HUNG_S = 0.5
"""How long one may take that did not answer about the trial before: a run does not wait the
full time for each of its trials."""


async def export(
    item: TrialExport, sinks: Sequence[Sink], hung: set[str]
) -> tuple[ExportRecord, ...]:
    """Send one judged trial to sinks, to all at once; safe to run again, as sinks are.

    Args:
        hung: The names of the sinks that did not answer last time; it is kept up to date.
    """
    return tuple(await asyncio.gather(*(_send(sink, item, hung) for sink in sinks)))


async def _send(sink: Sink, item: TrialExport, hung: set[str]) -> ExportRecord:
    seconds = HUNG_S if sink.name in hung else SEND_S
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            outcome = await sink.send(item)
        hung.discard(sink.name)
    except Exception as error:  # noqa: BLE001 - a sink of a user's may raise anything
        message = f"{type(error).__name__}: {error}"
        if limit.expired():
            hung.add(sink.name)
            message = f"TimeoutError: sink {sink.name!r} has not answered within {seconds:g} s"
        return ExportRecord(sink=sink.name, status=ExportStatus.FAILED, url=None, message=message)
    return ExportRecord(
        sink=sink.name, status=outcome.status, url=outcome.url, message=outcome.message
    )


def trial_export(
    case: Case,
    ticket: Ticket,
    observation: Observation,
    judged: Judged,
    *,
    kit: Kit,
    cost_usd: float | None,
    executed_at: datetime | None,
    judged_at: datetime | None,
) -> TrialExport:
    """Compose what sinks are sent."""
    return TrialExport(
        run_id=ticket.run_id,
        suite=kit.plan.suite.suite,
        case_id=ticket.case_id,
        trial=ticket.trial,
        round=ticket.round,
        entry_digest=ticket.entry_digest,
        category=ticket.category,
        input=case.input,
        target=case.target,
        output=observation.output,
        observation=observation,
        state=judged.state,
        verdict=judged.verdict,
        disposition=judged.disposition,
        deciding=judged.deciding,
        scores=judged.scores,
        proposals=judged.proposals,
        cost_usd=cost_usd,
        error=observation.error.message if observation.error else None,
        executed_at=executed_at.isoformat() if executed_at else None,
        judged_at=judged_at.isoformat() if judged_at else None,
        source_trace=observation.source,
    )
