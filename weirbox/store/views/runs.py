"""Runs in pages, and what one run's trials come to in groups and distributions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, case, func, select

from weirbox.domain.score import Value
from weirbox.domain.words import ScoreState
from weirbox.store import aggregates
from weirbox.store.base import CLAIM, EVENT, RUN, SCORE, TRIAL
from weirbox.store.rows import column_value
from weirbox.store.types import utc_now
from weirbox.store.views import EVENTS_SHOWN, GROUPS_SHOWN, TEXT_SHOWN


class RunKey(NamedTuple):
    """A run, and when it was finalized: what is known of it from then on stays the same."""

    run_id: str
    finalized_at: datetime | None


def count_runs(connection: Connection, *, suite: str | None = None) -> int:
    """How many runs there are, of one suite or of all."""
    statement = select(func.count()).select_from(RUN)
    if suite is not None:
        statement = statement.where(RUN.c.suite == suite)
    return int(connection.execute(statement).scalar_one())


def run_page(
    connection: Connection, *, suite: str | None = None, page: int = 1, size: int = 25
) -> list[RunKey]:
    """The runs of one page, newest first; pages are numbered from 1."""
    statement = select(RUN.c.id, RUN.c.finalized_at)
    if suite is not None:
        statement = statement.where(RUN.c.suite == suite)
    statement = statement.order_by(RUN.c.created_at.desc(), RUN.c.id.desc())
    rows = connection.execute(statement.limit(size).offset((page - 1) * size))
    return [RunKey(*row) for row in rows]


def run_key(connection: Connection, run_id: str) -> RunKey | None:
    """A run by its full id, or None."""
    row = connection.execute(select(RUN.c.id, RUN.c.finalized_at).where(RUN.c.id == run_id)).first()
    return RunKey(*row) if row is not None else None


def suites(connection: Connection) -> list[str]:
    """The names of all suites that have a run."""
    return list(connection.execute(select(RUN.c.suite).distinct().order_by(RUN.c.suite)).scalars())


@dataclass(frozen=True)
class Activity:
    """Signs of life of a run.

    Attributes:
        drivers: How many hold a lease that has not run out.
        last_row_at: When a trial last ended a stage; None before the first.
    """

    drivers: int
    last_row_at: datetime | None


def activity(connection: Connection, run_id: str) -> Activity:
    """Who works at a run, and when anything last changed."""
    drivers = connection.execute(
        select(func.count()).where(
            CLAIM.c.run_id == run_id, CLAIM.c.released_at.is_(None), CLAIM.c.lease_until > utc_now()
        )
    ).scalar_one()
    ends = connection.execute(
        select(
            func.max(TRIAL.c.executed_at),
            func.max(TRIAL.c.judged_at),
            func.max(TRIAL.c.exported_at),
        ).where(TRIAL.c.run_id == run_id)
    ).one()
    return Activity(drivers, max((end for end in ends if end is not None), default=None))


@dataclass(frozen=True)
class Moment:
    """One entry of a run's timeline."""

    at: datetime
    kind: str
    message: str


def timeline(connection: Connection, run_id: str) -> list[Moment]:
    """The latest entries of a run's timeline, oldest first."""
    statement = (
        select(EVENT.c.at, EVENT.c.kind, EVENT.c.message)
        .where(EVENT.c.run_id == run_id)
        .order_by(EVENT.c.id.desc())
        .limit(EVENTS_SHOWN)
    )
    return [Moment(*row) for row in reversed(connection.execute(statement).all())]


# --- groups and distributions --------------------------------------------------------


@dataclass(frozen=True)
class ErrorGroup:
    """Trials that failed at one stage in one way.

    Attributes:
        message: Its beginning.
    """

    stage: str
    kind: str
    message: str
    trials: int


def error_groups(connection: Connection, run_id: str) -> list[ErrorGroup]:
    """A run's stage errors, the most frequent first."""
    return [ErrorGroup(**group) for group in aggregates.errors(connection, run_id)]


