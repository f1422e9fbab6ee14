"""The tables. Hot ones are narrow; wide content is kept in `payload` and `score_text`.

Trials are addressed by (run_id, seq): seq is the position in the frozen plan.
Uniqueness does the work of locks: a lost race is absorbed by a conflict clause.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Column, ForeignKey, Index, UniqueConstraint
from sqlmodel import AutoString, Field, SQLModel

from weirbox.store.columns import flag, json_column, moment, nano, number, text_column, whole
from weirbox.store.types import JsonText, Packed, SafeText, utc_now


class Payload(SQLModel, table=True):
    """Content, by the SHA-256 of its bytes."""

    digest: str = Field(primary_key=True)
    body: bytes = Field(sa_type=Packed)


class Run(SQLModel, table=True):
    """One evaluation of one plan.

    `spent_nusd` and `calls` are kept in the transaction that books a judge call.

    Attributes:
        managed: Whether the coordinator has it driven; a run that somebody drives from a
            command line is left to them.
        origin: What asked for it: repository, pull request, commit, and the like.
        parent: The run whose finished trials it carries over.
        seen: What the coordinator saw of the run's rows when they last changed.
        stalls: How many times in a row nothing had changed for the stall time.
        settled_at: When a run that was cancelled, superseded or failed had come to rest.
    """

    id: str = Field(primary_key=True)
    suite: str = Field(index=True)
    kind: str
    status: str = Field(index=True)
    reason: str = text_column(default="")
    plan: str = Field(
        sa_column=Column(
            AutoString(),
            ForeignKey("payload.digest", deferrable=True, initially="DEFERRED"),
            nullable=False,
        )
    )
    dataset_name: str = text_column()
    dataset_digest: str
    planned: int
    drivers: int = 1
    budget_nusd: int | None = nano(default=None)
    budget_calls: int | None = None
    spent_nusd: int = nano(default=0)
    calls: int = 0
    supersede_key: str | None = text_column(default=None, index=True)
    tags: Any = json_column()
    managed: bool = flag()
    origin: Any = json_column()
    parent: str | None = Field(default=None, index=True)
    seen: str | None = None
    seen_at: datetime | None = moment(default=None)
    stalls: int = whole(0)
    created_at: datetime = moment(default_factory=utc_now, index=True)
    started_at: datetime | None = moment(default=None)
    completed_at: datetime | None = moment(default=None)
    finalized_at: datetime | None = moment(default=None)
    settled_at: datetime | None = moment(default=None)


class Claim(SQLModel, table=True):
    """A driver's fenced lease; `token` only ever grows, so a later claim outranks.

    Attributes:
        dispatch: The coordinator's dispatch that the driver came from.
        stages: How many stages of trials ended under it, kept with their rows.
        reaped: Whether it was taken back from a driver that had stopped renewing it.
    """

    __table_args__ = {"sqlite_autoincrement": True}

    token: int | None = number()
    run_id: str = Field(foreign_key="run.id", index=True)
    driver: str = text_column()
    acquired_at: datetime = moment(default_factory=utc_now)
    lease_until: datetime = moment()
    released_at: datetime | None = moment(default=None)
    dispatch: int | None = nano(default=None)
    stages: int = whole(0)
    reaped: bool = flag()


class Trial(SQLModel, table=True):
    """One repeat of a case: where it stands and what it came to.

    Attributes:
        round: 1, and one more each time that somebody opens it again.
        redo: What an opened trial is to do again, where that is not all of its stage: the
            names of checks at stage judge (JSON), `MISSING` at stage export.
    """

    __table_args__ = (
        UniqueConstraint("run_id", "case_key", "trial"),
        Index("ix_trial_work", "run_id", "stage", "claim", "seq"),
        Index("ix_trial_outcome", "run_id", "disposition", "verdict"),
    )

    run_id: str = Field(primary_key=True, foreign_key="run.id")
    seq: int = Field(primary_key=True)
    case_id: str = text_column()
    case_key: str
    trial: int
    entry_digest: str
    case_digest: str = Field(foreign_key="payload.digest")
    category: str | None = text_column(default=None)
    stage: str
    attempt: int = 1
    round: int = whole(1)
    redo: str | None = text_column(default=None)
    claim: int | None = nano(default=None)
    state: str
    verdict: str
    disposition: str | None = None
    deciding: str | None = text_column(default=None)
    cached: bool = False
    observation: str | None = Field(default=None, foreign_key="payload.digest")
    execute_started_at: datetime | None = moment(default=None)
    executed_at: datetime | None = moment(default=None)
    judge_started_at: datetime | None = moment(default=None)
    judged_at: datetime | None = moment(default=None)
    export_started_at: datetime | None = moment(default=None)
    exported_at: datetime | None = moment(default=None)
    compute_s: float | None = None
    error_stage: str | None = None
    error_kind: str | None = None
    error_message: str | None = text_column(default=None)


class ScoreRow(SQLModel, table=True):
    """One score per (run, case, trial, check)."""

    __tablename__ = "score"
    __table_args__ = (Index("ix_score_metric", "run_id", "name", "state"),)

    run_id: str = Field(primary_key=True, foreign_key="run.id")
    seq: int = Field(primary_key=True)
    name: str = Field(primary_key=True, sa_type=SafeText)
    state: str
    reason: str | None = None
    value_kind: str | None = None
    value_number: float | None = None
    value_text: str | None = text_column(default=None)
    passed: bool | None = None
    authority: str
    source: str
    required: bool
    confidence: float | None = None
    tier: str | None = None
    model: str | None = text_column(default=None)
    outcome: str | None = None
    judgement: str | None = None
    duration: float | None = None


class ScoreText(SQLModel, table=True):
    """The wide part of a score, loaded on a case page only."""

    __tablename__ = "score_text"

    run_id: str = Field(primary_key=True, foreign_key="run.id")
    seq: int = Field(primary_key=True)
    name: str = Field(primary_key=True, sa_type=SafeText)
    rationale: str = text_column(default="")
    detail: Any = json_column()


class JudgeCallRow(SQLModel, table=True):
    """One call of a judge, booked the moment it ended.

    Attributes:
        key: Tells a call that is booked again, since nobody heard that it was booked.
    """

    __tablename__ = "judge_call"
    __table_args__ = (Index("ix_judge_call_trial", "run_id", "seq"),)

    id: int | None = number()
    run_id: str = Field(foreign_key="run.id")
    seq: int
    round: int = whole(1)
    check_name: str = text_column()
    tier: str
    model: str = text_column()
    provider: str = text_column()
    request_digest: str
    input_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    cost_nusd: int | None = nano(default=None)
    cached: bool = False
    ok: bool = True
    message: str = text_column(default="")
    reply: Any = json_column()
    duration: float = 0.0
    at: datetime = moment(default_factory=utc_now)
    key: str | None = Field(default=None, index=True, unique=True)


class Reservation(SQLModel, table=True):
    """An upper bound held for a judge call in flight; void once its claim is.

    Attributes:
        key: Tells a request that is made again, since nobody heard that it was granted.
    """

    id: int | None = number()
    run_id: str = Field(foreign_key="run.id", index=True)
    claim: int = nano(index=True)
    nusd: int = nano()
    at: datetime = moment(default_factory=utc_now)
    key: str | None = None


class Export(SQLModel, table=True):
    """What became of one trial at one sink."""

    run_id: str = Field(primary_key=True, foreign_key="run.id")
    seq: int = Field(primary_key=True)
    sink: str = Field(primary_key=True)
    status: str
    url: str | None = text_column(default=None)
    message: str = text_column(default="")
    at: datetime = moment(default_factory=utc_now)


class ProposalRow(SQLModel, table=True):
    """A suggestion for a failed check; never applied automatically."""

    __tablename__ = "proposal"

    run_id: str = Field(primary_key=True, foreign_key="run.id")
    seq: int = Field(primary_key=True)
    check_name: str = Field(primary_key=True, sa_type=SafeText)
    action: str
    message: str = text_column()
    suggestion: Any = json_column()


class RunEvent(SQLModel, table=True):
    """A run's timeline."""

    __tablename__ = "run_event"

    id: int | None = number()
    run_id: str = Field(foreign_key="run.id", index=True)
    at: datetime = moment(default_factory=utc_now)
    kind: str
    message: str = text_column()


class Execution(SQLModel, table=True):
    """Where an execution that other runs may reuse is kept (opt-in)."""

    key: str = Field(primary_key=True)
    run_id: str = Field(foreign_key="run.id")
    seq: int


class ScorecardRow(SQLModel, table=True):
    """The aggregates of a run."""

    __tablename__ = "scorecard"

    run_id: str = Field(primary_key=True, foreign_key="run.id")
    body: Any = Field(sa_type=JsonText)
    at: datetime = moment(default_factory=utc_now)


class MetricRow(SQLModel, table=True):
    """One metric's aggregate, for comparison across runs."""

    __tablename__ = "metric"

    run_id: str = Field(primary_key=True, foreign_key="run.id")
    name: str = Field(primary_key=True, sa_type=SafeText)
    rate: float | None = None
    mean: float | None = None
    scored: int
    body: Any = Field(sa_type=JsonText)
