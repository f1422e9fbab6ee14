"""The store: one behaviour on both back ends, nothing lost, nothing changed on the way."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import func, select, text
from sqlmodel import SQLModel

from tests import postgres
from tests.factories import judged, plan, scores, suite, summary, trials
from tests.results import claimed, executed, write
from weirbox.domain.case import Case
from weirbox.domain.score import JudgeCall, Score
from weirbox.domain.trace import Observation, StageError, Usage
from weirbox.domain.words import Reason, ScoreState, Tier
from weirbox.errors import ServiceError, UserError
from weirbox.store import plans, queries
from weirbox.store.base import EVENT, RUN
from weirbox.store.engine import Database, open_database, upgrade
from weirbox.store.rows import pack, pack_case, pack_observation, unpack, unpack_case
from weirbox.store.spending import Settlement
from weirbox.store.writer import Writer
from weirbox.store.writes import note


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


# --- the schema --------------------------------------------------------------------


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


# --- what goes in comes out --------------------------------------------------------

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


def test_a_case_and_an_observation_come_back_as_they_were(shared_database: Database) -> None:
    case = Case(id="../x\0\ud800", input={"n": math.nan}, target=[1, 1.0, True], record={"a": "\0"})
    observation = Observation(output="\udcff\0", error=StageError(kind="parse", message="\0"))
    with shared_database.write() as connection:
        rows = [pack_case(case), pack_observation(observation)]
        plans.add_payloads(connection, [{"digest": d, "body": b} for d, b in rows])

    with shared_database.read() as connection:
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


def test_a_score_comes_back_whole(shared_database: Database) -> None:
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

    [found] = written_scores(shared_database, given).values()

    escaped = {"name": "tone.\\x00formal", "rationale": "I cannot \\ud800 help"}
    assert found == given.model_copy(update=escaped | {"model": "model\\x00"})


def test_a_moment_of_any_zone_comes_back_aware_and_the_same(shared_database: Database) -> None:
    elsewhere = datetime(2026, 11, 1, 1, 30, 0, 123456, tzinfo=timezone(timedelta(hours=5.5)))
    run_id = plan(shared_database, suite(1))
    [ticket] = claimed(shared_database, run_id)

    write(shared_database, executed(ticket, started_at=elsewhere))

    [trial] = trials(shared_database, run_id)
    assert trial.execute_started_at == elsewhere
    assert trial.execute_started_at.utcoffset() == timedelta(0)


# --- finding runs ------------------------------------------------------------------


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
        pytest.raises(UserError, match=r"there is no run|fits several runs|is empty"),
        database.read() as connection,
    ):
        queries.find_run_id(connection, wanted)


def test_what_judges_cost_is_a_sum_without_rounding(shared_database: Database) -> None:
    run_id = plan(shared_database, judged(1))
    [ticket] = claimed(shared_database, run_id)
    call = JudgeCall(
        check="c",
        tier="primary",
        model="m",
        provider="p",
        request_digest="d",
        usage=Usage(cost_usd=0.1),
    )
    with writing(shared_database) as opened:
        for _ in range(30):
            opened.submit(Settlement(ticket, None, call))

    found = summary(shared_database, run_id)
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
