"""Reads of runs and trials; every count is derived from rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select

from weirbox.domain.base import storable
from weirbox.domain.case import Case
from weirbox.domain.plan import Plan
from weirbox.domain.score import JudgeCall, Proposal, Score
from weirbox.domain.trace import Observation
from weirbox.domain.words import ExportStatus, RunStatus, TrialStage
from weirbox.errors import NotPossible
from weirbox.store.base import (
    CALL,
    DISPATCH,
    EVENT,
    EXECUTION,
    EXPORT,
    PAYLOAD,
    PROPOSAL,
    RUN,
    SCORE,
    SCORE_TEXT,
    SCORECARD,
    TRIAL,
)
from weirbox.store.rows import (
    call_from,
    case_key,
    score_from,
    unpack,
    unpack_case,
    unpack_observation,
)
from weirbox.store.summaries import progress as progress
from weirbox.store.summaries import progress_of as progress_of
from weirbox.store.summaries import summaries as summaries
from weirbox.store.summaries import summary as summary

EARLY = tuple(status for status in RunStatus if status.ended_early)
"""The statuses of runs that ended before all their trials were done."""

CHUNK = 500
"""Parameters per IN list: safely under every database's limit."""


def payload(connection: Connection, digest: str) -> bytes:
    """The content of a digest that the plan or a trial names."""
    body: bytes = connection.execute(
        select(PAYLOAD.c.body).where(PAYLOAD.c.digest == digest)
    ).scalar_one()
    return body


def payloads(connection: Connection, digests: Sequence[str]) -> dict[str, bytes]:
    """Many contents by digest."""
    found: dict[str, bytes] = {}
    wanted = sorted(set(digests))
    for start in range(0, len(wanted), CHUNK):
        statement = select(PAYLOAD).where(PAYLOAD.c.digest.in_(wanted[start : start + CHUNK]))
        found.update({row.digest: row.body for row in connection.execute(statement)})
    return found


def find_run_id(connection: Connection, text: str, *, suite: str | None = None) -> str:
    """The run that a full id, a unique beginning, or ``latest`` names.

    Args:
        suite: Only runs of this suite fit; its latest is one to compare with, never one
            that ended early: that has not seen all its cases.

    Raises:
        NotPossible: When none or several fit.
    """
    of_suite = () if suite is None else (RUN.c.suite == suite,)
    comparable = () if suite is None else (RUN.c.status.not_in(EARLY),)
    whose = "" if suite is None else f" of suite {suite!r}"
    if text == "latest":
        newest = connection.execute(
            select(RUN.c.id)
            .where(*of_suite, *comparable)
            .order_by(RUN.c.created_at.desc(), RUN.c.id.desc())
            .limit(1)
        ).scalar()
        if newest is None:
            raise NotPossible(f"there is no run{whose} yet; start one with: weirbox run SUITE.yaml")
        return str(newest)
    if not text:
        raise NotPossible("the run's id is empty; see: weirbox list")
    text = storable(text)
    statement = (
        select(RUN.c.id).where(RUN.c.id.startswith(text, autoescape=True), *of_suite).limit(6)
    )
    found = [str(run_id) for run_id in connection.execute(statement).scalars()]
    if text in found or len(found) == 1:
        return text if text in found else found[0]
    if not found:
        raise NotPossible(f"there is no run {text!r}{whose}; see: weirbox list")
    raise NotPossible(f"{text!r} fits several runs: {', '.join(found)}; give more of the id")


def load_plan(connection: Connection, run_id: str) -> Plan:
    """The frozen plan of a run."""
    digest = connection.execute(select(RUN.c.plan).where(RUN.c.id == run_id)).scalar_one()
    return Plan.model_validate(unpack(payload(connection, digest)))


def status_of(connection: Connection, run_id: str) -> RunStatus:
    """Where a run stands."""
    return RunStatus(
        connection.execute(select(RUN.c.status).where(RUN.c.id == run_id)).scalar_one()
    )


