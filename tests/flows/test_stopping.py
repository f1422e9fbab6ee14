"""Real flow runs in real processes: a cancel ends the run, an end of the process does not."""

from __future__ import annotations

import signal
from typing import Any
from uuid import UUID

import psutil
import pytest
import yaml
from prefect.client.schemas.objects import StateType

import weirbox
from tests import factories
from tests.e2e import held
from tests.flows import deployed as deploying
from tests.flows.deployed import Deployed, wait_until
from weirbox.domain.run import RunSummary
from weirbox.domain.spec import Suite
from weirbox.domain.words import RunStatus
from weirbox.runtime import open_runtime

CASES = 6
HOLD = "execute.case-3"
SUITE: dict[str, Any] = {
    "suite": "stopped",
    "dataset": {"records": factories.records(CASES)},
    "harness": {"kind": "python", "function": "tests.e2e.held:execute", "timeout_s": 600},
    "graders": [{"kind": "answer-match", "name": "match"}],
    "concurrency": {"execute": 1},
}


def evaluate(deployed: Deployed) -> UUID:
    """Have the suite's file evaluated."""
    path = deployed.came.parent / "suite.yaml"
    path.write_text(yaml.safe_dump(SUITE))
    return deployed.run("evaluate-run", {"suite": str(path)})


def drive(deployed: Deployed) -> tuple[str, UUID]:
    """Have a managed run driven by a driver that nobody dispatched."""
    with open_runtime(deployed.settings) as runtime:
        suite = Suite.model_validate(SUITE)
        run_id = factories.plan(runtime.database, suite, managed=True)
    return run_id, deployed.run("drive-run", {"run_id": run_id})


def newest(deployed: Deployed) -> RunSummary:
    """The run that was planned last."""
    return weirbox.get_run("latest", settings=deployed.settings).summary()


@pytest.mark.parametrize("flow", ["evaluate-run", "drive-run"])
def test_a_cancel_in_prefect_cancels_the_run_and_lets_its_work_settle(
    deployed: Deployed, flow: str
) -> None:
    deployed.serve(hold=HOLD)
    flow_run = evaluate(deployed) if flow == "evaluate-run" else drive(deployed)[1]
    deployed.until_held()

    deploying.cancel(flow_run)
    run = wait_until(lambda: (found := newest(deployed)).status.terminal and found)
    deployed.let_go()
    ended = wait_until(lambda: (s := deploying.state(flow_run)).is_final() and s)

    assert (run.status, run.reason) == (RunStatus.CANCELLED, "cancelled in Prefect")
    assert ended.type is StateType.CANCELLED
    assert deployed.executed(run.run_id) == [f"case-{n}" for n in range(4)]
    assert deployed.claimed(run.run_id) == (0, 0)
    (dispatch,) = deployed.dispatches(run.run_id)
    assert dispatch.ended_at is not None
    assert run.managed


def test_a_runner_that_is_told_to_end_drains_and_the_run_goes_on(deployed: Deployed) -> None:
    runner = deployed.serve(hold=HOLD)
    flow_run = evaluate(deployed)
    deployed.until_held()

    runner.terminate()
    deployed.until_draining()
    deployed.let_go()
    runner.wait(timeout=deploying.PATIENCE_S)

    run = newest(deployed)
    executed = deployed.executed(run.run_id)
    assert run.status is RunStatus.RUNNING
    assert executed == [f"case-{n}" for n in range(4)]
    assert deployed.claimed(run.run_id) == (0, 0)
    (dispatch,) = deployed.dispatches(run.run_id)
    assert dispatch.message == "drained"
    assert deploying.state(flow_run).is_final()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(held.FOLDER, str(deployed.came))
        resumed = weirbox.resume(run.run_id, engine="direct", settings=deployed.settings).summary()
    assert resumed.status is RunStatus.COMPLETED
    executions = held.counts(deployed.came, "execute")
    assert executions == {f"case-{n}": 1 for n in range(CASES)}


def test_a_flow_process_that_is_told_to_end_alone_drains(deployed: Deployed) -> None:
    deployed.serve(hold=HOLD)
    flow_run = evaluate(deployed)
    deployed.until_held()
    (child,) = engines(deployed)

    child.send_signal(signal.SIGTERM)
    deployed.until_draining()
    deployed.let_go()
    ended = wait_until(lambda: (s := deploying.state(flow_run)).is_final() and s)

    run = newest(deployed)
    assert (run.status, ended.name) == (RunStatus.RUNNING, "Drained")
    assert deployed.claimed(run.run_id) == (0, 0)


def test_a_killed_flow_process_leaves_its_claims_to_the_runner(deployed: Deployed) -> None:
    deployed.serve(hold=HOLD)
    evaluate(deployed)
    deployed.until_held()
    (child,) = engines(deployed)
    run = newest(deployed)
    assert deployed.claimed(run.run_id)[0] == 1

    child.kill()
    wait_until(lambda: deployed.claimed(run.run_id) == (0, 0))

    wait_until(lambda: deployed.dispatches(run.run_id)[0].ended_at)
    assert newest(deployed).status is RunStatus.RUNNING


def engines(deployed: Deployed) -> list[psutil.Process]:
    """The flow runs' processes."""
    (runner,) = deployed.processes
    return [
        child
        for child in psutil.Process(runner.pid).children(recursive=True)
        if "prefect.engine" in child.cmdline()
    ]
