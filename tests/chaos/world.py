"""A world of real processes over one store, in which any of them may be killed at any moment.

``python -m tests.chaos.world --cases 500 --drivers 3 --kills 200 --database postgresql``
prints a table of what it did and found; ``--seed`` repeats whom it killed and when.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from sqlalchemy import func, select, update

from tests import postgres
from tests.chaos.process import begin
from tests.chaos.suite import PRICE, suite
from tests.factories import driving, plan
from weirbox.domain.run import RunSummary
from weirbox.domain.spec import Suite
from weirbox.domain.words import RunStatus
from weirbox.pipeline.coordinating import FlowState
from weirbox.store import base, queries
from weirbox.store.engine import Database, open_database
from weirbox.store.types import utc_now

WARM = multiprocessing.get_context("forkserver")
"""Processes begin from one that has loaded everything: a process that takes seconds to begin
is killed before it has done anything."""

WARM.set_forkserver_preload(["tests.chaos.process"])

ENVIRONMENT = {
    "WEIRBOX_LEASE_S": "3",
    "WEIRBOX_GRACE_S": "1",
    "WEIRBOX_REPAIR_S": "1",
    "WEIRBOX_STALL_S": "600",
}
"""Short leases, so that what was killed is taken over soon; a stall would be a finding."""

PAUSE_S = (0.1, 1.0)
"""How long nothing is killed, at least and at most."""

WEIGHTS = {"coordinate": 1, "drive": 12, "finalize": 6}
"""How likely each kind is to be killed, where it lives."""

SPARED_S = {"coordinate": 3.0, "drive": 1.2, "finalize": 0.0}
"""How old a process has to be. A world whose coordinators all die before their first tick
has nobody else to kill, and drivers that die before any work is done are asked for ever later."""

PATIENCE_S = 900.0
"""After how long a world that does not end is a finding."""


@dataclass
class World:
    """Processes by the name of their order, and ``coordinator``."""

    folder: Path
    url: str
    processes: dict[str, ForkServerProcess] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    begun: dict[str, float] = field(default_factory=dict)
    killed: Counter[str] = field(default_factory=Counter)

    @property
    def engine(self) -> Path:
        """Where orders are given."""
        return self.folder / "engine"

    def step(self) -> None:
        """Start what was ordered and the coordinator, and write where processes stand."""
        if "coordinator" not in self.processes:
            self._start("coordinator", ["coordinate"])
        for order in sorted(self.engine.glob("*.order")):
            if order.stem not in self.kinds:
                kind, *words = json.loads(order.read_text())
                self._start(order.stem, [kind, *words])
                self._write(order.stem, FlowState.RUNNING)
        for name, process in list(self.processes.items()):
            if not process.is_alive():
                del self.processes[name], self.begun[name]
                self._write(name, FlowState.ENDED)

    def kill_one(self, chance: random.Random) -> bool:
        """Kill one process that is old enough, whichever it is; False where there is none."""
        now = time.monotonic()
        names = sorted(
            n for n, begun in self.begun.items() if now - begun > SPARED_S[self.kinds[n]]
        )
        kinds = sorted({self.kinds[name] for name in names})
        if not kinds:
            return False
        (kind,) = chance.choices(kinds, [WEIGHTS[kind] for kind in kinds])
        name = chance.choice([n for n in names if self.kinds[n] == kind])
        self.processes[name].kill()
        self.processes[name].join()
        self.killed[self.kinds[name]] += 1
        return True

    def close(self) -> None:
        """End everything."""
        for process in self.processes.values():
            process.kill()
            process.join()

    def _write(self, name: str, state: FlowState) -> None:
        draft = self.engine / f"{name}.new"
        draft.write_text(state)
        draft.rename(self.engine / f"{name}.state")

    def _start(self, name: str, words: list[str]) -> None:
        places = {"WEIRBOX_HOME": str(self.folder), "WEIRBOX_DATABASE_URL": self.url}
        process = WARM.Process(
            target=begin, args=(self.folder, ENVIRONMENT | places, *words), daemon=True
        )
        process.start()
        self.processes[name], self.kinds[name] = process, words[0]
        self.begun[name] = time.monotonic()


@contextmanager
def world(folder: Path, url: str) -> Iterator[World]:
    """A world that ends with the block."""
    made = World(folder, url)
    made.engine.mkdir(parents=True)
    try:
        yield made
    finally:
        made.close()


def undisturbed(folder: Path, cases: int) -> tuple[Database, str]:
    """The same suite, driven by one process that nothing happens to."""
    folder.mkdir()
    database = open_database(f"sqlite:///{folder}/weirbox.db")
    run_id = plan(database, suite(folder, cases=cases, drivers=1, usd=10 * PRICE * cases))
    assert asyncio.run(driving(database, run_id)) is RunStatus.COMPLETED
    return database, run_id


def planned_long_ago(database: Database, planned: Suite) -> str:
    """A run whose planner is gone, so that the coordinator asks for all its drivers."""
    run_id = plan(database, planned, managed=True)
    with database.write() as connection:
        of_run = update(base.RUN).where(base.RUN.c.id == run_id)
        connection.execute(of_run.values(created_at=utc_now() - timedelta(hours=1)))
    return run_id


def survive(
    database: Database, place: World, run_id: str, *, kills: int, seed: int
) -> tuple[RunSummary, float]:
    """Kill until enough are dead, and let the run come to its end; gives it, and the seconds."""
    chance = random.Random(seed)
    begun = time.monotonic()
    next_kill = begun + 2.0
    while True:
        place.step()
        enough = sum(place.killed.values()) >= kills
        if not enough and time.monotonic() >= next_kill and place.kill_one(chance):
            next_kill = time.monotonic() + chance.uniform(*PAUSE_S)
        with database.read() as connection:
            found = queries.summary(connection, run_id)
        seconds = time.monotonic() - begun
        if found.status.terminal and not found.finalizing:
            return found, seconds
        if seconds > PATIENCE_S:
            log = (place.folder / "log").read_text()[-3000:]
            raise AssertionError(f"seed {seed}: not at its end after {seconds:.0f} s\n{log}")
        time.sleep(0.05)


# --- what must hold -----------------------------------------------------------------------


def outcome(database: Database, run_id: str) -> dict[str, Any]:
    """What a run came to, without times, money and ids: equal for equal runs."""
    trial, score, export = base.TRIAL.c, base.SCORE.c, base.EXPORT.c
    with database.read() as connection:

        def rows(table: Any, *columns: Any) -> list[tuple[Any, ...]]:
            chosen = select(*columns).where(table.c.run_id == run_id).order_by(*columns)
            return [tuple(row) for row in connection.execute(chosen)]

        return {
            "trials": rows(
                base.TRIAL,
                *(trial.seq, trial.case_id, trial.stage, trial.state, trial.verdict),
                *(trial.disposition, trial.deciding, trial.claim, trial.round),
            ),
            "scores": rows(
                base.SCORE,
                *(score.seq, score.name, score.state, score.value_number, score.passed),
                *(score.tier, score.confidence),
            ),
            "exports": rows(base.EXPORT, export.seq, export.sink, export.status),
            "card": _card(queries.scorecard(connection, run_id)),
        }


def _card(body: dict[str, Any] | None) -> dict[str, Any] | None:
    kept = ("progress", "verdicts", "dispositions", "pass_rate", "metrics", "exports", "errors")
    return body and {name: body[name] for name in kept}


def money(database: Database, run_id: str) -> dict[str, int]:
    """Spent by the run's row and by the rows of its calls, in billionths; and what is held."""
    call, held = base.CALL.c, base.RESERVATION.c
    with database.read() as connection:
        run = connection.execute(select(base.RUN).where(base.RUN.c.id == run_id)).one()
        calls = connection.execute(
            select(func.count(), func.sum(call.cost_nusd)).where(call.run_id == run_id)
        ).one()
        reserved = connection.execute(
            select(func.count()).select_from(base.RESERVATION).where(held.run_id == run_id)
        ).scalar_one()
    return {
        "budget": run.budget_nusd,
        "spent": run.spent_nusd,
        "of_calls": int(calls[1]),
        "calls": run.calls,
        "call_rows": calls[0],
        "reserved": reserved,
    }


