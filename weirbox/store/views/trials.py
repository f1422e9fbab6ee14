"""The trials of a run in pages, and one trial in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, case, func, select

from weirbox.domain.case import Case
from weirbox.domain.score import JudgeCall, Proposal, Score, Value
from weirbox.domain.trace import Observation
from weirbox.domain.words import (
    Disposition,
    ErrorKind,
    ExportStatus,
    ScoreState,
    Verdict,
)
from weirbox.store import queries
from weirbox.store.base import SCORE, TRIAL
from weirbox.store.rows import column_value
from weirbox.store.views import GROUPS_SHOWN, TEXT_SHOWN

PAGE = 100
"""Trials on one page."""


class TrialFilter(NamedTuple):
    """Which trials a list shows; what is None or empty does not narrow it.

    Attributes:
        text: A part of the case id, in either case.
        category: The category itself; empty text stands for all.
    """

    verdict: Verdict | None = None
    disposition: Disposition | None = None
    state: ScoreState | None = None
    error: ErrorKind | None = None
    category: str = ""
    text: str = ""

    def conditions(self, run_id: str) -> list[Any]:
        """The same, in SQL."""
        found: list[Any] = [TRIAL.c.run_id == run_id]
        if self.verdict is not None:
            found += [TRIAL.c.verdict == self.verdict, TRIAL.c.judged_at.is_not(None)]
        if self.disposition is not None:
            found.append(TRIAL.c.disposition == self.disposition)
        if self.state is not None:
            found.append(TRIAL.c.state == self.state)
        if self.error is not None:
            found.append(TRIAL.c.error_kind == self.error)
        if self.category:
            found.append(TRIAL.c.category == self.category)
        if self.text:
            found.append(TRIAL.c.case_id.icontains(self.text, autoescape=True))
        return found


@dataclass(frozen=True)
class TrialLine:
    """A trial in a list.

    Attributes:
        case_id: Its beginning; `id_length` is the whole length in characters.
        verdict: None before the trial is judged.
        stage: The stage it has to go through next, or done.
        seconds: From the start of its execution to the end of its last stage.
        values: Its scores by check: the value, or the state where there is none.
    """

    seq: int
    case_id: str
    id_length: int
    trial: int
    category: str | None
    stage: str
    state: ScoreState
    verdict: Verdict | None
    disposition: Disposition | None
    deciding: str
    error_kind: str | None
    error_message: str | None
    seconds: float | None
    values: dict[str, str]


_LINE = (
    *(TRIAL.c.seq, func.substr(TRIAL.c.case_id, 1, TEXT_SHOWN).label("case_id")),
    *(func.length(TRIAL.c.case_id).label("id_length"), TRIAL.c.trial),
    func.substr(TRIAL.c.category, 1, TEXT_SHOWN).label("category"),
    *(TRIAL.c.stage, TRIAL.c.state, TRIAL.c.verdict, TRIAL.c.disposition, TRIAL.c.deciding),
    *(TRIAL.c.error_kind, func.substr(TRIAL.c.error_message, 1, TEXT_SHOWN).label("error")),
    *(TRIAL.c.execute_started_at, TRIAL.c.executed_at, TRIAL.c.judged_at, TRIAL.c.exported_at),
)


def trial_page(
    connection: Connection,
    run_id: str,
    chosen: TrialFilter,
    after: int | None = None,
    before: int | None = None,
    limit: int = PAGE,
) -> list[TrialLine]:
    """One page of trials in the order of the plan, paged by key in either direction.

    Args:
        after: Take the trials that follow this `seq`.
        before: Take the last trials in front of this `seq`.
    """
    statement = select(*_LINE).where(*chosen.conditions(run_id)).limit(limit)
    if after is not None:
        statement = statement.where(TRIAL.c.seq > after)
    if before is not None:
        rows = connection.execute(
            statement.where(TRIAL.c.seq < before).order_by(TRIAL.c.seq.desc())
        ).all()[::-1]
    else:
        rows = connection.execute(statement.order_by(TRIAL.c.seq)).all()
    values = _values(connection, run_id, [row.seq for row in rows])
    return [_line(row, values.get(row.seq, {})) for row in rows]


def _line(row: Any, values: dict[str, str]) -> TrialLine:
    ends = [row.executed_at, row.judged_at, row.exported_at]
    last = max((end for end in ends if end is not None), default=None)
    return TrialLine(
        seq=row.seq,
        case_id=row.case_id,
        id_length=row.id_length,
        trial=row.trial,
        category=row.category,
        stage=row.stage,
        state=ScoreState(row.state),
        verdict=Verdict(row.verdict) if row.judged_at is not None else None,
        disposition=Disposition(row.disposition) if row.disposition else None,
        deciding=row.deciding or "",
        error_kind=row.error_kind,
        error_message=row.error,
        seconds=_between(row.execute_started_at, last),
        values=values,
    )


def _between(begin: datetime | None, end: datetime | None) -> float | None:
    return None if begin is None or end is None else (end - begin).total_seconds()


def _values(connection: Connection, run_id: str, seqs: Sequence[int]) -> dict[int, dict[str, str]]:
    statement = select(
        *(SCORE.c.seq, SCORE.c.name, SCORE.c.state, SCORE.c.value_kind, SCORE.c.value_number),
        func.substr(SCORE.c.value_text, 1, TEXT_SHOWN).label("value_text"),
    ).where(SCORE.c.run_id == run_id, SCORE.c.seq.in_(seqs))
    found: dict[int, dict[str, str]] = {}
    for row in connection.execute(statement.order_by(SCORE.c.seq, SCORE.c.name)):
        value = column_value(row.value_kind, row.value_number, row.value_text)
        found.setdefault(row.seq, {})[row.name] = row.state if value is None else shown(value)
    return found


def shown(value: Value) -> str:
    """A score's value as text; 1, 1.0, true and "1" can be told apart where it matters."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class Position(NamedTuple):
    """Where a page stands among the trials that fit."""

    total: int
    before: int


