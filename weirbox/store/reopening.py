"""Trials that are opened again.

What no longer stands is kept beside: attempts in `attempt`, scores in `score_history`.
Opening is one transaction of its caller's. Running it twice opens nothing the second time,
since a trial that was opened has neither the scores nor the stage any more that it was
chosen by; what a driver still writes about it comes from an earlier round and is fenced.

Locks are taken in the order trial, run, as drivers take theirs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    case,
    delete,
    func,
    null,
    or_,
    select,
    update,
)

from weirbox.domain.words import ExportStatus, RunStatus, ScoreState, Stage, TrialStage, Verdict
from weirbox.store import history
from weirbox.store.base import (
    EXECUTION,
    EXPORT,
    PROPOSAL,
    RUN,
    SCORE,
    TRIAL,
    lock_rows,
)
from weirbox.store.rows import MISSING, redo_checks, redo_text
from weirbox.store.types import utc_now

PAGE = 500
"""Trials at a time: bounds memory, and the parameters of a statement."""

REOPENED = (RunStatus.RUNNING, RunStatus.COMPLETED, RunStatus.FAILED)
"""The statuses that a run may be set going again from."""


# --- what there is ----------------------------------------------------------------


class Mark(NamedTuple):
    """What choosing needs to know of one score."""

    name: str
    state: str
    reason: str | None
    source: str


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A trial that has been judged, as far as choosing needs it.

    Attributes:
        redo: The checks it is about to measure again already.
        marks: Of the scores that were asked for.
        unsent: Whether it has gone through all stages, and yet not to every sink.
    """

    seq: int
    redo: frozenset[str]
    error_stage: str | None
    error_kind: str | None
    marks: tuple[Mark, ...]
    unsent: bool


def judged_trials(
    connection: Connection, run_id: str, *, sinks: Sequence[str], check: str | None = None
) -> Iterator[list[Judged]]:
    """Lock and read the judged trials of a run, page by page.

    Args:
        sinks: What the plan sends trials to.
        check: The check whose scores are of interest; those without a value if None.
    """
    measured_again = and_(TRIAL.c.stage == TrialStage.JUDGE, TRIAL.c.redo.is_not(None))
    through = TRIAL.c.stage.in_((TrialStage.EXPORT, TrialStage.DONE))
    after = -1
    while True:
        statement = (
            select(*(TRIAL.c[name] for name in ("seq", "stage", "redo", *_ERROR)))
            .where(TRIAL.c.run_id == run_id, TRIAL.c.seq > after, or_(through, measured_again))
            .order_by(TRIAL.c.seq)
            .limit(PAGE)
        )
        rows = connection.execute(lock_rows(connection, statement)).all()
        if not rows:
            return
        after = rows[-1].seq
        seqs = [row.seq for row in rows]
        marks = _marks(connection, run_id, seqs, check)
        sent = _sent(connection, run_id, seqs, sinks)
        yield [_judged(row, marks[row.seq], len(sinks) - sent[row.seq]) for row in rows]


_ERROR = ("error_stage", "error_kind")


def _judged(row: Any, marks: list[Mark], unsent: int) -> Judged:
    return Judged(
        seq=row.seq,
        redo=redo_checks(row.redo) if row.stage == TrialStage.JUDGE else frozenset(),
        error_stage=row.error_stage,
        error_kind=row.error_kind,
        marks=tuple(marks),
        unsent=row.stage == TrialStage.DONE and unsent > 0,
    )


def _marks(
    connection: Connection, run_id: str, seqs: Sequence[int], check: str | None
) -> dict[int, list[Mark]]:
    which: ColumnElement[bool] = SCORE.c.state.in_((ScoreState.ERRORED, ScoreState.UNSCORED))
    if check is not None:
        which = SCORE.c.name == check
    statement = select(
        SCORE.c.seq, SCORE.c.name, SCORE.c.state, SCORE.c.reason, SCORE.c.source
    ).where(SCORE.c.run_id == run_id, SCORE.c.seq.in_(seqs), which)
    found: dict[int, list[Mark]] = defaultdict(list)
    for row in connection.execute(statement):
        found[row.seq].append(Mark(row.name, row.state, row.reason, row.source))
    return found


def _sent(
    connection: Connection, run_id: str, seqs: Sequence[int], sinks: Sequence[str]
) -> Counter[int]:
    """To how many of the sinks each trial was sent with success."""
    statement = (
        select(EXPORT.c.seq, func.count().label("sinks"))
        .where(
            *(EXPORT.c.run_id == run_id, EXPORT.c.seq.in_(seqs), EXPORT.c.sink.in_(sinks)),
            EXPORT.c.status == ExportStatus.SUCCEEDED,
        )
        .group_by(EXPORT.c.seq)
    )
    return Counter({row.seq: row.sinks for row in connection.execute(statement)})


