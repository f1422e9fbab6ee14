"""What a run shows in a real Prefect server, and that it does not depend on it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import yaml
from prefect.client.schemas.objects import StateType, TaskRun
from pydantic import ValidationError
from sqlalchemy import update

import weirbox
from flows.evaluate_run import evaluate_run
from flows.requests import EvaluateRequest
from tests import factories
from tests.factories import Fakes
from tests.flows.conftest import Evaluations, Shown
from weirbox.domain.case import Case
from weirbox.domain.run import Origin
from weirbox.domain.words import RunKind, RunStatus, ScoreState, TrialStage
from weirbox.errors import ServiceError
from weirbox.pipeline.driver import Driver
from weirbox.runtime import open_runtime, using
from weirbox.services import free_port
from weirbox.store.base import RUN, TRIAL
from weirbox.store.writes import change_status
from weirbox.testing import MemorySink, ScriptedHarness

SINKS = {"sinks": [{"kind": "jsonl", "path": "/nowhere"}]}
NOBODY = dict.fromkeys(Origin.model_fields)
NOTHING = {"suite": None, "cases": None, "since": None, "size": None, "origin": NOBODY}
ONE_AT_A_TIME = {"granularity": "case", "concurrency": {"execute": 1}}


def states(runs: list[TaskRun]) -> dict[str, list[str]]:
    """The states' names by task run's name, oldest first."""
    found: dict[str, list[str]] = {}
    for run in runs:
        assert run.state is not None
        found.setdefault(run.name, []).append(str(run.state.name))
    return found


def test_a_run_is_shown_with_names_tags_and_states(evaluations: Evaluations, shown: Shown) -> None:
    suite = factories.suite(2, repeats=2, granularity="case", tags=["nightly"], **SINKS)
    run_id = evaluations.plan(suite)

    run = evaluations.drive(run_id, fakes=Fakes(sink=MemorySink()))

    flow_run = shown.flow_run(run_id)
    *task_runs, subflow = shown.task_runs(flow_run, count=13)
    trials = ("case-0", "case-0 #2", "case-1", "case-1 #2")
    assert run.status is RunStatus.COMPLETED
    assert flow_run.state_type is StateType.COMPLETED
    assert {"weirbox", "suite:tested", "nightly"} <= set(flow_run.tags)
    assert states(task_runs) == {
        f"{stage} · {trial}": ["Completed"]
        for stage in ("execute", "judge", "export")
        for trial in trials
    }
    for task_run in task_runs:
        stage = task_run.name.partition(" · ")[0]
        assert {"weirbox", stage, "suite:tested", "nightly"} <= set(task_run.tags)
    assert subflow.name.startswith("finalize-run")


def test_finalize_is_a_flow_run_of_its_own(evaluations: Evaluations, shown: Shown) -> None:
    run_id = evaluations.plan(factories.suite(1))

    run = evaluations.drive(run_id)

    flow_run = shown.flow_run(f"finalize · {run_id}")
    (task_run,) = shown.task_runs(flow_run, count=1)
    assert run.finalized_at is not None
    assert flow_run.state_type is StateType.COMPLETED
    assert flow_run.parent_task_run_id is not None
    assert states([task_run]) == {f"finalize · {run_id}": ["Completed"]}


def test_a_run_leaves_progress_scorecard_and_dashboard_link(
    evaluations: Evaluations, shown: Shown
) -> None:
    run_id = evaluations.plan(factories.suite(3, **SINKS))

    evaluations.drive(run_id, fakes=Fakes(sink=MemorySink()))

    progress = shown.artifact(f"progress-{run_id}")
    scorecard = shown.artifact(f"scorecard-{run_id}")
    link = shown.artifact(f"dashboard-{run_id}")
    assert (progress.type, progress.data) == ("progress", 100.0)
    assert progress.description == "3 planned, 3 executed, 3 judged, 3 done, 0 errored, 0 cached"
    assert scorecard.type == "markdown"
    assert "match" in scorecard.data
    assert f"http://127.0.0.1:8501/run?run={run_id}" in scorecard.data
    assert link.type == "markdown"
    assert f"(http://127.0.0.1:8501/run?run={run_id})" in link.data
    flow_run = shown.flow_run(run_id)
    assert {progress.flow_run_id, link.flow_run_id} == {flow_run.id}


def test_what_prefect_records_holds_no_payload(evaluations: Evaluations, shown: Shown) -> None:
    secret = "the text under test"
    harness = ScriptedHarness(answer=lambda case: secret)
    record = {"id": "case-0", "input": secret, "target": secret}
    suite = factories.suite(1, dataset={"records": [record]}, granularity="case", **SINKS)
    run_id = evaluations.plan(suite)

    evaluations.drive(run_id, fakes=Fakes(harness=harness, sink=MemorySink()))

    flow_run = shown.flow_run(run_id)
    assert flow_run.parameters == {"request": {**NOTHING, "run_id": run_id, "kind": "full"}}
    for recorded in (flow_run, *shown.task_runs(flow_run, count=4)):
        assert secret not in recorded.model_dump_json()
        assert len(recorded.model_dump_json()) < 5_000


def test_short_trials_share_task_runs(evaluations: Evaluations, shown: Shown) -> None:
    harness = ScriptedHarness(delay_s=0.01)
    run_id = evaluations.plan(factories.suite(60, concurrency={"execute": 4}))

    run = evaluations.drive(run_id, fakes=Fakes(harness=harness))

    task_runs = shown.task_runs(shown.flow_run(run_id), count=3)
    assert run.progress.scored == 60
    assert len(task_runs) < 60


def test_a_preflight_failure_is_a_failed_flow_run_with_the_reason(
    evaluations: Evaluations, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    run_id = evaluations.plan(factories.judged(1, providers={"account": {"kind": "anthropic"}}))

    run = evaluations.drive(run_id)

    flow_run = shown.flow_run(run_id)
    assert run.status is RunStatus.FAILED
    assert "ANTHROPIC_API_KEY" in run.reason
    assert flow_run.state is not None
    assert flow_run.state.type is StateType.FAILED
    assert flow_run.state.message == f"run {run_id} is failed: {run.reason}"


def test_a_cancelled_run_is_a_cancelled_flow_run(evaluations: Evaluations, shown: Shown) -> None:
    run_id = evaluations.plan(factories.suite(300, **ONE_AT_A_TIME))

    def cancel_at_the_third(case: Case) -> str:
        if case.id == "case-2":
            with open_runtime(evaluations.settings) as runtime, runtime.database.write() as to:
                change_status(to, run_id, to=RunStatus.CANCELLED, reason="not needed")
        return str(case.input)

    harness = ScriptedHarness(answer=cancel_at_the_third, delay_s=0.1)
    run = evaluations.drive(run_id, fakes=Fakes(harness=harness))

    flow_run = shown.flow_run(run_id)
    assert run.status is RunStatus.CANCELLED
    assert 3 <= run.progress.executed < 300
    assert flow_run.state is not None
    assert flow_run.state.type is StateType.CANCELLED
    assert flow_run.state.message == f"run {run_id} is cancelled: not needed"


def test_a_request_with_a_suite_file_plans_by_itself(
    evaluations: Evaluations, shown: Shown, tmp_path: Path
) -> None:
    (tmp_path / "cases.jsonl").write_text("\n".join(map(json.dumps, factories.records(30))))
    suite = {
        "suite": "filed",
        "dataset": {"path": "cases.jsonl"},
        "harness": {"kind": "recorded", "field": "input"},
        "graders": [{"kind": "answer-match", "name": "match"}],
    }
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
    request = EvaluateRequest(suite=str(tmp_path / "suite.yaml"), kind=RunKind.PREVIEW, size=4)

    with using(evaluations.settings):
        asyncio.run(evaluate_run(request))

    run = weirbox.get_run("latest", settings=evaluations.settings).summary()
    assert (run.suite, run.kind, run.verdicts.passed) == ("filed", RunKind.PREVIEW, 4)
    assert run.finalized_at is not None
    flow_run = shown.flow_run(run.run_id)
    assert flow_run.parameters["request"]["suite"] == str(tmp_path / "suite.yaml")


def test_the_python_api_runs_in_the_server_and_store_that_it_is_given(
    evaluations: Evaluations, shown: Shown
) -> None:
    suite = factories.suite(2).model_dump(mode="json", exclude_defaults=True)

    run = weirbox.run(suite, settings=evaluations.settings)

    assert shown.flow_run(run.id).state_type is StateType.COMPLETED
    assert run.summary().verdicts.passed == 2
    assert run.scorecard() is not None


def test_a_server_that_is_not_there_is_told_with_the_way_out(
    evaluations: Evaluations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")
    run_id = evaluations.plan(factories.suite(2))

    with pytest.raises(ServiceError, match=f"Prefect failed.*weirbox resume {run_id}.*direct"):
        weirbox.resume(run_id, settings=evaluations.settings)

    assert evaluations.summary(run_id).status is RunStatus.PENDING


@pytest.mark.parametrize(
    "fields", [{}, {"suite": "a.yaml", "run_id": "b"}], ids=["neither", "both"]
)
def test_a_request_names_either_a_suite_or_a_run(fields: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="either 'suite' or 'run_id'"):
        EvaluateRequest.model_validate(fields)


def test_a_resumed_run_shows_what_was_done_as_cached(
    evaluations: Evaluations, shown: Shown
) -> None:
    drivers: list[Driver] = []

    def drain_at_the_third(case: Case) -> str:
        if case.id == "case-2":
            drivers[0].drain()
        return str(case.input)

    fakes = Fakes(harness=ScriptedHarness(answer=drain_at_the_third), sink=MemorySink())
    run_id = evaluations.plan(factories.suite(8, **ONE_AT_A_TIME, **SINKS))

    drained = evaluations.drive(run_id, fakes=fakes, watch=drivers.append)
    first = shown.flow_run(run_id)
    resumed = evaluations.drive(run_id, fakes=fakes)
    second = shown.flow_run(run_id)

    assert first.state is not None
    assert (first.state.name, drained.status) == ("Drained", RunStatus.RUNNING)
    assert resumed.status is RunStatus.COMPLETED
    assert 3 <= drained.progress.executed < 8
    assert isinstance(fakes.harness, ScriptedHarness)
    assert fakes.harness.runs == {f"case-{n}": 1 for n in range(8)}
    left = 8 - drained.progress.executed
    seen = states(shown.task_runs(second, count=3 * left))
    assert seen[f"execute · {drained.progress.executed} done earlier"] == ["Cached"]
    assert sum(name.startswith("execute · case-") for name in seen) == left


def test_a_cached_receipt_is_believed_only_with_its_row(
    evaluations: Evaluations, shown: Shown
) -> None:
    harness = ScriptedHarness()
    run_id = evaluations.plan(factories.suite(2, granularity="case"))
    evaluations.drive(run_id, fakes=Fakes(harness=harness))
    _lose_rows(evaluations, run_id, "case-1")

    run = evaluations.drive(run_id, fakes=Fakes(harness=harness))

    seen = states(shown.task_runs(shown.flow_run(run_id), count=6))
    assert seen["execute · case-1"] == ["Cached", "Completed"]
    assert seen["judge · case-1"] == ["Cached", "Completed"]
    assert "execute · case-0" not in seen
    assert harness.runs == {"case-0": 1, "case-1": 2}
    assert (run.status, run.progress.scored) == (RunStatus.COMPLETED, 2)


def _lose_rows(evaluations: Evaluations, run_id: str, case_id: str) -> None:
    """Set the store back to before a case was executed, as restoring a backup would."""
    with open_runtime(evaluations.settings) as runtime, runtime.database.write() as connection:
        connection.execute(
            update(TRIAL)
            .where(TRIAL.c.run_id == run_id, TRIAL.c.case_id == case_id)
            .values(stage=TrialStage.EXECUTE, state=ScoreState.PENDING, executed_at=None)
            .values(judged_at=None, exported_at=None, disposition=None, claim=None)
        )
        connection.execute(
            update(RUN)
            .where(RUN.c.id == run_id)
            .values(status=RunStatus.RUNNING, completed_at=None, finalized_at=None)
        )
