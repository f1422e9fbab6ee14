"""Reads for the dashboard: runs and trials in pages, one case in full, counts for charts.

Nothing here can write: `open_reader` makes every connection refuse to. Lists are paged in
SQL and their texts are cut there, so that no page grows with a run or with a case id.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, and_, event, func, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, OperationalError

from weirbox.domain.case import Case
from weirbox.domain.run import RunSummary
from weirbox.domain.score import JudgeCall, Proposal, Score, Value
from weirbox.domain.trace import Observation
from weirbox.domain.words import ScoreState
from weirbox.errors import NotPossible, ServiceError, UserError
from weirbox.store import queries
from weirbox.store.claims import CLAIM
from weirbox.store.engine import HEAD, Database
from weirbox.store.rows import column_value
from weirbox.store.types import utc_now
from weirbox.store.writes import EVENT, RUN, SCORE, TRIAL

TEXT_SHOWN = 200
"""Characters of a case id, category or message that a list shows."""

GROUPS_SHOWN = 50
"""Groups (errors, categories, values) that a chart or table lists, the largest first."""

EVENTS_SHOWN = 200
"""Entries of a run's timeline that are listed, the latest."""


# --- connecting -------------------------------------------------------------------


def open_reader(url: str) -> Database | None:
    """Connect without ever writing: not even a schema, or an empty file, is made.

    Returns:
        None where there is no store yet.

    Raises:
        UserError: When the URL is malformed.
        NotPossible: When the schema is of another version.
        ServiceError: When the database cannot be reached.
    """
    try:
        parsed = make_url(url)
        file = parsed.database if parsed.get_backend_name() == "sqlite" else None
        if file and not Path(file).exists():
            return None
        database = Database(url)
        event.listen(database.engine, "connect", _refuse_writes(database.engine))
        found = _schema(database)
    except ArgumentError as error:
        raise UserError(f"WEIRBOX_DATABASE_URL is not a database URL: {error}") from None
    except OperationalError as error:
        shown = make_url(url).render_as_string(hide_password=True)
        raise ServiceError(f"the database {shown} cannot be reached: {error.orig}") from error
    if found is None:
        database.close()
        return None
    if found != HEAD:
        database.close()
        raise NotPossible(
            f"the store's schema is {found!r} and this weirbox reads {HEAD!r}; "
            "any weirbox command of the newer version upgrades it, such as: weirbox list"
        )
    return database


def _refuse_writes(engine: Engine) -> Any:
    sqlite = engine.dialect.name == "sqlite"

    def prepare(raw: Any, _: Any) -> None:
        if sqlite:
            raw.execute("PRAGMA query_only=ON")
        else:
            raw.read_only = True

    return prepare


def _schema(database: Database) -> str | None:
    with database.read() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


# --- runs -------------------------------------------------------------------------


@dataclass(frozen=True)
class RunPage:
    """One page of runs, newest first.

    Attributes:
        total: Runs on all pages.
    """

    runs: tuple[RunSummary, ...]
    total: int


def run_page(
    connection: Connection, *, suite: str | None = None, page: int = 1, size: int = 25
) -> RunPage:
    """The runs of one page; pages are numbered from 1, and one past the end is empty."""
    fits = RUN.c.suite == suite if suite is not None else RUN.c.id.is_not(None)
    total = connection.execute(select(func.count()).where(fits)).scalar_one()
    statement = (
        select(RUN.c.id)
        .where(fits)
        .order_by(RUN.c.created_at.desc(), RUN.c.id.desc())
        .limit(size)
        .offset((page - 1) * size)
    )
    ids = list(connection.execute(statement).scalars())
    return RunPage(tuple(queries.summary(connection, run_id) for run_id in ids), total)


def suites(connection: Connection) -> list[str]:
    """The names of all suites that have a run."""
    return list(connection.execute(select(RUN.c.suite).distinct().order_by(RUN.c.suite)).scalars())


def finalized_at(connection: Connection, run_id: str) -> datetime | None:
    """When a run was finalized: what is known of it from then on stays the same."""
    return connection.execute(select(RUN.c.finalized_at).where(RUN.c.id == run_id)).scalar()


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
            func.max(TRIAL.c.executed_at), func.max(TRIAL.c.judged_at), func.max(TRIAL.c.exported_at)
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
    message = func.substr(func.coalesce(TRIAL.c.error_message, ""), 1, TEXT_SHOWN)
    count = func.count()
    statement = (
        select(TRIAL.c.error_stage, TRIAL.c.error_kind, message, count)
        .where(TRIAL.c.run_id == run_id, TRIAL.c.error_kind.is_not(None))
        .group_by(TRIAL.c.error_stage, TRIAL.c.error_kind, message)
        .order_by(count.desc(), message)
        .limit(GROUPS_SHOWN)
    )
    return [ErrorGroup(*row) for row in connection.execute(statement)]


@dataclass(frozen=True)
class CheckGroup:
    """Scores of one check in one state, for one reason."""

    check: str
    state: str
    reason: str
    scores: int


def unmeasured(connection: Connection, run_id: str) -> list[CheckGroup]:
    """Checks without a value: unscored, errored or skipped, the most frequent first."""
    count = func.count()
    statement = (
        select(SCORE.c.name, SCORE.c.state, func.coalesce(SCORE.c.reason, ""), count)
        .where(
            SCORE.c.run_id == run_id,
            SCORE.c.state.in_((ScoreState.UNSCORED, ScoreState.ERRORED, ScoreState.SKIPPED)),
        )
        .group_by(SCORE.c.name, SCORE.c.state, SCORE.c.reason)
        .order_by(count.desc(), SCORE.c.name)
        .limit(GROUPS_SHOWN)
    )
    return [CheckGroup(*row) for row in connection.execute(statement)]


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


def checks(connection: Connection, run_id: str) -> list[str]:
    """The names of the checks that have a score."""
    statement = select(SCORE.c.name).where(SCORE.c.run_id == run_id).distinct()
    return list(connection.execute(statement.order_by(SCORE.c.name)).scalars())


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
    width = (high - low) / bins
    place = func.floor((number - low) / width)
    counts: dict[int, int] = {}
    for index, count in connection.execute(
        select(place, func.count()).where(finite).group_by(place)
    ):
        index = min(int(index), bins - 1)  # the highest value belongs to the last range
        counts[index] = counts.get(index, 0) + count
    edges = [low + width * index for index in range(bins)] + [high]
    return [
        Slice(f"{start:.4g} to {end:.4g}", counts.get(index, 0), start, end)
        for index, (start, end) in enumerate(zip(edges, edges[1:], strict=False))
    ]


def _shown(value: Value | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
