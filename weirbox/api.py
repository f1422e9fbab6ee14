"""The Python API: plan, run, resume and read runs; each plain, and async with an `a` in front."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from weirbox.domain.platforms import NAME
from weirbox.domain.run import Origin, Progress, RunSummary
from weirbox.domain.spec import Suite
from weirbox.domain.words import RunKind, RunStatus
from weirbox.errors import NotPossible, ServiceError, SuiteError
from weirbox.pipeline.driver import Driver
from weirbox.pipeline.live import DirectRunner
from weirbox.pipeline.planning import Planned, Selection, plan_run
from weirbox.pipeline.running import drive_run, reap_dead
from weirbox.runtime import Drain, Runtime, finalize, find_run, open_runtime
from weirbox.runtime import cancel as runtime_cancel
from weirbox.settings import Settings
from weirbox.store import queries, registry
from weirbox.suites import load_suite, parse_suite, with_sinks

if TYPE_CHECKING:
    import pandas as pd

Engine = Literal["prefect", "direct"]
SuiteLike = str | Path | Suite | dict[str, Any]
OriginLike = Origin | Mapping[str, Any] | None
Sinks = Sequence[str | dict[str, Any]] | None

log = logging.getLogger(__name__)

POLL_S = 0.5
"""How often `Run.wait` and progress callbacks look at the rows."""


class Run:
    """A run in the store; everything is read from rows when it is asked for."""

    def __init__(self, run_id: str, settings: Settings | None = None) -> None:
        self.id = run_id
        self._settings = settings or Settings()

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    def summary(self) -> RunSummary:
        """The run at a glance."""
        with open_runtime(self._settings) as runtime, runtime.database.read() as connection:
            return queries.summary(connection, self.id)

    def progress(self) -> Progress:
        """Counts of the run's trials."""
        return self.summary().progress

    def wait(self, timeout_s: float | None = None) -> RunSummary:
        """Wait until the run has ended and, if it completed, is finalized.

        Raises:
            TimeoutError: When it takes longer than `timeout_s` seconds.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = self.summary()
            if found.status.terminal and not found.finalizing:
                return found
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"run {self.id} is {found.status} after {timeout_s} s")
            time.sleep(POLL_S)

    async def await_(self, timeout_s: float | None = None) -> RunSummary:
        """`wait`, without blocking the event loop."""
        return await asyncio.to_thread(self.wait, timeout_s)

    def cancel(self, *, reason: str = "cancelled through the API") -> None:
        """Cancel the run; whoever drives it notices within about a second.

        What is in flight settles and is recorded, nothing new starts.

        Raises:
            NotPossible: When it has ended already.
        """
        with ThreadPoolExecutor(1) as pool:  # a loop may be running in this thread
            pool.submit(asyncio.run, self.acancel(reason=reason)).result()

    async def acancel(self, *, reason: str = "cancelled through the API") -> None:
        """`cancel`, in a running event loop."""
        with open_runtime(self._settings) as runtime:
            await runtime_cancel(runtime, self.id, reason=reason)

    def results(self) -> pd.DataFrame:
        """One row per trial: case_id, trial, category, state, verdict, disposition, deciding,
        error and times, and for each check its value and its state (``CHECK`` and
        ``CHECK.state``); values keep their types."""
        from weirbox.frames import results_frame

        with open_runtime(self._settings) as runtime, runtime.database.read() as connection:
            return results_frame(connection, self.id)

    def scorecard(self) -> dict[str, Any] | None:
        """The aggregates; None before the run is finalized."""
        with open_runtime(self._settings) as runtime, runtime.database.read() as connection:
            return queries.scorecard(connection, self.id)


def plan(
    suite: SuiteLike,
    *,
    kind: RunKind | str = RunKind.FULL,
    cases: Sequence[str] | None = None,
    since: str | None = None,
    size: int | None = None,
    origin: OriginLike = None,
    sinks: Sinks = None,
    settings: Settings | None = None,
) -> Run:
    """Freeze a run without starting it.

    Args:
        suite: A YAML file, a registered suite's name, a `Suite`, or its data; relative
            paths start at the file's folder, or else at the working directory.
        kind: full, preview (a deterministic sample) or delta.
        cases: Ids, for a delta run.
        since: A run, for a delta of the cases that are new or changed since; or ``any``,
            for those that no run of the suite has taken as they are.
        size: How many cases a preview takes.
        origin: What asked for the run: repository, pull_request, commit, branch, actor, url.
            A newer run of the same repository, pull request and suite supersedes an older
            one that has not ended.
        sinks: Names of the suite's sinks that trials go to, or what a suite would say of
            others; none of them for ``()``. Default: all that the suite has.

    Raises:
        UserError: For a mistake in the suite, the dataset or the arguments.
    """
    with open_runtime(settings) as runtime:
        chosen = selection(kind, cases=cases, since=since, size=size)
        asked_by = read_origin(origin)
        planned = plan_suite(runtime, suite, chosen, origin=asked_by, sinks=sinks)
        return Run(planned.run_id, runtime.settings)


def run(
    suite: SuiteLike,
    *,
    kind: RunKind | str = RunKind.FULL,
    cases: Sequence[str] | None = None,
    since: str | None = None,
    size: int | None = None,
    origin: OriginLike = None,
    sinks: Sinks = None,
    engine: Engine = "prefect",
    settings: Settings | None = None,
) -> Run:
    """Plan, drive and finalize in this process; see `plan` for the arguments.

    Args:
        engine: ``prefect`` shows the run in a Prefect server; ``direct`` needs none.
    """
    which: dict[str, Any] = {"kind": kind, "cases": cases, "since": since, "size": size}
    planned = plan(suite, origin=origin, sinks=sinks, settings=settings, **which)
    return resume(planned.id, engine=engine, settings=settings)


def resume(run_id: str, *, engine: Engine = "prefect", settings: Settings | None = None) -> Run:
    """Go on with a run from its rows: nothing that is done is done again."""
    return _blocking(aresume(run_id, engine=engine, settings=settings))


async def aplan(suite: SuiteLike, **options: Any) -> Run:
    """`plan`, without blocking the event loop."""
    return await asyncio.to_thread(plan, suite, **options)


async def arun(suite: SuiteLike, *, engine: Engine = "prefect", **options: Any) -> Run:
    """`run`, in a running event loop."""
    planned = await aplan(suite, **options)
    return await aresume(planned.id, engine=engine, settings=options.get("settings"))


async def aresume(
    run_id: str, *, engine: Engine = "prefect", settings: Settings | None = None
) -> Run:
    """`resume`, in a running event loop."""
    with open_runtime(settings) as runtime:
        found = find_run(runtime, run_id)
        await drive(runtime, found, engine=engine)
        return Run(found, runtime.settings)


def cancel(run_id: str, *, settings: Settings | None = None) -> Run:
    """Cancel a run by its id, a unique beginning of it, or ``latest``; see `Run.cancel`."""
    found = get_run(run_id, settings=settings)
    found.cancel()
    return found


async def acancel(run_id: str, *, settings: Settings | None = None) -> Run:
    """`cancel`, in a running event loop."""
    found = await asyncio.to_thread(get_run, run_id, settings=settings)
    await found.acancel()
    return found


def get_run(run_id: str, *, settings: Settings | None = None) -> Run:
    """A run by its id, a unique beginning of it, or ``latest``.

    Raises:
        NotPossible: When there is no such run.
    """
    with open_runtime(settings) as runtime:
        return Run(find_run(runtime, run_id), runtime.settings)


# --- for the edges ----------------------------------------------------------------


def selection(
    kind: RunKind | str,
    *,
    cases: Sequence[str] | None,
    since: str | None,
    size: int | None,
) -> Selection:
    """Which cases a run takes; refuses what does not fit together."""
    kind = RunKind(kind)
    if kind is not RunKind.DELTA and (cases is not None or since is not None):
        raise NotPossible(f"a {kind} run takes no list of cases and no run to compare with")
    if kind is not RunKind.PREVIEW and size is not None:
        raise NotPossible(f"a {kind} run takes no size; only a preview does")
    listed = None if cases is None else tuple(cases)
    return Selection(kind=kind, cases=listed, since=since, size=size)


def plan_suite(
    runtime: Runtime,
    suite: SuiteLike,
    chosen: Selection,
    *,
    origin: Origin | None = None,
    managed: bool = False,
    sinks: Sinks = None,
) -> Planned:
    """Freeze a run of a suite in whatever form it comes.

    Args:
        origin: What asked for the run.
        managed: Whether the coordinator is to have it driven.
        sinks: Those that trials go to, where they are not all that the suite has.
    """
    read, folder = find_suite(runtime, suite)
    return plan_run(
        runtime.database,
        with_sinks(read, sinks),
        folder=folder,
        selection=chosen,
        prompt_folders=runtime.prompt_folders,
        origin=origin,
        managed=managed,
    )


def read_origin(origin: OriginLike) -> Origin:
    """What asked for a run, in whatever form it comes.

    Raises:
        NotPossible: Naming what an origin does not have.
    """
    try:
        return Origin.model_validate({} if origin is None else origin)
    except ValidationError as error:
        first = error.errors()[0]
        raise NotPossible(
            f"origin.{'.'.join(map(str, first['loc']))}: {first['msg']}; "
            f"an origin has {', '.join(Origin.model_fields)}"
        ) from None


def read_suite(suite: SuiteLike) -> tuple[Suite, str]:
    """A suite in whatever form it comes, and the folder that its relative paths start from."""
    if isinstance(suite, str | Path):
        return load_suite(suite), str(Path(suite).absolute().parent)
    if isinstance(suite, dict):
        suite = parse_suite(suite, place="given as data")
    return suite, str(Path.cwd())


def find_suite(runtime: Runtime, suite: SuiteLike) -> tuple[Suite, str]:
    """The same; a name that no file has is a registered suite's.

    Raises:
        SuiteError: When there is neither.
    """
    given = str(suite) if isinstance(suite, str | Path) else ""
    if not NAME.fullmatch(given) or Path(given).exists():
        return read_suite(suite)
    with runtime.database.read() as connection:
        found = registry.registered(connection, given)
        if found is not None:
            return found.suite, found.folder
        if Path(given).suffix in (".yaml", ".yml"):
            return read_suite(suite)
        names = [one.name for one in registry.registered_suites(connection)]
    raise SuiteError(
        f"there is no suite file {given!r}, and no suite of that name is registered (registered: "
        f"{', '.join(names) or 'none'}); `weirbox init` writes a file, `weirbox deploy FILE` "
        "registers one"
    )


async def drive(
    runtime: Runtime,
    run_id: str,
    *,
    engine: Engine,
    drain: Drain | None = None,
) -> RunStatus:
    """Drive a run in this process and have it finalized; safe to run again after a crash.

    Args:
        drain: Where signals are turned into drains; the CLI's.
    """
    watch: Callable[[Driver], None] = drain.watch if drain is not None else lambda driver: None
    if engine == "prefect":
        await _drive_with_prefect(runtime, run_id, watch)
    else:
        await _drive_directly(runtime, run_id, watch)
    with runtime.database.read() as connection:
        return queries.status_of(connection, run_id)


async def _drive_directly(runtime: Runtime, run_id: str, watch: Callable[[Driver], None]) -> None:
    """Drive until the run is finalized, or has ended otherwise: one whose trials are opened
    again before it was finalized goes on."""
    await asyncio.to_thread(reap_dead, runtime.database, run_id)
    drive_once = partial(
        drive_run,
        runtime.database,
        run_id,
        settings=runtime.settings,
        read_secret=runtime.read_secret,
        make_runner=lambda kit: DirectRunner(),
        on_driver=watch,
    )
    while await drive_once() is RunStatus.COMPLETED:
        with suppress(NotPossible):
            await finalize(runtime, run_id)
            return


async def _drive_with_prefect(
    runtime: Runtime, run_id: str, watch: Callable[[Driver], None]
) -> None:
    """Drive in a flow run; where Prefect fails once the run drives, go on without it."""
    from weirbox.services import Services, prepare_client

    services = Services(runtime.settings.home)
    server = await asyncio.to_thread(prepare_client, services)
    from flows.embedded import evaluate_here

    if server is not None:
        await asyncio.to_thread(services.wait, server, "/api/health")
    begun: list[Driver] = []

    def watching(driver: Driver) -> None:
        begun.append(driver)
        watch(driver)

    fault = await evaluate_here(run_id, runtime.settings, watching)
    with runtime.database.read() as connection:
        found = queries.summary(connection, run_id)
    if fault is None or (found.status.terminal and not found.finalizing):
        return
    if not begun:
        raise ServiceError(
            f"Prefect failed: {fault}; the run goes on with: weirbox resume {run_id} "
            "(or, without Prefect, with --engine direct)"
        ) from fault
    log.warning("run %s goes on without Prefect, which failed: %r", run_id, fault)
    await _drive_directly(runtime, run_id, watch)


def _blocking(work: Coroutine[Any, Any, Run]) -> Run:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise NotPossible("an event loop runs already: await the async twin (arun, aresume) instead")
