"""How a run ends before its time: cancelled, superseded or failed, and then at rest.

Launched work settles and is recorded, nothing new starts. Once no driver holds a claim any
more, the sinks complete what they were sent, so that it can be read, and the run is stamped
as settled with what it had come to.
"""

from __future__ import annotations

import asyncio

from weirbox.domain.words import RunStatus
from weirbox.errors import NotPossible
from weirbox.pipeline.finalizing import complete_sinks
from weirbox.store import ending, queries
from weirbox.store.ending import settle as settle
from weirbox.store.ending import supersede_older as supersede_older
from weirbox.store.engine import Database
from weirbox.store.writes import change_status


def cancel(database: Database, run_id: str, *, reason: str) -> None:
    """Cancel a run; whoever drives it notices within about a second.

    Safe to run twice at once: one cancels, the other is refused.

    Raises:
        NotPossible: When it has ended already.
    """
    with database.write() as connection:
        changed = change_status(connection, run_id, to=RunStatus.CANCELLED, reason=reason)
        status = queries.status_of(connection, run_id)
    if not changed:
        raise NotPossible(f"run {run_id} is {status} already, and cannot be cancelled")


async def come_to_rest(
    database: Database, run_id: str, *, dashboard_url: str | None = None
) -> bool:
    """Complete the sinks of a run that ended early, then stamp it as settled.

    Does nothing for other runs, and while a driver still holds a claim. Safe to run twice,
    at once, and to be killed in between: sinks replace what they completed, and the stamp
    comes last.

    Args:
        dashboard_url: The link to the run that the sinks were set up with.

    Returns:
        Whether this call stamped it.
    """
    if not await asyncio.to_thread(_at_rest, database, run_id):
        return False
    if await asyncio.to_thread(_was_judged, database, run_id):
        await complete_sinks(database, run_id, dashboard_url=dashboard_url)
    return await asyncio.to_thread(_settle, database, run_id)


def _at_rest(database: Database, run_id: str) -> bool:
    with database.write() as connection:
        return ending.at_rest(connection, run_id)


def _was_judged(database: Database, run_id: str) -> bool:
    """Whether sinks can have been sent anything."""
    with database.read() as connection:
        return queries.progress(connection, run_id).judged > 0


def _settle(database: Database, run_id: str) -> bool:
    with database.write() as connection:
        return settle(connection, run_id)
