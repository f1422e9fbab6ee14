"""Migrations: an older database is refused until it is migrated, and loses nothing then.

``first_schema.sql`` is a database of the first schema as SQLite dumps it: one finalized run
of three trials, and one that was left half-way: three trials done, one executed.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Boolean, DateTime, MetaData, Table, delete, insert, inspect, select, text
from sqlmodel import SQLModel

from tests import postgres
from tests.factories import PASSES, Fakes, go_on, plan, suite, summary, timeline, trials
from tests.processes import outputs, started
from weirbox.domain.run import Verdicts
from weirbox.domain.words import RunStatus
from weirbox.errors import NotPossible, ServiceError
from weirbox.frames import results_frame
from weirbox.store import claims, engine, queries
from weirbox.store.base import CALL, CLAIM
from weirbox.store.engine import HEAD, Database, Migrated, migrate, open_database
from weirbox.store.views.opening import open_reader
from weirbox.testing import ReplayJudge

FIRST = Path(__file__).with_name("first_schema.sql")

FIRST_VERSION = "0001"


class Old(NamedTuple):
    """A database of the first schema, and its runs."""

    url: str
    finished: str
    live: str


@pytest.fixture(params=["sqlite", "postgresql"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Old]:
    """The database of the dump, on each back end."""
    with sqlite3.connect(":memory:") as dumped:
        dumped.executescript(FIRST.read_text())
        runs = [row[0] for row in dumped.execute("SELECT id FROM run ORDER BY created_at")]
        if request.param == "sqlite":
            with sqlite3.connect(tmp_path / "old.db") as file:
                dumped.backup(file)
            file.close()
            yield Old(f"sqlite:///{tmp_path}/old.db", *runs)
            return
        place = request.getfixturevalue("postgres_server")
        postgres.create(place, "old")
        url = postgres.url(place, "old")
        _copy(dumped, url)
    yield Old(url, *runs)
    postgres.drop(place, "old")


def _copy(dumped: sqlite3.Connection, url: str) -> None:
    """Bring the first schema, and the rows of the dump, to PostgreSQL."""
    database = Database(url)
    config = Config()
    config.set_main_option(
        "script_location", str(Path(engine.__file__).with_name("migrations").absolute())
    )
    with database.write() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, FIRST_VERSION)
        found = MetaData()
        found.reflect(connection)
        for table in found.sorted_tables:
            rows = _rows(dumped, table)
            if rows and table.name != "alembic_version":
                connection.execute(insert(table), rows)
        for table, column in (("claim", "token"), ("judge_call", "id"), ("run_event", "id")):
            connection.execute(
                text(
                    f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), "
                    f"(SELECT max({column}) FROM {table}))"
                )
            )
    database.close()


def _rows(dumped: sqlite3.Connection, table: Table) -> list[dict[str, Any]]:
    cursor = dumped.execute(f'SELECT * FROM "{table.name}"')
    names = [column[0] for column in cursor.description]
    return [
        {name: _typed(table, name, value) for name, value in zip(names, row, strict=True)}
        for row in cursor
    ]


def _typed(table: Table, name: str, value: Any) -> Any:
    kind = table.c[name].type
    if value is not None and isinstance(kind, DateTime):
        return datetime.fromisoformat(value).replace(tzinfo=UTC)
    return bool(value) if value is not None and isinstance(kind, Boolean) else value


def migrated(old: Old) -> Database:
    """Open the old database after it was migrated."""
    assert migrate(old.url) == Migrated(FIRST_VERSION, HEAD)
    return open_database(old.url)


def version(url: str) -> str | None:
    """The version of a database's schema."""
    database = Database(url)
    try:
        return engine.schema_version(database)
    finally:
        database.close()


# --- refusing -----------------------------------------------------------------------


def test_an_older_database_is_refused_with_both_versions_and_the_way_out(old: Old) -> None:
    said = rf"{FIRST_VERSION}.* needs {HEAD}.*back.*up.*weirbox migrate"

    with pytest.raises(ServiceError, match=said):
        open_database(old.url)
    with pytest.raises(NotPossible, match=said):
        open_reader(old.url)

    assert version(old.url) == FIRST_VERSION


def test_a_newer_database_is_refused_and_not_taken_back(old: Old) -> None:
    database = migrated(old)
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()

    for opening in (open_database, migrate):
        with pytest.raises(ServiceError, match=rf"9999.*{HEAD}.*upgrade weirbox"):
            opening(old.url)

    assert version(old.url) == "9999"


# --- migrating ----------------------------------------------------------------------


def test_migrating_gives_what_the_models_say_and_is_done_once(old: Old) -> None:
    database = migrated(old)

    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, SQLModel.metadata) == []
    assert migrate(old.url) == Migrated(HEAD, HEAD)
    database.close()


