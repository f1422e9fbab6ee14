"""Time the driver: N cases x (execute 50 ms + two judges of 50 ms in turn, replayed).

``concurrency`` is how many trials are in flight between the start of their execution
and their verdict (the suite's window), so N x 150 ms / concurrency is a true lower
bound of the wall time. Rows are committed per stage. With the Prefect engine the server
is started, or found, and warm before the clock starts; planning, and the start and end of
the flow run, are not counted.

    python -m tests.benchmarks.streaming --cases 1000 --concurrency 16 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sqlalchemy import func, select

from weirbox import compute, harnesses
from weirbox.domain.spec import Suite
from weirbox.domain.words import RunStatus
from weirbox.pipeline.live import DirectRunner
from weirbox.pipeline.packets import Packet
from weirbox.pipeline.planning import plan_run
from weirbox.pipeline.running import drive_run
from weirbox.runtime import Runtime, open_runtime
from weirbox.settings import Settings
from weirbox.store.base import TRIAL
from weirbox.testing import MemoryCompute, ScriptedHarness

EXECUTE_S = 0.050
JUDGE_S = 0.050
JUDGES = 2
CASE_S = EXECUTE_S + JUDGES * JUDGE_S


def suite(folder: Path, cases: int, concurrency: int, granularity: str) -> Suite:
    """The suite of the benchmark, with its files in `folder`."""
    with (folder / "cases.jsonl").open("w") as lines:
        for number in range(cases):
            lines.write(json.dumps({"id": f"case-{number}", "input": f"question {number}"}) + "\n")
    checks = [f"judge-{number}" for number in range(JUDGES)]
    reply = {"verdict": "pass", "confidence": 0.9, "reason": "recorded"}
    with (folder / "replies.jsonl").open("w") as lines:
        for check in checks:
            lines.write(json.dumps({"check": check, "reply": reply}) + "\n")
    prompt = {"id": "any", "version": 1, "user": "Is this right? {{ output }}"}
    limits = dict.fromkeys(("execute", "judge", "export", "window"), concurrency)
    return Suite.model_validate(
        {
            "suite": "streaming",
            "dataset": {"path": "cases.jsonl"},
            "harness": {"kind": "python", "function": "builtins:repr"},
            "providers": {
                "recorded": {"kind": "replay", "path": "replies.jsonl", "delay_s": JUDGE_S}
            },
            "judges": [
                {"name": check, "prompt": prompt, "primary": {"provider": "recorded"}}
                for check in checks
            ],
            "sinks": [{"kind": "jsonl", "path": str(folder / "out")}],
            "concurrency": limits,
            "granularity": granularity,
        }
    )


class CountingRunner:
    """A stage runner that counts packets."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.packets = 0

    async def run(self, packet: Packet, *, refresh: bool) -> None:
        """Count, and pass on."""
        self.packets += 1
        await self.inner.run(packet, refresh=refresh)


async def measure(runtime: Runtime, run_id: str, runner: CountingRunner, *, flow: bool) -> Any:
    """Drive a planned run; gives wall seconds, own CPU seconds, and what compute was held for."""
    place, harness = MemoryCompute(keep=False), ScriptedHarness(needs_compute=True)
    harness.delay_s = EXECUTE_S
    harness.runs = _Forgetful()

    async def work() -> tuple[RunStatus, float, float]:
        cpu, wall = time.process_time(), time.perf_counter()
        status = await drive_run(
            runtime.database,
            run_id,
            settings=runtime.settings,
            read_secret=runtime.read_secret,
            make_runner=lambda kit: runner,
        )
        return status, time.perf_counter() - wall, time.process_time() - cpu

    with (
        patch.object(compute, "build", lambda kind: place),
        patch.object(harnesses, "build", lambda *args, **options: harness),
    ):
        status, wall, cpu = await (_in_flow(work) if flow else work())
    assert status is RunStatus.COMPLETED, status
    return wall, cpu, place.held_s / harness.needed_s


class _Forgetful(dict[str, int]):
    def __setitem__(self, key: str, value: int) -> None:
        """Keep nothing: what a test counts must not weigh on the memory that is measured."""


async def _in_flow(work: Any) -> Any:
    """Within a flow run, as the tasks want; starting and ending the flow is not timed."""
    from prefect import flow

    found: list[Any] = []

    @flow(name="streaming-benchmark")
    async def benchmark() -> None:
        found.append(await work())

    await benchmark()
    return found[0]


def from_rows(runtime: Runtime, run_id: str) -> tuple[float, float]:
    """Seconds to the first judge, and the judging tail in units of one case's judging."""
    statement = select(
        func.min(TRIAL.c.execute_started_at),
        func.min(TRIAL.c.judge_started_at),
        func.max(TRIAL.c.executed_at),
        func.max(TRIAL.c.judged_at),
    ).where(TRIAL.c.run_id == run_id)
    with runtime.database.read() as connection:
        start, judge, executed, judged = connection.execute(statement).one()
    first = (judge - start).total_seconds()
    return first, (judged - executed).total_seconds() / (JUDGES * JUDGE_S)


def benchmark(cases: int, concurrency: int, engine: str, granularity: str) -> dict[str, Any]:
    """One measurement in a fresh database."""
    with tempfile.TemporaryDirectory() as name, _runtime(Path(name), engine) as runtime:
        planned = plan_run(
            runtime.database, suite(Path(name), cases, concurrency, granularity), folder=name
        )
        runner = CountingRunner(_runner(engine))
        wall, cpu, held = asyncio.run(
            measure(runtime, planned.run_id, runner, flow=engine == "prefect")
        )
        first, tail = from_rows(runtime, planned.run_id)
    bound = cases * CASE_S / concurrency
    return {
        "cases": cases,
        "concurrency": concurrency,
        "engine": engine,
        "wall_s": round(wall, 3),
        "bound_s": round(bound, 3),
        "ratio": round(wall / bound, 3),
        "cpu_ms_per_case": round(1000 * cpu / cases, 3),
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "tail_ratio": round(tail, 3),
        "first_judge_s": round(first, 3),
        "compute_held_ratio": round(held, 3),
        "task_runs": runner.packets if engine == "prefect" else 0,
    }


def _runner(engine: str) -> Any:
    if engine == "direct":
        return DirectRunner()
    from flows.runner import PrefectRunner

    return PrefectRunner()


def _runtime(folder: Path, engine: str) -> Any:
    settings = Settings()
    if engine == "prefect":
        from weirbox.services import Services, prepare_client

        services = Services(settings.home)
        server = prepare_client(services)
        if server is not None:
            services.wait(server, "/api/health")
    return open_runtime(settings.model_copy(update={"database_url": f"sqlite:///{folder}/b.db"}))


def main(arguments: Iterator[str] | None = None) -> None:
    """Measure once and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--engine", choices=("prefect", "direct"), default="prefect")
    parser.add_argument("--granularity", choices=("auto", "case"), default="auto")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    chosen = parser.parse_args()
    found = benchmark(chosen.cases, chosen.concurrency, chosen.engine, chosen.granularity)
    if chosen.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        sys.stdout.write(f"{key:20} {value}\n")


if __name__ == "__main__":
    main()
