"""Alerts: what they are decided by, and that each is written and told once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, case, exists, func, or_, select, update

from weirbox.domain.run import Alert
from weirbox.domain.words import AlertKind, Disposition, Reason, RunStatus, ScoreState, Source
from weirbox.store.base import ALERT, RUN, SCORE, SCORECARD, TRIAL, add_new
from weirbox.store.types import to_usd, utc_now
from weirbox.store.writes import note

PROVIDER_FAILED = (Reason.PROVIDER_ERROR, Reason.TIMEOUT, Reason.QUOTA)
"""Why a judge's score is missing where its provider is to blame."""


class PassRate(NamedTuple):
    """How many of the trials with a verdict passed, and whose they are."""

    run_id: str
    passed: int
    of: int


@dataclass(frozen=True, kw_only=True)
class AlertFacts:
    """What the alerts of a run are decided by.

    Attributes:
        asked: How many scores judges were asked for.
        failed: For how many of them the judges' provider failed, retries included: most
            calls that fail cost nothing, and leave no trace but this.
        unreached: Whether scores are missing that the budget did not reach.
        stalls: How many times in a row nothing had changed.
        pass_rate: Of a run that has completed.
        earlier: The newest earlier run of the same suite and kind that can be compared.
    """

    judged: int
    review: int
    quarantined: int
    asked: int
    failed: int
    unreached: bool
    spent_usd: float
    calls: int
    budget_usd: float | None
    budget_calls: int | None
    stalls: int
    pass_rate: PassRate | None = None
    earlier: PassRate | None = None


def alert_facts(
    connection: Connection, run_id: str, *, card: dict[str, Any] | None = None
) -> AlertFacts:
    """Read what the alerts of a run are decided by.

    Costs a pass over the run's trials and, in an index, its scores.

    Args:
        card: The run's scorecard, once it has completed; without one it is not compared
            with an earlier run.
    """
    run = connection.execute(select(RUN).where(RUN.c.id == run_id)).one()
    judged = connection.execute(
        select(
            func.count().label("all"),
            _count(TRIAL.c.disposition == Disposition.REVIEW).label("review"),
            _count(TRIAL.c.disposition == Disposition.QUARANTINED).label("quarantined"),
        ).where(TRIAL.c.run_id == run_id, TRIAL.c.judged_at.is_not(None))
    ).one()
    failed, asked = _provider_failures(connection, run_id)
    return AlertFacts(
        judged=judged.all,
        review=int(judged.review),
        quarantined=int(judged.quarantined),
        asked=asked,
        failed=failed,
        unreached=_unreached(connection, run),
        spent_usd=to_usd(run.spent_nusd) or 0.0,
        calls=run.calls,
        budget_usd=to_usd(run.budget_nusd),
        budget_calls=run.budget_calls,
        stalls=run.stalls,
        pass_rate=None if card is None else _pass_rate(run_id, card),
        earlier=None if card is None else _earlier(connection, run),
    )


def _count(condition: Any) -> Any:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


def _provider_failures(connection: Connection, run_id: str) -> tuple[int, int]:
    """How many scores of judges their provider failed, and of how many; the latter is not
    counted where there is none."""
    judges = SCORE.c.run_id == run_id, SCORE.c.source == Source.JUDGE
    missing = SCORE.c.state.in_((ScoreState.ERRORED, ScoreState.UNSCORED))
    failed = select(func.count()).where(*judges, missing, SCORE.c.reason.in_(PROVIDER_FAILED))
    lost = int(connection.execute(failed).scalar_one())
    if not lost:
        return 0, 0
    asked = select(func.count()).where(*judges, SCORE.c.state != ScoreState.SKIPPED)
    return lost, int(connection.execute(asked).scalar_one())


def _unreached(connection: Connection, run: Any) -> bool:
    if run.budget_nusd is None and run.budget_calls is None:
        return False
    missing = exists().where(
        SCORE.c.run_id == run.id,
        SCORE.c.state == ScoreState.UNSCORED,
        SCORE.c.reason == Reason.BUDGET,
    )
    return bool(connection.execute(select(missing)).scalar_one())


def _earlier(connection: Connection, run: Any) -> PassRate | None:
    """The newest run that may be compared with: only a completed one, never one that was
    superseded."""
    before = or_(
        RUN.c.created_at < run.created_at,
        and_(RUN.c.created_at == run.created_at, RUN.c.id < run.id),
    )
    statement = (
        select(RUN.c.id, SCORECARD.c.body)
        .join(SCORECARD, SCORECARD.c.run_id == RUN.c.id)
        .where(RUN.c.suite == run.suite, RUN.c.kind == run.kind, RUN.c.planned > 0, before)
        .where(RUN.c.status == RunStatus.COMPLETED, RUN.c.finalized_at.is_not(None))
        .order_by(RUN.c.created_at.desc(), RUN.c.id.desc())
        .limit(1)
    )
    row = connection.execute(statement).first()
    return None if row is None else _pass_rate(row.id, row.body)


def _pass_rate(run_id: str, card: dict[str, Any]) -> PassRate | None:
    rate = card["pass_rate"]
    return None if rate is None else PassRate(run_id, rate["passed"], rate["of"])


# --- written once, told once --------------------------------------------------------


def raise_alerts(connection: Connection, run_id: str, alerts: Sequence[Alert]) -> list[Alert]:
    """Write alerts, and note them on the timeline: once for each run and kind.

    Safe to run twice and at the same time: what is there already stays as it was.

    Returns:
        Those that were not there yet.
    """
    new = [
        alert
        for alert in alerts
        if add_new(connection, ALERT, {"run_id": run_id, "at": utc_now(), **alert.model_dump()})
    ]
    for alert in new:
        note(connection, run_id, kind="alert", message=alert.message)
    return new


class AlertRow(NamedTuple):
    """An alert, with what a person needs to know of its run."""

    run_id: str
    suite: str
    run_kind: str
    kind: AlertKind
    message: str
    value: float | None
    threshold: float | None
    at: datetime


def unsent(connection: Connection, limit: int = 100) -> list[AlertRow]:
    """Alerts that the engine has not taken yet, oldest first."""
    statement = (
        select(
            *(ALERT.c.run_id, RUN.c.suite, RUN.c.kind.label("run_kind"), ALERT.c.kind),
            *(ALERT.c.message, ALERT.c.value, ALERT.c.threshold, ALERT.c.at),
        )
        .join(RUN, RUN.c.id == ALERT.c.run_id)
        .where(ALERT.c.emitted_at.is_(None))
        .order_by(ALERT.c.at, ALERT.c.run_id, ALERT.c.kind)
        .limit(limit)
    )
    return [
        AlertRow(**{**row, "kind": AlertKind(row["kind"])})
        for row in connection.execute(statement).mappings()
    ]


def sent(connection: Connection, run_id: str, kind: AlertKind) -> bool:
    """Note that the engine has taken an alert; safe to run twice: the first time stands."""
    changed = connection.execute(
        update(ALERT)
        .where(ALERT.c.run_id == run_id, ALERT.c.kind == kind, ALERT.c.emitted_at.is_(None))
        .values(emitted_at=utc_now())
    ).rowcount
    return bool(changed)