# --- opening ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Reentry:
    """Where a trial goes on from.

    Attributes:
        checks: At stage judge, what is measured again; empty for all of the stage.
    """

    seq: int
    stage: TrialStage
    checks: frozenset[str] = frozenset()


def open_again(
    connection: Connection,
    run_id: str,
    reentries: Sequence[Reentry],
    *,
    replaced: Callable[[Reentry, str], bool],
    why: str,
) -> None:
    """Open judged trials again, which the caller has locked; at most `PAGE` at a time.

    Args:
        replaced: Whether a re-entry measures the score of a name again.
        why: Kept with the scores that are put aside.
    """
    by_stage: dict[TrialStage, list[int]] = defaultdict(list)
    for reentry in reentries:
        by_stage[reentry.stage].append(reentry.seq)
    for stage, seqs in by_stage.items():
        history.keep_attempts(connection, run_id, _from(stage), seqs)
    judged = {r.seq: r for r in reentries if r.stage is not TrialStage.EXPORT}
    history.put_scores_aside(
        connection,
        run_id,
        list(judged),
        replaced=lambda seq, name: replaced(judged[seq], name),
        why=why,
    )
    _drop_proposals(connection, run_id, reentries)
    executed = by_stage[TrialStage.EXECUTE]
    connection.execute(
        delete(EXECUTION).where(EXECUTION.c.run_id == run_id, EXECUTION.c.seq.in_(executed))
    )
    _move(connection, run_id, reentries)


_STAGES = (Stage.EXECUTE, Stage.JUDGE, Stage.EXPORT)


def _from(stage: TrialStage) -> tuple[Stage, ...]:
    """The stages that no longer stand when a trial goes on from one."""
    return _STAGES[_STAGES.index(Stage(stage.value)) :]


def _drop_proposals(connection: Connection, run_id: str, reentries: Sequence[Reentry]) -> None:
    """Drop the proposals that the judge stage makes again."""
    by_checks: dict[frozenset[str], list[int]] = defaultdict(list)
    for reentry in reentries:
        if reentry.stage is not TrialStage.EXPORT:
            by_checks[reentry.checks].append(reentry.seq)
    for checks, seqs in by_checks.items():
        which = [PROPOSAL.c.run_id == run_id, PROPOSAL.c.seq.in_(seqs)]
        if checks:
            which.append(PROPOSAL.c.check_name.in_(sorted(checks)))
        connection.execute(delete(PROPOSAL).where(*which))


_UNDECIDED: dict[str, Any] = {
    "state": ScoreState.PENDING,
    "verdict": Verdict.NONE,
    "disposition": None,
    "deciding": None,
}


def _move(connection: Connection, run_id: str, reentries: Sequence[Reentry]) -> None:
    groups: dict[tuple[TrialStage, str | None], list[int]] = defaultdict(list)
    for reentry in reentries:
        redo = redo_text(reentry.checks) if reentry.checks else None
        groups[reentry.stage, MISSING if reentry.stage is TrialStage.EXPORT else redo].append(
            reentry.seq
        )
    for (stage, redo), seqs in groups.items():
        connection.execute(
            update(TRIAL)
            .where(TRIAL.c.run_id == run_id, TRIAL.c.seq.in_(seqs))
            .values(
                {"stage": stage, "redo": redo, "attempt": 1, "claim": None}
                | {"round": TRIAL.c.round + 1}
                | _cleared(stage)
            )
        )


def _cleared(stage: TrialStage) -> dict[str, Any]:
    """What a trial that goes on from a stage loses; it stands in `attempt`."""
    gone = _from(stage)
    failed = TRIAL.c.error_stage.in_(gone)
    values: dict[str, Any] = {
        name: case((failed, null()), else_=TRIAL.c[name])
        for name in ("error_stage", "error_kind", "error_message")
    }
    values |= {column.name: None for ended in gone for column in history.SPANS[ended]}
    if stage is not TrialStage.EXPORT:
        values |= _UNDECIDED
    if stage is TrialStage.EXECUTE:
        values |= {"observation": None, "compute_s": None, "cached": False}
    return values


def set_going(connection: Connection, run_id: str) -> bool:
    """Set a run going again, after its trials were opened; compare-and-set on `REOPENED`.

    Its scorecard stays until finalize replaces it. What the coordinator saw of it is
    forgotten, or the time it stood still would count as a stall.

    Returns:
        Whether it is running now.
    """
    changed = connection.execute(
        update(RUN)
        .where(RUN.c.id == run_id, RUN.c.status.in_(REOPENED))
        .values(
            status=RunStatus.RUNNING,
            reason="",
            completed_at=None,
            finalized_at=None,
            settled_at=None,
            seen=None,
            seen_at=utc_now(),
            stalls=0,
        )
    ).rowcount
    return bool(changed)
