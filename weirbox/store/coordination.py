"""What the coordinator reads of runs, and remembers of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    case,
    exists,
    func,
    or_,
    select,
    text,
    update,
)

from weirbox.domain.words import RunStatus, TrialStage
from weirbox.store.base import CLAIM, DISPATCH, RUN, TRIAL, lock_rows
from weirbox.store.types import utc_now
from weirbox.store.writes import LIVE

LOCK_WAIT_MS = 2_000
"""How long one run's tick waits for that run's rows before it gives up until the next."""

OPEN = (TrialStage.EXECUTE, TrialStage.JUDGE, TrialStage.EXPORT)
"""The stages of trials that still have something to go through."""


@dataclass(frozen=True, kw_only=True)
class DispatchFacts:
    """One dispatch that has not ended.

    Attributes:
        held: Whether a claim of its driver is held.
        claimed: Whether it ever held one.
        lapsed: Whether the last one ran out, rather than being given back.
        worked: Whether any stage of a trial ended under its driver's claims.
        last_seen: When its driver last showed itself: it began, or held a claim.
    """

    id: int
    key: str
    flow_run: str | None
    requested_at: datetime
    started_at: datetime | None
    held: bool
    claimed: bool
    lapsed: bool
    worked: bool
    last_seen: datetime | None


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a run's rows say to the coordinator.

    Attributes:
        open: Whether a trial still has a stage to go through.
        free: Whether one of those is held by nobody.
        begun: Whether anybody ever claimed trials.
        expired: Whether a claim is to be taken back.
        held: How many claims are held.
        drivers_seen: Held claims of drivers that no open dispatch stands for.
        deaths: Claims in a row that were taken back before a stage ended under them.
        signature: Changes whenever a driver changes any row.
        superseded_by: A newer live run with the same key.
        dispatched: How many dispatches there ever were.
        failed: The last ones in a row that ended and had not worked.
        last_message: What the last dispatch that ended had to say.
    """

    run_id: str
    status: RunStatus
    managed: bool
    drivers: int
    created_at: datetime
    completed_at: datetime | None
    finalized_at: datetime | None
    settled_at: datetime | None
    seen: str | None
    seen_at: datetime | None
    stalls: int
    open: bool
    free: bool
    begun: bool
    expired: bool
    held: int
    drivers_seen: int
    deaths: int
    signature: str
    superseded_by: str | None
    dispatches: tuple[DispatchFacts, ...]
    dispatched: int
    failed: int
    last_requested: datetime | None
    last_message: str


def facts(connection: Connection) -> list[RunFacts]:
    """The facts of every run that may need something."""
    return _read(connection, _unsettled())


def fact(connection: Connection, run_id: str) -> RunFacts:
    """The facts of one run, whatever it needs."""
    return _read(connection, RUN.c.id == run_id)[0]


def _read(connection: Connection, chosen: ColumnElement[bool]) -> list[RunFacts]:
    claims = {row.run_id: row for row in connection.execute(_claims(chosen))}
    deaths = {row.run_id: row.deaths for row in connection.execute(_deaths(chosen))}
    dispatches, ended = _dispatches(connection, chosen)
    runs = connection.execute(select(RUN, *_conditions()).where(chosen).order_by(RUN.c.id)).all()
    return [
        _facts(
            run,
            claims.get(run.id),
            deaths.get(run.id, 0),
            dispatches.get(run.id, ()),
            ended.get(run.id, ()),
        )
        for run in runs
    ]


def _unsettled() -> ColumnElement[bool]:
    ended = (RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.SUPERSEDED)
    return or_(
        RUN.c.status.in_(LIVE),
        and_(RUN.c.status == RunStatus.COMPLETED, RUN.c.finalized_at.is_(None)),
        and_(RUN.c.status.in_(ended), RUN.c.settled_at.is_(None)),
    )


def _conditions() -> list[ColumnElement[Any]]:
    work = exists().where(TRIAL.c.run_id == RUN.c.id, TRIAL.c.stage.in_(OPEN))
    newer = RUN.alias("newer")
    later = or_(
        newer.c.created_at > RUN.c.created_at,
        and_(newer.c.created_at == RUN.c.created_at, newer.c.id > RUN.c.id),
    )
    superseding = (
        select(func.max(newer.c.id))
        .where(newer.c.supersede_key == RUN.c.supersede_key, newer.c.status.in_(LIVE), later)
        .scalar_subquery()
    )
    return [
        work.label("open"),
        work.where(TRIAL.c.claim.is_(None)).label("free"),
        superseding.label("superseded_by"),
    ]


def _claims(chosen: ColumnElement[bool]) -> Select[Any]:
    held = CLAIM.c.released_at.is_(None)
    expired = and_(held, CLAIM.c.lease_until < utc_now())
    return (
        select(
            CLAIM.c.run_id,
            func.count().label("claims"),
            func.sum(CLAIM.c.stages).label("stages"),
            func.max(CLAIM.c.token).label("token"),
            func.max(CLAIM.c.lease_until).label("lease"),
            func.sum(case((expired, 1), else_=0)).label("expired"),
            func.sum(case((and_(held, ~expired), 1), else_=0)).label("held"),
            func.sum(case((and_(held, ~expired, CLAIM.c.dispatch.is_(None)), 1), else_=0)).label(
                "own"
            ),
        )
        .join(RUN, RUN.c.id == CLAIM.c.run_id)
        .where(chosen)
        .group_by(CLAIM.c.run_id)
    )


