"""Runs at a glance; every count is derived from rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, case, exists, func, select

from weirbox.domain.run import Dispositions, Progress, RunSummary, Verdicts
from weirbox.domain.words import RunStatus, ScoreState, TrialStage
from weirbox.store.base import CALL, CLAIM, DISPATCH, RESERVATION, RUN, SCORECARD, TRIAL
from weirbox.store.types import to_usd


def _count(condition: Any) -> Any:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


def _progress_columns() -> list[Any]:
    columns = [
        func.count().label("planned"),
        _count(TRIAL.c.executed_at.is_not(None)).label("executed"),
        _count(TRIAL.c.judged_at.is_not(None)).label("judged"),
        _count(TRIAL.c.stage == TrialStage.DONE).label("exported"),
        _count(TRIAL.c.cached).label("cached"),
    ]
    columns += [_count(TRIAL.c.state == state).label(str(state)) for state in ScoreState]
    judged = TRIAL.c.judged_at.is_not(None)
    columns += [_count(judged & (TRIAL.c.verdict == v)).label(f"v_{v}") for v in ("pass", "fail")]
    columns.append(_count(judged & (TRIAL.c.verdict == "none")).label("v_none"))
    columns += [
        _count(TRIAL.c.disposition == d).label(f"d_{d}") for d in ("clean", "review", "quarantined")
    ]
    return columns


def progress(connection: Connection, run_id: str) -> Progress:
    """A run's counts."""
    return _progress(
        connection.execute(select(*_progress_columns()).where(TRIAL.c.run_id == run_id)).one()
    )


def progress_of(connection: Connection, run_ids: Sequence[str]) -> dict[str, Progress]:
    """The counts of many runs."""
    statement = (
        select(TRIAL.c.run_id, *_progress_columns())
        .where(TRIAL.c.run_id.in_(run_ids))
        .group_by(TRIAL.c.run_id)
    )
    return {row.run_id: _progress(row) for row in connection.execute(statement)}


def _progress(row: Any) -> Progress:
    fields = row._mapping
    return Progress(**{name: int(fields[name]) for name in Progress.model_fields})


def summaries(
    connection: Connection, *, suite: str | None = None, limit: int = 50, run_id: str | None = None
) -> list[RunSummary]:
    """Runs at a glance, newest first."""
    statement = select(RUN).order_by(RUN.c.created_at.desc(), RUN.c.id.desc()).limit(limit)
    if suite is not None:
        statement = statement.where(RUN.c.suite == suite)
    if run_id is not None:
        statement = statement.where(RUN.c.id == run_id)
    runs = connection.execute(statement).all()
    ids = [run.id for run in runs]
    counts = _by_run(
        connection,
        select(TRIAL.c.run_id, *_progress_columns())
        .where(TRIAL.c.run_id.in_(ids))
        .group_by(TRIAL.c.run_id),
    )
    held = _by_run(
        connection,
        select(RESERVATION.c.run_id, func.sum(RESERVATION.c.nusd).label("nusd"))
        .where(RESERVATION.c.run_id.in_(ids))
        .group_by(RESERVATION.c.run_id),
    )
    unpriced = _by_run(
        connection,
        select(CALL.c.run_id, func.count().label("calls"))
        .where(CALL.c.run_id.in_(ids), CALL.c.cost_nusd.is_(None))
        .group_by(CALL.c.run_id),
    )
    waiting = _by_run(connection, _waiting(ids))
    cards = _by_run(connection, select(SCORECARD).where(SCORECARD.c.run_id.in_(ids)))
    return [
        _summary(
            run,
            counts.get(run.id),
            held.get(run.id),
            unpriced.get(run.id),
            cards.get(run.id),
            waiting.get(run.id),
        )
        for run in runs
    ]


def summary(connection: Connection, run_id: str) -> RunSummary:
    """One run at a glance."""
    return summaries(connection, run_id=run_id)[0]


def _by_run(connection: Connection, statement: Select[Any]) -> dict[str, Any]:
    return {row.run_id: row for row in connection.execute(statement)}


def _waiting(ids: Sequence[str]) -> Select[Any]:
    """Live runs that nobody drives, while drivers that were asked for have not begun."""
    driven = exists().where(CLAIM.c.run_id == RUN.c.id, CLAIM.c.released_at.is_(None))
    return (
        select(DISPATCH.c.run_id, func.min(DISPATCH.c.requested_at).label("since"))
        .join(RUN, RUN.c.id == DISPATCH.c.run_id)
        .where(
            RUN.c.id.in_(ids),
            RUN.c.status.in_((RunStatus.PENDING, RunStatus.RUNNING)),
            DISPATCH.c.started_at.is_(None),
            DISPATCH.c.ended_at.is_(None),
            ~driven,
        )
        .group_by(DISPATCH.c.run_id)
    )


def _summary(
    run: Any, counts: Any, held: Any, unpriced: Any, card: Any, waiting: Any
) -> RunSummary:
    number = counts._mapping if counts is not None else {}
    metrics = card.body.get("metrics", {}) if card is not None else {}
    status = RunStatus(run.status)
    return RunSummary(
        run_id=run.id,
        suite=run.suite,
        kind=run.kind,
        status=status,
        reason=run.reason,
        finalizing=status is RunStatus.COMPLETED and run.finalized_at is None,
        created_at=run.created_at,
        started_at=run.started_at,
        completed_at=run.completed_at,
        finalized_at=run.finalized_at,
        settled_at=run.settled_at,
        waiting_since=waiting.since if waiting is not None else None,
        stalls=run.stalls,
        managed=run.managed,
        origin=run.origin,
        parent=run.parent,
        dataset=run.dataset_name,
        dataset_digest=run.dataset_digest,
        progress=_progress(counts) if counts is not None else Progress(),
        verdicts=Verdicts(
            passed=int(number.get("v_pass", 0)),
            failed=int(number.get("v_fail", 0)),
            none=int(number.get("v_none", 0)),
        ),
        dispositions=Dispositions(
            **{name: int(number.get(f"d_{name}", 0)) for name in Dispositions.model_fields}
        ),
        cost_usd=to_usd(run.spent_nusd) or 0.0,
        calls=run.calls,
        unpriced_calls=unpriced.calls if unpriced is not None else 0,
        budget_usd=to_usd(run.budget_nusd),
        budget_calls=run.budget_calls,
        reserved_usd=to_usd(int(held.nusd)) or 0.0 if held is not None else 0.0,
        metrics=metrics,
    )
