"""Aggregates over a run's rows, grouped in SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Integer, Numeric, and_, case, cast, delete, func, select, update

from weirbox.domain.words import ExportStatus, ScoreState, Stage
from weirbox.store.base import (
    CALL,
    EXPORT,
    METRIC,
    RUN,
    SCORE,
    SCORE_TEXT,
    SCORECARD,
    TRIAL,
    add,
)
from weirbox.store.rows import column_value
from weirbox.store.types import to_usd, utc_now

GROUPS_LISTED = 20
"""Groups of errors, and of scores without a value, that a scorecard lists, the largest first."""

MESSAGE_SHOWN = 300
"""Characters of a message that tell one group from another."""


def grouped_scores(connection: Connection, run_id: str) -> Iterator[tuple[str, Any]]:
    """Equal scores with their number, as `(name, (state, reason, value, passed, None, n))`.

    Always in one order: where there are too many values to keep each, what is made of them
    depends on it.
    """
    columns = (
        *(SCORE.c.name, SCORE.c.state, SCORE.c.reason, SCORE.c.value_kind),
        *(SCORE.c.value_number, SCORE.c.value_text, SCORE.c.passed),
    )
    statement = (
        select(*columns, func.count().label("n"))
        .where(SCORE.c.run_id == run_id)
        .group_by(*columns)
        .order_by(*columns)
        .execution_options(yield_per=1000)
    )
    for name, state, reason, kind, number, words, passed, n in connection.execute(statement):
        yield name, (state, reason, column_value(kind, number, words), passed, None, n)


SPANS = {
    Stage.EXECUTE: (TRIAL.c.execute_started_at, TRIAL.c.executed_at),
    Stage.JUDGE: (TRIAL.c.judge_started_at, TRIAL.c.judged_at),
    Stage.EXPORT: (TRIAL.c.export_started_at, TRIAL.c.exported_at),
}
"""Between which moments of a trial its stages lie."""


def durations(connection: Connection, run_id: str) -> Iterator[Sequence[Sequence[int | None]]]:
    """How many milliseconds trials took: for each stage of `SPANS`, and in compute.

    In batches, and in the order of the plan, since what is made of very many of them
    depends on it.
    """
    sqlite = connection.dialect.name == "sqlite"
    took = [_milliseconds(*ends, sqlite=sqlite) for ends in SPANS.values()]
    took.append(cast(func.round(cast(TRIAL.c.compute_s * 1000, Numeric)), Integer))
    statement = select(*took).where(TRIAL.c.run_id == run_id).order_by(TRIAL.c.seq)
    found = connection.execute(statement.execution_options(yield_per=1000))
    yield from (list(zip(*batch, strict=True)) for batch in found.partitions())


def _milliseconds(begin: Any, end: Any, *, sqlite: bool) -> Any:
    """The time from one column to another, rounded; SQLite keeps moments as text, and its
    own arithmetic of moments has no microseconds."""
    if not sqlite:
        return cast(func.round(func.extract("epoch", end - begin) * 1000), Integer)
    days = func.julianday(func.substr(end, 1, 19)) - func.julianday(func.substr(begin, 1, 19))
    microseconds = _fraction(end) - _fraction(begin)
    return cast(func.round(func.round(days * 86_400) * 1000 + microseconds / 1000.0), Integer)


def _fraction(column: Any) -> Any:
    return cast(func.substr(column, 21, 6), Integer)


def costs(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    """What judges cost, by tier, provider and model."""
    statement = (
        select(
            CALL.c.tier,
            CALL.c.provider,
            CALL.c.model,
            func.count().label("calls"),
            func.sum(case((CALL.c.cached, 1), else_=0)).label("cached"),
            func.sum(case((CALL.c.ok, 0), else_=1)).label("failed"),
            func.sum(case((CALL.c.cost_nusd.is_(None), 1), else_=0)).label("unpriced"),
            func.sum(CALL.c.input_tokens).label("input_tokens"),
            func.sum(CALL.c.output_tokens).label("output_tokens"),
            func.coalesce(func.sum(CALL.c.cost_nusd), 0).label("nusd"),
        )
        .where(CALL.c.run_id == run_id)
        .group_by(CALL.c.tier, CALL.c.provider, CALL.c.model)
        .order_by(CALL.c.tier, CALL.c.provider, CALL.c.model)
    )
    return [
        {
            "tier": row.tier,
            "provider": row.provider,
            "model": row.model,
            "calls": row.calls,
            "cached": int(row.cached),
            "failed": int(row.failed),
            "unpriced": int(row.unpriced),
            "input_tokens": _whole(row.input_tokens),
            "output_tokens": _whole(row.output_tokens),
            "usd": to_usd(int(row.nusd)),
        }
        for row in connection.execute(statement)
    ]


def _whole(number: Any) -> int | None:
    return None if number is None else int(number)


def categories(connection: Connection, run_id: str) -> dict[str, dict[str, int]]:
    """Verdict counts by category."""
    statement = (
        select(TRIAL.c.category, TRIAL.c.verdict, func.count().label("n"))
        .where(TRIAL.c.run_id == run_id, TRIAL.c.category.is_not(None))
        .group_by(TRIAL.c.category, TRIAL.c.verdict)
        .order_by(TRIAL.c.category)
    )
    found: dict[str, dict[str, int]] = {}
    for row in connection.execute(statement):
        found.setdefault(row.category, {"pass": 0, "fail": 0, "none": 0})[row.verdict] = row.n
    return found


def errors(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    """The most frequent errors, by stage, kind and message."""
    message = func.substr(TRIAL.c.error_message, 1, MESSAGE_SHOWN)
    statement = (
        select(
            TRIAL.c.error_stage,
            TRIAL.c.error_kind,
            message.label("message"),
            func.count().label("n"),
        )
        .where(TRIAL.c.run_id == run_id, TRIAL.c.error_kind.is_not(None))
        .group_by(TRIAL.c.error_stage, TRIAL.c.error_kind, message)
        .order_by(func.count().desc(), message)
        .limit(GROUPS_LISTED)
    )
    return [
        {"stage": row.error_stage, "kind": row.error_kind, "message": row.message, "trials": row.n}
        for row in connection.execute(statement)
    ]


def unmeasured(
    connection: Connection,
    run_id: str,
    *,
    states: Sequence[ScoreState] = (ScoreState.ERRORED, ScoreState.UNSCORED),
    limit: int = GROUPS_LISTED,
) -> list[dict[str, Any]]:
    """The most frequent scores without a value, by check, state, reason and message."""
    reason = func.coalesce(SCORE.c.reason, "")
    message = func.substr(func.coalesce(SCORE_TEXT.c.rationale, ""), 1, MESSAGE_SHOWN)
    of_score = and_(
        SCORE_TEXT.c.run_id == SCORE.c.run_id,
        SCORE_TEXT.c.seq == SCORE.c.seq,
        SCORE_TEXT.c.name == SCORE.c.name,
    )
    statement = (
        select(
            SCORE.c.name,
            SCORE.c.state,
            reason.label("reason"),
            message.label("message"),
            func.count().label("scores"),
        )
        .select_from(SCORE.outerjoin(SCORE_TEXT, of_score))
        .where(SCORE.c.run_id == run_id, SCORE.c.state.in_(states))
        .group_by(SCORE.c.name, SCORE.c.state, reason, message)
        .order_by(func.count().desc(), SCORE.c.name, SCORE.c.state, reason, message)
        .limit(limit)
    )
    return [dict(row) for row in connection.execute(statement).mappings()]


def exports(connection: Connection, run_id: str) -> dict[str, dict[str, int]]:
    """Export counts by sink and status."""
    return exports_of(connection, [run_id])[run_id]


def exports_of(
    connection: Connection, run_ids: Sequence[str]
) -> dict[str, dict[str, dict[str, int]]]:
    """Export counts of many runs, by sink and status."""
    columns = EXPORT.c.run_id, EXPORT.c.sink, EXPORT.c.status
    statement = (
        select(*columns, func.count().label("n"))
        .where(EXPORT.c.run_id.in_(run_ids))
        .group_by(*columns)
        .order_by(*columns)
    )
    found: dict[str, dict[str, dict[str, int]]] = {run_id: {} for run_id in run_ids}
    for row in connection.execute(statement) if run_ids else ():
        found[row.run_id].setdefault(row.sink, {})[row.status] = row.n
    return {run_id: dict(sorted(sinks.items())) for run_id, sinks in found.items()}


def export_errors(connection: Connection, run_id: str) -> dict[str, str]:
    """The first error of each sink that took no trial at all."""
    of_run = EXPORT.c.run_id == run_id
    some = select(EXPORT.c.sink).where(of_run, EXPORT.c.status != ExportStatus.FAILED)
    statement = (
        select(EXPORT.c.sink, EXPORT.c.message)
        .where(of_run, EXPORT.c.sink.not_in(some))
        .order_by(EXPORT.c.at.desc(), EXPORT.c.seq.desc())
    )
    return {row.sink: row.message for row in connection.execute(statement)}


def save_scorecard(
    connection: Connection, run_id: str, body: dict[str, Any], metrics: list[dict[str, Any]]
) -> bool:
    """Replace a run's aggregates, and stamp it where it has no stamp; safe to run twice.

    Args:
        metrics: Rows of the metric table, without the run.

    Returns:
        Whether this call stamped the run.
    """
    now = utc_now()
    add(connection, SCORECARD, [{"run_id": run_id, "body": body, "at": now}], replace=True)
    connection.execute(delete(METRIC).where(METRIC.c.run_id == run_id))
    add(connection, METRIC, [{"run_id": run_id, **row} for row in metrics])
    stamped = connection.execute(
        update(RUN).where(RUN.c.id == run_id, RUN.c.finalized_at.is_(None)).values(finalized_at=now)
    ).rowcount
    return bool(stamped)
