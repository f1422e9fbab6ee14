"""Runs that are started from anywhere: through the API, and by the documented HTTP calls."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun

import weirbox
from deployments.registering import register
from tests import factories
from weirbox import cli
from weirbox.domain.run import Origin
from weirbox.domain.spec import Suite
from weirbox.domain.words import RunStatus
from weirbox.errors import NotPossible, ServiceError
from weirbox.runtime import open_runtime
from weirbox.services import configured_api_url, free_port
from weirbox.settings import Settings
from weirbox.store import dispatches, registry
from weirbox.store.writes import change_status

ROOT = Path(__file__).parents[2]

CALL = re.compile(r"curl -fsS (?P<url>\S+)(?P<rest>(?:[^|)\n]|\\\n)*)")
DATA = re.compile(r"-d '(?P<data>[^']*)'")

_numbers = count()


class Ended(NamedTuple):
    """What a command came to."""

    status: int
    out: str
    err: str


@pytest.fixture
def command(
    placed: Settings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Runs the command line on the test's store and the session's server."""

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["weirbox", *arguments])
        monkeypatch.setenv("WEIRBOX_HOME", str(placed.home))
        monkeypatch.setenv("WEIRBOX_DEPLOYMENT", placed.deployment)
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Ended(int(str(ended.value.code)), *capfd.readouterr())

    return run


@pytest.fixture
def placed(settings: Settings) -> Settings:
    """Settings of a store of the test's own, on the session's server."""
    return settings.model_copy(update={"deployment": f"trigger{next(_numbers)}"})


@pytest.fixture
def suite(placed: Settings, prefect_api: str) -> str:
    """A registered suite with its deployment, that nobody serves."""
    name = f"suite-of-{placed.deployment}"
    deploy(placed, factories.suite(3, suite=name))
    return name


def deploy(settings: Settings, *suites: Suite, pool: str | None = None) -> None:
    """Register suites and their deployments."""
    with open_runtime(settings) as runtime, runtime.database.write() as connection:
        for suite in suites:
            registry.register_suite(connection, suite, folder="/")
        known = registry.registered_suites(connection)

    async def registering() -> None:
        async with get_client() as client:
            await register(client, known, deployment=settings.deployment, pool=pool)

    asyncio.run(registering())


def flow_run(flow_run_id: str) -> FlowRun:
    """A flow run as the server has it."""
    with get_client(sync_client=True) as client:
        return client.read_flow_run(UUID(flow_run_id))


def take_up(settings: Settings, run: weirbox.Triggered) -> str:
    """Plan the run as a worker's flow does; gives its id."""
    with open_runtime(settings) as runtime:
        run_id = factories.plan(runtime.database, factories.suite(3, suite=run.suite))
        with runtime.database.write() as connection:
            dispatches.adopt_dispatch(connection, run_id, run.flow_run_id)
    return run_id


# --- starting ---------------------------------------------------------------------


def test_a_suite_is_started_with_what_was_asked_for(placed: Settings, suite: str) -> None:
    run = weirbox.trigger(
        suite,
        kind="delta",
        case_ids=["case-1", "case-0"],
        origin={"repository": "acme/bot", "pull_request": 41},
        settings=placed,
    )

    found = flow_run(run.flow_run_id)
    origin = Origin(repository="acme/bot", pull_request="41").model_dump()
    assert found.parameters["request"] == {
        "suite": suite,
        "kind": "delta",
        "cases": ["case-1", "case-0"],
        "since": None,
        "size": None,
        "origin": origin,
    }
    assert {"weirbox", f"suite:{suite}"} <= set(found.tags)
    assert found.state is not None
    assert found.state.is_scheduled()
    assert run.run_id is None


def test_one_key_gives_one_flow_run_and_no_key_gives_two(placed: Settings, suite: str) -> None:
    keyed = [weirbox.trigger(suite, idempotency_key="abc", settings=placed) for _ in range(3)]
    free = [weirbox.trigger(suite, settings=placed) for _ in range(2)]

    assert len({run.flow_run_id for run in keyed}) == 1
    assert len({run.flow_run_id for run in (*keyed, *free)}) == 3


def test_a_suite_that_was_registered_since_is_started_by_the_common_deployment(
    placed: Settings, suite: str
) -> None:
    with open_runtime(placed) as runtime, runtime.database.write() as connection:
        registry.register_suite(connection, factories.suite(1, suite="newer"), folder="/")

    run = weirbox.trigger("newer", settings=placed)

    assert flow_run(run.flow_run_id).parameters["request"]["suite"] == "newer"
    assert "suite:newer" in flow_run(run.flow_run_id).tags


