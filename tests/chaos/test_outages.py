"""What a run depends on breaks while it goes on: nothing is lost, and it ends as designed."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import OperationalError

import weirbox
from tests import postgres
from tests.chaos.outages import ROOT, command, executed, live_through, pause, until
from tests.chaos.suite import PRICE, suite
from tests.chaos.world import (
    World,
    assert_nothing_was_lost,
    money,
    outcome,
    planned_long_ago,
    undisturbed,
    world,
)
from tests.factories import driving, plan, trials
from weirbox.domain.words import RunStatus
from weirbox.services import Service, Services
from weirbox.settings import Settings
from weirbox.store.engine import Database, open_database

CASES, DRIVERS = 400, 3


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the suite comes to when nothing happens."""
    return outcome(*undisturbed(tmp_path_factory.mktemp("undisturbed") / "place", CASES))


# --- the store ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_outlives_restarts_of_postgresql(tmp_path: Path, expected: dict[str, Any]) -> None:
    programs = postgres.server_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    with postgres.restartable(programs) as server:
        postgres.create(server.place, "outage")
        url = postgres.url(server.place, "outage")
        database = open_database(url)
        planned = suite(tmp_path, cases=CASES, drivers=DRIVERS, usd=2 * PRICE * 4 * CASES)
        run_id = planned_long_ago(database, planned)

        def restarts() -> Iterator[None]:
            for share, down_s in ((0.1, 2.0), (0.5, 5.0)):
                while executed(database, run_id) < share * CASES:
                    yield
                server.stop()
                yield from pause(down_s)
                server.start()

        with world(tmp_path, url) as place:
            run, seconds = live_through(database, place, run_id, restarts())

        drivers = [kind for kind in place.kinds.values() if kind == "drive"]
        print(f"{seconds:.1f} s; drivers that were started: {len(drivers)}")
        assert run.status is RunStatus.COMPLETED
        assert_nothing_was_lost(database, place, run_id, expected)
        database.close()


def test_a_commit_whose_acknowledgement_is_lost_books_no_call_twice(
    database: Database, tmp_path: Path
) -> None:
    cases = 30
    reference, reference_run = undisturbed(tmp_path / "undisturbed", cases)
    calls = money(reference, reference_run)["calls"]
    run_id = plan(database, suite(tmp_path, cases=cases, drivers=1, usd=PRICE * calls))
    commits, lost = 0, 0
    commit: Any = DefaultDialect.do_commit

    def unheard(dialect: Any, connection: Any) -> None:
        nonlocal commits, lost
        commit(dialect, connection)
        commits += 1
        if commits % 3 == 0:
            lost += 1
            raise OperationalError("COMMIT", None, Exception("the connection is gone"))

    with patch.object(DefaultDialect, "do_commit", unheard):
        status = asyncio.run(asyncio.wait_for(driving(database, run_id), 120))

    assert status is RunStatus.COMPLETED
    assert lost > 10
    spent = money(database, run_id)
    assert (spent["calls"], spent["call_rows"]) == (calls, calls)
    assert spent["spent"] == spent["of_calls"] == spent["budget"]
    assert spent["reserved"] == 0
    assert outcome(database, run_id) == outcome(reference, reference_run)


@pytest.mark.slow
def test_a_full_disk_ends_the_command_with_one_message_and_resume_completes_the_run(
    tmp_path: Path,
) -> None:
    cases = 150
    expected = outcome(*undisturbed(tmp_path / "undisturbed", cases))
    settings = Settings(home=tmp_path / "home", database_url=None)
    run = weirbox.plan(suite(tmp_path, cases=cases, drivers=1, usd=100), settings=settings)
    database = Database(settings.store_url)
    pages = pages_of(database)

    stopped = command(database, "resume", run.id, "--engine", "direct", pages=pages + 60)

    assert stopped.returncode == 1
    assert_one_message(stopped.stderr, run.id, "database or disk is full")
    before = trials(database, run.id)
    assert 0 < sum(row.judged_at is not None for row in before) < cases
    resumed = command(database, "resume", run.id, "--engine", "direct")
    assert resumed.returncode == 0, resumed.stderr
    assert_nothing_was_lost(database, World(tmp_path, database.url), run.id, expected)
    assert_executed_once(before, trials(database, run.id))
    database.close()


