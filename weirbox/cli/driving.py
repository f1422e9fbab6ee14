"""Drive a run in this process: `run` and `resume`."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weirbox import api
from weirbox.cli.edge import DONE, FAILED, SIGNALLED, Screen, invoked
from weirbox.cli.progress import shown_progress
from weirbox.cli.runs import how_it_ended
from weirbox.cli.scorecard import scorecard
from weirbox.cli.wording import plural
from weirbox.domain.words import RunStatus
from weirbox.errors import ServiceError
from weirbox.pipeline.growing import opened
from weirbox.pipeline.identity import is_dead
from weirbox.pipeline.planning import Planned, Selection, plan_run
from weirbox.pipeline.running import run_url
from weirbox.runtime import Drain, Runtime, come_to_rest, finalize, find_run, open_runtime
from weirbox.store import claims, queries
from weirbox.store.engine import DatabaseTrouble, in_words
from weirbox.suites import with_sinks

if TYPE_CHECKING:
    from weirbox.domain.run import Origin
    from weirbox.domain.spec import Suite
    from weirbox.services import Service, Services
    from weirbox.settings import Settings


QUIET = "CRITICAL"
"""What Prefect may log here: errors that end a run are told once, by the command."""


@dataclass(frozen=True)
class PrefectServer:
    """The Prefect server that a run will be shown in, while it may still be starting."""

    services: Services
    local: Service | None
    loading: threading.Thread

    @classmethod
    def begin(cls, settings: Settings, screen: Screen) -> PrefectServer:
        """Have the server start, and the flows load, while the caller goes on."""
        from weirbox.services import Services, prepare_client

        for name in ("PREFECT_LOGGING_LEVEL", "PREFECT_INTERNAL_LOGGING_LEVEL"):
            os.environ.setdefault(name, QUIET)
        services = Services(settings.home)
        before = services.get("prefect")
        local = prepare_client(services)
        if local is not None and before is None:
            screen.tell("a local Prefect server starts (about 10 s; it stays for the next runs)")
        loading = threading.Thread(
            target=importlib.import_module, args=("flows.evaluate_run",), daemon=True
        )
        loading.start()
        return cls(services, local, loading)

    def wait(self) -> None:
        """Wait until the server answers and the flows are loaded.

        Raises:
            ServiceError: When it does not.
        """
        if self.local is not None:
            self.services.wait(self.local, "/api/health")
        self.loading.join()


def run_suite(
    screen: Screen,
    settings: Settings,
    file: Path,
    chosen: Selection,
    engine: api.Engine,
    origin: Origin,
    sinks: list[str] | None,
) -> int:
    """Plan a suite, drive the run, and show what it came to; gives the exit status.

    The server starts while the run is planned, but not for a mistake that shows at once.
    """
    with _found(settings, file, sinks) as (runtime, suite, folder):
        with opened(runtime.database, suite.dataset, folder=folder):
            server = PrefectServer.begin(settings, screen) if engine == "prefect" else None
        planned = _plan(screen, runtime, suite, folder, chosen, origin)
        if not planned.trials:
            asyncio.run(finalize(runtime, planned.run_id))
            return show_end(screen, runtime, planned.run_id)
        return drive_to_end(screen, runtime, planned.run_id, engine, server)


def plan_suite(
    screen: Screen,
    settings: Settings,
    file: Path,
    chosen: Selection,
    origin: Origin,
    sinks: list[str] | None,
) -> None:
    """Freeze a run without starting it."""
    with _found(settings, file, sinks) as (runtime, suite, folder):
        planned = _plan(screen, runtime, suite, folder, chosen, origin)
        with runtime.database.read() as connection:
            run = queries.summary(connection, planned.run_id)
    screen.tell(how_it_ended(run))
    screen.json(run.to_json())


@contextmanager
def _found(
    settings: Settings, file: Path, sinks: list[str] | None
) -> Iterator[tuple[Runtime, Suite, str]]:
    """The store, and the suite with these sinks and its folder; a mistake in a file shows
    before there is a store."""
    read = api.read_suite(file) if file.exists() else None
    with open_runtime(settings) as runtime:
        suite, folder = read or api.find_suite(runtime, file)
        yield runtime, with_sinks(suite, sinks), folder


def _plan(
    screen: Screen,
    runtime: Runtime,
    suite: Suite,
    folder: str,
    chosen: Selection,
    origin: Origin,
) -> Planned:
    planned = plan_run(
        runtime.database,
        suite,
        folder=folder,
        selection=chosen,
        prompt_folders=runtime.prompt_folders,
        origin=origin,
    )
    for warning in planned.warnings:
        screen.tell(f"warning: {warning}")
    screen.tell(f"planned {planned.run_id}: {plural(planned.trials, 'trial')}")
    return planned


def finalize_run(screen: Screen, settings: Settings, run: str) -> int:
    """Compute a completed run's scorecard and show it; gives the exit status."""
    with open_runtime(settings) as runtime:
        run_id = find_run(runtime, run)
        asyncio.run(finalize(runtime, run_id))
        return show_end(screen, runtime, run_id)


