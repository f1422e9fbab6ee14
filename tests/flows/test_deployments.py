"""weirbox's deployments in a real Prefect server: registered, kept up to date, and left alone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import yaml
from prefect import flow
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.events import emit_event
from prefect.states import Running

from deployments import automations, serve
from deployments.automations import ensure_automation
from deployments.registering import Outcome, Registered, register
from deployments.specs import own_specs, own_tag, suite_spec
from tests import factories
from tests.flows.deployed import wait_until
from weirbox.domain.base import model_json
from weirbox.domain.spec import Suite
from weirbox.errors import NotPossible
from weirbox.store.registry import RegisteredSuite
from weirbox.store.types import utc_now

OWN = ("evaluate-run", "drive-run", "coordinate", "finalize-run")

ROOT = Path(__file__).parents[2]

_numbers = count()

T = TypeVar("T")


@pytest.fixture
def store(prefect_api: str) -> str:
    """A `Settings.deployment` of the test's own: one server serves them all."""
    return f"store{next(_numbers)}"


@pytest.fixture
def name(store: str) -> str:
    """A suite's name of the test's own."""
    return f"suite-of-{store}"


def with_client(work: Callable[[PrefectClient], Awaitable[T]]) -> T:
    """Do something with the session's server."""

    async def working() -> T:
        async with get_client() as client:
            return await work(client)

    return asyncio.run(working())


def registering(store: str, *suites: Suite, **options: Any) -> dict[str, Registered]:
    """Register; gives what became of what, by name."""
    known = [
        RegisteredSuite(name=suite.suite, body=_body(suite), folder="/", registered_at=utc_now())
        for suite in suites
    ]
    done = with_client(lambda client: register(client, known, deployment=store, **options))
    return {one.name: one for one in done}


def _body(suite: Suite) -> dict[str, Any]:
    body = model_json(suite)
    assert isinstance(body, dict)
    return body


def outcomes(done: dict[str, Registered]) -> dict[str, str]:
    """What became of deployments."""
    return {name: one.outcome for name, one in done.items() if one.kind == "deployment"}


def deployment(full_name: str) -> DeploymentResponse:
    """A deployment as the server has it."""
    return with_client(lambda client: client.read_deployment_by_name(full_name))


def schedules(full_name: str) -> list[DeploymentSchedule]:
    """A deployment's schedules."""
    return list(deployment(full_name).schedules)


def small(name: str, **changes: Any) -> Suite:
    """A small suite of that name."""
    return factories.suite(2, suite=name, **changes)


def test_registering_twice_changes_nothing_the_second_time(store: str, name: str) -> None:
    suite = small(name, schedule={"cron": "0 2 * * *", "timezone": "Europe/Berlin"})

    first = registering(store, suite)
    before = [deployment(full_name) for full_name in outcomes(first)]
    second = registering(store, suite)

    names = {*(f"{own}/{store}" for own in OWN), f"evaluate-run/{name}"}
    assert outcomes(first) == dict.fromkeys(names, Outcome.CREATED)
    assert {one.outcome for one in second.values()} == {Outcome.UNCHANGED}
    assert [deployment(full_name) for full_name in outcomes(second)] == before


def test_the_coordinator_ticks_every_15_seconds_and_surplus_ticks_are_dropped(store: str) -> None:
    registering(store)

    found = deployment(f"coordinate/{store}")
    (schedule,) = found.schedules
    assert isinstance(schedule.schedule, IntervalSchedule)
    assert schedule.schedule.interval == timedelta(seconds=15)
    assert found.concurrency_options is not None
    assert found.concurrency_options.collision_strategy == "CANCEL_NEW"
    assert found.global_concurrency_limit is not None
    assert found.global_concurrency_limit.limit == 2


def test_entrypoints_are_module_paths_and_nothing_is_pulled(store: str) -> None:
    registering(store)

    found = [deployment(f"{own}/{store}") for own in OWN]

    assert [one.entrypoint for one in found] == [
        "flows.evaluate_run.evaluate_run",
        "flows.drive_run.drive_run",
        "flows.coordinate.coordinate",
        "flows.finalize_run.finalize_run",
    ]
    assert not any(one.pull_steps for one in found)


def test_a_suite_is_a_deployment_with_its_schedule_tags_and_parameters(
    store: str, name: str
) -> None:
    schedule = {"cron": "30 4 * * 1", "timezone": "Europe/Berlin", "kind": "delta"}
    registering(store, small(name, schedule=schedule, description="What we ask every Monday."))

    found = deployment(f"evaluate-run/{name}")

    assert found.description == "What we ask every Monday."
    assert set(found.tags) == {"weirbox", own_tag(store), f"suite:{name}"}
    assert found.parameters == {"request": {"suite": name, "kind": "delta", "since": "any"}}
    assert [one.schedule for one in found.schedules] == [
        CronSchedule(cron="30 4 * * 1", timezone="Europe/Berlin")
    ]


