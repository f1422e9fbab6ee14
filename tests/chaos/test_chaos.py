"""A run whose drivers, coordinator and finalize are killed comes to what it would have."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.suite import PRICE, suite
from tests.chaos.world import (
    assert_nothing_was_lost,
    outcome,
    planned_long_ago,
    survive,
    undisturbed,
    world,
)
from weirbox.domain.words import RunStatus
from weirbox.store.engine import Database

CASES, DRIVERS = 120, 3

KILLS = 20


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the suite comes to when nothing happens."""
    return outcome(*undisturbed(tmp_path_factory.mktemp("undisturbed") / "place", CASES))


@pytest.mark.slow
def test_a_run_survives_twenty_kills(
    database: Database, tmp_path: Path, expected: dict[str, Any]
) -> None:
    seed = int(os.environ.get("WEIRBOX_CHAOS_SEED") or random.randrange(10**6))
    print(f"WEIRBOX_CHAOS_SEED={seed}")
    planned = suite(tmp_path, cases=CASES, drivers=DRIVERS, usd=2 * PRICE * 4 * CASES)
    run_id = planned_long_ago(database, planned)

    with world(tmp_path, database.url) as place:
        run, _ = survive(database, place, run_id, kills=KILLS, seed=seed)

    assert run.status is RunStatus.COMPLETED
    assert_nothing_was_lost(database, place, run_id, expected)
    assert place.killed["drive"] > 0


@pytest.mark.slow
def test_drivers_that_are_killed_never_spend_more_than_the_budget(
    database: Database, tmp_path: Path
) -> None:
    seed = int(os.environ.get("WEIRBOX_CHAOS_SEED") or random.randrange(10**6))
    print(f"WEIRBOX_CHAOS_SEED={seed}")
    run_id = planned_long_ago(
        database, suite(tmp_path, cases=CASES, drivers=DRIVERS, usd=PRICE * CASES)
    )

    with world(tmp_path, database.url) as place:
        run, _ = survive(database, place, run_id, kills=KILLS // 2, seed=seed)

    assert run.status is RunStatus.COMPLETED
    assert run.cost_usd == pytest.approx(PRICE * CASES)
    assert (run.calls, run.reserved_usd) == (CASES, 0.0)
    assert run.progress.unscored > 0
