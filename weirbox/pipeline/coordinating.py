"""The coordinator: derives every run's state from rows, and has done what is missing.

A tick is stateless: it reads the facts of all runs that may need something, and for each
that does, in a transaction of its own, decides again under the run's lock and commits; only
then it acts. So it is safe to run often, twice at once, and to kill anywhere: what was
committed and not yet done is seen by the next tick, which does it under the same key.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from weirbox.domain.run import Progress
from weirbox.domain.words import RunStatus
from weirbox.pipeline.run_decisions import FINALIZE_AGAIN_S, STALLS, Decision, decide
from weirbox.pipeline.run_decisions import FlowState as FlowState
from weirbox.pipeline.telling import Tells, answering, telling, watching
from weirbox.settings import Settings
from weirbox.store import claims, coordination, dispatches, queries
from weirbox.store.coordination import RunFacts
from weirbox.store.engine import Connection, Database
from weirbox.store.types import utc_now
from weirbox.store.writes import change_status, note

T = TypeVar("T")

AT_ONCE = 8
"""Runs that are written, and requests that are sent, at the same time."""

RUN_S = 10.0
"""How long one run's transaction, or one request about it, may take; the tick goes on then,
and the next one looks at it again."""

BATCH = 500
"""Runs whose changes are kept in one transaction."""

SHOWN = 50
"""Runs whose progress is published, and whose thresholds are looked at, per tick."""


class DriverOrder(NamedTuple):
    """A driver to ask for."""

    run_id: str
    dispatch: int
    key: str


class Engine(Tells, Protocol):
    """What the coordinator asks of whatever runs flows."""

    async def states(self, flow_runs: Sequence[str]) -> Mapping[str, FlowState]:
        """Where flow runs stand; those it does not know are left out. Raises when it
        does not answer."""

    async def drive(self, order: DriverOrder) -> str:
        """Have a driver started; gives its flow run, the same one for the same key."""

    async def finalize(self, run_id: str, key: str) -> str:
        """Have a run finalized; gives the flow run, the same one for the same key."""

    async def show(self, run_id: str, progress: Progress) -> None:
        """Publish a run's progress."""


@dataclass
class TickReport:
    """What a tick did.

    Attributes:
        looked_at: Runs that might have needed something.
        lines: For each run what was done about it.
        troubles: For each run, or ``engine``, what went wrong; the next tick tries again.
    """

    looked_at: int = 0
    lines: dict[str, list[str]] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)

    def did(self, run_id: str, what: str) -> None:
        """Add to what was done about a run."""
        self.lines.setdefault(run_id, []).append(what)

    def describe(self) -> str:
        """The report in words."""
        parts = [f"{run_id}: {', '.join(lines)}" for run_id, lines in sorted(self.lines.items())]
        parts += [f"{what}: trouble: {why}" for what, why in sorted(self.troubles.items())]
        return "; ".join([f"{self.looked_at} runs looked at", *parts])


@dataclass(frozen=True)
class _Committed:
    """What a run's transaction left to be done.

    Attributes:
        orders: Drivers that the engine has not been asked for yet.
        finalize_key: Under which key to have the run finalized, if it is to be.
    """

    run_id: str
    decision: Decision
    orders: tuple[DriverOrder, ...] = ()
    finalize_key: str | None = None


async def tick(database: Database, engine: Engine, settings: Settings) -> TickReport:
    """Look at every run once, and do what is missing.

    One run's trouble is reported and holds no other.
    """
    report = TickReport()
    now = utc_now()
    overview = await asyncio.to_thread(_overview, database)
    report.looked_at = len(overview)
    states = await _states(engine, overview, report)
    decided = [(f, decide(f, states, now=now, settings=settings)) for f in overview]
    changed = [f for f, decision in decided if decision.changed and not decision.writes]
    await _each({"changes": partial(asyncio.to_thread, _remember, database, changed)}, report)
    committed = await _commit_all(database, states, settings, decided, report)
    await _each(_actions(database, engine, committed, report), report)
    moved = _looked_into(decided)
    await _show(database, engine, moved, report)
    await _each(watching(database, moved), report)
    for work in (telling, answering):
        await _each(await asyncio.to_thread(work, database, engine), report)
    return report


