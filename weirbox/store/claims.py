"""Claims: a driver's fenced lease on trials.

A claim is one row with a growing token; trials carry the token. A driver renews the
one row. When the lease has run out, whoever comes next takes the trials back, and
what the old driver still writes finds another token and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Select, delete, insert, select, update

from weirbox.domain.words import TrialStage
from weirbox.store.base import CLAIM, RESERVATION, TRIAL, lock_rows
from weirbox.store.rows import Ticket
from weirbox.store.types import utc_now

_TICKET = (
    *(TRIAL.c.run_id, TRIAL.c.seq, TRIAL.c.case_id, TRIAL.c.trial, TRIAL.c.entry_digest),
    *(TRIAL.c.case_digest, TRIAL.c.category, TRIAL.c.stage, TRIAL.c.attempt),
    *(TRIAL.c.round, TRIAL.c.redo, TRIAL.c.observation),
    *(TRIAL.c.cached, TRIAL.c.executed_at, TRIAL.c.judged_at),
    *(TRIAL.c.error_kind, TRIAL.c.error_message),
)


def open_claim(
    connection: Connection,
    run_id: str,
    *,
    driver: str,
    lease_s: float,
    dispatch: int | None = None,
) -> int:
    """Begin a lease and give its token, greater than any before.

    Args:
        dispatch: The coordinator's dispatch that the driver came from.
    """
    now = utc_now()
    token: int = connection.execute(
        insert(CLAIM).returning(CLAIM.c.token),
        {
            "run_id": run_id,
            "driver": driver,
            "acquired_at": now,
            "lease_until": now + timedelta(seconds=lease_s),
            "dispatch": dispatch,
        },
    ).scalar_one()
    return token


def renew(connection: Connection, token: int, *, lease_s: float) -> bool:
    """Extend a lease; False when it was taken back, and the driver must stop."""
    changed = connection.execute(
        update(CLAIM)
        .where(CLAIM.c.token == token, CLAIM.c.released_at.is_(None))
        .values(lease_until=utc_now() + timedelta(seconds=lease_s))
    ).rowcount
    return bool(changed)


def claim_trials(connection: Connection, run_id: str, token: int, limit: int) -> list[Ticket]:
    """Take up to `limit` free trials that still have a stage to go through.

    Trials of other drivers are skipped, not waited for. Gives nothing when the
    claim itself is no longer held.
    """
    if not held(connection, [token]):
        return []
    statement = (
        select(*_TICKET)
        .where(TRIAL.c.run_id == run_id, TRIAL.c.stage != TrialStage.DONE, TRIAL.c.claim.is_(None))
        .order_by(TRIAL.c.seq)
        .limit(limit)
    )
    if connection.dialect.name != "sqlite":
        statement = statement.with_for_update(skip_locked=True)
    rows = connection.execute(statement).all()
    if rows:
        connection.execute(
            update(TRIAL)
            .where(TRIAL.c.run_id == run_id, TRIAL.c.seq.in_([row.seq for row in rows]))
            .values(claim=token)
        )
    return [_ticket(row, token) for row in rows]


def held(connection: Connection, tokens: Collection[int]) -> set[int]:
    """Those of the claims that nobody has taken back; they stay so until the transaction ends."""
    statement = select(CLAIM.c.token).where(
        CLAIM.c.token.in_(tokens), CLAIM.c.released_at.is_(None)
    )
    if connection.dialect.name != "sqlite":
        statement = statement.with_for_update(read=True)
    return set(connection.execute(statement).scalars())


def release_claim(connection: Connection, token: int) -> int:
    """Give a claim back with everything it holds; safe to run twice.

    Returns:
        How many trials were freed.
    """
    return _free(connection, [token], reaped=False)


def reap_expired(connection: Connection, run_id: str) -> int:
    """Free the trials of claims whose lease has run out; gives how many claims."""
    return _reap(
        connection,
        select(CLAIM.c.token).where(
            CLAIM.c.run_id == run_id,
            CLAIM.c.released_at.is_(None),
            CLAIM.c.lease_until < utc_now(),
        ),
    )


def reap_drivers(connection: Connection, run_id: str, dead: Sequence[str]) -> int:
    """Free the trials of drivers known to be dead; gives how many claims."""
    return _reap(
        connection,
        select(CLAIM.c.token).where(
            CLAIM.c.run_id == run_id, CLAIM.c.released_at.is_(None), CLAIM.c.driver.in_(dead)
        ),
    )


def live_drivers(connection: Connection, run_id: str) -> list[str]:
    """The drivers that hold a claim on a run."""
    return list(
        connection.execute(
            select(CLAIM.c.driver).where(CLAIM.c.run_id == run_id, CLAIM.c.released_at.is_(None))
        ).scalars()
    )


def _reap(connection: Connection, tokens: Select[Any]) -> int:
    found = list(connection.execute(lock_rows(connection, tokens)).scalars())
    if found:
        _free(connection, found, reaped=True)
    return len(found)


def _free(connection: Connection, tokens: Sequence[int], *, reaped: bool) -> int:
    """Free what claims hold.

    Trials are locked in the order in which the results of their stages lock them, or a
    late result and this could wait for each other.
    """
    connection.execute(
        update(CLAIM)
        .where(CLAIM.c.token.in_(tokens), CLAIM.c.released_at.is_(None))
        .values(released_at=utc_now(), reaped=reaped)
    )
    connection.execute(delete(RESERVATION).where(RESERVATION.c.claim.in_(tokens)))
    runs = select(CLAIM.c.run_id).where(CLAIM.c.token.in_(tokens))
    theirs = (TRIAL.c.run_id.in_(runs), TRIAL.c.claim.in_(tokens))
    in_order = select(TRIAL.c.seq).where(*theirs).order_by(TRIAL.c.run_id, TRIAL.c.seq)
    connection.execute(lock_rows(connection, in_order)).all()
    return connection.execute(update(TRIAL).where(*theirs).values(claim=None)).rowcount


def _ticket(row: Any, token: int) -> Ticket:
    fields = dict(row._mapping)
    fields["stage"] = TrialStage(fields["stage"])
    return Ticket(**fields, token=token)