def test_a_changed_schedule_is_updated_and_one_taken_away_is_removed(store: str, name: str) -> None:
    registering(store, small(name, schedule={"cron": "0 2 * * *"}))

    changed = registering(store, small(name, schedule={"every_s": 3600}))
    (hourly,) = schedules(f"evaluate-run/{name}")
    without = registering(store, small(name))

    assert changed[f"evaluate-run/{name}"][2:] == (Outcome.UPDATED, "schedule")
    assert isinstance(hourly.schedule, IntervalSchedule)
    assert hourly.schedule.interval == timedelta(hours=1)
    assert without[f"evaluate-run/{name}"][2:] == (Outcome.UPDATED, "schedule")
    assert schedules(f"evaluate-run/{name}") == []


def test_what_a_person_set_in_the_ui_stays(store: str, name: str) -> None:
    suite = small(name, schedule={"cron": "0 2 * * *"})
    registering(store, suite)
    found = deployment(f"evaluate-run/{name}")
    theirs = CronSchedule(cron="0 12 * * *", timezone="UTC")

    async def by_hand(client: PrefectClient) -> None:
        await client.update_deployment_schedule(found.id, found.schedules[0].id, active=False)
        await client.create_deployment_schedules(
            found.id, [DeploymentScheduleCreate(schedule=theirs)]
        )
        await client.pause_deployment(found.id)

    with_client(by_hand)
    again = registering(store, suite)
    registering(store, small(name, schedule={"cron": "0 3 * * *"}))

    left = {str(one.schedule.cron): one for one in schedules(f"evaluate-run/{name}")}  # type: ignore[union-attr]
    assert again[f"evaluate-run/{name}"].outcome is Outcome.UNCHANGED
    assert set(left) == {"0 12 * * *", "0 3 * * *"}
    assert not left["0 3 * * *"].active
    assert deployment(f"evaluate-run/{name}").paused


def test_the_deployment_of_a_suite_that_is_unregistered_is_removed_and_no_other(
    store: str, name: str
) -> None:
    registering(store, small(name), small(f"{name}-2"))
    registering(f"{store}-other", small(f"{name}-3"))

    done = registering(store, small(f"{name}-2"))

    assert done[f"evaluate-run/{name}"].outcome is Outcome.REMOVED
    assert deployment(f"evaluate-run/{name}-2").name == f"{name}-2"
    assert deployment(f"evaluate-run/{name}-3").name == f"{name}-3"


def test_somebody_elses_deployment_is_refused_and_left_as_it_is(store: str, name: str) -> None:
    registering(f"{store}-other", small(name))
    before = deployment(f"evaluate-run/{name}")

    done = registering(store, small(name, schedule={"every_s": 60}), small(f"{name}-2"))

    refused = done[f"evaluate-run/{name}"]
    assert refused.outcome is Outcome.REFUSED
    assert f"'{store}-other'" in refused.detail
    assert deployment(f"evaluate-run/{name}") == before
    assert done[f"evaluate-run/{name}-2"].outcome is Outcome.CREATED


def test_a_suite_may_not_have_the_name_of_weirboxs_own(store: str) -> None:
    registering(store)
    before = deployment(f"evaluate-run/{store}")

    registering(store, small(store))

    assert deployment(f"evaluate-run/{store}") == before
    with pytest.raises(NotPossible, match="WEIRBOX_DEPLOYMENT"):
        suite_spec(small(store), own_specs(store)[0])


def test_a_pool_is_made_once_and_deployments_stay_in_it(store: str, name: str) -> None:
    registering(store)
    pool = f"pool-{store}"

    moved = registering(store, pool=pool)
    later = registering(store, small(name))

    places = {
        own: (deployment(own).work_pool_name, deployment(own).work_queue_name)
        for own in outcomes(later)
    }
    assert moved[pool].outcome is Outcome.CREATED
    assert with_client(lambda client: client.read_work_pool(pool)).type == "process"
    assert places == {
        f"evaluate-run/{store}": (pool, "default"),
        f"drive-run/{store}": (pool, "default"),
        f"coordinate/{store}": (pool, "tending"),
        f"finalize-run/{store}": (pool, "tending"),
        f"evaluate-run/{name}": (pool, "default"),
    }
    assert registering(store, small(name), pool=pool)[pool].outcome is Outcome.UNCHANGED


def test_a_queue_is_for_evaluations_and_drivers_and_stays(store: str, name: str) -> None:
    pool = f"pool-{store}"
    registering(store, pool=pool, queue="gpu")

    later = registering(store, small(name))

    assert {full: deployment(full).work_queue_name for full in outcomes(later)} == {
        f"evaluate-run/{store}": "gpu",
        f"drive-run/{store}": "gpu",
        f"coordinate/{store}": "tending",
        f"finalize-run/{store}": "tending",
        f"evaluate-run/{name}": "gpu",
    }


WRONG = {
    "an unknown field": ({"sise": 3}, "sise"),
    "an unknown kind": ({"kind": "all"}, "all"),
    "a number that is too small": ({"kind": "preview", "size": 0}, "0"),
    "text for a list": ({"kind": "delta", "cases": "a"}, "'a'"),
    "an unknown part of the origin": ({"origin": {"repo": "r"}}, "repo"),
    "another suite": ({"suite": "another"}, "another"),
    "a planned run": ({"run_id": "r"}, "run_id"),
}


