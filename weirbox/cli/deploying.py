"""Register suites and deployments, and start runs of them: `deploy` and `trigger`."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weirbox import suites
from weirbox.cli.driving import show_end
from weirbox.cli.edge import DONE, FAILED, Screen, invoked
from weirbox.cli.progress import shown_progress
from weirbox.cli.wording import grid, word
from weirbox.domain.base import Frozen
from weirbox.domain.spec import Suite
from weirbox.errors import NotPossible, ServiceError, UserError
from weirbox.runtime import open_runtime
from weirbox.store import registry
from weirbox.triggering import FlowRunState, Triggered, prefect_url, trigger

if TYPE_CHECKING:
    from deployments.registering import Registered
    from weirbox.domain.run import Origin
    from weirbox.pipeline.planning import Selection
    from weirbox.settings import Settings
    from weirbox.store.registry import RegisteredSuite

LATE_S = 20.0
"""After how long without a worker `trigger --wait` says so; a start takes 3 to 10 s."""

LOOK_S = 5.0
"""How often `trigger --wait` looks whether the run is planned."""

_PREFECT_NAME = re.compile(r"[^/%&<>]+")


class Deploying(Frozen):
    """What `deploy` is asked for.

    Attributes:
        files: Suites to register, or to update.
        remove: Names of suites to unregister.
    """

    files: tuple[Path, ...] = ()
    remove: tuple[str, ...] = ()
    pool: str | None = None
    queue: str | None = None


def deploy(screen: Screen, settings: Settings, asked: Deploying) -> int:
    """Register suites in the store, and everything that is to be with the Prefect server.

    Safe to run twice: the second time nothing changes. The store comes first, so that what is
    started finds its suite; where the server fails then, running it again does the rest.

    Returns:
        The exit status.
    """
    _refuse_wrong_names(asked)
    loaded = _load(asked.files, settings.deployment)
    url = prefect_url(settings)
    with open_runtime(settings) as runtime, runtime.database.write() as connection:
        for name in asked.remove:
            if not registry.unregister_suite(connection, name):
                raise NotPossible(f"no suite {name!r} is registered")
        for file, suite in loaded:
            if registry.register_suite(connection, suite, folder=str(file.absolute().parent)):
                screen.tell(f"suite {suite.suite} is registered")
        known = registry.registered_suites(connection)
    done = _register(url, settings, known, asked)
    rows = [(one.kind, one.name, word(one.outcome), one.detail) for one in done]
    screen.print_whole(grid(("in Prefect", "name", "", "changed"), rows))
    screen.tell(_next_step(done))
    screen.json([one._asdict() for one in done])
    return FAILED if any(one.outcome == "refused" for one in done) else DONE


def _load(files: Sequence[Path], deployment: str) -> list[tuple[Path, Suite]]:
    loaded = [(file, suites.load_suite(file)) for file in files]
    names = [suite.suite for _, suite in loaded]
    for file, suite in loaded:
        if names.count(suite.suite) > 1:
            raise NotPossible(f"two of the files are of the suite {suite.suite!r}: name one")
        if suite.suite == deployment:
            raise NotPossible(
                f"suite {suite.suite!r} ({file}) has the name of weirbox's own deployments: "
                "rename the suite, or set WEIRBOX_DEPLOYMENT to another name"
            )
    return loaded


def _register(
    url: str, settings: Settings, known: Sequence[RegisteredSuite], asked: Deploying
) -> list[Registered]:
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectException
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from deployments.registering import register

    async def registering() -> list[Registered]:
        async with get_client() as client:
            return await register(
                client,
                known,
                deployment=settings.deployment,
                pool=asked.pool,
                queue=asked.queue,
            )

    try:
        with temporary_settings({PREFECT_API_URL: url}):
            return asyncio.run(registering())
    except (httpx.HTTPError, PrefectException) as error:
        raise ServiceError(
            f"the Prefect server at {url} failed: {error}; the suites are in the store: run "
            "the same again"
        ) from error


def _refuse_wrong_names(asked: Deploying) -> None:
    for option, name in (("--pool", asked.pool), ("--queue", asked.queue)):
        if name is not None and not _PREFECT_NAME.fullmatch(name):
            raise UserError(f"{option} {name!r}: Prefect's names are not empty, without / % & < >")


def _next_step(done: Sequence[Registered]) -> str:
    changed = [one for one in done if one.outcome not in ("unchanged", "refused")]
    lines = [] if changed else ["nothing has changed"]
    pools = [one.name for one in done if one.kind == "work pool"]
    lines += [f"work is done by: prefect worker start --pool {pool}" for pool in pools]
    return "\n".join(lines or [f"start one with: {invoked()} trigger SUITE"])


def trigger_run(
    screen: Screen,
    settings: Settings,
    suite: str,
    chosen: Selection,
    origin: Origin,
    *,
    key: str | None,
    wait: bool,
) -> int:
    """Start a run of a registered suite, and see it to its end if asked to; gives the exit
    status."""
    run = trigger(
        suite,
        kind=chosen.kind,
        case_ids=chosen.cases,
        since=chosen.since,
        size=chosen.size,
        origin=origin,
        idempotency_key=key,
        settings=settings,
    )
    screen.tell(f"asked for a run of {suite}: flow run {run.flow_run_id}")
    if not wait:
        body = {"suite": suite, "flow_run_id": run.flow_run_id, "run_id": run.run_id}
        screen.json(body)
        return DONE
    _wait_until_planned(screen, run)
    with open_runtime(settings) as runtime:
        screen.tell(f"run {run.run.id}")
        with shown_progress(runtime.database, run.run.id, screen.err):
            run.wait()
        return show_end(screen, runtime, run.run.id)


def _wait_until_planned(screen: Screen, run: Triggered) -> None:
    """Wait for a worker, and say so where none comes.

    Raises:
        ServiceError: When the flow run ended and had planned no run.
    """
    late: float | None = time.monotonic() + LATE_S
    while run.run_id is None:
        try:
            run.wait(timeout_s=LOOK_S)
        except TimeoutError:
            if late is not None and time.monotonic() > late and run.run_id is None:
                late = None
                _tell_waiting(screen, run.state())


def _tell_waiting(screen: Screen, state: FlowRunState) -> None:
    if not state.waiting:
        return
    start = f"{invoked()} up" if state.pool is None else f"prefect worker start -p {state.pool}"
    screen.tell(f"no worker has taken it up yet; one is started with: {start}")