def _deaths(chosen: ColumnElement[bool]) -> Select[Any]:
    good = CLAIM.alias("good")
    last_good = (
        select(func.coalesce(func.max(good.c.token), 0))
        .where(good.c.run_id == CLAIM.c.run_id, good.c.stages > 0)
        .scalar_subquery()
    )
    return (
        select(CLAIM.c.run_id, func.count().label("deaths"))
        .join(RUN, RUN.c.id == CLAIM.c.run_id)
        .where(chosen, CLAIM.c.reaped, CLAIM.c.stages == 0, CLAIM.c.token > last_good)
        .group_by(CLAIM.c.run_id)
    )


def _dispatches(
    connection: Connection, chosen: ColumnElement[bool]
) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """The dispatches of runs: those that are open with their claims, and those that ended."""
    held = and_(CLAIM.c.released_at.is_(None), CLAIM.c.lease_until >= utc_now())
    lapsed = or_(CLAIM.c.released_at.is_(None), CLAIM.c.reaped)
    statement = (
        select(
            DISPATCH,
            func.count(CLAIM.c.token).label("claims"),
            func.count(case((held, 1))).label("held"),
            func.coalesce(func.sum(CLAIM.c.stages), 0).label("stages"),
            func.max(case((lapsed, CLAIM.c.lease_until))).label("lease"),
            func.max(case((~CLAIM.c.reaped, CLAIM.c.released_at))).label("released"),
        )
        .join(RUN, RUN.c.id == DISPATCH.c.run_id)
        .outerjoin(CLAIM, CLAIM.c.dispatch == DISPATCH.c.id)
        .where(chosen)
        .group_by(*DISPATCH.c)
        .order_by(DISPATCH.c.id)
    )
    going: dict[str, list[Any]] = defaultdict(list)
    ended: dict[str, list[Any]] = defaultdict(list)
    for row in connection.execute(statement):
        (going if row.ended_at is None else ended)[row.run_id].append(row)
    return going, ended


def _facts(
    run: Any, claims: Any, deaths: int, dispatches: Sequence[Any], ended: Sequence[Any]
) -> RunFacts:
    everyone = [*dispatches, *ended]
    worked = max((d.id for d in everyone if d.stages), default=0)
    started = max((d.started_at for d in everyone if d.started_at is not None), default=None)
    marks = [run.calls, run.spent_nusd, started]
    if claims is not None:
        marks += [claims.stages, claims.token, claims.lease]
    return RunFacts(
        run_id=run.id,
        status=RunStatus(run.status),
        managed=run.managed,
        drivers=run.drivers,
        created_at=run.created_at,
        completed_at=run.completed_at,
        finalized_at=run.finalized_at,
        settled_at=run.settled_at,
        seen=run.seen,
        seen_at=run.seen_at,
        stalls=run.stalls,
        open=bool(run.open),
        free=bool(run.free),
        begun=claims is not None,
        expired=claims is not None and int(claims.expired) > 0,
        held=int(claims.held) if claims is not None else 0,
        drivers_seen=int(claims.own) if claims is not None else 0,
        deaths=deaths,
        signature="|".join(map(str, marks)),
        superseded_by=run.superseded_by,
        dispatches=tuple(map(_dispatch_facts, dispatches)),
        dispatched=len(everyone),
        failed=sum(d.id > worked for d in ended),
        last_requested=max((d.requested_at for d in everyone), default=None),
        last_message=next((d.message for d in reversed(ended) if d.message), ""),
    )


def _dispatch_facts(row: Any) -> DispatchFacts:
    now = utc_now()
    ends = [moment for moment in (row.started_at, row.released) if moment is not None]
    if row.lease is not None:
        ends.append(min(row.lease, now))
    return DispatchFacts(
        id=row.id,
        key=row.key,
        flow_run=row.flow_run,
        requested_at=row.requested_at,
        started_at=row.started_at,
        held=bool(row.held),
        claimed=bool(row.claims),
        lapsed=row.lease is not None and (row.released is None or row.lease > row.released),
        worked=row.stages > 0,
        last_seen=max(ends) if row.started_at is not None else None,
    )


# --- writes ---------------------------------------------------------------------


def lock_run(connection: Connection, run_id: str) -> None:
    """Hold a run's row until the transaction ends, so that one coordinator decides at a time.

    Waits for others for `LOCK_WAIT_MS` only, and raises then: one run must not hold a tick.
    """
    if connection.dialect.name != "sqlite":
        connection.execute(text(f"SET LOCAL lock_timeout = {LOCK_WAIT_MS}"))
    connection.execute(lock_rows(connection, select(RUN.c.id).where(RUN.c.id == run_id))).all()


def remember(connection: Connection, changed: Sequence[RunFacts]) -> None:
    """Keep what was seen of runs that have changed, and end their counts of stalls.

    It only matters for counting stalls, so a run that is locked is left to the next tick.
    """
    ids = [found.run_id for found in changed]
    statement = select(RUN.c.id).where(RUN.c.id.in_(ids)).order_by(RUN.c.id)
    if connection.dialect.name != "sqlite":
        statement = statement.with_for_update(skip_locked=True, key_share=True)
    free = set(connection.execute(statement).scalars())
    rows = [
        {"at_run": found.run_id, "to_seen": found.signature, "to_seen_at": utc_now()}
        for found in changed
        if found.run_id in free
    ]
    if rows:
        kept = {"seen": bindparam("to_seen"), "seen_at": bindparam("to_seen_at"), "stalls": 0}
        connection.execute(update(RUN).where(RUN.c.id == bindparam("at_run")).values(kept), rows)


def count_stall(connection: Connection, found: RunFacts) -> int:
    """Count that nothing had changed for long; gives the stalls in a row. The time of the
    last change stays as it is."""
    stalls = found.stalls + 1
    connection.execute(update(RUN).where(RUN.c.id == found.run_id).values(stalls=stalls))
    return stalls