def resume_run(screen: Screen, settings: Settings, run: str, engine: api.Engine) -> int:
    """Take a run as far as it goes, from its rows; gives the exit status."""
    with open_runtime(settings) as runtime:
        with runtime.database.read() as connection:
            run_id = queries.find_run_id(connection, run)
            found = queries.summary(connection, run_id)
            drivers = [d for d in claims.live_drivers(connection, run_id) if not is_dead(d)]
        if not found.status.terminal:
            if drivers:
                screen.tell(f"joining {', '.join(drivers)}")
            server = PrefectServer.begin(settings, screen) if engine == "prefect" else None
            return drive_to_end(screen, runtime, run_id, engine, server)
        if found.finalizing:
            screen.tell(f"run {run_id} is completed; it only had to be finalized")
            asyncio.run(finalize(runtime, run_id))
        else:
            asyncio.run(come_to_rest(runtime, run_id))
            screen.tell(f"run {run_id} is {found.status} already: nothing is left to do")
        return show_end(screen, runtime, run_id)


def drive_to_end(
    screen: Screen,
    runtime: Runtime,
    run_id: str,
    engine: api.Engine,
    server: PrefectServer | None,
) -> int:
    """Drive a planned run in this process and show what it came to; gives the exit status."""
    drain = Drain()
    drain.on_signal(
        lambda: screen.tell(
            "draining: nothing new starts, and what is in flight has up to "
            f"{runtime.settings.grace_s:g} s; Ctrl-C again ends it at once"
        )
    )
    try:
        if server is not None:
            server.wait()
        with shown_progress(runtime.database, run_id, screen.err):
            asyncio.run(api.drive(runtime, run_id, engine=engine, drain=drain))
    except (KeyboardInterrupt, asyncio.CancelledError):
        drain.signal = drain.signal or signal.SIGINT
    except DatabaseTrouble as error:
        raise ServiceError(
            f"run {run_id} stopped, since the database failed: {in_words(error)}; what was "
            f"committed stands, and goes on with: {invoked()} resume {run_id}"
        ) from error
    return show_end(screen, runtime, run_id, came=drain.signal)


def show_end(screen: Screen, runtime: Runtime, run_id: str, *, came: int | None = None) -> int:
    """Show what a run came to, or how to go on with it; gives the exit status.

    Args:
        came: The signal that the driving ended on.
    """
    with runtime.database.read() as connection:
        run = queries.summary(connection, run_id)
        card = queries.scorecard(connection, run_id)
    for part in scorecard(card) if card is not None else ():
        screen.out.print(part)
    screen.tell(how_it_ended(run))
    if card is not None:
        screen.tell(f"dashboard: {dashboard_link(runtime.settings, run_id)}")
    screen.json(run.to_json())
    if came is not None and not run.status.terminal:
        return SIGNALLED + came
    return DONE if run.status is RunStatus.COMPLETED and not run.finalizing else FAILED


def dashboard_link(settings: Settings, run_id: str) -> str:
    """Where the dashboard shows a run, or how to start one that does."""
    from weirbox.cli.stack import store_key
    from weirbox.services import Services

    if "dashboard_url" in settings.model_fields_set:
        return run_url(settings, run_id)
    running = Services(settings.home).get("dashboard")
    if running is None or running.store != store_key(settings):
        return f"{invoked()} up"
    return run_url(settings.model_copy(update={"dashboard_url": running.url}), run_id)