@dataclass(frozen=True)
class CheckGroup:
    """Scores of one check in one state, for one reason.

    Attributes:
        message: The beginning of what was said about it.
    """

    name: str
    state: str
    reason: str
    message: str
    scores: int


def unmeasured(connection: Connection, run_id: str) -> list[CheckGroup]:
    """Checks without a value: unscored, errored or skipped, the most frequent first."""
    states = (ScoreState.UNSCORED, ScoreState.ERRORED, ScoreState.SKIPPED)
    groups = aggregates.unmeasured(connection, run_id, states=states, limit=GROUPS_SHOWN)
    return [CheckGroup(**group) for group in groups]


@dataclass(frozen=True)
class Slice:
    """One bar of a distribution.

    Attributes:
        label: A value, or the range of a number from `low` up to `high`.
    """

    label: str
    count: int
    low: float | None = None
    high: float | None = None


def verdicts_by_category(connection: Connection, run_id: str) -> list[tuple[str, str, int]]:
    """(category, verdict, judged trials); the category is empty where a case has none."""
    name = func.substr(func.coalesce(TRIAL.c.category, ""), 1, TEXT_SHOWN)
    statement = (
        select(name, TRIAL.c.verdict, func.count())
        .where(TRIAL.c.run_id == run_id, TRIAL.c.judged_at.is_not(None))
        .group_by(name, TRIAL.c.verdict)
        .order_by(func.count().desc(), name)
        .limit(3 * GROUPS_SHOWN)
    )
    return [(row[0], row[1], row[2]) for row in connection.execute(statement)]


def distribution(connection: Connection, run_id: str, check: str, *, bins: int = 20) -> list[Slice]:
    """How a check's values are spread: ranges of numbers, else the most frequent values."""
    scored = and_(
        SCORE.c.run_id == run_id, SCORE.c.name == check, SCORE.c.state == ScoreState.SCORED
    )
    kinds = set(connection.execute(select(SCORE.c.value_kind).where(scored).distinct()).scalars())
    if kinds and kinds <= {"int", "float"}:
        return _ranges(connection, scored, bins)
    shown = func.substr(SCORE.c.value_text, 1, TEXT_SHOWN)
    statement = (
        select(SCORE.c.value_kind, SCORE.c.value_number, shown, func.count())
        .where(scored)
        .group_by(SCORE.c.value_kind, SCORE.c.value_number, shown)
        .order_by(func.count().desc())
        .limit(GROUPS_SHOWN)
    )
    return [
        Slice(_shown(column_value(kind, number, value)), count)
        for kind, number, value, count in connection.execute(statement)
    ]


def _ranges(connection: Connection, scored: Any, bins: int) -> list[Slice]:
    number = SCORE.c.value_number
    finite = and_(scored, number > -math.inf, number < math.inf)
    low, high, distinct = connection.execute(
        select(func.min(number), func.max(number), func.count(number.distinct())).where(finite)
    ).one()
    if low is None:
        return []
    if distinct <= bins:
        found = connection.execute(
            select(number, func.count()).where(finite).group_by(number).order_by(number)
        )
        return [Slice(f"{value:.6g}", count, value, value) for value, count in found]
    shares = [index / bins for index in range(1, bins)]
    inner = [low * (1 - share) + high * share for share in shares]  # high - low may overflow
    edges = [low, *inner, high]
    starts, ends = edges[:-1], edges[1:]
    within = [and_(number >= start, number < end) for start, end in zip(starts, ends, strict=True)]
    within[-1] = number >= starts[-1]  # the highest value belongs to the last range
    sums = [func.sum(case((condition, 1), else_=0)) for condition in within]
    counts = connection.execute(select(*sums).where(finite)).one()
    return [
        Slice(f"{start:.4g} to {end:.4g}", int(count), start, end)
        for start, end, count in zip(starts, ends, counts, strict=True)
    ]


def _shown(value: Value | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