def test_a_wrong_parameter_is_refused_when_the_run_is_created(
    store: str, name: str, prefect_api: str
) -> None:
    registering(store, small(name))
    url = f"{prefect_api}/deployments/{deployment(f'evaluate-run/{name}').id}/create_flow_run"

    replies = {
        case: httpx.post(url, json={"parameters": {"request": {"suite": name} | changes}})
        for case, (changes, _) in WRONG.items()
    }

    assert {case: reply.status_code for case, reply in replies.items()} == dict.fromkeys(WRONG, 409)
    for case, (_, named) in WRONG.items():
        assert named in replies[case].json()["detail"], case


def test_the_form_has_a_title_and_a_description_for_every_field(store: str, name: str) -> None:
    registering(store, small(name))

    for full_name in (*(f"{own}/{store}" for own in OWN), f"evaluate-run/{name}"):
        form = deployment(full_name).parameter_openapi_schema
        assert form is not None
        for model in form.get("definitions", {}).values():
            for field, about in model.get("properties", {}).items():
                assert "title" in about or "$ref" in about, (full_name, field)
                assert model["title"] == "Origin" or field == "suite" or "description" in about


def test_prefect_itself_registers_the_file_as_weirbox_does(
    store: str, prefect_api: str, tmp_path: Path
) -> None:
    registering(f"{store}-first", pool="weirbox")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"),
            *("--prefect-file", str(ROOT / "deployments/prefect.yaml")),
        ],
        env=os.environ | {"WEIRBOX_DEPLOYMENT": store},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    afterwards = registering(store, pool="weirbox")

    own = {name: one for name, one in afterwards.items() if one.kind == "deployment"}
    assert {name: one.detail for name, one in own.items()} == {
        f"{name}/{store}": "version" for name in OWN
    }


# --- the automation ---------------------------------------------------------------


def test_the_automation_is_written_once_and_kept_up_to_date(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ensured() -> str:
        return with_client(lambda client: ensure_automation(client, store))[1]

    found = [ensured(), ensured()]
    monkeypatch.setattr(automations, "SILENT_S", 600)
    found += [ensured(), ensured()]

    assert found == ["created", "unchanged", "updated", "unchanged"]


@flow
def never_run() -> None:
    """Stands for a flow run whose process is elsewhere."""


@pytest.mark.slow
def test_a_flow_run_whose_heartbeats_stop_is_crashed_and_a_live_one_is_not(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automations, "SILENT_S", 10)
    with_client(lambda client: ensure_automation(client, store))

    async def running(client: PrefectClient, *tags: str) -> Any:
        return await client.create_flow_run(never_run, state=Running(), tags=tags)

    ours = ("weirbox", own_tag(store))
    dead = with_client(lambda client: running(client, *ours))
    alive = with_client(lambda client: running(client, *ours))
    theirs = with_client(lambda client: running(client, "weirbox", own_tag("another")))

    def beat(*flow_runs: Any) -> None:
        for one in flow_runs:
            related = [
                {"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"}
                for tag in one.tags
            ]
            emit_event(
                event="prefect.flow-run.heartbeat",
                resource={"prefect.resource.id": f"prefect.flow-run.{one.id}"},
                related=related,
            )

    def state(one: Any) -> str:
        found = with_client(lambda client: client.read_flow_run(one.id)).state
        assert found is not None
        return str(found.name)

    def crashed() -> bool:
        beat(alive)
        return state(dead) == "Crashed"

    beat(dead, alive, theirs)
    wait_until(crashed)

    assert (state(alive), state(theirs)) == ("Running", "Running")


def test_the_file_is_one_that_yaml_reads_and_names_a_queue_for_each() -> None:
    content = yaml.safe_load((ROOT / "deployments/prefect.yaml").read_text())

    assert content["pull"] == []
    assert [one["work_pool"]["work_queue_name"] for one in content["deployments"]] == [
        *("default", "default", "tending", "tending")
    ]


# --- the runner of `weirbox up` ---------------------------------------------------


@pytest.mark.parametrize("failure", [httpx.ConnectError("refused"), httpx.ReadTimeout("silent")])
async def test_the_runner_waits_for_a_server_that_is_away(
    failure: httpx.HTTPError, prefect_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, enough = [], asyncio.Event()

    async def away(*arguments: Any, **options: Any) -> Any:
        asked.append(options)
        if len(asked) == 10:
            enough.set()
        raise failure

    monkeypatch.setattr(PrefectClient, "get_scheduled_flow_runs_for_deployments", away)
    monkeypatch.setattr(serve, "POLL_S", 0.01)
    runner = serve.PatientRunner.make("patient", limit=1)

    running = asyncio.create_task(runner.start())
    often = asyncio.create_task(enough.wait())
    await asyncio.wait([running, often], return_when=asyncio.FIRST_COMPLETED)
    ended = running.done()
    await runner.astop()
    await running

    assert often.done()
    assert not ended