def run_row(connection: Connection, run_id: str) -> Any:
    """A run's own row."""
    return connection.execute(select(RUN).where(RUN.c.id == run_id)).one()


def open_trials(connection: Connection, run_id: str) -> int:
    """How many trials still have a stage to go through."""
    statement = select(func.count()).where(
        TRIAL.c.run_id == run_id, TRIAL.c.stage != TrialStage.DONE
    )
    return int(connection.execute(statement).scalar_one())


def case_digests(connection: Connection, run_id: str) -> dict[str, str]:
    """The content of every case of a run, by the case's key."""
    statement = select(TRIAL.c.case_key, TRIAL.c.case_digest).where(
        TRIAL.c.run_id == run_id, TRIAL.c.trial == 1
    )
    return {row.case_key: row.case_digest for row in connection.execute(statement)}


# --- trials ---------------------------------------------------------------------


def load_case(connection: Connection, digest: str) -> Case:
    """The frozen case of a trial."""
    return unpack_case(payload(connection, digest))


def load_observation(connection: Connection, digest: str) -> Observation:
    """What a trial's execution left behind."""
    return unpack_observation(payload(connection, digest))


def load_scores(connection: Connection, run_id: str, seq: int) -> list[Score]:
    """A trial's scores with their rationale and detail, in the order of their names."""
    joined = SCORE.outerjoin(
        SCORE_TEXT,
        (SCORE.c.run_id == SCORE_TEXT.c.run_id)
        & (SCORE.c.seq == SCORE_TEXT.c.seq)
        & (SCORE.c.name == SCORE_TEXT.c.name),
    )
    statement = (
        select(SCORE, SCORE_TEXT.c.rationale, SCORE_TEXT.c.detail)
        .select_from(joined)
        .where(SCORE.c.run_id == run_id, SCORE.c.seq == seq)
        .order_by(SCORE.c.name)
    )
    return [
        score_from(row, row.rationale or "", row.detail) for row in connection.execute(statement)
    ]


def load_calls(
    connection: Connection, run_id: str, seq: int, *, round: int | None = None
) -> list[JudgeCall]:
    """A trial's judge calls, oldest first; of all rounds, or of one."""
    statement = select(CALL).where(CALL.c.run_id == run_id, CALL.c.seq == seq).order_by(CALL.c.id)
    if round is not None:
        statement = statement.where(CALL.c.round == round)
    return [call_from(row) for row in connection.execute(statement)]


def trial_row(connection: Connection, run_id: str, seq: int) -> Any:
    """A trial's narrow row, or None."""
    return connection.execute(
        select(TRIAL).where(TRIAL.c.run_id == run_id, TRIAL.c.seq == seq)
    ).one_or_none()


def trials_of_case(connection: Connection, run_id: str, case_id: str) -> list[Any]:
    """All trials of a case, by trial number."""
    statement = select(TRIAL).where(TRIAL.c.run_id == run_id, TRIAL.c.case_key == case_key(case_id))
    return list(connection.execute(statement.order_by(TRIAL.c.trial)).all())


def trial_page(
    connection: Connection,
    run_id: str,
    *,
    after: int = -1,
    limit: int = 100,
    where: Sequence[Any] = (),
) -> list[Any]:
    """Trials in the order of the plan, paged by key rather than by offset.

    Args:
        after: The `seq` of the last trial of the page before.
        where: Further conditions on the trial table's columns.
    """
    statement = (
        select(TRIAL)
        .where(TRIAL.c.run_id == run_id, TRIAL.c.seq > after, *where)
        .order_by(TRIAL.c.seq)
        .limit(limit)
    )
    return list(connection.execute(statement).all())


def scores_between(connection: Connection, run_id: str, first: int, last: int) -> list[Any]:
    """The narrow score rows of the trials from `first` to `last`, both included."""
    statement = (
        select(SCORE)
        .where(SCORE.c.run_id == run_id, SCORE.c.seq >= first, SCORE.c.seq <= last)
        .order_by(SCORE.c.seq, SCORE.c.name)
    )
    return list(connection.execute(statement).all())


