"""What a run depends on breaks while it goes on: nothing is lost, and it ends as designed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import OperationalError

from tests import postgres
from tests.chaos.outages import executed, live_through, pause
from tests.chaos.suite import PRICE, suite
from tests.chaos.world import (
    assert_nothing_was_lost,
    money,
    outcome,
    planned_long_ago,
    undisturbed,
    world,
)
from tests.factories import driving, plan
from weirbox.domain.words import RunStatus
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
    commit = DefaultDialect.do_commit

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
