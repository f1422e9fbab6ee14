"""The tables beside runs and trials: coordination, history, registered suites, datasets."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKeyConstraint, Index
from sqlmodel import Field, SQLModel

from weirbox.store.columns import moment, nano, number, text_column
from weirbox.store.types import JsonText, utc_now


class Dispatch(SQLModel, table=True):
    """A driver that the coordinator asks the engine for; committed before it is asked for.

    Attributes:
        key: The idempotency key: asking again gives the same flow run.
        flow_run: The engine's id of it, once it has answered.
        started_at: When the driver began; None while it waits for a worker.
    """

    id: int | None = number()
    run_id: str = Field(foreign_key="run.id", index=True)
    key: str = Field(unique=True)
    flow_run: str | None = None
    requested_at: datetime = moment(default_factory=utc_now)
    started_at: datetime | None = moment(default=None)
    ended_at: datetime | None = moment(default=None, index=True)
    message: str = text_column(default="")


class AttemptRow(SQLModel, table=True):
    """An attempt at a stage that did not stand: it failed, or was opened again."""

    __tablename__ = "attempt"
    __table_args__ = (
        ForeignKeyConstraint(["run_id", "seq"], ["trial.run_id", "trial.seq"]),
        Index("ix_attempt_trial", "run_id", "seq"),
    )

    id: int | None = number()
    run_id: str
    seq: int
    round: int
    stage: str
    attempt: int
    claim: int | None = nano(default=None)
    started_at: datetime | None = moment(default=None)
    ended_at: datetime = moment(default_factory=utc_now)
    observation: str | None = Field(default=None, foreign_key="payload.digest")
    error_kind: str | None = None
    error_message: str | None = text_column(default=None)


class ScoreHistory(SQLModel, table=True):
    """A score that a later round replaced, or a person corrected."""

    __tablename__ = "score_history"
    __table_args__ = (
        ForeignKeyConstraint(["run_id", "seq"], ["trial.run_id", "trial.seq"]),
        Index("ix_score_history_trial", "run_id", "seq"),
    )

    id: int | None = number()
    run_id: str
    seq: int
    round: int
    name: str = text_column()
    body: Any = Field(sa_type=JsonText)
    why: str = text_column(default="")
    replaced_at: datetime = moment(default_factory=utc_now)


class RegisteredSuite(SQLModel, table=True):
    """A suite that runs are started of by its name.

    Attributes:
        body: As `weirbox.domain.spec.Suite` has it, paths absolute.
        folder: What relative paths start from.
    """

    __tablename__ = "registered_suite"

    name: str = Field(primary_key=True)
    body: Any = Field(sa_type=JsonText)
    folder: str = text_column()
    registered_at: datetime = moment(default_factory=utc_now)


class DatasetVersion(SQLModel, table=True):
    """One immutable version of a dataset that is kept in the store."""

    __tablename__ = "dataset_version"

    name: str = Field(primary_key=True)
    version: int = Field(primary_key=True)
    digest: str
    records: int
    source: str = text_column(default="")
    created_at: datetime = moment(default_factory=utc_now)


class DatasetCase(SQLModel, table=True):
    """One case of a dataset's version, by its content."""

    __tablename__ = "dataset_case"
    __table_args__ = (
        ForeignKeyConstraint(
            ["name", "version"], ["dataset_version.name", "dataset_version.version"]
        ),
    )

    name: str = Field(primary_key=True)
    version: int = Field(primary_key=True)
    position: int = Field(primary_key=True)
    case_key: str
    case_digest: str = Field(foreign_key="payload.digest")


class AutoRun(SQLModel, table=True):
    """That the growth of a dataset was answered by a run; once for each version."""

    __tablename__ = "auto_run"

    suite: str = Field(primary_key=True)
    dataset_digest: str = Field(primary_key=True)
    key: str
    at: datetime = moment(default_factory=utc_now)
    flow_run: str | None = None


class Alert(SQLModel, table=True):
    """A threshold that a run has passed: written once, then told.

    Attributes:
        emitted_at: When the engine had taken the event.
    """

    run_id: str = Field(primary_key=True, foreign_key="run.id")
    kind: str = Field(primary_key=True)
    value: float | None = None
    threshold: float | None = None
    message: str = text_column()
    at: datetime = moment(default_factory=utc_now)
    emitted_at: datetime | None = moment(default=None)
