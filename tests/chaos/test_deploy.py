"""A deploy in the middle of a run: the runner is told to end, and a new one is started."""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import weirbox
from deployments.registering import own_deployments
from tests.chaos.suite import PRICE, suite
from tests.chaos.world import World, assert_nothing_was_lost, outcome, undisturbed
from tests.factories import trials
from tests.flows.conftest import deployed, prefect_api, settings  # noqa: F401 - fixtures
from tests.flows.deployed import Deployed, wait_until
from tests.flows.test_deployments import with_client
from tests.flows.test_trigger import deploy
from weirbox.domain.words import RunStatus
from weirbox.runtime import open_runtime

CASES = 400

INTERVAL_S = 15.0
"""How often the coordinator looks."""

STARTS_S = 30.0
"""How long the old runner takes to end, and a runner, a tick and a driver to start, one after
another, on a busy machine."""


@pytest.mark.slow
def test_a_deploy_delays_a_run_by_little_and_loses_nothing(
    deployed: Deployed,  # noqa: F811
    tmp_path: Path,
) -> None:
    expected = outcome(*undisturbed(tmp_path / "undisturbed", CASES))
    old = serve(deployed)
    planned = suite(tmp_path, cases=CASES, drivers=1, usd=2 * PRICE * 4 * CASES)
    named = planned.model_copy(update={"suite": deployed.settings.deployment})
    deploy(deployed.settings, named)
    run = weirbox.trigger(named.suite, settings=deployed.settings)
    run_id = wait_until(lambda: run.run_id)
    wait_until(lambda: len(deployed.executed(run_id)) >= CASES // 10)

    old.send_signal(signal.SIGTERM)
    old.wait(timeout=60)
    assert len(deployed.executed(run_id)) < CASES
    serve(deployed)
    found = run.wait(timeout_s=240)

    assert found.status is RunStatus.COMPLETED
    with open_runtime(deployed.settings) as runtime:
        database = runtime.database
        assert_nothing_was_lost(database, World(tmp_path, database.url), run_id, expected)
        delay_s = longest_gap_s(trials(database, run_id))
    drivers = [row.message for row in deployed.dispatches(run_id)]
    print(f"delayed by {delay_s:.1f} s; drivers: {drivers}")
    assert len(drivers) >= 2
    assert delay_s <= deployed.settings.lease_s + INTERVAL_S + STARTS_S


def serve(deployed: Deployed) -> subprocess.Popen[bytes]:  # noqa: F811
    """Start the runner of `weirbox up`; returns once it has registered the deployments."""
    process = deployed.start([sys.executable, "-m", "deployments.serve"])
    name = deployed.settings.deployment
    wait_until(lambda: len(with_client(lambda client: own_deployments(client, name))) >= 4)
    return process


def longest_gap_s(rows: list[Any]) -> float:
    """How long no stage of any trial ended, at most, in seconds."""
    ends = sorted(at for row in rows for at in (row.executed_at, row.judged_at, row.exported_at))
    return max(float((after - before).total_seconds()) for before, after in pairwise(ends))
