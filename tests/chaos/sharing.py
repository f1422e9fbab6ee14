"""Drivers as processes of their own, without a coordinator, and what their rows say."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from tests.chaos.world import WARM
from weirbox import runtime
from weirbox.domain.words import RunStatus
from weirbox.pipeline.live import DirectRunner
from weirbox.pipeline.running import drive_run
from weirbox.settings import Settings
from weirbox.store import base
from weirbox.store.engine import Database

DRIVE_S = 240.0
"""How long drivers may take, on a busy machine."""


@contextmanager
def drivers(
    folder: Path,
    database: Database,
    run_id: str,
    count: int,
    *,
    first: int = 0,
    lease_s: float = 30.0,
) -> Iterator[list[ForkServerProcess]]:
    """Drivers, each as if on a machine of its own; what still runs at the end is killed.

    Args:
        first: The number of the first machine.
    """
    environment = {
        "WEIRBOX_HOME": str(folder),
        "WEIRBOX_DATABASE_URL": database.url,
        "WEIRBOX_LEASE_S": str(lease_s),
        "WEIRBOX_GRACE_S": "2",
    }
    processes = [
        WARM.Process(target=begin, args=(folder, environment, run_id, f"host-{n}"), daemon=True)
        for n in range(first, first + count)
    ]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def begin(folder: Path, environment: dict[str, str], run_id: str, host: str) -> None:
    """Drive a run to its end, in a process of its own, as if on a machine of its own."""
    os.environ.update(environment)
    socket.gethostname = lambda: host
    log = os.open(folder / "drivers.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    asyncio.run(_drive(run_id))


async def _drive(run_id: str) -> None:
    with runtime.open_runtime(Settings()) as opened:
        status = await drive_run(
            opened.database,
            run_id,
            settings=opened.settings,
            read_secret=opened.read_secret,
            make_runner=lambda kit: DirectRunner(),
        )
        if status is RunStatus.COMPLETED:
            await runtime.finalize(opened, run_id)


def join(processes: Sequence[ForkServerProcess]) -> None:
    """Wait until all have ended well."""
    deadline = time.monotonic() + DRIVE_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    assert [process.exitcode for process in processes] == [0] * len(processes)


def span_s(database: Database, run_id: str) -> float:
    """From the first execution's start to the last trial's end, in seconds."""
    trial = base.TRIAL.c
    with database.read() as connection:
        first, last = connection.execute(
            select(func.min(trial.execute_started_at), func.max(trial.exported_at)).where(
                trial.run_id == run_id
            )
        ).one()
    return float((last - first).total_seconds())


def stages_by_host(database: Database, run_id: str) -> dict[str, int]:
    """How many stages of trials ended under the claims of each host."""
    claim = base.CLAIM.c
    with database.read() as connection:
        rows: Sequence[Any] = connection.execute(
            select(claim.driver, claim.stages).where(claim.run_id == run_id)
        ).all()
    found: dict[str, int] = {}
    for driver, stages in rows:
        host = driver.partition(":")[0]
        found[host] = found.get(host, 0) + stages
    return found


def driver_log(folder: Path) -> str:
    """What the drivers have said."""
    return (folder / "drivers.log").read_text()
