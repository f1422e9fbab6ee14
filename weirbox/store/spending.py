"""Spending under a run's budget: reservations and booked calls, each in one transaction.

Safe to run twice: a reservation is inserted only while spent and reserved together stay
within the limit, under the run's row lock; one with the key of a request, and a call with
the key of a settlement, is there once; releasing what is gone changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import uuid4

from sqlalchemy import Connection, delete, insert, select, update

from weirbox.domain.score import JudgeCall
from weirbox.store import claims
from weirbox.store.base import CALL, RESERVATION, RUN, TRIAL, add_unless, lock_rows
from weirbox.store.rows import Ticket, call_columns
from weirbox.store.types import to_nano, utc_now


def _new_key() -> str:
    return uuid4().hex


@dataclass(frozen=True)
class Settlement:
    """A judge call that ended, and the reservation it had.

    Attributes:
        key: Given once: what is written again under it, since the acknowledgement of its
            commit was lost, is not booked again.
    """

    ticket: Ticket
    reservation: int | None
    call: JudgeCall
    key: str = field(default_factory=_new_key)


@dataclass(frozen=True)
class ReserveRequest:
    """An upper bound for a call about to be made; None where no price is known.

    Attributes:
        key: As that of a settlement.
    """

    ticket: Ticket
    nusd: int | None
    key: str = field(default_factory=_new_key)


class Booking(NamedTuple):
    """A judge call as it is written; without a key what fences it is elsewhere."""

    ticket: Ticket
    call: JudgeCall
    at: datetime
    key: str | None = None


def reserve(connection: Connection, requests: Sequence[ReserveRequest]) -> list[int | None]:
    """Reserve under the run's budget, in the order given.

    Returns:
        For each request the reservation's number, or None when the budget does
        not admit it: spent and reserved together never exceed the limit. Nothing is
        admitted under a claim that was taken back: nobody would void it any more; nor for
        a trial that was opened again meanwhile: its result would change nothing.
    """
    granted: list[int | None] = []
    rooms: dict[str, _Room] = {}
    held = claims.held(connection, {request.ticket.token for request in requests})
    standing = _standing(connection, [r.ticket for r in requests if r.ticket.token in held])
    for request in requests:
        run_id = request.ticket.run_id
        room = rooms.get(run_id) or _room(connection, run_id)
        rooms[run_id] = room
        if (there := room.granted.get(request.key)) is not None:
            granted.append(there)
            continue
        if _entry(request.ticket) not in standing or not room.admits(request.nusd):
            granted.append(None)
            continue
        room.take(request.nusd or 0)
        row = connection.execute(
            insert(RESERVATION).returning(RESERVATION.c.id),
            {
                "run_id": run_id,
                "claim": request.ticket.token,
                "nusd": request.nusd or 0,
                "at": utc_now(),
                "key": request.key,
            },
        ).scalar_one()
        granted.append(row)
    return granted


class _Entry(NamedTuple):
    """A trial in one of its rounds."""

    run_id: str
    seq: int
    round: int


def _entry(ticket: Ticket) -> _Entry:
    return _Entry(ticket.run_id, ticket.seq, ticket.round)


def _standing(connection: Connection, tickets: Sequence[Ticket]) -> set[_Entry]:
    """Which trials are still held as the tickets have them."""
    statement = select(TRIAL.c.run_id, TRIAL.c.seq, TRIAL.c.round).where(
        TRIAL.c.run_id.in_({ticket.run_id for ticket in tickets}),
        TRIAL.c.seq.in_({ticket.seq for ticket in tickets}),
        TRIAL.c.claim.in_({ticket.token for ticket in tickets}),
    )
    return {_Entry(*row) for row in connection.execute(statement)}


class _Room:
    """What a budget still admits, and the reservations that are there, by their keys."""

    def __init__(self, nusd: int | None, calls: int | None, granted: dict[str, int]) -> None:
        self.nusd, self.calls, self.granted = nusd, calls, granted

    def admits(self, nusd: int | None) -> bool:
        """Whether a call fits; one of unknown price does while anything is left at all."""
        if self.calls is not None and self.calls < 1:
            return False
        if self.nusd is None:
            return True
        return self.nusd > 0 if nusd is None else nusd <= self.nusd

    def take(self, nusd: int) -> None:
        self.nusd = None if self.nusd is None else self.nusd - nusd
        self.calls = None if self.calls is None else self.calls - 1


def _room(connection: Connection, run_id: str) -> _Room:
    run = connection.execute(
        lock_rows(
            connection,
            select(RUN.c.budget_nusd, RUN.c.budget_calls, RUN.c.spent_nusd, RUN.c.calls).where(
                RUN.c.id == run_id
            ),
        )
    ).one()
    held = connection.execute(
        select(RESERVATION.c.id, RESERVATION.c.key, RESERVATION.c.nusd).where(
            RESERVATION.c.run_id == run_id
        )
    ).all()
    nusd = sum(row.nusd for row in held)
    return _Room(
        None if run.budget_nusd is None else run.budget_nusd - run.spent_nusd - nusd,
        None if run.budget_calls is None else run.budget_calls - run.calls - len(held),
        {row.key: row.id for row in held if row.key is not None},
    )


def settle(connection: Connection, settlements: Sequence[Settlement]) -> None:
    """Book calls and void their reservations. Money spent counts under any token."""
    now = utc_now()
    book_calls(connection, [Booking(s.ticket, s.call, now, s.key) for s in settlements])
    release(connection, [s.reservation for s in settlements if s.reservation is not None])


def book_calls(connection: Connection, calls: Sequence[Booking]) -> None:
    """Insert judge-call rows and count them on their runs, in one transaction; those whose
    key is there already are left out."""
    if not calls:
        return
    rows = [call_columns(c.ticket, c.call, c.at, c.key) for c in calls]
    written = set(add_unless(connection, CALL, rows, CALL.c.key))
    spent: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for booking in calls:
        if booking.key is None or booking.key in written:
            spent[booking.ticket.run_id][0] += to_nano(booking.call.usage.cost_usd) or 0
            spent[booking.ticket.run_id][1] += 1
    for run_id in sorted(spent):
        nusd, count = spent[run_id]
        connection.execute(
            update(RUN)
            .where(RUN.c.id == run_id)
            .values(spent_nusd=RUN.c.spent_nusd + nusd, calls=RUN.c.calls + count)
        )


def release(connection: Connection, reservations: Sequence[int]) -> None:
    """Void reservations; one that is gone already stays gone."""
    if reservations:
        connection.execute(delete(RESERVATION).where(RESERVATION.c.id.in_(reservations)))
