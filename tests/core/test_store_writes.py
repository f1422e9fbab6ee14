"""Writes of run state: each once, together where they can be, and counted in every state."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import func, insert, select
from sqlalchemy.exc import IntegrityError, OperationalError

from tests.factories import plan, suite, summary, trials
from tests.results import claimed, decided, executed, write
from weirbox.domain.run import Progress
from weirbox.domain.score import JudgeCall, Proposal, Score
from weirbox.domain.trace import StageError
from weirbox.domain.words import (
    ErrorKind,
    ExportStatus,
    ProposedAction,
    RunStatus,
    ScoreState,
    TrialStage,
)
from weirbox.store import engine, queries, writer
from weirbox.store.base import CALL, EXPORT, PAYLOAD, PROPOSAL, SCORE, TRIAL
from weirbox.store.engine import Database
from weirbox.store.rows import ExportRecord
from weirbox.store.writer import Writer
from weirbox.store.writes import change_status


def count(database: Database, table: Any) -> int:
    """How many rows a table has."""
    with database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


# --- uniqueness --------------------------------------------------------------------


def test_a_plan_cannot_hold_one_trial_of_a_case_twice(database: Database) -> None:
    run_id = plan(database, suite(1))
    [row] = trials(database, run_id)
    again = dict(row._mapping) | {"seq": 1}

    with pytest.raises(IntegrityError), database.write() as connection:
        connection.execute(insert(TRIAL), again)

    assert count(database, TRIAL) == 1


def test_a_stage_that_ends_twice_leaves_one_row_of_everything(database: Database) -> None:
    run_id = plan(database, suite(1))
    [ticket] = claimed(database, run_id)
    export = ExportRecord(sink="s", status=ExportStatus.SUCCEEDED, url="u", message="")
    proposal = Proposal(check="c", action=ProposedAction.CORRECT, message="m", suggestion="s")
    call = JudgeCall(check="c", tier="primary", model="m", provider="p", request_digest="d")
    result = executed(
        ticket,
        scores=(Score(name="c", value=1),),
        exports=(export,),
        proposals=(proposal,),
        calls=(call,),
    )

    counted = [*write(database, result), *write(database, result, result)]

    assert counted == [True, False, False]
    tables = (SCORE, EXPORT, PROPOSAL, CALL)
    assert [count(database, table) for table in tables] == [1, 1, 1, 1]
    assert summary(database, run_id).calls == 1


def test_the_same_content_is_kept_once(database: Database) -> None:
    plan(database, suite(3))
    before = count(database, PAYLOAD)

    plan(database, suite(3))

    assert count(database, PAYLOAD) == before


def test_a_change_of_status_is_made_once_and_from_live_states_only(
    shared_database: Database,
) -> None:
    run_id = plan(shared_database, suite(1))
    with shared_database.write() as connection:
        changes = [
            change_status(connection, run_id, to=status, reason="why")
            for status in (RunStatus.CANCELLED, RunStatus.CANCELLED, RunStatus.COMPLETED)
        ]

    assert changes == [True, False, False]
    found = summary(shared_database, run_id)
    assert (found.status, found.reason) == (RunStatus.CANCELLED, "why")
    with shared_database.read() as connection:
        kinds = [event.kind for event in queries.events_of(connection, run_id)]
    assert kinds == ["planned", "cancelled"]


# --- group commit ------------------------------------------------------------------


@contextmanager
def held_back(database: Database) -> Iterator[Writer]:
    """A writer whose first transaction waits until the block ends, so that a batch gathers."""
    gate = threading.Event()
    original = Writer._take

    def take(self: Writer) -> Any:
        gate.wait(10)
        return original(self)

    with patch.object(Writer, "_take", take):
        opened = Writer(database)
        try:
            yield opened
        finally:
            gate.set()
            opened.close()


def test_one_record_that_the_database_refuses_takes_no_other_along(
    shared_database: Database,
) -> None:
    run_id = plan(shared_database, suite(5))
    tickets = claimed(shared_database, run_id)
    poison = executed(tickets[2], compute_s="not a number")

    with held_back(shared_database) as opened:
        futures = [
            opened.submit(poison if ticket is tickets[2] else executed(ticket))
            for ticket in tickets
        ]

    failed = [future.exception() is not None for future in futures]
    assert failed == [False, False, True, False, False]
    stages = [trial.stage for trial in trials(shared_database, run_id)]
    assert stages == ["judge", "judge", "execute", "judge", "judge"]


def test_records_that_arrive_together_share_a_transaction(shared_database: Database) -> None:
    run_id = plan(shared_database, suite(20))
    transactions: list[int] = []
    original = writer._apply

    def counting(connection: Any, records: list[Any]) -> list[Any]:
        transactions.append(len(records))
        return original(connection, records)

    with patch.object(writer, "_apply", counting), held_back(shared_database) as opened:
        for ticket in claimed(shared_database, run_id):
            opened.submit(executed(ticket))

    assert transactions == [20]
    assert summary(shared_database, run_id).progress.executed == 20


def test_who_stops_waiting_for_a_record_stops_neither_it_nor_the_writer(
    shared_database: Database,
) -> None:
    run_id = plan(shared_database, suite(2))
    first, second = claimed(shared_database, run_id)

    with held_back(shared_database) as opened:
        given_up: Future[Any] = opened.submit(executed(first))
        given_up.cancel()
        waited_for = opened.submit(executed(second))

    assert waited_for.result(timeout=5) is True
    assert [trial.stage for trial in trials(shared_database, run_id)] == ["judge", "judge"]


def test_a_lock_that_passes_is_waited_out(shared_database: Database) -> None:
    run_id = plan(shared_database, suite(1))
    original = writer._apply
    failures = [OperationalError("locked", None, Exception("locked")) for _ in range(2)]

    def failing(connection: Any, records: list[Any]) -> list[Any]:
        if failures:
            raise failures.pop()
        return original(connection, records)

    with patch.object(writer, "_apply", failing), held_back(shared_database) as opened:
        future = opened.submit(executed(claimed(shared_database, run_id)[0]))

    assert future.result() is True


def test_a_database_that_is_gone_fails_a_batch_at_once_rather_than_record_by_record(
    shared_database: Database,
) -> None:
    run_id = plan(shared_database, suite(50))
    tickets = claimed(shared_database, run_id)
    attempts: list[int] = []

    def failing(connection: Any, records: list[Any]) -> list[Any]:
        attempts.append(len(records))
        raise OperationalError("gone", None, Exception("gone"))

    with (
        patch.object(writer, "_apply", failing),
        patch.object(engine, "ATTEMPTS", 2),
        held_back(shared_database) as opened,
    ):
        futures = [opened.submit(executed(ticket)) for ticket in tickets]

    assert all(isinstance(future.exception(), OperationalError) for future in futures)
    assert attempts == [50, 50]


def test_what_was_handed_over_before_the_end_is_written(shared_database: Database) -> None:
    run_id = plan(shared_database, suite(30))
    opened = Writer(shared_database)
    for ticket in claimed(shared_database, run_id):
        opened.submit(executed(ticket))

    opened.close()

    assert summary(shared_database, run_id).progress.executed == 30


# --- counts ------------------------------------------------------------------------


def identity(progress: Progress) -> bool:
    """Whether every planned trial is in exactly one state."""
    parts = (progress.scored, progress.unscored, progress.errored, progress.skipped)
    return progress.planned == sum(parts) + progress.pending


def test_every_trial_is_in_one_state_at_every_moment(shared_database: Database) -> None:
    run_id = plan(shared_database, suite(8))
    tickets = claimed(shared_database, run_id)
    states = [ScoreState.SCORED, ScoreState.UNSCORED, ScoreState.ERRORED, ScoreState.SKIPPED]
    seen = [summary(shared_database, run_id).progress]
    for number, ticket in enumerate(tickets):
        write(shared_database, executed(ticket))
        seen.append(summary(shared_database, run_id).progress)
        moved = replace(ticket, stage=TrialStage.JUDGE)
        write(shared_database, decided(moved, state=states[number % 4]))
        seen.append(summary(shared_database, run_id).progress)

    assert all(identity(progress) and progress.planned == 8 for progress in seen)
    assert [progress.pending for progress in seen[::2]] == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    last = seen[-1]
    assert (last.scored, last.unscored, last.errored, last.skipped) == (2, 2, 2, 2)
    assert (last.executed, last.judged, last.exported) == (8, 8, 8)


def test_a_read_sees_one_state_of_the_run_while_others_write(shared_database: Database) -> None:
    run_id = plan(shared_database, suite(4))
    tickets = claimed(shared_database, run_id)

    with shared_database.read() as connection:
        before = queries.summary(connection, run_id)
        write(shared_database, *[executed(ticket) for ticket in tickets])
        after = queries.summary(connection, run_id)

    assert before.progress.executed == 0
    assert after == before
    assert summary(shared_database, run_id).progress.executed == 4


# --- attempts ----------------------------------------------------------------------


def test_a_failed_attempt_is_shown_until_a_later_one_succeeds(shared_database: Database) -> None:
    run_id = plan(shared_database, suite(1))
    [ticket] = claimed(shared_database, run_id)
    error = StageError(kind=ErrorKind.PROVISION, message="no room")

    write(
        shared_database,
        executed(ticket, next_stage=TrialStage.EXECUTE, error=error, observation=None),
    )
    [failed] = trials(shared_database, run_id)
    write(shared_database, executed(replace(ticket, attempt=2)))
    [succeeded] = trials(shared_database, run_id)

    assert (failed.attempt, failed.error_kind, failed.stage) == (2, "provision", "execute")
    assert failed.executed_at is None
    assert (succeeded.attempt, succeeded.error_kind) == (1, None)


def test_a_judging_that_succeeds_late_leaves_no_error_and_hides_none(
    shared_database: Database,
) -> None:
    run_id = plan(shared_database, suite(2))
    clean, exited = claimed(shared_database, run_id)
    exit_7 = StageError(kind=ErrorKind.HARNESS_EXIT, message="exit status 7")
    write(shared_database, executed(clean), executed(exited, error=exit_7))
    fault = StageError(kind=ErrorKind.INTERNAL, message="judge: boom")

    for ticket in (clean, exited):
        moved = replace(ticket, stage=TrialStage.JUDGE)
        write(shared_database, decided(moved, next_stage=TrialStage.JUDGE, error=fault))
        write(shared_database, decided(replace(moved, attempt=2)))

    errors = [(trial.error_stage, trial.error_kind) for trial in trials(shared_database, run_id)]
    assert errors == [(None, None), ("execute", "harness_exit")]


def test_a_judging_that_is_given_up_is_an_error_of_the_trial(shared_database: Database) -> None:
    run_id = plan(shared_database, suite(1))
    [ticket] = claimed(shared_database, run_id)
    write(shared_database, executed(ticket))
    fault = StageError(kind=ErrorKind.INTERNAL, message="judge: boom")

    write(shared_database, decided(replace(ticket, stage=TrialStage.JUDGE), error=fault))

    [trial] = trials(shared_database, run_id)
    assert (trial.error_stage, trial.error_message) == ("judge", "judge: boom")
