"""Real runners and workers: what is started of the deployments is run, and survives a deploy."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import weirbox
from deployments.registering import own_deployments
from tests import factories
from tests.flows.deployed import Deployed, wait_until
from tests.flows.test_deployments import with_client
from tests.flows.test_trigger import deploy
from weirbox.domain.spec import Suite
from weirbox.domain.words import RunStatus, TrialStage
from weirbox.settings import Settings
from weirbox.store.base import TRIAL

pytestmark = pytest.mark.slow

LEASE_S = 5.0

GOES_ON_S = 60.0
"""A lease, a tick's interval of 15 s, and two starts of
processes, on a busy machine."""

_numbers = count()


@pytest.fixture
def deployed(settings: Settings, prefect_api: str, tmp_path: Path) -> Iterator[Deployed]:
    """A store of the test's own with the processes that work on it."""
    own = {"deployment": f"serving{next(_numbers)}", "lease_s": LEASE_S}
    with Deployed.make(settings.model_copy(update=own), tmp_path) as made:
        yield made


def serve(deployed: Deployed) -> subprocess.Popen[bytes]:
    """Start the runner of `weirbox up`; returns once it has registered the deployments."""
    process = deployed.start([sys.executable, "-m", "deployments.serve"])
    name = deployed.settings.deployment
    wait_until(lambda: len(with_client(lambda client: own_deployments(client, name))) >= 4)
    return process


def work(deployed: Deployed, pool: str) -> subprocess.Popen[bytes]:
    """Start a process worker for all queues of a pool."""
    argv = [sys.executable, "-m", "prefect", "worker", "start", "--type", "process"]
    return deployed.start([*argv, "--pool", pool], PREFECT_WORKER_QUERY_SECONDS="1")


def slow(name: str, cases: int) -> Suite:
    """A suite whose trials take half a second each, one after another."""
    harness = {"kind": "command", "argv": ["sh", "-c", "sleep 0.5; echo '{{ case.input }}'"]}
    return factories.suite(
        cases, suite=name, harness=harness, compute={"kind": "local"}, concurrency={"execute": 1}
    )


def done(deployed: Deployed, run_id: str) -> int:
    """How many trials have gone through every stage."""
    return sum(row.stage == TrialStage.DONE for row in deployed.rows(TRIAL, run_id))


def planned(run: weirbox.Triggered) -> str:
    """The run's id, once a worker has planned it."""
    return wait_until(lambda: run.run_id)


def test_a_suite_that_is_registered_later_is_served_without_a_restart(deployed: Deployed) -> None:
    runner = serve(deployed)
    name = f"later-{deployed.settings.deployment}"
    deploy(deployed.settings, factories.suite(3, suite=name))

    run = weirbox.trigger(name, origin={"commit": "abc"}, settings=deployed.settings)
    summary = run.wait(timeout_s=120)
    runner.send_signal(signal.SIGTERM)
    runner.wait(timeout=60)

    assert summary.status is RunStatus.COMPLETED
    assert summary.progress.scored == 3
    assert summary.origin is not None
    assert summary.origin.commit == "abc"
    assert summary.managed
    own = with_client(lambda client: own_deployments(client, deployed.settings.deployment))
    assert not any(one.paused for one in own)
    assert all(schedule.active for one in own for schedule in one.schedules)


def test_a_worker_of_a_process_pool_runs_what_is_triggered(deployed: Deployed) -> None:
    name, pool = f"pooled-{deployed.settings.deployment}", f"{deployed.settings.deployment}-pool"
    deploy(deployed.settings, factories.suite(3, suite=name), pool=pool)
    work(deployed, pool)

    run = weirbox.trigger(name, kind="preview", size=2, settings=deployed.settings)

    assert run.wait(timeout_s=120).progress.scored == 2


def test_a_run_goes_on_with_a_new_worker_when_the_old_one_is_told_to_end(
    deployed: Deployed,
) -> None:
    name, pool = f"moved-{deployed.settings.deployment}", f"{deployed.settings.deployment}-pool"
    deploy(deployed.settings, slow(name, 40), pool=pool)
    old = work(deployed, pool)
    run = weirbox.trigger(name, settings=deployed.settings)
    run_id = planned(run)
    wait_until(lambda: done(deployed, run_id) >= 3)

    old.send_signal(signal.SIGTERM)
    old.wait(timeout=60)
    work(deployed, pool)
    left = done(deployed, run_id)
    wait_until(lambda: done(deployed, run_id) > left + 2, seconds=GOES_ON_S)
    summary = run.wait(timeout_s=180)

    assert left < 40
    assert summary.status is RunStatus.COMPLETED
    assert summary.progress.scored == 40
    starts = sorted(row.execute_started_at for row in deployed.rows(TRIAL, run_id))
    assert len(set(starts)) == 40