@pytest.mark.slow
def test_a_full_disk_of_postgresql_ends_the_command_and_resume_completes_the_run(
    tmp_path: Path,
) -> None:
    programs = postgres.server_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    cases = 150
    expected = outcome(*undisturbed(tmp_path / "undisturbed", cases))
    with postgres.restartable(programs) as server, small_disk(server, megabytes=16) as disk:
        postgres.create(server.place, "full", on=disk / "data")
        database = open_database(postgres.url(server.place, "full"))
        run_id = plan(database, suite(tmp_path, cases=cases, drivers=1, usd=100))
        fill(disk)

        stopped = command(database, "resume", run_id, "--engine", "direct")

        assert stopped.returncode == 1
        assert_one_message(stopped.stderr, run_id, "No space left on device")
        before = trials(database, run_id)
        (disk / "filler").unlink()
        resumed = command(database, "resume", run_id, "--engine", "direct")
        assert resumed.returncode == 0, resumed.stderr
        assert_nothing_was_lost(database, World(tmp_path, database.url), run_id, expected)
        assert_executed_once(before, trials(database, run_id))
        database.close()


def pages_of(database: Database) -> int:
    """How large a SQLite database is."""
    with database.read() as connection:
        return int(connection.exec_driver_sql("PRAGMA page_count").scalar_one())


def assert_one_message(said: str, run_id: str, reason: str) -> None:
    """Hold that a command says why it stopped and how it goes on, without a traceback."""
    (line,) = [line for line in said.split("\n") if line.startswith("error:")]
    assert f"run {run_id} stopped, since the database failed: " in line
    assert reason in line
    assert line.endswith(f"weirbox resume {run_id}")
    assert "Traceback" not in said
    assert "never retrieved" not in said


def assert_executed_once(before: list[Any], after: list[Any]) -> None:
    """Hold that no trial whose execution was committed was executed again."""
    done = {row.seq: row.executed_at for row in before if row.executed_at is not None}
    found = {row.seq: row.executed_at for row in after}
    assert done
    assert {seq: found[seq] for seq in done} == done


@contextmanager
def small_disk(server: postgres.Server, *, megabytes: int) -> Iterator[Path]:
    """A disk that the server keeps databases on."""
    disk = server.place / "disk"
    disk.mkdir()
    size = f"size={megabytes}m,mode=777"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", disk], check=False)
    if mounted.returncode != 0:
        pytest.skip("no small disk can be mounted here")
    try:
        (disk / "data").mkdir()
        shutil.chown(disk / "data", server.place.owner())
        yield disk
    finally:
        server.stop()
        subprocess.run(["umount", disk], check=True)


def fill(disk: Path) -> None:
    """Leave next to no room on a disk."""
    with (disk / "filler").open("wb") as filler:
        filler.truncate()
        free = os.statvfs(disk)
        os.posix_fallocate(filler.fileno(), 0, free.f_bavail * free.f_frsize - 16 * 4096)


# --- Prefect's server ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("back_after_s", [30.0, None], ids=["30-s", "for-good"])
def test_a_run_goes_on_while_its_prefect_server_is_gone(
    tmp_path: Path, back_after_s: float | None
) -> None:
    cases = 300 if back_after_s is None else 900
    expected = outcome(*undisturbed(tmp_path / "undisturbed", cases))
    settings = Settings(home=tmp_path / "home", database_url=None)
    planned = suite(tmp_path, cases=cases, drivers=1, usd=2 * PRICE * 4 * cases)
    run = weirbox.plan(planned, settings=settings)
    services = Services(tmp_path / "server")
    try:
        server = services.start_prefect()
        services.wait(server, "/api/health")
        with driving_in(server, run.id, settings, tmp_path) as process:
            until(lambda: run.progress().executed >= cases // 4 or process.poll() is not None)
            services.stop("prefect")
            gone = time.monotonic()
            if back_after_s is not None:
                until(lambda: time.monotonic() - gone > back_after_s)
                assert run.progress().executed < cases
                services.start_prefect()
            until(lambda: run.progress().exported == cases or process.poll() is not None)
            done_s = time.monotonic() - gone
            process.wait(PROCESS_END_S)
            print(
                f"all done {done_s:.0f} s after the end of the server, and the process after "
                f"{time.monotonic() - gone:.0f} s"
            )
    finally:
        services.stop("prefect")

    said = (tmp_path / "said").read_text()
    assert process.returncode == 0, said
    assert "Traceback" not in said
    with closing(Database(settings.store_url)) as database:
        assert_nothing_was_lost(database, World(tmp_path, database.url), run.id, expected)


PROCESS_END_S = 45.0
"""How long a process may take to end once its work is done, whatever its server does: some
requests that are tried again, on a busy machine."""


@contextmanager
def driving_in(
    server: Service, run_id: str, settings: Settings, folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A command that drives a run in a Prefect server; what still runs at the end is killed."""
    places = {
        "WEIRBOX_HOME": str(settings.home),
        "PREFECT_API_URL": f"{server.url}/api",
        "PREFECT_HOME": str(folder / "prefect"),
    }
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.full", "0", "resume", run_id],
            env={name: value for name, value in os.environ.items() if "_API_URL" not in name}
            | places,
            cwd=ROOT,
            stdout=said,
            stderr=said,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
