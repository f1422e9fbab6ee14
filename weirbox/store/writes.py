"""Writes of run state, each as a function over many records in one transaction.

Everything here is safe to run twice: inserts carry a conflict clause, changes of a
trial are fenced by its claim and its stage, changes of a run's status are
compare-and-set on the states they may come from.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from weirbox.domain.words import RunStatus, Stage
from weirbox.store.base import (
    ATTEMPT,
    CLAIM,
    EVENT,
    EXECUTION,
    EXPORT,
    PAYLOAD,
    PROPOSAL,
    RUN,
    SCORE,
    SCORE_TEXT,
    TRIAL,
    add,
    lock_rows,
)
from weirbox.store.rows import StageResult, score_columns
from weirbox.store.spending import Booking, book_calls
from weirbox.store.types import utc_now

# --- the end of a stage ---------------------------------------------------------


def write_stage_results(connection: Connection, results: Sequence[StageResult]) -> list[bool]:
    """Record ended stages, each only while its driver's claim holds.

    Returns:
        For each result whether it counted. One that comes under an old token, for a
        stage the trial has left, or from before it was opened again, changes nothing.
    """
    _count_stages(connection, results)
    held = _held_trials(connection, results)
    counted = [held.get(_key(result)) == _fence(result) for result in results]
    good = [result for result, counts in zip(results, counted, strict=True) if counts]
    if not good:
        return counted
    _write_payloads(connection, good)
    _write_scores(connection, good)
    add(connection, EXPORT, _export_rows(good), replace=True)
    add(connection, PROPOSAL, _proposal_rows(good), replace=True)
    add(connection, EXECUTION, _execution_rows(good))
    book_calls(connection, [Booking(r.ticket, c, r.ended_at) for r in good for c in r.calls])
    _write_attempts(connection, good)
    _move_trials(connection, good)
    return counted


def _key(result: StageResult) -> tuple[str, int]:
    return result.ticket.run_id, result.ticket.seq


def _fence(result: StageResult) -> tuple[int, str, int]:
    return result.ticket.token, str(result.stage), result.ticket.round


def _held_trials(
    connection: Connection, results: Sequence[StageResult]
) -> dict[tuple[str, int], tuple[int, str, int]]:
    by_run: dict[str, list[int]] = defaultdict(list)
    for result in results:
        by_run[result.ticket.run_id].append(result.ticket.seq)
    held: dict[tuple[str, int], tuple[int, str, int]] = {}
    for run_id, seqs in by_run.items():
        statement = (
            select(TRIAL.c.seq, TRIAL.c.claim, TRIAL.c.stage, TRIAL.c.round)
            .where(TRIAL.c.run_id == run_id, TRIAL.c.seq.in_(seqs))
            .order_by(TRIAL.c.seq)
        )
        for row in connection.execute(lock_rows(connection, statement)):
            held[run_id, row.seq] = (row.claim, row.stage, row.round)
    return held


def _write_payloads(connection: Connection, results: Iterable[StageResult]) -> None:
    bodies = dict(r.observation for r in results if r.observation is not None)
    add(connection, PAYLOAD, [{"digest": d, "body": bodies[d]} for d in sorted(bodies)])


def _write_scores(connection: Connection, results: Iterable[StageResult]) -> None:
    narrow: list[dict[str, Any]] = []
    wide: list[dict[str, Any]] = []
    for result in results:
        run_id, seq = _key(result)
        for score in result.scores:
            narrow.append(score_columns(run_id, seq, score))
            if score.rationale or score.detail is not None:
                wide.append(
                    {
                        "run_id": run_id,
                        "seq": seq,
                        "name": score.name,
                        "rationale": score.rationale,
                        "detail": score.detail,
                    }
                )
    add(connection, SCORE, narrow, replace=True)
    add(connection, SCORE_TEXT, wide, replace=True)


def _export_rows(results: Iterable[StageResult]) -> list[dict[str, Any]]:
    return [
        {
            "run_id": r.ticket.run_id,
            "seq": r.ticket.seq,
            "sink": export.sink,
            "status": export.status,
            "url": export.url,
            "message": export.message,
            "at": r.ended_at,
        }
        for r in results
        for export in r.exports
    ]


def _proposal_rows(results: Iterable[StageResult]) -> list[dict[str, Any]]:
    return [
        {
            "run_id": r.ticket.run_id,
            "seq": r.ticket.seq,
            "check_name": proposal.check,
            "action": proposal.action,
            "message": proposal.message,
            "suggestion": proposal.suggestion,
        }
        for r in results
        for proposal in r.proposals
    ]


def _execution_rows(results: Iterable[StageResult]) -> list[dict[str, Any]]:
    return [
        {"key": r.reuse_key, "run_id": r.ticket.run_id, "seq": r.ticket.seq}
        for r in results
        if r.reuse_key is not None
    ]


def _write_attempts(connection: Connection, results: Iterable[StageResult]) -> None:
    """Keep the attempts that another one follows; the trial's row has the last."""
    rows = [
        {
            "run_id": r.ticket.run_id,
            "seq": r.ticket.seq,
            "round": r.ticket.round,
            "stage": r.stage,
            "attempt": r.ticket.attempt,
            "claim": r.ticket.token,
            "started_at": r.started_at,
            "ended_at": r.ended_at,
            "error_kind": r.error.kind if r.error else None,
            "error_message": r.error.message if r.error else None,
        }
        for r in results
        if r.next_stage.value == r.stage.value
    ]
    if rows:
        connection.execute(insert(ATTEMPT), rows)