def position(connection: Connection, run_id: str, chosen: TrialFilter, first: int) -> Position:
    """How many trials fit, and how many of them stand in front of `first`."""
    earlier = func.coalesce(func.sum(case((TRIAL.c.seq < first, 1), else_=0)), 0)
    row = connection.execute(select(func.count(), earlier).where(*chosen.conditions(run_id))).one()
    return Position(int(row[0]), int(row[1]))


def categories(connection: Connection, run_id: str) -> list[str]:
    """A run's categories, the most frequent ones in the order of their names."""
    count = func.count()
    statement = (
        select(TRIAL.c.category)
        .where(TRIAL.c.run_id == run_id, TRIAL.c.category.is_not(None), TRIAL.c.category != "")
        .group_by(TRIAL.c.category)
        .order_by(count.desc(), TRIAL.c.category)
        .limit(GROUPS_SHOWN)
    )
    return sorted(connection.execute(statement).scalars())


# --- one trial --------------------------------------------------------------------


@dataclass(frozen=True)
class ExportLine:
    """What became of a trial at one sink."""

    sink: str
    status: ExportStatus
    url: str | None
    message: str
    at: datetime


@dataclass(frozen=True)
class TrialDetail:
    """Everything that is known of one trial.

    Attributes:
        observation: None before the trial is executed.
        attempt: The attempt at `stage`, the stage it has to go through next.
        times: Begin and end of execute, judge and export, as far as they are known.
        trials: (seq, trial) of all trials of the same case.
        previous, next: The neighbours' `seq` in the plan.
    """

    run_id: str
    seq: int
    trial: int
    category: str | None
    stage: str
    attempt: int
    cached: bool
    state: ScoreState
    verdict: Verdict | None
    disposition: Disposition | None
    deciding: str
    compute_s: float | None
    error_stage: str | None
    error_kind: str | None
    error_message: str | None
    case: Case
    observation: Observation | None
    scores: tuple[Score, ...]
    calls: tuple[JudgeCall, ...]
    proposals: tuple[Proposal, ...]
    exports: tuple[ExportLine, ...]
    times: dict[str, tuple[datetime | None, datetime | None]]
    trials: tuple[tuple[int, int], ...]
    previous: int | None
    next: int | None


def trial_detail(connection: Connection, run_id: str, seq: int) -> TrialDetail | None:
    """One trial in full, or None when the run has none at this place."""
    row = queries.trial_row(connection, run_id, seq)
    if row is None:
        return None
    observation = row.observation and queries.load_observation(connection, row.observation)
    siblings = connection.execute(
        select(TRIAL.c.seq, TRIAL.c.trial)
        .where(TRIAL.c.run_id == run_id, TRIAL.c.case_key == row.case_key)
        .order_by(TRIAL.c.trial)
    )
    beside = select(TRIAL.c.seq).where(
        and_(TRIAL.c.run_id == run_id, TRIAL.c.seq.in_((seq - 1, seq + 1)))
    )
    neighbours = set(connection.execute(beside).scalars())
    return TrialDetail(
        run_id=run_id,
        seq=seq,
        trial=row.trial,
        category=row.category,
        stage=row.stage,
        attempt=row.attempt,
        cached=row.cached,
        state=ScoreState(row.state),
        verdict=Verdict(row.verdict) if row.judged_at is not None else None,
        disposition=Disposition(row.disposition) if row.disposition else None,
        deciding=row.deciding or "",
        compute_s=row.compute_s,
        error_stage=row.error_stage,
        error_kind=row.error_kind,
        error_message=row.error_message,
        case=queries.load_case(connection, row.case_digest),
        observation=observation or None,
        scores=tuple(queries.load_scores(connection, run_id, seq)),
        calls=tuple(queries.load_calls(connection, run_id, seq)),
        proposals=tuple(map(queries.proposal_from, queries.proposals_of(connection, run_id, seq))),
        exports=tuple(
            ExportLine(e.sink, ExportStatus(e.status), e.url, e.message, e.at)
            for e in queries.exports_of(connection, run_id, seq)
        ),
        times={
            "execute": (row.execute_started_at, row.executed_at),
            "judge": (row.judge_started_at, row.judged_at),
            "export": (row.export_started_at, row.exported_at),
        },
        trials=tuple((sibling.seq, sibling.trial) for sibling in siblings),
        previous=seq - 1 if seq - 1 in neighbours else None,
        next=seq + 1 if seq + 1 in neighbours else None,
    )
