"""The processes that chaos kills: coordinator, drivers, finalize.

The engine is a folder of orders. An order is a file named by its idempotency key, so giving
it twice gives the same one; the world beside it (`tests.chaos.world`) starts a process for
each, and writes where they stand.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from weirbox import runtime
from weirbox.domain.run import Progress
from weirbox.domain.words import RunStatus
from weirbox.pipeline.coordinating import DriverOrder, FlowState, tick
from weirbox.pipeline.live import DirectRunner
from weirbox.pipeline.running import drive_run
from weirbox.settings import Settings
from weirbox.store import dispatches

TICK_S = 0.5


class FolderEngine:
    """Orders as files; safe to be killed anywhere, as a file is there whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def states(self, flow_runs: Sequence[str]) -> Mapping[str, FlowState]:
        """Where they stand, as the world has written."""
        return {name: self._state(name) for name in flow_runs}

    def _state(self, name: str) -> FlowState:
        try:
            return FlowState((self._folder / f"{name}.state").read_text())
        except FileNotFoundError:
            return FlowState.WAITING

    async def drive(self, order: DriverOrder) -> str:
        """Order a driver."""
        return self._order(order.key, ["drive", order.run_id, str(order.dispatch)])

    async def finalize(self, run_id: str, key: str) -> str:
        """Order a finalize."""
        return self._order(key, ["finalize", run_id])

    async def show(self, run_id: str, progress: Progress) -> None:
        """Nobody looks."""

    async def evaluate(self, suite: str, kind: str, since: str | None, key: str) -> str:
        """Nothing here runs by itself."""
        raise AssertionError(f"suite {suite!r} is not registered, and was to be evaluated")

    async def emit(self, alert: object) -> None:
        """Nobody listens."""

    def _order(self, key: str, words: list[str]) -> str:
        name = hashlib.sha256(key.encode()).hexdigest()[:24]
        order = self._folder / f"{name}.order"
        if not order.exists():
            draft = self._folder / f"{name}.{os.getpid()}.draft"
            draft.write_text(json.dumps(words))
            draft.rename(order)
        return name


def coordinate(folder: Path) -> None:
    """Tick until killed; what goes wrong is told and tried again by the next tick."""
    engine = FolderEngine(folder / "engine")
    settings = Settings()
    with runtime.open_runtime(settings) as opened:
        while True:
            report = asyncio.run(tick(opened.database, engine, settings))
            if report.lines or report.troubles:
                print(report.describe(), flush=True)
            time.sleep(TICK_S)


async def drive(run_id: str, dispatch: int) -> None:
    """One driver, as the flow has it: begin, drive, finalize, end."""
    with runtime.open_runtime(Settings()) as opened:
        if await drive_dispatch(opened, run_id, dispatch) is RunStatus.COMPLETED:
            await runtime.finalize(opened, run_id)


async def drive_dispatch(opened: runtime.Runtime, run_id: str, dispatch: int) -> RunStatus | None:
    """Drive under a dispatch, unless it was given up; gives the run's status then."""
    with opened.database.write() as connection:
        if not dispatches.begin_dispatch(connection, dispatch):
            return None
    try:
        return await drive_run(
            opened.database,
            run_id,
            settings=opened.settings,
            read_secret=opened.read_secret,
            make_runner=lambda kit: DirectRunner(),
            dispatch=dispatch,
        )
    finally:
        with opened.database.write() as connection:
            dispatches.end_dispatch(connection, dispatch, "it is done")


async def finalize(run_id: str) -> None:
    """One finalize, as the flow has it."""
    with runtime.open_runtime(Settings()) as opened:
        await runtime.finalize(opened, run_id)


def begin(folder: Path, environment: Mapping[str, str], kind: str, *words: str) -> None:
    """Be one of the processes, in a process of its own."""
    os.environ.update(environment)
    log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    if kind == "coordinate":
        coordinate(folder)
    elif kind == "drive":
        asyncio.run(drive(words[0], int(words[1])))
    else:
        asyncio.run(finalize(words[0]))