def _count_stages(connection: Connection, results: Iterable[StageResult]) -> None:
    """Show on the claim that its driver gets on.

    Claims are locked before trials, as whoever takes a claim back does, or the two could
    wait for each other.
    """
    for token, ended in sorted(Counter(r.ticket.token for r in results).items()):
        connection.execute(
            update(CLAIM)
            .where(CLAIM.c.token == token, CLAIM.c.released_at.is_(None))
            .values(stages=CLAIM.c.stages + ended)
        )


_ERROR_COLUMNS = ("error_stage", "error_kind", "error_message")
_STAGE_COLUMNS: dict[Stage, tuple[str, ...]] = {
    Stage.EXECUTE: (
        *("execute_started_at", "executed_at", "observation", "compute_s", "cached"),
        *_ERROR_COLUMNS,
    ),
    Stage.JUDGE: ("judge_started_at", "judged_at", "state", "verdict", "disposition", "deciding"),
    Stage.EXPORT: ("export_started_at", "exported_at"),
}


def _columns(result: StageResult, *, retry: bool) -> tuple[str, ...]:
    """What a result sets of its trial.

    The error columns tell how the execution went, and why a later stage was given up;
    an attempt at a later stage that may still succeed leaves them alone.
    """
    if result.stage is Stage.EXECUTE:
        return _ERROR_COLUMNS if retry else _STAGE_COLUMNS[Stage.EXECUTE]
    if retry:
        return ()
    pulled = ("observation",) if result.observation else ()
    told = _ERROR_COLUMNS if result.error or result.recollected else ()
    return _STAGE_COLUMNS[result.stage] + pulled + told


def _move_trials(connection: Connection, results: Iterable[StageResult]) -> None:
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        retry = result.next_stage.value == result.stage.value
        columns = _columns(result, retry=retry)
        groups[columns].append(_trial_values(result, columns, retry=retry))
    for columns, values in groups.items():
        names = (*columns, "stage", "attempt", "redo")
        statement = (
            update(TRIAL)
            .where(TRIAL.c.run_id == bindparam("at_run"), TRIAL.c.seq == bindparam("at_seq"))
            .values({name: bindparam(f"to_{name}") for name in names})
        )
        connection.execute(statement, values)


def _trial_values(result: StageResult, columns: tuple[str, ...], *, retry: bool) -> dict[str, Any]:
    prefix = {Stage.EXECUTE: "execut", Stage.JUDGE: "judg", Stage.EXPORT: "export"}[result.stage]
    error = result.error
    known: dict[str, Any] = {
        f"{result.stage}_started_at": result.started_at,
        f"{prefix}ed_at": result.ended_at,
        "observation": result.observation[0] if result.observation else None,
        "compute_s": result.compute_s,
        "cached": result.cached,
        "error_stage": (result.error_stage or result.stage) if error else None,
        "error_kind": error.kind if error else None,
        "error_message": error.message if error else None,
        "state": result.state,
        "verdict": result.verdict,
        "disposition": result.disposition,
        "deciding": result.deciding,
    }
    values = {f"to_{name}": known[name] for name in columns}
    values |= {
        "at_run": result.ticket.run_id,
        "at_seq": result.ticket.seq,
        "to_stage": result.next_stage,
        "to_attempt": result.ticket.attempt + 1 if retry else 1,
        "to_redo": result.ticket.redo if retry else None,
    }
    return values


# --- runs -----------------------------------------------------------------------

LIVE = (RunStatus.PENDING, RunStatus.RUNNING)

COMES_FROM: dict[RunStatus, tuple[RunStatus, ...]] = {
    RunStatus.PENDING: (),
    RunStatus.RUNNING: (RunStatus.PENDING,),
    RunStatus.COMPLETED: LIVE,  # pending where there is nothing to do
    RunStatus.FAILED: LIVE,
    RunStatus.CANCELLED: LIVE,
    RunStatus.SUPERSEDED: LIVE,
}
"""Every change of status there is: from a live run only. Who opens trials of a run again
sets it going with them (`weirbox.store.reopening`)."""


def change_status(connection: Connection, run_id: str, *, to: RunStatus, reason: str = "") -> bool:
    """Compare-and-set a run's status, and note it on the timeline.

    Safe to run twice and at the same time: whoever comes second finds another status and
    changes nothing.

    Returns:
        Whether this call made the change.
    """
    now = utc_now()
    values: dict[str, Any] = {"status": to, "reason": reason}
    if to is RunStatus.RUNNING:
        values["started_at"] = now
    if to.terminal:
        values["completed_at"] = now
    changed = connection.execute(
        update(RUN).where(RUN.c.id == run_id, RUN.c.status.in_(COMES_FROM[to])).values(values)
    ).rowcount
    if changed:
        note(connection, run_id, kind=str(to), message=reason)
    return bool(changed)


def hold_run(connection: Connection, run_id: str) -> None:
    """Let nobody else change a run's row until the transaction ends.

    Who opens trials again changes it last, so what is read of trials after this stays true.
    """
    connection.execute(lock_rows(connection, select(RUN.c.id).where(RUN.c.id == run_id))).all()


def note(connection: Connection, run_id: str, *, kind: str, message: str) -> None:
    """Add an entry to a run's timeline."""
    connection.execute(
        insert(EVENT), {"run_id": run_id, "kind": kind, "message": message, "at": utc_now()}
    )
