"""The local runner: ``python -m deployments.serve`` registers weirbox's deployments and runs
what is started of them on this machine.

The dashboard, the Prefect UI, schedules and `weirbox.trigger` start runs through it. Suites that
`weirbox deploy` registers later are taken up within seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from dataclasses import dataclass
from typing import Any, Self, cast
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.context import refresh_global_settings_context
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import PrefectException
from prefect.runner import Runner

from deployments.automations import HEARTBEAT_S
from deployments.registering import Outcome, own_deployments, register
from deployments.specs import DRIVING, own_specs
from weirbox.runtime import open_runtime
from weirbox.settings import Settings
from weirbox.store import registry

log = logging.getLogger(__name__)

POLL_S = 1.0
"""How often the runner asks for work; Prefect's own 10 s are felt by whoever waits."""

LOOK_S = 5.0
"""How often it looks for deployments that were registered meanwhile."""

DRIVERS = max(4, os.cpu_count() or 1)
"""Evaluations and drivers that run at once, each a process of about 150 MB; the rest waits."""

TENDERS = 4
"""Ticks and finalizations that run at once, beside the drivers: however many of those there
are, runs are looked after."""


@dataclass(frozen=True)
class Known:
    """A deployment that is registered already, as a runner takes one on."""

    id: UUID
    name: str
    storage: None = None

    async def aapply(self) -> UUID:
        """Nothing is written: the server has it."""
        return self.id


async def serve(settings: Settings, *, webserver: bool) -> None:
    """Register, then serve until the process is told to end; nothing is paused then.

    Safe to run again, and beside another one: both ask the server, which gives each flow run
    to one of them.
    """
    with open_runtime(settings) as runtime, runtime.database.read() as connection:
        suites = registry.registered_suites(connection)
    async with get_client() as client:
        for one in await register(client, suites, deployment=settings.deployment):
            if one.outcome is Outcome.REFUSED:
                log.warning("%s is not registered: %s", one.name, one.detail)
    driving = PatientRunner.make("weirbox", DRIVERS)
    tending = PatientRunner.make("weirbox-tending", TENDERS)
    looking = asyncio.create_task(_look(settings.deployment, driving, tending))
    starting = [
        asyncio.create_task(driving.start(webserver=webserver)),
        asyncio.create_task(tending.start(webserver=False)),
    ]
    await asyncio.sleep(0)  # each has now taken SIGTERM for itself: both are to have it
    _stop_on_sigterm(driving, tending)
    try:
        await asyncio.gather(*starting)
    finally:
        looking.cancel()


class PatientRunner(Runner):
    """A runner that waits for a server that is away.

    Prefect's own gives up after some minutes, and kills the flow runs that it has started;
    they need no server to go on.
    """

    @classmethod
    def make(cls, name: str, limit: int) -> Self:
        """A runner that polls often, and pauses nothing when it ends."""
        return cls(name=name, query_seconds=POLL_S, limit=limit, pause_on_shutdown=False)

    async def __aenter__(self) -> Self:
        """Take nothing up while the server is away, instead of counting failures."""
        await super().__aenter__()
        ask = self._client.get_scheduled_flow_runs_for_deployments

        async def patiently(*arguments: Any, **options: Any) -> list[FlowRun]:
            try:
                return await ask(*arguments, **options)
            except httpx.HTTPError as error:
                log.warning("the Prefect server does not answer: %s", type(error).__name__)
                return []

        self._client.get_scheduled_flow_runs_for_deployments = patiently  # type: ignore[method-assign]
        return self


def _stop_on_sigterm(*runners: Runner) -> None:
    """Have one signal end all runners."""

    def stop(number: int, frame: Any) -> None:
        for runner in runners:
            runner.handle_sigterm()

    signal.signal(signal.SIGTERM, stop)


async def _look(deployment: str, driving: Runner, tending: Runner) -> None:
    """Keep taking on what is registered and has no work pool, which has workers of its own."""
    driven = {spec.entrypoint for spec in own_specs(deployment) if spec.queue == DRIVING}
    known: set[UUID] = set()
    while True:
        try:
            async with get_client() as client:
                found = await own_deployments(client, deployment)
        except (httpx.HTTPError, PrefectException, RuntimeError) as error:
            log.warning("deployments are not looked for: %s", type(error).__name__)
            found = []
        for one in found:
            if one.id not in known and one.work_pool_name is None:
                runner = driving if one.entrypoint in driven else tending
                await runner.aadd_deployment(cast(RunnerDeployment, Known(one.id, one.name)))
                known.add(one.id)
        await asyncio.sleep(LOOK_S)


def main() -> None:
    """Serve, with a page for health checks where a port is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, help="answer health checks on this loopback port")
    port = parser.parse_args().port
    if port is not None:
        os.environ["PREFECT_RUNNER_SERVER_HOST"] = "127.0.0.1"
        os.environ["PREFECT_RUNNER_SERVER_PORT"] = str(port)
    os.environ.setdefault("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", str(HEARTBEAT_S))
    refresh_global_settings_context()
    asyncio.run(serve(Settings(), webserver=port is not None))


if __name__ == "__main__":
    main()
