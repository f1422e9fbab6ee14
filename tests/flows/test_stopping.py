"""Real flow runs in real processes: a cancel ends the run, an end of the process does not."""

from __future__ import annotations

import signal
from typing import Any
from uuid import UUID

import psutil
import pytest
import yaml
from prefect.client.schemas.objects import State, StateType

import weirbox
from tests import factories
from tests.e2e import held
from tests.factories import Fakes
from tests.flows import deployed as deploying
from tests.flows.conftest import Evaluations, Shown
from tests.flows.deployed import Deployed, wait_until
from weirbox.domain.case import Case
from weirbox.domain.run import RunSummary
from weirbox.domain.spec import Suite
from weirbox.domain.words import RunStatus
from weirbox.runtime import open_runtime
from weirbox.store.base import CLAIM
from weirbox.testing import ScriptedHarness

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


def test_a_cancel_in_prefect_cancels_the_run_and_lets_its_work_settle(deployed: Deployed) -> None:
    deployed.serve(hold=HOLD)
    flow_run = evaluate(deployed)
    deployed.until_held()

    deploying.cancel(flow_run)
    run = until_cancelled(deployed)
    deployed.let_go()

    assert until_ended(flow_run).type is StateType.CANCELLED
    assert deployed.executed(run.run_id) == [f"case-{n}" for n in range(4)]
    assert deployed.claimed(run.run_id) == (0, 0)
    (dispatch,) = deployed.dispatches(run.run_id)
    assert (dispatch.flow_run, dispatch.message) == (str(flow_run), "drained")
    assert run.managed


def test_a_cancel_reaches_a_run_that_is_driven_in_the_callers_process(
    evaluations: Evaluations, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.stopping.LOOK_S", 0.2)
    run_id = evaluations.plan(factories.suite(300, concurrency={"execute": 1}))

    def cancel_at_the_third(case: Case) -> str:
        if case.id == "case-2":
            deploying.cancel(shown.flow_run(run_id).id)
        return str(case.input)

    harness = ScriptedHarness(answer=cancel_at_the_third, delay_s=0.1)
    run = evaluations.drive(run_id, fakes=Fakes(harness=harness))

    assert (run.status, run.reason) == (RunStatus.CANCELLED, "cancelled in Prefect")
    assert 3 <= run.progress.executed < 300
    assert shown.flow_run(run_id).state_type is StateType.CANCELLED


@pytest.mark.slow
def test_a_cancel_of_one_more_driver_cancels_the_run_too(deployed: Deployed) -> None:
    deployed.serve(hold=HOLD)
    run_id, flow_run = drive(deployed)
    deployed.until_held()

    deploying.cancel(flow_run)
    run = until_cancelled(deployed)
    deployed.let_go()

    assert until_ended(flow_run).type is StateType.CANCELLED
    assert run.run_id == run_id
    assert deployed.claimed(run_id) == (0, 0)


@pytest.mark.slow
def test_a_trial_that_does_not_settle_is_cut_off_after_the_grace_time(deployed: Deployed) -> None:
    deployed.serve(hold=HOLD)
    flow_run = evaluate(deployed)
    deployed.until_held()

    deploying.cancel(flow_run)
    run = until_cancelled(deployed)

    assert until_ended(flow_run).type is StateType.CANCELLED
    assert deployed.executed(run.run_id) == [f"case-{n}" for n in range(3)]
    assert deployed.claimed(run.run_id) == (0, 0)
    assert [row.reaped for row in deployed.rows(CLAIM, run.run_id)] == [False]


@pytest.mark.slow
def test_a_cancel_whose_process_never_hears_it_is_taken_up_by_the_runner(
    deployed: Deployed,
) -> None:
    deployed.serve(hold=HOLD)
    flow_run = evaluate(deployed)
    deployed.until_held()
    (child,) = engines(deployed)
    child.suspend()

    deploying.cancel(flow_run)
    run = until_cancelled(deployed)

    assert until_ended(flow_run).type is StateType.CANCELLED
    assert deployed.claimed(run.run_id) == (0, 0)
    assert [row.reaped for row in deployed.rows(CLAIM, run.run_id)] == [True]
    assert deployed.dispatches(run.run_id)[0].ended_at is not None


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_flow_process_that_is_told_to_end_alone_drains(deployed: Deployed) -> None:
    deployed.serve(hold=HOLD)
    flow_run = evaluate(deployed)
    deployed.until_held()
    (child,) = engines(deployed)

    child.send_signal(signal.SIGTERM)
    deployed.until_draining()
    deployed.let_go()
    ended = until_ended(flow_run)

    run = newest(deployed)
    assert (run.status, ended.name) == (RunStatus.RUNNING, "Drained")
    assert deployed.claimed(run.run_id) == (0, 0)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_worker_that_is_told_to_end_leaves_the_run_to_the_next(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = deployed.settings.deployment
    deployed.register("evaluate-run", pool=pool)
    worker = deployed.work(pool, hold=HOLD)
    evaluate(deployed)
    deployed.until_held()
    run = newest(deployed)

    worker.terminate()
    worker.wait(timeout=deploying.PATIENCE_S)
    deployed.let_go()
    monkeypatch.setenv(held.FOLDER, str(deployed.came))
    resumed = weirbox.resume(run.run_id, engine="direct", settings=deployed.settings).summary()

    assert newest(deployed).reason == ""
    assert resumed.status is RunStatus.COMPLETED
    executions = held.counts(deployed.came, "execute")
    assert {f"case-{n}": executions[f"case-{n}"] for n in range(3)} == {
        f"case-{n}": 1 for n in range(3)
    }


def until_cancelled(deployed: Deployed) -> RunSummary:
    """Wait until the newest run is cancelled for the reason that somebody did so in Prefect."""
    run = wait_until(lambda: (found := newest(deployed)).status.terminal and found)
    assert (run.status, run.reason) == (RunStatus.CANCELLED, "cancelled in Prefect")
    return run


def until_ended(flow_run: UUID) -> State[Any]:
    """Wait until a flow run has ended; gives its state."""
    return wait_until(lambda: (found := deploying.state(flow_run)).is_final() and found)


def engines(deployed: Deployed) -> list[psutil.Process]:
    """The flow runs' processes."""
    (runner,) = deployed.processes
    return [
        child
        for child in psutil.Process(runner.pid).children(recursive=True)
        if "prefect.engine" in child.cmdline()
    ]
