"""Any number of drivers share one run, and one takes over from another that was killed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests import postgres
from tests.chaos.outages import executed, until
from tests.chaos.sharing import driver_log, drivers, join, span_s, stages_by_host
from tests.chaos.suite import PRICE, suite
from tests.chaos.world import World, assert_nothing_was_lost, outcome, undisturbed
from tests.factories import plan, summary, trials
from weirbox.domain.spec import Concurrency, Suite
from weirbox.domain.words import RunStatus, TrialStage
from weirbox.store.engine import Database, open_database
from weirbox.store.types import utc_now

IN_EACH_OTHERS_WAY = re.compile("lock|Error|Traceback")
"""What a log says when drivers come into each other's way."""


def shared(folder: Path, cases: int, **concurrency: int) -> Suite:
    """The suite of chaos, with limits of its own."""
    planned = suite(folder, cases=cases, drivers=1, usd=2 * PRICE * 4 * cases)
    given = Concurrency(**{"execute": 8, "judge": 6, "export": 2} | concurrency)
    return planned.model_copy(update={"concurrency": given})


@pytest.fixture(scope="module")
def quiet_postgres() -> Iterator[postgres.Server]:
    """A server whose log has nothing but what these tests do."""
    programs = postgres.server_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    with postgres.restartable(programs) as server:
        yield server


@pytest.mark.slow
def test_two_drivers_are_almost_twice_as_fast_as_one(database: Database, tmp_path: Path) -> None:
    seconds = {}
    for count in (1, 2):
        run_id = plan(database, shared(tmp_path, 400, execute=4))
        with drivers(tmp_path, database, run_id, count) as processes:
            join(processes)
        assert summary(database, run_id).status is RunStatus.COMPLETED
        assert len(stages_by_host(database, run_id)) == count
        seconds[count] = span_s(database, run_id)

    print(f"one driver {seconds[1]:.1f} s, two {seconds[2]:.1f} s")
    assert seconds[1] / seconds[2] >= 1.8


@pytest.mark.slow
def test_ten_drivers_share_a_run_on_postgresql_without_a_lock_error(
    quiet_postgres: postgres.Server, tmp_path: Path
) -> None:
    postgres.create(quiet_postgres.place, "ten")
    database = open_database(postgres.url(quiet_postgres.place, "ten"))
    _share(database, tmp_path, cases=600, count=10)
    database.close()

    said = (quiet_postgres.place / "log").read_text()
    assert not [line for line in said.split("\n") if "ERROR" in line or "deadlock" in line]


@pytest.mark.slow
def test_three_drivers_share_a_run_on_sqlite_without_a_lock_error(
    sqlite: Database, tmp_path: Path
) -> None:
    _share(sqlite, tmp_path, cases=300, count=3)


def _share(database: Database, folder: Path, *, cases: int, count: int) -> None:
    expected = outcome(*undisturbed(folder / "undisturbed", cases))
    run_id = plan(database, shared(folder, cases))
    with drivers(folder, database, run_id, count) as processes:
        join(processes)

    assert_nothing_was_lost(database, World(folder, database.url), run_id, expected)
    worked = stages_by_host(database, run_id)
    print(f"{span_s(database, run_id):.1f} s; {worked}")
    assert len([host for host, stages in worked.items() if stages]) == count
    assert sum(worked.values()) == 3 * cases
    assert IN_EACH_OTHERS_WAY.search(driver_log(folder)) is None


THOUSAND = 1000

LEASE_S = 5.0


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a thousand cases come to when nothing happens."""
    return outcome(*undisturbed(tmp_path_factory.mktemp("undisturbed") / "place", THOUSAND))


@pytest.mark.slow
def test_a_driver_takes_over_from_one_that_was_killed_on_another_machine(
    database: Database, tmp_path: Path, expected: dict[str, Any]
) -> None:
    run_id = plan(database, shared(tmp_path, THOUSAND, execute=16, judge=16, export=4))
    with drivers(tmp_path, database, run_id, 1, lease_s=LEASE_S) as (first,):
        until(lambda: executed(database, run_id) >= THOUSAND // 2)
        first.kill()
        first.join()
    killed, before = utc_now(), trials(database, run_id)
    with drivers(tmp_path, database, run_id, 1, lease_s=LEASE_S, first=1) as processes:
        join(processes)

    assert_nothing_was_lost(database, World(tmp_path, database.url), run_id, expected)
    after = {row.seq: row for row in trials(database, run_id)}
    done = {row.seq: row.executed_at for row in before if row.executed_at is not None}
    assert len(done) >= THOUSAND // 2
    assert {seq: after[seq].executed_at for seq in done} == done
    left = [row.seq for row in before if row.claim is not None and row.stage != TrialStage.DONE]
    resumed = sorted(resumed_after_s(after[seq], killed) for seq in left)
    print(
        f"{len(done)} were executed and {len(left)} held; "
        f"these went on after {resumed[0]:.1f} to {resumed[-1]:.1f} s"
    )
    assert resumed[0] <= LEASE_S + 5
    assert resumed[-1] <= LEASE_S + 15  # all, behind what the driver had claimed before


def resumed_after_s(trial: Any, killed: datetime) -> float:
    """How long after a moment the next stage of a trial began, in seconds."""
    moments = (trial.execute_started_at, trial.judge_started_at, trial.export_started_at)
    began: datetime = min(at for at in moments if at is not None and at > killed)
    return (began - killed).total_seconds()
