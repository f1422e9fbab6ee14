"""Drivers share a run, and what one leaves, another takes up where it stands."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sqlalchemy import select, text, update

from tests.factories import (
    Fakes,
    column,
    driving,
    go_on,
    judged,
    plan,
    scores,
    suite,
    summary,
    trials,
)
from tests.fakes import SINK, Harness, Watched, limits, number, passing
from tests.processes import go, outputs, started
from tests.results import executed, write
from weirbox import harnesses as harness_family
from weirbox.domain.seams import ExecResult, ExportOutcome, Handle, TrialExport
from weirbox.domain.spec import ComputeSpec, Suite
from weirbox.domain.words import RunStatus, TrialStage
from weirbox.pipeline import driver
from weirbox.pipeline.identity import is_dead, process_start, this_driver
from weirbox.pipeline.running import complete_if_done, reap_dead
from weirbox.store import base, claims
from weirbox.store.engine import Database
from weirbox.store.rows import Ticket
from weirbox.testing import MemoryCompute, MemoryHandle, MemorySink, ReplayJudge

LONG = 30.0


def claim(
    database: Database, run_id: str, limit: int = 100, *, lease_s: float = LONG, who: str = "a"
) -> tuple[int, list[Ticket]]:
    """Open a claim and take trials."""
    with database.write() as connection:
        token = claims.open_claim(connection, run_id, driver=who, lease_s=lease_s)
        return token, claims.claim_trials(connection, run_id, token, limit)


# --- real processes --------------------------------------------------------------


def logging_suite(folder: Path, cases: int, seconds: float = 0.02) -> Suite:
    """A suite whose harness notes every execution in a file."""
    (folder / "answers.py").write_text(
        "import os, time\n"
        "def answer(case):\n"
        f"    log = os.open({str(folder / 'log')!r}, os.O_APPEND | os.O_CREAT | os.O_WRONLY)\n"
        "    os.write(log, f'{os.getpid()} {case.id}\\n'.encode())\n"
        "    os.close(log)\n"
        f"    time.sleep({seconds})\n"
        "    return case.input\n"
    )
    harness = {"kind": "python", "function": f"{folder}/answers.py:answer"}
    return suite(cases, harness=harness, concurrency=limits(2, 2, window=4))


def executions(folder: Path) -> list[list[str]]:
    """Process and case of every execution."""
    return [line.split() for line in (folder / "log").read_text().splitlines()]


def test_two_processes_drive_one_run_and_execute_each_trial_once(
    database: Database, tmp_path: Path
) -> None:
    run_id = plan(database, logging_suite(tmp_path, 100))
    command = ("-m", "tests.core.worker", database.url, run_id)

    with started(command, command) as processes:
        printed = outputs(processes)

    assert printed == ["completed\n"] * 2
    run = summary(database, run_id)
    assert (run.status, run.progress.scored) == (RunStatus.COMPLETED, 100)
    log = executions(tmp_path)
    assert Counter(case for _, case in log) == {f"case-{n}": 1 for n in range(100)}
    assert len({process for process, _ in log}) == 2
    assert run.finalized_at is not None


# --- who is dead -------------------------------------------------------------------


def test_a_driver_is_dead_when_its_process_is_gone_from_this_machine() -> None:
    here, me = socket.gethostname(), os.getpid()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    living = f"{here}:{child.pid}:{process_start(child.pid)}"
    assert not is_dead(living)
    child.kill()
    deadline = time.monotonic() + 10
    while not is_dead(living) and time.monotonic() < deadline:  # a zombie until it is waited for
        time.sleep(0.01)

    assert is_dead(living)
    child.wait()
    assert is_dead(living)
    assert not is_dead(this_driver())
    assert is_dead(f"{here}:{me}:1")
    assert not is_dead(f"another-machine:{child.pid}:1")


def test_what_dead_drivers_of_this_machine_hold_is_taken_back_at_once(
    shared_database: Database,
) -> None:
    run_id = plan(shared_database, suite(4))
    dead = f"{socket.gethostname()}:{os.getpid()}:1"
    claim(shared_database, run_id, 1, who=dead)
    claim(shared_database, run_id, 1, who=dead)
    mine, _ = claim(shared_database, run_id, 1, who=this_driver())
    remote, _ = claim(shared_database, run_id, 1, who="another-machine:1:1")

    assert reap_dead(shared_database, run_id) == 2

    assert column(shared_database, run_id, "claim") == [None, None, mine, remote]
    assert reap_dead(shared_database, run_id) == 0


def test_a_killed_process_costs_the_trials_it_was_at_and_nothing_else(
    database: Database, tmp_path: Path
) -> None:
    run_id = plan(database, logging_suite(tmp_path, 60, seconds=0.05))

    with started(("-m", "tests.core.worker", database.url, run_id)) as [process]:
        go(process)
        deadline = time.monotonic() + 60
        while summary(database, run_id).progress.judged < 10:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.kill()
        process.wait()
        stopped = summary(database, run_id)
        assert stopped.status is RunStatus.RUNNING
        assert reap_dead(database, run_id) == 1

    run = go_on(database, run_id)

    assert (run.status, run.progress.scored) == (RunStatus.COMPLETED, 60)
    times = Counter(case for _, case in executions(tmp_path))
    assert sum(times.values()) - 60 <= 4
    assert set(times.values()) <= {1, 2}


# --- going on ----------------------------------------------------------------------


def test_an_executed_trial_is_judged_and_not_executed_again(shared_database: Database) -> None:
    run_id = plan(shared_database, judged(3))
    token, tickets = claim(shared_database, run_id)
    write(shared_database, *[executed(ticket) for ticket in tickets])
    with shared_database.write() as connection:
        claims.release_claim(connection, token)
    harness, provider = Harness(), passing()

    run = go_on(shared_database, run_id, fakes=Fakes(harness=harness, provider=provider))

    assert (run.status, run.progress.scored, harness.runs) == (RunStatus.COMPLETED, 3, {})
    shown = {request.case_id: request.user for request in provider.requests}
    assert [f"of {seq}" in shown[f"case-{seq}"] for seq in range(3)] == [True] * 3


def test_a_judged_trial_is_exported_as_it_was_judged_and_not_judged_again(
    shared_database: Database,
) -> None:
    watched = Watched()

    class Stuck(MemorySink):
        async def send(self, trial: TrialExport) -> ExportOutcome:
            watched.drivers[0].drain()
            await asyncio.sleep(60)
            raise AssertionError("the grace is over")

    chosen = judged(
        1,
        "z",
        "a",
        sinks=SINK,
        graders=[{"kind": "answer-match", "name": name} for name in ("y", "b")],
        rules=[{"kind": "required", "name": name, "paths": ["id"]} for name in ("x", "c")],
        routing={"clean_sample_rate": 1},
    )
    provider = ReplayJudge(passing().reply, cost_usd=0.5)
    run_id = plan(shared_database, chosen)
    first = Fakes(harness=Harness(), provider=provider, sink=Stuck())
    asyncio.run(driving(shared_database, run_id, on_driver=watched, grace_s=0.1, fakes=first))
    assert column(shared_database, run_id, "stage") == ["export"]
    harness, sink = Harness(), MemorySink()

    run = go_on(shared_database, run_id, fakes=Fakes(harness=harness, provider=provider, sink=sink))

    assert (run.progress.exported, harness.runs, len(provider.requests)) == (1, {}, 2)
    [sent] = sink.sent.values()
    [row] = trials(shared_database, run_id)
    assert [score.name for score in sent.scores] == ["y", "b", "x", "c", "z", "a"]
    assert (sent.output, sent.verdict, sent.disposition) == ("in 0", "pass", "clean")
    assert (sent.cost_usd, sent.deciding) == (1.0, "objective")
    assert (sent.executed_at, sent.judged_at) == (
        row.executed_at.isoformat(),
        row.judged_at.isoformat(),
    )


def test_what_graders_measured_in_compute_outlives_the_driver_that_did(sqlite: Database) -> None:
    class Failing(MemoryCompute):
        async def provision(self, spec: ComputeSpec, *, correlation: str) -> Handle:
            class Sandbox(MemoryHandle):
                async def exec(self, argv: Any, **options: Any) -> ExecResult:
                    return ExecResult(1, b"", b"", False, False, 0.0)

            return Sandbox(0, lambda seconds: None)

    watched = Watched()

    class Stuck(ReplayJudge):
        async def ask(self, request: Any) -> Any:
            watched.drivers[0].drain()
            await asyncio.sleep(60)

    graders = [{"kind": "command", "name": name, "argv": ["test"]} for name in ("z", "a.b")]
    run_id = plan(sqlite, judged(1, graders=graders))
    first = Fakes(harness=Harness(), compute=Failing(), provider=Stuck(passing().reply))
    asyncio.run(driving(sqlite, run_id, on_driver=watched, grace_s=0.1, fakes=first))
    assert column(sqlite, run_id, "stage") == ["judge"]

    run = go_on(sqlite, run_id, fakes=Fakes(harness=Harness(), provider=passing()))

    assert (run.verdicts.failed, set(scores(sqlite, run_id))) == (1, {"z", "a.b", "quality"})
    assert column(sqlite, run_id, "deciding") == ["z"]


def test_trials_that_another_driver_holds_are_waited_for_and_taken_when_its_lease_ends(
    shared_database: Database,
) -> None:
    run_id = plan(shared_database, suite(4))
    token, _ = claim(shared_database, run_id, 2, lease_s=0.5)

    run = go_on(shared_database, run_id)

    assert (run.status, run.progress.scored) == (RunStatus.COMPLETED, 4)
    with shared_database.read() as connection:
        released = select(base.CLAIM.c.released_at).where(base.CLAIM.c.token == token)
        assert connection.execute(released).scalar_one() is not None


def test_a_run_is_complete_when_every_trial_is_done_and_not_before(database: Database) -> None:
    run_id = plan(database, suite(2))
    with database.write() as connection:
        connection.execute(
            update(claims.TRIAL).where(claims.TRIAL.c.seq == 0).values(stage=TrialStage.DONE)
        )

    statuses = [complete_if_done(database, run_id)]
    with database.write() as connection:
        connection.execute(text("UPDATE run SET status = 'running'"))
    statuses.append(complete_if_done(database, run_id))
    with database.write() as connection:
        connection.execute(update(claims.TRIAL).values(stage=TrialStage.DONE))
    statuses += [complete_if_done(database, run_id) for _ in range(2)]

    assert statuses == ["pending", "running", "completed", "completed"]
    run = summary(database, run_id)
    assert run.completed_at is not None
    assert run.completed_at - run.created_at > timedelta(0)


def test_drivers_share_a_few_slow_trials_rather_than_one_taking_them_all(
    shared_database: Database,
) -> None:
    run_id = plan(shared_database, suite(12, concurrency=limits(2, 2)))
    harnesses = [Harness(delay_s=0.3), Harness(delay_s=0.3)]
    given = iter(harnesses)

    async def both() -> None:
        with patch.object(harness_family, "build", lambda *a, **options: next(given)):
            await asyncio.gather(*(driving(shared_database, run_id) for _ in harnesses))

    asyncio.run(both())

    assert summary(shared_database, run_id).progress.scored == 12
    assert min(len(harness.runs) for harness in harnesses) >= 4


def test_a_driver_at_a_slow_trial_takes_up_what_another_gives_back_meanwhile(
    sqlite: Database,
) -> None:
    run_id = plan(sqlite, suite(4, concurrency=limits(2, 2)))
    claim(sqlite, run_id, 3, lease_s=0.3)
    harness = Harness(delay_of=lambda case: 1.5 if number(case) == 3 else 0.0)

    with patch.object(driver, "LOOK_AGAIN_S", 0.1):
        run = go_on(sqlite, run_id, fakes=Fakes(harness=harness))

    *others, slow = trials(sqlite, run_id)
    assert (run.status, set(harness.runs.values())) == (RunStatus.COMPLETED, {1})
    assert max(row.judged_at for row in others) < slow.executed_at