def test_everything_of_before_can_still_be_read(old: Old) -> None:
    database = migrated(old)

    found = summary(database, old.finished)
    assert (found.status, found.verdicts) == (RunStatus.COMPLETED, Verdicts(passed=2, failed=1))
    assert set(found.metrics) == {"match", "quality"}
    assert (found.calls, found.budget_usd, found.alerts, found.managed) == (3, 1.0, (), False)
    assert [kind for kind, _ in timeline(database, old.finished)] == [
        *("planned", "running", "completed", "finalized")
    ]
    with database.read() as connection:
        assert queries.load_plan(connection, old.finished).suite.suite == "finished"
        assert queries.scorecard(connection, old.finished) is not None
        row = queries.trial_row(connection, old.finished, 0)
        assert queries.load_observation(connection, row.observation).output == "in 0"
        assert queries.load_case(connection, row.case_digest).id == "case-0"
        assert (row.round, row.redo) == (1, None)
        scores = queries.load_scores(connection, old.finished, 0)
        assert {score.name: score.passed for score in scores} == {"match": False, "quality": True}
        assert [call.check for call in queries.load_calls(connection, old.finished, 0, round=1)]
        assert len(queries.proposals_of(connection, old.finished, 0)) == 1
        assert list(results_frame(connection, old.finished)["verdict"]) == ["fail", "pass", "pass"]
    database.close()


def test_a_run_that_was_half_way_is_resumed_to_its_end(old: Old) -> None:
    database = migrated(old)
    before = trials(database, old.live)
    assert [trial.stage for trial in before] == ["done"] * 3 + ["judge"] + ["execute"] * 2

    run = go_on(database, old.live, fakes=Fakes(provider=ReplayJudge(lambda request: PASSES)))

    after = trials(database, old.live)
    assert (run.status, run.finalizing, run.progress.scored) == (RunStatus.COMPLETED, False, 6)
    assert run.verdicts == Verdicts(passed=4, failed=2)
    assert [trial.executed_at for trial in after[:4]] == [trial.executed_at for trial in before[:4]]
    assert [trial.judged_at for trial in after[:3]] == [trial.judged_at for trial in before[:3]]
    with database.read() as connection:
        called = connection.execute(select(CALL.c.seq).where(CALL.c.run_id == old.live))
        assert sorted(called.scalars()) == [0, 1, 2, 3, 4, 5]
    database.close()


def test_tokens_of_claims_are_never_used_again(old: Old) -> None:
    database = migrated(old)
    with database.write() as connection:
        newest = max(connection.execute(select(CLAIM.c.token)).scalars())
        connection.execute(delete(CLAIM))

        token = claims.open_claim(connection, old.live, driver="here:1:1", lease_s=30)

    assert token == newest + 1
    database.close()


def test_processes_that_migrate_at_once_do_it_once(old: Old) -> None:
    script = (
        "import sys\n"
        "from weirbox.store.engine import migrate\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "print(*migrate(sys.argv[1]))\n"
    )

    with started(*[("-c", script, old.url)] * 3) as processes:
        found = sorted(outputs(processes))

    assert found == [f"{FIRST_VERSION} {HEAD}\n", f"{HEAD} {HEAD}\n", f"{HEAD} {HEAD}\n"]
    database = open_database(old.url)
    assert summary(database, old.finished).status is RunStatus.COMPLETED
    database.close()


def test_a_migration_that_fails_leaves_everything_as_it_was(old: Old) -> None:
    database = Database(old.url)
    with database.write() as connection:
        connection.execute(text("CREATE TABLE score_history (in_the_way INTEGER)"))
        before = set(inspect(connection).get_table_names())

    with pytest.raises(ServiceError, match="score_history"):
        migrate(old.url)

    with database.read() as connection:
        assert set(inspect(connection).get_table_names()) == before
    assert version(old.url) == FIRST_VERSION
    database.close()


def test_an_empty_database_gets_its_tables_when_it_is_first_used(tmp_path: Path) -> None:
    opened = open_database(f"sqlite:///{tmp_path}/fresh.db")

    run_id = plan(opened, suite(1))

    assert summary(opened, run_id).progress.planned == 1
    assert migrate(opened.url) == Migrated(HEAD, HEAD)
    opened.close()


def test_the_command_says_from_which_version_to_which(old: Old) -> None:
    env = os.environ | {"WEIRBOX_DATABASE_URL": old.url}
    weirbox = [sys.executable, "-c", "from weirbox.cli import main; main()"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*weirbox, *arguments], capture_output=True, text=True, env=env)

    refused, first, again = run("list"), run("migrate", "--json"), run("migrate")

    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: the database's schema is 0001")
    assert json.loads(first.stdout) == {"before": FIRST_VERSION, "after": HEAD}
    assert f"from schema {FIRST_VERSION} to {HEAD}" in first.stderr
    assert again.stderr.rstrip().endswith(f"has schema {HEAD} already: nothing to do")
    assert (first.returncode, again.returncode, again.stdout) == (0, 0, "")