def check_names(connection: Connection, run_id: str) -> list[str]:
    """The names of all checks that have scores in a run."""
    statement = select(SCORE.c.name).where(SCORE.c.run_id == run_id).distinct()
    return [str(name) for name in connection.execute(statement.order_by(SCORE.c.name)).scalars()]


def value_kinds(connection: Connection, run_id: str) -> dict[str, set[str]]:
    """For every check of a run, what its values are: bool, int, float, text, and ``huge``
    where an int does not fit into 64 bits."""
    number = SCORE.c.value_number
    statement = (
        select(
            SCORE.c.name,
            SCORE.c.value_kind,
            func.max(func.abs(number)).label("largest"),
            (func.count() - func.count(number)).label("beyond"),
        )
        .where(SCORE.c.run_id == run_id, SCORE.c.value_kind.is_not(None))
        .group_by(SCORE.c.name, SCORE.c.value_kind)
    )
    found: dict[str, set[str]] = {}
    for row in connection.execute(statement):
        huge = row.value_kind == "int" and (row.beyond or row.largest >= 2.0**63)
        found.setdefault(row.name, set()).update({row.value_kind, *({"huge"} if huge else ())})
    return found


def exports_of(connection: Connection, run_id: str, seq: int) -> list[Any]:
    """What became of a trial at each sink."""
    statement = select(EXPORT).where(EXPORT.c.run_id == run_id, EXPORT.c.seq == seq)
    return list(connection.execute(statement.order_by(EXPORT.c.sink)).all())


def sinks_with(connection: Connection, run_id: str, seq: int) -> frozenset[str]:
    """The sinks that a trial was sent to with success."""
    sent = (EXPORT.c.run_id == run_id, EXPORT.c.seq == seq)
    statement = select(EXPORT.c.sink).where(*sent, EXPORT.c.status == ExportStatus.SUCCEEDED)
    return frozenset(connection.execute(statement).scalars())


def proposals_of(connection: Connection, run_id: str, seq: int) -> list[Any]:
    """The proposals for a trial's failed checks."""
    statement = select(PROPOSAL).where(PROPOSAL.c.run_id == run_id, PROPOSAL.c.seq == seq)
    return list(connection.execute(statement.order_by(PROPOSAL.c.check_name)).all())


def proposal_from(row: Any) -> Proposal:
    """The proposal of a row."""
    return Proposal(
        check=row.check_name, action=row.action, message=row.message, suggestion=row.suggestion
    )


def events_of(connection: Connection, run_id: str) -> list[Any]:
    """A run's timeline, oldest first."""
    statement = select(EVENT).where(EVENT.c.run_id == run_id).order_by(EVENT.c.id)
    return list(connection.execute(statement).all())


def reusable_execution(connection: Connection, key: str) -> Any:
    """The trial row of an execution that may be reused, or None."""
    statement = (
        select(TRIAL)
        .join(EXECUTION, (EXECUTION.c.run_id == TRIAL.c.run_id) & (EXECUTION.c.seq == TRIAL.c.seq))
        .where(EXECUTION.c.key == key)
    )
    return connection.execute(statement).one_or_none()


def scorecard(connection: Connection, run_id: str) -> dict[str, Any] | None:
    """A run's aggregates, or None before it is finalized."""
    body: dict[str, Any] | None = connection.execute(
        select(SCORECARD.c.body).where(SCORECARD.c.run_id == run_id)
    ).scalar_one_or_none()
    return body


class Driven(NamedTuple):
    """A run that a flow run drives, and as which dispatch."""

    dispatch: int
    run_id: str


def dispatches_of(connection: Connection, flow_run: str) -> list[Driven]:
    """What a flow run has been a driver of, oldest first."""
    statement = (
        select(DISPATCH.c.id, DISPATCH.c.run_id)
        .where(DISPATCH.c.flow_run == flow_run)
        .order_by(DISPATCH.c.id)
    )
    return [Driven(row.id, row.run_id) for row in connection.execute(statement)]