def _looked_into(decided: Sequence[tuple[RunFacts, Decision]]) -> list[str]:
    """The runs whose progress and thresholds are looked at now: those that stall or end first,
    and of the others that change some by chance, so that each has its turn."""
    moved = [(f, d) for f, d in decided if d.changed or d.stalled or d.status is not None]
    random.shuffle(moved)
    moved.sort(key=lambda pair: not (pair[1].stalled or pair[1].status is not None))
    return [found.run_id for found, _ in moved[:SHOWN]]


def _overview(database: Database) -> list[RunFacts]:
    with database.read() as connection:
        return coordination.facts(connection)


async def _states(
    engine: Engine, overview: Sequence[RunFacts], report: TickReport
) -> Mapping[str, FlowState] | None:
    ids = [d.flow_run for found in overview for d in found.dispatches if d.flow_run is not None]
    if not ids:
        return {}
    try:
        known = await asyncio.wait_for(engine.states(ids), RUN_S)
    except Exception as error:  # noqa: BLE001 - whatever the engine says: the rows go on
        report.troubles["engine"] = f"{type(error).__name__}: {error}"
        return None
    return {flow_run: known.get(flow_run, FlowState.ENDED) for flow_run in ids}


# --- commit ---------------------------------------------------------------------


def _remember(database: Database, changed: Sequence[RunFacts]) -> None:
    for start in range(0, len(changed), BATCH):
        with database.write() as connection:
            coordination.remember(connection, changed[start : start + BATCH])


async def _commit_all(
    database: Database,
    states: Mapping[str, FlowState] | None,
    settings: Settings,
    decided: Sequence[tuple[RunFacts, Decision]],
    report: TickReport,
) -> list[_Committed]:
    """Commit for each run that needs it; on SQLite one by one, as it has one lock."""
    wanting = [f.run_id for f, decision in decided if _wants(f, decision)]
    at_once = 1 if database.sqlite else AT_ONCE
    threads = ThreadPoolExecutor(at_once, thread_name_prefix="weirbox-tick")
    try:
        commit = partial(_commit, database, states, settings)
        work = {run_id: partial(_in_thread, threads, commit, run_id) for run_id in wanting}
        return await _each(work, report, at_once=at_once)
    finally:
        threads.shutdown(wait=False)


def _wants(found: RunFacts, decision: Decision) -> bool:
    unsent = any(dispatch.flow_run is None for dispatch in found.dispatches)
    return decision.writes or decision.finalize or (unsent and not found.status.terminal)


def _commit(
    database: Database,
    states: Mapping[str, FlowState] | None,
    settings: Settings,
    run_id: str,
) -> _Committed:
    """Decide about one run again, under its lock, and commit.

    The facts are read once the lock is held, so of two coordinators the second sees what
    the first has decided.
    """
    with database.write() as connection:
        claims.reap_expired(connection, run_id)
        coordination.lock_run(connection, run_id)
        found = coordination.fact(connection, run_id)
        decision = decide(found, states, now=utc_now(), settings=settings)
        requested = _write(connection, found, decision)
        unsent = [(d.id, d.key) for d in found.dispatches if d.flow_run is None]
        if decision.status is RunStatus.COMPLETED:
            found = coordination.fact(connection, run_id)
        ended = decision.status is not None or found.status.terminal
        return _Committed(
            run_id,
            decision,
            orders=() if ended else tuple(DriverOrder(run_id, *o) for o in (*unsent, *requested)),
            finalize_key=_finalize_key(found) if _asks_finalize(decision) else None,
        )


def _asks_finalize(decision: Decision) -> bool:
    return decision.finalize or decision.status is RunStatus.COMPLETED


