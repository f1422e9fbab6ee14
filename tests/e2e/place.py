"""A suite of paid judges that a test runs, kills and resumes, and what its store has then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import func, select

import weirbox
from tests.e2e import held
from weirbox.api import Run
from weirbox.domain.run import RunSummary
from weirbox.domain.words import RunStatus
from weirbox.runtime import open_runtime
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
    @contextmanager
    def make(cls, folder: Path, suite: dict[str, Any] = SUITE) -> Iterator[Place]:
        """Lay the suite's file; what still runs at the end is killed."""
        (folder / "came").mkdir(parents=True)
        sinks = [{"kind": "jsonl", "path": str(folder / "out")}]
        (folder / "suite.yaml").write_text(yaml.safe_dump({**suite, "sinks": sinks}))
        place = cls(folder)
        try:
            yield place
        finally:
            for process in place.processes:
                process.kill()
                process.communicate()

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
        with (self.folder / "stderr").open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.held", *arguments],
                env={**env, held.HOLD: hold, **variables},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
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
