"""Real processes, killed at every stage: what is done stays done, and the result is the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest
import yaml
from sqlalchemy import func, select

import weirbox
from tests.e2e import held
from weirbox import compute
from weirbox.api import Run
from weirbox.compute import bubblewrap
from weirbox.domain.run import RunSummary
from weirbox.domain.words import RunStatus
from weirbox.runtime import open_runtime
from weirbox.services import Service, Services
from weirbox.settings import Settings
from weirbox.store import claims, tables
from weirbox.store.base import TRIAL, table

ROOT = Path(__file__).parents[2]
CASES = [f"case-{n}" for n in range(8)]
JUDGES = ("first", "second")
CALLS = [f"{case}-{judge}" for case in CASES for judge in JUDGES]
PRICE = 0.01

PATIENCE_S = 90.0
"""How long a process may take to come to a stage, on a busy machine."""

SUITE = {
    "suite": "killed",
    "dataset": {"records": [{"id": c, "input": f"in {c}", "target": f"in {c}"} for c in CASES]},
    "harness": {"kind": "python", "function": "tests.e2e.held:execute", "timeout_s": 600},
    "graders": [{"kind": "answer-match", "name": "match"}],
    "providers": {
        "paid": {"kind": "python", "function": "tests.e2e.held:ask", "cost_usd": PRICE}
        | {"timeout_s": 600}
    },
    "judges": [
        {
            "name": judge,
            "prompt": {"id": judge, "version": 1, "user": "Is {{ output }} right?"},
            "primary": {"provider": "paid", "model": "m"},
        }
        for judge in JUDGES
    ],
    "concurrency": {"execute": 2, "judge": 2, "export": 1},
    "budget": {"usd": 10},
}


@dataclass
class Place:
    """A home, a folder of what came, and a suite, all of one test."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @classmethod
    def make(cls, folder: Path, suite: dict[str, Any] = SUITE) -> Place:
        """Lay the suite's file."""
        (folder / "came").mkdir(parents=True)
        sinks = [{"kind": "jsonl", "path": str(folder / "out")}]
        (folder / "suite.yaml").write_text(yaml.safe_dump({**suite, "sinks": sinks}))
        return cls(folder)

    @property
    def came(self) -> Path:
        """Where executions and calls are counted."""
        return self.folder / "came"

    @property
    def settings(self) -> Settings:
        """Of the place's own store."""
        return Settings(home=self.folder / "home", database_url=None)

    def start(self, *arguments: str, hold: str = "", **variables: str) -> subprocess.Popen[bytes]:
        """Run a command of weirbox, held at `hold`."""
        env = {name: value for name, value in os.environ.items() if name[:8] != "WEIRBOX_"}
        env |= {"WEIRBOX_HOME": str(self.folder / "home"), held.FOLDER: str(self.came)}
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.held", *arguments],
            env={**env, held.HOLD: hold, **variables},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=(self.folder / "stderr").open("ab"),
        )
        self.processes.append(process)
        return process

    def until_held(self, *arguments: str, hold: str, **variables: str) -> subprocess.Popen[bytes]:
        """Run a command up to where it is held."""
        (self.came / held.HELD).unlink(missing_ok=True)
        process = self.start(*arguments, hold=hold, **variables)
        self.wait_until((self.came / held.HELD).exists, process)
        return process

    def run(
        self, *, hold: str, engine: str = "direct", **variables: str
    ) -> subprocess.Popen[bytes]:
        """Run the suite up to where it is held."""
        suite = str(self.folder / "suite.yaml")
        return self.until_held("run", suite, "--engine", engine, "--json", hold=hold, **variables)

    def wait_until(self, condition: Callable[[], Any], process: subprocess.Popen[bytes]) -> None:
        """Wait for something that a living process will do."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert process.poll() is None, f"it ended with {process.returncode}: {log(self)}"
            assert time.monotonic() < deadline, f"it never came: {log(self)}"
            time.sleep(0.02)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a process at once, and let nobody be held any more."""
        process.kill()
        process.wait()
        (self.came / held.GO).touch()

    def resume(self, monkeypatch: pytest.MonkeyPatch) -> Run:
        """Go on with the newest run, in this process."""
        monkeypatch.setenv(held.FOLDER, str(self.came))
        newest = weirbox.get_run("latest", settings=self.settings)
        return weirbox.resume(newest.id, engine="direct", settings=self.settings)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A fresh place; what still runs at the end is killed."""
    made = Place.make(tmp_path / "place")
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same suite in a process that nothing happens to."""
    place = Place.make(tmp_path_factory.mktemp("undisturbed") / "place")
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


