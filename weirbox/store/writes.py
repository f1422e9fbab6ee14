"""Writes of run state, each as a function over many records in one transaction.

Everything here is safe to run twice: inserts carry a conflict clause, changes of a
trial are fenced by its claim and its stage, changes of a run's status are
compare-and-set on the states they may come from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    Table,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from weirbox.domain.score import JudgeCall
from weirbox.domain.words import RunStatus, Stage
from weirbox.store import tables
from weirbox.store.rows import StageResult, Ticket, call_columns, score_columns
from weirbox.store.types import to_nano, utc_now


def table(model: type[Any]) -> Table:
    """The Core table of a model."""
    found: Table = model.__table__
    return found


RUN = table(tables.Run)
TRIAL = table(tables.Trial)
SCORE = table(tables.ScoreRow)
SCORE_TEXT = table(tables.ScoreText)
PAYLOAD = table(tables.Payload)
CALL = table(tables.JudgeCallRow)
RESERVATION = table(tables.Reservation)
EXPORT = table(tables.Export)
PROPOSAL = table(tables.ProposalRow)
EXECUTION = table(tables.Execution)
EVENT = table(tables.RunEvent)
SCORECARD = table(tables.ScorecardRow)
METRIC = table(tables.MetricRow)


def add(
    connection: Connection, into: Table, rows: Sequence[dict[str, Any]], *, replace: bool = False
) -> None:
    """Insert rows; one that is there already is replaced, or stays as it is."""
    if rows:
        columns = tuple(rows[0]) if replace else ()
        connection.execute(_insert(connection.dialect.name, into, columns), list(rows))


@lru_cache(maxsize=64)
def _insert(dialect: str, into: Table, replaced: tuple[str, ...]) -> Any:
    """An insert with its conflict clause; cached, as building one costs more than running it."""
    statement = (sqlite if dialect == "sqlite" else postgresql).insert(into)
    keys = [column.name for column in into.primary_key.columns]
    others = {name: statement.excluded[name] for name in replaced if name not in keys}
    if others:
        return statement.on_conflict_do_update(index_elements=keys, set_=others)
    return statement.on_conflict_do_nothing()


def lock_rows(connection: Connection, statement: Any) -> Any:
    """Lock the selected rows on PostgreSQL; on SQLite the transaction holds the lock.

    The lock lets others refer to the rows by foreign keys: a stronger one would wait for
    every driver that adds a score to the run while it waits for us.
    """
    if connection.dialect.name == "sqlite":
        return statement
    return statement.with_for_update(key_share=True)


# --- the end of a stage ---------------------------------------------------------


def write_stage_results(connection: Connection, results: Sequence[StageResult]) -> list[bool]:
    """Record ended stages, each only while its driver's claim holds.

    Returns:
        For each result whether it counted. One that comes under an old token, or
        for a stage the trial has left, changes nothing.
    """
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
    calls = [(r.ticket, call, r.ended_at) for r in good for call in r.calls]
    book_calls(connection, calls)
    _move_trials(connection, good)
    return counted


def _key(result: StageResult) -> tuple[str, int]:
    return result.ticket.run_id, result.ticket.seq


def _fence(result: StageResult) -> tuple[int, str]:
    return result.ticket.token, str(result.stage)


def _held_trials(
    connection: Connection, results: Sequence[StageResult]
) -> dict[tuple[str, int], tuple[int, str]]:
    by_run: dict[str, list[int]] = defaultdict(list)
    for result in results:
        by_run[result.ticket.run_id].append(result.ticket.seq)
    held: dict[tuple[str, int], tuple[int, str]] = {}
    for run_id, seqs in by_run.items():
        statement = (
            select(TRIAL.c.seq, TRIAL.c.claim, TRIAL.c.stage)
            .where(TRIAL.c.run_id == run_id, TRIAL.c.seq.in_(seqs))
            .order_by(TRIAL.c.seq)
        )
        for row in connection.execute(lock_rows(connection, statement)):
            held[run_id, row.seq] = (row.claim, row.stage)
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
    return _STAGE_COLUMNS[result.stage] + (_ERROR_COLUMNS if result.error else ())


def _move_trials(connection: Connection, results: Iterable[StageResult]) -> None:
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        retry = result.next_stage.value == result.stage.value
        columns = _columns(result, retry=retry)
        groups[columns].append(_trial_values(result, columns, retry=retry))
    for columns, values in groups.items():
        names = (*columns, "stage", "attempt")
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
    }
    return values


# --- spending -------------------------------------------------------------------


class Settlement(NamedTuple):
    """A judge call that ended, and the reservation it had."""

    ticket: Ticket
    reservation: int | None
    call: JudgeCall


class ReserveRequest(NamedTuple):
    """An upper bound for a call about to be made; None where no price is known."""

    ticket: Ticket
    nusd: int


def reserve(connection: Connection, requests: Sequence[ReserveRequest]) -> list[int | None]:
    """Reserve under the run's budget, in the order given.

    Returns:
        For each request the reservation's number, or None when the budget does
        not admit it: spent and reserved together never exceed the limit.
    """
    granted: list[int | None] = []
    rooms: dict[str, _Room] = {}
    for request in requests:
        run_id = request.ticket.run_id
        room = rooms.get(run_id) or _room(connection, run_id)
        rooms[run_id] = room
        if not room.admits(request.nusd):
            granted.append(None)
            continue
        room.take(request.nusd)
        row = connection.execute(
            insert(RESERVATION).returning(RESERVATION.c.id),
            {
                "run_id": run_id,
                "claim": request.ticket.token,
                "nusd": request.nusd,
                "at": utc_now(),
            },
        ).scalar_one()
        granted.append(row)
    return granted


class _Room:
    def __init__(self, nusd: int | None, calls: int | None) -> None:
        self.nusd, self.calls = nusd, calls

    def admits(self, nusd: int) -> bool:
        return (self.nusd is None or nusd <= self.nusd) and (self.calls is None or self.calls >= 1)

    def take(self, nusd: int) -> None:
        self.nusd = None if self.nusd is None else self.nusd - nusd
        self.calls = None if self.calls is None else self.calls - 1


def _room(connection: Connection, run_id: str) -> _Room:
    run = connection.execute(
        lock_rows(
            connection,
            select(RUN.c.budget_nusd, RUN.c.budget_calls, RUN.c.spent_nusd, RUN.c.calls).where(
                RUN.c.id == run_id
            ),
        )
    ).one()
    held = connection.execute(
        select(func.coalesce(func.sum(RESERVATION.c.nusd), 0), func.count()).where(
            RESERVATION.c.run_id == run_id
        )
    ).one()
    return _Room(
        None if run.budget_nusd is None else run.budget_nusd - run.spent_nusd - int(held[0]),
        None if run.budget_calls is None else run.budget_calls - run.calls - held[1],
    )


def settle(connection: Connection, settlements: Sequence[Settlement]) -> None:
    """Book calls and void their reservations. Money spent counts under any token."""
    now = utc_now()
    book_calls(connection, [(s.ticket, s.call, now) for s in settlements])
    release(connection, [s.reservation for s in settlements if s.reservation is not None])


def book_calls(connection: Connection, calls: Sequence[tuple[Ticket, JudgeCall, datetime]]) -> None:
    """Insert judge-call rows and count them on their runs, in one transaction."""
    if not calls:
        return
    connection.execute(insert(CALL), [call_columns(t, call, at) for t, call, at in calls])
    spent: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for ticket, call, _ in calls:
        spent[ticket.run_id][0] += to_nano(call.usage.cost_usd) or 0
        spent[ticket.run_id][1] += 1
    for run_id in sorted(spent):
        nusd, count = spent[run_id]
        connection.execute(
            update(RUN)
            .where(RUN.c.id == run_id)
            .values(spent_nusd=RUN.c.spent_nusd + nusd, calls=RUN.c.calls + count)
        )


def release(connection: Connection, reservations: Sequence[int]) -> None:
    """Void reservations; one that is gone already stays gone."""
    if reservations:
        connection.execute(delete(RESERVATION).where(RESERVATION.c.id.in_(reservations)))


# --- runs -----------------------------------------------------------------------

LIVE = (RunStatus.PENDING, RunStatus.RUNNING)


def change_status(
    connection: Connection,
    run_id: str,
    *,
    to: RunStatus,
    reason: str = "",
    frm: Sequence[RunStatus] = LIVE,
) -> bool:
    """Compare-and-set a run's status, and note it on the timeline.

    Safe to run twice: the second time finds another status and changes nothing.

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
        update(RUN).where(RUN.c.id == run_id, RUN.c.status.in_(frm)).values(values)
    ).rowcount
    if changed:
        note(connection, run_id, kind=str(to), message=reason)
    return bool(changed)


def note(connection: Connection, run_id: str, *, kind: str, message: str) -> None:
    """Add an entry to a run's timeline."""
    connection.execute(
        insert(EVENT), {"run_id": run_id, "kind": kind, "message": message, "at": utc_now()}
    )
