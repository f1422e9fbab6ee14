"""How runs end before their time: superseded by a newer one, and how they come to rest.

Everything here is safe to run twice: statuses are compared and set, and a run is stamped as
settled once.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, exists, func, select, update

from weirbox.domain.words import RunStatus
from weirbox.store import aggregates, claims
from weirbox.store.base import CLAIM, RUN
from weirbox.store.queries import EARLY, progress
from weirbox.store.types import to_usd, utc_now
from weirbox.store.writes import LIVE, change_status, note


def supersede_older(connection: Connection, run_id: str) -> list[str]:
    """Let the newest of the live runs with a run's supersede key take the place of the others.

    The newest is the one that was created last and, of those, the one whose id is last.
    Whoever compares them holds a lock on the key until the transaction ends: of two runs
    that are planned at once, the one that commits later sees the other. On SQLite the
    transaction itself is that lock.

    Returns:
        The runs that this call superseded.
    """
    key = connection.execute(select(RUN.c.supersede_key).where(RUN.c.id == run_id)).scalar()
    if key is None:
        return []
    if connection.dialect.name != "sqlite":
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(key, 0))))
    live = connection.execute(
        select(RUN.c.id)
        .where(RUN.c.supersede_key == key, RUN.c.status.in_(LIVE))
        .order_by(RUN.c.created_at.desc(), RUN.c.id.desc())
    ).scalars()
    newest, *older = [*live] or [run_id]
    superseded = [
        run
        for run in sorted(older)
        if change_status(connection, run, to=RunStatus.SUPERSEDED, reason=f"superseded by {newest}")
    ]
    if superseded:
        note(connection, newest, kind="supersedes", message=", ".join(superseded))
    return superseded


def at_rest(connection: Connection, run_id: str) -> bool:
    """Whether a run that ended early is held by nobody, and not stamped as settled yet.

    Claims whose lease has run out are taken back first.
    """
    claims.reap_expired(connection, run_id)
    statement = select(RUN.c.id).where(RUN.c.id == run_id, *_RESTING)
    return connection.execute(statement).scalar() is not None


def settle(connection: Connection, run_id: str) -> bool:
    """Stamp a run that ended early and has come to rest, and note what it had come to.

    Safe to run twice and at the same time: the stamp is set once. A call of a judge that
    comes back even later, from a driver that had lost its claim, is still booked.

    Returns:
        Whether this call stamped it; False while a driver still holds a claim.
    """
    claims.reap_expired(connection, run_id)
    settled = connection.execute(
        update(RUN).where(RUN.c.id == run_id, *_RESTING).values(settled_at=utc_now())
    ).rowcount
    if settled:
        note(connection, run_id, kind="settled", message=_outcome(connection, run_id))
    return bool(settled)


_RESTING: tuple[ColumnElement[bool], ...] = (
    RUN.c.status.in_(EARLY),
    RUN.c.settled_at.is_(None),
    ~exists().where(CLAIM.c.run_id == RUN.c.id, CLAIM.c.released_at.is_(None)),
)


def _outcome(connection: Connection, run_id: str) -> str:
    """What a run had come to: its stages, its sinks, its money."""
    counts = progress(connection, run_id)
    parts = [
        f"{counts.executed} executed, {counts.judged} judged, {counts.exported} exported "
        f"of {counts.planned} trials"
    ]
    for sink, statuses in aggregates.exports(connection, run_id).items():
        took = ", ".join(f"{count} {status}" for status, count in statuses.items())
        parts.append(f"sink {sink!r}: {took}")
    run = connection.execute(select(RUN.c.spent_nusd, RUN.c.calls).where(RUN.c.id == run_id)).one()
    if run.calls:
        parts.append(f"{to_usd(run.spent_nusd)} USD spent on {run.calls} judge calls")
    return "; ".join(parts)
