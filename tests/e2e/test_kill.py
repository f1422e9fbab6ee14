"""Real processes, killed at every stage: what is done stays done, and the result is the same."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import psutil
import pytest
from sqlalchemy import func, select

import weirbox
from tests.e2e import held
from tests.e2e.place import (
    CALLS,
    CASES,
    PATIENCE_S,
    SUITE,
    Place,
    assert_done_once,
    booked,
    cases_with,
    held_by_someone,
    lines,
    log,
    same_result,
)
from weirbox import compute
from weirbox.api import Run
from weirbox.compute import bubblewrap
from weirbox.runtime import open_runtime
from weirbox.services import Service, Services
from weirbox.store import tables
from weirbox.store.base import table


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A fresh place; what still runs at the end is killed."""
    with Place.make(tmp_path / "place") as made:
        yield made


@pytest.fixture
def one_at_a_time(tmp_path: Path) -> Iterator[Place]:
    """A place whose suite executes one case at a time, so that one that is held holds all."""
    suite = {**SUITE, "concurrency": {"execute": 1}}
    with Place.make(tmp_path / "place", suite) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same suite in a process that nothing happens to."""
    with Place.make(tmp_path_factory.mktemp("undisturbed") / "place") as place:
        process = place.start("run", str(place.folder / "suite.yaml"), "--engine", "direct")
        assert process.wait(PATIENCE_S) == 0
    assert held.counts(place.came, "execute") == dict.fromkeys(CASES, 1)
    assert held.counts(place.came, "judge") == dict.fromkeys(CALLS, 1)
    return weirbox.get_run("latest", settings=place.settings)


# --- SIGKILL ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hold", "missed"),
    [
        ("execute.case-5", "executed_at"),
        ("judge.case-5-second", "judged_at"),
        ("export.case-5", "exported_at"),
        ("finalize.all", None),
    ],
)
def test_a_killed_run_is_resumed_without_doing_anything_again(
    hold: str,
    missed: str | None,
    place: Place,
    undisturbed: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = place.run(hold=hold)
    place.wait_until(lambda: cases_with(place, "executed_at"), process)
    place.kill(process)
    executed, called = cases_with(place, "executed_at"), booked(place)
    if missed is None:
        assert (len(executed), len(called), len(cases_with(place, "exported_at"))) == (8, 16, 8)
    else:
        assert "case-5" not in cases_with(place, missed)

    run = place.resume(monkeypatch)

    assert same_result(run) == same_result(undisturbed)
    assert_done_once(place, run, executed, called)


def test_a_process_killed_while_it_plans_leaves_no_run(
    place: Place, undisturbed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.kill(place.run(hold="plan.all"))
    with open_runtime(place.settings) as runtime, runtime.database.read() as connection:
        left = [
            connection.execute(select(func.count()).select_from(table(rows))).scalar_one()
            for rows in (tables.Run, tables.Trial, tables.RunEvent)
        ]

    monkeypatch.setenv(held.FOLDER, str(place.came))
    suite = place.folder / "suite.yaml"
    run = weirbox.run(suite, engine="direct", settings=place.settings)

    assert left == [0, 0, 0]
    assert same_result(run) == same_result(undisturbed)


def test_a_run_that_is_killed_again_and_again_still_ends_the_same(
    place: Place, undisturbed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.kill(place.run(hold="execute.case-4"))
    for hold in ("judge.case-4-second", "export.case-4"):
        (place.came / held.GO).unlink()
        place.kill(place.until_held("resume", "latest", "--engine", "direct", hold=hold))

    run = place.resume(monkeypatch)

    assert same_result(run) == same_result(undisturbed)
    assert sorted(booked(place)) == sorted(CALLS)
    assert sorted(lines(place, run)) == CASES


# --- SIGINT and SIGTERM -----------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_lets_what_is_in_flight_end_and_gives_the_claims_back(
    number: signal.Signals,
    one_at_a_time: Place,
    undisturbed: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = one_at_a_time
    process = place.run(hold="execute.case-3")
    process.send_signal(number)
    place.wait_until(lambda: "draining" in log(place), process)
    (place.came / held.GO).touch()

    output, _ = process.communicate(timeout=PATIENCE_S)

    drained = json.loads(output.decode().splitlines()[-1])
    assert process.returncode == 128 + number
    assert "case-3" in cases_with(place, "executed_at")
    assert drained["status"] == "running"
    assert drained["progress"]["executed"] == 4
    assert held_by_someone(place, drained["run_id"]) == ([], 0)
    assert same_result(place.resume(monkeypatch)) == same_result(undisturbed)
    assert held.counts(place.came, "execute") == dict.fromkeys(CASES, 1)


@pytest.mark.parametrize("signals", [1, 2], ids=["after its grace", "at the second Ctrl-C"])
def test_what_does_not_end_is_cut_off(
    signals: int, one_at_a_time: Place, undisturbed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = one_at_a_time
    grace_s = "0.3" if signals == 1 else "600"
    process = place.run(hold="execute.case-3", WEIRBOX_GRACE_S=grace_s)
    place.wait_until(lambda: len(cases_with(place, "exported_at")) == 3, process)
    for _ in range(signals):
        process.send_signal(signal.SIGINT)
        place.wait_until(lambda: "draining" in log(place), process)

    output, _ = process.communicate(timeout=PATIENCE_S)

    drained = json.loads(output.decode().splitlines()[-1])
    assert process.returncode == 130
    assert held_by_someone(place, drained["run_id"]) == ([], 0)
    assert "case-3" not in cases_with(place, "executed_at")
    (place.came / held.GO).touch()
    assert same_result(place.resume(monkeypatch)) == same_result(undisturbed)


# --- with Prefect -----------------------------------------------------------------


def test_a_run_killed_under_prefect_is_resumed_under_prefect(
    place: Place, undisturbed: Run, prefect_server: Service
) -> None:
    variables = {"PREFECT_API_URL": f"{prefect_server.url}/api"}
    variables["PREFECT_HOME"] = str(place.folder / "prefect")
    place.kill(place.run(hold="judge.case-5-second", engine="prefect", **variables))
    executed, called = cases_with(place, "executed_at"), booked(place)

    process = place.start("resume", "latest", **variables)

    assert process.wait(PATIENCE_S) == 0, log(place)
    run = weirbox.get_run("latest", settings=place.settings)
    assert same_result(run) == same_result(undisturbed)
    assert_done_once(place, run, executed, called)


@pytest.mark.slow
def test_a_run_outlives_its_prefect_server(place: Place, undisturbed: Run) -> None:
    own = {"PREFECT_API_URL": "", "PREFECT_CLIENT_MAX_RETRIES": "1"}
    services = Services(place.folder / "home")
    try:
        process = place.run(hold="judge.case-5-second", engine="prefect", **own)
        server = services.get("prefect")
        assert server is not None
        psutil.Process(server.pid).kill()
        (place.came / held.GO).touch()

        output, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        services.stop("prefect")

    ended = json.loads(output.decode().splitlines()[-1])
    assert process.returncode == 0, log(place)
    assert ended["status"] == "completed"
    assert ended["finalized_at"] is not None
    run = weirbox.get_run("latest", settings=place.settings)
    assert same_result(run) == same_result(undisturbed)
    assert held.counts(place.came, "execute") == dict.fromkeys(CASES, 1)
    assert held.counts(place.came, "judge") == dict.fromkeys(CALLS, 1)


# --- sandboxes --------------------------------------------------------------------

SLEEP = ["sh", "-c", "sleep {{ case.input }} & sleep {{ case.input }} & wait"]


@pytest.mark.parametrize("kind", ["bubblewrap", "local"])
async def test_a_killed_process_leaves_no_sandbox_behind(
    kind: Literal["bubblewrap", "local"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "bubblewrap" and (reason := bubblewrap.unavailable()) is not None:
        pytest.skip(reason)
    temporary = tmp_path / "tmp"
    temporary.mkdir(mode=0o711)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    seconds = f"86400.{os.getpid()}{kind == 'local':d}"
    suite = {
        **SUITE,
        "dataset": {"records": [{"id": "case-0", "input": seconds}]},
        "harness": {"kind": "command", "argv": SLEEP, "timeout_s": 90_000},
        "compute": {"kind": kind},
        "graders": [{"kind": "answer-match", "name": "match", "target": "x"}],
        "judges": [],
    }
    with Place.make(tmp_path / "place", suite) as place:
        file = str(place.folder / "suite.yaml")
        process = place.start("run", file, "--engine", "direct", TMPDIR=str(temporary))
        place.wait_until(lambda: len(sleepers(seconds)) == 2, process)
        asleep = sleepers(seconds)

        place.kill(process)
    if kind == "bubblewrap":  # the kernel ends a pid namespace with its first process
        assert psutil.wait_procs(asleep, timeout=20)[1] == []
    machine = compute.build(kind)
    reaped = await machine.reap()
    await machine.aclose()

    assert reaped == 1
    assert psutil.wait_procs(asleep, timeout=20)[1] == []
    assert list(temporary.glob("weirbox-*/*")) == []


def sleepers(seconds: str) -> list[psutil.Process]:
    """The processes that sleep for so long."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if process.info["cmdline"] == ["sleep", seconds]
    ]
