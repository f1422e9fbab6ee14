"""Look at runs, and cancel them."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from weirbox.cli.cases import case_detail, case_page
from weirbox.cli.edge import Screen
from weirbox.cli.runs import how_it_ended, run_list, run_page, run_state
from weirbox.cli.stack import service_table
from weirbox.domain.words import Disposition
from weirbox.pipeline.identity import is_dead
from weirbox.runtime import cancel, find_run, open_runtime
from weirbox.services import Services
from weirbox.store import claims, queries
from weirbox.store.base import TRIAL

if TYPE_CHECKING:
    from weirbox.settings import Settings

SHOWN = 10
"""Trials to look at that `show` lists."""


def show_status(screen: Screen, settings: Settings, run: str | None) -> None:
    """Show where a run stands; without a run the services and the newest run.

    The JSON is the run's; without a run it has ``services`` besides, and ``run_id`` is
    null when there is no run yet.
    """
    services = Services(settings.home).running() if run is None else None
    with open_runtime(settings) as runtime, runtime.database.read() as connection:
        wanted = None if run is None else queries.find_run_id(connection, run)
        found = next(iter(queries.summaries(connection, run_id=wanted, limit=1)), None)
        run_id = "" if found is None else found.run_id
        drivers = [d for d in claims.live_drivers(connection, run_id) if not is_dead(d)]
    if services is not None:
        screen.out.print(service_table(services))
    for part in run_state(found, drivers) if found is not None else ():
        screen.out.print(part)
    screen.tell("there is no run yet" if found is None else how_it_ended(found))
    body: dict[str, Any] = {"run_id": None} if found is None else found.to_json()
    if services is not None:
        body["services"] = [asdict(service) for service in services]
    screen.json(body)


def show_list(screen: Screen, settings: Settings, suite: str | None, limit: int) -> None:
    """List runs, newest first."""
    with open_runtime(settings) as runtime, runtime.database.read() as connection:
        runs = queries.summaries(connection, suite=suite, limit=limit)
    if runs:
        screen.print_whole(run_list(runs))
    else:
        screen.tell("there is no run" if suite is None else f"suite {suite!r} has no run")
    screen.json([run.to_json() for run in runs])


def show_run(screen: Screen, settings: Settings, run: str) -> None:
    """Show a run with its scorecard and its timeline."""
    with open_runtime(settings) as runtime, runtime.database.read() as connection:
        run_id = queries.find_run_id(connection, run)
        found = queries.summary(connection, run_id)
        card = queries.scorecard(connection, run_id)
        events = queries.events_of(connection, run_id)
        doubtful = queries.trial_page(
            connection, run_id, limit=SHOWN, where=(TRIAL.c.disposition != Disposition.CLEAN,)
        )
    for part in run_page(found, card, events, doubtful):
        screen.out.print(part)
    screen.tell(how_it_ended(found, shown=True))
    screen.json(found.to_json())


def show_case(screen: Screen, settings: Settings, run: str, case_id: str) -> None:
    """Show one case with everything that its trials left."""
    with open_runtime(settings) as runtime, runtime.database.read() as connection:
        detail = case_detail(connection, queries.find_run_id(connection, run), case_id)
    for part in case_page(detail) if not screen.as_json else ():
        screen.out.print(part)
    screen.json(detail)


def cancel_run(screen: Screen, settings: Settings, run: str) -> None:
    """Cancel a run; it comes to rest at once where nobody drives it.

    Raises:
        NotPossible: When it has ended already.
    """
    with open_runtime(settings) as runtime:
        run_id = find_run(runtime, run)
        asyncio.run(cancel(runtime, run_id, reason="cancelled on the command line"))
        with runtime.database.read() as connection:
            found = queries.summary(connection, run_id)
    settles = "" if found.settled_at else "; what is in flight settles and is recorded"
    screen.tell(f"run {run_id} is cancelled{settles}")
    screen.json(found.to_json())
