"""What a run depends on breaks while it goes on: nothing is lost, and it ends as designed."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import select
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import OperationalError

import weirbox
from tests import factories, postgres
from tests.chaos.outages import executed, live_through, pause
from tests.chaos.provider import HANG_S, Provider, Trouble, provider
from tests.chaos.suite import PRICE, suite
from tests.chaos.world import (
    World,
    assert_nothing_was_lost,
    exported,
    money,
    outcome,
    planned_long_ago,
    undisturbed,
    world,
)
from tests.factories import Fakes, drive, driving, go_on, judged, plan, timeline, trials
from weirbox.domain.seams import ExportOutcome, RunHeader, TrialExport
from weirbox.domain.spec import Suite
from weirbox.domain.words import RunStatus, TrialStage
from weirbox.judges import asking
from weirbox.limiter import AdaptiveLimiter
from weirbox.pipeline import exporting, finalizing, kit, reopening, running
from weirbox.pipeline.kit import account_limiters
from weirbox.settings import Settings
from weirbox.store import base, queries
from weirbox.store.engine import Database, open_database
from weirbox.testing import MemorySink

CASES, DRIVERS = 400, 3

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the suite comes to when nothing happens."""
    return outcome(*undisturbed(tmp_path_factory.mktemp("undisturbed") / "place", CASES))


def command(
    database: Database, *arguments: str, pages: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a command on a database that may not grow beyond so many pages, where given."""
    return subprocess.run(
        [sys.executable, "-m", "tests.chaos.full", str(pages), *arguments],
        env={**os.environ, "WEIRBOX_DATABASE_URL": database.url, "COLUMNS": "200"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


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


# --- a judge's provider -----------------------------------------------------------------


TROUBLES = {
    "429": ("anthropic", Trouble(429)),
    "429-retry-after": ("openai", Trouble(429, retry_after="1")),
    "529": ("anthropic", Trouble(529)),
    "500": ("openai", Trouble(500)),
    "hangs": ("anthropic", Trouble(None)),
}

JUDGED = 80

LIMIT = 8


def judged_by(server: Provider) -> Suite:
    """A suite that asks the server one question for each case."""
    return judged(
        JUDGED,
        providers={
            "account": {
                "kind": server.kind,
                "base_url": server.url,
                "secret": None,
                "concurrency": LIMIT,
                "timeout_s": 1.0,
                "prices": {"small": {"input": 1.0, "output": 5.0}},
            }
        },
        concurrency={"judge": LIMIT},
        budget={"usd": 10},
    )


def unmeasured(database: Database, run_id: str) -> list[dict[str, Any]]:
    """What the scorecard says about scores without a value."""
    card = database.fetch(partial(queries.scorecard, run_id=run_id))
    assert card is not None
    found: list[dict[str, Any]] = card["unmeasured"]
    return found


@contextmanager
def watched_limits(server: Provider) -> Iterator[list[int]]:
    """What the account's limit is at each request."""
    made: list[AdaptiveLimiter] = []
    limits: list[int] = []
    count = server.on_request

    def limiters(specs: Any) -> dict[str, AdaptiveLimiter]:
        given = account_limiters(specs)
        made.extend(given.values())
        return given

    def see() -> None:
        limits.extend(limiter.state.current for limiter in made)
        count()

    server.on_request = see
    with patch.object(kit, "account_limiters", limiters):
        yield limits


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "trouble"), TROUBLES.values(), ids=TROUBLES)
def test_a_provider_that_is_out_of_order_for_a_while_costs_no_score(
    sqlite: Database, kind: Any, trouble: Trouble
) -> None:
    with provider(kind) as server:
        server.trouble = trouble
        server.heal_after(6.0)
        with watched_limits(server) as limits:
            run = drive(sqlite, judged_by(server))

    assert (run.status, run.progress.scored) == (RunStatus.COMPLETED, JUDGED)
    assert run.verdicts.passed == JUDGED
    assert server.answered == JUDGED
    assert unmeasured(sqlite, run.run_id) == []
    if trouble.status in (429, 529):
        assert min(limits) == 1
        assert limits[-1] > LIMIT // 2


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "trouble"), TROUBLES.values(), ids=TROUBLES)
def test_a_provider_that_stays_out_of_order_leaves_every_trial_to_a_person(
    sqlite: Database, kind: Any, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "OUTAGE_S", 3.0)
    begun = time.monotonic()
    with provider(kind) as server:
        server.trouble = trouble
        run = drive(sqlite, judged_by(server))
        assert time.monotonic() - begun < 60
        assert (run.status, run.dispositions.review) == (RunStatus.COMPLETED, JUDGED)
        assert run.progress.judged == run.progress.exported == JUDGED
        assert run.finalized_at is not None
        (told, *_) = unmeasured(sqlite, run.run_id)
        reason = "timeout" if trouble.status is None else "provider_error"
        assert (told["name"], told["state"], told["reason"]) == ("quality", "errored", reason)
        assert "no answer within 1 s" in told["message"] or "come later" in told["message"]
        shown = command(sqlite, "show", run.run_id).stdout
        assert "provider 'account' (small)" in shown

        server.trouble = None
        reopening.retry(sqlite, run.run_id, reopening.Wanted())
        again = go_on(sqlite, run.run_id)
    assert (again.status, again.verdicts.passed) == (RunStatus.COMPLETED, JUDGED)
    assert unmeasured(sqlite, run.run_id) == []
    assert {row.attempt for row in trials(sqlite, run.run_id)} == {1}