def unfinished(database: Database, run_id: str) -> int:
    """Trials that miss the row of a stage."""
    trial = base.TRIAL.c
    with database.read() as connection:
        statement = select(func.count()).where(
            trial.run_id == run_id,
            trial.executed_at.is_(None) | trial.judged_at.is_(None) | trial.exported_at.is_(None),
        )
        return int(connection.execute(statement).scalar_one())


def exported(folder: Path, run_id: str) -> Counter[tuple[str, int]]:
    """How often which trial stands in the sink's folder, in the round that counts."""
    lines = [
        json.loads(line)
        for file in sorted((folder / "out" / run_id).glob("*.jsonl"))
        for line in file.read_text().split("\n")
        if line
    ]
    rounds = Counter((line["case_id"], line["trial"], line["round"]) for line in lines)
    latest = {(case_id, trial): round for case_id, trial, round in sorted(rounds)}
    return Counter({key: rounds[*key, round] for key, round in latest.items()})


def assert_nothing_was_lost(
    database: Database, place: World, run_id: str, expected: dict[str, Any]
) -> dict[str, int]:
    """Every trial has one row per stage and the undisturbed verdict, and the money adds up."""
    assert unfinished(database, run_id) == 0
    found = outcome(database, run_id)
    for part, rows in expected.items():
        assert found[part] == rows, part
    exports = exported(place.folder, run_id)
    assert set(exports.values()) == {1}
    assert len(exports) == len(expected["trials"])
    spent = money(database, run_id)
    assert spent["spent"] == spent["of_calls"]
    assert spent["calls"] == spent["call_rows"]
    assert spent["spent"] <= spent["budget"]
    assert spent["reserved"] == 0
    return spent


# --- as a script ----------------------------------------------------------------------------


def main() -> None:
    """Run one world and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--drivers", type=int, default=3)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="weirbox-chaos-"))
    try:
        if given.database == "sqlite":
            print(_one(given, folder, f"sqlite:///{folder}/weirbox.db"))
            return
        programs = postgres.server_programs()
        assert programs is not None, "PostgreSQL is not installed"
        with postgres.server(programs) as server:
            postgres.create(server, "chaos")
            print(_one(given, folder, postgres.url(server, "chaos")))
    finally:
        shutil.rmtree(folder)


def _one(given: argparse.Namespace, folder: Path, url: str) -> str:
    reference, reference_run = undisturbed(folder / "undisturbed", given.cases)
    calls = money(reference, reference_run)["calls"]
    database = open_database(url)
    planned = suite(folder, cases=given.cases, drivers=given.drivers, usd=2 * PRICE * calls)
    run_id = planned_long_ago(database, planned)
    with world(folder, url) as place:
        run, seconds = survive(database, place, run_id, kills=given.kills, seed=given.seed)
        expected = outcome(reference, reference_run)
        spent = assert_nothing_was_lost(database, place, run_id, expected)
    return (
        f"{given.database}, seed {given.seed}: {run.status} after {seconds:.0f} s; "
        f"killed {dict(place.killed)}; {spent['calls']} calls ({calls} undisturbed)"
    )


if __name__ == "__main__":
    main()
