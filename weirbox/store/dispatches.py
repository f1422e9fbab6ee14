"""Dispatches: drivers that are asked for, or that have come by themselves.

A dispatch's row is committed before the engine is asked, under an idempotency key, so that
asking again, by whoever, gives the same driver.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, insert, select, update

from weirbox.store.base import DISPATCH
from weirbox.store.types import utc_now


def request_dispatches(
    connection: Connection, run_id: str, *, known: int, count: int
) -> list[tuple[int, str]]:
    """Write that drivers are asked for; under the run's lock their keys are never used twice.

    Args:
        known: How many dispatches the run has had.

    Returns:
        Number and idempotency key of each.
    """
    numbers = range(known, known + count)
    keys = [f"drive:{run_id}:{number}" for number in numbers]
    return [(_insert_dispatch(connection, run_id, key, flow_run=None), key) for key in keys]


def adopt_dispatch(connection: Connection, run_id: str, flow_run: str) -> int:
    """Show a driver that nobody asked for, such as the one that planned the run itself, as
    one that has begun; safe to run twice for one flow run."""
    key = f"flow-run:{flow_run}:{run_id}"
    known = connection.execute(select(DISPATCH.c.id).where(DISPATCH.c.key == key)).scalar()
    if known is not None:
        return int(known)
    return _insert_dispatch(connection, run_id, key, flow_run=flow_run, started_at=utc_now())


def _insert_dispatch(
    connection: Connection,
    run_id: str,
    key: str,
    *,
    flow_run: str | None,
    started_at: datetime | None = None,
) -> int:
    number: int = connection.execute(
        insert(DISPATCH).returning(DISPATCH.c.id),
        {
            "run_id": run_id,
            "key": key,
            "flow_run": flow_run,
            "requested_at": utc_now(),
            "started_at": started_at,
            "message": "",
        },
    ).scalar_one()
    return number


def set_flow_run(connection: Connection, dispatch: int, flow_run: str) -> None:
    """Keep the engine's id of a driver; the same key always gets the same id."""
    connection.execute(update(DISPATCH).where(DISPATCH.c.id == dispatch).values(flow_run=flow_run))


def begin_dispatch(connection: Connection, dispatch: int) -> bool:
    """Note that a driver begins.

    Returns:
        False when it was given up meanwhile, and must not drive.
    """
    going = DISPATCH.c.id == dispatch, DISPATCH.c.ended_at.is_(None)
    connection.execute(
        update(DISPATCH).where(*going, DISPATCH.c.started_at.is_(None)).values(started_at=utc_now())
    )
    return connection.execute(select(DISPATCH.c.id).where(*going)).scalar() is not None


def end_dispatch(connection: Connection, dispatch: int, message: str = "") -> bool:
    """Note that a driver is gone; safe to run twice: the first word stands.

    Returns:
        Whether it was still thought of as going.
    """
    changed = connection.execute(
        update(DISPATCH)
        .where(DISPATCH.c.id == dispatch, DISPATCH.c.ended_at.is_(None))
        .values(ended_at=utc_now(), message=message)
    ).rowcount
    return bool(changed)
