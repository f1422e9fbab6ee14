"""The tables. Hot ones are narrow; wide content is kept in `payload` and `score_text`.

Trials are addressed by (run_id, seq): seq is the position in the frozen plan.
Uniqueness does the work of locks: a lost race is absorbed by a conflict clause.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, UniqueConstraint
from sqlmodel import AutoString, Field, SQLModel

from weirbox.store.types import JsonText, Packed, SafeText, UtcDateTime, utc_now


def _text(**options: Any) -> Any:
    return Field(sa_type=SafeText, **options)


def _moment(**options: Any) -> Any:
    return Field(sa_type=UtcDateTime, **options)


def _nano(**options: Any) -> Any:
    return Field(sa_type=BigInteger, **options)


def _json() -> Any:
    return Field(default=None, sa_type=JsonText, nullable=True)


def _number() -> Any:
    """An automatic key that SQLite accepts and that never runs out on PostgreSQL."""
    return Field(
        default=None,
        sa_column=Column(
            BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
        ),
    )


class Payload(SQLModel, table=True):
    """Content, by the SHA-256 of its bytes."""

    digest: str = Field(primary_key=True)
    body: bytes = Field(sa_type=Packed)


class Run(SQLModel, table=True):
    """One evaluation of one plan.

    `spent_nusd` and `calls` are kept in the transaction that books a judge call.
    """

    id: str = Field(primary_key=True)
    suite: str = Field(index=True)
    kind: str
    status: str = Field(index=True)
    reason: str = _text(default="")
    plan: str = Field(
        sa_column=Column(
            AutoString(),
            ForeignKey("payload.digest", deferrable=True, initially="DEFERRED"),
            nullable=False,
        )
    )
    dataset_name: str = _text()
    dataset_digest: str
    planned: int
    drivers: int = 1
    budget_nusd: int | None = _nano(default=None)
    budget_calls: int | None = None
    spent_nusd: int = _nano(default=0)
    calls: int = 0
    supersede_key: str | None = _text(default=None, index=True)
    tags: Any = _json()
    created_at: datetime = _moment(default_factory=utc_now, index=True)
    started_at: datetime | None = _moment(default=None)
    completed_at: datetime | None = _moment(default=None)
    finalized_at: datetime | None = _moment(default=None)


class Claim(SQLModel, table=True):
    """A driver's fenced lease; `token` only ever grows, so a later claim outranks."""

    __table_args__ = {"sqlite_autoincrement": True}

    token: int | None = _number()
    run_id: str = Field(foreign_key="run.id", index=True)
    driver: str = _text()
    acquired_at: datetime = _moment(default_factory=utc_now)
    lease_until: datetime = _moment()
    released_at: datetime | None = _moment(default=None)


class Trial(SQLModel, table=True):
    """One repeat of a case: where it stands and what it came to."""

    __table_args__ = (
        UniqueConstraint("run_id", "case_key", "trial"),
        Index("ix_trial_work", "run_id", "stage", "claim", "seq"),
        Index("ix_trial_outcome", "run_id", "disposition", "verdict"),
    )

    run_id: str = Field(primary_key=True, foreign_key="run.id")
    seq: int = Field(primary_key=True)
    case_id: str = _text()
    case_key: str
    trial: int
    entry_digest: str
    case_digest: str = Field(foreign_key="payload.digest")
    category: str | None = _text(default=None)
    stage: str
    attempt: int = 1
    claim: int | None = _nano(default=None)
    state: str
    verdict: str
    disposition: str | None = None
    deciding: str | None = _text(default=None)
    cached: bool = False
    observation: str | None = Field(default=None, foreign_key="payload.digest")
    execute_started_at: datetime | None = _moment(default=None)
    executed_at: datetime | None = _moment(default=None)
    judge_started_at: datetime | None = _moment(default=None)
    judged_at: datetime | None = _moment(default=None)
    export_started_at: datetime | None = _moment(default=None)
    exported_at: datetime | None = _moment(default=None)
    compute_s: float | None = None
    error_stage: str | None = None
    error_kind: str | None = None
    error_message: str | None = _text(default=None)


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
    value_text: str | None = _text(default=None)
    passed: bool | None = None
    authority: str
    source: str
    required: bool
    confidence: float | None = None
    tier: str | None = None
    model: str | None = _text(default=None)
    outcome: str | None = None
    judgement: str | None = None
    duration: float | None = None


class ScoreText(SQLModel, table=True):
    """The wide part of a score, loaded on a case page only."""

    __tablename__ = "score_text"

    run_id: str = Field(primary_key=True, foreign_key="run.id")
    seq: int = Field(primary_key=True)
    name: str = Field(primary_key=True, sa_type=SafeText)
    rationale: str = _text(default="")
    detail: Any = _json()


class JudgeCallRow(SQLModel, table=True):
    """One call of a judge, booked the moment it ended."""

    __tablename__ = "judge_call"
    __table_args__ = (Index("ix_judge_call_trial", "run_id", "seq"),)

    id: int | None = _number()
    run_id: str = Field(foreign_key="run.id")
    seq: int
    check_name: str = _text()
    tier: str
    model: str = _text()
    provider: str = _text()
    request_digest: str
    input_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    cost_nusd: int | None = _nano(default=None)
    cached: bool = False
    ok: bool = True
    message: str = _text(default="")
    reply: Any = _json()
    duration: float = 0.0
    at: datetime = _moment(default_factory=utc_now)


class Reservation(SQLModel, table=True):
    """An upper bound held for a judge call in flight; void once its claim is."""

    id: int | None = _number()
    run_id: str = Field(foreign_key="run.id", index=True)
    claim: int = _nano(index=True)
    nusd: int = _nano()
    at: datetime = _moment(default_factory=utc_now)


class Export(SQLModel, table=True):
    """What became of one trial at one sink."""

    run_id: str = Field(primary_key=True, foreign_key="run.id")
    seq: int = Field(primary_key=True)
    sink: str = Field(primary_key=True)
    status: str
    url: str | None = _text(default=None)
    message: str = _text(default="")
    at: datetime = _moment(default_factory=utc_now)


class ProposalRow(SQLModel, table=True):
    """A suggestion for a failed check; never applied automatically."""

    __tablename__ = "proposal"

    run_id: str = Field(primary_key=True, foreign_key="run.id")
    seq: int = Field(primary_key=True)
    check_name: str = Field(primary_key=True, sa_type=SafeText)
    action: str
    message: str = _text()
    suggestion: Any = _json()


class RunEvent(SQLModel, table=True):
    """A run's timeline."""

    __tablename__ = "run_event"

    id: int | None = _number()
    run_id: str = Field(foreign_key="run.id", index=True)
    at: datetime = _moment(default_factory=utc_now)
    kind: str
    message: str = _text()


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
    at: datetime = _moment(default_factory=utc_now)


class MetricRow(SQLModel, table=True):
    """One metric's aggregate, for comparison across runs."""

    __tablename__ = "metric"

    run_id: str = Field(primary_key=True, foreign_key="run.id")
    name: str = Field(primary_key=True, sa_type=SafeText)
    rate: float | None = None
    mean: float | None = None
    scored: int
    body: Any = Field(sa_type=JsonText)
