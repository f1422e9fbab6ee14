"""The store: one behaviour on both back ends, nothing lost, nothing changed on the way."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import func, insert, select, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlmodel import SQLModel

from tests import postgres
from tests.factories import judged, plan, scores, suite, summary, trials
from weirbox.domain.case import Case
from weirbox.domain.run import Progress
from weirbox.domain.score import JudgeCall, Proposal, Score
from weirbox.domain.trace import Observation, StageError, Usage
from weirbox.domain.words import (
    Disposition,
    ErrorKind,
    ExportStatus,
    ProposedAction,
    Reason,
    RunStatus,
    ScoreState,
    Stage,
    Tier,
    TrialStage,
    Verdict,
)
from weirbox.errors import ServiceError, UserError
from weirbox.store import claims, plans, queries, writer
from weirbox.store.base import CALL, EVENT, EXPORT, PAYLOAD, PROPOSAL, RUN, SCORE, TRIAL
from weirbox.store.engine import Database, open_database, upgrade
from weirbox.store.rows import (
    ExportRecord,
    StageResult,
    Ticket,
    pack,
    pack_case,
    pack_observation,
    unpack,
    unpack_case,
)
from weirbox.store.spending import Settlement
from weirbox.store.writer import Writer
from weirbox.store.writes import change_status, note, write_stage_results

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


def claimed(database: Database, run_id: str, limit: int = 100) -> list[Ticket]:
    """Claim trials as a driver would."""
    with database.write() as connection:
        token = claims.open_claim(connection, run_id, driver="here:1:1", lease_s=30)
        return claims.claim_trials(connection, run_id, token, limit)


def executed(ticket: Ticket, **changes: Any) -> StageResult:
    """The end of an execute stage."""
    found = StageResult(
        ticket=ticket,
        stage=Stage.EXECUTE,
        started_at=NOW,
        ended_at=NOW + timedelta(seconds=1),
        next_stage=TrialStage.JUDGE,
        observation=pack_observation(Observation(output=f"of {ticket.seq}")),
    )
    return replace(found, **changes)


def decided(ticket: Ticket, **changes: Any) -> StageResult:
    """The end of a judge stage that leaves nothing to do."""
    found = StageResult(
        ticket=ticket,
        stage=Stage.JUDGE,
        started_at=NOW,
        ended_at=NOW + timedelta(seconds=1),
        next_stage=TrialStage.DONE,
        state=ScoreState.SCORED,
        verdict=Verdict.PASS,
        disposition=Disposition.CLEAN,
        deciding="objective",
    )
    return replace(found, **changes)


def write(database: Database, *results: StageResult) -> list[bool]:
    """Write results in one transaction."""
    with database.write() as connection:
        return write_stage_results(connection, results)


def written_scores(database: Database, *given: Score) -> dict[str, Score]:
    """What is read back of scores on one trial."""
    run_id = plan(database, suite(1))
    [ticket] = claimed(database, run_id)
    assert write(database, executed(ticket, scores=given)) == [True]
    return scores(database, run_id)


def count(database: Database, table: Any) -> int:
    """How many rows a table has."""
    with database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


# --- the schema -------------------------------------------------------------------


def test_the_newest_migration_gives_what_the_models_say(database: Database) -> None:
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = compare_metadata(context, SQLModel.metadata)

    assert differences == []


def test_upgrading_twice_changes_nothing_and_keeps_the_rows(database: Database) -> None:
    run_id = plan(database, suite(2))
    before = trials(database, run_id)

    upgrade(database)
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = version_num"))
    upgrade(database)

    assert trials(database, run_id) == before


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without any table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/fresh.db"
        return
    place = request.getfixturevalue("postgres_server")
    postgres.create(place, "empty")
    yield postgres.url(place, "empty")
    postgres.drop(place, "empty")


def test_two_processes_that_open_a_new_database_at_once_both_can_use_it(empty_url: str) -> None:
    script = (
        "import sys\n"
        "from weirbox.store.engine import open_database\n"
        "from weirbox.store import queries\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "database = open_database(sys.argv[1])\n"
        "with database.read() as connection: print(queries.summaries(connection))\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, empty_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    ended = [(process.communicate("go\n")[0], process.returncode) for process in processes]

    assert ended == [("[]\n", 0), ("[]\n", 0)]


def test_a_database_of_a_newer_version_is_refused_by_name(database: Database) -> None:
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    with pytest.raises(ServiceError, match="another version of weirbox"):
        upgrade(database)


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        pytest.param("no url", UserError, "WEIRBOX_DATABASE_URL", id="malformed"),
        pytest.param("mysql://h/d", UserError, "WEIRBOX_DATABASE_URL", id="another-kind"),
        pytest.param("sqlite:////proc/none/w.db", ServiceError, "cannot be used", id="no-folder"),
        pytest.param(
            "postgresql://me:hidden-word@/d?host=/none", ServiceError, "cannot be used", id="gone"
        ),
    ],
)
def test_a_database_that_cannot_be_had_is_named_without_its_password(
    url: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        open_database(url)

    assert "hidden-word" not in str(raised.value)


# --- what goes in comes out -------------------------------------------------------

TEXTS = {
    "nul": ("a\0b", "a\\x00b"),
    "lone-surrogate": ("a\ud800b", "a\\ud800b"),
    "emoji": ("a😀b", "a😀b"),
    "right-to-left": ("a\u202eb", "a\u202eb"),
    "quotes": ("'; DROP TABLE run; --", "'; DROP TABLE run; --"),
    "empty": ("", ""),
    "long": ("x" * 100_000, "x" * 100_000),
}


@pytest.mark.parametrize(("given", "kept"), TEXTS.values(), ids=TEXTS)
def test_text_that_a_database_refuses_stands_escaped(
    given: str, kept: str, shared_database: Database
) -> None:
    run_id = plan(shared_database, suite(1))

    with shared_database.write() as connection:
        note(connection, run_id, kind="warning", message=given)

    with shared_database.read() as connection:
        assert queries.events_of(connection, run_id)[-1].message == kept


JSON = {
    "nul-and-surrogate": ["a\0b", "\udfff", {"k\0": "\ud800"}],
    "infinities": [math.inf, -math.inf],
    "large-int": 2**200,
    "types": [1, 1.0, True, "1", None, 0, False, -0.0],
    "deep": [[[[[[[[{"a": [1]}]]]]]]]],
    "emoji": {"😀": "😀"},
}


@pytest.mark.parametrize("value", JSON.values(), ids=JSON)
def test_json_comes_back_as_it_was(value: Any, shared_database: Database) -> None:
    run_id = plan(shared_database, suite(1))
    digest, body = pack(value)
    with shared_database.write() as connection:
        plans.add_payloads(connection, [{"digest": digest, "body": body}])
        connection.execute(RUN.update().where(RUN.c.id == run_id).values(tags=value))

    with shared_database.read() as connection:
        packed = unpack(queries.payload(connection, digest))
        column = connection.execute(select(RUN.c.tags).where(RUN.c.id == run_id)).scalar_one()

    assert repr(packed) == repr(value) == repr(column)


def test_a_case_and_an_observation_come_back_as_they_were(database: Database) -> None:
    case = Case(id="../x\0\ud800", input={"n": math.nan}, target=[1, 1.0, True], record={"a": "\0"})
    observation = Observation(output="\udcff\0", error=StageError(kind="parse", message="\0"))
    with database.write() as connection:
        rows = [pack_case(case), pack_observation(observation)]
        plans.add_payloads(connection, [{"digest": d, "body": b} for d, b in rows])

    with database.read() as connection:
        found = unpack_case(queries.payload(connection, rows[0][0]))
        seen = queries.load_observation(connection, rows[1][0])

    assert repr(found) == repr(case)
    assert seen == observation


VALUES: dict[str, Any] = {
    "int": 1,
    "float": 1.0,
    "true": True,
    "text": "1",
    "zero": 0,
    "zero-float": 0.0,
    "false": False,
    "empty-text": "",
    "negative": -7,
    "small": 5e-324,
    "exact": 0.1,
    "beyond-a-float": 10**400,
    "beyond-53-bits": 2**53 + 1,
    "not-a-number": math.nan,
    "infinite": math.inf,
    "minus-infinite": -math.inf,
    "nul": "a\\x00b",
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_keeps_its_type_and_its_last_digit(value: Any, shared_database: Database) -> None:
    found = written_scores(shared_database, Score(name="check", value=value))["check"].value

    assert type(found) is type(value)
    assert found == value or (math.isnan(found) and math.isnan(value))


def test_a_score_comes_back_whole(database: Database) -> None:
    given = Score(
        name="tone.\0formal",
        state=ScoreState.UNSCORED,
        reason=Reason.REFUSAL,
        source="judge",
        authority="judge",
        required=False,
        confidence=0.25,
        rationale="I cannot \ud800 help",
        tier=Tier.ESCALATION,
        model="model\0",
        judgement="uncertain",
        outcome="review",
        detail={"stack": ["a\0", math.inf]},
        duration=0.125,
    )

    [found] = written_scores(database, given).values()

    escaped = {"name": "tone.\\x00formal", "rationale": "I cannot \\ud800 help"}
    assert found == given.model_copy(update=escaped | {"model": "model\\x00"})


def test_a_moment_of_any_zone_comes_back_aware_and_the_same(database: Database) -> None:
    elsewhere = datetime(2026, 11, 1, 1, 30, 0, 123456, tzinfo=timezone(timedelta(hours=5.5)))
    run_id = plan(database, suite(1))
    [ticket] = claimed(database, run_id)

    write(database, executed(ticket, started_at=elsewhere))

    [trial] = trials(database, run_id)
    assert trial.execute_started_at == elsewhere
    assert trial.execute_started_at.utcoffset() == timedelta(0)


# --- uniqueness -------------------------------------------------------------------


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


def test_a_change_of_status_is_made_once_and_from_live_states_only(database: Database) -> None:
    run_id = plan(database, suite(1))
    with database.write() as connection:
        changes = [
            change_status(connection, run_id, to=status, reason="why")
            for status in (RunStatus.CANCELLED, RunStatus.CANCELLED, RunStatus.COMPLETED)
        ]

    assert changes == [True, False, False]
    found = summary(database, run_id)
    assert (found.status, found.reason) == (RunStatus.CANCELLED, "why")
    with database.read() as connection:
        kinds = [event.kind for event in queries.events_of(connection, run_id)]
    assert kinds == ["planned", "cancelled"]


# --- group commit -----------------------------------------------------------------


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


def test_one_record_that_the_database_refuses_takes_no_other_along(database: Database) -> None:
    run_id = plan(database, suite(5))
    tickets = claimed(database, run_id)
    poison = executed(tickets[2], compute_s="not a number")

    with held_back(database) as opened:
        futures = [
            opened.submit(poison if ticket is tickets[2] else executed(ticket))
            for ticket in tickets
        ]

    failed = [future.exception() is not None for future in futures]
    assert failed == [False, False, True, False, False]
    stages = [trial.stage for trial in trials(database, run_id)]
    assert stages == ["judge", "judge", "execute", "judge", "judge"]


def test_records_that_arrive_together_share_a_transaction(database: Database) -> None:
    run_id = plan(database, suite(20))
    transactions: list[int] = []
    original = writer._apply

    def counting(connection: Any, records: list[Any]) -> list[Any]:
        transactions.append(len(records))
        return original(connection, records)

    with patch.object(writer, "_apply", counting), held_back(database) as opened:
        for ticket in claimed(database, run_id):
            opened.submit(executed(ticket))

    assert transactions == [20]
    assert summary(database, run_id).progress.executed == 20


def test_who_stops_waiting_for_a_record_stops_neither_it_nor_the_writer(
    database: Database,
) -> None:
    run_id = plan(database, suite(2))
    first, second = claimed(database, run_id)

    with held_back(database) as opened:
        given_up: Future[Any] = opened.submit(executed(first))
        given_up.cancel()
        waited_for = opened.submit(executed(second))

    assert waited_for.result(timeout=5) is True
    assert [trial.stage for trial in trials(database, run_id)] == ["judge", "judge"]


def test_a_lock_that_passes_is_waited_out(database: Database) -> None:
    run_id = plan(database, suite(1))
    original = writer._apply
    failures = [OperationalError("locked", None, Exception("locked")) for _ in range(2)]

    def failing(connection: Any, records: list[Any]) -> list[Any]:
        if failures:
            raise failures.pop()
        return original(connection, records)

    with patch.object(writer, "_apply", failing), held_back(database) as opened:
        future = opened.submit(executed(claimed(database, run_id)[0]))

    assert future.result() is True


def test_a_database_that_is_gone_fails_a_batch_at_once_rather_than_record_by_record(
    database: Database,
) -> None:
    run_id = plan(database, suite(50))
    tickets = claimed(database, run_id)
    attempts: list[int] = []

    def failing(connection: Any, records: list[Any]) -> list[Any]:
        attempts.append(len(records))
        raise OperationalError("gone", None, Exception("gone"))

    with (
        patch.object(writer, "_apply", failing),
        patch.object(writer, "LOCK_ATTEMPTS", 2),
        held_back(database) as opened,
    ):
        futures = [opened.submit(executed(ticket)) for ticket in tickets]

    assert all(isinstance(future.exception(), OperationalError) for future in futures)
    assert attempts == [50, 50]


def test_what_was_handed_over_before_the_end_is_written(database: Database) -> None:
    run_id = plan(database, suite(30))
    opened = Writer(database)
    for ticket in claimed(database, run_id):
        opened.submit(executed(ticket))

    opened.close()

    assert summary(database, run_id).progress.executed == 30


# --- counts -----------------------------------------------------------------------


def identity(progress: Progress) -> bool:
    """Whether every planned trial is in exactly one state."""
    parts = (progress.scored, progress.unscored, progress.errored, progress.skipped)
    return progress.planned == sum(parts) + progress.pending


def test_every_trial_is_in_one_state_at_every_moment(database: Database) -> None:
    run_id = plan(database, suite(8))
    tickets = claimed(database, run_id)
    states = [ScoreState.SCORED, ScoreState.UNSCORED, ScoreState.ERRORED, ScoreState.SKIPPED]
    seen = [summary(database, run_id).progress]
    for number, ticket in enumerate(tickets):
        write(database, executed(ticket))
        seen.append(summary(database, run_id).progress)
        moved = replace(ticket, stage=TrialStage.JUDGE)
        write(database, decided(moved, state=states[number % 4]))
        seen.append(summary(database, run_id).progress)

    assert all(identity(progress) and progress.planned == 8 for progress in seen)
    assert [progress.pending for progress in seen[::2]] == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    last = seen[-1]
    assert (last.scored, last.unscored, last.errored, last.skipped) == (2, 2, 2, 2)
    assert (last.executed, last.judged, last.exported) == (8, 8, 8)


def test_a_read_sees_one_state_of_the_run_while_others_write(database: Database) -> None:
    run_id = plan(database, suite(4))
    tickets = claimed(database, run_id)

    with database.read() as connection:
        before = queries.summary(connection, run_id)
        write(database, *[executed(ticket) for ticket in tickets])
        after = queries.summary(connection, run_id)

    assert before.progress.executed == 0
    assert after == before
    assert summary(database, run_id).progress.executed == 4


# --- attempts ---------------------------------------------------------------------


def test_a_failed_attempt_is_shown_until_a_later_one_succeeds(database: Database) -> None:
    run_id = plan(database, suite(1))
    [ticket] = claimed(database, run_id)
    error = StageError(kind=ErrorKind.PROVISION, message="no room")

    write(database, executed(ticket, next_stage=TrialStage.EXECUTE, error=error, observation=None))
    [failed] = trials(database, run_id)
    write(database, executed(replace(ticket, attempt=2)))
    [succeeded] = trials(database, run_id)

    assert (failed.attempt, failed.error_kind, failed.stage) == (2, "provision", "execute")
    assert failed.executed_at is None
    assert (succeeded.attempt, succeeded.error_kind) == (1, None)


def test_a_judging_that_succeeds_late_leaves_no_error_and_hides_none(database: Database) -> None:
    run_id = plan(database, suite(2))
    clean, exited = claimed(database, run_id)
    exit_7 = StageError(kind=ErrorKind.HARNESS_EXIT, message="exit status 7")
    write(database, executed(clean), executed(exited, error=exit_7))
    fault = StageError(kind=ErrorKind.INTERNAL, message="judge: boom")

    for ticket in (clean, exited):
        moved = replace(ticket, stage=TrialStage.JUDGE)
        write(database, decided(moved, next_stage=TrialStage.JUDGE, error=fault))
        write(database, decided(replace(moved, attempt=2)))

    errors = [(trial.error_stage, trial.error_kind) for trial in trials(database, run_id)]
    assert errors == [(None, None), ("execute", "harness_exit")]


def test_a_judging_that_is_given_up_is_an_error_of_the_trial(database: Database) -> None:
    run_id = plan(database, suite(1))
    [ticket] = claimed(database, run_id)
    write(database, executed(ticket))
    fault = StageError(kind=ErrorKind.INTERNAL, message="judge: boom")

    write(database, decided(replace(ticket, stage=TrialStage.JUDGE), error=fault))

    [trial] = trials(database, run_id)
    assert (trial.error_stage, trial.error_message) == ("judge", "judge: boom")


# --- finding runs -----------------------------------------------------------------


def test_a_run_is_found_by_a_beginning_that_fits_no_other(database: Database) -> None:
    first, second = plan(database, suite(1)), plan(database, suite(1, suite="other"))

    with database.read() as connection:
        found = [queries.find_run_id(connection, text) for text in (first, "oth", "latest")]

    assert found == [first, second, second]


@pytest.mark.parametrize("wanted", ["%", "_", "nothing", ""])
def test_a_run_that_is_not_there_is_refused_by_name(wanted: str, database: Database) -> None:
    plan(database, suite(1))
    plan(database, suite(1))

    with (
        pytest.raises(UserError, match=r"there is no run|fits several runs"),
        database.read() as connection,
    ):
        queries.find_run_id(connection, wanted)


def test_what_judges_cost_is_a_sum_without_rounding(database: Database) -> None:
    run_id = plan(database, judged(1))
    [ticket] = claimed(database, run_id)
    call = JudgeCall(
        check="c",
        tier="primary",
        model="m",
        provider="p",
        request_digest="d",
        usage=Usage(cost_usd=0.1),
    )
    with writing(database) as opened:
        for _ in range(30):
            opened.submit(Settlement(ticket, None, call))

    found = summary(database, run_id)
    assert (found.cost_usd, found.calls) == (3.0, 30)


@contextmanager
def writing(database: Database) -> Iterator[Writer]:
    """A writer that has written everything when the block ends."""
    opened = Writer(database)
    try:
        yield opened
    finally:
        opened.close()


def test_events_are_read_in_the_order_in_which_they_were_noted(database: Database) -> None:
    run_id = plan(database, suite(1))
    with database.write() as connection:
        for number in range(5):
            note(connection, run_id, kind="warning", message=str(number))

    with database.read() as connection:
        found = [event.message for event in queries.events_of(connection, run_id)]

    assert found[1:] == ["0", "1", "2", "3", "4"]
    assert count(database, EVENT) == 6