def test_an_unknown_suite_is_named_with_those_there_are(placed: Settings, suite: str) -> None:
    with pytest.raises(NotPossible, match=f"'nope'.*'{suite}'.*weirbox deploy"):
        weirbox.trigger("nope", settings=placed)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "cases of a full run": ({"case_ids": ["a"]}, "a full run takes no list of cases"),
    "the size of a full run": ({"size": 3}, "only a preview does"),
    "an unknown part of the origin": ({"origin": {"repo": "r"}}, "origin.repo.*repository"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_together_is_refused_before_anything_is_asked_for(
    case: str, placed: Settings
) -> None:
    options, message = WRONG[case]

    with pytest.raises(NotPossible, match=message):
        weirbox.trigger("any", settings=placed, **options)


def test_what_the_server_refuses_is_told_with_the_field(placed: Settings, suite: str) -> None:
    with pytest.raises(ServiceError, match=r"size.*409|0 is less than"):
        weirbox.trigger(suite, kind="preview", size=0, settings=placed)


def test_an_address_without_the_api_is_one_clear_error(
    placed: Settings, suite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(configured_api_url()).removesuffix("/api")
    monkeypatch.setenv("PREFECT_API_URL", url)

    with pytest.raises(ServiceError, match=f"at {url} is not the API of a Prefect server"):
        weirbox.trigger(suite, settings=placed)


def test_a_server_that_is_not_there_is_one_clear_error(
    placed: Settings, suite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    monkeypatch.setenv("PREFECT_API_URL", url)

    with pytest.raises(ServiceError, match=f"at {url} does not answer"):
        weirbox.trigger(suite, settings=placed)
    monkeypatch.delenv("PREFECT_API_URL")
    with pytest.raises(ServiceError, match="set PREFECT_API_URL"):
        weirbox.trigger(suite, settings=placed)


def test_a_store_without_deployments_says_how_to_register_them(
    placed: Settings, prefect_api: str
) -> None:
    with open_runtime(placed) as runtime, runtime.database.write() as connection:
        registry.register_suite(connection, factories.suite(1, suite="lonely"), folder="/")

    with pytest.raises(ServiceError, match="weirbox deploy"):
        weirbox.trigger("lonely", settings=placed)


@contextmanager
def busy_server(behind: str, refusals: int) -> Iterator[tuple[str, list[str]]]:
    """A server in front of another that is too busy for the first requests to start a run."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.path.endswith("/create_flow_run"):
                asked.append(json.loads(body)["idempotency_key"])
                if len(asked) <= refusals:
                    self.send_response(503)
                    self.send_header("Retry-After", "0")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
            reply = httpx.request(
                self.command,
                behind.removesuffix("/api") + self.path,
                content=body,
                headers={"content-type": "application/json"},
            )
            self.send_response(reply.status_code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(reply.content)))
            self.end_headers()
            self.wfile.write(reply.content)

        do_GET = do_POST = _answer

        def log_message(self, *parts: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/api", asked
    finally:
        server.shutdown()
        server.server_close()


def test_a_busy_server_is_asked_again_under_the_same_key(
    placed: Settings, suite: str, prefect_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with busy_server(prefect_api, refusals=3) as (url, asked):
        monkeypatch.setenv("PREFECT_API_URL", url)
        run = weirbox.trigger(suite, settings=placed)

    assert len(asked) == 4
    assert len(set(asked)) == 1
    assert flow_run(run.flow_run_id).idempotency_key == asked[0]


# --- the handle -------------------------------------------------------------------


def test_a_handle_reads_the_run_from_its_rows(placed: Settings, suite: str) -> None:
    run = weirbox.trigger(suite, settings=placed)
    before = run.progress()

    run_id = take_up(placed, run)
    with open_runtime(placed) as runtime:
        factories.go_on(runtime.database, run_id)

    assert before.planned == 0
    assert run.run_id == run_id
    assert run.wait(timeout_s=30).status is RunStatus.COMPLETED
    assert run.progress().scored == 3
    assert list(run.results()["case_id"]) == ["case-0", "case-1", "case-2"]


def test_waiting_ends_in_time_where_no_worker_comes(placed: Settings, suite: str) -> None:
    run = weirbox.trigger(suite, settings=placed)

    with pytest.raises(TimeoutError, match=run.flow_run_id):
        run.wait(timeout_s=0.5)
    with pytest.raises(NotPossible, match="is not planned"):
        run.results()
    assert run.state().waiting


def test_waiting_ends_with_prefects_reason_where_nothing_was_planned(
    placed: Settings, suite: str
) -> None:
    run = weirbox.trigger(suite, settings=placed)
    run.cancel()

    with pytest.raises(ServiceError, match=f"{run.flow_run_id} is Cancelled"):
        run.wait(timeout_s=30)
    with pytest.raises(NotPossible, match="Cancelled already"):
        run.cancel()


def test_cancelling_a_planned_run_is_a_matter_of_its_rows(placed: Settings, suite: str) -> None:
    run = weirbox.trigger(suite, settings=placed)
    take_up(placed, run)

    run.cancel()

    assert run.run.summary().status is RunStatus.CANCELLED
    with pytest.raises(NotPossible, match="cancelled"):
        run.cancel()


async def test_the_async_twins_do_the_same(placed: Settings, prefect_api: str) -> None:
    name = f"suite-of-{placed.deployment}"
    await asyncio.to_thread(deploy, placed, factories.suite(3, suite=name))

    run = await weirbox.atrigger(name, settings=placed)
    run_id = await asyncio.to_thread(take_up, placed, run)
    with open_runtime(placed) as runtime, runtime.database.write() as connection:
        change_status(connection, run_id, to=RunStatus.FAILED, reason="tried")

    assert (await run.astate()).name == "Scheduled"
    assert (await run.await_(timeout_s=30)).reason == "tried"
    assert (await run.aprogress()).planned == 3
    assert len(await run.aresults()) == 3
    with pytest.raises(NotPossible, match="failed"):
        await run.acancel()


# --- what is documented for others ------------------------------------------------


def documented_calls(suite: str) -> list[tuple[str, str]]:
    """The addresses and bodies of the documented calls."""
    page = (ROOT / "docs/triggers.md").read_text()
    block = page.partition("```sh http\n")[2].partition("```")[0].replace("support-answers", suite)
    found = []
    for call in CALL.finditer(block.replace("\\\n", " ")):
        data = DATA.search(call["rest"])
        found.append((call["url"], data["data"] if data else ""))
    return found


def test_the_documented_http_calls_find_start_show_and_cancel_a_run(
    placed: Settings, suite: str, prefect_api: str
) -> None:
    known = {"$PREFECT_API_URL": prefect_api}

    def call(number: int) -> httpx.Response:
        url, body = documented_calls(suite)[number]
        for variable, value in known.items():
            url = url.replace(variable, value)
        if not body:
            return httpx.get(url)
        return httpx.post(url, content=body, headers={"content-type": "application/json"})

    known["$DEPLOYMENT"] = call(0).json()["id"]
    first, second = call(1), call(1)
    known["$FLOW_RUN"] = first.json()["id"]
    shown = call(2).json()
    cancelled = call(3)

    assert len(documented_calls(suite)) == 4
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    assert shown["state"]["type"] == "SCHEDULED"
    assert shown["parameters"]["request"]["suite"] == suite
    assert cancelled.status_code in (200, 201)
    assert flow_run(first.json()["id"]).state_type == "CANCELLED"


def test_the_command_line_starts_a_run_and_tells_it_as_json(
    placed: Settings, suite: str, command: Callable[..., Ended]
) -> None:
    done = command("trigger", suite, "--preview", "2", "--key", "k", "--json")
    again = command("trigger", suite, "--preview", "2", "--key", "k", "--json")

    found = json.loads(done.out)
    assert (done.status, again.status) == (0, 0)
    assert found == {"suite": suite, "flow_run_id": found["flow_run_id"], "run_id": None}
    assert json.loads(again.out) == found
    request = flow_run(found["flow_run_id"]).parameters["request"]
    assert (request["kind"], request["size"]) == ("preview", 2)


def test_the_command_line_deploys_a_file_twice_and_says_that_nothing_changed(
    placed: Settings, prefect_api: str, command: Callable[..., Ended], tmp_path: Path
) -> None:
    name = f"file-of-{placed.deployment}"
    file = tmp_path / "suite.yaml"
    file.write_text(
        f"suite: {name}\n"
        "dataset: {records: [{id: a, input: x, target: x}]}\n"
        "harness: {kind: recorded, field: input}\n"
        "graders: [{kind: answer-match, name: exact}]\n"
    )

    first = command("deploy", str(file), "--json")
    again = command("deploy", str(file))
    removed = command("deploy", "--remove", name, "--json")
    unknown = command("deploy", "--remove", name)

    outcomes = {one["name"]: one["outcome"] for one in json.loads(first.out)}
    assert outcomes[f"evaluate-run/{name}"] == "created"
    assert "nothing has changed" in again.err
    gone = {one["name"]: one["outcome"] for one in json.loads(removed.out)}
    assert gone[f"evaluate-run/{name}"] == "removed"
    assert (unknown.status, "no suite" in unknown.err) == (2, True)
