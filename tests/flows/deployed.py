"""weirbox's flows as deployments of a real server, under a name of the test's own, and a real
runner for them: ``python -m tests.flows.deployed NAME`` serves until it is told to end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import psutil
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments.runner import RunnerDeployment
from prefect.runner import Runner
from prefect.states import Cancelling
from prefect.types.entrypoint import EntrypointType
from sqlalchemy import select

from flows.coordinate import coordinate
from flows.drive_run import drive_run
from flows.evaluate_run import evaluate_run
from flows.finalize_run import finalize_run
from tests.e2e import held
from weirbox.runtime import open_runtime
from weirbox.settings import Settings
from weirbox.store.base import CLAIM, DISPATCH, TRIAL

ROOT = Path(__file__).parents[2]

FLOWS = {flow.name: flow for flow in (evaluate_run, drive_run, finalize_run, coordinate)}

POLL_S = 1.0
"""How often the runner asks for work."""

PATIENCE_S = 60.0
"""How long something may take that involves starting a process, on a busy machine."""

T = TypeVar("T")


@dataclass
class Deployed:
    """Deployments of one name, in the server that the environment names."""

    settings: Settings
    came: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @classmethod
    @contextmanager
    def make(cls, settings: Settings, folder: Path) -> Iterator[Deployed]:
        """Register nothing yet; what still runs at the end is killed."""
        came = folder / "came"
        came.mkdir()
        deployed = cls(settings, came)
        try:
            yield deployed
        finally:
            (came / held.GO).touch()
            for process in deployed.processes:
                end(process)

    def register(self, *names: str, pool: str | None = None) -> None:
        """Register deployments that nobody serves, or only a worker of a pool."""
        asyncio.run(_register(names, self.settings.deployment, pool))

    def work(self, pool: str, *, hold: str = "") -> subprocess.Popen[bytes]:
        """Start a worker of a process pool, whose flow runs are held at `hold`."""
        argv = [sys.executable, "-m", "prefect", "worker", "start", "--type", "process"]
        return self.start([*argv, "--pool", pool], hold=hold, PREFECT_WORKER_QUERY_SECONDS="1")

    def serve(self, *, hold: str = "", **variables: str) -> subprocess.Popen[bytes]:
        """Start a runner, whose flow runs are held at `hold`; returns once it serves."""
        process = self.start(
            [sys.executable, "-m", "tests.flows.deployed", self.settings.deployment],
            hold=hold,
            **variables,
        )
        served = self.came / f"served-{self.settings.deployment}"
        wait_until(served.exists)
        return process

    def start(
        self, argv: list[str], *, hold: str = "", **variables: str
    ) -> subprocess.Popen[bytes]:
        """Start a process in a group of its own that works on the test's store."""
        env = {name: value for name, value in os.environ.items() if name[:8] != "WEIRBOX_"}
        env |= {
            "WEIRBOX_HOME": str(self.settings.home),
            "WEIRBOX_DEPLOYMENT": self.settings.deployment,
            "WEIRBOX_LEASE_S": str(self.settings.lease_s),
            "WEIRBOX_GRACE_S": str(self.settings.grace_s),
            "PYTHONPATH": str(ROOT),
            held.FOLDER: str(self.came),
            held.HOLD: hold,
        }
        with (self.came.parent / "log").open("ab") as log:
            process = subprocess.Popen(
                argv,
                env=env | variables,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def run(self, name: str, request: dict[str, Any]) -> UUID:
        """Have a deployment run; gives the flow run's id."""
        with get_client(sync_client=True) as client:
            deployment = client.read_deployment_by_name(f"{name}/{self.settings.deployment}")
            run = client.create_flow_run_from_deployment(
                deployment.id, parameters={"request": request}
            )
        return run.id

    def until_held(self) -> None:
        """Wait until a trial is held."""
        wait_until((self.came / held.HELD).exists)

    def until_draining(self) -> None:
        """Wait until a flow run's process says that it was told to end."""
        wait_until(lambda: "told to end" in (self.came.parent / "log").read_text())

    def let_go(self) -> None:
        """Let the trial that is held go on."""
        (self.came / held.GO).touch()

    # --- rows -------------------------------------------------------------------

    def rows(self, table: Any, run_id: str) -> list[Any]:
        """A run's rows of a table."""
        with open_runtime(self.settings) as runtime, runtime.database.read() as connection:
            statement = select(table).where(table.c.run_id == run_id)
            return list(connection.execute(statement))

    def claimed(self, run_id: str) -> tuple[int, int]:
        """How many claims, and trials under claims, are not given back."""
        claims = [row for row in self.rows(CLAIM, run_id) if row.released_at is None]
        trials = [row for row in self.rows(TRIAL, run_id) if row.claim is not None]
        return len(claims), len(trials)

    def executed(self, run_id: str) -> list[str]:
        """The cases that were executed."""
        return [row.case_id for row in self.rows(TRIAL, run_id) if row.executed_at is not None]

    def dispatches(self, run_id: str) -> list[Any]:
        """A run's dispatches."""
        return self.rows(DISPATCH, run_id)


def flow_run(flow_run_id: UUID) -> FlowRun:
    """A flow run as the server has it."""
    with get_client(sync_client=True) as client:
        return client.read_flow_run(flow_run_id)


def state(flow_run_id: UUID) -> State[Any]:
    """The state of a flow run."""
    found = flow_run(flow_run_id).state
    assert found is not None
    return found


def cancel(flow_run_id: UUID) -> None:
    """What the Prefect UI does when a person cancels a flow run."""
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run_id, Cancelling())


def wait_until(condition: Callable[[], T | None], *, seconds: float = PATIENCE_S) -> T:
    """Wait for something that other processes do; gives what it was."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it has not come in time"
        time.sleep(0.1)
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with everything below it."""
    if process.poll() is None:
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for child in family:
            child.kill()
    process.wait()


async def _register(names: Iterable[str], deployment: str, pool: str | None) -> None:
    if pool is not None:
        async with get_client() as client:
            await client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
    for name in names:
        await (await _deployment(name, deployment, pool)).aapply()


async def _deployment(name: str, deployment: str, pool: str | None = None) -> RunnerDeployment:
    return await FLOWS[name].ato_deployment(
        deployment,
        tags=["weirbox"],
        work_pool_name=pool,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


async def serve(deployment: str) -> None:
    """Serve until the process is told to end."""
    runner = Runner(name=deployment, query_seconds=POLL_S, pause_on_shutdown=False)
    for name in ("evaluate-run", "drive-run"):
        await runner.aadd_deployment(await _deployment(name, deployment))
    (Path(os.environ[held.FOLDER]) / f"served-{deployment}").touch()
    await runner.start()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