def _finalize_key(found: RunFacts) -> str:
    """One key for each time that a run completes, and another where that came to nothing."""
    completed = found.completed_at or found.created_at
    tries = int((utc_now() - completed).total_seconds() / FINALIZE_AGAIN_S)
    return f"finalize:{found.run_id}:{completed.isoformat()}:{tries}"


def _write(connection: Connection, found: RunFacts, decision: Decision) -> list[tuple[int, str]]:
    """Write a decision; gives number and key of each driver that is to be asked for."""
    run_id = found.run_id
    for dispatch, message in decision.ended:
        if dispatches.end_dispatch(connection, dispatch, message):
            note(connection, run_id, kind="driver", message=f"a driver is gone: {message}")
    if decision.status is not None:
        change_status(connection, run_id, to=decision.status, reason=decision.reason)
    if decision.stalled:
        stalls = coordination.count_stall(connection, found)
        note(connection, run_id, kind="stalled", message=f"nothing changed ({stalls} of {STALLS})")
    elif decision.changed:
        coordination.remember(connection, [found])
    return dispatches.request_dispatches(
        connection, run_id, known=found.dispatched, count=decision.request
    )


# --- act ------------------------------------------------------------------------


def _actions(
    database: Database,
    engine: Engine,
    committed: Sequence[_Committed],
    report: TickReport,
) -> dict[str, Callable[[], Awaitable[None]]]:
    return {done.run_id: partial(_act, database, engine, done, report) for done in committed}


async def _act(database: Database, engine: Engine, done: _Committed, report: TickReport) -> None:
    run_id = done.run_id
    for line in _lines(done.decision):
        report.did(run_id, line)
    for order in done.orders:
        flow_run = await engine.drive(order)
        await asyncio.to_thread(_keep, database, order.dispatch, flow_run)
        report.did(run_id, "a driver is asked for")
    if done.finalize_key is not None:
        await engine.finalize(run_id, done.finalize_key)
        report.did(run_id, "finalize is asked for")


async def _show(
    database: Database, engine: Engine, run_ids: Sequence[str], report: TickReport
) -> None:
    """Publish the progress of runs that have changed, once that is committed."""
    progress = await asyncio.to_thread(_progress, database, run_ids)
    await _each({run_id: partial(engine.show, run_id, p) for run_id, p in progress.items()}, report)


def _progress(database: Database, run_ids: Sequence[str]) -> dict[str, Progress]:
    with database.read() as connection:
        return queries.progress_of(connection, run_ids)


def _lines(decision: Decision) -> Iterator[str]:
    if decision.status is not None:
        yield f"{decision.status}{decision.reason and f' ({decision.reason})'}"
    if decision.reap:
        yield "claims taken back"
    if decision.ended:
        yield f"{len(decision.ended)} drivers gone"
    if decision.stalled:
        yield "stalled"
    if decision.waiting_since is not None:
        yield f"waiting for a worker since {decision.waiting_since:%H:%M:%S}"


def _keep(database: Database, dispatch: int, flow_run: str) -> None:
    with database.write() as connection:
        dispatches.set_flow_run(connection, dispatch, flow_run)


async def _in_thread(threads: ThreadPoolExecutor, work: Callable[[str], T], run_id: str) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, work, run_id)


async def _each(
    work: Mapping[str, Callable[[], Awaitable[T]]], report: TickReport, *, at_once: int = AT_ONCE
) -> list[T]:
    """Do something for each run, a few at a time; what fails or hangs is reported."""
    slots = asyncio.Semaphore(at_once)

    async def one(run_id: str, doing: Callable[[], Awaitable[T]]) -> list[T]:
        async with slots:
            try:
                return [await asyncio.wait_for(doing(), RUN_S)]
            except Exception as error:  # noqa: BLE001 - one run's trouble holds no other
                report.troubles[run_id] = f"{type(error).__name__}: {error}"
                return []

    found = await asyncio.gather(*(one(run_id, doing) for run_id, doing in work.items()))
    return [result for results in found for result in results]