def test_a_process_killed_while_it_plans_leaves_nothing(
    place: Place, undisturbed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.kill(place.run(hold="plan.all"))
    with open_runtime(place.settings) as runtime, runtime.database.read() as connection:
        left = [
            connection.execute(select(func.count()).select_from(table(rows))).scalar_one()
            for rows in (tables.Run, tables.Trial, tables.Payload, tables.RunEvent)
        ]

    monkeypatch.setenv(held.FOLDER, str(place.came))
    suite = place.folder / "suite.yaml"
    run = weirbox.run(suite, engine="direct", settings=place.settings)

    assert left == [0, 0, 0, 0]
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
    number: signal.Signals, place: Place, undisturbed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = place.run(hold="execute.case-3")
    process.send_signal(number)
    place.wait_until(lambda: "draining" in log(place), process)
    (place.came / held.GO).touch()

    output, _ = process.communicate(timeout=PATIENCE_S)

    drained = json.loads(output.decode().splitlines()[-1])
    assert process.returncode == 128 + number
    assert "case-3" in cases_with(place, "executed_at")
    assert drained["status"] == "running"
    assert drained["progress"]["executed"] < 8
    assert held_by_someone(place, drained["run_id"]) == ([], 0)
    assert same_result(place.resume(monkeypatch)) == same_result(undisturbed)
    assert held.counts(place.came, "execute") == dict.fromkeys(CASES, 1)


@pytest.mark.parametrize("signals", [1, 2], ids=["after its grace", "at the second Ctrl-C"])
def test_what_does_not_end_is_cut_off(
    signals: int, place: Place, undisturbed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    grace_s = "0.3" if signals == 1 else "600"
    process = place.run(hold="execute.case-3", WEIRBOX_GRACE_S=grace_s)
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
    place = Place.make(tmp_path / "place", suite)
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


# --- what is read back ------------------------------------------------------------


def assert_done_once(place: Place, run: Run, executed: list[str], called: list[str]) -> None:
    """Hold that nothing was done again of what rows said was done, and nothing is there twice.

    Args:
        executed: The cases that were executed when the first process died.
        called: The judge calls that were booked then.
    """
    executions, calls = held.counts(place.came, "execute"), held.counts(place.came, "judge")
    assert executed
    assert set(executions) == set(CASES)
    assert {case: executions[case] for case in executed} == dict.fromkeys(executed, 1)
    assert set(calls) == set(CALLS)
    assert {call: calls[call] for call in called} == dict.fromkeys(called, 1)
    assert sorted(booked(place)) == sorted(CALLS)
    assert run.summary().cost_usd == pytest.approx(PRICE * len(CALLS))
    assert sorted(lines(place, run)) == CASES


def same_result(run: Run) -> dict[str, Any]:
    """What a run came to, without its name and times."""
    found: RunSummary = run.summary()
    assert found.status is RunStatus.COMPLETED
    assert found.finalized_at is not None
    times = [name for name in run.results().columns if name.endswith("_at") or name.endswith("_s")]
    card = run.scorecard()
    assert card is not None
    return {
        "trials": run.results().drop(columns=times).to_dict("records"),
        "progress": found.progress.model_dump(),
        "verdicts": found.verdicts.model_dump(),
        "dispositions": found.dispositions.model_dump(),
        "metrics": {name: metric["headline"] for name, metric in card["metrics"].items()},
        "cost": round(found.cost_usd, 9),
        "calls": found.calls,
        "exports": card["exports"],
    }


def cases_with(place: Place, moment: str) -> list[str]:
    """The cases that have passed a moment."""
    with open_runtime(place.settings) as runtime, runtime.database.read() as connection:
        rows = select(TRIAL.c.case_id).where(TRIAL.c[moment].is_not(None))
        return list(connection.execute(rows).scalars())


def booked(place: Place) -> list[str]:
    """The judge calls that were paid for."""
    call = table(tables.JudgeCallRow)
    rows = select(TRIAL.c.case_id, call.c.check_name).join(
        call, (call.c.run_id == TRIAL.c.run_id) & (call.c.seq == TRIAL.c.seq)
    )
    with open_runtime(place.settings) as runtime, runtime.database.read() as connection:
        return [f"{case}-{check}" for case, check in connection.execute(rows.where(call.c.ok))]


def held_by_someone(place: Place, run_id: str) -> tuple[list[str], int]:
    """The drivers with a claim, and the number of trials that are claimed."""
    rows = select(func.count()).where(TRIAL.c.claim.is_not(None))
    with open_runtime(place.settings) as runtime, runtime.database.read() as connection:
        drivers = claims.live_drivers(connection, run_id)
        return drivers, connection.execute(rows).scalar_one()


def lines(place: Place, run: Run) -> list[str]:
    """The cases of the exported lines."""
    parts = (place.folder / "out" / run.id).glob("trials-*.jsonl")
    return [json.loads(line)["case_id"] for part in parts for line in part.open()]


def log(place: Place) -> str:
    """What the processes have said."""
    return (place.folder / "stderr").read_text()