# --- a sink -------------------------------------------------------------------------------


def messages(database: Database, run_id: str) -> list[str]:
    """What the rows say about exports."""
    with database.read() as connection:
        rows = select(base.EXPORT.c.message).where(base.EXPORT.c.run_id == run_id)
        return list(connection.execute(rows).scalars())


class Down(MemorySink):
    """A sink that raises, or hangs, until it is mended."""

    def __init__(self, *, hangs: bool) -> None:
        super().__init__(name="jsonl")
        self.hangs, self.mended = hangs, False

    async def _fail(self) -> None:
        if not self.mended:
            await asyncio.sleep(HANG_S if self.hangs else 0)
            raise ConnectionError("nobody is there")

    async def set_up(self, run: RunHeader) -> None:
        await self._fail()

    async def send(self, trial: TrialExport) -> ExportOutcome:
        await self._fail()
        return await super().send(trial)

    async def complete(self) -> None:
        await self._fail()
        await super().complete()

    async def aclose(self) -> None:
        await self._fail()


@pytest.mark.parametrize("hangs", [False, True], ids=["raises", "hangs"])
def test_a_sink_that_is_down_for_the_whole_run_is_sent_all_once_it_is_back(
    database: Database, tmp_path: Path, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in (
        (exporting, "SEND_S"),
        (running, "SET_UP_S"),
        (kit, "CLOSE_S"),
        (finalizing, "COMPLETE_S"),
    ):
        monkeypatch.setattr(module, name, 1.0)
    monkeypatch.setattr(exporting, "HUNG_S", 0.05)
    sink = Down(hangs=hangs)
    planned = factories.suite(20, sinks=[{"kind": "jsonl", "path": str(tmp_path / "out")}])

    run = drive(database, planned, fakes=Fakes(sink=sink))

    assert (run.status, run.verdicts.passed) == (RunStatus.COMPLETED, 20)
    assert run.finalized_at is not None
    assert run.exports == {"jsonl": {"failed": 20}}
    said = "has not answered within" if hangs else "ConnectionError: nobody is there"
    assert {said in message for message in messages(database, run.run_id)} == {True}
    warned = [text for kind, text in timeline(database, run.run_id) if kind == "warning"]
    assert [text.partition(":")[0] for text in warned] == [
        "sink 'jsonl' cannot be set up",
        "sink 'jsonl' is not complete",
    ]

    sink.mended = True
    opened = reopening.export_retry(database, run.run_id)
    assert opened.opened == {TrialStage.EXPORT: 20}
    again = go_on(database, run.run_id, fakes=Fakes(sink=sink))
    assert (again.status, again.exports) == (RunStatus.COMPLETED, {"jsonl": {"succeeded": 20}})
    assert again.finalized_at is not None
    assert len(sink.sent) == 20
    assert sink.completed >= 1


def test_a_folder_that_cannot_be_written_is_filled_once_it_can(tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    out.write_text("a file where the folder should be")
    settings = Settings(home=home, database_url=None)
    planned = suite(tmp_path, cases=20, drivers=1, usd=10)

    run = weirbox.run(planned, engine="direct", settings=settings)

    assert run.summary().status is RunStatus.COMPLETED
    assert run.summary().exports == {"jsonl": {"failed": 20}}
    out.unlink()
    weirbox.export_retry(run.id, engine="direct", settings=settings)
    assert run.summary().exports == {"jsonl": {"succeeded": 20}}
    assert set(exported(tmp_path, run.id).values()) == {1}
    assert len(exported(tmp_path, run.id)) == 20
    assert (out / run.id / "complete.json").exists()
