"""Runs at a glance; every count is derived from rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, case, exists, func, select

from weirbox.domain.run import Alert, Dispositions, Progress, RunSummary, Verdicts
from weirbox.domain.words import RunStatus, ScoreState, TrialStage
from weirbox.store import aggregates
from weirbox.store.base import ALERT, CALL, CLAIM, DISPATCH, RESERVATION, RUN, SCORECARD, TRIAL
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


class _Counts(NamedTuple):
    progress: Progress = Progress()
    verdicts: Verdicts = Verdicts()
    dispositions: Dispositions = Dispositions()


@dataclass(frozen=True, kw_only=True)
class _Beside:
    """What is known of runs besides their own rows, by the run's id."""

    cards: dict[str, dict[str, Any]]
    counts: dict[str, _Counts]
    unpriced: dict[str, int]
    exports: dict[str, dict[str, dict[str, int]]]
    reserved: dict[str, int]
    waiting: dict[str, datetime]
    alerts: dict[str, list[Alert]]


def summaries(
    connection: Connection,
    *,
    suite: str | None = None,
    limit: int = 50,
    run_id: str | None = None,
    from_rows: bool = False,
) -> list[RunSummary]:
    """Runs at a glance, newest first.

    Args:
        from_rows: Whether to count the rows of finalized runs, too. Their scorecards have
            the same numbers, until a run is opened again and loses its stamp.
    """
    statement = select(RUN).order_by(RUN.c.created_at.desc(), RUN.c.id.desc()).limit(limit)
    if suite is not None:
        statement = statement.where(RUN.c.suite == suite)
    if run_id is not None:
        statement = statement.where(RUN.c.id == run_id)
    runs = connection.execute(statement).all()
    beside = _beside(connection, runs, from_rows=from_rows)
    return [_summary(run, beside) for run in runs]


def summary(connection: Connection, run_id: str, *, from_rows: bool = False) -> RunSummary:
    """One run at a glance; see `summaries`."""
    return summaries(connection, run_id=run_id, from_rows=from_rows)[0]


def _beside(connection: Connection, runs: Sequence[Any], *, from_rows: bool) -> _Beside:
    ids = [run.id for run in runs]
    cards = _pairs(
        connection, select(SCORECARD.c.run_id, SCORECARD.c.body).where(SCORECARD.c.run_id.in_(ids))
    )
    finalized = {run.id for run in runs if run.finalized_at is not None and not from_rows}
    known = {run_id: card for run_id, card in cards.items() if run_id in finalized}
    uncounted = [
        run.id for run in runs if run.id not in known or known[run.id]["cost"]["calls"] != run.calls
    ]
    settled = [run.id for run in runs if run.settled_at is not None]
    return _Beside(
        cards=cards,
        counts=_counts(connection, [run_id for run_id in ids if run_id not in known])
        | {run_id: _counts_of_card(card) for run_id, card in known.items()},
        unpriced={run_id: card["cost"]["unpriced_calls"] for run_id, card in known.items()}
        | _unpriced(connection, uncounted),
        exports={run_id: card["exports"] for run_id, card in known.items()}
        | aggregates.exports_of(connection, settled),
        reserved=_pairs(
            connection,
            select(RESERVATION.c.run_id, func.sum(RESERVATION.c.nusd))
            .where(RESERVATION.c.run_id.in_(ids))
            .group_by(RESERVATION.c.run_id),
        ),
        waiting=_pairs(connection, _waiting(ids)),
        alerts=_alerts(connection, ids),
    )


def _pairs(connection: Connection, statement: Select[Any]) -> dict[str, Any]:
    return {row[0]: row[1] for row in connection.execute(statement)}


def _counts(connection: Connection, ids: Sequence[str]) -> dict[str, _Counts]:
    statement = (
        select(TRIAL.c.run_id, *_progress_columns())
        .where(TRIAL.c.run_id.in_(ids))
        .group_by(TRIAL.c.run_id)
    )
    found = connection.execute(statement).all() if ids else ()
    return {row.run_id: _counts_of_row(row) for row in found}


def _counts_of_row(row: Any) -> _Counts:
    number = row._mapping
    return _Counts(
        _progress(row),
        Verdicts(
            passed=int(number["v_pass"]), failed=int(number["v_fail"]), none=int(number["v_none"])
        ),
        Dispositions(**{name: int(number[f"d_{name}"]) for name in Dispositions.model_fields}),
    )


def _counts_of_card(card: dict[str, Any]) -> _Counts:
    verdicts = card["verdicts"]
    return _Counts(
        Progress(**card["progress"]),
        Verdicts(passed=verdicts["pass"], failed=verdicts["fail"], none=verdicts["none"]),
        Dispositions(**card["dispositions"]),
    )


def _unpriced(connection: Connection, ids: Sequence[str]) -> dict[str, int]:
    statement = (
        select(CALL.c.run_id, func.count())
        .where(CALL.c.run_id.in_(ids), CALL.c.cost_nusd.is_(None))
        .group_by(CALL.c.run_id)
    )
    return dict.fromkeys(ids, 0) | (_pairs(connection, statement) if ids else {})


def _alerts(connection: Connection, ids: Sequence[str]) -> dict[str, list[Alert]]:
    statement = select(ALERT).where(ALERT.c.run_id.in_(ids)).order_by(ALERT.c.at, ALERT.c.kind)
    found: dict[str, list[Alert]] = {}
    for row in connection.execute(statement):
        alert = Alert(kind=row.kind, message=row.message, value=row.value, threshold=row.threshold)
        found.setdefault(row.run_id, []).append(alert)
    return found


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


def _summary(run: Any, beside: _Beside) -> RunSummary:
    counts = beside.counts.get(run.id, _Counts())
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
        waiting_since=beside.waiting.get(run.id),
        stalls=run.stalls,
        managed=run.managed,
        origin=run.origin,
        parent=run.parent,
        dataset=run.dataset_name,
        dataset_digest=run.dataset_digest,
        progress=counts.progress,
        verdicts=counts.verdicts,
        dispositions=counts.dispositions,
        cost_usd=to_usd(run.spent_nusd) or 0.0,
        calls=run.calls,
        unpriced_calls=beside.unpriced.get(run.id, 0),
        budget_usd=to_usd(run.budget_nusd),
        budget_calls=run.budget_calls,
        reserved_usd=to_usd(int(beside.reserved.get(run.id, 0))) or 0.0,
        exports=beside.exports.get(run.id, {}),
        alerts=tuple(beside.alerts.get(run.id, ())),
        metrics=beside.cards.get(run.id, {}).get("metrics", {}),
    )
