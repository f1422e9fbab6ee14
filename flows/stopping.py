"""How a flow run is told to stop, and what that means for its run.

Whoever cancels a flow run in Prefect means the run: it becomes cancelled. A process that is
told to end (a deploy, a Ctrl-C, a node that goes away) only drains: the run goes on with the
next driver. Prefect's runner sends its child the same signal, and even the same word, for
both. What tells them apart is the flow run's state in the API, which nobody but a person (or
an automation) makes Cancelling.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from prefect import Flow
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext

from weirbox.domain.words import RunStatus
from weirbox.pipeline.driver import Driver
from weirbox.pipeline.running import reap_dead
from weirbox.runtime import open_runtime
from weirbox.settings import Settings
from weirbox.store import dispatches, queries
from weirbox.store.engine import Database
from weirbox.store.writes import change_status, note

LOOK_S = 3.0
"""How often a flow run looks whether it was cancelled, where no signal tells it earlier."""

ANSWER_S = 5.0
"""How long the server may take to say so: what drains has no more time than that."""

KILL_S = 30.0
"""After how long `serve`, a worker and Kubernetes kill what they have told to end."""

CLOSE_S = 6.0
"""How long a driver may need, once its trials were cut off, to give everything back."""

CANCELLED = "cancelled in Prefect"

SIGNALS = (signal.SIGINT, signal.SIGTERM)

log = logging.getLogger(__name__)


def own_flow_run() -> FlowRun | None:
    """The flow run that this is, where the server knows of it."""
    context = FlowRunContext.get()
    return context.flow_run if context is not None else None


def is_deployed(flow_run: FlowRun | None) -> bool:
    """Whether a flow run came from a deployment: a process of its own, that nobody waits for."""
    return flow_run is not None and flow_run.deployment_id is not None


def within_patience(settings: Settings) -> Settings:
    """The settings for a process that is killed if it takes too long to drain."""
    return settings.model_copy(update={"grace_s": min(settings.grace_s, KILL_S - CLOSE_S)})


def cancel(database: Database, run_id: str) -> bool:
    """Cancel a run for whoever cancelled a flow run of it; safe to run twice.

    A run that has ended meanwhile stays as it is. Its drivers notice by themselves.
    """
    with database.write() as connection:
        return change_status(connection, run_id, to=RunStatus.CANCELLED, reason=CANCELLED)


class Stop:
    """What one flow run was told, and passes on to its drivers and its run.

    Attributes:
        signalled: Whether the process was told to end.
        cancelled: Whether the flow run was cancelled.
    """

    def __init__(self, database: Database, flow_run: FlowRun | None) -> None:
        self.signalled = self.cancelled = False
        self._database = database
        self._flow_run = flow_run
        self._run_id: str | None = None
        self._drivers: list[Driver] = []
        self._wake = asyncio.Event()
        self._answers = True

    def follow(self, run_id: str) -> None:
        """Tell which run the flow run is for, as soon as there is one."""
        self._run_id = run_id
        self._wake.set()

    def watch(self, driver: Driver) -> None:
        """Drain a driver when the process is told to end; it may have been already."""
        self._drivers.append(driver)
        if self.signalled:
            asyncio.get_running_loop().call_soon(driver.drain)

    def came(self, task: asyncio.Task[Any] | None) -> None:
        """Take a signal: drain at once, which is right in any case; the second one ends."""
        if self.signalled and task is not None:
            task.cancel()
            return
        self.signalled = True
        log.warning("told to end: run %s drains", self._run_id)
        for driver in self._drivers:
            driver.drain()
        self._wake.set()

    async def keep_looking(self) -> None:
        """Cancel the run as soon as the flow run is found cancelled."""
        while not self.cancelled:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), LOOK_S)
            self._wake.clear()
            await self.look()

    async def look(self) -> None:
        """Ask the server once, and cancel the run where the flow run was cancelled.

        Safe to run any number of times; without an answer the run simply goes on.
        """
        if self._flow_run is None or self._run_id is None or self.cancelled:
            return
        try:
            async with asyncio.timeout(ANSWER_S), get_client() as client:
                state = (await client.read_flow_run(self._flow_run.id)).state
            if state is not None and (state.is_cancelling() or state.is_cancelled()):
                await asyncio.to_thread(cancel, self._database, self._run_id)
                self.cancelled = True
        except Exception as error:  # noqa: BLE001 - it is asked again, and the run goes on
            if self._answers:
                log.warning("run %s: not known whether it is cancelled: %r", self._run_id, error)
            self._answers = False
        else:
            self._answers = True


@asynccontextmanager
async def stopping(database: Database) -> AsyncIterator[Stop]:
    """Listen, for the length of a block, for whatever ends a flow run.

    Only a process that Prefect started for the flow run has its signals taken over: where
    the flow runs embedded, they belong to the caller.
    """
    flow_run = own_flow_run()
    stop = Stop(database, flow_run)
    looking = asyncio.ensure_future(stop.keep_looking())
    try:
        if is_deployed(flow_run):
            with _signals_to(stop):
                yield stop
        else:
            yield stop
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    if stop.signalled:
        await stop.look()


@contextmanager
def _signals_to(stop: Stop) -> Iterator[None]:
    """Take over from Prefect's own handler, which would end the flow at once.

    Prefect's runner finds its handler gone, and sends the signal without its word before it.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.came, task)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def give_back(flow: Flow[Any, Any], flow_run: FlowRun, state: State[Any]) -> None:
    """What Prefect's runner does once the process of a flow run is gone (a hook).

    What the process has done itself before it ended is not done again. One that was killed
    has done nothing of it: its claims are given back here, without waiting for the lease,
    and its run is cancelled if the flow run was.
    """
    cancelled = flow_run.state is not None and flow_run.state.is_cancelling()
    with open_runtime() as runtime:
        database = runtime.database
        with database.read() as connection:
            found = queries.dispatches_of(connection, str(flow_run.id))
        for dispatch, run_id in found:
            if cancelled:
                cancel(database, run_id)
            reap_dead(database, run_id)
            with database.write() as connection:
                message = state.message or f"its flow run is {state.name}"
                if dispatches.end_dispatch(connection, dispatch, message):
                    note(connection, run_id, kind="driver", message=f"a driver is gone: {message}")


async def was_cancelled_by_hand(client: PrefectClient, flow_run: FlowRun) -> bool:
    """Whether a flow run that is cancelled was so by somebody, and not by a runner that shut
    down or a deployment that was at its limit: those never made it Cancelling, and say why.
    """
    if flow_run.state is None or not flow_run.state.message:
        return True
    states = await client.read_flow_run_states(flow_run.id)
    return any(state.type is StateType.CANCELLING for state in states)
